"""Buffers tell on kernels that write where they must not, or not where they must."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mutants import centred, smaller

from tokitai.formats import FORMATS
from tokitai.kernel import compile
from tokitai.verification.buffers import GUARD, POISON, Buffer, GuardError, digest
from tokitai.verification.run import PLAIN, Launch, Layout, layouts

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
def test_a_write_outside_is_found_on_every_byte(shape: tuple[int, ...], gap: int) -> None:
    buffer = Buffer("y", shape, np.float32, 1, gap if len(shape) >= 2 else 0)
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


def test_small_cases_are_run_under_every_layout() -> None:
    small, large = layouts(1 << 16, 2), layouts((1 << 16) + 1, 2)
    off = {"one element off", "some tensors one element off"}
    assert {x.name for x in small} == {"plain", "seven threads", "gaps between rows", *off}
    assert {x.threads for x in small} == {1, 2, 7} and any(x.offset for x in small) and any(x.gap for x in small)
    assert len(large) == 2 and any(x.offset and x.gap for x in large) and PLAIN in small


def test_layouts_tell_tensors_apart() -> None:
    """No two tensors have the same row stride where there are gaps; over the shapes every choice of tensors is off."""
    kernel = compile(smaller, dtype="f32")
    gaps, some = (next(x for x in layouts(1, 2) if x.gap), next(x for x in layouts(1, 2) if x.some))
    off = set()
    for cols in range(1, 40):
        tensors = {n: np.ones((3, cols), np.float32) for n in "ab"}
        launch = Launch(kernel, (3, cols), tensors, gaps)
        buffers = [*launch.inputs.values(), *launch.results.values()]
        assert len({b.array.strides[0] for b in buffers}) == len(buffers) == 3
        launch = Launch(kernel, (3, cols), tensors, some)
        buffers = [*launch.inputs.values(), *launch.results.values()]
        off.add(tuple(b.array.ctypes.data % 64 for b in buffers))
    assert off == {(a, b, y) for a in (0, 4) for b in (0, 4) for y in (0, 4)}


def test_a_launch_checks_inputs_results_and_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compile(centred, dtype="f16", present=())
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


def test_a_workspace_holds_poison_not_zeros() -> None:
    """A kernel that forgets to clear its sums must not be saved by memory that happens to be zero."""
    kernel = compile(centred, dtype="f16", present=())
    launch = Launch(kernel, (40, 5), dict(x=np.ones((40, 5), np.float16), w=np.ones(5, np.float16)), PLAIN)
    assert launch.workspace.array.size and np.isnan(launch.workspace.array).all()
