"""``tokitai bench``: time operators, keep the figures, show them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ArgumentError
from . import output, parse
from .progress import Bar

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")]


def bench(
    operators: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help=f"Operators, or {parse.OWN_FILE}; all on rows."),
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="torch", help="Time its counterparts in turns.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="f16, bf16 or f32; all by default.")] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="ROWSxCOLS", help="In place of the usual shapes.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of both sides.")] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of calls, in turns; the median counts.")] = 9,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where records are added, one a line.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="A plot: .png, .svg or .pdf.")] = None,
    as_json: Json = False,
) -> int:
    """Time operators on this machine, in turns with a copy of as many bytes and with PyTorch's counterparts."""
    # Two OpenMP runtimes share the processors, PyTorch's and tokitai's: threads that wait must not keep them busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from ..backends.cpu import device as cpu
    from ..bench import measure, report, workload
    from ..toolchain import folders

    cpu.check_threads(threads, "--threads")
    chosen = measure.check_peer(against, [parse.operator_named(name) for name in operators or []])
    formats = {o: [f for name in dtype or workload.FORMATS for f in parse.formats_of(o, name)] for o in chosen}
    asked = None if not shape else [shape_named(text) for text in shape]
    shapes = {o: workload.shapes_of(o, asked) for o in chosen}
    if plot is not None:
        report.check_plot(plot)
    try:
        kept = out or folders.user_state_folder() / "bench.jsonl"
    except ArgumentError as error:
        raise ArgumentError(f"{error}, or --out") from error
    check_kept(kept)
    jobs = [(o, fmt, s) for o in chosen for fmt in formats[o] for s in shapes[o]]
    records = []
    with Bar(len(jobs)) as bar:
        for o, fmt, s in jobs:
            bar.start(f"{o.name} {fmt}")
            with parse.blame_file_of(o):
                record = measure.measure(o, fmt, s, threads or cpu.default_threads(), blocks, against)
            report.append([record], kept)
            records.append(record)
            bar.end("")
    if plot is not None:
        report.plot(records, plot)
    output.note(f"records: {kept}")
    if as_json:
        output.print_json({"results": records})
    else:
        print(report.table(records, head=""))
    return 0


def shape_named(text: str) -> tuple[int, int]:
    """``4096x1024`` as rows and columns. Raises ArgumentError."""
    found = re.fullmatch(r"([1-9]\d{0,17})x([1-9]\d{0,17})", text, flags=re.ASCII)
    if found is None:
        raise ArgumentError(f"--shape {text!r}; accepted: ROWSxCOLS, each at least 1")
    return int(found[1]), int(found[2])


def check_kept(path: Path) -> None:
    """The file can be added to. Raises ArgumentError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise ArgumentError(f"--out {path}: cannot be written ({error}); accepted: a file that can") from error
