"""Read requests, write replies, and end with the exit code that says how it went.

`read` fills a part of the room that it is given and says how much, 0 where the input has ended; `write` takes all of
its bytes. The room for a payload grows as its bytes come: a length alone sets nothing aside.
"""

from __future__ import annotations

import struct
import sys
import traceback
from collections.abc import Callable, Sequence

from ..errors import CacheError, TokitaiError, UnavailableError, WireError
from .execute import Runner
from .families import Family
from .reply import Buffer, error_reply

Read = Callable[[memoryview], int]
Write = Callable[[Buffer], object]

LENGTH = struct.Struct("<I")
MOST_BYTES = 2**32 - 1
AT_A_TIME = 1 << 20

USAGE = 2
SHORT_LENGTH = 20
SHORT_PAYLOAD = 21
UNHEARD = 22  # nobody reads the reply any more
UNAVAILABLE = 69  # a right request that cannot be computed here: EX_UNAVAILABLE
FAULT = 70  # of tokitai's own: EX_SOFTWARE


class Refused(TokitaiError):
    """A request that has no result: `reply` says why, `exit_code` is that of the process."""

    def __init__(self, message: str, exit_code: int, field: str | None = None) -> None:
        super().__init__(message)
        self.exit_code, self.reply = exit_code, [error_reply(message, exit_code, field)]


def answer(family: Family, runner: Runner, payload: bytearray) -> list[Buffer]:
    """The parts of the reply to a payload, which may lie in it. Raises Refused, whatever the payload holds."""
    try:
        return family.answer(payload, runner)
    except WireError as error:
        raise Refused(str(error), error.exit_code, error.field) from error
    except MemoryError as error:
        raise Refused(f"not enough memory: {error}", UNAVAILABLE) from error
    except (UnavailableError, CacheError) as error:
        raise Refused(str(error), UNAVAILABLE) from error
    except TokitaiError as error:
        raise Refused(str(error), USAGE if error.exit_code == USAGE else FAULT) from error
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        raise Refused(f"a fault of tokitai itself: {error!r}", FAULT) from error


def serve(family: Family, runner: Runner, read: Read, write: Write, framed: bool) -> int:
    """Answer requests until the input ends, or one is refused. Returns the exit code."""
    try:
        if not framed:
            return _respond(family, runner, _take(read, MOST_BYTES), write, framed=False)
        while True:
            head = _take(read, LENGTH.size)
            if not head:
                return 0
            if len(head) < LENGTH.size:
                return SHORT_LENGTH
            (length,) = LENGTH.unpack(head)
            payload = _take(read, length)
            if len(payload) < length:
                return SHORT_PAYLOAD
            code = _respond(family, runner, payload, write, framed=True)
            if code:
                return code
    except BrokenPipeError:
        return UNHEARD


def refuse(refused: Refused, write: Write, framed: bool) -> int:
    """Write the reply of a refusal. Returns its exit code, or UNHEARD."""
    try:
        _send(refused.reply, write, framed)
    except BrokenPipeError:
        return UNHEARD
    return refused.exit_code


def _respond(family: Family, runner: Runner, payload: bytearray, write: Write, framed: bool) -> int:
    try:
        reply = answer(family, runner, payload)
    except Refused as refused:
        return refuse(refused, write, framed)
    _send(reply, write, framed)
    return 0


def _send(reply: Sequence[Buffer], write: Write, framed: bool) -> None:
    if framed:
        write(LENGTH.pack(sum(memoryview(part).nbytes for part in reply)))
    for part in reply:
        write(part)


def _take(read: Read, count: int) -> bytearray:
    """So many bytes, fewer only where the input ends before."""
    room, filled = bytearray(min(count, AT_A_TIME)), 0
    while filled < count:
        if filled == len(room):
            room += bytes(min(count, 2 * filled) - filled)
        with memoryview(room) as view, view[filled:] as rest:
            taken = read(rest)
        if not taken:
            break
        filled += taken
    del room[filled:]
    return room
