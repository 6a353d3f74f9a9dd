"""``tokitai report``: one page from certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..evidence.sign import public_key
from . import output


def report(
    certificates: Annotated[
        list[str], typer.Argument(metavar="CERT...", help="Certificates, and folders with certificates below them.")
    ],
    html: Annotated[Path, typer.Option(metavar="FILE", help="Where the page is written.")],
    key: Annotated[Path | None, typer.Option(metavar="PUBLIC.pem", help="Whose signature they must have.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
    ] = False,
) -> int:
    """Write a page for people about certificates: verdicts, errors, coverage, reasons. It needs no network, no script.

    Without --key no signature is checked.

    Exit code 0: all are verified. 1: one is refuted or invalid. 3: one is undecided. 2: wrong usage, or no certificate.
    """
    from ..report import printable
    from ..report import report as write

    content = write(certificates, html, None if key is None else public_key(key))
    for e in content.in_state("invalid"):
        output.note(printable(f"{e.path}: {e.problems[0]}"))
    counts = content.counts
    if as_json:
        invalid = [{"certificate": e.path, "problems": list(e.problems)} for e in content.in_state("invalid")]
        output.print_json({
            "html": str(html), "verdict": content.state, "certificates": len(content.entries),
            **{str(state): number for state, number in counts.items()}, "problems": invalid,
        })  # fmt: skip
    else:
        told = ", ".join(f"{number} {state}" for state, number in counts.items() if number or state == "verified")
        print(f"{html}: {told} of {len(content.entries)}")
    return content.exit_code
