"""``python -m bench.gpu_groups``: products of 64 uneven groups on an NVIDIA GPU beside one dense product of the same
arithmetic and torch's grouped products; `dispatch` and `combine` beside a copy.

CUDA graphs, medians, all in one run; TF32 is off. Torch multiplies bf16 by tensor cores where it has a product of
groups, whose sums are other ones; cuBLAS in f32, group by group, has sums of the same width. Figures are added to
bench/results/gpu_groups.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokitai import ops
from tokitai.backends.cuda.target import CudaTarget
from tokitai.lang import Sizes
from tokitai.meaning import bits

from .gpu import TORCH, as_numpy, copy_bandwidth
from .gpu_run import keep, opened
from .gpu_timing import seconds

RESULTS = Path(__file__).parent / "results" / "gpu_groups.jsonl"
ROWS, GROUPS, OUTPUTS, INPUTS = 32768, 64, 4096, 4096
TOKENS, FEATURES, K = 16384, 4096, 2


def uneven(rows: int, groups: int) -> list[int]:
    """Ends of groups of which the largest has many times the rows of the smallest, and one has none."""
    rng = np.random.default_rng(0)
    share = rng.gamma(2.0, size=groups)
    share[groups // 2] = 0
    ends = np.floor(np.cumsum(share) / share.sum() * rows).astype(np.int64)
    ends[-1] = rows
    return [0, *ends.tolist()]


class Run:
    """The products of one layer in groups, on noise, and their peers."""

    def __init__(self, dtype: str, rows: int) -> None:
        torch.manual_seed(0)
        self.dtype, self.rows, self.ends = dtype, rows, uneven(rows, GROUPS)

        def noise(*shape: int) -> Any:
            return torch.randn(shape, device="cuda").to(TORCH[dtype])

        self.x, self.dy, self.w = noise(rows, INPUTS), noise(rows, OUTPUTS), noise(GROUPS, OUTPUTS, INPUTS)
        self.offsets = torch.tensor(self.ends, device="cuda")

    def calls(self) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """Of each grouped product a call, and one of the dense product."""
        x, dy, w, quick = self.x, self.dy, self.w, dict(check=False)
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
        return {
            "forward": (
                partial(ops.grouped_linear, x, w, self.offsets, out=y, **quick),
                partial(ops.linear, x, w[0], out=y, **quick),
            ),
            "to the input": (
                partial(ops.grouped_linear_backward_input, dy, w, self.offsets, out=dx, **quick),
                partial(ops.linear_backward_input, dy, w[0], out=dx, **quick),
            ),
            "to the weight": (
                partial(ops.grouped_linear_backward_weight, dy, x, self.offsets, out=dw, **quick),
                partial(ops.linear_backward_weight, dy, x, out=dw[0], **quick),
            ),
        }

    def equal(self) -> bool:
        """Whether groups have the bits of their products alone, and a row of one has the oracle's."""
        y = ops.grouped_linear(self.x, self.w, self.offsets)
        dw = ops.grouped_linear_backward_weight(self.dy, self.x, self.offsets)
        for g, (a, b) in enumerate(itertools.pairwise(self.ends)):
            if g % 8 and b > a:
                continue
            if not torch.equal(y[a:b], ops.linear(self.x[a:b], self.w[g])):
                return False
            if not torch.equal(dw[g], ops.linear_backward_weight(self.dy[a:b], self.x[a:b])):
                return False
        given = dict(x=as_numpy(self.x[:1]), weight=as_numpy(self.w[:1]), offsets=np.array([0, 1]))
        graph = ops.grouped_linear.trace(self.dtype)
        want = bits.evaluate(graph, given, Sizes(1, OUTPUTS, INPUTS, 1, "r"), {})
        return bool(as_numpy(y[:1]).tobytes() == want["y"].tobytes())

    def peers(self) -> dict[str, Callable[[], Any]]:
        """What torch has for the forward product."""
        x, w = self.x.float(), self.w.float()
        made = torch.empty(self.rows, OUTPUTS, device="cuda")
        parts = [(x[a:b], w[g].T, made[a:b]) for g, (a, b) in enumerate(itertools.pairwise(self.ends)) if b > a]

        def each() -> Any:
            for a, b, c in parts:
                torch.matmul(a, b, out=c)
            return made

        found: dict[str, Callable[[], Any]] = {"cublas f32, group by group": each}
        grouped = getattr(torch, "_grouped_mm", None)
        if grouped is not None and self.dtype == "bf16":
            ends = self.offsets[1:].int()
            found["torch, tensor cores"] = partial(grouped, self.x, self.w.transpose(1, 2), offs=ends)
        return found

    def records(self, target: CudaTarget, repeats: int) -> list[dict[str, Any]]:
        """A record of each product."""
        equal, made = self.equal(), []
        for name, (grouped, dense) in self.calls().items():
            times = {"groups": seconds([grouped], repeats), "dense": seconds([dense], repeats)}
            if name == "forward":
                times |= {n: seconds([call], repeats) for n, call in self.peers().items()}
            operations = 2 * self.rows * OUTPUTS * INPUTS
            made.append({
                "product": name, "dtype": self.dtype,
                "rows": self.rows, "groups": GROUPS, "outputs": OUTPUTS, "inputs": INPUTS, "equal": equal,
                "microseconds": {k: round(v * 1e6, 1) for k, v in times.items()},
                "tflops": {k: round(operations / v / 1e12, 1) for k, v in times.items()},
                "of_dense": round(times["dense"] / times["groups"], 3),
            })  # fmt: skip
            torch.cuda.empty_cache()
        return made


def moves(target: CudaTarget, dtype: str, repeats: int) -> list[dict[str, Any]]:
    """`dispatch` and `combine` beside a copy of as many bytes."""
    torch.manual_seed(0)
    copy, places = copy_bandwidth(target), TOKENS * K
    x = torch.randn(TOKENS, FEATURES, device="cuda").to(TORCH[dtype])
    y = torch.randn(places, FEATURES, device="cuda").to(TORCH[dtype])
    weights = torch.rand(TOKENS, K, device="cuda")
    place = torch.randperm(places, device="cuda").reshape(TOKENS, K)
    order = torch.empty(places, dtype=torch.int64, device="cuda")
    order[place.reshape(-1)] = torch.arange(places, device="cuda") // K
    calls = {
        "dispatch": partial(ops.dispatch, x, order, out=torch.empty_like(y), check=False),
        "combine": partial(ops.combine, y, weights, place, k=K, out=torch.empty_like(x), check=False),
    }
    nbytes = x.element_size() * FEATURES * (places + TOKENS) + 8 * places
    made = []
    for name, call in calls.items():
        took = seconds([call], repeats)
        made.append({
            "operator": name, "dtype": dtype,
            "tokens": TOKENS, "k": K, "cols": FEATURES, "microseconds": round(took * 1e6, 1), "bytes": nbytes,
            "of_copy": round(nbytes / took / copy, 3),
        })  # fmt: skip
    return made


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_groups", description=__doc__)
    parser.add_argument("--dtype", nargs="*", choices=("f16", "bf16", "f32"), default=("bf16", "f32"))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = opened()
    for dtype in options.dtype:
        records = Run(dtype, options.rows).records(target, options.repeats) + moves(target, dtype, options.repeats)
        torch.cuda.empty_cache()
        for record in records:
            keep(record, target, options.out)
            shown = ("operator", "product", "dtype", "equal", "tflops", "of_dense", "microseconds", "of_copy")
            print({k: record[k] for k in shown if k in record}, flush=True)


if __name__ == "__main__":
    main()
