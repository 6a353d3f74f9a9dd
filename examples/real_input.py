"""Verify every operator in every format, also on the tensors of a real model:

    python -m examples.real_input [--device cpu|sim|cuda|cuda:N] [--real]

A sentence encoder (all-MiniLM-L6-v2) is run over one page of text, forward and backward; the tensors that meet each
operator on the way join the drawn, hard and structure cases. Certificates are written to out/certificates, and a page
about them to out/report.html. With --real these tensors are the only cases, and there are no certificates.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tokitai.arrays.device_array import device_named
from tokitai.backends import backend_of
from tokitai.backends.cpu.device import default_threads
from tokitai.cli.progress import Bar
from tokitai.errors import TokitaiError
from tokitai.ops import registry
from tokitai.report import check_installed, report
from tokitai.verification import Verdict
from tokitai.verification.batch import Job, overall, verify_many
from tokitai.verification.files import case_from_file
from tokitai.verification.verdict import variants

from .sentence_encoder.capture import capture

OUT = Path("out/certificates")
PAGE = Path("out/report.html")
KINDS = ("structure", "exhaustive", "hard", "seeded", "list", "yours")
HEADER = (
    f"{'operator':<26}{'format':<7}{'verdict':<11}"
    f"{'struct.':>8}{'all':>5}{'hard':>6}{'drawn':>7}{'lists':>6}{'real':>6}{'gradient':>10}{'ulp':>11}{'of row':>11}"
)
LEGEND = """\
struct.   shapes at which the kernel was shown to evaluate exactly the defined expression, whatever the inputs
all       cases that try all 65,536 values of the format
hard      inputs that have broken kernels before
drawn     inputs drawn from a seed
lists     lists of tensors in one call, empty ones among them
real      tensors of the sentence encoder
gradient  a backward definition was held against the derivative of its forward definition
ulp       the largest distance from the exact value, in units in the last place of that result
of row    the same in units in the last place of the largest result in its row; large only where a whole row cancels"""
WHY = """\
Why one may believe this:
- A case passes only where every result has the same bits as the oracle, which interprets the definition in NumPy and
  shares no code with the kernels. There is no tolerance.
- A structure run computes hashes of expressions in place of numbers, by the same kernel text: a dropped tail, a wrong
  index or another order of summation gives another hash for any input, so that no lucky input can hide it.
- Results are poisoned before each run and lie between guard zones; runs are repeated with other thread counts,
  alignments, row gaps and batch splits, and every one must have the same bits.
- The definition itself is held against a textbook formula in extended precision: the last two columns.
Every optional tensor was given and options were at their defaults; `tokitai verify --all` tries the others as well.
What it does not show: see "Not claimed" in each certificate."""


def by_operator(files: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    """The files `<operator>.<site>.safetensors` of each operator."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        found[path.name.partition(".")[0]].append(path)
    return {name: tuple(paths) for name, paths in found.items()}


def row(v: Verdict) -> str:
    """A verdict as a row below HEADER; what failed, or is missing, on a line of its own."""
    count = Counter(r.kind for r in v.results)
    structure, every, hard, drawn, lists, real = (count[kind] or "" for kind in KINDS)
    of_result, of_row = ("" if e is None else f"{e:.4g}" for e in (v.max_ulp_error, v.max_ulp_error_of_row))
    text = (
        f"{v.operator:<26}{v.dtype:<7}{v.verdict:<11}{structure:>8}{every:>5}{hard:>6}{drawn:>7}{lists:>6}{real:>6}"
        f"{'checked' if v.derivative else '':>10}{of_result:>11}{of_row:>11}"
    )
    return text if v.failure is None else f"{text}\n  {v.failure}"


def gaps(
    verdicts: Iterable[Verdict], files: dict[str, tuple[Path, ...]],
    kinds: Sequence[str] = ("structure", "hard", "seeded"),
) -> list[str]:  # fmt: skip
    """What was to be tried and was not, one line each: a verdict over nothing must not look like one."""
    found = [f"{name}: there are real tensors for it, but no such operator" for name in files if name not in registry()]
    several: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for v in verdicts:
        several[v.operator, v.dtype].append(v)
    for (name, dtype), of_one in several.items():
        if any(v.verdict != "verified" for v in of_one):
            continue
        tried = {r.name for v in of_one for r in v.results if r.kind == "yours"}
        left_out = [path.name for path in files.get(name, ()) if path.name not in tried]
        left_out += [f"a {kind} case" for kind in kinds if not any(kind in v.evidence for v in of_one)]
        found += [f"{name} {dtype}: {what} was not tried" for what in left_out]
    return found


def every_case(files: dict[str, tuple[Path, ...]]) -> Iterator[Job]:
    """Each operator and format, on all cases."""
    for o in registry().values():
        for fmt in o.contract.formats:
            yield Job(o, fmt, files.get(o.name, ()), variants(o)[0])


def real_cases(files: dict[str, tuple[Path, ...]]) -> Iterator[Job]:
    """Each file in each format, and nothing else."""
    for o in registry().values():
        for path in files.get(o.name, ()):
            for fmt in o.contract.formats:
                yield Job(o, fmt, (path,), variants(o)[0], case_from_file(o, path, fmt)[1].id)


def check_device(device: str) -> None:
    """Raises UnknownNameError, and DeviceMissingError where there is no such GPU. That is found out in a process of
    its own: one that has used CUDA cannot fork others that do."""
    if backend_of(device).name == "cuda":
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            pool.submit(_open, device).result()


def _open(device: str) -> None:
    device_named(device)


def main(words: Sequence[str] = ()) -> int:
    """0 where all are verified, 1 where one is refuted or a case is missing, 3 where one is undecided."""
    parser = argparse.ArgumentParser(prog="python -m examples.real_input", description="Verify every operator.")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, cuda:N, or sim: GPU text on the CPU")
    parser.add_argument("--real", action="store_true", help="only the tensors of the model; no certificates")
    asked = parser.parse_args(words)
    check_device(asked.device)
    if not asked.real:
        check_installed()  # said before the work, not after it
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        files = by_operator(capture(Path(folder)))
        jobs = list(real_cases(files) if asked.real else every_case(files))
        print(f"{HEADER}\n{'-' * len(HEADER)}", flush=True)
        with Bar(len(jobs), sys.stdout) as bar:
            verdicts = verify_many(
                jobs, device=asked.device, out=None if asked.real else OUT,
                started=lambda job: bar.start(f"{job.operator.name} {job.dtype}"), progress=bar.case,
                ended=lambda v: bar.end(row(v)), processes=default_threads(),
            )  # fmt: skip
    verdict = overall(verdicts)
    missing = gaps(verdicts, files, ()) if asked.real else gaps(verdicts, files)
    seconds, cases = time.perf_counter() - started, sum(v.cases for v in verdicts)
    print(f"\n{LEGEND}\n\n{WHY}\n")
    print(f"{verdict} on {asked.device}: {len(verdicts)} verifications, {cases} cases, {seconds:.0f} s")
    if not asked.real:
        print(f"certificates, each as JSON and as Markdown: {OUT}")
        written = [v.certificate for v in verdicts if v.certificate is not None]
        if written:
            report(written, PAGE)
            print(f"the same as one page, with pictures: {PAGE}")
    for line in missing:
        print(f"missing: {line}", file=sys.stderr)
    return 1 if missing else next(v.exit_code for v in verdicts if v.verdict == verdict)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
