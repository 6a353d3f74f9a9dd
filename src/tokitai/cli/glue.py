"""``tokitai glue``: whether the sections of checkpoints agree, and the whole of which they are parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..backends.cpu.device import default_threads
from ..errors import ArgumentError, UsageError
from ..evidence.check import printable
from . import output
from .transfer import Transfer

SHOWN = 20  # findings that are printed; --json has all


def glue(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(metavar="CHECKPOINT...", help="Safetensors files, cover files, folders of shards."),
    ],
    out: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Where the whole is written.")] = None,
    same: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NAME", help="Two names of one tensor, such as a shared weight.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="How many; by default one for each processor.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
    ] = False,
) -> int:
    """Glue the parts of tensors that ranks hold: FSDP and tensor-parallel shards, replicas, windows, shared weights.

    Parts that hold the same elements must have the same bits, and together they must hold all. The digest that is
    printed does not depend on how tensors were cut.

    Exit code 0: glued. 1: an obstruction, which is named to the element. 2: wrong usage, or a file that is truncated or
    no checkpoint.
    """
    from ..glue import Obstruction, read, renamed
    from ..glue import glue as join

    names = dict(_names(text) for text in same or ())
    if out is not None and any(out.resolve() == path.resolve() for path in checkpoints):
        raise UsageError(f"--output {out}: is read; accepted: another file")
    checkpoint = read(*checkpoints)
    with Transfer() as bar:
        result = join(
            renamed(checkpoint.sections, names), into=out, arrays=False, threads=threads or default_threads(),
            progress=bar.progress,
        )  # fmt: skip
    others = list(checkpoint.others)
    if others:
        output.note(f"not compared, since they are no tensors: {printable(', '.join(others))}")
    if isinstance(result, Obstruction):
        if as_json:
            output.print_json({"verdict": "obstruction", **result.as_json(), "not_tensors": others})
        else:
            lines = result.lines
            print("\n".join(lines[:SHOWN]))
            if len(lines) > SHOWN:
                print(f"... and {len(lines) - SHOWN} more; --json has all")
            for ranks in result.classes:
                print(f"agree among themselves: {printable(', '.join(ranks))}")
        return 1
    if result.inferred:
        output.note(
            f"{len(result.inferred)} tensors end where their last section does, since no file gives their shapes: a "
            "missing last section cannot be noticed"
        )
    if as_json:
        tensors = [{"tensor": t.tensor, "dtype": t.dtype, "shape": t.shape, "digest": t.digest} for t in result.tensors]
        output.print_json({
            "verdict": "glued", "digest": result.digest, "tensors": tensors, "inferred": result.inferred,
            "output": None if out is None else str(out), "not_tensors": others,
        })  # fmt: skip
    else:
        count = len(result.tensors)
        where = f", written to {printable(str(out))}" if out is not None else ""
        print(f"{result.digest}  {count} tensor{'s' * (count != 1)}{where}")
    return 0


def _names(text: str) -> tuple[str, str]:
    """The two sides of ``--same``."""
    name, equals, other = text.partition("=")
    if not (name and equals and other):
        raise ArgumentError(f"--same {text!r}; accepted: NAME=NAME")
    return name, other
