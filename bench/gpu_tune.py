"""``python -m bench.gpu_tune OP ...``: try schedules of row-wise operators on a GPU.

What is best goes into lower/gpu.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from tokitai.backends.cuda import nvrtc
from tokitai.backends.cuda.target import CudaTarget
from tokitai.errors import TokitaiError
from tokitai.families.rowwise.gpu_kernels import emit_rows
from tokitai.families.rowwise.plan import RowPlan
from tokitai.families.rowwise.schedule import Schedule, blocked, schedule_rows, stage_bytes
from tokitai.lower.gpu import CHUNK
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import gpu_plan
from tokitai.toolchain.build import Source

from .gpu import copy_bandwidth, measure, shapes_of
from .gpu_run import opened


def candidates(plan: RowPlan, cols: int, width: int, warp: int) -> Iterator[Schedule]:
    """Schedules worth a try."""
    base = schedule_rows(plan, cols, width, warp)
    yield base
    for chunks in (1, 2, 4, 8):
        threads = cols // CHUNK // chunks
        if cols % (CHUNK * chunks * warp) or not warp <= threads <= 1024:
            continue
        rows = max(1, 128 // threads) if threads <= warp else 1
        own = replace(base, threads=threads, chunks=chunks, rows=rows, full=True)
        ways = ((1, True), (1, False)) if blocked(plan) else ((0, False), (1, False))
        for warps in (0, 16, 20, 24, 28, 32, 40, 48):
            per_sm = max(1, warps * warp // (threads * rows))
            for ahead, hoisted in ways:
                for staged in (False, True):
                    rows_ahead = ahead if blocked(plan) or not staged else 0
                    s = replace(own, ahead=rows_ahead, per_sm=per_sm, hoisted=hoisted, staged=staged)
                    alone = s.rows == 1 or blocked(plan)
                    if not staged or (alone and stage_bytes(plan, s) <= 227 << 10):
                        yield s


def build(target: CudaTarget, plan: RowPlan, s: Schedule) -> None:
    """Compile one schedule; what does not compile is told when it is measured."""
    text = emit_rows(plan, s)
    with suppress(TokitaiError):
        nvrtc.build(Source(text.text, text.headers, plan.graph.name), target.device.arch)


def main() -> None:
    """Print each schedule with its time, the best first."""
    target = opened()
    copy = copy_bandwidth(target)
    for name in sys.argv[1:]:
        for rows, cols in shapes_of(name):
            found = []
            plan = gpu_plan(registry()[name].trace("f16"), "cuda")
            assert isinstance(plan, RowPlan)
            tried = list(dict.fromkeys(candidates(plan, cols, 8, 32)))
            with ThreadPoolExecutor(14) as pool:  # into the build cache
                list(pool.map(lambda s, plan=plan: build(target, plan, s), tried))
            for s in tried:
                try:
                    r = measure(target, name, "f16", rows, cols, copy, lambda *_, s=s: s, others=False)
                except Exception as error:
                    print(f"{s}: {str(error)[:200]}")
                    continue
                found.append((r["of_copy"]["tokitai"], r["equal"], r["registers"]["work"], s))
            print(f"== {name} {rows}x{cols} base {found[0][0]}")
            for f, equal, registers, s in sorted(found, key=lambda x: -x[0])[:6]:
                how = f"T={s.threads} V={s.chunks} R={s.rows} ahead={s.ahead} hoisted={s.hoisted} per_sm={s.per_sm}"
                print(f"   {f} {equal} regs={registers} {how}", flush=True)


if __name__ == "__main__":
    main()
