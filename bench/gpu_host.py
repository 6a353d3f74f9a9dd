"""``python -m bench.gpu_host [--json]``: microseconds of host time of a warm call on tensors of torch, beside torch's.

Small tensors, so that the GPU is never behind; the least of several blocks of calls, with one wait for the GPU after
each block. A list is that of 808 parameters. ``--profile OP`` prints where the time of an operator's call goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from tokitai import ops
from tokitai.errors import DeviceMissingError, TokitaiError
from tokitai.runtime.gpu_lists import prepare_on_gpu

ROWS, COLS, TENSORS = 64, 1024, 808
SETTLING = 0.3  # seconds


def least(call: Callable[[], object], calls: int, blocks: int = 20) -> float:
    """Microseconds of host time a call: the fastest block, after a while in which caches and clocks settle."""
    settled = time.perf_counter() + SETTLING
    while time.perf_counter() < settled:
        call()
    best = float("inf")
    for _ in range(blocks):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return best * 1e6


def calls() -> dict[str, dict[str, tuple[Callable[[], object], int]]]:
    """For each row of the table, who is timed: a call, and how many to a block."""
    x = torch.randn(ROWS, COLS, device="cuda", dtype=torch.float16)
    gamma, beta = (torch.randn(COLS, device="cuda", dtype=torch.float16) for _ in range(2))
    y, mean, rstd = ops.layer_norm(x, gamma, beta, eps=1e-5)
    target = torch.randint(0, COLS, (ROWS,), device="cuda")
    rows: dict[str, dict[str, Any]] = {
        "layer_norm": {
            "tokitai": lambda: ops.layer_norm(x, gamma, beta, eps=1e-5),
            "tokitai, out=": lambda: ops.layer_norm(x, gamma, beta, eps=1e-5, out=(y, mean, rstd)),
            "torch": lambda: torch.native_layer_norm(x, [COLS], gamma, beta, 1e-5),
        },
        "layer_norm_backward": {
            "tokitai": lambda: ops.layer_norm_backward(dy=x, x=x, gamma=gamma, mean=mean, rstd=rstd),
            "torch": lambda: torch.ops.aten.native_layer_norm_backward(
                x, x, [COLS], mean[:, None], rstd[:, None], gamma, beta, [True, True, True]
            ),
        },
        "softmax": {
            "tokitai": lambda: ops.softmax(x),
            "tokitai, out=": lambda: ops.softmax(x, out=y),
            "torch": lambda: torch.softmax(x, -1),
        },
        "cross_entropy": {
            "tokitai, checked": lambda: ops.cross_entropy(x, target),
            "tokitai, check=False": lambda: ops.cross_entropy(x, target, check=False),
            "torch": lambda: torch.nn.functional.cross_entropy(x, target),
        },
    }
    table = {row: {who: (call, 100) for who, call in some.items()} for row, some in rows.items()}
    sizes = torch.randint(20, 101, (TENSORS,), generator=torch.Generator().manual_seed(0)).tolist()
    make = {"param": torch.float16, "grad": torch.float16, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    lists = {n: [torch.rand(k, device="cuda").to(dtype) for k in sizes] for n, dtype in make.items()}
    scalars = {p.name: p.default for p in ops.adamw.params if p.default is not None} | {"step": 3, "lr": 1e-3}
    prepared = prepare_on_gpu(ops.adamw, lists, {})
    param, grad, exp_avg, exp_avg_sq = ([x.float() for x in lists[n]] for n in make)
    steps = [torch.ones((), device="cuda") for _ in sizes]

    def theirs() -> None:
        torch._fused_adamw_(
            param, grad, exp_avg, exp_avg_sq, [], steps, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    table[f"adamw, {TENSORS} tensors"] = {
        "tokitai": (lambda: ops.adamw(**lists, step=3, lr=1e-3), 10),
        "tokitai, prepared": (lambda: prepared(scalars), 100),
        "torch, fused, all f32": (theirs, 10),
    }
    return table


def main() -> int:
    """Exit code 3 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--profile", metavar="OP", help="where the time of a row of the table goes")
    asked = parser.parse_args()
    try:
        if not torch.cuda.is_available():
            raise DeviceMissingError("torch finds no CUDA device; accepted: a machine with an NVIDIA GPU")
        table = calls()
        if asked.profile:
            call, count = next(iter(table[asked.profile].values()))
            profile = cProfile.Profile()
            call()
            profile.runcall(lambda: [call() for _ in range(count)])
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)
            return 0
        found = {row: {who: round(least(*x), 2) for who, x in some.items()} for row, some in table.items()}
    except TokitaiError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    about = {"GPU": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0]}
    if asked.json:
        print(json.dumps({**about, "microseconds": found}))
        return 0
    print(", ".join(about.values()))
    for row, some in found.items():
        for who, value in some.items():
            print(f"{row:24} {who:24} {value:9.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
