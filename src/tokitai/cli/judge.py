"""``tokitai judge``: a third-party kernel, held against a definition."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..judging import Judgement
from ..judging.judgement import DEVICES, EXPLAIN_SECONDS, SECONDS, TOTAL_SECONDS
from . import output, parse
from .progress import Bar

SHOWN = 3  # failures that are printed; --json has all


def judge(
    kernel: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME", help=f"A function that is called as OP is: {parse.OWN_FILE}."),
    ],
    op: Annotated[str, typer.Option("--op", metavar="OP", help=f"The operator, or {parse.OWN_FILE} of one.")],
    dtype: Annotated[str, typer.Option(help="The storage format.")] = "f32",
    device: Annotated[str, typer.Option(help=f"Of the arrays that it is given: {DEVICES}.")] = "numpy",
    shape: Annotated[str | None, typer.Option(metavar="rows=N,cols=N", help="To try beside the usual ones.")] = None,
    results: Annotated[str | None, typer.Option(metavar="NAME,...", help="The results that it returns.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Draws sizes, scalars and values; drawn itself.")] = None,
    case: Annotated[str | None, typer.Option(metavar="ID", help="Only this case, as a failure names it.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="NAME", help="An optional input not given.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A choice of OP's.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Within which a call must end.")] = SECONDS,
    total_seconds: Annotated[float, typer.Option(min=0.1, help="Within which all must end.")] = TOTAL_SECONDS,
    unconfined: Annotated[bool, typer.Option("--unconfined", help="No sandbox: for a kernel that compiles.")] = False,
    first: Annotated[bool, typer.Option("--first", help="End with the first wrong case.")] = False,
    accept: Annotated[str | None, typer.Option(metavar="MODEL,...", help="What it computes, and is meant to.")] = None,
    explain_seconds: Annotated[float, typer.Option(min=0, help="To look for causes within; 0: not.")] = EXPLAIN_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> int:
    """Judge a third-party kernel: is each element within its rounding-error bound, in whatever order it sums?

    It is called as the operator is, in a sandboxed process: FILE.py is run there. Exit code 0: it is. 1: it is not, or
    it fails. 3: undecided, since a call did not end. 2: wrong usage.
    """
    from ..judging import judge as run

    file, colon, name = kernel.rpartition(":")
    if not colon or not file:
        raise UsageError(f"{kernel}: no kernel; accepted: FILE.py:NAME, a function in a Python file")
    asked = parse.shape_from(shape)
    with contextlib.redirect_stdout(sys.stderr):
        operator = parse.operator_named(op)
        fmt = parse.format_named(operator, dtype)
        variant = parse.variant_of(operator, without or (), option or ())
        with Bar(1) as bar, parse.blame_file_of(operator):
            bar.start(f"{name} as {operator.name} {fmt}")
            made = run(
                (Path(file), name), operator, dtype=fmt, device=device, shape=asked, seed=seed, variant=variant,
                results=None if results is None else [word.strip() for word in results.split(",")], case=case,
                seconds=seconds, total_seconds=total_seconds, unconfined=unconfined, first=first,
                accept=parse.names_from(accept), explain_seconds=explain_seconds,
                progress=bar.case,
            )  # fmt: skip
    typed = [("--dtype", fmt), ("--device", device), ("--shape", shape), ("--results", results)]
    typed += [("--accept", accept)]
    typed += [("--seed", str(made.seed))]
    flags = [f"{flag} {shlex.quote(value)}" for flag, value in typed if value is not None]
    flags += ["--unconfined"] if unconfined else []
    flags += [f"--without {shlex.quote(n)}" for n in without or ()]
    flags += [f"--option {shlex.quote(n)}" for n in option or ()]
    replay = f"tokitai judge {shlex.quote(kernel)} --op {shlex.quote(op)} {' '.join(flags)}"
    if as_json:
        output.print_json(made.as_json())
    else:
        print(judgement_text(made, replay))
    return made.exit_code


def judgement_text(made: Judgement, replay: str) -> str:
    """A judgement for a person: the verdict, the first failures with the line that replays each, what was compared."""
    told: list[tuple[str, str]] = []
    cases = f"{made.cases} case{'s' * (made.cases != 1)}"
    many = f"{len(made.failures)} of {cases} wrong" if made.failures else cases
    what = f"{made.kernel} as {made.operator} {made.dtype} on {made.device}"
    meant = f", with {', '.join(made.accepted)}" if made.accepted else ""
    alone = " at special values alone" if made.special_alone else ""
    lines = [f"{what}{meant}: {made.verdict}{alone}, {many}, seed {made.seed}"]
    for name, s in made.special.items():
        if s.wrong:
            told.append((name, f"{s.wrong} of {s.judged} wrong, in {s.cases} case{'s' * (s.cases != 1)}"))
    told += [("cause" if i == 0 else "", str(c)) for i, c in enumerate(made.causes)]
    for failure in made.failures[:SHOWN]:
        lines += ["", f"  {failure.what}", *([f"  {failure.where}"] if failure.where else [])]
        lines.append(f"  {replay} --case {shlex.quote(failure.case)}")
    if len(made.failures) > SHOWN:
        lines += ["", f"  and {len(made.failures) - SHOWN} more; --json lists all"]
    if made.undecided is not None:
        lines += ["", f"  {made.undecided}"]
    lines += ["", f"{'the bits of the definition':<29}in {made.same_bits} of {cases}, {made.calls} calls"]
    lines.append(f"{'elements judged':<29}{made.judged} of {made.compared}")
    if made.judged:
        share, ulp, of_row = made.share, made.max_ulp_error, made.max_ulp_error_of_row
        lines.append(f"{'largest distance':<29}{share:.3g} of the rounding-error bound, in whatever order")
        lines.append(f"{'largest error':<29}{ulp:.4g} ulp, {of_row:.4g} of the row's largest")
    if made.asked:
        lines.append(f"{'null candidates':<29}{_null_candidates(made)}")
    lines += [f"{name:<29}{said}" for name, said in told]
    lines += [f"{note:<29}{said}" for note, said in made.notes.items()]
    if made.not_shown:
        lines.append(f"{'no case shows the effect of':<29}{', '.join(made.not_shown)}")
    lines += [f"{'containment' if i == 0 else '':<29}{said}" for i, said in enumerate(made.contained)]
    return "\n".join(lines)


def _null_candidates(made: Judgement) -> str:
    """How many results of cases tell a kernel from answers that compute nothing."""
    most = sorted(made.null_candidates.items(), key=lambda item: -item[1])[:3]
    passes = f"; {', '.join(f'{name} pass {count}' for name, count in most)}" if most else ""
    return f"fail {made.told} of {made.asked} results of cases, all of them{passes}"
