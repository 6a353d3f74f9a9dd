"""Random numbers from counters: those of an element follow from a seed, a name and its place alone.

Words 0 and 1 are those of Philox4x32-10 with the counter (place, place >> 32, name, name >> 32) and the key
(seed, attempt), the name being the first 8 bytes of its SHA-256, lowest first. The upper 24 bits of a word over 2^24
are a number u in [0, 1). Uniform numbers are fma(u0, width, low); normal ones are fma(z, std, mean) with
z = sqrt(-2 log(u0 + 2^-24)) cos(2 pi u1), where each operation rounds once and log and cos are the defined ones.
"""

from __future__ import annotations

import hashlib
import math

from ..elementary import cos, log
from ..lang import (
    LARGEST,
    Contract,
    Matrix,
    Number,
    Outputs,
    Value,
    convert,
    element_word,
    f32,
    fma,
    multiply_high,
    operator,
    outputs,
    sqrt,
    u32,
)
from ..ops.dropouts import philox_words

WORD = (0, 2**32 - 1)
KEYS = ("seed", "attempt", "name", "more")
CONTRACT = Contract(
    domain="all values",
    max_cols=2**40,
    defaults=dict(seed=1234567, attempt=0, name=3, more=5, low=-1.0, width=2.0, mean=0.5, std=1.0),
    ranges={**dict.fromkeys(KEYS, WORD), "low": (-LARGEST, LARGEST), "width": (0, LARGEST),
            "mean": (-LARGEST, LARGEST), "std": (0, LARGEST)},
)  # fmt: skip


def name_words(name: str) -> tuple[int, int]:
    """The two words of a counter that stand for a name."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return number & 0xFFFFFFFF, number >> 32


def _words(seed: Number, attempt: Number, name: Number, more: Number) -> tuple[Value, ...]:
    place = element_word(0), element_word(1)
    zero = place[0] - place[0]
    named = convert(name, u32) + zero, convert(more, u32) + zero
    return philox_words((*place, *named), (convert(seed, u32), convert(attempt, u32)))


def _upper(word: Value) -> Value:
    """The upper 24 bits, which f32 has exactly."""
    return convert(multiply_high(word, 2**24), f32)


@operator(contract=CONTRACT)
def draw_uniform(x: Matrix[f32], *, seed: int, attempt: int, name: int, more: int, low: float, width: float) -> Outputs:
    """x = low + u width, in place."""
    u = _upper(_words(seed, attempt, name, more)[0]) * 2.0**-24
    return outputs(x=fma(u, width, low))


@operator(contract=CONTRACT)
def draw_normal(x: Matrix[f32], *, seed: int, attempt: int, name: int, more: int, mean: float, std: float) -> Outputs:
    """x = mean + z std, in place, by the transform of Box and Muller (1958)."""
    first, second, *_ = _words(seed, attempt, name, more)
    radius = sqrt(log((_upper(first) + 1.0) * 2.0**-24) * -2.0)
    z = radius * cos(_upper(second) * 2.0**-24 * (2 * math.pi))
    return outputs(x=fma(z, std, mean))
