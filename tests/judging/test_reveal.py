"""The order of a sum is found by calling it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokitai.errors import ArgumentError
from tokitai.judging.reveal import reveal, reveal_product
from tokitai.meaning.sums import column_sum, tree


def chain(x: Any, step: int = 1) -> Any:
    total = x[0]
    for k in range(1, len(x), step):  # in f64 a step is exact but for what the mask absorbs
        total = np.float32(float(total) + sum(map(float, x[k : k + step])))
    return total


def test_a_chain_and_a_balanced_tree() -> None:
    assert reveal(chain, 5).tree == ((((0, 1), 2), 3), 4) and reveal(chain, 33).said == "a chain"
    assert reveal(lambda x: tree(x, np.add)[0], 4).tree == ((0, 1), (2, 3))
    assert reveal(lambda x: tree(x, np.add)[0], 64).said == "pairwise"
    assert reveal(lambda x: x[::-1].cumsum()[-1], 4).tree == (0, (1, (2, 3)))
    assert reveal(lambda x: x[0], 1).said == "one term"


def test_blocks_are_told_from_interleaved_chains() -> None:
    blocks = reveal(lambda x: column_sum(x[:, None], np.add)[0, 0], 64)
    assert blocks.said == "not a chain: split in 2, in neighbouring blocks, each a chain"
    strided = reveal(lambda x: tree(np.add.accumulate(x.reshape(-1, 4), axis=0)[-1], np.add)[0], 64)
    assert strided.said == "not a chain: split in 4, interleaved, each a chain"


def test_numpy_and_torch() -> None:
    torch = pytest.importorskip("torch")
    for total in (np.sum, lambda x: torch.from_numpy(x).sum()):
        found = reveal(total, 32)
        assert sorted(str(found.tree).translate(str.maketrans("(),", "   ")).split(), key=int) == [*map(str, range(32))]
    assert reveal_product(lambda a, b: a @ b, 24, rows=(1, 4))
    assert reveal_product(lambda a, b: torch.from_numpy(a) @ torch.from_numpy(b), 24, rows=(4,))


def test_an_order_that_varies_is_said() -> None:
    def product(a: Any, b: Any) -> Any:
        terms = a[-1] * b[:, -1]
        return np.full((1, 1), chain(terms) if len(a) == 1 else tree(terms, np.add)[0])

    said = reveal_product(product, 16, rows=(1, 4))
    assert said == "varies with M: a chain (M = 1); pairwise (M = 4)"


def test_what_is_no_sum_is_refused() -> None:
    with pytest.raises(ArgumentError, match="accepted: 0 to 6, whole"):
        reveal(lambda x: x.max(), 8)
    with pytest.raises(ArgumentError, match="count=0; accepted: 1 to 512"):
        reveal(chain, 0)
