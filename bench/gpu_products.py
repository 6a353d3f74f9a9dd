"""``python -m bench.gpu_products [--candidates]``: matrix products on an NVIDIA GPU beside cuBLAS, as torch calls it.

CUDA graphs, medians, both in one run; TF32 is off. What cuBLAS multiplies is stored as wide as it adds up: f32, or f64.
Figures are added to bench/results/gpu_products.jsonl, or to --out. With --candidates other tilings are timed as well,
and told, not kept: what is best goes into lower/gpu_product.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tokitai.backends.cuda import nvrtc
from tokitai.backends.cuda.target import CudaTarget
from tokitai.errors import TokitaiError
from tokitai.families import make_plan
from tokitai.families.matmul.gpu_kernels import emit_product
from tokitai.families.matmul.plan import ProductPlan
from tokitai.families.matmul.tiling import Tiling, tiling_of
from tokitai.lang import Sizes
from tokitai.meaning import bits
from tokitai.ops import matmul
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.toolchain.build import Source

from .gpu import TORCH, as_numpy
from .gpu_run import keep, opened
from .gpu_timing import seconds

RESULTS = Path(__file__).parent / "results" / "gpu_products.jsonl"
KINDS = (("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f32", "f64"))  # stored in, accumulated in
SIDES = (4096, 8192)
LAYOUTS = ("NN", "NT", "TN")
CHECKED = 1  # rows that are compared with the oracle


def candidates(plan: ProductPlan, sizes: Sizes) -> Iterator[Tiling]:
    """Tilings worth a try."""
    if plan.accumulator == "f64":
        yield Tiling(128, 128, 8, 8, 16, 4, 8, 8, matrix=True)
        yield Tiling(128, 128, 4, 16, 16, 4, 8, 8, matrix=True)
        yield Tiling(128, 64, 8, 8, 16, 4, 8, 8, per_sm=2, matrix=True)
        yield Tiling(64, 128, 8, 8, 16, 4, 8, 8, per_sm=2, matrix=True)
        yield Tiling(64, 64, 8, 8, 16, 4, 8, 8, per_sm=4, matrix=True)
        yield Tiling(64, 64, 4, 8, 16, 4, 8, 8, per_sm=3, matrix=True)
        return
    for lanes in (4, 8):
        for depth in (8, 16):
            yield Tiling(256, 128, 16, 8, depth, lanes, depth, 8)
        yield Tiling(128, 128, 16, 8, 16, lanes, 16, 8, per_sm=2)
    yield Tiling(128, 256, 8, 16, 16, 8, 16, 8)
    yield Tiling(128, 256, 16, 8, 16, 8, 16, 8)
    yield Tiling(128, 128, 8, 8, 16, 8, 16, 8, per_sm=2)


class Run:
    """One product on operands of noise."""

    def __init__(self, target: CudaTarget, dtype: str, accumulator: str, layout: str, sizes: Sizes) -> None:
        self.target, self.dtype, self.accumulator, self.layout, self.sizes = target, dtype, accumulator, layout, sizes
        self.graph = matmul.trace(dtype, frozenset(), dict(accumulator=accumulator, layout=layout))
        torch.manual_seed(0)
        m, n, k = sizes[0], sizes[1], sizes.inner
        shapes = (k, m) if layout == "TN" else (m, k), (n, k) if layout == "NT" else (k, n)
        self.a, self.b = (torch.randn(s, device="cuda").to(TORCH[dtype]) for s in shapes)
        self.y = torch.empty(m, n, device="cuda", dtype=TORCH[dtype])

    def kernel(self, tiling: Tiling | None = None) -> GpuKernel:
        """The kernel, with another tiling where one is given."""
        plan = make_plan(self.graph)
        made = GpuKernel(matmul, self.graph, plan, False, self.target)
        if tiling is not None:
            made.schedule = lambda *_: tiling
        return made

    def ours(self, kernel: GpuKernel) -> Any:
        """A call of the kernel."""
        params = dict(alpha=1.0, beta=0.0)
        table = kernel.scalar_table(*self.sizes, params).table
        ordered = (self.a, self.b, self.y)
        sizes = [*self.sizes, self.sizes.inner, 1, *(v for x in ordered for v in (x.stride(0), 0))]
        room = torch.empty(kernel.workspace_bytes([self.sizes], 0) + 16, device="cuda", dtype=torch.uint8)
        addresses = [x.data_ptr() for x in ordered]

        def run() -> Any:
            stream = torch.cuda.current_stream().cuda_stream
            kernel.launch_raw(addresses, sizes, [self.sizes], table, 0, place=room.data_ptr(), stream=stream)
            return self.y

        return run

    def theirs(self) -> Any:
        """A call of cuBLAS on operands as wide as its accumulators."""
        wide = torch.float64 if self.accumulator == "f64" else torch.float32
        a, b = self.a.to(wide), self.b.to(wide)
        a, b = a.T if self.layout == "TN" else a, b.T if self.layout == "NT" else b
        return partial(torch.matmul, a, b, out=torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=wide))

    def equal(self) -> bool:
        """Whether some rows of the result have the oracle's bits."""
        rows, k = CHECKED, self.sizes.inner
        a = self.a[:, :rows] if self.layout == "TN" else self.a[:rows]
        given = dict(a=as_numpy(a.contiguous()), b=as_numpy(self.b))
        want = bits.evaluate(self.graph, given, Sizes(rows, self.sizes[1], k), dict(alpha=1.0, beta=0.0))
        return bool(as_numpy(self.y[:rows].contiguous()).tobytes() == want["y"].tobytes())

    def record(self, repeats: int) -> dict[str, Any]:
        """Both times, and whether the bits are right."""
        kernel = self.kernel()
        run = self.ours(kernel)
        times = {"tokitai": seconds([run], repeats), "cublas": seconds([self.theirs()], repeats)}
        operations = 2 * self.sizes[0] * self.sizes[1] * self.sizes.inner
        resources = [p.module.artifact.resources for p, _ in kernel.programs.values()]  # type: ignore[attr-defined]
        return {
            "operator": "matmul", "dtype": self.dtype,
            "accumulator": self.accumulator, "layout": self.layout, "rows": self.sizes[0], "cols": self.sizes[1],
            "inner": self.sizes.inner, "equal": self.equal(),
            "microseconds": {k: round(v * 1e6, 1) for k, v in times.items()},
            "tflops": {k: round(operations / v / 1e12, 1) for k, v in times.items()},
            "of_cublas": round(times["cublas"] / times["tokitai"], 3),
            "tiling": ", ".join(map(str, kernel.settled.values())),
            "registers": {k: v.registers for r in resources for k, v in r.items()},
        }  # fmt: skip


def try_out(target: CudaTarget, dtype: str, accumulator: str, sides: tuple[int, ...], repeats: int) -> None:
    """Print each candidate with its times, the best first."""
    runs = [Run(target, dtype, accumulator, "NN", Sizes(n, n, n)) for n in sides]
    plan = make_plan(runs[0].graph)
    assert isinstance(plan, ProductPlan)
    sizes = runs[-1].sizes
    tried = list(dict.fromkeys((tiling_of(plan, sizes, 8, target.matrix_units), *candidates(plan, sizes))))

    def build(t: Tiling) -> None:
        text = emit_product(plan, t)
        with suppress(TokitaiError):
            nvrtc.build(Source(text.text, text.headers, "matmul"), target.device.arch)

    with ThreadPoolExecutor(14) as pool:  # into the build cache
        list(pool.map(build, tried))
    peers = [seconds([r.theirs()], repeats) for r in runs]
    found = []
    for t in tried:
        with suppress(TokitaiError):
            kernels = [r.kernel(t) for r in runs]
            times = [seconds([r.ours(k)], repeats) for r, k in zip(runs, kernels, strict=True)]
            took = kernels[0].settled[t]
            program: Any = kernels[0].programs[took][0]
            registers = program.module.artifact.resources["work"].registers
            found.append(([p / v for p, v in zip(peers, times, strict=True)], registers, t == took, t))
    rates = [round(2 * n**3 / p / 1e12, 1) for n, p in zip(sides, peers, strict=True)]
    print(f"== {dtype} {accumulator} {sides}, cuBLAS {rates} Tflop/s", flush=True)
    for ratios, registers, kept, t in sorted(found, key=lambda x: -min(x[0])):
        how = f"{t.rows}x{t.cols} {t.tall}x{t.wide} depth={t.depth} lanes={t.lanes} unrolled={t.unrolled}"
        fell = "" if kept else " (spilled)"
        print(f"   {[round(r, 3) for r in ratios]} regs={registers}{fell} {how} per_sm={t.per_sm}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_products", description=__doc__)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--side", nargs="*", type=int, default=SIDES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = opened()
    if options.candidates:
        for dtype, accumulator in (KINDS[3], KINDS[0], KINDS[1]):
            try_out(target, dtype, accumulator, tuple(options.side), options.repeats)
        return
    for dtype, accumulator in KINDS:
        for side in options.side:
            for layout in LAYOUTS if side == min(options.side) else LAYOUTS[:1]:
                record = Run(target, dtype, accumulator, layout, Sizes(side, side, side)).record(options.repeats)
                torch.cuda.empty_cache()
                keep(record, target, options.out)
                print(dtype, accumulator, layout, side, record["equal"], record["tflops"], record["of_cublas"],
                      record["registers"], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
