"""`torch.vmap` over functions whose rows do not know of each other: a batch is more rows, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import ArgumentError
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


def as_more_rows(operator: Operator, graph: Graph, run: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of a custom op ``run``. It raises ArgumentError for a batch of what all rows share."""
    spaces = {t.name: t.space for t in graph.inputs}
    named = [(t.name, spaces[t.name] in OF_ROWS) for t in operator.tensors] + [(p.name, False) for p in operator.params]
    accepted = ", ".join(n for n, of_rows in named if of_rows)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None, **words: Any) -> tuple[Any, Any]:
        moved: list[Tensor | None] = []
        for (name, of_rows), x, dim in zip(named, given, in_dims, strict=False):
            if dim is not None and not of_rows:
                raise ArgumentError(
                    f"{operator.name}: torch.vmap over {name}, which all rows share; accepted: over {accepted}"
                )
            if x is None or not of_rows:
                moved.append(x)
            else:
                moved.append(x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0))
        made = run(*moved, **words)
        return made, tuple(0 for _ in made) if isinstance(made, tuple) else 0

    return rule
