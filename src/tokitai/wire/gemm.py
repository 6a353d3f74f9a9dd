"""gemm-bw: ``id M N K``, grad_C, then B (id 1, for grad_A) or A (id 2, for grad_B): the gradients of C = A B.

Here B is K x N and A is M x K, row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lang import Sizes
from ..ops import get
from .execute import Ran, Runner
from .fields import Fields
from .reply import Buffer, Reply

Array = np.ndarray[Any, Any]

LEFT, RIGHT = 1, 2
MOST = 2**31 - 1
FIELDS = ("id", "M", "N", "K", "grad_C", "B", "A")


def answer(payload: bytearray, runner: Runner) -> list[Buffer]:
    """The reply to a payload. Raises WireError and what a device raises."""
    fields = Fields(payload, FIELDS)
    which = fields.whole("id", LEFT, RIGHT)
    m, n, k = (fields.whole(name, 0, MOST) for name in ("M", "N", "K"))
    fields.check_results("K", m * k if which == LEFT else k * n)
    grad = fields.patterns("grad_C", m, n)
    if which == LEFT:
        b = fields.patterns("B", k, n)
        fields.end("B")
        ran = product(runner, grad, b, "NT")
    else:
        a = fields.patterns("A", m, k)
        fields.end("A")
        ran = product(runner, a, grad, "TN")
    reply = Reply(" ")
    runner.describe(reply, ran, M=m, N=n, K=k)
    reply.array("RESULTS", ran.results["y"])
    return reply.parts


def product(runner: Runner, a: Array, b: Array, layout: str) -> Ran:
    """y = a b; with the layout NT b is given as its transpose, with TN a."""
    rows, inner = a.shape[:: -1 if layout == "TN" else 1]
    sizes = Sizes(rows, b.shape[0 if layout == "NT" else 1], inner)
    return runner.run(get("matmul"), {"a": a, "b": b}, sizes, beta=0.0, layout=layout)
