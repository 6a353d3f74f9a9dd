"""``python -m bench.torch_host [--against CHECKOUT] [--save]``: microseconds of a warm call of functions and modules of
`tokitai.torch` on small tensors in host memory, beside PyTorch's own.

The work is so little that the time is the host's. Each row is timed in turns with PyTorch's in one process: a call
without a gradient, or a module's forward and backward pass. Both have one thread, whose time on a processor it is, the
least of several blocks. With ``--against`` another checkout is timed too, in turns, each turn a process of its own;
with ``--save`` the table goes to ``bench/results/torch_host.md``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as torchs
from torch import Tensor

from tokitai.backends.cpu.device import describe
from tokitai.torch import functional, nn

BLOCKS, CALLS, WARM = 15, 100, 100
HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "bench/results/torch_host.md"
Call = Callable[[], object]


def rows() -> dict[str, tuple[Call, Call]]:
    """What is timed: of this package and of PyTorch."""
    x, small = torch.randn(8, 64), torch.randn(2, 8)
    gamma, beta, weight, bias = torch.ones(64), torch.zeros(64), torch.randn(8, 8), torch.randn(8)
    ids, table, target = torch.arange(8), torch.randn(64, 64), torch.arange(8)
    return {
        "layer_norm, 8x64": (
            lambda: functional.layer_norm(x, (64,), gamma, beta), lambda: torchs.layer_norm(x, (64,), gamma, beta),
        ),
        "rms_norm, 8x64": (
            lambda: functional.rms_norm(x, (64,), gamma), lambda: torchs.rms_norm(x, (64,), gamma),
        ),
        "softmax, 8x64": (lambda: functional.softmax(x), lambda: torchs.softmax(x, -1)),
        "gelu, 8x64": (lambda: functional.gelu(x), lambda: torchs.gelu(x)),
        "linear, 2x8 by 8x8": (
            lambda: functional.linear(small, weight, bias), lambda: torchs.linear(small, weight, bias),
        ),
        "matmul, 2x8 by 8x8": (lambda: functional.matmul(small, weight), lambda: torch.matmul(small, weight)),
        "embedding, 8 of 64x64": (lambda: functional.embedding(ids, table), lambda: torchs.embedding(ids, table)),
        "cross_entropy, 8x64": (
            lambda: functional.cross_entropy(x, target), lambda: torchs.cross_entropy(x, target),
        ),
        "LayerNorm, forward and backward": (both(nn.LayerNorm(64), x), both(torch.nn.LayerNorm(64), x)),
        "RMSNorm, forward and backward": (both(nn.RMSNorm(64), x), both(torch.nn.RMSNorm(64), x)),
        "Softmax, forward and backward": (both(nn.Softmax(-1), x), both(torch.nn.Softmax(-1), x)),
        "GELU, forward and backward": (both(nn.GELU(), x), both(torch.nn.GELU(), x)),
        "SiLU, forward and backward": (both(nn.SiLU(), x), both(torch.nn.SiLU(), x)),
        "Linear, forward and backward": (both(nn.Linear(8, 8), small), both(torch.nn.Linear(8, 8), small)),
    }  # fmt: skip


def both(module: torch.nn.Module, x: Tensor) -> Call:
    """A forward and a backward pass, with new gradients."""
    x = x.clone().requires_grad_()
    slope, leaves = torch.ones_like(module(x)), [x, *module.parameters()]

    def run() -> None:
        module(x).backward(slope)
        for leaf in leaves:
            leaf.grad = None

    return run


def least(calls: tuple[Call, Call]) -> list[float]:
    """Microseconds of each, the fastest of several blocks in turns."""
    best = [float("inf")] * len(calls)
    for call in calls:
        for _ in range(WARM):
            call()
    for _ in range(BLOCKS):
        for i, call in enumerate(calls):
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            best[i] = min(best[i], (time.thread_time() - start) / CALLS * 1e6)
    return best


def turn(checkout: Path) -> dict[str, list[float]]:
    """One process that times a checkout."""
    environment = {
        **os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "TOKITAI_NUM_THREADS": "1"
    }  # fmt: skip
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def table(here: dict[str, list[float]], there: dict[str, list[float]] | None) -> str:
    """The rows, as a table of Markdown."""
    made = ["| call | " + "before | " * (there is not None) + "tokitai | PyTorch | ratio |"]
    made.append("|---|" + "--:|" * (made[0].count("|") - 2))
    for row, (mine, torch_own) in here.items():
        before = "" if there is None else f"{there[row][0]:.1f} | "
        made.append(f"| {row} | {before}{mine:.1f} | {torch_own:.1f} | {mine / torch_own:.2f} |")
    return "\n".join(made)


def main() -> None:
    """Print the table, or save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output: what this process finds")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, timed in turns")
    parser.add_argument("--turns", type=int, default=3, help="processes of each checkout (default: 3)")
    parser.add_argument("--save", action="store_true", help=f"write {PAGE.relative_to(HERE)}")
    asked = parser.parse_args()
    if asked.json:
        print(json.dumps({row: least(calls) for row, calls in rows().items()}))
        return
    others: list[Any] = []
    mine: list[Any] = []
    for _ in range(asked.turns):
        if asked.against is not None:
            others.append(turn(asked.against.resolve()))
        mine.append(turn(HERE))
    here, there = (
        {row: [min(t[row][i] for t in turns) for i in range(2)] for row in turns[0]} if turns else None
        for turns in (mine, others)
    )
    assert here is not None
    found = table(here, there)
    print(found)
    if asked.save:
        about, before = describe(), "; *before* is the commit that `--against` names" if there else ""
        PAGE.write_text(
            "# Host time of warm calls on small tensors in host memory\n\n"
            f"{about['cpu']}, {about['cores']} cores, PyTorch {torch.__version__}, {datetime.date.today()}. "
            f"Load of the machine: {os.getloadavg()[0]:.1f}. "
            "Microseconds on a processor, one thread, f32, the least of several blocks in turns with PyTorch's: "
            f"`python -m bench.torch_host`{before}.\n\n{found}\n"
        )


if __name__ == "__main__":
    main()
