"""Totals over lists of tensors: the oracle against the definition taken literally, and wrong kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai import ops, verify
from tokitai.errors import DefinitionError
from tokitai.families import make_plan
from tokitai.lang import Matrix, Operator, Outputs, operator, outputs, storage, total_max, total_sum
from tokitai.meaning import bits
from tokitai.verification.verdict import variants

F32 = np.float32


@operator
def totals(x: Matrix[storage]) -> Outputs:
    return outputs(total=total_sum(x), most=total_max(x))


def literal_tree(values: list[Any]) -> Any:
    """Neighbours first, level by level; a node without a right neighbour passes through. An empty sum is +0."""
    while len(values) > 1:
        pairs = [F32(values[i] + values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0] if values else F32(0)


def literal_max(values: list[Any]) -> Any:
    """NaN where any is; -0 below +0; -inf over nothing."""
    if any(math.isnan(v) for v in values):
        return F32(math.nan)
    return F32(max(values, key=lambda v: (v, math.copysign(1, v)), default=-math.inf))


def same(a: Any, b: Any) -> bool:
    return np.asarray(a, F32).tobytes() == np.asarray(b, F32).tobytes()


VALUES = st.one_of(
    st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3e38])
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(VALUES, max_size=12), min_size=1, max_size=9))
def test_the_oracle_is_the_literal_definition(lists: list[list[float]]) -> None:
    tensors = [np.array(x, F32) for x in lists]
    with np.errstate(all="ignore"):
        sums = literal_tree([literal_tree(list(t)) for t in tensors if t.size])
        most = literal_max([v for t in tensors for v in t])
    found = bits.evaluate_tensors(totals.trace("f32"), [dict(x=t) for t in tensors], [(1, t.size) for t in tensors], {})
    for f in found:
        assert same(f["total"][0, 0], sums) or (math.isnan(sums) and np.isnan(f["total"][0, 0]))
        assert same(f["most"][0, 0], most) or (math.isnan(most) and np.isnan(f["most"][0, 0]))
    total, largest = totals(tensors)
    assert same(total, found[0]["total"]) and same(largest, found[0]["most"])


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_tensors_and_elements_counts(seed: int) -> None:
    """Terms of about one size, whose sums round at every node."""
    rng = np.random.default_rng(seed)
    tensors = [rng.standard_normal(n).astype(F32) for n in rng.integers(0, 40, rng.integers(3, 12))]
    want = literal_tree([literal_tree(list(t)) for t in tensors if t.size])
    shapes = [(1, t.size) for t in tensors]
    found = bits.evaluate_tensors(totals.trace("f32"), [dict(x=t) for t in tensors], shapes, {})[0]
    assert same(found["total"][0, 0], want) and same(totals(tensors)[0], want)


def test_a_tensors_sum_is_one_node() -> None:
    """[a, b, c] and [d]: (a + b + c) + d, not the tree over four."""
    lists = [np.array([1, 2**-24, 2**-24], F32), np.array([2**-24], F32)]
    total, _ = totals(lists)
    assert total == literal_tree([literal_tree(list(t)) for t in lists])
    joined, _ = totals([np.concatenate(lists)])
    assert joined != total, "the inputs tell the two apart"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 99))
def test_empty_tensors_have_no_place(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = [rng.standard_normal(n).astype(F32) for n in sizes]
    filled = [t for t in tensors if t.size]
    for got, want in zip(totals(tensors), totals(filled or [np.empty(0, F32)]), strict=True):
        assert same(got, want)


def test_nothing_at_all() -> None:
    total, most = totals([np.empty(0, F32)] * 3)
    assert same(total, 0.0) and same(most, -math.inf)


def test_sums_of_minus_zeros() -> None:
    total, most = totals([np.array([-0.0, -0.0, -0.0], F32), np.array([-0.0], F32)])
    assert same(total, -0.0) and same(most, -0.0)
    total, most = totals([np.array([-0.0, 0.0], F32), np.array([-0.0], F32)])
    assert same(total, 0.0) and same(most, 0.0)


def test_a_total_of_a_total_is_refused() -> None:
    @operator
    def twice(x: Matrix[storage]) -> Outputs:
        return outputs(y=total_sum(x * total_sum(x)))

    with pytest.raises(DefinitionError, match=r"test_totals.py:\d+: total_sum of a value made of a total; acc"):
        make_plan(twice.trace("f32"))


# ------------------------------------------------------------------ wrong kernels, wrong in lists alone
SLIPS = {
    "the second tensor's tail is dropped": (
        "size = min(TILE, shape[1] - begin);",
        "size = min(TILE, shape[1] - begin) - (tensor == 1 && shape[1] > 1);",
    ),
    "an empty tensor ends the list": (
        "if (tiles) filled[fill++] = i;",
        "if (tiles) filled[fill++] = i; else if (i) first_tile[i + 1] = first_tile[i] - first_tile[i] / 2;",
    ),
    "two tensors have one number": ("uint32_t(tensor)", "uint32_t(tensor / 2)"),
    "empty tensors have a place": (
        "first_tile[filled[i]], end = first_tile[filled[i] + 1]",
        "first_tile[i], end = first_tile[i + 1]",
    ),
}


@pytest.mark.parametrize(
    ("op", "slip", "options"),
    [
        (ops.adamw, "the second tensor's tail is dropped", False),
        (ops.global_norm, "the second tensor's tail is dropped", False),
        (ops.global_norm, "empty tensors have a place", False),
        (ops.silu, "the second tensor's tail is dropped", False),
        pytest.param(ops.adamw, "two tensors have one number", True, marks=pytest.mark.slow),
        pytest.param(ops.clip_global_norm, "an empty tensor ends the list", False, marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_is_wrong_on_lists_alone_is_refuted(op: Operator, slip: str, options: bool) -> None:
    """The slip does nothing to a single tensor: the lists of `verify` must find it."""
    chosen = next(v for v in variants(op) if bool(v.options) == options)
    before, after = SLIPS[slip]
    applied = []

    def edit(text: str) -> str:
        applied.append(before in text)
        return text.replace(before, after)

    verdict = verify(op, dtype="f16", variant=chosen, edit=edit)
    assert any(applied), "the emitted text has nothing like it"
    assert verdict.verdict == "refuted" and verdict.failure is not None
    assert "list" in verdict.failure and " of tensor " in verdict.failure, verdict.failure
