"""The mutation score: of the wrong programs of every operator, on the CPU and on the simulated device, how many does a
verification refute?

    python -m tests.mutants.score [OPERATOR ...] [--device cpu|sim] [--sample N] [--seconds S] [--out FILE]

A mutant is run on every case of `tokitai verify` that reaches its site: first those over hashes; then, where they do
not refute it and it is not known to be equivalent, those over numbers. What survives those is given to the solver: it
may be wrong at sizes that no case has. Results are kept in FILE as they come: what is in it is not run again. A mutant
that ends its process, or does not end, is refuted as well.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutants.equivalent import SAME_CODE, why_equivalent, why_surely
from tests.mutants.subjects import (
    DTYPE,
    SEED,
    Slip,
    Subject,
    Trial,
    disproved,
    made,
    operator_of,
    remember_oracles,
    set_alive,
)
from tokitai import ops
from tokitai.errors import TokitaiError

DEADLINE = 20  # seconds of a case on a processor, and of one that the right program takes longer for ten times as many
WAITS = 15  # times as long on the clock, for threads that wait for each other, beside whatever else the machine does
FOLDER = Path(__file__).parents[2] / "bench" / "results"
OF_HEADERS = (  # which header is mutated with which operator's kernel
    "softmax/rows.h", "layer_norm_backward/rows.h", "part_sums/rows.h", "layer_norm/many.h", "router/first.h",
    "embedding_backward/segments.h", "matmul/products.h", "matmul/accumulators.h", "grouped_linear/groups.h",
    "matmul accumulator=fused16/matrix_unit.h",
    *(f"matmul accumulator=fixed{bits}/fixed_point.h" for bits in (8, 16, 24)),
    *(f"{name}/attention.h" for name in ("attention", "attention_backward")),
    *(f"{name} accumulator=fused16/attention_steps.h" for name in ("attention", "attention_backward")),
)  # fmt: skip


def results(
    subject: Subject, hashed: bool, trials: Sequence[Trial], slips: Sequence[Slip]
) -> Iterator[tuple[Slip, str | None]]:
    """What refutes each mutant, or None. Each runs in a process of its own, whose memory it may damage."""
    for slip in slips:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(subject, hashed, trials, slip, write)
        os.close(write)
        with os.fdopen(read) as pipe:
            line = pipe.read()
        _, status = os.waitpid(child, 0)
        if line:
            yield slip, json.loads(line)
        else:
            ends = os.WTERMSIG(status) not in (signal.SIGALRM, signal.SIGPROF)
            how = f"ends its process ({status})" if ends else "does not end"
            yield slip, f"the kernel {how}"


def _child(subject: Subject, hashed: bool, trials: Sequence[Trial], slip: Slip, write: int) -> None:
    faulthandler.disable()
    libraries = subject.libraries(hashed)
    for digest, mutant in subject.mutants(slip).items():
        if digest in libraries:
            set_alive(libraries[digest], mutant.number)
    said = None
    for trial in subject.reaching(slip, trials):
        most = int(max(DEADLINE, 10 * trial.seconds))
        signal.setitimer(signal.ITIMER_PROF, most)
        signal.alarm(WAITS * most)
        said = trial.run()
        if said is not None:
            break
    os.write(write, json.dumps(said).encode())
    os._exit(0)


def score(name: str, device: str, sample: int | None, seconds: float) -> dict[str, Any]:
    """How many of a program's mutants are refuted, which are equivalent, and which are neither. Where time runs out,
    fewer mutants are run, and all that were begun are told."""
    started = time.monotonic()
    subject = made(name, device)
    trials = subject.run_all(subject.trials(True), True, seconds / 3)
    every = subject.slips()
    order = every
    if sample is not None and sample < len(every):
        order = [every[i] for i in sorted(random.Random(f"{SEED} {name}").sample(range(len(every)), sample))]
    told = {p: why for p in order if (why := _why(subject, p, why_surely)) is not None}
    refuted, left = 0, []
    for slip, said in results(subject, True, trials, [p for p in order if p not in told]):
        refuted += said is not None
        left += [slip] if said is None else []
        if time.monotonic() - started > seconds:
            break
    run, reached = len(told) + refuted + len(left), {str(p): len(subject.reaching(p, trials)) for p in left}
    known = partial(why_equivalent, device)
    for slip in left:
        if (why := _why(subject, slip, known) or (SAME_CODE if subject.same(slip) else None)) is not None:
            told[slip] = why
    left = [p for p in left if p not in told]
    if left:
        over_numbers = subject.run_all(subject.trials(False), False, seconds / 3)
        for slip, said in list(results(subject, False, over_numbers, left)):
            reached[str(slip)] = reached[str(slip)] + len(subject.reaching(slip, over_numbers))
            if said is not None:
                refuted += 1
                left.remove(slip)
        shown = partial(why_equivalent, device, all_cases=True)
        told |= {p: why for p in left if (why := _why(subject, p, shown)) is not None}
        left = [p for p in left if p not in told]
    by_solver = {str(p): why for p in left if (why := disproved(subject, p)) is not None}
    refuted, left = refuted + len(by_solver), [p for p in left if str(p) not in by_solver]
    return dict(
        mutants=len(every), run=run, refuted=refuted, survivors=[str(p) for p in left], by_solver=by_solver,
        unreached=[str(p) for p in left if not reached[str(p)]],
        equivalent=[dict(mutant=str(p), reason=why) for p, why in told.items()],
        seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip


def _why(subject: Subject, slip: Slip, known: Callable[..., str | None]) -> str | None:
    """The reason for which a mutant is equivalent in every program that has it; None where there is one without."""
    graph = subject.kernel(True).graph
    mutants = [(m, subject.sources[digest][0]) for digest, m in subject.mutants(slip).items()]
    reasons = {known(m, source, subject.operator, graph) for m, source in mutants}
    return None if None in reasons else "; ".join(sorted(str(why) for why in reasons))


def subjects(names: list[str], devices: list[str]) -> Iterator[tuple[str, str]]:
    """The operators, and the headers that are shared, on each device."""
    for device in devices:
        for name in names or sorted(ops.registry()):
            yield name, device
        if device == "cpu":
            yield from ((n, device) for n in OF_HEADERS if not names or operator_of(n) in names)


def main() -> int:
    """Run what is not in the file yet, and write a table beside it. Exit code 1 where something survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", choices=["cpu", "sim"])
    parser.add_argument("--sample", type=int, help="mutants of each program; all by default")
    parser.add_argument("--seconds", type=float, default=600, help="of each program; what is left is told")
    parser.add_argument("--out", type=Path, default=FOLDER / "mutants.json")
    given = parser.parse_args()
    remember_oracles()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, device in subjects(given.operators, [given.device] if given.device else ["cpu", "sim"]):
        key = f"{name} {device}"
        if key in found and not found[key].keys() & {"error", "earlier"}:
            continue
        try:
            found[key] = score(name, device, given.sample, given.seconds)
        except TokitaiError as error:
            found[key] = dict(error=str(error).splitlines()[0])
        print(key, told(found[key]), flush=True)
        given.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        given.out.with_suffix(".md").write_text(table(found))
    return int(any(r.get("survivors") or r.get("error") for r in found.values()))


def told(result: Mapping[str, Any]) -> str:
    """A result in a line."""
    if "error" in result:
        return f"not run: {result['error']}"
    wrong = result["run"] - len(result["equivalent"])
    return (
        f"{result['refuted']}/{wrong} refuted, {len(result['equivalent'])} equivalent, {result['run']} of "
        f"{result['mutants']} run, {result['seconds']} s" + "".join(f"\n    survives: {s}" for s in result["survivors"])
    )


def totals(found: Mapping[str, Any]) -> Iterator[str]:
    """How many of the wrong programs are refuted, on each device."""
    for device in ("cpu", "sim"):
        ran = [r for k, r in found.items() if k.endswith(f" {device}") and not r.keys() & {"error", "earlier"}]
        wrong = sum(r["run"] - len(r["equivalent"]) for r in ran)
        refuted, equivalent = sum(r["refuted"] for r in ran), sum(len(r["equivalent"]) for r in ran)
        run, every = sum(r["run"] for r in ran), sum(r["mutants"] for r in ran)
        yield (
            f"{device}: {refuted:,} of {wrong:,} wrong programs are refuted, {100 * refuted / max(wrong, 1):.2f} %; "
            f"{equivalent:,} more are equivalent; {run:,} of {every:,} mutants were run."
        )


def table(found: Mapping[str, Any]) -> str:
    """All results in Markdown, with survivors and equivalents by name."""
    ran = {k: r for k, r in found.items() if not r.keys() & {"error", "earlier"}}
    lines = [
        "# Mutation score", "",
        f"Made by `make mutants`, in {DTYPE}. Equivalent mutants do nothing else than the right program.", "",
        *(f"- {line}" for line in totals(found)), "",
        "| program | device | refuted | wrong | equivalent | run of all |", "| --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for key, r in sorted(found.items()):
        name, _, device = key.rpartition(" ")
        if "error" in r:
            lines.append(f"| {name} | {device} | not run: {r['error']} | | | |")
        if key not in ran:
            continue
        count = r["run"] - len(r["equivalent"])
        ran_of = f"{r['run']}/{r['mutants']}"
        lines.append(f"| {name} | {device} | {r['refuted']} | {count} | {len(r['equivalent'])} | {ran_of} |")
    earlier = [key for key, r in sorted(found.items()) if "earlier" in r]
    if earlier:
        lines += ["", f"## Not run since mutants are changes in all programs of an operator: {len(earlier)}", ""]
        lines += [", ".join(earlier)]
    survivors = [(k, s) for k, r in sorted(ran.items()) for s in r["survivors"]]
    lines += ["", f"## Survivors: {len(survivors)}", ""]
    for k, s in survivors:
        lines.append(f"- {k}: `{s}`" + ", which no case reaches" * (s in ran[k].get("unreached", ())))
    by_solver = [(k, s, why) for k, r in sorted(ran.items()) for s, why in r.get("by_solver", {}).items()]
    if by_solver:
        lines += ["", f"## Refuted for sizes that no case has, by the solver: {len(by_solver)}", ""]
        lines += [f"- {k}: `{s}`. Not proved: {why}" for k, s, why in by_solver]
    reasons: dict[str, list[str]] = {}
    for key, r in sorted(ran.items()):
        for e in r["equivalent"]:
            reasons.setdefault(e["reason"], []).append(f"{key}: `{e['mutant']}`")
    lines += ["", "## Equivalent", ""]
    for reason, some in sorted(reasons.items()):
        counted = Counter(some)
        lines += [f"### {reason}", "", *(f"- {s}" + f", {n} times" * (n > 1) for s, n in sorted(counted.items())), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
