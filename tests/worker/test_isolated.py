"""Kernels in worker processes: the same bits as in this one, and verdicts on kernels that crash or hang."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verification.mutants import EXPRESSION, Edit, examine
from tests.worker import left
from tokitai import ops
from tokitai.cli import run
from tokitai.errors import ArgumentError, CacheError, UnavailableError
from tokitai.ops import registry
from tokitai.runtime.kernel import host_kernel
from tokitai.verification import verify
from tokitai.verification.batch import Job, verify_many
from tokitai.verification.cases import seeded
from tokitai.verification.verdict import Variant
from tokitai.worker import Limits, Pool, call, isolate
from tokitai.worker.graphs import flattened, restored

pytestmark = pytest.mark.slow

BODY = r"int32_t tokitai_kernel\(([^{]*)\{"
FORMATS = {"f16": np.float16, "f32": np.float32}


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(1, deadline=60, limits=Limits(sandbox=True)) as made:
        yield made


def same(pool: Pool, operator: Any, *args: Any, **kwargs: Any) -> None:
    """The worker's results have the bits of this process's."""
    here, there = operator(*args, **kwargs), call(pool, operator, *args, **kwargs)
    assert bits_of(here) == bits_of(there)


def bits_of(made: Any) -> list[Any]:
    return [(a.shape, a.dtype, a.tobytes()) for a in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.parametrize(
    "view", [np.s_[:], np.s_[::2], np.s_[::-1], np.s_[:, :100], np.s_[3], np.s_[:0], np.s_[:, ::3]]
)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_bits_for_every_view(pool: Pool, kind: str, view: Any) -> None:
    x = np.random.default_rng(1).standard_normal((32, 257)).astype(FORMATS[kind])
    shared = pool.empty(x.shape, x.dtype)
    shared[...] = x
    for given in (x[view], shared[view]):
        same(pool, ops.softmax, given)
        same(pool, ops.layer_norm, given, given[-1] if given.size and given.ndim > 1 else None, eps=1e-5)
    assert pool.counts.failed == 0 and pool.counts.started == int(x[view].size > 0)


def test_every_operator_has_the_same_bits_or_is_refused(pool: Pool) -> None:
    """Rows with one value, with several, columns, scalars, lists; products and tables are not offered on addresses."""
    for operator in registry().values():
        graph = operator.trace("f16" if "f16" in operator.contract.formats else "f32")
        case = seeded(operator, graph, "normal", (5, 9), 1)
        scalars = {p.name: case.params[p.name] for p in operator.params}
        if all(t.space in ("rc", "r", "c", "s") for t in graph.inputs) and all(o.space != "t" for o in graph.outputs):
            here, there = (
                run(**{n: a.copy() for n, a in case.tensors.items()}, **scalars)
                for run in (operator, partial(call, pool, operator))
            )
            assert bits_of(here) == bits_of(there), operator.name
        else:
            with pytest.raises(UnavailableError, match=r"not offered for products and tables; accepted: buffers"):
                call(pool, operator, **case.tensors, **scalars)
    assert pool.counts.failed == 0


def test_results_between_gaps_leave_the_gaps_alone(pool: Pool) -> None:
    x = np.random.default_rng(2).standard_normal((16, 50)).astype(np.float32)
    for whole in (np.full((16, 90), 7, np.float32), pool.empty((16, 90))):
        whole[...] = 7
        call(pool, ops.softmax, x, out=whole[:, 20:70])
        assert whole[:, 20:70].tobytes() == ops.softmax(x).tobytes()
        assert (whole[:, :20] == 7).all() and (whole[:, 70:] == 7).all()


def test_lists_in_place(pool: Pool) -> None:
    sizes = (5, 0, 20_000, 3)

    def lists(empty: Any) -> list[list[Any]]:
        rng, made = np.random.default_rng(3), []
        for kind in (np.float16, np.float16, np.float32, np.float32):
            made.append([empty(n, kind) for n in sizes])
            for a in made[-1]:
                a[...] = np.abs(rng.standard_normal(a.size))
        return made

    here, there, shared = lists(np.empty), lists(np.empty), lists(pool.empty)
    ops.adamw(*here, step=3, lr=1e-3)
    for given in (there, shared):
        call(pool, ops.adamw, *given, step=3, lr=1e-3)
        assert [[a.tobytes() for a in made] for made in given] == [[a.tobytes() for a in made] for made in here]
    same(pool, ops.global_norm, here[1])


def test_wrong_arguments_are_told_as_in_this_process(pool: Pool) -> None:
    with pytest.raises(ArgumentError, match="missing x"):
        call(pool, ops.softmax)
    with pytest.raises(ArgumentError, match="overlaps x"):
        x = np.zeros((4, 4), np.float32)
        call(pool, ops.softmax, x, out=x)
    assert pool.counts.started == 0


def test_a_file_that_was_changed_is_not_loaded(pool: Pool, tmp_path: Path) -> None:
    kernel = host_kernel(ops.softmax, dtype="f32")
    path = tmp_path / "kernel.so"
    path.write_bytes(kernel.artifact.path.read_bytes() + b"\0")
    other = isolate(dataclasses.replace(kernel, artifact=dataclasses.replace(kernel.artifact, path=path)), pool)
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(CacheError, match="build it again"):
        other.launch({"x": x}, {"y": x.copy()}, (2, 2), other.scalar_table(2, 2, {}), 1)


@pytest.mark.parametrize("name", sorted(registry()))
def test_a_graph_comes_back(name: str) -> None:
    graph = registry()[name].trace("f16")
    again = restored(pickle.loads(pickle.dumps(flattened(graph))))
    assert again.digest == graph.digest and str(again) == str(graph)
    assert (again.inputs, again.options) == (graph.inputs, graph.options)
    assert [n.origin for n in again.nodes] == [n.origin for n in graph.nodes]


def test_a_kernel_that_crashes_is_refuted(pool: Pool) -> None:
    edit = Edit(BODY, r"int32_t tokitai_kernel(\1{ *(volatile int*)nullptr = 1;")
    verdict = examine(edit, pool=pool)
    assert verdict.verdict == "refuted" and verdict.failure is not None
    assert verdict.failure.endswith("the worker process was ended by SIGSEGV")
    assert "--case 'structure" in verdict.failure


def test_a_kernel_that_hangs_is_undecided() -> None:
    with Pool(1, deadline=2) as pool:
        verdict = examine(Edit(BODY, r"int32_t tokitai_kernel(\1{ for (volatile int i = 1; i;) {}"), pool=pool)
    assert verdict.verdict == "undecided" and "no answer before the deadline" in str(verdict.failure)


def test_a_wrong_kernel_is_refuted_and_a_write_past_the_end_is_seen(pool: Pool) -> None:
    verdict = examine(Edit(*EXPRESSION["the tail of a row is dropped"]), pool=pool)
    assert verdict.verdict == "refuted" and "SIG" not in str(verdict.failure)
    assert pool.counts.failed == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("sim", marks=pytest.mark.slow)])
def test_verify_in_a_worker_process(device: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["verify", "softmax", "--dtype", "f16", "--device", device, "--shape", "rows=3,cols=40", "--json"]
    found = []
    for more in ([], ["--isolate"]):
        assert run([*words, *more, "--out", str(tmp_path / str(len(more)))]) == 0
        found.append(json.loads(capfd.readouterr().out))
    assert [{**f, "seconds": 0, "certificate": 0} for f in found[:1]] == [{**found[1], "seconds": 0, "certificate": 0}]
    here, there = (json.loads(Path(f["certificate"]).read_text())["predicate"] for f in found)
    assert [c["output_digests"] for c in here["cases"]] == [c["output_digests"] for c in there["cases"]]
    assert {k["fingerprint"] for k in here["kernels"]} == {k["fingerprint"] for k in there["kernels"]}
    texts = [Path(f["certificate"]).with_suffix(".md").read_text() for f in found]
    assert here["isolation"] is None and "worker process" not in texts[0]
    assert [limit.partition(":")[0] for limit in there["isolation"]][:1] == ["no core files"]
    assert any(limit.startswith("seccomp") for limit in there["isolation"]) is (device == "cpu")
    assert any(claim.startswith("Kernels ran in a worker process") for claim in there["claims"])
    assert f"| worker process | {', '.join(there['isolation'])} |" in texts[1]
    assert left.until(lambda: not left.processes(os.getpid()))


@pytest.mark.parametrize("name", ["embedding_backward", "router_backward"])
def test_tables_and_slots_on_the_simulated_device(name: str) -> None:
    op = ops.get(name)
    (verdict,) = verify_many([Job(op, "f16")], device="sim", case="seeded/normal@3x17#0", isolate=True)
    assert verdict.verdict == "verified", verdict.failure


def test_several_operators_in_processes_with_a_worker_each() -> None:
    jobs = [Job(op, "f16", variant=Variant(frozenset())) for op in (ops.softmax, ops.log_softmax)]
    shape = dict(rows=3, cols=20)
    verdicts = verify_many(jobs, shape=shape, processes=2, isolate=True)
    assert [v.verdict for v in verdicts] == ["verified"] * 2
    assert [v.cases for v in verdicts] == [v.cases for v in verify_many(jobs, shape=shape)]


def test_an_edited_kernel_for_a_gpu_is_not_isolated(pool: Pool) -> None:
    with pytest.raises(ArgumentError, match="edit on sim in a worker process"):
        verify(ops.softmax, dtype="f16", device="sim", edit=lambda text: text, pool=pool)
