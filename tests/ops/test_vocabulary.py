"""Cross-entropy of a vocabulary that is split over ranks, beside that of whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bounded import limits
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops

Array = np.ndarray[Any, Any]
ROWS = 9


def drawn(cols: int, dtype: Any, seed: int = 0) -> tuple[Array, Array]:
    """Logits with ties, masked columns and rows that are almost certain; targets, some ignored."""
    rng = np.random.default_rng([cols, seed])
    logits = rng.standard_normal((ROWS, cols)) * 4
    logits[1] = np.rint(logits[1])
    target = rng.integers(0, cols, ROWS)
    logits[2] -= 40
    logits[2, target[2]] = 30
    target[3] = -100
    logits[4, np.arange(cols) % 3 == (target[4] + 1) % 3] = -np.inf
    return array(logits, dtype), target


def in_parts(logits: Array, target: Array, ends: list[int], order: list[int] | None = None) -> dict[str, Array]:
    """What ranks with these columns compute, each on its own; ``order`` is the one in which they are ready."""
    parts = [(begin, np.ascontiguousarray(logits[:, begin:end])) for begin, end in zip([0, *ends], ends, strict=False)]
    turns = order or list(range(len(parts)))
    top = parts and ops.part_top(parts[turns[0]][1])
    for i in turns[1:]:
        top = np.maximum(top, ops.part_top(parts[i][1]))
    sums: dict[int, Any] = {i: ops.part_sums(parts[i][1], target, top, first=parts[i][0]) for i in turns}
    several = [np.stack([sums[i][j] for i in range(len(parts))], axis=1) for j in range(3)]
    loss, lse, rest, total = ops.merged_cross_entropy(*several, top, target)
    dloss = np.linspace(0.5, 2, len(target)).astype(np.float32)
    saved = dict(top=top, rest=rest, total=total)
    slopes = [ops.part_cross_entropy_backward(dloss, x, target, **saved, first=first) for first, x in parts]
    return dict(loss=loss, lse=lse, dlogits=np.concatenate(slopes, axis=1))


def whole(logits: Array, target: Array) -> dict[str, Array]:
    dloss = np.linspace(0.5, 2, len(target)).astype(np.float32)
    return run(ops.cross_entropy, logits=logits, target=target) | run(
        ops.cross_entropy_backward, dloss=dloss, logits=logits, target=target
    )


def even(cols: int, width: int) -> list[int]:
    return [*range(width, cols, width), cols]


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("cols", [1, 64, 1000, 4096, 5003])
def test_parts_of_a_power_of_two_have_the_bits_of_whole_rows(cols: int, dtype: Any) -> None:
    """1, 2, 4, 8 and more parts, of which the last may be shorter."""
    logits, target = drawn(cols, dtype)
    want = whole(logits, target)
    most = 1 << (cols - 1).bit_length()
    for width in {max(most >> k, 1) for k in range(6)}:
        got = in_parts(logits, target, even(cols, width))
        assert all(same_bits(got[n], want[n]) for n in want), f"{cols} columns in parts of {width}"


def test_the_order_of_arrival_changes_no_bit() -> None:
    logits, target = drawn(1000, F32)
    ends = [100, 350, 351, 720, 1000]
    want = in_parts(logits, target, ends)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        got = in_parts(logits, target, ends, order)
        assert all(same_bits(got[n], want[n]) for n in want)


@pytest.mark.parametrize("ends", [[7, 1000], [333, 666, 1000], [125 * i for i in range(1, 9)]])
def test_other_parts_differ_by_the_order_of_a_sum(ends: list[int]) -> None:
    """Within the bounds of both, of what each rounds."""
    logits, target = drawn(1000, F32)
    got, want = in_parts(logits, target, ends), whole(logits, target)
    dloss = np.linspace(0.5, 2, ROWS).astype(np.float32)
    allowed = limits(ops.cross_entropy, dict(logits=logits, target=target)) | limits(
        ops.cross_entropy_backward, dict(dloss=dloss, logits=logits, target=target)
    )
    for name, limit in allowed.items():
        error = np.abs(got[name].astype(np.float64) - want[name]).reshape(limit.shape)
        assert ((error <= 2 * limit) | ~np.isfinite(limit)).all(), name
    assert not all(same_bits(got[n], want[n]) for n in want)


def test_a_target_that_nobody_has_is_seen() -> None:
    logits, target = drawn(64, F32)
    target[0], target[5] = 64, -3
    loss = in_parts(logits, target, even(64, 16))["loss"]
    assert np.isinf(loss[[0, 5]]).all() and np.isfinite(np.delete(loss, [0, 5])).all() and loss[3] == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_no_rows(threads: int) -> None:
    none, target = np.zeros((0, 8), np.float32), np.zeros(0, np.int64)
    assert ops.part_top(none, threads=threads).shape == (0,)
    assert all(x.shape == (0,) for x in ops.part_sums(none, target, np.zeros(0, np.float32), first=0, threads=threads))
