"""Verify every operator and format on a GPU, several processes at a time; certificates into a folder.

    python3 -m tools.gpu_verify FOLDER [--option NAME=VALUE] [--processes N] [--seconds S] [OP ...]

First the variant of each operator that has all optional tensors and default options, with a certificate; then the other
variants in f16. With an option only the variants that have it and no other, in each format, all with a certificate.
Prints one line for each, and what was not reached within the time.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
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


def jobs_of(operators: Sequence[str], folder: str, option: str | None = None) -> list[tuple[str, str, int, str | None]]:
    """What `one` is called with, the longest first: of the operators of these names, or of all where there are none.

    Raises UnknownNameError for a name that is no operator, ArgumentError for an option that no variant has.
    """
    from tokitai.errors import ArgumentError
    from tokitai.ops import get, registry
    from tokitai.verification.verdict import variants

    known = [get(n) for n in operators] or list(registry().values())
    made: list[tuple[str, str, int, str | None]] = []
    if option is None:
        made = [(o.name, f, 0, folder) for o in known for f in o.contract.formats]
        made.sort(key=lambda job: "backward" not in job[0])
        return made + [(o.name, "f16", i, None) for o in known for i in range(1, len(variants(o)))]
    wanted = dict([option.split("=", 1)]) if "=" in option else {}
    for o in known:
        for i, v in enumerate(variants(o)):
            if {name: str(value) for name, value in v.options} != wanted:
                continue
            for f in o.contract.formats:
                with contextlib.suppress(ArgumentError):  # an option that the format does not have
                    o.trace(f, v.present, dict(v.options))
                    made.append((o.name, f, i, folder))
    if not made or not wanted:
        raise ArgumentError(f"option {option!r}; accepted: NAME=VALUE of a variant, such as accumulator=fused16")
    return sorted(made, key=lambda job: "backward" not in job[0])


def main() -> int:
    """0 where all that were reached are verified and none was left."""
    from tokitai.errors import UsageError

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--option", metavar="NAME=VALUE")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    try:
        jobs = jobs_of(options.operators, str(options.folder), options.option)
    except UsageError as error:
        parser.error(str(error))
    options.folder.mkdir(parents=True, exist_ok=True)
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
