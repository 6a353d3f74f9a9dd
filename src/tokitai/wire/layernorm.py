"""layernorm: ``op rows cols block eps [grad_block]``, gamma, beta, then what the pass takes: op 1 forward, 2 backward.

``block`` and ``grad_block`` are sizes of blocks in the hosts' own kernels; here they are read and change nothing. The
backward pass computes with mean and rstd as floats; their patterns, which hold fewer bits, are read and not used.
"""

from __future__ import annotations

from ..ops import get
from .execute import Runner
from .fields import Fields
from .reply import Buffer, Reply

FORWARD, BACKWARD = 1, 2
MOST_THREADS = 1024
FIELDS = (
    "op", "rows", "cols", "block", "eps", "grad_block", "gamma", "beta", "grad_output", "input", "statistics_f16",
    "statistics",
)  # fmt: skip


def answer(payload: bytearray, runner: Runner) -> list[Buffer]:
    """The reply to a payload. Raises WireError and what a device raises."""
    fields = Fields(payload, FIELDS)
    limits = get("layer_norm").contract
    op = fields.whole("op", FORWARD, BACKWARD)
    rows = fields.whole("rows", 0, limits.max_rows)
    cols = fields.whole("cols", limits.min_cols, limits.max_cols)
    fields.whole("block", 0, MOST_THREADS)
    eps = fields.real("eps", lambda value: value >= 0, "a finite number of at least 0")
    if op == BACKWARD:
        fields.whole("grad_block", 0, MOST_THREADS)
    fields.check_results("rows", rows * cols)
    gamma = fields.patterns("gamma", cols)
    beta = fields.patterns("beta", cols)
    reply = Reply(",")
    if op == FORWARD:
        x = fields.patterns("input", rows, cols)
        fields.end("input")
        ran = runner.run(get("layer_norm"), dict(x=x, gamma=gamma, beta=beta), (rows, cols), eps=eps)
        names = {"OUTPUT": "y", "MEAN": "mean", "RSTD": "rstd"}
    else:
        dy = fields.patterns("grad_output", rows, cols)
        x = fields.patterns("input", rows, cols)
        fields.patterns("statistics_f16", 2, rows)
        mean, rstd = fields.floats("statistics", 2 * rows).reshape(2, rows)
        fields.end("statistics")
        tensors = dict(dy=dy, x=x, gamma=gamma, mean=mean, rstd=rstd)
        ran = runner.run(get("layer_norm_backward"), tensors, (rows, cols))
        names = {"GRAD_INPUT": "dx", "GRAD_GAMMA": "dgamma", "GRAD_BETA": "dbeta"}
    runner.describe(reply, ran, ROWS=rows, COLS=cols)
    for key, name in names.items():
        reply.array(key, ran.results[name])
    return reply.parts
