"""``tokitai kernel``: the wire mode, on standard input and output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from typing import Annotated

import typer

from ..errors import UsageError
from . import output

PIPE_BYTES = 1 << 20


def kernel(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="layernorm, softmax, gemm-bw, adamw or embedding.")],
    server: Annotated[bool, typer.Option("--server", help="Answer request after request, each in a frame.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or sim: kernels for GPUs on the CPU.")] = "cpu",
) -> int:
    """Compute what arrives on standard input, in the pipe protocol of legacy hosts.

    Exit code 0: the input has ended. 2: wrong usage. 3 to 14: the field that is wrong. 20, 21: a frame was cut off.
    22: nobody reads the reply. 69: this machine cannot compute it.
    """
    from ..wire import Refused, Runner, family_named, refuse, serve

    if not (_is_open(0, os.O_RDONLY) and _is_open(1, os.O_WRONLY) and _is_open(2, os.O_WRONLY)):
        raise UsageError("kernel: standard input, output and error must be open")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a host that has gone is reported by an exit code
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever else a library prints must not lie between replies

    _widen(0, replies)

    def write(data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(replies, left) :]

    try:
        chosen, runner = family_named(family), Runner(device)
    except UsageError as error:
        output.note(f"error: {error}")
        return refuse(Refused(str(error), error.exit_code), write, server)
    return serve(chosen, runner, lambda room: os.readv(0, [room]), write, server)


def _widen(*descriptors: int) -> None:
    """Let pipes hold more, so that a large request does not come in thousands of pieces. It is well without, too."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # no pipe, or more than a user may have
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _is_open(descriptor: int, how: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE in (how, os.O_RDWR)
    except OSError:
        return False
