"""The tree over blocks, in parts, beside the rule of sums."""

from __future__ import annotations

import numpy as np
import pytest

from tokitai.errors import ArgumentError
from tokitai.meaning.sums import tree
from tokitai.torch.ranks import Arrangement, arrange
from tokitai.torch.tree import Partial, roots, total


def add(a: np.float32, b: np.float32) -> np.float32:
    return np.float32(a + b)


@pytest.mark.parametrize("leaves", [*range(1, 18), 31, 33, 64, 100])
def test_parts_meet_in_the_tree_wherever_they_are_cut(leaves: int) -> None:
    draw = np.random.default_rng(leaves)
    values = (draw.standard_normal(leaves) * 2.0 ** draw.integers(-12, 12, leaves)).astype(np.float32)
    want = tree(values, lambda a, b: a + b)[0]
    assert total(values, add) == want
    for ranks in {1, 2, 3, leaves // 2, leaves} - {0}:
        whole: Partial[np.float32] = Partial(leaves, 0, add)
        for rank in range(min(ranks, leaves)):
            mine = Arrangement(leaves, min(ranks, leaves), rank).mine
            part: Partial[np.float32] = Partial(leaves, mine.start, add)
            for i in mine:
                part.push(values[i])
            assert part.nodes() == roots(leaves, mine.start, mine.stop)
            for node, value in part.waiting:
                whole.join(node, value)
        assert whole.whole() == want


def test_another_order_has_other_bits() -> None:
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    assert len({total(np.roll(values, n), add) for n in range(8)}) > 1
    assert total(values, add) != np.cumsum(values)[-1]


@pytest.mark.parametrize("ranks", range(1, 9))
def test_blocks_are_shared_out(ranks: int) -> None:
    every = [Arrangement(8, ranks, r) for r in range(ranks)]
    assert [i for a in every for i in a.mine] == list(range(8))
    assert {a.turns - len(a.mine) for a in every} <= {0, 1} and min(len(a.mine) for a in every) > 0
    if 8 % ranks == 0:
        assert all(len(roots(8, a.mine.start, a.mine.stop)) == 1 for a in every)  # as many bytes as a ring


@pytest.mark.parametrize(
    ("tokens", "block", "message"),
    [
        (8192, 3000, "a block of 3000 tokens; accepted: a power of two from 1 to 4096"),
        (8192, 8192, "a block of 8192 tokens"),
        (6000, 4096, "a global batch of 6000 tokens; accepted: a multiple of the block, of 4096"),
        (0, 1, "a global batch of 0 tokens"),
    ],
)
def test_batches_that_have_no_blocks_are_refused(tokens: int, block: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrange(tokens, block)
    with pytest.raises(ArgumentError, match="3 ranks beside 2 blocks"):
        Arrangement(2, 3)
