"""``python -m bench.gpu [OP ...]``: time operators on an NVIDIA GPU against a copy, PyTorch and Liger.

CUDA graphs over rotating buffers larger than the L2 cache, medians, peers in the same run. A pass moves 128 MB or more:
every input read once, every result written once. Figures are added to bench/results/gpu.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tokitai.backends.cuda import nvrtc
from tokitai.backends.cuda.target import CudaTarget
from tokitai.bench import held, workload
from tokitai.errors import TokitaiError
from tokitai.families import make_plan
from tokitai.families.rowwise.plan import RowPlan
from tokitai.meaning import bits
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.toolchain.build import Source
from tokitai.torch.peers import COUNTERPARTS, OPERATORS
from tokitai.verification.cases import defaults, settled

from .gpu_peers import peers
from .gpu_run import about, keep, opened
from .gpu_timing import InPlace, seconds

RESULTS = Path(__file__).parent / "results" / "gpu.jsonl"
NORMS = ((32768, 1024), (16384, 4096), (8192, 8192), (2048, 32768))
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64}
COPY = r"""
#include "threads.h"
struct Call { const char* from; char* to; int64_t n; };
using namespace tokitai;
KERNEL(copy, 256, 1) {
  const int64_t first = block_index() * 1024 + thread_index();
  Words16 v[4];
  UNROLL for (int k = 0; k < 4; ++k) if (first + k * 256 < call.n) v[k] = load16(call.from + (first + k * 256) * 16);
  UNROLL for (int k = 0; k < 4; ++k) if (first + k * 256 < call.n) store16(call.to + (first + k * 256) * 16, v[k]);
}
"""


def copy_bandwidth(target: CudaTarget) -> float:
    """Bytes a second of a streaming copy of 256 MB, read and written: the better of ours and PyTorch's."""
    from tokitai.emit.gpu_text import headers

    module = target.device.load(nvrtc.build(Source(COPY, headers(), "copy"), target.device.arch))
    n = 1 << 28
    pairs = [tuple(torch.empty(n, dtype=torch.uint8, device="cuda").random_() for _ in range(2)) for _ in range(3)]

    def own(a: Any, b: Any) -> Any:
        call = np.array([a.data_ptr(), b.data_ptr(), n // 16], np.int64).tobytes()
        module.launch("copy", n // 16 // 1024, 256, call, torch.cuda.current_stream().cuda_stream)
        return b

    ways = [partial(b.copy_, a) for a, b in pairs], [partial(own, a, b) for a, b in pairs]
    return 2 * n / min(seconds(calls) for _ in range(2) for calls in ways)


def tensor(space: str, fmt: str, rows: int, cols: int, name: str) -> Any:
    """Noise; indices inside the row."""
    size = {"rc": (rows, cols), "r": (rows,), "c": (cols,), "s": ()}[space]
    if fmt in ("i32", "i64"):
        return torch.randint(0, cols, size, device="cuda", dtype=TORCH[fmt])
    values = torch.randn(size, device="cuda")
    if name == "rstd":
        values = values.abs() + 0.5
    return values.to(TORCH[fmt])


def shapes_of(name: str) -> tuple[tuple[int, int], ...]:
    """Rows and columns that an operator is timed on."""
    if "cross_entropy" in name:
        return ((8192, 32768),)
    plan = make_plan(registry()[name].trace("f16"))
    return NORMS if isinstance(plan, RowPlan) else ((16384, 4096),)


def measure(
    target: CudaTarget, name: str, dtype: str, rows: int, cols: int, copy: float, schedule: Any = None,
    others: bool = True, block: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One record; with another way to choose a schedule, other blocks of rows, and without peers, where asked."""
    op = registry()[name]
    graph = op.trace(dtype, workload.timed(op))
    kernel = GpuKernel(op, graph, make_plan(graph), False, target)
    if block is not None and isinstance(kernel.plan, RowPlan):
        kernel.plan = replace(kernel.plan, block=block)
    if schedule is not None:
        kernel.schedule = schedule
    params = settled(op, graph, defaults(op))
    scalars = kernel.scalar_table(rows, cols, params)
    torch.manual_seed(0)
    sets: list[tuple[dict[str, Any], dict[str, Any]]] = []
    one = 0
    while len(sets) < 2 or (len(sets) < 6 and len(sets) * one < 400e6):
        given = {t.name: tensor(t.space, str(t.format), rows, cols, t.name) for t in graph.inputs}
        size = {"rc": (rows, cols), "r": (rows,), "c": (cols,), "s": ()}
        made = {o.name: given[o.name] if o.inplace else torch.empty(size[o.space], device="cuda", dtype=TORCH[o.format])
                for o in graph.outputs}  # fmt: skip
        sets.append((given, made))
        one = sum(a.nbytes for a in (*given.values(), *made.values()))
    room = torch.empty(kernel.workspace_bytes([(rows, cols)], 1) + 16, device="cuda", dtype=torch.uint8)

    replaced = [o.name for o in graph.outputs if o.inplace]

    def ours(given: dict[str, Any], made: dict[str, Any]) -> Any:
        ordered = [given[t.name] for t in graph.inputs] + [made[o.name] for o in graph.outputs]
        sizes = [rows, cols, *(cols for a in ordered if a.ndim == 2), *scalars.whole]
        if kernel.plan.flat:
            sizes = [1, *sizes]
        stream = torch.cuda.current_stream().cuda_stream
        addresses = [a.data_ptr() for a in ordered]
        kernel.launch_raw(addresses, sizes, [(rows, cols)], scalars.table, 0, place=room.data_ptr(), stream=stream)
        return InPlace([made[n] for n in replaced]) if replaced else tuple(made.values())

    first = sets[0]
    ours(*first)
    torch.cuda.synchronize()
    equal = compare(kernel, first, params)
    times: dict[str, float] = {}
    shares: dict[str, dict[str, float]] = {}
    for _ in range(2):  # in turns: what comes first on new memory was seen to take up to a twentieth longer
        times["tokitai"] = min(seconds([partial(ours, *s) for s in sets]), times.get("tokitai", math.inf))
        for who, make in peers(name).items() if others else ():
            try:
                timed = [make(given | params) for given, made in sets]
                t = seconds(timed)
                shares[who] = hold(kernel, first[0], timed[0](), COUNTERPARTS[name][1], params, who)
            except Exception as error:  # a peer that fails here is reported, and does not stop the others
                print(f"{who} {name}: {str(error)[:100]}", flush=True)
                continue
            times[who] = min(t, times.get(who, math.inf))
    moved = one
    resources = [p.module.artifact.resources for p, _ in kernel.programs.values()]  # type: ignore[attr-defined]
    return {
        "operator": name, "dtype": dtype,
        "rows": rows, "cols": cols, "bytes": moved, "equal": equal,
        "microseconds": {k: round(v * 1e6, 1) for k, v in times.items()},
        "of_copy": {k: round(moved / v / copy, 3) for k, v in times.items()}, "copy_gb_s": round(copy / 1e9),
        "share_of_bound": shares, "flags": [f"{k}: above a copy's rate" for k, v in times.items() if moved / v > copy],
        "registers": {k: v.registers for r in resources for k, v in r.items()},
    }  # fmt: skip


def as_numpy(t: Any) -> Any:
    """A host copy."""
    if t.dtype == torch.bfloat16:
        return t.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return t.cpu().numpy()


def hold(
    kernel: GpuKernel, given: dict[str, Any], returned: Any, names: Sequence[str], params: dict[str, float], who: str
) -> dict[str, float]:
    """The largest distance of a counterpart's results from the definition's in some rows, as a part of what rounding in
    f32 explains: see `tokitai.bench.held`. Raises ArgumentError for another function."""
    graph, rows = kernel.graph, np.arange(8)
    some = {t.name: as_numpy(given[t.name][:8] if t.space in ("rc", "r") else given[t.name]) for t in graph.inputs}
    wanted = held.in_rows(graph, some, rows, next(a.shape[1] for a in some.values() if a.ndim == 2), params)
    several = returned if isinstance(returned, (tuple, list)) else (returned,)
    in_rows = {o.name for o in graph.outputs if o.space in ("rc", "r")}
    results = {n: [as_numpy(t[:8].contiguous())] for n, t in zip(names, several, strict=False) if n in in_rows}
    return held.hold_theirs(graph.name, who, [w for w in wanted if w.name in results], results, names, graph.dtype)


def compare(kernel: GpuKernel, one: tuple[dict[str, Any], dict[str, Any]], params: dict[str, float]) -> bool | None:
    """Whether the first rows have the oracle's bits; None where rows depend on each other."""
    graph = kernel.graph
    if any(n.op in ("col_sum", "rows", "total_sum", "total_max") for n in graph.nodes if n.space != "c"):
        return None
    given, made = one
    rows, cols = 8, next(a.shape[1] for a in made.values() if a.ndim == 2)
    some = {t.name: as_numpy(given[t.name][:rows] if t.space in ("rc", "r") else given[t.name]) for t in graph.inputs}
    want = bits.evaluate(graph, some, (rows, cols), params)
    local = [o.name for o in graph.outputs if o.space in ("rc", "r")]
    return all(as_numpy(made[name][:rows]).tobytes() == want[name].tobytes() for name in local)


def adamw(target: CudaTarget, dtype: str, copy: float) -> dict[str, Any]:
    """AdamW over 808 tensors, 0.7B parameters: 22 bytes an element."""
    op = registry()["adamw"]
    graph = op.trace(dtype, frozenset())
    kernel = GpuKernel(op, graph, make_plan(graph), False, target)
    params = settled(op, graph, defaults(op))
    count, n = 808, 866_000
    lists = {t.name: [torch.randn(n, device="cuda").abs().mul(1e-2).to(TORCH[str(t.format)]) for _ in range(count)]
             for t in graph.inputs}  # fmt: skip
    names = [t.name for t in graph.inputs] + [o.name for o in graph.outputs]
    addresses = [lists[k][i].data_ptr() for i in range(count) for k in names]
    sizes = [count] + [v for _ in range(count) for v in (1, n, *([n] * kernel.matrices))]
    scalars = kernel.scalar_table(1, 1, params)
    shapes = [(1, n)] * count
    table = kernel.table(addresses, sizes, shapes)
    room = torch.empty(kernel.workspace_bytes(shapes, 1) + 16, device="cuda", dtype=torch.uint8)

    def ours() -> InPlace:
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch_table(table, scalars.whole, scalars.table, 0, place=room.data_ptr(), stream=stream)
        return InPlace(lists["param"])

    times = {"tokitai": seconds([ours])}
    leaves = [p.detach().float().requires_grad_() for p in lists["param"]]
    for leaf in leaves:
        leaf.grad = torch.randn_like(leaf)
    fused = torch.optim.AdamW(leaves, lr=1e-3, fused=True, capturable=True)
    times["torch f32, 28 bytes"] = seconds([lambda: (fused.step(), InPlace(leaves))[1]])
    moved = 22 * count * n
    return {
        "operator": "adamw", "dtype": dtype,
        "rows": count, "cols": n, "bytes": moved, "equal": None,
        "microseconds": {k: round(v * 1e6, 1) for k, v in times.items()},
        "of_copy": {k: round((moved if k == "tokitai" else 28 * count * n) / v / copy, 3) for k, v in times.items()},
        "copy_gb_s": round(copy / 1e9),
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="OP", help="default: all")
    parser.add_argument("--dtype", nargs="*", default=["f16"], choices=["f16", "bf16", "f32"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = opened()
    copy = copy_bandwidth(target)
    print(f"{about(target)} copy {copy / 1e9:.0f} GB/s", flush=True)
    for name in options.operators or OPERATORS:
        for dtype in options.dtype:
            for rows, cols in ((0, 0),) if name == "adamw" else shapes_of(name):
                try:
                    if name == "adamw":
                        record = adamw(target, dtype, copy)
                    else:
                        record = measure(target, name, dtype, rows, cols, copy)
                except TokitaiError as error:
                    print(f"{name} {dtype} {rows}x{cols}: {error}"[:600], flush=True)
                    continue
                torch.cuda.empty_cache()
                keep(record, target, options.out)
                print(name, dtype, f"{rows}x{cols}", record["equal"], record["microseconds"], record["of_copy"],
                      record.get("registers"), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
