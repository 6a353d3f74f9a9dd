"""Entries for worker processes of the tests: what ordinary code does, and every way to fail.

They need nothing but the standard library, so that a process that runs them is there soon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any


def scale(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """out = x * by, over bytes as unsigned 8-bit integers; says which request this is."""
    x, out = tensors
    table = bytes((i * arguments["by"]) & 255 for i in range(256))
    out[:] = bytes(x).translate(table)
    return {"number": arguments["number"], "process": os.getpid()}


def echo(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """What it was given."""
    return {"arguments": arguments, "bytes": [t.nbytes for t in tensors]}


def nap(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """Answer after some time."""
    time.sleep(arguments["seconds"])
    return arguments["number"]


def say(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Print, far more than a pipe holds."""
    for i in range(arguments["lines"]):
        print(f"line {i} of many that nobody reads", file=sys.stderr if i % 2 else sys.stdout)


def raises(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """An exception."""
    raise ZeroDivisionError(arguments["text"])


def killed(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """SIGKILL, SIGSTOP or another signal to itself."""
    print("about to send a signal", flush=True)
    os.kill(os.getpid(), signal.Signals[arguments["signal"]])
    time.sleep(60)


def reads_nothing(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """SIGSEGV by a read of address 0."""
    ctypes.string_at(0)


def hangs(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Never ends, and keeps the processor busy."""
    while True:
        pass


def hoards(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Takes all the memory that it gets."""
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def leaves(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Ends by itself in the middle of a request."""
    print("leaving", file=sys.stderr, flush=True)
    os._exit(arguments["code"])


def _channel() -> int:
    return int(sys.argv[1])  # where the process was told to listen


def _frame(payload: bytes) -> bytes:
    return b"TKW1" + len(payload).to_bytes(4, "little") + payload


RUBBISH = {
    "text": b"hello, this is no frame at all",
    "too long": b"TKW1\xff\xff\xff\xff",
    "no JSON": _frame(b"\x80\x81\x82\x83"),
    "too deep": _frame(b"[" * 100_000),
    "a list": _frame(b"[]"),
    "a message of the host's": _frame(b'{"type": "Attach", "segments": [], "gone": []}'),
    "a reply to nobody": _frame(b'{"type": "Reply", "number": 0, "status": 1}'),
    "a second start": _frame(b'{"type": "Reply", "number": 0, "status": 0}'),
}


def writes_rubbish(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Writes something else where the reply should be, then goes on as if nothing were wrong."""
    os.write(_channel(), RUBBISH[arguments["kind"]])


def closes(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Closes the socket, and stays."""
    os.close(_channel())
    time.sleep(60)


def shrinks(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """Tries to shrink every shared segment that it can find."""
    refused = 0
    for name in os.listdir("/proc/self/map_files"):
        if "memfd:tokitai" in os.readlink(f"/proc/self/map_files/{name}"):
            try:
                with open(f"/proc/self/map_files/{name}", "r+b") as file:
                    file.truncate(0)
            except OSError:
                refused += 1
    return refused


def forks(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """Starts a process that outlives it."""
    found = os.fork()
    if found == 0:
        time.sleep(60)
        os._exit(0)
    return found


def last(arguments: dict[str, Any], tensors: list[memoryview]) -> Any:
    """The last three bytes of a tensor; then writes its first and its last."""
    x = tensors[0]
    found = list(x[-3:])
    x[0], x[-1] = 9, 4
    return {"bytes": x.nbytes, "last": found}
