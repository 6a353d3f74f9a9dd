"""What host and worker process say to each other: frozen messages, as JSON in frames of a given length.

A frame is the four bytes ``TKW1``, the length of its payload as a little-endian u32, and the payload: one JSON object
in UTF-8. Tensors are never in it: a message names where in a shared segment they lie. Nothing that comes from a worker
process is trusted: a reply is read field by field, and everything else is `MalformedMessageError`.

This module and those that the worker process starts with need nothing but the standard library, so that a process is
there within some hundredths of a second.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from typing import Any, TypeVar

MAGIC = b"TKW1"
HEADER = struct.Struct("<4sI")
MAX_REQUEST = 1 << 28  # bytes; a list of a million tensors is described in less
MAX_REPLY = 1 << 24


class Status(IntEnum):
    """What a reply says of its request."""

    READY = 0  # the process has started; value = what it applied of its limits
    DONE = 1  # value = what the entry returned
    RAISED = 2  # the entry raised: kind and message
    MEMORY = 3  # memory ran out
    REFUSED = 4  # the request is malformed, or there is no such entry: message


class MalformedMessageError(ValueError):
    """Bytes that are no message."""


@dataclass(frozen=True)
class Start:
    """The first message to a worker process: where it finds modules, and what limits it puts on itself."""

    path: list[str]
    memory: int | None
    open_files: int
    sandbox: bool
    scratch: str | None = None
    reads: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Attach:
    """Segments that later requests use: [number, bytes] of each, whose descriptors come along; and those that are gone.
    There is no reply."""

    segments: list[list[int]]
    gone: list[int]


@dataclass(frozen=True)
class Request:
    """Call ``entry`` (``module:function``) with ``arguments`` and the tensors, each [segment, first byte, bytes]."""

    number: int
    entry: str
    arguments: dict[str, Any]
    tensors: list[list[int]]


@dataclass(frozen=True)
class Reply:
    """The answer to the request of the same number."""

    number: int
    status: Status
    value: Any = None
    kind: str = ""
    message: str = ""


Message = Start | Attach | Request | Reply
M = TypeVar("M", Start, Attach, Request, Reply)
KINDS: Mapping[str, type[Message]] = {k.__name__: k for k in (Start, Attach, Request, Reply)}


def encode(message: Message) -> bytes:
    """A message as a frame. Raises ValueError or TypeError for values that JSON cannot hold."""
    payload = json.dumps({"type": type(message).__name__, **_shallow(message)}).encode()
    if len(payload) > MAX_REQUEST:
        raise ValueError(f"a message of {len(payload)} bytes; accepted: at most {MAX_REQUEST}")
    return HEADER.pack(MAGIC, len(payload)) + payload


def _shallow(message: Message) -> dict[str, Any]:
    return {f.name: getattr(message, f.name) for f in fields(message)}


def payload_size(header: bytes, most: int) -> int:
    """The length that a frame's header announces. Raises MalformedMessageError."""
    magic, size = HEADER.unpack(header)
    if magic != MAGIC or size > most:
        raise MalformedMessageError(f"{header!r} where a frame begins")
    return int(size)


def decode(payload: bytes) -> Message:
    """The message in a payload. Raises MalformedMessageError."""
    try:
        found = json.loads(payload)
        kind = KINDS[found.pop("type")]
        message = kind(**found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedMessageError(f"{payload[:80]!r} where a message should be") from error
    return _checked_reply(message) if isinstance(message, Reply) else message


def _checked_reply(reply: Reply) -> Reply:
    texts = isinstance(reply.kind, str) and isinstance(reply.message, str)
    if type(reply.number) is not int or type(reply.status) is not int or not texts:
        raise MalformedMessageError(f"a reply of the wrong types: {str(asdict(reply))[:200]}")
    try:
        return Reply(reply.number, Status(reply.status), reply.value, reply.kind, reply.message)
    except ValueError as error:
        raise MalformedMessageError(f"status {reply.status}; accepted: 0 to {max(Status)}") from error
