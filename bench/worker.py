"""What a worker process costs: a warm request with 1 MB of tensors, and large tensors against a plain copy.

    python -m bench.worker [--gib 1] [--rounds 300]

Each measurement takes turns with what it is compared with: what else the machine does meets both. Medians are given,
and lowest deciles, which say more where other processes take the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tokitai import ops
from tokitai.worker import Pool, call


def in_turns(what: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in order of size, after one call that does not count."""
    times: dict[str, list[float]] = {name: [] for name in what}
    for n in range(rounds + 1):
        for name, function in what.items():
            started = time.perf_counter()
            function()
            if n:
                times[name].append(time.perf_counter() - started)
    return {name: sorted(some) for name, some in times.items()}


def small(pool: Pool, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a softmax over 512 KiB in and 512 KiB out: here, there with copies, there in shared memory."""
    x = np.random.default_rng(0).standard_normal((128, 1024)).astype(np.float32)
    out, there, made = np.empty_like(x), pool.empty(x.shape), pool.empty(x.shape)
    there[...] = x
    found = in_turns(
        {
            "here": lambda: ops.softmax(x, out=out, threads=1),
            "there, copied": lambda: call(pool, ops.softmax, x, out=out, threads=1),
            "there, shared": lambda: call(pool, ops.softmax, there, out=made, threads=1),
            "an empty request": lambda: pool.run("tokitai.worker.entries:nothing"),
        },
        rounds,
    )
    assert made.tobytes() == out.tobytes() == ops.softmax(x).tobytes()
    made_of = {}
    for name, which in (("median", 0.5), ("lowest decile", 0.1)):
        ms = {n: round(1e3 * some[int(which * len(some))], 4) for n, some in found.items()}
        over = {f"over, {n}": round(ms[f"there, {n}"] - ms["here"], 4) for n in ("copied", "shared")}
        made_of[name] = {**ms, **over}
    return made_of


def large(pool: Pool, nbytes: int) -> dict[str, float]:
    """GB/s (bytes read and bytes written) of `scale` from a tensor of so many bytes to another, and of a copy."""
    rows = nbytes // 4096
    found = {}
    for name, empty in (("shared", pool.empty), ("copied", np.empty)):
        started = time.perf_counter()
        x, out = empty((rows, 1024), np.float32), empty((rows, 1024), np.float32)
        found[f"{name}: seconds to make the tensors"] = time.perf_counter() - started
        x[...], out[...] = 1.5, 0
        started = time.perf_counter()
        call(pool, ops.scale, x, out=out, factor=2.0)
        found[f"{name}: first request"] = 2e-9 * nbytes / (time.perf_counter() - started)
        assert (out[:: max(1, rows // 64)] == 3).all() and (out[-1] == 3).all()
        turns = {"copy": partial(np.copyto, out, x), "there": partial(call, pool, ops.scale, x, out=out, factor=2.0)}
        seconds = {which: statistics.median(some) for which, some in in_turns(turns, 5).items()}
        found[f"{name}: a plain copy"] = 2e-9 * nbytes / seconds["copy"]
        found[f"{name}: warm request"] = 2e-9 * nbytes / seconds["there"]
        found[f"{name}: warm request over a plain copy"] = seconds["copy"] / seconds["there"]
        del x, out, turns
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of each of two large tensors")
    parser.add_argument("--rounds", type=int, default=300, help="of the small request")
    chosen = parser.parse_args()
    nbytes = int(chosen.gib * (1 << 30)) // 4096 * 4096
    with Pool(1, deadline=600, keep=3 * nbytes) as pool:
        found = {
            "cores": os.cpu_count(), "load": os.getloadavg()[0], "small, ms": small(pool, chosen.rounds),
            "large, GB/s": large(pool, nbytes),
        }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
