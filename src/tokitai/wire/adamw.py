"""adamw: ``n lr beta1 beta2 eps weight_decay t``, then theta, m, v and grad; as text, or as bytes.

The scalars are f32 in both, so that a step has the same bits whichever way it arrives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops import get
from .execute import Ran, Runner
from .fields import MOST_RESULTS, Fields, Wrong
from .reply import Buffer, Reply, raw

Array = np.ndarray[Any, Any]

FIELDS = ("n", "lr", "beta1", "beta2", "eps", "weight_decay", "t", "theta", "m", "v", "grad", "padding")
MAGIC = struct.pack("<I", 0x57414441)
HEADER = struct.Struct("<4sI5fi4x")
REPLY = struct.Struct("<IIf4x")
RESULTS = {"THETA": "param", "M": "exp_avg", "V": "exp_avg_sq"}
LAST_STEP = 2**31 - 1
NOT_NEGATIVE: tuple[Callable[[float], bool], str] = (lambda x: x >= 0, "a finite number of at least 0")
BELOW_ONE: tuple[Callable[[float], bool], str] = (lambda x: 0 <= x < 1, "at least 0 and below 1")
SCALARS = {"lr": NOT_NEGATIVE, "beta1": BELOW_ONE, "beta2": BELOW_ONE, "eps": NOT_NEGATIVE,
           "weight_decay": NOT_NEGATIVE}  # fmt: skip


def answer(payload: bytearray, runner: Runner) -> list[Buffer]:
    """The reply to a payload, of text or of bytes as the payload is. Raises WireError and what a device raises."""
    if payload.startswith(MAGIC):
        return _bytes(payload, runner)
    fields = Fields(payload, FIELDS)
    n = fields.whole("n", 0, MOST_RESULTS // 3)
    scalars = {name: fields.real(name, *accepts) for name, accepts in SCALARS.items()}
    step = fields.whole("t", 1, LAST_STEP)
    theta = fields.patterns("theta", 1, n)
    m = fields.floats("m", n).reshape(1, n)
    v = fields.floats("v", n).reshape(1, n)
    grad = fields.patterns("grad", 1, n)
    fields.end("grad")
    ran = _step(runner, theta, m, v, grad, scalars, step)
    reply = Reply(",")
    runner.describe(reply, ran, N=n)
    for key, name in RESULTS.items():
        reply.array(key, ran.results[name])
    return reply.parts


def _bytes(payload: bytearray, runner: Runner) -> list[Buffer]:
    """A payload of bytes: every array begins where the one before it ends. The step is made where they lie."""
    wrong = Wrong(FIELDS)
    if len(payload) < HEADER.size:
        cut = FIELDS[:7][(len(payload) - 4) // 4] if len(payload) < HEADER.size - 4 else "padding"
        wrong.fail(cut, f"the header ends in it, at byte {len(payload)}; accepted: {HEADER.size} bytes")
    _, n, *scalars, step = HEADER.unpack_from(payload)
    for (name, (accepts, accepted)), value in zip(SCALARS.items(), scalars, strict=True):
        if not (math.isfinite(value) and accepts(value)):
            wrong.fail(name, f"{np.float32(value)}; accepted: {accepted}")
    if not 1 <= step <= LAST_STEP:
        wrong.fail("t", f"{step}; accepted: a whole number from 1 to {LAST_STEP}")
    arrays, at = [], HEADER.size
    for name, dtype in (("theta", "<f2"), ("m", "<f4"), ("v", "<f4"), ("grad", "<f2")):
        end = at + n * np.dtype(dtype).itemsize
        if len(payload) < end:
            wrong.fail(name, f"{len(payload) - at} bytes; accepted: {end - at}, as n is {n}")
        array = np.frombuffer(payload, dtype, n, at).reshape(1, n)
        arrays.append(array if array.flags.aligned else array.copy())
        at = end
    if len(payload) > at:
        wrong.fail("grad", f"{len(payload) - at} bytes more than there are places for, as n is {n}")
    theta, m, v, grad = arrays
    ran = _step(runner, theta, m, v, grad, dict(zip(SCALARS, scalars, strict=True)), step)
    return [REPLY.pack(0, n, ran.milliseconds), *(raw(ran.results[name]) for name in RESULTS.values())]


def _step(
    runner: Runner, theta: Array, m: Array, v: Array, grad: Array, scalars: dict[str, float], step: int
) -> Ran:  # fmt: skip
    tensors = dict(param=theta, grad=grad, exp_avg=m, exp_avg_sq=v)
    return runner.run(get("adamw"), tensors, (1, theta.size), step=step, **scalars)
