"""Fewer variants, for tests that build or run every one of them."""

from __future__ import annotations

from tokitai.lang import FIXED_BITS, Operator
from tokitai.verification.variant import Variant, variants

HAVE_ALL = ("linear_swiglu", "grouped_linear", "grouped_linear_backward_weight")


def few_variants(operator: Operator, dtype: str = "f16") -> list[Variant]:
    """An operator's variants, with accumulators in fixed point for some products alone: all are of the same parts."""
    fixed = {("accumulator", name) for name in FIXED_BITS}
    return [v for v in variants(operator, dtype) if operator.name in HAVE_ALL or not fixed & {*v.options}]
