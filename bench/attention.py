"""``python -m bench.attention [REPEATS]``: attention on two threads beside torch's `scaled_dot_product_attention`.

One JSON object a line: milliseconds, the fastest of calls that take turns; ``cpu_ms`` is the processor time of both
threads, which tells the two apart where other work shares the machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from tokitai import ops
from tokitai.formats import FORMATS

THREADS = 2
HEADS, TOKENS, DIM = 8, 1024, 64
SLEEP = 0.05
Times = dict[str, float]


def fastest(calls: dict[str, Callable[[], object]], repeats: int) -> tuple[Times, Times]:
    """The smallest time of each on the clock and on the processors; the first call of each does not count."""
    clock, work = (dict.fromkeys(calls, float("inf")) for _ in range(2))
    for i in range(repeats + 1):
        for name, call in calls.items():
            time.sleep(SLEEP)
            begin, used = time.perf_counter(), time.process_time()
            call()
            if i:
                clock[name] = min(clock[name], 1e3 * (time.perf_counter() - begin))
                work[name] = min(work[name], 1e3 * (time.process_time() - used))
    return clock, work


def main() -> None:
    """Each format with and without a causal mask, forward and backward."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(0)
    theirs = torch.nn.functional.scaled_dot_product_attention
    causal = np.arange(1, TOKENS + 1, dtype=np.int32)
    given = dict(scale=DIM**-0.5, threads=THREADS)
    for dtype in ("f16", "bf16", "f32"):
        q, k, v, dy = (rng.standard_normal((HEADS, TOKENS, DIM)).astype(FORMATS[dtype].dtype) for _ in range(4))
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        tq, tk, tv, tdy = (torch.from_numpy(x.astype(np.float32)).to(kind)[None] for x in (q, k, v, dy))
        leaves = [x.clone().requires_grad_() for x in (tq, tk, tv)]
        for limit in (None, causal):
            mask = limit is not None
            _, top, total = ops.attention(q, k, v, limit, **given)
            made = theirs(leaves[0], leaves[1], leaves[2], is_causal=mask)
            forward: dict[str, Callable[[], object]] = {
                "tokitai": lambda x=(q, k, v, limit): ops.attention(*x, **given),  # type: ignore[misc]
                "torch": lambda x=(tq, tk, tv), m=mask: theirs(x[0], x[1], x[2], is_causal=m),  # type: ignore[misc]
            }
            backward: dict[str, Callable[[], object]] = {
                "tokitai": lambda x=(dy, q, k, v, top, total, limit): ops.attention_backward(  # type: ignore[misc]
                    *x, **given
                ),
                "torch": lambda y=made, g=tdy, x=leaves: torch.autograd.grad(  # type: ignore[misc]
                    y, x, g, retain_graph=True
                ),
            }
            for name, calls in (("forward", forward), ("backward", backward)):
                clock, work = fastest(calls, repeats)
                ratio = clock["torch"] / clock["tokitai"]
                record = dict(dtype=dtype, causal=mask, direction=name, heads=HEADS, tokens=TOKENS, dim=DIM)
                print(json.dumps(record | dict(ms=clock, cpu_ms=work, ratio=ratio)), flush=True)


if __name__ == "__main__":
    main()
