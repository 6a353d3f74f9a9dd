"""``tokitai replay``: the steps of a recorded run, run again and compared."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnavailableError, UsageError
from . import output


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was recorded.")],
    device: Annotated[str, typer.Option(help="Where its steps run: cpu, cuda, cuda:N.")] = "cpu",
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Steps A to B; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> int:
    """Run recorded training steps again, and compare every bit that was recorded.

    What runs them is the Python function that RUN names, imported from this folder. On several ranks:
    torchrun --standalone --nproc-per-node N -m tokitai replay RUN. Exit code 0: the same bits. 1: other bits, of which
    the first are named. 3: undecided, since something is missing here. 2: wrong usage.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("replay needs PyTorch; accepted: after pip install 'tokitai[torch]'")
    from ..torch import ranks
    from ..torch.replay import replay as run_again

    first, last = _steps(steps)
    with contextlib.redirect_stdout(sys.stderr):  # what the run prints must not mix with results
        try:
            found = run_again(run, ranks.start(device), first, last)
        finally:
            ranks.stop()
    if os.environ.get("RANK", "0") == "0":
        if as_json:
            output.print_json(found.as_json())
        else:
            print(found)
    return found.exit_code


def _steps(given: str | None) -> tuple[int, int | None]:
    """The first step and the last, None where it is the last recorded one. Raises UsageError."""
    if given is None:
        return 1, None
    first, colon, last = given.partition(":")
    try:
        return int(first) if first or not colon else 1, int(last) if last else None if colon else int(first)
    except ValueError:
        raise UsageError(f"--steps {given}; accepted: A:B, A:, :B or A, of whole numbers") from None
