"""Matrix products modulo p^n that leave out what cannot change them: pairs of tiles with too high a valuation.

    product, skipped = matmul_skipping(a, b, 2, 32)
    print(skipped.count, "of", skipped.pairs)       # pairs of tiles that were left out
    assert not check_skipping(skipped.statement(a, b, product), a, b)

Where p^i divides all of a tile of the first factor, and p^j all of the tile that it meets, p^(i + j) divides all their
products, and from i + j = n on these are 0 modulo p^n. `skips` is the one place that says so; `proving.skipping` proves
it for every pair of valuations.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from ..errors import ArgumentError
from ..exact import BLOCKS_ADDED, LARGEST_MODULUS, Digits, check_threads, matmul_mod, nearest, reduced
from .residues import Array, checked_prime, valuation_of, whole

TILE = 256
LARGEST_TILE = 4096
TILES = f"an integer from 1 to {LARGEST_TILE}"


def skips(i: Any, j: Any, precision: Any) -> Any:
    """Whether tiles of these smallest valuations are left out: numbers, arrays, or unknowns of a solver."""
    return i + j >= precision


@dataclass(frozen=True, eq=False)
class Skipped:
    """What a product left out. ``left`` and ``right`` are the smallest valuations of the tiles of both factors,
    (row tiles, inner tiles) and (inner tiles, column tiles); zeros count as ``precision``."""

    prime: int
    precision: int
    tile: int
    left: Array
    right: Array

    @property
    def pairs(self) -> int:
        """How many pairs of tiles meet."""
        return int(self.left.shape[0] * self.left.shape[1] * self.right.shape[1])

    @property
    def count(self) -> int:
        """How many of them were left out."""
        return int(skips(self.left[:, :, None], self.right[None], self.precision).sum())

    def statement(self, a: Any, b: Any, product: Any) -> dict[str, object]:
        """All of it as JSON, with digests of the residues of both factors and of the product: `check_skipping`
        recomputes each field."""
        modulus = self.prime**self.precision
        return {
            "prime": self.prime, "precision": self.precision, "tile": self.tile,
            "left": self.left.tolist(), "right": self.right.tolist(), "pairs": self.pairs, "skipped": self.count,
            "digests": {n: _digest(x, modulus) for n, x in (("a", a), ("b", b), ("product", product))},
        }  # fmt: skip


def matmul_skipping(
    a: Any, b: Any, prime: int, precision: int, *, tile: int = TILE, threads: int = 1
) -> tuple[Array, Skipped]:
    """The matrix product of integers (m, k) and (k, n) modulo prime^precision, as int64 from 0 on, and what was left
    out of it. The same numbers as `tokitai.exact.matmul_mod` gives.

    Both are cut into tiles of ``tile`` x ``tile``. Raises ArgumentError for other shapes and types, for what is not
    prime, a precision below 1 or a power above 2^32, and a tile that is no integer from 1 to 4096.
    """
    modulus = _modulus(prime, precision)
    if not _is_tile(tile):
        raise ArgumentError(f"tile={tile!r}; accepted: {TILES}")
    check_threads(threads)
    x, y = _matrix("a", a), _matrix("b", b)
    if x.shape[1] != y.shape[0]:
        raise ArgumentError(f"shapes {x.shape} @ {y.shape}; accepted: (m, k) @ (k, n)")
    x, y = nearest(x, modulus), nearest(y, modulus)
    skipped = Skipped(prime, precision, tile, *(tile_valuations(z, prime, precision, tile) for z in (x, y)))
    total, columns, digits = np.zeros((x.shape[0], y.shape[1]), np.int64), y.astype(np.float64), Digits.of(modulus)

    def compute(i: int) -> None:
        rows = slice(i * tile, (i + 1) * tile)
        parts = digits.cut(x[rows])
        for j in range(skipped.right.shape[1]):
            there = columns[:, j * tile : (j + 1) * tile]
            kept = np.flatnonzero(~skips(skipped.left[i], skipped.right[:, j], precision))
            if kept.size:
                products = (_over(part, there, kept, tile, digits.block, modulus) for part in parts)
                total[rows, j * tile : (j + 1) * tile] = digits.joined(products, modulus)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compute, range(skipped.left.shape[0])))
    return total, skipped


def _over(a: Array, b: Array, tiles: Array, tile: int, block: int, modulus: int) -> Array:
    """The product of float64 arrays of integers over some tiles of K: exact in blocks, as `tokitai.exact` has it."""
    spans = [
        (start, min(start + block, (k + 1) * tile, a.shape[1]))
        for k in tiles for start in range(k * tile, min((k + 1) * tile, a.shape[1]), block)
    ]  # fmt: skip
    total, partial, depth, blocks = None, None, 0, 1
    for start, end in spans:
        product = a[:, start:end] @ b[start:end]
        if partial is None or depth + end - start <= block:
            partial, depth = product if partial is None else partial + product, depth + end - start
            continue
        whole = partial.astype(np.int64)
        total = whole if total is None else total + whole
        partial, depth, blocks = product, end - start, blocks + 1
        if blocks % BLOCKS_ADDED == 0:
            total = reduced(total, modulus)
    assert partial is not None, "some tile is kept"
    return partial.astype(np.int64) + (0 if total is None else total)


def check_skipping(statement: Mapping[str, Any], a: Any, b: Any) -> list[str]:
    """What is wrong with a statement about the product of ``a`` and ``b``; nothing where all of it holds.

    Valuations are taken element by element, and the product is computed with nothing left out. Raises ArgumentError for
    factors and numbers that `matmul_skipping` does not take.
    """
    wanted = {"prime", "precision", "tile", "left", "right", "pairs", "skipped", "digests"}
    if set(statement) != wanted:
        return [f"fields {sorted(statement)}; accepted: {sorted(wanted)}"]
    prime, precision, tile = statement["prime"], statement["precision"], statement["tile"]
    modulus = _modulus(prime, precision)
    if not _is_tile(tile):
        return [f"tile {tile!r}; accepted: {TILES}"]
    sides = {"left": _residues("a", a, modulus), "right": _residues("b", b, modulus)}
    true = {n: [[_smallest(t, prime, precision) for t in row] for row in _tiles(x, tile)] for n, x in sides.items()}
    skipped = sum(
        i + j >= precision
        for row in true["left"]
        for i, partners in zip(row, true["right"], strict=True)
        for j in partners
    )
    columns = -(-sides["right"].shape[1] // tile)
    facts = true | {"pairs": sum(map(len, true["left"])) * columns, "skipped": skipped}
    product = matmul_mod(sides["left"], sides["right"], modulus)
    facts["digests"] = {n: _digest(x, modulus) for n, x in (("a", a), ("b", b), ("product", product))}
    return [
        f"{n} is stated as {statement[n]!r:.80}, and is {facts[n]!r:.80}" for n in facts if statement[n] != facts[n]
    ]


def tile_valuations(x: Array, prime: int, precision: int, tile: int) -> Array:
    """The smallest valuation of each tile of a matrix of integers, at most ``precision``: (row tiles, column tiles)."""
    rows, cols = (-(-n // tile) for n in x.shape)
    found = np.zeros((rows, cols), np.int64)
    for (i, j), _ in np.ndenumerate(found):
        part = x[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
        most = valuation_of(int(np.gcd.reduce(part[0], initial=prime**precision)), prime)  # of its first row
        while most and (part % prime**most).any():
            most -= 1
        found[i, j] = most
    return found


def _smallest(part: Array, prime: int, precision: int) -> int:
    """The smallest valuation of some residues, element by element; that of 0 is ``precision``."""
    return int(min((valuation_of(int(n), prime) for n in part.flat if n), default=precision))


def _tiles(x: Array, tile: int) -> list[list[Array]]:
    return [
        [x[i : i + tile, j : j + tile] for j in range(0, x.shape[1], tile)] for i in range(0, x.shape[0], tile)
    ]  # fmt: skip


def _is_tile(tile: object) -> bool:
    return type(tile) is int and 1 <= tile <= LARGEST_TILE


def _modulus(prime: object, precision: object) -> int:
    p, n = checked_prime(prime), whole("precision", precision)
    if n < 1 or p ** min(n, 64) > LARGEST_MODULUS:
        raise ArgumentError(f"precision={n} of the prime {p}; accepted: from 1 on, with a power of at most 2^32")
    return int(p**n)


def _matrix(name: str, value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != 2:
        raise ArgumentError(f"{name} has type {array.dtype} and shape {array.shape}; accepted: a matrix of integers")
    return array


def _residues(name: str, value: Any, modulus: int) -> Array:
    """A matrix of integers as int64 from 0 to modulus - 1."""
    array = _matrix(name, value)
    if array.dtype == np.uint64:
        return np.asarray(array % np.uint64(modulus)).astype(np.int64)
    return np.asarray(array.astype(np.int64) % modulus)


def _digest(x: Any, modulus: int) -> str:
    """Of a matrix as residues: its shape, and its elements as int64, low byte first."""
    residues = np.ascontiguousarray(_residues("a matrix", x, modulus).astype("<i8"))
    return blake3(f"{residues.shape}".encode() + residues.tobytes()).hexdigest()


__all__ = ["Skipped", "check_skipping", "matmul_skipping", "skips", "tile_valuations"]
