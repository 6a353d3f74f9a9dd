"""The reference page names every function with its arguments and results, as Python has them."""

from __future__ import annotations

import inspect
from pathlib import Path

from tests.torch.test_derived import CALLS
from tokitai.torch import functional, nn, optim

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "torch.md").read_text()


def test_functions() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for name in CALLS:
        function = getattr(functional, name)
        results = function.__doc__.splitlines()[-1].strip().removeprefix("Returns ").rstrip(".")
        assert f"| `{name}{inspect.signature(function)}` | {results} |" in rows
    for name in ("linear", "embedding"):
        opened = f"| `{name}("
        (row,) = (r for r in rows if r.startswith(opened))
        arguments = row.removeprefix(opened).split(")")[0]
        schema = str(getattr(functional, name)._opoverload._schema)
        assert [a.split("=")[0] for a in arguments.split(", ")] == [
            a.split("=")[0].split()[-1] for a in schema.split("(")[1].split(")")[0].split(", ")
        ]


def test_modules_and_the_optimizer() -> None:
    for made in (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Experts, optim.AdamW):
        (shown,) = (t for t in PAGE.split("`") if t.startswith(f"{made.__name__}("))
        for argument in shown.removeprefix(f"{made.__name__}(").removesuffix(")").split(", "):
            name = argument.split("=")[0].strip("() ")
            assert name in inspect.signature(made.__init__).parameters or name.replace(".", "").isdigit(), argument
