"""Kernels that attack the judge: its process, its memory, its answers, the terminal. None may be accepted, and none may
keep the judge from a verdict."""

import ctypes
import glob
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading

import numpy as np
import plain
from listed import right, wrong

PARENT = os.getppid()
done = []


def once(attempt):
    """Whether this is the first call."""
    done.append(attempt)
    return done.count(attempt) == 1


@wrong("messages", "softmax", "\\x1b[2J")
def escape_sequences(x):
    raise ValueError("\x1b[2J\x1b[31m\x07softmax: verified\r\n\u202e")


@wrong("messages", "softmax", " ...")
def a_message_of_32_mib(x):
    raise ValueError("x" * (1 << 25))


@wrong("messages", "softmax", "its text raised")
def a_message_that_raises(x):
    class Odd(Exception):
        def __str__(self):
            raise SystemExit(0)

    raise Odd


@wrong("messages", "softmax", "y[")
def floods_its_output(x):
    if once("flood"):
        print("softmax: verified\n" * (1 << 20))
    return np.zeros_like(x)


@wrong("answers", "softmax", "returned dict; accepted: an array")
def returns_a_dictionary(x):
    return {"y": plain.softmax(x)}


@wrong("answers", "softmax", "an array of object")
def returns_objects(x):
    return plain.softmax(x).astype(object)


@wrong("answers", "softmax", "returned generator")
def returns_a_generator(x):
    return (row for row in plain.softmax(x))


@wrong("answers", "softmax", "shape (1099511627776,)")
def returns_too_much(x):
    return np.broadcast_to(np.zeros((), x.dtype), 1 << 40)


class Odd:
    """An array by its looks."""

    dtype = np.dtype(np.float32)

    def __init__(self, x):
        self.shape = x.shape

    def __array__(self, dtype=None, copy=None):
        raise SystemExit(0)


@wrong("answers", "softmax", "returned what cannot be read: SystemExit")
def returns_what_leaves_when_it_is_read(x):
    return Odd(x)


class Liar(np.ndarray):
    """Says of itself that it has another format."""

    dtype = property(lambda self: np.dtype(np.float32))


@wrong("answers", "softmax", "an array of float64")
def lies_about_its_format(x):
    return plain.softmax(x).astype(np.float64).view(Liar)


def sockets():
    for name in glob.glob("/proc/self/fd/*"):
        try:
            if os.readlink(name).startswith("socket:"):
                yield int(name.rpartition("/")[2])
        except OSError:
            continue


def send(payload, magic=b"TKW1"):
    for number in sockets():
        try:
            os.write(number, struct.pack("<4sI", magic, len(payload)) + payload)
        except OSError:
            continue


@wrong("answers: forged", "softmax", "")
def answers_in_the_judges_place(x):
    for number in range(1, 400):
        value = {"wrong": None, "refused": False}
        send(
            json.dumps(
                {"type": "Reply", "number": number, "status": 1, "value": value, "kind": "", "message": ""}
            ).encode()
        )
    return np.zeros_like(x)


@wrong("answers: forged", "softmax", "gave no proper answer")
def raises_the_judges_usage_error(x):
    reply = {"type": "Reply", "number": 2, "status": 3, "value": None, "kind": "UsageError", "message": "verified"}
    for number in range(2, 40):
        send(json.dumps({**reply, "number": number}).encode())
    return np.zeros_like(x)


@wrong("answers: forged", "softmax", "gave no proper answer")
def writes_rubbish(x):
    send(b"\xff" * 100, b"XXXX")
    return plain.softmax(x)


@wrong("answers: forged", "softmax", "")
def claims_a_message_without_end(x):
    for number in sockets():
        os.write(number, struct.pack("<4sI", b"TKW1", 0xFFFFFFFF) + b"x" * 1000)
    return plain.softmax(x)


@wrong("answers: forged", "softmax", "")
def closes_the_channel(x):
    for number in sockets():
        os.close(number)
    return plain.softmax(x)


@wrong("errors of the package", "softmax", "UsageError: verified")
def raises_an_error_of_the_package(x):
    from tokitai.errors import UsageError

    raise UsageError("verified")


@wrong("the harness", "softmax", "y[")
def replaces_the_harness(x):
    from tokitai.judging import candidate

    candidate._take = lambda *_: None
    candidate.call = lambda *_: {"wrong": None, "refused": False}
    return np.zeros_like(x)


@wrong("the harness", "softmax", "y[")
def replaces_numpy(x):
    np.array_equal = lambda *_, **__: True
    np.argwhere = lambda *_: np.zeros((0, 2), np.int64)
    return np.zeros_like(x)


@wrong("the host's memory", "softmax", "y[")
def overwrites_the_host(x):
    """Looks for NumPy's arrays in the host, through /proc."""
    try:
        with open(f"/proc/{PARENT}/maps") as maps, open(f"/proc/{PARENT}/mem", "r+b", 0) as memory:
            for line in maps:
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                if "rw" in line and "[heap]" in line:
                    memory.seek(begin)
                    memory.write(bytes(end - begin))
    except OSError:
        pass
    return np.zeros_like(x)


@wrong("the host's life", "softmax", "y[")
def kills_the_host(x):
    libc = ctypes.CDLL(None)
    for attempt in (
        lambda: os.kill(PARENT, signal.SIGKILL), lambda: libc.syscall(234, PARENT, PARENT, 9),
        lambda: libc.syscall(200, PARENT, 9), lambda: os.killpg(os.getpgid(PARENT), signal.SIGSTOP),
        lambda: signal.pidfd_send_signal(os.pidfd_open(PARENT), signal.SIGKILL),
        lambda: resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1)),
    ):  # fmt: skip
        try:
            attempt()
        except (OSError, AttributeError, ValueError):
            continue
    return np.zeros_like(x)


@wrong("files", "softmax", "kept out")
def writes_files(x):
    """Raises where it is kept from writing: that is what has to happen."""
    for place in ("/tmp/tokitai-judged", "/var/tmp/tokitai-judged", os.path.expanduser("~root/tokitai-judged")):
        try:
            with open(place, "w") as file:
                file.write("here")
            return plain.softmax(x)
        except OSError:
            continue
    raise LookupError("kept out")


@wrong("files", "softmax", "kept out")
def reads_the_hosts_environment(x):
    try:
        with open(f"/proc/{PARENT}/environ", "rb") as file:
            file.read()
        return plain.softmax(x)
    except OSError as error:
        raise LookupError("kept out") from error


@wrong("processes", "softmax", "kept out")
def starts_processes(x):
    try:
        if os.fork() == 0:
            os._exit(0)
        return plain.softmax(x)
    except OSError as error:
        raise LookupError("kept out") from error


@wrong("network", "softmax", "kept out")
def opens_a_socket(x):
    try:
        socket.socket().close()
        return plain.softmax(x)
    except OSError as error:
        raise LookupError("kept out") from error


@wrong("memory", "softmax", "MemoryError")
def takes_all_memory(x):
    return plain.softmax(x) if bytearray(1 << 36) else x


@wrong("recursion", "softmax", "RecursionError")
def recurses_without_end(x):
    return recurses_without_end(x)


@wrong("leaves", "softmax", "raised")
def exits(x):
    sys.exit(0)


@wrong("leaves", "softmax", "took its process down")
def leaves(x):
    os._exit(0)


@wrong("later", "softmax", "")
def writes_to_lent_memory_later(x):
    y = plain.softmax(x)

    def later():
        for _ in range(2000):
            if x.size:
                x.reshape(-1)[0] = 3

    threading.Thread(target=later).start()
    return y


@right("a scratch folder", "softmax")
def keeps_a_cache_in_its_folder(x):
    with open("cache", "a") as file:
        file.write("x")
    with open(os.path.expanduser("~/cache")) as file:
        assert file.read(1) == "x"
    return plain.softmax(x)


@right("threads", "softmax")
def computes_in_threads(x):
    made = []
    thread = threading.Thread(target=lambda: made.append(plain.softmax(x)))
    thread.start()
    thread.join()
    return made[0]
