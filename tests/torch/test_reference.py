"""The reference pages name every function with its arguments and results, as Python has them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.torch.test_derived import CALLS
from tokitai.ops import registry
from tokitai.torch import functional, nn, operators, optim
from tokitai.torch.arguments import plain_signature
from tools import operators_page

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "torch.md").read_text()
OPERATORS = operators_page.PAGE.read_text()
OWN = [n for n in CALLS if getattr(functional, n, None) is not getattr(operators, n)]  # shaped otherwise than torch's


def section(name: str) -> str:
    return PAGE.split(f"\n## `tokitai.torch.{name}`\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(("module", "names"), [(functional, functional.__all__), (operators, OWN)])
def test_functions(module: Any, names: list[str]) -> None:
    """Results of what follows from a definition by their names; what nothing has to be said of but its definition is
    on the page that is made of those."""
    rows = [line for line in section(module.__name__.rpartition(".")[2]).splitlines() if line.startswith("| `")]
    for name in names:
        function = getattr(module, name)
        last = function.__doc__.splitlines()[-1].strip()
        results = last.removeprefix("Returns ").rstrip(".") if last.startswith("Returns ") else ""
        begin = f"| `{name}{plain_signature(inspect.signature(function))}` | {results}"
        made = "" if function is not operators.FUNCTIONS.get(name) else operators_page.called(function)
        here = any(r.startswith(f"| `{name}(") for r in rows)
        assert any(r.startswith(begin) for r in rows) if here or not made else f"`{name}{made}`" in OPERATORS, begin


def test_the_page_of_operators_is_that_of_the_definitions() -> None:
    assert operators_page.page(registry().values()) == OPERATORS, "run python -m tools.operators_page"


def test_modules_and_the_optimizer() -> None:
    modules = [m for m in vars(nn).values() if inspect.isclass(m) and m.__module__ == nn.__name__]
    assert len(modules) > 10
    for made in (*modules, optim.AdamW):
        (shown,) = (t for t in PAGE.split("`") if t.startswith(f"{made.__name__}("))
        for argument in shown.removeprefix(f"{made.__name__}(").removesuffix(")").split(", "):
            name = argument.split("=")[0].strip("() ")
            assert name in inspect.signature(made.__init__).parameters or name.replace(".", "").isdigit(), argument
