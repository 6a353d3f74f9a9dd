"""``python -m bench.adamw``: AdamW over a list of 808 tensors, in turns with PyTorch's fused step and with a copy.

f16 weights and gradients with f32 moments: 22 bytes an element (param 2 + 2, grad 2, moments 4 + 4 twice). PyTorch's
fused AdamW keeps its moments in the format of the weights, so its step moves 14 bytes an element and computes less.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from tokitai import ops
from tokitai.call import bind, prepare_lists
from tokitai.device import cpu

from .timing import Copy, alternate

TENSORS, SEED, BYTES = 808, 0, 22


def main() -> int:
    """Print one JSON object: milliseconds, gigabytes a second, and the fraction of a copy of as many bytes."""
    rng = np.random.default_rng(SEED)
    sizes = [int(n) for n in rng.integers(20_000, 100_001, TENSORS)]
    params = [rng.standard_normal(n).astype(np.float16) for n in sizes]
    grads = [rng.standard_normal(n).astype(np.float16) for n in sizes]
    first, second = ([np.zeros(n, np.float32) for n in sizes] for _ in range(2))
    threads = cpu.default_threads()
    given, scalars, options = bind(ops.adamw, (params, grads, first, second), dict(step=3, lr=1e-3))
    prepared = prepare_lists(ops.adamw, given, options)
    torch.set_num_threads(threads)
    leaves = [torch.from_numpy(p.copy()).requires_grad_() for p in params]
    for leaf, g in zip(leaves, grads, strict=True):
        leaf.grad = torch.from_numpy(g.copy())
    fused = torch.optim.AdamW(leaves, lr=1e-3, weight_decay=0.01, fused=True)
    moved = BYTES * sum(sizes)
    times = alternate(
        {
            "prepared": lambda: prepared(scalars, threads),
            "call": lambda: ops.adamw(params, grads, first, second, step=3, lr=1e-3),
            "copy": Copy(moved, threads),
            "torch fused, f16 moments": fused.step,
        },
        7,
    )
    copy = times["copy"].median
    figures = {
        name: {**t.as_json(), "gb_per_s": round(moved / t.median / 1e9, 2), "of_copy": round(copy / t.median, 2)}
        for name, t in times.items()
    }
    about = {"tensors": TENSORS, "elements": sum(sizes), "bytes": moved, "threads": threads}
    print(json.dumps({**about, "times": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
