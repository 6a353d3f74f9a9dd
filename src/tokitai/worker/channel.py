"""Frames over a socket between host and worker process. Every wait ends at a given time."""

from __future__ import annotations

import array
import os
import select
import socket
import time
from collections.abc import Sequence

from .messages import HEADER, Message, decode, encode, payload_size

WORDS = 4096  # bytes of the tail of stderr that are kept
FOREVER = float("inf")


class Closed(ConnectionError):
    """The other side is gone."""


class Channel:
    """One end of the socket. The host's end also reads what the process prints (``stderr``), so that a process never
    waits for a reader, and keeps the end of it."""

    def __init__(self, sock: socket.socket, stderr: int | None = None) -> None:
        self.sock, self.stderr = sock, stderr
        self.words = bytearray()
        sock.setblocking(False)
        if stderr is not None:
            os.set_blocking(stderr, False)

    def send(self, message: Message, descriptors: Sequence[int] = (), until: float = FOREVER) -> None:
        """Send a message, and with it file descriptors. Raises Closed, TimeoutError."""
        self.send_frame(encode(message), descriptors, until)

    def send_frame(self, frame: bytes, descriptors: Sequence[int] = (), until: float = FOREVER) -> None:
        """The same with a message that has been encoded."""
        data = memoryview(frame)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while data:
            try:
                data = data[self.sock.sendmsg([data], rights, socket.MSG_NOSIGNAL) :]
                rights = []  # they went with the first byte
            except BlockingIOError:
                self._wait(select.POLLOUT, until)
            except OSError as error:
                raise Closed(str(error)) from error

    def receive(self, most: int, until: float = FOREVER) -> Message:
        """The next message, of at most so many bytes. Descriptors that came along are closed. Raises Closed,
        TimeoutError, MalformedMessageError."""
        size = payload_size(self._exactly(HEADER.size, until), most)
        return decode(self._exactly(size, until))

    def receive_with_descriptors(self, most: int) -> tuple[Message, list[int]]:
        """The same with the descriptors that came along: the worker process's side, which waits for ever."""
        received: list[int] = []
        header = b""
        while len(header) < HEADER.size:
            self._wait(select.POLLIN, FOREVER)
            try:
                more, rights, _, _ = self.sock.recvmsg(
                    HEADER.size - len(header), socket.CMSG_SPACE(256 * 4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                continue
            except OSError as error:
                raise Closed(str(error)) from error
            for _, _, some in rights:
                received += array.array("i", some[: len(some) // 4 * 4])
            if not more:
                raise Closed("end of input")
            header += more
        return decode(self._exactly(payload_size(header, most), FOREVER)), received

    def quiet(self) -> bool:
        """Whether nothing has come and the other side is there: what an idle process looks like."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return not poller.poll(0)

    def forget_words(self) -> None:
        """What was printed so far is not part of the tail of stderr."""
        self.listen(0.0)
        self.words.clear()

    def listen(self, seconds: float) -> None:
        """Read what the process still has to say: until it has closed its end, or so long that nothing came."""
        if self.stderr is None:
            return
        poller = select.poll()
        poller.register(self.stderr, select.POLLIN)
        until = time.monotonic() + seconds + 1.0  # whoever prints without end is not listened to for ever
        while poller.poll(seconds * 1000) and self._read_words() and time.monotonic() < until:
            pass

    def close(self) -> None:
        """Close this end."""
        self.sock.close()
        if self.stderr is not None:
            os.close(self.stderr)
            self.stderr = None

    def _exactly(self, size: int, until: float) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                more = self.sock.recv(min(size - len(found), 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, until)
                continue
            except OSError as error:
                raise Closed(str(error)) from error
            if not more:
                raise Closed("end of input")
            found += more
        return bytes(found)

    def _wait(self, event: int, until: float) -> None:
        poller = select.poll()
        poller.register(self.sock, event)
        if self.stderr is not None:
            poller.register(self.stderr, select.POLLIN)
        while True:
            left = None if until == FOREVER else max(0.0, until - time.monotonic()) * 1000
            ready = poller.poll(left)
            if not ready:
                raise TimeoutError("the deadline passed")
            for descriptor, _ in ready:
                if descriptor == self.sock.fileno():
                    return
                if not self._read_words():
                    poller.unregister(descriptor)  # it closed its standard error, which says nothing yet

    def _read_words(self) -> bool:
        """Read what there is. False where the process has closed its end."""
        assert self.stderr is not None
        try:
            more = os.read(self.stderr, 1 << 16)
        except BlockingIOError:
            return True
        self.words += more
        del self.words[:-WORDS]
        return bool(more)
