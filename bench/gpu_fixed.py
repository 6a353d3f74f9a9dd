"""``python -m bench.gpu_fixed``: products of operands in fixed point on a GPU, beside cuBLAS on the same bf16 operands.

CUDA graphs, medians, both in one run; finding units and cutting operands are part of the time. Each product is first
held, to the bit, against our CPU kernels in a few of its rows and columns. Figures are added to
bench/results/gpu_fixed.jsonl, or to --out; --page writes what that file holds as a table to bench/results/gpu_fixed.md.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tokitai import ops
from tokitai.lang import FIXED_BITS

from .gpu_fused import SIZES, differ, noise
from .gpu_run import keep, opened, page
from .gpu_timing import seconds

RESULTS = Path(__file__).parent / "results" / "gpu_fixed.jsonl"
FLOORS = """On Hopper large products are its warpgroups' (wgmma of bytes),
small ones a warp's (mma.sync).

Floors: b digits of eight bits whose products are summed exactly take b^2 products of bytes: 1, 4 and 9. By its data
sheet an H200 does 1,979 Tops on bytes, twice what it does in bf16. So 8192 x 8192 x 8192, 5.5e11 multiply-adds, takes
.56, 2.2 and 5.0 ms at least, which is 1,979, 495 and 220 Tflop/s at most. A quarter of cuBLAS's 727 to 795 Tflop/s in
`fixed24` is 83 to 90 % of the unit's peak, cutting left out. Cutting reads an operand and writes b bytes an element: of
both operands at 4.8 TB/s .08, .11 and .14 ms. Operands in bf16 whose lines lie along k (NT) are cut at 2.7 to 3.0 TB/s,
of what is read once and written once; where one lies across k (NN), whose kernel reads it twice, at 1.8 to 2.0 TB/s."""
FEW = 64  # rows and columns that the CPU computes


def of_cpu(a: Any, b: Any, accumulator: str) -> Any:
    """A corner of the product: units follow from whole rows and columns, so it has the bits of the whole."""
    return ops.matmul(a[:FEW].cpu(), b[-FEW:].cpu(), layout="NT", accumulator=accumulator)


def table(file: Path) -> str:
    """The newest figures of each product."""
    return page(
        "Products in fixed point",
        "Written by `python -m bench.gpu_fixed --page`. bf16 operands, layout NT; Tflop/s in CUDA graphs, medians,\n"
        "ours, with units and cutting, and cuBLAS bf16 in one run. " + FLOORS,
        "| product | accumulator | tokitai | cuBLAS bf16 | ratio |\n|---|---|--:|--:|--:|",
        file, ("what", "accumulator"),
        lambda r: f"| {r['what']} | `{r['accumulator']}` | {r['tflops']['tokitai']:.0f} | {r['tflops']['cuBLAS']:.0f} "
        f"| {r['of_peer']:.2f} |",
    )  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_fixed", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        RESULTS.with_suffix(".md").write_text(table(options.out))
        return
    target = opened()
    for m, n, k in SIZES:
        a, b = noise(m, k, dtype="bf16"), noise(n, k, dtype="bf16")
        out, other = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        cublas = seconds([partial(torch.mm, a, b.T, out=other)], options.repeats)
        for name in FIXED_BITS:
            call = partial(ops.matmul, a, b, layout="NT", accumulator=name, out=out)
            wrong = differ(call()[:FEW, -FEW:].cpu().contiguous(), of_cpu(a, b, name))
            ours, work = seconds([call], options.repeats), 2.0 * m * n * k
            record = {
                "what": f"{m} x {n} x {k}",
                "accumulator": name, "differ": wrong, "of_peer": round(cublas / ours, 3),
                "tflops": {"tokitai": round(work / ours / 1e12, 1), "cuBLAS": round(work / cublas / 1e12, 1)},
            }  # fmt: skip
            keep(record, target, options.out)
            print(record["what"], name, record["tflops"], record["of_peer"], wrong, flush=True)


if __name__ == "__main__":
    main()
