"""Verify several operators and formats, in several processes, or with kernels compiled ahead while the oracle runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..backends import DEFAULT, backend_of
from ..backends.backend import Language
from ..errors import TokitaiError, UsageError
from ..evidence.sign import SigningKey, signing_key
from ..lang import Operator
from ..runtime.compile import kernel_on
from ..runtime.shapes import asked_shape
from ..toolchain.build import Isa
from ..toolchain.process import Stop
from ..worker import Limits, Pool
from .files import case_from_file
from .verdict import Variant, Verdict, variants, verify
from .workers import run_tasks

BUILDS = 2  # compilations at a time
ISOLATED_SECONDS = 600.0  # within which a launch in a worker process ends, builds for a GPU included


@dataclass(frozen=True)
class Job:
    """One verification: an operator in a storage format, with the user's own tensor files and, where not all are
    wanted, the only variant and the id of the only case."""

    operator: Operator
    dtype: str
    inputs: tuple[Path, ...] = ()
    variant: Variant | None = None
    case: str | None = None


def verify_many(
    jobs: Sequence[Job],
    *,
    shape: Mapping[str, int] | None = None,
    device: str = DEFAULT,
    out: Path | str | None = None,
    sign: SigningKey | None = None,
    seed: int = 0,
    compiler: str | None = None,
    isa: Isa | None = None,
    arch: str | None = None,
    case: str | None = None,
    started: Callable[[Job], None] | None = None,
    progress: Callable[[str], None] | None = None,
    ended: Callable[[Verdict], None] | None = None,
    processes: int = 1,
    isolate: bool = False,
) -> list[Verdict]:
    """`verify` for each job, in order. ``started`` and ``ended`` are called with each job, ``progress`` with each case.

    With more ``processes`` than one, cases are not told of, and verdicts hold no kernels. They are forked: one
    process does all where the device does not survive that. ``isolate`` runs kernels in a worker
    process. Every argument is checked before anything is compiled. Raises UsageError for the first that is wrong.
    """
    for job in jobs:
        _check(job, shape, device)
    backend = backend_of(device)
    backend.parts(device, arch)
    key = signing_key(sign, out)
    if not backend.forks(isolate):
        processes = 1
    # A driver needs more of the system than a kernel for the processor, and kernels for GPUs are built over there.
    pool = Pool(1, deadline=ISOLATED_SECONDS, limits=Limits(sandbox=backend.confined)) if isolate else None
    tasks = [
        functools.partial(
            verify, job.operator, shape=shape, dtype=job.dtype, device=device, inputs=job.inputs, out=out, sign=key,
            seed=seed, compiler=compiler, isa=isa, arch=arch, variant=job.variant, case=job.case or case,
            progress=progress if processes < 2 else None, pool=pool,
        )
        for job in jobs
    ]  # fmt: skip
    verdicts = []
    fills = processes < 2 and backend.language is Language.HOST  # kernels for GPUs follow from what a case launches
    ahead = _compiled_ahead(jobs, device, compiler, isa) if fills else nullcontext()
    with ahead, pool or nullcontext():
        found = run_tasks(tasks, processes)
        for job in jobs:
            if started is not None:
                started(job)
            verdicts.append(next(found))
            if ended is not None:
                ended(verdicts[-1])
    return verdicts


def overall(verdicts: Iterable[Verdict]) -> Literal["verified", "refuted", "undecided"]:
    """Refuted where any is; else undecided where any is; else verified. Raises UsageError where there is none."""
    found = {v.verdict for v in verdicts}
    if not found:
        raise UsageError("nothing was verified; accepted: at least one operator and format")
    return "refuted" if "refuted" in found else "undecided" if "undecided" in found else "verified"


def _check(job: Job, shape: Mapping[str, int] | None, device: str) -> None:
    backend_of(device)
    for v in _variants(job):
        job.operator.trace(job.dtype, v.present, dict(v.options))
    asked_shape(job.operator, shape)
    for path in job.inputs:
        case_from_file(job.operator, path, job.dtype)


def _variants(job: Job) -> list[Variant]:
    return variants(job.operator, job.dtype) if job.variant is None else [job.variant]


@contextmanager
def _compiled_ahead(jobs: Sequence[Job], device: str, compiler: str | None, isa: Isa | None) -> Iterator[None]:
    """Fill the build cache from other threads. `verify` takes what is there, and waits for what is under way."""
    pool, stop = ThreadPoolExecutor(BUILDS, thread_name_prefix="tokitai-build"), Stop()
    try:
        for job in jobs:
            for v in _variants(job):
                for structure in (False, True):
                    pool.submit(_fill, job, v, device, compiler, isa, structure, stop)
        yield
    except BaseException:
        stop.now()  # an interrupt does not wait for compilers
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _fill(
    job: Job, v: Variant, device: str, compiler: str | None, isa: Isa | None, structure: bool, stop: Stop
) -> None:  # fmt: skip
    with stop, suppress(TokitaiError):  # `verify` meets the same error, where it can be told
        graph = job.operator.trace(job.dtype, v.present, dict(v.options))
        kernel_on(device, job.operator, graph, structure, compiler, isa)
