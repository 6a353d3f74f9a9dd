"""The reference page names every function with its arguments and results, as Python has them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.torch.test_derived import CALLS
from tokitai.torch import functional, nn, operators, optim
from tokitai.torch.arguments import plain_signature

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "torch.md").read_text()
OWN = [n for n in CALLS if getattr(functional, n, None) is not getattr(operators, n)]  # shaped otherwise than torch's


def section(name: str) -> str:
    return PAGE.split(f"\n## `tokitai.torch.{name}`\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(("module", "names"), [(functional, functional.__all__), (operators, OWN)])
def test_functions(module: Any, names: list[str]) -> None:
    """Results of what follows from a definition by their names."""
    rows = [line for line in section(module.__name__.rpartition(".")[2]).splitlines() if line.startswith("| `")]
    for name in names:
        function = getattr(module, name)
        last = function.__doc__.splitlines()[-1].strip()
        results = last.removeprefix("Returns ").rstrip(".") if last.startswith("Returns ") else ""
        begin = f"| `{name}{plain_signature(inspect.signature(function))}` | {results}"
        assert any(r.startswith(begin) for r in rows), begin


def test_modules_and_the_optimizer() -> None:
    modules = [m for m in vars(nn).values() if inspect.isclass(m) and m.__module__ == nn.__name__]
    assert len(modules) > 10
    for made in (*modules, optim.AdamW):
        (shown,) = (t for t in PAGE.split("`") if t.startswith(f"{made.__name__}("))
        for argument in shown.removeprefix(f"{made.__name__}(").removesuffix(")").split(", "):
            name = argument.split("=")[0].strip("() ")
            assert name in inspect.signature(made.__init__).parameters or name.replace(".", "").isdigit(), argument
