"""``python -m bench.gpu_attention [--quick] [--units] [--repeats N]``: attention on an NVIDIA GPU beside torch's own.

Milliseconds (the fastest of calls that take turns), operations a second as a part of those of cuBLAS's product in f32
in the same run, and whether one head has the bits that the same call gives on the CPU. TF32 is off; torch multiplies
16-bit formats by tensor cores, whose sums have an order of their own, so its times there are those of another function.
``--quick``: the first shape in f16 with a mask. ``--units``: with the accumulator fused16, by matrix units, in bf16 and
with a causal mask, beside torch's FLASH and cuDNN backends; with --quick the first of its shapes. Figures are added to
bench/results/gpu_attention.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokitai import ops

from .gpu import TORCH
from .gpu_run import keep, opened
from .gpu_timing import between_events

RESULTS = Path(__file__).parent / "results" / "gpu_attention.jsonl"
SHAPES = ((8, 12, 1024, 64), (2, 16, 4096, 128), (1, 12, 128, 64))  # sentences, heads, tokens, dimension
UNITS = ((8, 16, 4, 1024, 64), (4, 16, 16, 4096, 128), (2, 32, 8, 8192, 128))  # with heads of keys
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
Calls = dict[str, Callable[[], object]]


def fastest(calls: Calls, repeats: int) -> dict[str, float]:
    """Milliseconds; the first call of each does not count."""
    best = dict.fromkeys(calls, float("inf"))
    for i in range(repeats + 1):
        for name, call in calls.items():
            if i:
                best[name] = min(best[name], 1e3 * between_events(call))
            else:
                call()
    return {name: round(ms, 4) for name, ms in best.items()}


def same(on_gpu: tuple[torch.Tensor, ...], on_cpu: tuple[torch.Tensor, ...]) -> bool:
    """Whether the bits of the first head are equal."""
    return all(torch.equal(a[:1, :1].cpu(), b) for a, b in zip(on_gpu, on_cpu, strict=True))


def ceiling(repeats: int) -> float:
    """Operations a second of cuBLAS in f32, in 10^12: what can be reached without tensor cores."""
    n = 4096
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    return 2 * n**3 / fastest({"cublas": lambda: a @ b}, repeats)["cublas"] / 1e9


def measure(
    dtype: str, shape: tuple[int, int, int, int], causal: bool, repeats: int, most: float
) -> list[dict[str, object]]:
    """Forward and backward; ``most`` is the ceiling."""
    sentences, heads, tokens, dim = shape
    torch.manual_seed(0)
    q, k, v, dy = (torch.randn(sentences, heads, tokens, dim, device="cuda").to(TORCH[dtype]) for _ in range(4))
    limit = None
    if causal:
        limit = torch.arange(1, tokens + 1, device="cuda", dtype=torch.int32).expand(q.shape[:3]).contiguous()
    words = dict(scale=dim**-0.5)

    def one(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
        return [t[:1, :1].cpu() for t in tensors if t is not None]

    made = ops.attention(q, k, v, limit, **words)
    _, top, total = made
    equal = {"forward": same(made, ops.attention(*one(q, k, v, limit), **words))}
    back = ops.attention_backward(dy, q, k, v, top, total, limit, **words)
    equal["backward"] = same(back, ops.attention_backward(*one(dy, q, k, v, top, total, limit), **words))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention
    kept = theirs(leaves[0], leaves[1], leaves[2], is_causal=causal)
    calls: dict[str, Calls] = {
        "forward": {
            "tokitai": lambda: ops.attention(q, k, v, limit, check=False, **words),
            "torch": lambda: theirs(q, k, v, is_causal=causal),
        },
        "backward": {
            "tokitai": lambda: ops.attention_backward(dy, q, k, v, top, total, limit, check=False, **words),
            "torch": lambda: torch.autograd.grad(kept, leaves, dy, retain_graph=True),
        },
    }
    found: list[dict[str, object]] = []
    for name, of in calls.items():
        products = {"forward": 2, "backward": 5}[name]  # that the definition needs
        operations = 2 * products * sentences * heads * tokens * tokens * dim / (2 if causal else 1)
        ms = fastest(of, repeats)
        about_it = dict(dtype=dtype, causal=causal, direction=name, shape=shape, equal=equal[name], ms=ms)
        rate = operations / ms["tokitai"] / 1e9
        found.append(about_it | {"tflops": round(rate, 2), "of_ceiling": round(rate / most, 3)})
    return found


def peers(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dy: torch.Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of a backend of torch's, with a causal mask."""

    def forward() -> torch.Tensor:
        with sdpa_kernel(BACKENDS[name]):
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    kept = forward()
    return forward, lambda: torch.autograd.grad(kept, (q, k, v), dy, retain_graph=True)


def by_units(shape: tuple[int, int, int, int, int], repeats: int) -> list[dict[str, object]]:
    """Forward and backward by matrix units; 10^12 operations a second, and the relative distance from f64 of one
    head's results, for each."""
    batch, heads, shared, tokens, dim = shape
    torch.manual_seed(0)
    q, dy = (torch.randn(batch, heads, tokens, dim, device="cuda").to(torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(batch, shared, tokens, dim, device="cuda").to(torch.bfloat16) for _ in range(2))
    limit = torch.arange(1, tokens + 1, device="cuda", dtype=torch.int32).expand(q.shape[:3]).contiguous()
    words: dict[str, Any] = dict(scale=dim**-0.5, accumulator="fused16", check=False)
    y, top, total = ops.attention(q, k, v, limit, **words)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    calls: dict[str, Calls] = {
        "forward": {"tokitai": lambda: ops.attention(q, k, v, limit, **words)},
        "backward": {"tokitai": lambda: ops.attention_backward(dy, q, k, v, top, total, limit, **words)},
    }
    for name in BACKENDS:
        calls["forward"][name], calls["backward"][name] = peers(name, leaves[0], leaves[1], leaves[2], dy)
    wide = [x[:1, :1].double() for x in (q, k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(wide[0], wide[1], wide[2], is_causal=True)
    made = {"tokitai": y} | {n: calls["forward"][n]() for n in BACKENDS}
    error = {n: float((x[:1, :1].detach().double() - exact).norm() / exact.norm()) for n, x in made.items()}
    found: list[dict[str, object]] = []
    for direction, of in calls.items():
        operations = {"forward": 2, "backward": 5}[direction] * batch * heads * tokens * tokens * dim
        rates = {n: round(operations / ms / 1e9, 1) for n, ms in fastest(of, repeats).items()}
        record: dict[str, object] = dict(
            dtype="bf16", accumulator="fused16", causal=True, direction=direction, shape=shape
        )
        found.append(record | {"tflops": rates} | ({"error": error} if direction == "forward" else {}))
    return found


def main() -> None:
    """Each format with and without a causal mask."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_attention", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--units", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = opened()

    def kept(record: dict[str, object]) -> None:
        keep(record, target, options.out)
        print(record, flush=True)

    if options.units:
        for of_units in UNITS[: 1 if options.quick else None]:
            for record in by_units(of_units, options.repeats):
                kept(record)
        return
    most = ceiling(options.repeats)
    for shape in SHAPES[: 1 if options.quick else None]:
        for dtype in ("f16", "f32", "bf16") if shape == SHAPES[0] and not options.quick else ("f16",):
            for causal in (True,) if options.quick else (True, False):
                for record in measure(dtype, shape, causal, options.repeats, most):
                    kept(record)


if __name__ == "__main__":
    main()
