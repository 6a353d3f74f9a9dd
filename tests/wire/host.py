"""A host, as one is written from the protocol alone: bytes to a pipe, bytes from a pipe."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokitai.wire import Runner, family_named, serve

Array = np.ndarray[Any, Any]
F16, F32 = np.float16, np.float32


def words(*values: object, separator: str = " ") -> bytes:
    """A text payload: numbers as they are, f16 arrays as patterns, f32 arrays in digits that read back exactly."""
    found: list[str] = []
    for value in values:
        if isinstance(value, np.ndarray):
            flat = value.reshape(-1)
            found += map(str, (flat.view(np.uint16) if flat.dtype == F16 else flat).tolist())
        else:
            found.append(str(value))
    return separator.join(found).encode()


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def frames(stream: bytes) -> list[bytes]:
    """The replies in what a server wrote, which must be whole."""
    found = []
    while stream:
        (length,) = struct.unpack_from("<I", stream)
        assert len(stream) >= 4 + length, "a reply is cut off"
        found.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return found


def lines(reply: bytes) -> dict[str, str]:
    """KEY=value, each key once, in order."""
    text = reply.decode("ascii")
    assert text.endswith("\n")
    pairs = [line.partition("=")[::2] for line in text.splitlines()]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def patterns(text: str, separator: str = ",") -> Array:
    return np.array([int(word) for word in text.split(separator)] if text else [], np.uint16).view(F16)


def floats(text: str, separator: str = ",") -> Array:
    return np.array([F32(word) for word in text.split(separator)] if text else [], F32)


class Input:
    """Bytes that come in pieces of at most `piece`."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self.data, self.at, self.piece = data, 0, piece

    def read(self, room: memoryview) -> int:
        taken = min(len(room), self.piece, len(self.data) - self.at)
        room[:taken] = self.data[self.at : self.at + taken]
        self.at += taken
        return taken


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it wrote."""

    code: int
    out: bytes
    err: str = ""


def here(family: str, data: bytes, server: bool = False, device: str = "cpu", piece: int = 1 << 20) -> Done:
    """The same loop in this process."""
    written = bytearray()
    code = serve(family_named(family), Runner(device), Input(data, piece).read, written.extend, server)
    return Done(code, bytes(written))


def command(family: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "tokitai", "kernel", family, *flags]


def process(family: str, data: bytes, *flags: str, **environment: str) -> Done:
    """A child as a host starts it."""
    ran = subprocess.run(
        command(family, *flags), input=data, capture_output=True, timeout=300, env={**os.environ, **environment}
    )
    assert b"Traceback" not in ran.stderr, ran.stderr.decode()
    return Done(ran.returncode, ran.stdout, ran.stderr.decode())


def adamw_bytes(
    theta: Array, m: Array, v: Array, grad: Array, scalars: Sequence[float] = (1e-3, 0.9, 0.999, 1e-8, 0.01), t: int = 3
) -> bytes:
    """The binary payload of adamw."""
    head = struct.pack("<II5fi4x", 0x57414441, len(theta), *scalars, t)
    assert len(head) == 36
    return head + b"".join(a.tobytes() for a in (theta, m, v, grad))
