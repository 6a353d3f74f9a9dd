"""embedding: ``queries dim vocab op``, ids, then the table (op 0: look up) or grad_output (op 1: its gradient)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import get
from .execute import Ran, Runner
from .fields import Fields
from .reply import Buffer, Reply

Array = np.ndarray[Any, Any]

LOOK_UP, GRADIENT = 0, 1
MOST = 2**31 - 1
FIELDS = ("queries", "dim", "vocab", "op", "ids", "table", "grad_output")


def answer(payload: bytearray, runner: Runner) -> list[Buffer]:
    """The reply to a payload. Raises WireError and what a device raises."""
    fields = Fields(payload, FIELDS)
    queries = fields.whole("queries", 0, MOST)
    dim = fields.whole("dim", 1, MOST)
    vocab = fields.whole("vocab", 0, MOST)
    op = fields.whole("op", LOOK_UP, GRADIENT)
    if op == LOOK_UP:
        fields.check_results("queries", queries * dim)
    else:
        fields.check_results("vocab", vocab * dim)
    ids = fields.indices("ids", queries, vocab)
    if op == LOOK_UP:
        table = fields.patterns("table", vocab, dim)
        fields.end("table")
        ran = look_up(runner, table, ids)
    else:
        dy = fields.patterns("grad_output", queries, dim)
        fields.end("grad_output")
        ran = gradient(runner, dy, ids, vocab)
    reply = Reply(" ")
    runner.describe(reply, ran, QUERIES=queries, DIM=dim, VOCAB=vocab)
    reply.array("RESULTS", ran.results["y"])
    return reply.parts


def look_up(runner: Runner, table: Array, ids: Array) -> Ran:
    """y[r] = table[ids[r]]. Raises DeviceMissingError but on the cpu."""
    return runner.call(get("embedding"), "y", table, ids)


def gradient(runner: Runner, dy: Array, ids: Array, vocab: int) -> Ran:
    """The sum of the rows of dy that chose an entry, for every entry. Raises DeviceMissingError but on the cpu."""
    return runner.call(get("embedding_backward"), "y", dy, ids, entries=vocab)
