"""``tokitai check``: what can be said of these certificates?"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..errors import UsageError
from ..evidence import archive
from ..evidence.sign import public_key
from ..lang import Operator
from ..ops import registry
from ..verification.recheck import EXIT_CODES, Checked, check_file, overall
from . import output, parse
from .progress import Bar

SAMPLE = 6  # cases of a certificate that are recomputed, where it is not said how many


def check(
    certificates: Annotated[list[Path], typer.Argument(metavar="CERT", help="Certificates, or folders of them.")],
    rerun: Annotated[bool, typer.Option("--rerun", help="Recompute some cases and what follows from all.")] = False,
    cases: Annotated[int | None, typer.Option(min=0, help=f"How many of each; 0: all. By default {SAMPLE}.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the cases that are recomputed.")] = 0,
    op: Annotated[
        list[str] | None, typer.Option(metavar="FILE.py:NAME", help=f"An operator of your own: {parse.OWN_FILE}.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="PUBLIC.pem", help="Whose signature they must have.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> int:
    """Check certificates of verified kernels. Each is called by what was checked: well-formed, recomputed, signed by.

    Exit code 0: nothing is wrong with what was checked. 1: one is invalid, wrongly signed, or says refuted. 3: one says
    undecided, cannot be read, or is about an operator that is not known here. 2: wrong usage. Without
    --key no signature is checked, without --rerun nothing is recomputed.
    """
    if not rerun and (cases is not None or op or seed):
        raise UsageError("--cases, --seed and --op go with --rerun")
    files = certificates_in(certificates)
    signer = None if key is None else public_key(key)
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as blamed:  # what a user's file prints
        own = _operators(op or ())
        for operator in own.values():
            blamed.enter_context(parse.blame_file_of(operator))
        found: list[Checked] = []
        with Bar(len(files), None if as_json else results) as bar:
            for file in files:
                bar.start(file.name)
                found.append(
                    check_file(
                        file, key=signer, rerun=(SAMPLE if cases is None else cases) if rerun else None, seed=seed,
                        operators={**registry(), **own}, progress=bar.case,
                    )
                )  # fmt: skip
                bar.end(output.checked_text(found[-1]))
    verdict = overall(found)
    if as_json:
        output.print_json({"results": [c.as_json() for c in found], "verdict": verdict})
    return EXIT_CODES[verdict]


def certificates_in(paths: Sequence[Path]) -> list[Path]:
    """The files, and every ``.json`` file and all in archives below the folders, each once. Raises UsageError where
    one is not there or holds none."""
    found = []
    for path in paths:
        if path.is_dir():
            below = sorted(set(_below(path)))
        else:
            below = archive.members(path.parent) if path.name == archive.ARCHIVE else [path]
        if not below:
            raise UsageError(f"{path}: no file below it ends in .json; accepted: certificates, or folders of them")
        if not path.exists() and not archive.holds(path):
            raise UsageError(f"{path}: no such file; accepted: certificates, or folders of them")
        found += below
    return found


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> NoReturn:
        raise UsageError(f"{error.filename}: cannot be listed ({error.strerror}); accepted: a folder that can")

    for here, _, names in os.walk(folder, onerror=refuse):
        yield from (path for name in names if name.endswith(".json") and (path := Path(here, name)).is_file())
        yield from archive.members(here)


def _operators(words: Sequence[str]) -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for word in words:
        operator = parse.operator_named(word)
        if operator.name in found:
            raise UsageError(f"--op {word}: {operator.name} is given twice; accepted: each operator once")
        found[operator.name] = operator
    return found
