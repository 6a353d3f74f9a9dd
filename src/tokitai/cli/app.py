"""The commands, each thin: parse, call, print."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..backends import DEFAULT, accepted, places
from ..backends.cpu.device import default_threads
from ..errors import UsageError
from ..evidence.sign import private_key
from ..numerics import NUMERICS_VERSION, VERSION
from ..ops import registry
from ..runtime.shapes import asked_shape
from ..verification.batch import Job, overall, verify_many
from ..verification.verdict import Verdict
from . import output, parse
from .bench import bench
from .check import check
from .glue import glue
from .judge import judge
from .kernel import kernel
from .progress import Bar
from .prove import prove
from .replay import replay
from .report import report

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Numerical kernels whose results are defined to the last bit, and the evidence that they have those bits.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")]
OperatorArgument = Annotated[str | None, typer.Argument(metavar="OP", help=f"An operator, or {parse.OWN_FILE}.")]
Without = Annotated[list[str] | None, typer.Option(metavar="NAME", help="An optional input that is not given.")]
Arch = Annotated[str | None, typer.Option(help="An architecture, of a device that has several; gfx942, say.")]
Options = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A choice of the definition's.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"tokitai {VERSION}, numerics {NUMERICS_VERSION}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions of code and bits.")
    ] = False,
) -> None:
    """What goes ahead of every command."""


class Part(StrEnum):
    """What ``show`` shows."""

    definition = "definition"
    graph = "graph"
    plan = "plan"
    source = "source"


@app.command()
def ops(as_json: Json = False) -> int:
    """List the operators, their inputs, contracts and devices."""
    from .describe import operator_json, operator_text

    operators = registry().values()
    if as_json:
        output.print_json({"operators": [operator_json(o) for o in operators]})
    else:
        print("\n\n".join(operator_text(o) for o in operators))
    return 0


@app.command()
def doctor(as_json: Json = False) -> int:
    """Say what can be verified on this machine, and what is missing. Exit code 3 where the cpu does not work."""
    from .doctor import examine, report_text

    report = examine()
    if as_json:
        output.print_json(report)
    else:
        print(report_text(report))
    return 0 if report["devices"][DEFAULT]["works"] else 3


@app.command()
def show(
    operator: Annotated[str, typer.Argument(metavar="OP", help=f"An operator, or {parse.OWN_FILE}.")],
    what: Annotated[list[Part] | None, typer.Option(help="The parts to show; all where none is named.")] = None,
    device: Annotated[str, typer.Option(help=f"Of the plan and the source: {', '.join(sorted(places()))}.")] = DEFAULT,
    dtype: Annotated[str, typer.Option(help="The storage format.")] = "f32",
    shape: Annotated[str | None, typer.Option(metavar="rows=N,cols=N", help="Of the schedule for a GPU.")] = None,
    arch: Arch = None,
    without: Without = None,
    option: Options = None,
) -> int:
    """Show an operator's definition, its graph, its plan and the source of its kernel."""
    from .describe import part_text

    op = parse.operator_named(operator)
    fmt = parse.format_named(op, dtype)
    variant = parse.variant_of(op, without or (), option or ())
    parts = [p.value for p in what or Part]
    asked = asked_shape(op, parse.shape_from(shape))
    with parse.blame_file_of(op):
        texts = {part: part_text(op, part, device, fmt, variant, asked, arch) for part in parts}
    print("\n\n".join(t if len(texts) == 1 else f"---- {part} ----\n{t}" for part, t in texts.items()))
    return 0


@app.command()
def verify(
    operator: OperatorArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every operator, in every format of its contract.")] = False,
    device: Annotated[str, typer.Option(help=f"{', '.join(accepted())}; sim runs GPU source on the CPU.")] = DEFAULT,
    shape: Annotated[str | None, typer.Option(metavar="rows=N,cols=N", help="In place of the usual shapes.")] = None,
    dtype: Annotated[str | None, typer.Option(help="f16, bf16, f32 or all (the default).")] = None,
    inputs: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Tensors: .safetensors, .npz.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for certificates.")] = None,
    sign: Annotated[Path | None, typer.Option(metavar="KEY.pem", help="Signs the certificates.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the seeded cases.")] = 0,
    case: Annotated[str | None, typer.Option(metavar="ID", help="Only this case, as a failure names it.")] = None,
    without: Without = None,
    option: Options = None,
    compiler: Annotated[str | None, typer.Option(help="A C++ compiler: a name or a path.")] = None,
    isa: Annotated[str | None, typer.Option(help="An instruction set; the widest one here by default.")] = None,
    arch: Arch = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Run kernels in a process of their own.")] = False,
    as_json: Json = False,
) -> int:
    """Verify that kernels compute their definitions, bit for bit.

    Exit code 0: verified. 1: refuted. 3: undecided, since something is missing here. 2: wrong usage. Kernels of the
    device hip are compiled and inspected, and their source runs on the CPU: it may be refuted, else it stays undecided.
    """
    if (operator is None) is not every:
        raise UsageError("verify takes one of: the name of an operator, FILE.py:NAME, --all")
    if every and (inputs or case or without or option):
        raise UsageError("--inputs, --case, --without and --option go with one operator, not with --all")
    if case and dtype in (None, "all"):
        raise UsageError("--case goes with one format; add --dtype")
    if sign and case and out is None:
        raise UsageError("--sign with --case, which writes no certificate; add --out")
    key = None if sign is None else private_key(sign)
    asked, chosen_isa = parse.shape_from(shape), parse.isa_named(isa)
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what a user's file prints must not mix with results
        operators = list(registry().values()) if operator is None else [parse.operator_named(operator)]
        jobs = [
            Job(o, fmt, tuple(inputs or ()), parse.variant_of(o, without or (), option or ()))
            for o in operators
            for fmt in parse.formats_of(o, dtype)
        ]
        # The replay of one case must not take the place of a verification's certificate.
        folder = None if case and out is None else parse.folder_for_certificates(out)
        said = _as_typed(operator, compiler, isa, arch, inputs)
        with Bar(len(jobs), None if as_json else results) as bar, parse.blame_file_of(operators[0]):
            verdicts = verify_many(
                jobs, shape=asked, device=device, out=folder, sign=key, seed=seed, compiler=compiler, isa=chosen_isa,
                arch=arch, case=case,
                started=lambda job: bar.start(f"{job.operator.name} {job.dtype}"),
                progress=bar.case,
                ended=lambda verdict: bar.end(output.verdict_text(said(verdict))),
                processes=default_threads() if every else 1, isolate=isolate,
            )  # fmt: skip
    if any(v.certificate for v in verdicts):
        output.note(f"certificates: {folder}")
    verdict = overall(verdicts)
    if as_json:
        one = len(verdicts) == 1 and not every and dtype not in (None, "all")
        found = [v.as_json() for v in verdicts]
        output.print_json(found[0] if one else {"results": found, "verdict": verdict})
    return next(v.exit_code for v in verdicts if v.verdict == verdict)


app.command()(judge)
app.command()(bench)
app.command()(check)
app.command()(glue)
app.command()(kernel)
app.command()(prove)
app.command()(replay)
app.command()(report)


def _as_typed(
    operator: str | None, compiler: str | None, isa: str | None, arch: str | None, inputs: list[Path] | None
) -> Callable[[Verdict], Verdict]:
    """Completes a verdict's replay line with what the user typed: the file of the operator, compiler, tensor files."""
    flags = [("--compiler", compiler), ("--isa", isa), ("--arch", arch), *(("--inputs", str(p)) for p in inputs or ())]
    extra = "".join(f" {flag} {shlex.quote(value)}" for flag, value in flags if value is not None)

    def complete(verdict: Verdict) -> Verdict:
        start = f"tokitai verify {verdict.operator} "
        if verdict.failure is not None and verdict.failure.startswith(start):
            name = shlex.quote(operator) if operator is not None else verdict.operator
            verdict.failure = f"tokitai verify {name}{extra} {verdict.failure.removeprefix(start)}"
        return verdict

    return complete
