"""A family of kernels is a folder: found by listing it, and asked through its interface alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokitai.families import families

PACKAGE = Path(__file__).parents[2] / "src" / "tokitai"


def plan_checks(text: str) -> Iterator[int]:
    """Lines of a file that ask which class a plan has."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
            named = [n.id if isinstance(n, ast.Name) else n.attr for a in node.args for n in ast.walk(a)
                     if isinstance(n, ast.Name | ast.Attribute)]  # fmt: skip
            if any(name.endswith("Plan") for name in named):
                yield node.lineno


def test_nothing_outside_a_family_asks_which_class_a_plan_has() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "families"
        for line in plan_checks(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["isinstance(plan, RowPlan)", "isinstance(k.plan, (ProductPlan, families.AttentionPlan))"]
)
def test_a_check_of_a_plan_is_found(text: str) -> None:
    assert list(plan_checks(f"x = 1\nif {text}:\n    x = 2\n")) == [2]


def test_other_checks_are_none() -> None:
    assert list(plan_checks("isinstance(plan.graph, Graph)")) == []


def test_every_folder_is_one_family() -> None:
    folders = {path.parent.name for path in (PACKAGE / "families").glob("*/__init__.py")}
    assert {type(f).__module__.split(".")[-2] for f in families()} == folders
    order = [f.priority for f in families()]
    assert order == sorted(set(order)), "two families with one priority are asked in no order"
    assert families()[-1].__class__.__name__ == "Rowwise", "it takes every graph"
