"""Descriptors that are no standard streams: where a process has closed those, the next file that it opens takes their
numbers, and whatever a library prints goes into that file."""

from __future__ import annotations

import fcntl
import os
import socket


def above_standard(descriptor: int) -> int:
    """The descriptor, or in place of one of 0 to 2 another one for the same file. Raises OSError."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets. Raises OSError."""
    mine, its = (socket.socket(fileno=above_standard(made.detach())) for made in socket.socketpair())
    return mine, its


def pipe() -> tuple[int, int]:
    """The end to read from and the end to write to. Raises OSError."""
    read_end, write_end = map(above_standard, os.pipe())
    return read_end, write_end
