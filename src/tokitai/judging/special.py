"""Elements that have to do with special values: infinities and NaN, and subnormal numbers.

A kernel may be right on every ordinary value and wrong there, and the other way round: both are said apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..formats import FORMATS, Format
from ..lang import MATRICES, Graph, Output
from ..verification.cases import Array, Case

ORDINARY, INFINITE, SUBNORMAL = range(3)
KINDS = {INFINITE: "infinity and NaN", SUBNORMAL: "subnormals"}
ACCEPTED = {"infinity-and-nan": INFINITE, "subnormals": SUBNORMAL}  # as `--accept` names them
NO_ROWS = "no rows"
SIGNED_ZERO = "signed zeros"
MIXING = {"row_sum", "row_max", "row_first", "col_sum", "scatter_sum", "matmul", "weighted_sum", "total_sum",
          "total_max", "take_column", "gather"}  # fmt: skip


def kinds(graph: Graph, case: Case, output: Output, defined: Array, exact: Any, fmt: Format) -> Array:
    """For each element of a result `ORDINARY`, or which special values it has to do with: it is or must be one, or the
    inputs are at its place. Where elements meet others, infinities and NaN count for the whole row, and in products and
    totals for the whole tensor."""
    made = np.full(defined.shape, ORDINARY, np.int8)
    if not fmt.is_float or defined.size == 0:
        return made
    exact = np.broadcast_to(np.asarray(exact, REAL), defined.shape)
    size = np.abs(exact)
    with np.errstate(all="ignore"):
        small = (size > 0) & (size < REAL(2.0) ** fmt.emin)
        endless = ~np.isfinite(defined.astype(np.float64)) | ~np.isfinite(exact)
    apart = not any(n.op in MIXING for n in graph.nodes)
    crossing = any(n.op in MIXING - {"row_sum", "row_max", "row_first", "take_column"} for n in graph.nodes)
    for t in graph.inputs:
        of = FORMATS[str(t.format)]
        if not of.is_float:
            continue
        values = case.tensors[t.name].astype(np.float64)
        bad = ~np.isfinite(values)
        if apart and values.size == defined.size:
            values, bad = values.reshape(defined.shape), bad.reshape(defined.shape)
            endless |= bad
            small |= (values != 0) & (np.abs(values) < 2.0**of.emin)
        elif bad.any() and (crossing or output.space not in MATRICES or t.space != output.space):
            endless |= True
        elif bad.any():
            endless |= bad.reshape(defined.shape[0], -1).any(axis=1, keepdims=True)
    made[small] = SUBNORMAL
    made[endless] = INFINITE
    return made
