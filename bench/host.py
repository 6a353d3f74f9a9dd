"""``python -m bench.host [--against CHECKOUT] [--json]``: microseconds of a warm call on arrays in host memory.

NumPy arrays and torch tensors, for an operator on few rows, a list of 115 tensors and a small product: the work is so
little that the time is the runtime's own. It is the time of one thread on a processor, without what other programs
take. With ``--against`` another checkout is timed too, in turns with this one, each turn a process of its own; the exit
code is 1 where this one's least time is more than 1.05 times the other's. Least times, as a whole process may run on a
slower clock: medians of nine turns of one checkout beside itself differed by up to a third.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tokitai import ops

ROWS, COLS, TENSORS = 4, 64, 115
SETTLING = 0.05  # seconds
BLOCKS = 15
LIMIT = 1.05
HERE = Path(__file__).resolve().parents[1]


def least(call: Callable[[], object], calls: int) -> float:
    """Microseconds a call: the fastest of several blocks, after a while in which caches and clocks settle."""
    settled = time.perf_counter() + SETTLING
    while time.perf_counter() < settled:
        call()
    best = float("inf")
    for _ in range(BLOCKS):
        start = time.thread_time()
        for _ in range(calls):
            call()
        best = min(best, (time.thread_time() - start) / calls)
    return best * 1e6


def calls() -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed: a call, and how many to a block."""
    rng = np.random.default_rng(0)
    found: dict[str, tuple[Callable[[], object], int]] = {}
    x, gamma = rng.standard_normal((ROWS, COLS), np.float32), np.ones(COLS, np.float32)
    weight, ids = rng.standard_normal((COLS, COLS), np.float32), np.arange(ROWS)
    sizes = rng.integers(20, 101, TENSORS).tolist()
    lists = {n: [rng.random(k, np.float32) for k in sizes] for n in ("param", "grad", "exp_avg", "exp_avg_sq")}
    for library, of in (("numpy", lambda a: a), ("torch", torch.from_numpy)):
        a, g, w, i = (of(v) for v in (x, gamma, weight, ids))
        out = of(np.empty_like(x))
        many = {n: [of(v.copy()) for v in values] for n, values in lists.items()}
        rows: dict[str, tuple[Callable[[], object], int]] = {
            "softmax": (partial(ops.softmax, a, threads=1), 100),
            "softmax, out=": (partial(ops.softmax, a, out=out, threads=1), 100),
            "rms_norm": (partial(ops.rms_norm, a, g, eps=1e-6, threads=1), 100),
            "embedding": (partial(ops.embedding, w, i, threads=1), 100),
            "linear": (partial(ops.linear, a, w, threads=1), 20),
            f"adamw, {TENSORS} tensors": (partial(ops.adamw, **many, step=3, lr=1e-3, threads=1), 2),
        }
        found |= {f"{library:6} {row}": timed for row, timed in rows.items()}
    return found


def turn(checkout: Path) -> dict[str, float]:
    """One process that times a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--json"], env=environment, cwd=checkout, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Exit code 1 where a call takes longer than in the other checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output: what this process sees")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, timed in turns")
    parser.add_argument("--turns", type=int, default=5, help="processes of each checkout (default: 5)")
    asked = parser.parse_args()
    if asked.against is None:
        found = {row: least(*timed) for row, timed in calls().items()}
        if asked.json:
            print(json.dumps(found))
        else:
            for row, value in found.items():
                print(f"{row:28} {value:9.2f} us")
        return 0
    here: list[dict[str, float]] = []
    there: list[dict[str, float]] = []
    for _ in range(asked.turns):
        there.append(turn(asked.against.resolve()))
        here.append(turn(HERE))
    slower = False
    for row in here[0]:
        new, old = (min(t[row] for t in turns) for turns in (here, there))
        slower |= new > LIMIT * old
        print(f"{row:28} {new:9.2f} us, {old:9.2f} us there: {new / old:.3f}")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
