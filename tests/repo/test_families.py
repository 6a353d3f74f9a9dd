"""A family of kernels is a folder: found by listing it, and asked through its interface alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokitai import families as package
from tokitai import ops
from tokitai.families import emit_cpu, families, family_of, make_plan

PACKAGE = Path(__file__).parents[2] / "src" / "tokitai"
COPY_PLAN = """
from dataclasses import dataclass

from tokitai.families.rowwise.plan import RowPlan


@dataclass(frozen=True)
class CopyPlan(RowPlan):
    pass
"""
COPIES = """
from dataclasses import fields

from tokitai.families.rowwise.family import Rowwise
from tokitai.families.rowwise.plan import plan_rows

from .plan import CopyPlan


class Copies(Rowwise):
    priority = 5

    def takes(self, graph):
        return graph.name == "scale"

    def plan(self, graph):
        made = plan_rows(graph)
        return CopyPlan(**{f.name: getattr(made, f.name) for f in fields(made)})


FAMILY = Copies()
"""


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


def test_a_folder_is_found_with_no_other_file_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "__init__.py").write_text(COPIES)
    (folder / "plan.py").write_text(COPY_PLAN)
    with monkeypatch.context() as patched:
        patched.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        families.cache_clear()
        try:
            assert [type(f).__name__ for f in families()].index("Copies") == 0
            scaled, other = (make_plan(ops.get(name).trace("f32")) for name in ("scale", "softmax"))
            assert type(scaled).__name__ == "CopyPlan" and type(scaled.family).__name__ == "Copies"
            assert type(other.family).__name__ == "Rowwise"
            assert emit_cpu(scaled).text.startswith("// scale")
        finally:
            families.cache_clear()
            for name in ("tokitai.families.copies", "tokitai.families.copies.plan"):
                sys.modules.pop(name, None)
    assert "Copies" not in [type(f).__name__ for f in families()]


def test_a_plan_knows_the_family_in_whose_folder_its_class_is() -> None:
    for name in ops.registry():
        graph = ops.get(name).trace(ops.get(name).contract.formats[0])
        assert make_plan(graph).family is family_of(graph), name
