"""softmax: ``mode rows cols``, then input (mode 0), or grad_output and softmax_output (mode 1)."""

from __future__ import annotations

from ..ops import get
from .execute import Runner
from .fields import Fields
from .reply import Buffer, Reply

FORWARD, BACKWARD = 0, 1
FIELDS = ("mode", "rows", "cols", "input", "grad_output", "softmax_output")


def answer(payload: bytearray, runner: Runner) -> list[Buffer]:
    """The reply to a payload. Raises WireError and what a device raises."""
    fields = Fields(payload, FIELDS)
    limits = get("softmax").contract
    mode = fields.whole("mode", FORWARD, BACKWARD)
    rows = fields.whole("rows", 0, limits.max_rows)
    cols = fields.whole("cols", limits.min_cols, limits.max_cols)
    fields.check_results("rows", rows * cols)
    if mode == FORWARD:
        x = fields.patterns("input", rows, cols)
        fields.end("input")
        ran, key, name = runner.run(get("softmax"), dict(x=x), (rows, cols)), "OUTPUT", "y"
    else:
        dy = fields.patterns("grad_output", rows, cols)
        y = fields.patterns("softmax_output", rows, cols)
        fields.end("softmax_output")
        ran, key, name = runner.run(get("softmax_backward"), dict(dy=dy, y=y), (rows, cols)), "GRAD_INPUT", "dx"
    reply = Reply(",")
    runner.describe(reply, ran, ROWS=rows, COLS=cols)
    reply.array(key, ran.results[name])
    return reply.parts
