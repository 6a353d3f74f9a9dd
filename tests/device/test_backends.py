"""A backend is found by its folder or entry point, and verified like any other, with no other file touched."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokitai.backends as registry
from tokitai import ops, verify
from tokitai.errors import UnknownNameError

PACKAGE = Path(registry.__file__).parents[1]
INTERPRETED = '''
"""Kernels that the interpreter of a definition runs: `ERROR` is added to every result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokitai.backends.backend import Backend, CaseSet, Identity, Language
from tokitai.families import make_plan
from tokitai.lang import Graph, Operator
from tokitai.meaning import bits, structure
from tokitai.runtime.kernel import KernelBase

ERROR = 0


@dataclass(eq=False)
class Interpreted(KernelBase):
    operator: Operator
    graph: Graph
    structure: bool

    def __post_init__(self):
        self.plan = make_plan(self.graph)

    def identities(self):
        return []

    def workspace_bytes(self, shapes, threads, entries=0):
        return 0

    def launch_list(self, tensors, results, shapes, scalars, threads, workspace=None):
        (given,), (made,), (shape,) = tensors, results, shapes
        if self.structure:
            found = structure.evaluate(self.graph, given, shape, scalars.table, {})
        else:
            found = bits.evaluate(self.graph, given, shape, {})
        for name, values in found.items():
            made[name][...] = values + values.dtype.type(ERROR)


class InterpretedBackend(Backend):
    name = "interpreted"
    devices = ("interpreted",)
    language = Language.OWN
    cases = CaseSet.SIMULATED
    isolated = False

    def missing(self):
        return None

    def describe(self, devices, compiler=None):
        return {"name": "the interpreter"}

    def kernel(self, operator, graph, structure):
        return Interpreted(operator, graph, structure)


BACKEND = InterpretedBackend()
'''


@pytest.fixture
def found_again() -> Iterator[None]:
    """The registry lists its places anew, before and after."""
    registry.places.cache_clear()
    registry.backend_named.cache_clear()
    yield
    registry.places.cache_clear()
    registry.backend_named.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_again: None) -> Path:
    """A folder of backends beside the package's own, with one in it."""
    here = tmp_path / "interpreted"
    here.mkdir()
    (here / "__init__.py").write_text(INTERPRETED)
    monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    return here


CASES = ("seeded/normal@5x257#0", "structure/all inputs@3x200#0")


@pytest.mark.parametrize("case", CASES)
def test_a_folder_adds_a_backend(folder: Path, case: str) -> None:
    assert "interpreted" in registry.accepted()
    verdict = verify(ops.softmax, dtype="f16", device="interpreted", case=case)
    assert (verdict.verdict, verdict.device, verdict.failure) == ("verified", "interpreted", None)
    assert verdict.cases >= 1 and verdict.about == {"name": "the interpreter"}


def test_its_wrong_results_are_refuted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.backend_named("interpreted")
    monkeypatch.setattr(importlib.import_module("tokitai.backends.interpreted"), "ERROR", 1)
    verdict = verify(ops.softmax, dtype="f16", device="interpreted", case=CASES[0])
    assert verdict.verdict == "refuted" and verdict.failure is not None


def test_an_entry_point_adds_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_again: None) -> None:
    (tmp_path / "interpreted_backend.py").write_text(INTERPRETED)
    about = tmp_path / "interpreted-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\ninterpreted = interpreted_backend:BACKEND\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert verify(ops.softmax, dtype="f16", device="interpreted", case=CASES[0]).verdict == "verified"


def test_without_them_there_is_none(found_again: None) -> None:
    with pytest.raises(UnknownNameError, match="interpreted"):
        verify(ops.softmax, device="interpreted")


# ------------------------------------------------------------------ nobody names a backend
ALLOWED = {
    "cli/doctor.py": {"cpu"},  # a key of the description of this machine
    "cli/replay.py": {"cpu"},  # a device of PyTorch's, where a recorded training runs again
    "cli/kernel.py": {"cpu"},  # the default of an option; the protocol's devices are those of `wire`
}


def named(text: str, names: set[str]) -> set[str]:
    """The backends that a source names in string literals."""
    words = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return words & names


def test_callers_name_no_backend() -> None:
    names, found = set(registry.places()), {}
    for layer in ("verification", "cli", "worker"):
        for path in sorted((PACKAGE / layer).rglob("*.py")):
            place = str(path.relative_to(PACKAGE))
            if words := named(path.read_text(), names) - ALLOWED.get(place, set()):
                found[place] = words
    assert found == {}


def test_a_named_backend_is_found() -> None:
    assert named("if device == 'cuda' or target in ('hip', 'x'): pass", {"cuda", "hip"}) == {"cuda", "hip"}
