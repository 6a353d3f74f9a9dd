"""What users copy and send to other processes: operators, functions, kernels, verdicts, errors."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokitai
from tokitai import errors, ops
from tokitai.errors import ArgumentError, TokitaiError, UnknownNameError, WireError
from tokitai.lang import Matrix, Outputs, operator, outputs, storage
from tokitai.ops import registry
from tokitai.runtime.kernel import build_text, host_kernel
from tokitai.verification.verdict import Verdict, verify
from tokitai.worker import Pool, isolate

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, **{
        f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}  # fmt: skip


@operator
def doubled(x: Matrix[storage]) -> Outputs:
    """y = 2x: an operator of a reader's own."""
    return outputs(y=x + x)


# ------------------------------------------------------------------ operators
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_operator_is_the_operator(how: str) -> None:
    for op in (*registry().values(), doubled):
        assert COPIES[how](op) is op
    held = {"act": ops.silu, "each": [ops.silu, doubled]}
    again = COPIES[how](held)
    assert again["act"] is ops.silu and again["each"][1] is doubled


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted({op.__module__ for op in registry().values()}))
def test_whichever_file_is_imported_first_all_operators_are_there(module: str) -> None:
    """As in a process that unpickles one."""
    code = f"import {module}; from tokitai import ops; print(*ops.registry())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == list(registry())


def test_an_operator_without_a_name_says_so() -> None:
    @operator
    def hidden(x: Matrix[storage]) -> Outputs:
        """y = x."""
        return outputs(y=x)

    assert copy.deepcopy(hidden) is hidden
    with pytest.raises((pickle.PicklingError, AttributeError), match="hidden"):
        pickle.dumps(hidden)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_function_for_torch_is_the_function(how: str) -> None:
    functional = pytest.importorskip("tokitai.torch.functional")
    found = [f for n, f in vars(functional).items() if n[0] != "_" and inspect.isfunction(f)]
    assert len(found) > 20
    for function in found:
        assert COPIES[how](function) is function


def _apply(op: Any, x: Any) -> Any:
    return op(x)


@pytest.mark.slow
def test_operators_go_to_a_pool_and_results_come_back() -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.starmap_async(_apply, [(ops.silu, x), (ops.softmax, x)]).get(120)
    assert [a.tobytes() for a in there] == [ops.silu(x).tobytes(), ops.softmax(x).tobytes()]


# ------------------------------------------------------------------ kernels
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("structure", [False, True])
def test_a_kernel_is_the_same_elsewhere(how: str, structure: bool) -> None:
    kernel = host_kernel(ops.layer_norm, "f16", ["gamma"], structure=structure)
    _ = kernel.loaded, kernel.tensor_sizes  # loaded, and used
    again = COPIES[how](kernel)
    assert (again is kernel) is ("pickle" not in how)
    assert again.operator is ops.layer_norm and again.fingerprint == kernel.fingerprint
    assert again.artifact.digest == kernel.artifact.digest and again.source == kernel.source
    assert [t.name for t in again.graph.inputs] == ["x", "gamma"] and again.loaded is kernel.loaded


def test_a_kernel_runs_after_its_journey() -> None:
    again = pickle.loads(pickle.dumps(tokitai.compile(ops.scale)))
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    again.launch({"x": x}, {"y": y}, (2, 3), again.scalar_table(2, 3, {"factor": 3.0}), 1)
    assert (y == 3).all()


def test_an_altered_source_stays_altered() -> None:
    kernel = host_kernel(ops.scale)
    graph, plan = kernel.graph, kernel.plan
    from tokitai.families import emit_cpu

    altered = build_text(ops.scale, graph, plan, f"{kernel.source}\n// altered\n", emit_cpu(plan).headers)
    again = pickle.loads(pickle.dumps(altered))
    assert again.source == altered.source and again.fingerprint == altered.fingerprint != kernel.fingerprint


def test_kernels_for_gpus() -> None:
    pytest.importorskip("cuda.bindings")
    for op, shape in ((ops.softmax, None), (ops.linear, dict(rows=64, cols=96, inner=128))):
        build = tokitai.compile(op, "cuda", "f16", shape=shape, arch="sm_90")
        assert copy.deepcopy(build) is build
        again = pickle.loads(pickle.dumps(build))
        assert again.fingerprint == build.fingerprint and again.shape == build.shape
        assert again.artifact.digest == build.artifact.digest and again.launches == build.launches


def test_kernels_of_the_simulated_device() -> None:
    (kernel, *_) = verify(ops.scale, dtype="f32", device="sim", shape=dict(rows=2, cols=5)).kernels
    assert copy.deepcopy(kernel) is kernel
    again = pickle.loads(pickle.dumps(kernel))
    assert type(again) is type(kernel) and again.operator is ops.scale and again.target.name == "sim"


def test_a_kernel_of_a_pool_is_refused_by_name() -> None:
    with Pool(1) as pool, pytest.raises(ArgumentError, match="belongs to a pool of this process; accepted"):
        pickle.dumps(isolate(tokitai.compile(ops.scale), pool))


# ------------------------------------------------------------------ verdicts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device", "case"),
    [
        ("softmax", "cpu", "seeded/normal@3x17#0"),
        ("softmax", "sim", "seeded/normal@3x17#0"),
        ("linear", "cpu", "seeded/normal@3x5x7#0"),
    ],
)
def test_a_verdict_is_the_same_elsewhere(name: str, device: str, case: str) -> None:
    verdict = verify(ops.get(name), dtype="f32", device=device, case=case)
    for how, make in COPIES.items():
        again: Verdict = make(verdict)
        assert again is not verdict and again.as_json() == verdict.as_json()
        assert again.results == verdict.results
        assert again.kernels == ([] if "pickle" in how else verdict.kernels), "a reader needs no compiler"
    assert len(verdict.kernels) > 0


def test_a_judgement_is_the_same_elsewhere() -> None:
    judgement = tokitai.judge(ops.silu, ops.silu, dtype="f32", shape=dict(rows=2, cols=3))
    for make in COPIES.values():
        assert make(judgement).as_json() == judgement.as_json()


# ------------------------------------------------------------------ errors
def _modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(tokitai.__path__, "tokitai."):
        if not found.name.endswith("__main__"):
            try:
                yield importlib.import_module(found.name)
            except ImportError as error:
                assert error.name is not None and not error.name.startswith("tokitai"), error


def exception_classes() -> list[type[BaseException]]:
    """Every exception class of the package."""
    found = {
        kind
        for module in _modules()
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__.startswith("tokitai.")
    }
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def _made(kind: type[BaseException]) -> BaseException:
    """An exception of a class, with something different for each parameter of its constructor."""
    examples = {
        "message": "what is wrong", "last_words": "its last words", "signal": 11, "kind": "operator", "name": "sofmax",
        "accepted": ["softmax", "silu"], "field": "rows", "exit_code": 4,
    }  # fmt: skip
    if not inspect.isfunction(kind.__init__):  # the constructor of a built-in class
        return kind("what is wrong")
    return kind(*(examples[name] for name in list(inspect.signature(kind).parameters)))


@pytest.mark.parametrize("kind", exception_classes(), ids=lambda kind: kind.__qualname__)
def test_every_error_comes_back(kind: type[BaseException]) -> None:
    error = _made(kind)
    error.add_note("a note")
    for make in COPIES.values():
        again = make(error)
        assert type(again) is kind
        assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


def test_all_classes_of_the_tree_are_tried() -> None:
    tried = set(exception_classes())
    pending: list[type[TokitaiError]] = [TokitaiError]
    while pending:
        kind = pending.pop()
        assert kind in tried or not kind.__module__.startswith("tokitai")
        pending += kind.__subclasses__()
    assert {UnknownNameError, WireError, errors.WorkerCrashedError} <= tried


def test_what_users_derive_comes_back_too() -> None:
    error = Derived(3, what="this")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.number, again.what) == (Derived, str(error), 3, "this")


class Derived(ArgumentError):
    """An error of a user's own, made of more than a message."""

    def __init__(self, number: int, *, what: str) -> None:
        super().__init__(f"{what}: {number}")
        self.number, self.what = number, what


IN_A_POOL = """
import multiprocessing, sys
from tokitai import ops
from tokitai.errors import UnknownNameError, WireError

def unknown(_): return ops.get("sofmax")
def wire(_): raise WireError("rows", 4, "-1")

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        for work, kind in ((unknown, UnknownNameError), (wire, WireError)):
            try:
                pool.apply_async(work, (1,)).get(60)
            except kind as error:
                print(type(error).__name__, error)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_error_in_a_pool_is_raised_where_its_result_is_awaited(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IN_A_POOL)
    ran = subprocess.run([sys.executable, str(program), method], capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines()[0].startswith("UnknownNameError no operator named 'sofmax'"), ran.stderr
    assert ran.stdout.splitlines()[1] == "WireError rows: -1"
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_an_error_of_a_worker_process_keeps_its_kind() -> None:
    with Pool(1) as pool, pytest.raises(UnknownNameError, match="did you mean softmax"):
        pool.run("tests.cases.test_copies:_get", {"name": "sofmax"})


def _get(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    ops.get(arguments["name"])
