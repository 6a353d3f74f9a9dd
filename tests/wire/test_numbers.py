"""Text to numbers and back, exactly: every pattern of f16, f32 in its fewest digits, decimals on a boundary."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import numpy as np
import pytest
from host import F16, F32, Array

from tokitai.errors import WireError
from tokitai.wire.fields import FLOAT, Fields
from tokitai.wire.reply import Reply


def read_floats(text: str) -> Array:
    return Fields(bytearray(text.encode()), ("x",)).floats("x", len(text.split()))


def printed(values: Array, separator: str = ",") -> str:
    reply = Reply(separator)
    reply.array("X", values)
    text = b"".join(bytes(part) for part in reply.parts).decode()
    assert text.startswith("X=") and text.endswith("\n")
    return text[2:-1]


def test_every_pattern_is_read_and_printed() -> None:
    every = np.arange(1 << 16).astype(np.uint16)
    text = " ".join(map(str, every.tolist()))
    values = Fields(bytearray(text.encode()), ("x",)).patterns("x", 1 << 16)
    assert values.dtype == F16 and values.tobytes() == every.tobytes()
    assert printed(values, " ") == text
    many = np.tile(values, 9)  # more than is printed at a time
    assert printed(many, " ") == " ".join([text] * 9)


def test_floats_read_back_exactly_and_in_the_fewest_digits() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 60_000, dtype=np.uint32)
    special = [0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    values = np.concatenate([bits.view(F32), np.array(special, np.uint32).view(F32), np.arange(3000, dtype=F32)])
    values = np.concatenate([values, (10.0 ** np.arange(-44, 39)).astype(F32)])
    values = np.where(np.isnan(values), F32(np.nan), values).astype(F32)
    text = printed(values)
    assert re.fullmatch(r"[-+.,0-9einfa]+", text)
    assert read_floats(text.replace(",", " ")).tobytes() == values.tobytes()
    for value, word in zip(values[:3000].tolist(), text.split(","), strict=False):
        if np.isfinite(value):
            digits = len(re.sub(r"e.*|[-+.]", "", word).strip("0"))
            assert digits <= 1 or F32(f"{value:.{digits - 2}e}") != F32(value), f"{word} could be shorter"


def nearest(text: str) -> float:
    """The nearest f32 by exact arithmetic."""
    exact, value = Fraction(text), F32(float(text))
    near = [np.nextafter(value, F32(-np.inf)), value, np.nextafter(value, F32(np.inf))]
    even = [int(v.view(np.uint32)) & 1 for v in near]
    return float(min((v for v in near), key=lambda v: (abs(Fraction(float(v)) - exact), even[near.index(v)])))


def test_decimals_on_a_boundary_between_two_floats() -> None:
    drawn = random.Random(0)
    words = []
    for _ in range(2000):
        low = F32(np.uint32(drawn.randrange(1, 0x7F000000)).view(F32))
        middle = (Fraction(float(low)) + Fraction(float(np.nextafter(low, F32(np.inf))))) / 2
        exponent = len(str(int(1 / middle))) + 40 if middle < 1 else 40
        for shift in (0, 1, -1):
            digits = str(abs(int(middle * 10**exponent) + shift))
            words.append(f"{drawn.choice(['', '-'])}{digits}e-{exponent}")
        size = int(np.frexp(float(low))[1]) - 25
        tie = Fraction(2 * drawn.randrange(1 << 23, 1 << 24) + 1) * Fraction(2) ** size
        if tie.denominator.bit_length() < 60 and tie < 2**60:
            words.append(f"{tie.numerator * 10**60 // tie.denominator}e-60")
    got = read_floats(" ".join(words))
    wrong = [w for w, g in zip(words, got.tolist(), strict=True) if g != nearest(w)]
    assert wrong == []
    twice = [w for w in words if float(F32(float(w))) != nearest(w)]
    assert len(twice) > 100, "decimals that two roundings would get wrong"


def test_the_edges_of_the_range() -> None:
    largest = "340282346638528859811704183484516925440"
    assert read_floats(f"{largest} 3.4028235677973366e38 3.402823567797336616e38").tolist() == [float(largest)] * 3
    assert read_floats("7e-46 -7e-46 1e-400 7.1e-46 inf -Infinity").tolist() == [0, 0, 0, 2.0**-149, np.inf, -np.inf]
    for word in ("340282356779733661637539395458142568448", "-3.41e38", "1e400", "9" * 400):
        with pytest.raises(WireError, match="accepted: within the range of f32"):
            read_floats(f"1 {word} 2")


def test_words_are_accepted_as_the_grammar_says() -> None:
    """NumPy reads arrays, a grammar of ours is what messages and pages promise: both accept the same."""
    drawn = random.Random(0)
    for _ in range(20_000):
        word = "".join(drawn.choice("0123456789+-..eEinfa") for _ in range(drawn.randrange(1, 7)))
        try:
            read_floats(f"1 {word} 2")
            accepted = True
        except WireError as error:
            accepted = "range of f32" in str(error)
        assert accepted is bool(FLOAT.fullmatch(word.encode())), word


@pytest.mark.parametrize("word", ["nan", "NaN", "+nan", "inf", "-INF", "infinity", "+1.", ".5", "-1e+3", "1E-3", "007"])
def test_words_that_are_numbers(word: str) -> None:
    assert read_floats(f"{word} 1").tobytes() == np.array([float(word), 1], F32).tobytes()
