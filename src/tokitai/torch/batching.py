"""`torch.vmap`: the bits of one call for each element of a batch.

Where rows do not know of each other a batch is more rows. Elsewhere, as over weights, it is one call for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ..lang import Graph, Operator

OF_ROWS = ("rc", "rk", "r")  # spaces of tensors that have an element, or a row, for each row of the result
COUNTING = {"rows", "element_word"}  # what a definition makes of how many rows there are, or of which row this is


def is_of_rows(operator: Operator, graph: Graph) -> bool:
    """Whether each row of the results is made of one row of the arguments and of what all rows share."""
    spaces = {o.space for o in graph.outputs}
    return (
        spaces <= set(OF_ROWS)
        and not operator.contract.batched
        and not any(t.space == "t" for t in operator.tensors)
        and not any(o.name == "reduction" for o in operator.options)
        and not COUNTING & {n.op for n in graph.nodes}
    )


def one_by_one(run: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of a custom op ``run`` that calls it for each element of a batch."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any, **words: Any) -> tuple[Any, Any]:
        size = info.batch_size

        def of(x: Any, dim: int | None, i: int) -> Any:
            return x if dim is None else x.select(dim, i) if size else x.sum(dim, dtype=x.dtype)  # zeros: for shapes

        made = [run(*map(of, given, in_dims, repeat(i)), **words) for i in range(max(size, 1))]
        if isinstance(made[0], tuple):
            return tuple(torch.stack(each)[:size] for each in zip(*made, strict=True)), (0,) * len(made[0])
        return torch.stack(made)[:size], 0

    return rule


def rows_of(operator: Operator, graph: Graph) -> list[bool]:
    """Which arguments of a custom op have a row for each row of the result."""
    spaces = {t.name: t.space for t in graph.inputs}
    return [spaces[t.name] in OF_ROWS for t in operator.tensors] + [False for _ in operator.params]


def as_more_rows(rows: Sequence[bool], run: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of a custom op ``run`` of rows, those of its arguments that have ``rows`` of the result; a
    batch of what all rows share is taken one by one."""
    each = one_by_one(run)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None, **words: Any) -> tuple[Any, Any]:
        if any(d is not None and not of_rows for of_rows, d in zip(rows, in_dims, strict=False)):
            alone: tuple[Any, Any] = each(info, in_dims, *given, **words)
            return alone
        moved = [
            x if x is None or not of_rows else x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for of_rows, x, d in zip(rows, given, in_dims, strict=False)
        ]
        made = run(*moved, **words)
        return made, tuple(0 for _ in made) if isinstance(made, tuple) else 0

    return rule
