"""Products that leave out pairs of tiles: the same numbers, only what may be left out, and statements that hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tokitai.errors import ArgumentError
from tokitai.exact import matmul_mod
from tokitai.padic import skipping
from tokitai.padic.skipping import check_skipping, matmul_skipping, tile_valuations
from tokitai.proving.skipping import obligations

MODULI = [(2, 32), (2, 1), (3, 20), (5, 8), (7, 11), (251, 4), (2**31 - 1, 1)]


def mixed(rng: Any, shape: tuple[int, int], prime: int, precision: int, tile: int) -> Any:
    """Residues whose tiles have valuations from 0 to all digits."""
    rows, cols = (-(-n // tile) for n in shape)
    valuations = rng.integers(0, precision + 1, (rows, cols))
    powers = np.array([prime**v for v in range(precision + 1)], np.int64)[valuations]
    each = np.repeat(np.repeat(powers, tile, 0), tile, 1)[: shape[0], : shape[1]]
    return rng.integers(0, prime**precision, shape) // each * each


@pytest.mark.parametrize(("prime", "precision"), MODULI)
@pytest.mark.parametrize("shape", [(7, 9, 5), (16, 16, 16), (1, 33, 2), (20, 0, 3), (0, 4, 4), (4, 4, 0)])
def test_the_product_is_that_of_all_tiles(prime: int, precision: int, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(prime + k)
    for tile, threads in ((4, 1), (3, 2), (64, 1)):
        a, b = mixed(rng, (m, k), prime, precision, tile), mixed(rng, (k, n), prime, precision, tile)
        a[: m // 2, : k // 2] = 0
        product, skipped = matmul_skipping(a, b, prime, precision, tile=tile, threads=threads)
        wanted = matmul_mod(a, b, prime**precision)
        assert product.dtype == np.int64 and (product == wanted).all()
        statement = json.loads(json.dumps(skipped.statement(a, b, product)))
        assert check_skipping(statement, a, b) == []


def test_tiles_of_mixed_valuations_are_left_out_exactly_where_they_add_nothing() -> None:
    a, b = np.full((4, 4), 3**2), np.full((4, 4), 3)
    a[2:, :2], b[:2, 2:] = 1, 3**4
    _, skipped = matmul_skipping(a, b, 3, 3, tile=2)
    assert skipped.left.tolist() == [[2, 2], [0, 2]] and skipped.right.tolist() == [[1, 3], [1, 1]]
    assert (skipped.pairs, skipped.count) == (8, 7)  # 1 * 3 is left


@pytest.mark.parametrize(("prime", "precision"), MODULI)
def test_valuations_of_tiles_are_those_of_their_elements(prime: int, precision: int) -> None:
    rng = np.random.default_rng(0)
    x = mixed(rng, (11, 13), prime, precision, 4) * (rng.random((11, 13)) < 0.5)
    found = tile_valuations(x, prime, precision, 4)
    for (i, j), v in np.ndenumerate(found):
        elements = [int(e) for e in x[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].flat]
        divided = [max(t for t in range(precision + 1) if e % prime**t == 0) for e in elements]
        assert v == min(divided)


@pytest.mark.parametrize("off", [-1, 1])
def test_one_pair_too_many_is_refuted_and_one_too_few(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is off by one: the solver names valuations, and at these the numbers differ, or more work is done."""
    rule = lambda i, j, n: i + j >= n + off  # noqa: E731
    for prime, precision in MODULI:
        sound, complete = obligations(prime, precision, rule)
        wrong, right = (sound, complete) if off < 0 else (complete, sound)
        assert (wrong.status, right.status) == ("refuted", "proved")
        i, j = wrong.sizes["i"], wrong.sizes["j"]
        assert i + j == precision + min(off, 0) or (off > 0 and i + j == precision)
        a, b = (np.full((1, 1), prime ** min(v, precision), np.int64) for v in (i, j))
        monkeypatch.setattr(skipping, "skips", rule)
        product, skipped = matmul_skipping(a, b, prime, precision, tile=1)
        monkeypatch.undo()
        same = (product == matmul_mod(a, b, prime**precision)).all()
        assert same == (off > 0)
        problems = check_skipping(skipped.statement(a, b, product), a, b)
        assert bool(problems) == (off < 0)


@pytest.mark.parametrize(("prime", "precision"), MODULI)
def test_the_rule_is_proved(prime: int, precision: int) -> None:
    found = obligations(prime, precision)
    assert [o.status for o in found] == ["proved", "proved"]
    assert sum(o.questions for o in found) == (precision + 1) ** 2


def test_an_altered_statement_does_not_hold() -> None:
    rng = np.random.default_rng(1)
    a, b = mixed(rng, (9, 8), 5, 8, 4), mixed(rng, (8, 6), 5, 8, 4)
    product, skipped = matmul_skipping(a, b, 5, 8, tile=4)
    good = json.loads(json.dumps(skipped.statement(a, b, product)))
    assert check_skipping(good, a, b) == []
    wrong_left = [[v + 1 for v in row] for row in good["left"]]
    for name, value in (
        ("left", wrong_left), ("right", good["right"][:-1]), ("pairs", good["pairs"] + 1),
        ("skipped", good["skipped"] + 1), ("precision", 7), ("tile", 3), ("tile", 0), ("prime", 3),
        ("digests", good["digests"] | {"product": good["digests"]["a"]}),
    ):  # fmt: skip
        assert check_skipping(good | {name: value}, a, b), name
    assert check_skipping(good | {"more": 1}, a, b) and check_skipping({}, a, b)
    a[0, 0] += 1
    assert check_skipping(good, a, b)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(prime=4), "prime=4; accepted: a prime number"),
        (dict(precision=0), "precision=0 of the prime 3; accepted: from 1 on"),
        (dict(precision=21), "precision=21 of the prime 3; accepted: from 1 on, with a power of at most 2\\^32"),
        (dict(precision=10**9), "precision=1000000000"),
        (dict(tile=0), "tile=0; accepted: an integer from 1 to 4096"),
        (dict(threads=0), "threads=0; accepted: an integer from 1 on"),
        (dict(a=np.zeros((2, 2))), "a has type float64"),
        (dict(b=np.zeros(2, int)), "b has type int64 and shape"),
        (dict(b=np.zeros((3, 2), int)), "shapes .* accepted: "),
    ],
)
def test_what_is_not_accepted(given: dict[str, Any], message: str) -> None:
    called: dict[str, Any] = dict(a=np.zeros((2, 2), int), b=np.zeros((2, 2), int), prime=3, precision=4) | given
    with pytest.raises(ArgumentError, match=message):
        matmul_skipping(**called)
