"""Cross-entropy of a vocabulary whose columns are split over ranks: what each part computes, and how parts are merged.

A part is some neighbouring columns of the logits, from column ``first`` on. Four steps, with two exchanges between:

    top = maximum over parts of part_top(logits)                         # exact: in whichever order
    largest, others, chosen = part_sums(logits, target, top, first=...)  # three numbers a row of each part
    loss, lse, rest, total = merged_cross_entropy(largest, others, chosen, top, target)  # (rows, parts), in order
    dlogits = part_cross_entropy_backward(dloss, logits, target, top, rest, total, first=...)

The sum over parts is the balanced tree by the number of the part. Where every part but the last has the same power of
two of columns, and the last no more, that completes the tree over all columns: loss, lse and gradients have the bits of
`cross_entropy` on the whole rows, whatever the number of parts. With other sizes they are as well defined, by the sizes
and the order of parts alone, and differ from those by the rounding of a sum in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import exp, log1p
from ..lang import (
    Contract,
    HardInput,
    Matrix,
    Number,
    Outputs,
    Rows,
    Value,
    column_index,
    columns,
    convert,
    f32,
    i32,
    i64,
    operator,
    outputs,
    row_max,
    row_sum,
    storage,
    take_column,
    where,
)  # fmt: skip

DOMAIN = "finite logits, or -inf in columns that are not the target's; no logit above `top`"
PART = Contract(
    domain=DOMAIN,
    defaults={"first": 3, "ignore_index": -100},
    ranges={"first": (0, 2**31)},
    draw={"top": "above", "target": "below 40", "rest": "positive", "total": "positive"},
    min_cols=1,
)
MERGE = Contract(
    domain=DOMAIN,
    defaults={"ignore_index": -100},
    draw={"largest": "positive", "others": "positive"},
    min_cols=1,
)


def _place(target: Value, first: Number, width: Value) -> tuple[Value, Value]:
    """The target's column in the part, 0 where it lies in another one, and whether it lies here."""
    column = target - convert(first, i64)
    here = (column >= 0) & (column < width)
    return where(here, column, 0), here


@operator(contract=PART)
def part_top(logits: Matrix[storage]) -> Outputs:
    """The largest logit of each row of a part."""
    return outputs(top=row_max(logits))


@operator(contract=PART)
def part_sums(logits: Matrix[storage], target: Rows[i64], top: Rows[f32], *, first: int) -> Outputs:
    """Of each row of a part, with z = logits - top: how many z are 0, the sum of exp(z) over the others, and the
    target's z, -inf where it lies in another part. ``top`` is the largest logit of the whole row."""
    z = logits - top
    at, here = _place(target, first, convert(columns(logits), i64))
    others = row_sum(where(z == 0, 0, exp(z)))
    return outputs(
        largest=row_sum(where(z == 0, 1, 0)), others=others, chosen=where(here, take_column(z, at), float("-inf"))
    )


@operator(contract=MERGE)
def merged_cross_entropy(
    largest: Matrix[f32], others: Matrix[f32], chosen: Matrix[f32], top: Rows[f32], target: Rows[i64],
    *, ignore_index: int = -100,
) -> Outputs:  # fmt: skip
    """The loss of each row, log(sum(exp(logits))), and what gradients need, from the sums of all parts, a column each,
    in order. The loss of an ignored row is 0; that of a target that lies in no part is infinite."""
    count, more = row_sum(largest), row_sum(others)
    rest = (count - 1) + more
    lse = log1p(rest)
    loss = where(target != convert(ignore_index, i64), lse - row_max(chosen), 0)
    return outputs(loss=loss, lse=top + lse, rest=rest, total=count + more)


@operator(contract=PART)
def part_cross_entropy_backward(
    dloss: Rows[f32], logits: Matrix[storage], target: Rows[i64], top: Rows[f32], rest: Rows[f32], total: Rows[f32],
    *, first: int, ignore_index: int = -100,
) -> Outputs:  # fmt: skip
    """dlogits = dloss (softmax(logits) - onehot(target)) in the columns of a part, zero in ignored rows."""
    z = logits - top
    at, here = _place(target, first, convert(columns(logits), i64))
    inverse = 1 / total
    p = exp(z) * inverse
    hit = where(z == 0, -(rest * inverse), p - 1)
    slope = where((column_index() == convert(at, i32)) & here, hit, p)
    return outputs(dlogits=where(target != convert(ignore_index, i64), slope * dloss, 0))


# ------------------------------------------------------------------------------------------------ textbooks
def _onehot(logits: Any, target: Any, first: float) -> Any:
    return np.arange(logits.shape[1])[None, :] + int(first) == target


@part_top.set_textbook
def textbook_top(logits: Any) -> dict[str, Any]:
    """Shoeybi et al., "Megatron-LM" (2019), section 3: the first of the values that are exchanged."""
    return dict(top=logits.max(axis=1, keepdims=True))


@part_sums.set_textbook
def textbook_sums(logits: Any, target: Any, top: Any, *, first: float) -> dict[str, Any]:
    """The sum of exponentials, those of 1 counted apart, and the target's logit."""
    z, hit = logits - top, _onehot(logits, target, first)
    chosen = np.where(hit, z, -np.inf).max(axis=1, keepdims=True)
    return dict(
        largest=(z == 0).sum(axis=1, keepdims=True).astype(z.dtype),
        others=np.where(z == 0, 0, np.exp(z)).sum(axis=1, keepdims=True),
        chosen=np.where(hit.any(axis=1, keepdims=True) & np.isnan(chosen), np.nan, chosen),
    )


@merged_cross_entropy.set_textbook
def textbook_merged(
    largest: Any, others: Any, chosen: Any, top: Any, target: Any, *, ignore_index: float = -100
) -> dict[str, Any]:
    """-log softmax, with the largest elements counted apart so that the logarithm keeps small sums."""
    rest = (largest.sum(axis=1, keepdims=True) - 1) + others.sum(axis=1, keepdims=True)
    lse = np.log1p(rest)
    loss = np.where(target != ignore_index, lse - chosen.max(axis=1, keepdims=True), 0)
    return dict(loss=loss, lse=top + lse, rest=rest, total=1 + rest)


@part_cross_entropy_backward.set_textbook
def textbook_backward(
    dloss: Any, logits: Any, target: Any, top: Any, rest: Any, total: Any, *, first: float, ignore_index: float = -100
) -> dict[str, Any]:
    """d(-log softmax)/dx = p - onehot."""
    z = logits - top
    p = np.exp(z) / total
    slope = np.where(_onehot(logits, target, first), np.where(z == 0, -rest / total, p - 1), p)
    return dict(dlogits=np.where(target != ignore_index, slope * dloss, 0))


# ------------------------------------------------------------------------------------------------ hard inputs
def _hard(**more: Any) -> Iterator[HardInput]:
    """Targets ahead of the part, in it and behind it; ties; rows that are almost certain; what is not a number."""
    x = [[1.0, 1.0, 0.0, -3.0], [5.0, -20.0, 5.0, 5.0], [0.0, -1.0, -2.0, -200.0]]
    for name, target in (("ahead", [0, 7, -1]), ("in it", [8, 10, 11]), ("behind", [12, 2**40, -(2**40)])):
        yield HardInput(f"targets {name}", dict(logits=x, target=target, top=[1.0, 5.0, 0.0]), dict(first=8, **more))
    yield HardInput("ignored rows", dict(logits=x, target=[-100, 8, -100], top=[1.0, 5.0, 0.0]), dict(first=8, **more))
    yield HardInput("the largest is elsewhere", dict(logits=x, target=[3, 4, 5], top=[9.0, 90.0, 300.0]), dict(first=3))
    odd = [[-np.inf, 0.0, np.nan, 1.0], [-np.inf] * 4, [np.inf, 1.0, 2.0, 3.0]]
    yield HardInput("infinity and NaN", dict(logits=odd, target=[1, 2, 3], top=[1.0, -np.inf, np.inf]), dict(first=0))


part_top.set_hard_inputs(lambda: (HardInput(h.name, {"logits": h.tensors["logits"]}) for h in _hard()))
part_sums.set_hard_inputs(_hard)
part_cross_entropy_backward.set_hard_inputs(_hard)


@merged_cross_entropy.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """A row that is almost certain, an ignored one, and one whose target nobody has."""
    none = -np.inf
    given = dict(
        largest=[[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]], others=[[1e-9, 1e-9], [0.5, 0.25], [3.0, 4.0]],
        chosen=[[0.0, none], [none, none], [none, none]], top=[3.0, -2.0, 1e3], target=[5, -100, 6],
    )  # fmt: skip
    yield HardInput("almost certain, ignored, nowhere", given)
    one = dict(largest=[[1.0]], others=[[0.0]], chosen=[[-0.0]], top=[0.0], target=[0])
    yield HardInput("one part of one column", one)
