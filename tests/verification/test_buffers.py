"""Buffers tell on kernels that write where they must not, or not where they must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mutants import centred, smaller

from tokitai import ops
from tokitai.families.shapes import LARGE
from tokitai.formats import FORMATS
from tokitai.runtime.kernel import host_kernel
from tokitai.verification.buffers import GUARD, POISON, Buffer, GuardError, digest, workspace_buffer
from tokitai.verification.cases import rng_for
from tokitai.verification.drawn import Place, place_of
from tokitai.verification.lists import run_list
from tokitai.verification.run import PLAIN, SMALL, Launch, Layout, layouts

SHAPES: list[tuple[int, ...]] = [(3, 5), (1, 1), (7,), (4, 64), (2, 3, 4), (0, 5), (3, 0), (0,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("offset", "gap"), [(0, 0), (1, 0), (3, 5)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint64, np.int32])
def test_buffers_lie_as_asked(shape: tuple[int, ...], offset: int, gap: int, dtype: Any) -> None:
    buffer = Buffer("y", shape, dtype, offset, gap if len(shape) >= 2 else 0)
    array = buffer.array
    assert array.shape == shape and array.dtype == dtype
    if array.size:
        assert array.ctypes.data % 64 == offset * array.itemsize % 64
        start = array.ctypes.data - buffer.raw.ctypes.data
        last = start + sum((n - 1) * s for n, s in zip(shape, array.strides, strict=True)) + array.itemsize
        assert start >= GUARD and last + GUARD <= buffer.raw.size
    if len(shape) >= 2 and array.size:
        row = shape[-1] + gap
        assert array.strides == tuple(n * array.itemsize for n in (row * shape[-2] + gap, row, 1)[-len(shape) :])
    buffer.poison()
    buffer.check_guards()
    array[...] = 1
    buffer.check_guards()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("turned", [False, True])
def test_a_write_outside_is_found_on_every_byte(shape: tuple[int, ...], gap: int, turned: bool) -> None:
    buffer = Buffer("y", shape, np.float32, 1, gap if len(shape) >= 2 else 0, turned=turned)
    inside = np.zeros(buffer.raw.size, bool)
    for at in np.ndindex(*shape):
        place = (
            buffer.array.ctypes.data
            - buffer.raw.ctypes.data
            + sum(i * s for i, s in zip(at, buffer.array.strides, strict=True))
        )
        inside[place : place + 4] = True
    for byte in np.flatnonzero(~inside):
        kept = buffer.raw[byte]
        buffer.raw[byte] = kept ^ 1
        with pytest.raises(GuardError, match=r"^y: wrote outside its elements, first at element offset -?\d+$"):
            buffer.check_guards()
        buffer.raw[byte] = kept
    buffer.raw[inside] ^= 1
    buffer.check_guards()


def test_the_offset_counts_elements_from_the_first_one() -> None:
    buffer = Buffer("y", (2, 3), np.float32, gap=1)
    at = buffer.array.ctypes.data - buffer.raw.ctypes.data
    buffer.raw[at + 3 * 4] ^= 0xFF  # in the gap behind the first row
    with pytest.raises(GuardError, match="first at element offset 3"):
        buffer.check_guards()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.uint64])
def test_poison_is_a_value_that_no_kernel_stores(dtype: Any) -> None:
    buffer = Buffer("y", (2, 3), dtype, 1, 2)
    buffer.poison()
    words = buffer.array.view(f"u{buffer.array.itemsize}")
    assert (words == POISON[buffer.array.itemsize]).all()
    fmt = next((f for f in FORMATS.values() if f.dtype == dtype), None)
    if fmt is not None and fmt.bits < 64:
        with np.errstate(invalid="ignore"):  # a signalling NaN of bf16
            assert np.isnan(buffer.array.astype(np.float64)).all()
        assert POISON[fmt.bytes] != fmt.nan


def test_a_digest_is_that_of_the_elements() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert digest(base[:, ::2]) == digest(base[:, ::2].copy()) != digest(base[:, 1::2])
    assert digest(np.array([0.0])) != digest(np.array([-0.0]))


def drawn_layouts(count: int = 300) -> list[Layout]:
    return [x for i in range(count) for x in layouts(f"seeded/normal@3x{i}#0", 1, 0) if x.draws]


def test_layouts_follow_from_seed_and_case() -> None:
    one, two = layouts("a", 1, 0), layouts("a", 1, 1)
    assert one == layouts("a", 1, 0) and one != two and one != layouts("b", 1, 0)
    assert one[0] == PLAIN and len(one) == 4 and len(layouts("a", SMALL + 1, 0)) == 2
    assert [x.aligned for x in layouts("a", LARGE, 0)] == [True], "what is stored past the caches is aligned"


def test_threads_are_drawn_from_one_to_thirty_three() -> None:
    assert {x.threads for x in drawn_layouts()} == set(range(1, 34))


def places(space: Any, size: tuple[int, ...], itemsize: int, aligned: bool = False) -> list[Place]:
    return [place_of(rng_for(0, str(i)), space, size, itemsize, aligned) for i in range(400)]


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("space", ["rc", "t", "rk", "kr", "kc", "ck"])
def test_tensors_of_two_sides_lie_in_every_way(space: Any, itemsize: int) -> None:
    """Every offset behind a boundary; no gap, small ones, long ones, strides of whole lines; the last row first."""
    found = places(space, (7, 37), itemsize)
    line = 64 // itemsize
    assert {p.offset for p in found} == set(range(line)) and {16, 32} <= {p.offset * itemsize for p in found}
    assert max(p.gap for p in found) > 1000 and min(p.gap for p in found) < 8
    assert any((37 + p.gap) % 16 == 0 for p in found) and any((37 + p.gap) % 2 for p in found)
    assert 60 < sum(p.turned for p in found) < 140 and len({p.apart for p in found}) == 4
    lines = places(space, (7, 37), itemsize, aligned=True)
    assert all(p.offset == 0 and (37 + p.gap) % line == 0 for p in lines)


@pytest.mark.parametrize("space", ["r", "c", "s", "gr", "gk"])
def test_tensors_without_a_stride_lie_anywhere(space: Any) -> None:
    assert {(p.gap, p.turned) for p in places(space, (37,), 4)} == {(0, False)}
    assert {p.offset for p in places(space, (37,), 4)} == set(range(16))


def test_layouts_tell_tensors_apart() -> None:
    """Over a few cases any tensor has any stride beside those of the others."""
    kernel = host_kernel(smaller, dtype="f32")
    tensors = {n: np.ones((3, 9), np.float32) for n in "ab"}
    strides = []
    for layout in drawn_layouts(10):
        launch = Launch(kernel, (3, 9), tensors, layout)
        strides.append([b.array.strides[0] for b in (*launch.inputs.values(), *launch.results.values())])
        assert launch.told().startswith(f"{layout.name}, {layout.threads} thread")
    assert sum(len(set(s)) == 3 for s in strides) > 20 and any(min(s) < 0 for s in strides)


def test_the_rows_of_an_expanded_input_are_the_same_memory() -> None:
    kernel = host_kernel(smaller, dtype="f32")
    launch = Launch(kernel, (3, 9), {n: np.ones((3, 9), np.float32) for n in "ab"}, replace(PLAIN, expanded=True))
    assert [b.array.strides for b in launch.inputs.values()] == [(0, 4), (0, 4)]
    assert launch.results["y"].array.strides == (36, 4)


def test_a_launch_checks_inputs_results_and_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = host_kernel(centred, dtype="f16", present=())
    tensors = dict(x=np.ones((40, 5), np.float16), w=np.ones(5, np.float16))
    scalars = kernel.scalar_table(40, 5, dict(eps=0.1))
    layout = Layout("here", 2, offset=1, gap=3)
    got = Launch(kernel, (40, 5), tensors, layout).run(scalars)
    assert (got["y"] == 0).all() and (got["total"] == 0).all()

    def beyond_the_workspace(*args: Any) -> None:
        real_launch(*args)
        launch.workspace.raw[-1] ^= 1

    launch = Launch(kernel, (40, 5), tensors, layout)
    real_launch = kernel.launch_buffers
    monkeypatch.setattr(type(kernel), "launch_buffers", lambda self, *args: beyond_the_workspace(*args))
    with pytest.raises(GuardError, match=r"^workspace: wrote outside its elements"):
        launch.run(scalars)


@pytest.mark.parametrize(("nbytes", "guard"), [(0, 4096), (5000, 5056), (1 << 21, 1 << 20)])
def test_guard_zones_of_a_workspace_are_as_large_as_it(nbytes: int, guard: int) -> None:
    """What is written a whole workspace behind its end is found, up to a limit."""
    for at in (-guard, -1, nbytes, nbytes + guard - 1):
        workspace = workspace_buffer(nbytes, np.float32)
        workspace.check_guards()
        workspace.raw[workspace.start() + at] ^= 1
        with pytest.raises(GuardError, match=r"^workspace: wrote outside its elements"):
            workspace.check_guards()


def test_the_workspace_of_a_list_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = host_kernel(ops.global_norm, dtype="f16")
    assert run_list(ops.global_norm, kernel, "one tensor", 0, 2).failure is None
    real_launch = type(kernel).launch_buffers

    def beyond_the_workspace(self: Any, *args: Any) -> None:
        real_launch(self, *args)
        args[-1].raw[-1] ^= 1

    monkeypatch.setattr(type(kernel), "launch_buffers", beyond_the_workspace)
    failure = run_list(ops.global_norm, kernel, "one tensor", 0, 2).failure
    assert failure is not None and "workspace: wrote outside its elements" in failure


def test_a_workspace_holds_poison_not_zeros() -> None:
    """A kernel that forgets to clear its sums must not be saved by memory that happens to be zero."""
    kernel = host_kernel(centred, dtype="f16", present=())
    launch = Launch(kernel, (40, 5), dict(x=np.ones((40, 5), np.float16), w=np.ones(5, np.float16)), PLAIN)
    assert launch.workspace.array.size and np.isnan(launch.workspace.array).all()
