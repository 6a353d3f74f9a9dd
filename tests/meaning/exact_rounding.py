"""Rounding by whole-number arithmetic: the reference that the oracle is held against."""

from __future__ import annotations

import math
from fractions import Fraction

from tokitai.formats import Format


def decode(pattern: int, fmt: Format) -> Fraction | float:
    """The value of a bit pattern: a fraction, or an infinity or NaN."""
    field = fmt.precision - 1
    sign = -1 if pattern >> (fmt.bits - 1) else 1
    exponent, fraction = (pattern >> field) & ((1 << (fmt.bits - fmt.precision)) - 1), pattern & ((1 << field) - 1)
    if exponent == (1 << (fmt.bits - fmt.precision)) - 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * Fraction(fraction) * Fraction(2) ** (fmt.emin - field)
    return sign * Fraction((1 << field) + fraction) * Fraction(2) ** (exponent - 1 + fmt.emin - field)


def is_negative(pattern: int, fmt: Format) -> bool:
    return bool(pattern >> (fmt.bits - 1))


def encode(value: Fraction | float, fmt: Format, negative_zero: bool = False) -> int:
    """The pattern of the nearest value, ties to even. `negative_zero` is the sign of an exact zero."""
    field, top = fmt.precision - 1, 1 << (fmt.bits - 1)
    infinity = ((1 << (fmt.bits - fmt.precision)) - 1) << field
    if isinstance(value, float):
        if math.isnan(value):
            return fmt.nan
        return infinity | (top if value < 0 else 0)
    if value == 0:
        return top if negative_zero else 0
    sign, value = (top if value < 0 else 0), abs(value)
    e = max(value.numerator.bit_length() - value.denominator.bit_length(), fmt.emin)  # floor(log2) or one more
    if e > fmt.emin and value < Fraction(2) ** e:
        e -= 1
    steps = value / Fraction(2) ** (e - field)
    whole, rest = divmod(steps.numerator, steps.denominator)
    twice = 2 * rest - steps.denominator
    whole += twice > 0 or (twice == 0 and whole % 2 == 1)
    # A carry of the significand into the exponent field is the next binade, as patterns are in order.
    exponent = e - fmt.emin + 1 if whole >> field else 0
    pattern = (max(exponent - 1, 0) << field) + whole
    return sign | min(pattern, infinity)


def fma(a: int, b: int, c: int, fmt: Format) -> int:
    """The pattern of a * b + c, rounded once."""
    x, y, z = (decode(p, fmt) for p in (a, b, c))
    sign = is_negative(a, fmt) != is_negative(b, fmt)
    if any(isinstance(v, float) for v in (x, y, z)):
        if any(isinstance(v, float) and math.isnan(v) for v in (x, y, z)) or (0 in (x, y) and math.inf in (
            abs(x), abs(y),
        )):  # fmt: skip
            return fmt.nan
        if isinstance(x, float) or isinstance(y, float):
            product = -math.inf if sign else math.inf
            return fmt.nan if isinstance(z, float) and z != product else encode(product, fmt)
        return encode(z, fmt)
    exact = x * y + z
    if exact == 0:
        zeros = x * y == 0 and z == 0
        return encode(exact, fmt, negative_zero=zeros and sign and is_negative(c, fmt))
    return encode(exact, fmt)
