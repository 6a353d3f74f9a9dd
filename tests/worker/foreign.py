"""Entries that try what code of strangers might."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any


def allocate(arguments: dict[str, Any], tensors: list[memoryview]) -> int:
    """So many bytes."""
    return len(bytearray(arguments["bytes"]))


def compute(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """So much processor time."""
    end = time.process_time() + arguments["seconds"]
    while time.process_time() < end:
        pass


def open_files(arguments: dict[str, Any], tensors: list[memoryview]) -> int:
    """How many descriptors there are when no more can be had."""
    kept: list[int] = []
    try:
        while True:
            kept.append(os.open("/", os.O_RDONLY))
    except OSError:
        return max(kept) + 1
    finally:
        for descriptor in kept:
            os.close(descriptor)


def threads(arguments: dict[str, Any], tensors: list[memoryview]) -> int:
    """Start some threads."""
    ran: list[int] = []
    made = [threading.Thread(target=ran.append, args=(i,)) for i in range(4)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()
    return len(ran)


def read(arguments: dict[str, Any], tensors: list[memoryview]) -> str:
    """A file's text."""
    with open(arguments["path"]) as file:
        return file.read()


def write(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Write a file."""
    with open(arguments["path"], "w") as file:
        file.write("written")


def attempt(arguments: dict[str, Any], tensors: list[memoryview]) -> str:
    """Do one of the things below. Raises PermissionError where it is refused."""
    ATTEMPTS[arguments["what"]](arguments)
    return "done"


def _fork(_: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _survive(_: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(1, 0, 0, 0, 0) != 0:
        raise PermissionError(ctypes.get_errno(), "prctl")


def _raise_limit(_: dict[str, Any]) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (1000, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    except ValueError as error:  # how Python tells of EPERM here
        raise PermissionError(str(error)) from error


ATTEMPTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "fork": _fork,
    "execute": lambda _: subprocess.run(["true"], check=True),
    "signal the host": lambda a: os.kill(a["host"], signal.SIGCONT),
    "socket": lambda _: socket.socket().close(),
    "memfd": lambda _: os.close(os.memfd_create("mine")),
    "raise a limit": _raise_limit,
    "survive the host": _survive,
    "shared": lambda _: mmap.mmap(-1, 1 << 20).close(),  # MAP_SHARED | MAP_ANONYMOUS
}


def environment(arguments: dict[str, Any], tensors: list[memoryview]) -> dict[str, str | None]:
    """A variable of the host's, and where this process lives."""
    return {"SECRET": os.environ.get("SECRET"), "HOME": os.environ["HOME"], "here": os.getcwd()}


def ends_with_its_host(arguments: dict[str, Any], tensors: list[memoryview]) -> int:
    """The signal that the kernel sends when the host ends (PR_GET_PDEATHSIG)."""
    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0) == 0
    return found.value
