"""Reported faults of one operator's addressing, as rules that hold for every operator of the package."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tokitai.bench.workload import Workload, takes_lists, workload
from tokitai.lang import MATRICES, Operator
from tokitai.ops import registry
from tokitai.runtime.shapes import allowed

Array = np.ndarray[Any, Any]
ON_ROWS = [  # and whose results are not written over inputs
    o for o in registry().values() if not takes_lists(o) and not any(r.inplace for r in o.trace("f16").outputs)
]


def prepared(op: Operator, rows: int, cols: int, dtype: str = "f16") -> Workload:
    work = workload(op, dtype, ((rows, cols),))
    assert matrices(work)
    return work


def run(work: Workload, tensors: dict[str, Array], **more: Any) -> dict[str, Array]:
    """The results by name; a result in place is the tensor that was given."""
    args = [tensors.get(t.name) for t in work.operator.tensors]
    made = work.operator(*args, **work.scalars, **more)
    names = [o.name for o in work.kernel.graph.outputs]
    return dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))


def singles(work: Workload) -> dict[str, Array]:
    return {n: a[0].copy() for n, a in work.tensors.items()}


def matrices(work: Workload) -> list[str]:
    return [t.name for t in work.kernel.graph.inputs if t.space in MATRICES]


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return all(a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in b)


def views(a: Array) -> Iterator[tuple[str, Array]]:
    """Arrays equal to `a` that lie in memory in other ways; what lies between their elements is NaN or -1."""
    *groups, rows, cols = a.shape
    filler = np.array(np.nan if a.dtype.kind not in "iu" else -1).astype(a.dtype)
    wide = np.full((*groups, rows, 2 * cols), filler)
    wide[..., ::2] = a
    yield "every other column", wide[..., ::2]
    yield "columns first", np.asfortranarray(a)
    yield "columns backwards", a[..., ::-1].copy()[..., ::-1]
    yield "rows backwards", a[..., ::-1, :].copy()[..., ::-1, :]
    apart = np.full((*groups, 2 * rows, cols + 3), filler)
    apart[..., ::2, 1:-2] = a
    yield "rows apart, one element off", apart[..., ::2, 1:-2]


@pytest.mark.slow
@pytest.mark.parametrize("op", ON_ROWS, ids=lambda o: str(o.name))
def test_any_stride_is_read_as_its_copy(op: Operator) -> None:
    """C21, C07, C56: one pass honours a stride and another does not; an address is not aligned."""
    work = prepared(op, 6, 37)
    plain, want = singles(work), run(work, singles(work))
    assert any(a.size for a in want.values())
    for name in matrices(work):
        for how, view in views(plain[name]):
            before = view.tobytes()
            assert same(run(work, {**plain, name: view}), want), f"{name}: {how}"
            assert view.tobytes() == before
    stretched = {**plain, **{n: np.broadcast_to(plain[n][:1], plain[n].shape) for n in matrices(work)}}
    assert same(run(work, stretched), run(work, {n: a.copy() for n, a in stretched.items()})), "a row repeated"


@pytest.mark.slow
@pytest.mark.parametrize("op", ON_ROWS, ids=lambda o: str(o.name))
def test_rows_may_lie_beyond_32_bits(op: Operator) -> None:
    """C23, C30, C51, C64: row times stride wraps at 2**31 or 2**32 elements. Three rows so far apart that the last one
    begins beyond 2**31, in every input and every result; only the pages that are touched exist."""
    rows, cols, apart = 3, 19, 2**30 + 5
    work = prepared(op, rows, cols)
    plain, want = singles(work), run(work, singles(work))

    def far(like: Array) -> Array:
        *groups, rows, cols = like.shape
        size = ((math.prod(groups) * rows - 1) * apart + cols) * like.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        memory = mmap.mmap(-1, size, flags=flags)
        strides = [like.itemsize * n for n in (*[rows * apart for _ in groups], apart, 1)]
        return np.ndarray(like.shape, like.dtype, memory, strides=strides)

    given = dict(plain)
    for name in matrices(work):
        given[name] = far(plain[name])
        given[name][...] = plain[name]
    out = tuple(
        far(want[o.name]) if o.space in ("rc", "t") else np.empty_like(want[o.name]) for o in work.kernel.graph.outputs
    )
    got = run(work, given, out=out if len(out) > 1 else out[0], copy=False)
    assert same(got, want)


EMPTY = [(o, shape) for o in ON_ROWS for shape in ((0, 8), (3, 0), (0, 0)) if allowed(o, shape)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "shape"), EMPTY, ids=lambda v: str(getattr(v, "name", v)))
def test_empty_tensors_leave_no_trace(op: Operator, shape: tuple[int, int]) -> None:
    """C20, C53, C54: nothing to do is an empty grid, whose error meets the next call; a sum over nothing is +0."""
    work = prepared(op, *shape)
    got = run(work, singles(work))
    for o in work.kernel.graph.outputs:
        if o.space in ("c", "t") and shape[0] == 0:
            assert got[o.name].tobytes() == bytes(got[o.name].nbytes), f"{o.name}: +0 in every bit"
    small = prepared(op, 2, 5)
    assert same(run(small, singles(small)), run(small, singles(small))), "the next call works"


@pytest.mark.slow
@pytest.mark.parametrize("op", ON_ROWS, ids=lambda o: str(o.name))
def test_only_results_are_written(op: Operator) -> None:
    """C39, C127: a gradient is stored into the logits' memory; inputs are changed behind the caller's back."""
    work = prepared(op, 9, 33)
    given = singles(work)
    for a in given.values():
        a.flags.writeable = False  # a kernel writes by address: the flag alone would not stop it
    before = {n: a.tobytes() for n, a in given.items()}
    run(work, given)
    assert {n: a.tobytes() for n, a in given.items()} == before
