"""Verify every operator and format on a card, several processes at a time; certificates into a folder.

    python3 -m tools.gpu_verify FOLDER [--processes N] [--seconds S] [OP ...]

First the variant of each operator that has all optional tensors and default options, with a certificate; then the other
variants in f16. Prints one line for each, and what was not reached within the time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path


def one(name: str, dtype: str, number: int, folder: str | None) -> tuple[str, str]:
    """The verdict of one variant, and a line about it."""
    from tokitai import verify
    from tokitai.ops import registry
    from tokitai.verification.verdict import variants

    op = registry()[name]
    v = verify(op, dtype=dtype, device="cuda", variant=variants(op)[number], out=folder)
    error = "" if v.max_ulp_error_of_row is None else f"{v.max_ulp_error_of_row:.4g}"
    structure = sum(r.kind == "structure" for r in v.results)
    line = f"{name:<26}{dtype:<6}{number:>2} {v.verdict:<10}{v.cases:>5} cases {structure:>4} structure {error:>8}"
    return v.verdict, f"{line} {v.seconds:6.1f} s {v.failure or ''}"[:700]


def main() -> int:
    """0 where all that were reached are verified and none was left."""
    from tokitai.ops import registry
    from tokitai.verification.verdict import variants

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    known = {n: o for n, o in registry().items() if not options.operators or n in options.operators}
    jobs: list[tuple[str, str, int, str | None]] = [
        (n, f, 0, str(options.folder)) for n, o in known.items() for f in o.contract.formats
    ]
    jobs.sort(key=lambda job: "backward" not in job[0])  # the longest first
    jobs += [(n, "f16", i, None) for n, o in known.items() for i in range(1, len(variants(o)))]
    started, found, done = time.perf_counter(), {"verified": 0, "refuted": 0, "undecided": 0}, 0
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    pool = ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn"))
    waiting = {pool.submit(one, *job): job for job in jobs}
    try:
        for future in as_completed(waiting, timeout=options.seconds):
            verdict, line = future.result()
            found[verdict] += 1
            done += 1
            print(line, flush=True)
    except TimeoutError:
        for job in (job for future, job in waiting.items() if not future.done()):
            print("not reached:", *job[:3], flush=True)
    print(f"{found}, {done} of {len(jobs)}, {time.perf_counter() - started:.0f} s", flush=True)
    for process in list(getattr(pool, "_processes", {}).values()):
        process.kill()
    return int(found["verified"] < len(jobs))


if __name__ == "__main__":
    sys.exit(main())
