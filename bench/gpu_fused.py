"""``python -m bench.gpu_fused``: products by Hopper's matrix units, with the bits of fused16, beside cuBLAS and torch.

CUDA graphs, medians, both in one run. cuBLAS multiplies the same f16 or bf16 operands; groups are beside
`torch._grouped_mm`, and layers beside the bare product. Each result is first held, to the bit, against our kernels that
take any address. torch multiplies groups of f16 in no graph, so groups are timed in bf16. Figures are added to
bench/results/gpu_fused.jsonl, or to --out; --page writes what that file holds as a table to bench/results/gpu_fused.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tokitai import ops

from .gpu import TORCH
from .gpu_run import keep, opened, page
from .gpu_timing import seconds

RESULTS = Path(__file__).parent / "results" / "gpu_fused.jsonl"
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 1024), (8192, 1024, 4096), (8192, 50304, 1024))
FUSED: dict[str, Any] = {"accumulator": "fused16"}
ROWS, EXPERTS, FEATURES, HIDDEN = 16384, 16, 1024, 4096  # of groups
Case = tuple[str, float, Callable[[], Any], Callable[[], Any], Callable[[], Any]]


def noise(*shape: int, dtype: str) -> Any:
    return torch.randn(*shape, device="cuda").to(TORCH[dtype])


def misaligned(x: Any) -> Any:
    """The same values one element further on, which the copy engine cannot read."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)


def by_other_kernels(op: Any, operands: tuple[Any, ...], *more: Any, **words: Any) -> Any:
    """The result on operands that only the kernels for any address read."""
    return op(*map(misaligned, operands), *more, **words, **FUSED)


def by_torch(operands: tuple[Any, ...], ends: Any) -> Any:
    """torch's grouped product."""
    left, right = operands
    return torch._grouped_mm(left, right, offs=ends)


def products(dtype: str) -> Iterator[Case]:
    """(what, operations, ours, ours by other kernels, the peer's) of dense products in every layout."""
    for m, n, k in SIZES:
        for layout in ("NT", "NN", "TN"):
            a = noise(*((k, m) if layout == "TN" else (m, k)), dtype=dtype)
            b = noise(*((n, k) if layout == "NT" else (k, n)), dtype=dtype)
            left, right = a.T if layout == "TN" else a, b.T if layout == "NT" else b
            out, other = (torch.empty(m, n, device="cuda", dtype=TORCH[dtype]) for _ in range(2))
            yield (
                f"{m} x {n} x {k}, {layout}", 2.0 * m * n * k,
                partial(ops.matmul, a, b, layout=layout, out=out, **FUSED),
                partial(by_other_kernels, ops.matmul, (a, b), layout=layout),
                partial(torch.mm, left, right, out=other),
            )  # fmt: skip


def groups(dtype: str) -> Iterator[Case]:
    """The same of grouped products of about as many rows."""
    counts = torch.randint(EXPERTS, (ROWS,)).bincount(minlength=EXPERTS)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).cuda()
    ends = offsets[1:].to(torch.int32)
    x, w = noise(ROWS, FEATURES, dtype=dtype), noise(EXPERTS, HIDDEN, FEATURES, dtype=dtype)
    dy, work = noise(ROWS, HIDDEN, dtype=dtype), 2.0 * ROWS * FEATURES * HIDDEN
    made: list[tuple[str, Any, Any, Any]] = [
        ("groups, forward", ops.grouped_linear, (x, w), (x, w.transpose(1, 2))),
        ("groups, to the input", ops.grouped_linear_backward_input, (dy, w), (dy, w)),
        ("groups, to the weight", ops.grouped_linear_backward_weight, (dy, x), (dy.T, x)),
    ]
    for what, op, given, peer in made:
        yield (
            what, work,
            partial(op, *given, offsets, check=False, **FUSED),
            partial(by_other_kernels, op, given, offsets),
            partial(by_torch, peer, ends),
        )  # fmt: skip


def layers(dtype: str) -> Iterator[Case]:
    """Epilogues beside the bare product of the same size. Sums have the size of one, as in a model: functions of larger
    numbers take other ways through their code."""
    m, n, k = 8192, 4096, 1024
    x, w, bias, residual = (noise(*s, dtype=dtype) for s in ((m, k), (n, k), (n,), (m, n)))
    w *= k**-0.5
    made: list[tuple[str, Any, Any]] = [
        ("bias", (bias,), {}),
        ("bias and gelu", (bias,), {"activation": "gelu"}),
        ("bias, silu and residual", (bias, residual), {"activation": "silu"}),
    ]
    for what, more, words in made:
        yield (
            f"{m} x {n} x {k} with {what}; peer: bare", 2.0 * m * n * k,
            partial(ops.linear, x, w, *more, **words, **FUSED),
            partial(by_other_kernels, ops.linear, (x, w), *more, **words),
            partial(ops.linear, x, w, **FUSED),
        )  # fmt: skip
    yield (
        f"{m} x {n} x {k} with bias; peer: F.linear", 2.0 * m * n * k,
        partial(ops.linear, x, w, bias, **FUSED), partial(by_other_kernels, ops.linear, (x, w), bias),
        partial(F.linear, x, w, bias),
    )  # fmt: skip


def differ(x: Any, y: Any) -> int:
    """Elements of other bits."""
    return int((x.view(torch.int16) != y.view(torch.int16)).sum())


def table(file: Path) -> str:
    """The newest figures of each product."""
    return page(
        "Products by matrix units",
        "Written by `python -m bench.gpu_fused --page`. Tflop/s in CUDA graphs, medians, ours and the peer's in one\n"
        "run: cuBLAS, `torch._grouped_mm`, or what is named. Bits: elements in which our kernels for aligned operands\n"
        "differ from those for any address, and from the peer (which adds k beyond 4096 as one chain).",
        "| format | product | tokitai | peer | ratio | differ | from the peer |\n|---|---|--:|--:|--:|--:|--:|",
        file, ("dtype", "what"),
        lambda r: f"| {r['dtype']} | {r['what']} | {r['tflops']['tokitai']:.0f} | {r['tflops']['peer']:.0f} "
        f"| {r['of_peer']:.2f} | {r['differ']} | {'' if r['differ_from_peer'] is None else r['differ_from_peer']} |",
    )  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_fused", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        RESULTS.with_suffix(".md").write_text(table(options.out))
        return
    target = opened()
    if not target.warpgroups:
        raise SystemExit(f"{target.device.arch}: no warpgroups with the bits of fused16; accepted: a Hopper GPU")
    for dtype in ("bf16", "f16"):
        for make in (products, groups, layers) if dtype == "bf16" else (products, layers):
            for what, work, ours, others, peer in make(dtype):
                apart = differ(ours(), others())
                from_peer = None if "bare" in what else differ(ours(), peer())
                torch.cuda.empty_cache()
                times = {"tokitai": seconds([ours], options.repeats), "peer": seconds([peer], options.repeats)}
                record = {
                    "what": what, "dtype": dtype,
                    "differ": apart, "differ_from_peer": from_peer,
                    "tflops": {n: round(work / t / 1e12, 1) for n, t in times.items()},
                    "of_peer": round(times["peer"] / times["tokitai"], 3),
                }  # fmt: skip
                keep(record, target, options.out)
                print(dtype, what, record["tflops"], record["of_peer"], apart, from_peer, flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
