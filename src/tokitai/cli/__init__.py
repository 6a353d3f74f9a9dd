"""The command line: parse, call, print.

Standard output carries results and nothing else; progress and notes go to standard error. With ``--json`` standard
output is one JSON object, also where something is wrong.

Exit codes: 0 verified or valid, 1 refuted or invalid, 3 undecided (something is missing here), 2 wrong usage, 70 a
fault of tokitai's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from ..errors import TokitaiError

FAULT = 70  # EX_SOFTWARE: must not be taken for "refuted"
INTERRUPTED = 130  # as shells count: 128 and the number of SIGINT
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def main() -> None:
    """The command ``tokitai``."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `tokitai show ... | head` ends quietly
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupted)
    _take_closed_streams()
    code = run(sys.argv[1:])
    with contextlib.suppress(OSError):  # told already; at exit it would be once more, and change the code
        sys.stdout.close()
    sys.exit(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """What Ctrl-C does: as by default, but from here on a pipe to a process that has ended as well ends nothing."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _take_closed_streams() -> None:
    """Standard streams that whoever started this process has closed: no file that is opened later may take their
    numbers. What is printed as a result fails, as it is lost; notes do not."""
    wrong_way = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}
    for descriptor, flags in wrong_way.items():
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Nothing that a user can cause raises."""
    from .app import app
    from .output import report_error

    as_json = "--json" in arguments
    try:
        code = app(args=list(arguments), prog_name="tokitai", standalone_mode=False)
        if code == INTERRUPTED:  # the command line's parser keeps the exception to itself
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(code or 0)
    except TokitaiError as error:
        return report_error(str(error), type(error).__name__, error.exit_code, as_json)
    except MemoryError as error:
        return report_error(f"not enough memory: {error}", "MemoryError", 3, as_json)
    except KeyboardInterrupt:
        return report_error("interrupted", "KeyboardInterrupt", INTERRUPTED, as_json)
    except Exception as error:
        if hasattr(error, "format_message"):  # what the command line's parser raises, under whatever name
            said = error.format_message()
            return report_error(f"{said} (see tokitai --help)", "UsageError", 2, as_json) if said else 2
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return report_error(f"what was found cannot be written: {error}", "OSError", 3, as_json)
        traceback.print_exc()
        return report_error(f"a fault of tokitai itself: {error!r}", "InternalError", FAULT, as_json)


__all__ = ["main", "run"]
