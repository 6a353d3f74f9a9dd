"""Verify every operator in every format, also on the tensors of a real model:

    python -m examples.real_input

A sentence encoder (all-MiniLM-L6-v2) is run over one page of text, forward and backward; the tensors that meet each
operator on the way join the drawn, hard and structure cases. Certificates are written to out/certificates.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from tokitai.cli.progress import Bar
from tokitai.device.cpu import default_threads
from tokitai.errors import TokitaiError
from tokitai.ops import registry
from tokitai.verification import Verdict
from tokitai.verification.batch import Job, overall, verify_many
from tokitai.verification.verdict import variants

from .sentence_encoder.capture import capture

OUT = Path("out/certificates")
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
ulp       the largest distance from the real result, in units in the last place of that result
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


def gaps(verdicts: Iterable[Verdict], files: dict[str, tuple[Path, ...]]) -> list[str]:
    """What was to be tried and was not, one line each: a verdict over nothing must not look like one."""
    found = [f"{name}: there are real tensors for it, but no such operator" for name in files if name not in registry()]
    for v in verdicts:
        if v.verdict != "verified":
            continue
        tried = {r.name for r in v.results if r.kind == "yours"}
        left_out = [path.name for path in files.get(v.operator, ()) if path.name not in tried]
        left_out += [f"a {kind} case" for kind in ("structure", "hard", "seeded") if kind not in v.evidence]
        found += [f"{v.operator} {v.dtype}: {what} was not tried" for what in left_out]
    return found


def main() -> int:
    """0 where all are verified, 1 where one is refuted or a case is missing, 3 where one is undecided."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        files = by_operator(capture(Path(folder)))
        jobs = [
            Job(o, fmt, files.get(o.name, ()), variants(o)[0])
            for o in registry().values()
            for fmt in o.contract.formats
        ]
        print(f"{HEADER}\n{'-' * len(HEADER)}", flush=True)
        with Bar(len(jobs), sys.stdout) as bar:
            verdicts = verify_many(
                jobs, out=OUT, started=lambda job: bar.start(f"{job.operator.name} {job.dtype}"), progress=bar.case,
                ended=lambda v: bar.end(row(v)), processes=default_threads(),
            )  # fmt: skip
    verdict, missing = overall(verdicts), gaps(verdicts, files)
    seconds, cases = time.perf_counter() - started, sum(v.cases for v in verdicts)
    print(f"\n{LEGEND}\n\n{WHY}\n")
    print(f"{verdict}: {len(verdicts)} verifications, {cases} cases, {seconds:.0f} s")
    print(f"certificates, each as JSON and as Markdown: {OUT}")
    for line in missing:
        print(f"missing: {line}", file=sys.stderr)
    return 1 if missing else next(v.exit_code for v in verdicts if v.verdict == verdict)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
