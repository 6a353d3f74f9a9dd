"""Dropout from counter-based bits: an element is kept or dropped by its place and the seed alone.

The bits are word 0 of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) with the
counter (place, place >> 32, 0, 0), the place being row * cols + column, and the key (seed, stream). The backward pass
makes the same bits again; no mask is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import (
    Contract,
    HardInput,
    Matrix,
    Number,
    Outputs,
    Value,
    bit_xor,
    convert,
    element_word,
    multiply_high,
    operator,
    outputs,
    storage,
    u32,
    where,
)  # fmt: skip

CONTRACT = Contract(
    domain="all values",
    defaults={"p": 0.25, "seed": 1234567, "stream": 3},
    ranges={"p": (0, 1 - 2.0**-32), "seed": (0, 2**32 - 1), "stream": (0, 2**32 - 1)},
)
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_words(counter: tuple[Value, Value, Value, Value], key: tuple[Value, Value]) -> tuple[Value, ...]:
    """The four words of Philox4x32-10, all u32."""
    c: tuple[Value, ...] = counter
    for i in range(10):
        keys = (key[0] + (WEYL[0] * i & 0xFFFFFFFF), key[1] + (WEYL[1] * i & 0xFFFFFFFF))
        c = (
            bit_xor(bit_xor(multiply_high(c[2], MULTIPLIERS[1]), c[1]), keys[0]),
            c[2] * MULTIPLIERS[1],
            bit_xor(bit_xor(multiply_high(c[0], MULTIPLIERS[0]), c[3]), keys[1]),
            c[0] * MULTIPLIERS[0],
        )
    return c


def philox(c0: Value, c1: Value, k0: Value, k1: Value, third: Value | None = None) -> Value:
    """Word 0 of Philox4x32-10 for the counter (c0, c1, third or 0, 0) and the key (k0, k1), all u32."""
    zero = k0 - k0
    return philox_words((c0, c1, zero if third is None else third, zero), (k0, k1))[0]


def _kept(p: Number, seed: Number, stream: Number) -> Value:
    """Whether an element is kept: its bits are at least p 2**32."""
    counter = (element_word(0), element_word(1))
    return convert(p * 2.0**32, u32) <= philox(*counter, convert(seed, u32), convert(stream, u32))


@operator(contract=CONTRACT)
def dropout(x: Matrix[storage], *, p: float, seed: int, stream: int = 0) -> Outputs:
    """y = x / (1 - p) with probability 1 - p, else 0. p from 0 to below 1; seed and stream below 2**32."""
    return outputs(y=where(_kept(p, seed, stream), x * (1 / (1 - p)), 0))


@operator(contract=CONTRACT, backward_of=dropout)
def dropout_backward(dy: Matrix[storage], *, p: float, seed: int, stream: int = 0) -> Outputs:
    """dx = dy / (1 - p) where x was kept, else 0."""
    return outputs(dx=where(_kept(p, seed, stream), dy * (1 / (1 - p)), 0))


def philox_reference(c: Any, k: tuple[int, int]) -> Any:
    """Philox4x32-10 as in the paper, on Python's integers or on u64 arrays."""
    m = 0xFFFFFFFF
    for i in range(10):
        p0, p1 = c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]
        k0, k1 = (k[0] + WEYL[0] * i) & m, (k[1] + WEYL[1] * i) & m
        c = ((p1 >> 32) ^ c[1] ^ k0, p1 & m, (p0 >> 32) ^ c[3] ^ k1, p0 & m)
    return c


def _mask(shape: tuple[int, int], p: float, seed: float, stream: float) -> Any:
    """Which elements are kept. Counter words are below 2**32, so their products fit into 64 bits."""
    place = np.arange(shape[0] * shape[1], dtype=np.uint64).reshape(shape)
    zero = np.uint64(0)
    counter = (place & np.uint64(0xFFFFFFFF), place >> np.uint64(32), zero, zero)
    word = philox_reference(counter, (int(seed), int(stream)))
    return word[0] >= round(p * 2**32)


@dropout.set_textbook
def textbook(x: Any, *, p: float, seed: float, stream: float = 0) -> dict[str, Any]:
    """Srivastava et al. (2014), with the kept elements scaled up."""
    return dict(y=np.where(_mask(x.shape, p, seed, stream), x / (1 - p), 0))


@dropout_backward.set_textbook
def textbook_backward(dy: Any, *, p: float, seed: float, stream: float = 0) -> dict[str, Any]:
    """The derivative of a product with a constant mask."""
    return dict(dx=np.where(_mask(dy.shape, p, seed, stream), dy / (1 - p), 0))


@dropout.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Nothing dropped, almost all dropped, the largest seed, NaN that must not leak through a dropped element."""
    yield HardInput("p = 0", dict(x=np.ones((3, 9))), dict(p=0.0))
    yield HardInput("p almost 1", dict(x=np.ones((3, 9))), dict(p=1 - 2.0**-20), in_domain=False)
    yield HardInput("largest seed and stream", dict(x=np.ones((3, 9))), dict(seed=2**32 - 1, stream=2**32 - 1))
    yield HardInput("NaN and infinity", dict(x=[[np.nan, np.inf, -np.inf, -0.0]] * 5), dict(p=0.5))
    yield from _every_bit()


def _every_bit() -> Iterator[HardInput]:
    """Elements that are kept by the last of their bits, and dropped by it: other bits, however near, show. Where they
    are below 2**24, p holds them all. NaN, as others are, may take a path of its own."""
    place = np.arange(2048, dtype=np.uint64)
    zero, seed, stream = np.uint64(0), 1234567, 3
    word = philox_reference((place, zero, zero, zero), (seed, stream))[0]
    for number, i in enumerate(np.flatnonzero(word < 2**24)[:6]):
        x = np.ones((1, len(place)))
        x[0, i] = np.nan if number % 2 else 1
        for what, least in (("kept", int(word[i])), ("dropped", int(word[i]) + 1)):
            scalars = dict(p=least / 2**32, seed=seed, stream=stream)
            yield HardInput(f"element {i} just {what}", dict(x=x), scalars)


@dropout_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """The same for the gradient."""
    for h in hard_inputs():
        yield HardInput(h.name, dict(dy=h.tensors["x"]), h.scalars, h.in_domain)
