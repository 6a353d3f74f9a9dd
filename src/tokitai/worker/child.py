"""The worker process: map segments, call entries, answer. It starts with the standard library alone."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import limits
from .channel import Channel, Closed
from .maps import map_shared, unmap
from .messages import MAX_REPLY, MAX_REQUEST, Attach, MalformedMessageError, Reply, Request, Start, Status, encode

MESSAGE = 8000  # characters of an exception's text that are sent

Entry = Callable[[dict[str, Any], list[memoryview]], Any]


class Child:
    """What the process holds: segments by their numbers, and entries that were found."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.segments = {0: memoryview(bytearray())}  # where tensors without a byte lie
        self.places: dict[int, tuple[int, int]] = {}  # of segments: address and size
        self.entries: dict[str, Entry] = {}

    def attach(self, message: Attach, descriptors: list[int]) -> None:
        """Map new segments, and let go of those that are gone."""
        for number in message.gone:
            del self.segments[number]
            unmap(*self.places.pop(number))
        for (number, size), descriptor in zip(message.segments, descriptors, strict=True):
            address = map_shared(descriptor, size)
            os.close(descriptor)
            self.places[number] = address, size
            self.segments[number] = memoryview((ctypes.c_char * size).from_address(address)).cast("B")

    def answer(self, request: Request) -> Reply:
        """Run one request."""
        try:
            entry = self.entries.get(request.entry) or self.find(request.entry)
            tensors = [self.segments[s][first : first + size] for s, first, size in request.tensors]
        except MemoryError:
            return Reply(request.number, Status.MEMORY)
        except Exception as error:
            return Reply(request.number, Status.REFUSED, message=f"{request.entry}: {error!r}"[:MESSAGE])
        try:
            reply = Reply(request.number, Status.DONE, entry(request.arguments, tensors))
            if len(encode(reply)) > MAX_REPLY:
                raise ValueError(f"{request.entry} returned more than {MAX_REPLY} bytes of JSON")
            return reply
        except MemoryError:
            return Reply(request.number, Status.MEMORY)
        except BaseException as error:
            known = type(error).__module__ == "tokitai.errors"
            text = str(error) if known else "".join(traceback.format_exception(error))
            return Reply(request.number, Status.RAISED, kind=type(error).__name__, message=text[-MESSAGE:])

    def find(self, name: str) -> Entry:
        """The function ``module:function``. Raises ImportError, AttributeError."""
        module, _, function = name.partition(":")
        self.entries[name] = entry = getattr(importlib.import_module(module), function)
        return entry  # type: ignore[no-any-return]


def address(view: memoryview) -> int:
    """Where a tensor lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0


def serve(descriptor: int, host: int) -> None:
    """Answer requests until the host closes its end, or ends."""
    limits.end_with(host)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host says what an interrupt means
    channel = Channel(socket.socket(fileno=descriptor))
    code = 1
    try:
        start, _ = channel.receive_with_descriptors(MAX_REQUEST)
        if not isinstance(start, Start):
            raise MalformedMessageError(f"{start} where the first message should be")
        sys.path[:] = start.path
        applied = limits.apply(start.memory, start.open_files, start.sandbox, start.scratch, start.reads)
        channel.send(Reply(0, Status.READY, applied))
        child = Child(channel)
        while True:
            message, descriptors = channel.receive_with_descriptors(MAX_REQUEST)
            if isinstance(message, Attach):
                child.attach(message, descriptors)
            elif isinstance(message, Request):
                channel.send(child.answer(message))
            else:
                raise MalformedMessageError(f"{message} where a request should be")
    except Closed:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads that kernels left behind are not waited for
