"""`torch.vmap`: the bits of one call for each element of a batch.

Where rows do not know of each other a batch is more rows, and of attention and products more leading dimensions.
Elsewhere, as over weights, it is one call for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ..lang import Graph, Operator
from .transforms import needs_gradient

OF_ROWS = ("rc", "rk", "r")  # spaces of tensors that have an element, or a row, for each row of the result
COUNTING = {"rows", "element_word"}  # what a definition makes of how many rows there are, or of which row this is
REDUCTION = "reduction"  # the option that makes one number of the rows of a loss: "none", "sum" or "mean"
Rule = Callable[..., tuple[Any, Any]]
"""What torch calls in place of a custom op: from the batch, the dimension that each argument has of it, or None, and
the arguments, the results and the dimension that each of them has of it."""


def rule_of(operator: Operator, graph: Graph, run: Callable[..., Any]) -> Rule:
    """The batching rule of the custom op ``run`` of an operator."""
    if operator.contract.batched:
        return as_leading_dimension(operator, run)
    if not _is_of_rows(operator, graph):
        return one_by_one(run)
    spaces = {t.name: t.space for t in graph.inputs}
    rows = [spaces[t.name] in OF_ROWS for t in operator.tensors] + [False for _ in operator.params]
    return as_more_rows(rows, run)


def _is_of_rows(operator: Operator, graph: Graph) -> bool:
    """Whether each row of the results is made of one row of the arguments and of what all rows share."""
    return (
        {o.space for o in graph.outputs} <= set(OF_ROWS)
        and not any(t.space == "t" for t in operator.tensors)
        and not COUNTING & {n.op for n in graph.nodes}
    )


def one_by_one(run: Callable[..., Any]) -> Rule:
    """The batching rule of a custom op ``run`` that calls it for each element of a batch."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any, **words: Any) -> tuple[Any, Any]:
        size = info.batch_size

        def of(
            x: Any, dim: Any, i: int
        ) -> Any:  # of a list a list of dimensions, all None: no op takes several tensors
            return (
                x if not isinstance(dim, int) else x.select(dim, i) if size else x.sum(dim, dtype=x.dtype)
            )  # zeros: for shapes

        made = [run(*map(of, given, in_dims, repeat(i)), **words) for i in range(max(size, 1))]
        if isinstance(made[0], Tensor):
            return torch.stack(made)[:size], 0
        kind = type(made[0])
        return kind(torch.stack(each)[:size] for each in zip(*made, strict=True)), kind([0] * len(made[0]))

    return rule


def together(size: int, rows: Sequence[bool], in_dims: Sequence[int | None], given: Sequence[Any]) -> list[Any] | None:
    """The arguments with the batch ahead, of those that have ``rows`` of the result; None where what all rows share is
    batched. An argument that is not batched and needs a gradient is None as well: that of what is expanded would be
    torch's sum, in an order of its own."""
    moved = []
    for of_rows, x, d in zip(rows, given, in_dims, strict=False):
        if d is not None and not of_rows:
            return None
        if d is None and of_rows and x is not None and needs_gradient(x):
            return None
        moved.append(x if x is None or not of_rows else x.expand(size, *x.shape) if d is None else x.movedim(d, 0))
    return moved


def as_more_rows(rows: Sequence[bool], run: Callable[..., Any]) -> Rule:
    """The batching rule of a custom op ``run`` of rows, those of its arguments that have ``rows`` of the result; a
    batch of what all rows share, and losses of several rows in one number, are taken one by one."""
    each = one_by_one(run)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any, **words: Any) -> tuple[Any, Any]:
        moved = together(info.batch_size, rows, in_dims, given)
        if moved is None or words.get(REDUCTION, "none") != "none":
            return each(info, in_dims, *given, **words)
        made = run(*moved, **words)
        return made, tuple(0 for _ in made) if isinstance(made, tuple) else 0

    return rule


def as_leading_dimension(operator: Operator, run: Callable[..., Any]) -> Rule:
    """The batching rule of the custom op ``run`` of an operator whose leading dimensions are a batch: one more."""
    each, limits = one_by_one(run), operator.contract.indices
    arguments = [True] * len(operator.tensors) + [False] * len(operator.params)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any, **words: Any) -> tuple[Any, Any]:
        moved = together(info.batch_size, arguments, in_dims, given)
        if moved is None:
            return each(info, in_dims, *given, **words)
        lead = moved[0].ndim - 1
        for i, t in enumerate(operator.tensors):
            if t.name in limits and moved[i] is not None:  # of queries alone, it has not the dimensions between
                size, *rest = moved[i].shape
                moved[i] = moved[i].reshape(size, *[1] * (lead - 1 - len(rest)), *rest)
        made = run(*moved, **words)
        return made, tuple(0 for _ in made) if isinstance(made, tuple) else 0

    return rule
