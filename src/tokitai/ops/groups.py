"""Grouped products: of each group's rows with its own weights, alone or with a gate, and their gradients.

The rows of group g are offsets[g] to offsets[g + 1]; a group may be empty. Weights are groups x outputs x inputs.
Each group has the bits of `linear`, `linear_swiglu` and their gradients on its rows alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import silu
from ..lang import (
    Contract,
    Gradient,
    Groups,
    HardInput,
    Matrix,
    Operand,
    Outputs,
    f32,
    grouped_matmul,
    i64,
    operator,
    outputs,
    storage,
)  # fmt: skip
from .gated import textbook_silu
from .products import DOMAIN, Accumulator

CONTRACT = Contract(domain=DOMAIN)


@operator(contract=CONTRACT, gradient=Gradient(composed=True))
def grouped_linear(
    x: Operand[storage], weight: Operand[storage], offsets: Groups[i64], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """y = x W_g^T, for the rows of each group g."""
    return outputs(y=grouped_matmul(x, weight, offsets, "NT", accumulator))


@operator(contract=CONTRACT)
def grouped_linear_swiglu(
    x: Operand[storage], gate: Operand[storage], up: Operand[storage], offsets: Groups[i64],
    *, accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """y = silu(x G_g^T) (x U_g^T), for the rows of each group g: both products, and the gate between them, in one
    pass."""
    gated = silu(grouped_matmul(x, gate, offsets, "NT", accumulator))
    return outputs(y=gated * grouped_matmul(x, up, offsets, "NT", accumulator))


@operator(contract=CONTRACT, backward_of=grouped_linear)
def grouped_linear_backward_input(
    dy: Operand[storage], weight: Operand[storage], offsets: Groups[i64], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """dx = dy W_g, for the rows of each group g."""
    return outputs(dx=grouped_matmul(dy, weight, offsets, "NN", accumulator))


@operator(contract=CONTRACT, backward_of=grouped_linear)
def grouped_linear_backward_weight(
    dy: Operand[storage], x: Operand[storage], offsets: Groups[i64], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """dW_g = dy^T x over the rows of group g: of an empty group +0."""
    return outputs(dweight=grouped_matmul(dy, x, offsets, "TN", accumulator, share="inner"))


@operator(contract=CONTRACT)
def grouped_linear_accumulate_weight(
    total: Matrix[f32], dy: Operand[storage], x: Operand[storage], offsets: Groups[i64],
    *, accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """total_g += dy^T x over the rows of group g, in place and in f32, whatever dy and x are stored in."""
    return outputs(total=total + grouped_matmul(dy, x, offsets, "TN", accumulator, share="inner"))


# ------------------------------------------------------------------ textbooks
def _rows(offsets: Any) -> Iterator[slice]:
    return itertools.starmap(slice, itertools.pairwise(np.asarray(offsets).reshape(-1).tolist()))


def _of_each(x: Any, weight: Any, offsets: Any) -> Any:
    """x_g W_g, one group behind the other."""
    return np.concatenate([x[rows] @ w for rows, w in zip(_rows(offsets), weight, strict=True)])


def _turned(weight: Any) -> Any:
    return np.swapaxes(weight, -1, -2)


@grouped_linear.set_textbook
def textbook(x: Any, weight: Any, offsets: Any, *, accumulator: str) -> dict[str, Any]:
    """Shazeer et al., "Outrageously Large Neural Networks" (2017), section 2: an expert is a layer of its own."""
    return dict(y=_of_each(x, _turned(weight), offsets))


@grouped_linear_swiglu.set_textbook
def textbook_swiglu(x: Any, gate: Any, up: Any, offsets: Any, *, accumulator: str) -> dict[str, Any]:
    """Shazeer, "GLU Variants Improve Transformer" (2020), equation 6, in each group."""
    return dict(y=textbook_silu(_of_each(x, _turned(gate), offsets))["y"] * _of_each(x, _turned(up), offsets))


@grouped_linear_backward_input.set_textbook
def textbook_input(dy: Any, weight: Any, offsets: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dx=_of_each(dy, weight, offsets))


@grouped_linear_backward_weight.set_textbook
def textbook_weight(dy: Any, x: Any, offsets: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dweight=np.stack([dy[rows].T @ x[rows] for rows in _rows(offsets)]))


@grouped_linear_accumulate_weight.set_textbook
def textbook_accumulate(total: Any, dy: Any, x: Any, offsets: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule, and a sum over the parts of a batch."""
    return dict(total=total + textbook_weight(dy, x, offsets, accumulator=accumulator)["dweight"])


# ------------------------------------------------------------------ hard inputs
SHARES: dict[str, list[int]] = {
    "all in one group": [0, 0, 7, 7],
    "the first group is empty": [0, 0, 3, 7],
    "the last groups are empty": [0, 4, 7, 7, 7],
    "a group of one row": [0, 3, 4, 7],
    "one group": [0, 7],
    "all groups are empty": [0, 0, 0],
    "more groups than rows": [0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
}


def _shares(left: str, right: str, along: bool) -> Iterator[HardInput]:
    """Ways to partition rows, of which ones and whole numbers tell how often each is met and whose weights it meets."""
    for name, ends in SHARES.items():
        rows, groups = ends[-1], len(ends) - 1
        steps = np.arange(rows * 5.0).reshape(rows, 5) % 7 - 2
        whose = np.arange(1.0, groups + 1)[:, None, None] * np.ones((1, 5, 3))
        given = {left: steps.T, right: np.ones((rows, 3))} if along else {left: steps, right: whose}
        yield HardInput(name, {**given, "offsets": ends})


def _hard(left: str, right: str, along: bool) -> Iterator[HardInput]:
    """Left operands are rows x inner, right ones groups x inner x cols, or where groups share the K dimension inner x
    cols."""
    yield from _shares(left, right, along)
    ends = [0, 3, 3, 8]
    nan = np.ones((8, 4))
    nan[3] = np.nan, np.inf, -np.inf, 0.0
    for name, x in (("infinity and NaN", nan), ("zeros of both signs", nan[:3].repeat(3, 0)[:8] * -0.0)):
        other = np.ones((8, 2)) if along else np.ones((3, 4, 2))
        yield HardInput(name, {left: x.T if along else x, right: other, "offsets": ends})
    if along:
        yield HardInput("a long group", {left: np.ones((1, 8200)), right: np.ones((8200, 2)), "offsets": [0, 5, 8200]})
        halves = np.array([[256.0, 1.0, -256.0, 0.0]]).repeat(2, 0)
        yield HardInput("halves that cancel", {left: halves, right: np.ones((4, 1)), "offsets": [0, 4, 4]})
        return
    yield HardInput("no inner side", {left: np.zeros((2, 0)), right: np.zeros((3, 0, 4)), "offsets": [0, 1, 1, 2]})
    yield HardInput("5000 ones", {left: np.ones((3, 5000)), right: np.ones((2, 5000, 1)), "offsets": [0, 2, 3]})
    yield HardInput("factors of eleven bits", {left: [[1024.5]], right: [[[1.0]]], "offsets": [0, 1]})


@grouped_linear.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Ways to partition rows; sums that are hard in one group."""
    yield from _hard("x", "weight", along=False)


@grouped_linear_swiglu.set_hard_inputs
def hard_swiglu() -> Iterator[HardInput]:
    """The same with a gate; gates that vanish."""
    yield from _hard("x", "gate", along=False)
    tails = np.array([[-3.0, -8.0, -17.0, -30.0, -104.0, 5.0, 100.0]])
    yield HardInput("tails of the gate", dict(x=[[1.0]], gate=tails[None], up=tails[None, :, ::-1], offsets=[0, 1]))


@grouped_linear_backward_input.set_hard_inputs
def hard_input() -> Iterator[HardInput]:
    """The same as forward."""
    yield from _hard("dy", "weight", along=False)


@grouped_linear_backward_weight.set_hard_inputs
def hard_weight() -> Iterator[HardInput]:
    """Ways to partition what is summed over."""
    yield from _hard("dy", "x", along=True)


@grouped_linear_accumulate_weight.set_hard_inputs
def hard_accumulate() -> Iterator[HardInput]:
    """The same beside a total, and one that they cancel."""
    yield from _hard("dy", "x", along=True)
    total = np.full((2, 3, 5), -7.0)
    given = dict(total=total, dy=np.ones((3, 7)), x=np.ones((7, 5)), offsets=[0, 7, 7])
    yield HardInput("they cancel in one group", given)
