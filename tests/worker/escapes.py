"""Ways out of the sandbox, each as an entry of a worker process. None of them does harm where it succeeds.

An attempt returns where it has succeeded, and raises OSError otherwise. ``target`` is the number of a process that
sleeps, ``word`` the address of eight bytes of it, ``folder`` a folder with a file ``there``, a listening socket
``socket``, and ``shm`` the number of a System V segment.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Arguments = dict[str, Any]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

X86 = platform.machine() == "x86_64"


def raw(x86: int, arm: int | None, *arguments: Any) -> int:
    """A system call by its number. Raises OSError."""
    number = x86 if X86 else arm
    if number is None:
        raise OSError(errno.ENOSYS, "no such call here")
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    found = int(libc.syscall(ctypes.c_long(number), *words))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _prlimit_by_a_high_word(a: Arguments) -> None:
    """New limits at an address whose low word is 0: a filter that looks at that alone takes it for none."""
    address = 0x7_0000_0000
    kept = libc.mmap(address, 4096, 3, 0x100022, -1, 0)  # MAP_FIXED_NOREPLACE | MAP_ANONYMOUS | MAP_PRIVATE
    assert kept == address, kept
    now = (ctypes.c_uint64 * 2)()
    raw(302, 261, a["target"], resource.RLIMIT_CPU, 0, now)
    ctypes.memmove(address, now, 16)
    raw(302, 261, a["target"], resource.RLIMIT_CPU, address, 0)


def _read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(4096)


def _memory(a: Arguments, flags: int) -> None:
    descriptor = os.open(f"/proc/{a['target']}/mem", flags)
    try:
        if flags == os.O_RDONLY:
            os.pread(descriptor, 8, a["word"])
        else:
            os.pwrite(descriptor, os.pread(descriptor, 8, a["word"]), a["word"])
    finally:
        os.close(descriptor)


def _vm(a: Arguments, numbers: tuple[int, int]) -> None:
    here = ctypes.create_string_buffer(8)
    local = struct.pack("@PN", ctypes.addressof(here), 8)
    remote = struct.pack("@PN", a["word"], 8)
    raw(310, 270, a["target"], local, 1, remote, 1, 0)
    raw(*numbers, a["target"], local, 1, remote, 1, 0)


def _fork(number: Callable[[], int]) -> None:
    child = number()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _connect(kind: int, address: Any) -> None:
    with socket.socket(kind, socket.SOCK_STREAM) as made, suppress(ConnectionRefusedError):  # it was let through
        made.connect(address)


def _run_memfd(a: Arguments) -> None:
    descriptor = os.memfd_create("program", 0)
    with open("/bin/true", "rb") as program:
        os.write(descriptor, program.read())
    _fork(lambda: _child(lambda: raw(322, 281, descriptor, b"", struct.pack("@PP", 0, 0), None, 0x1000)))


def _child(act: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        act()
    return child


def _on(path: str, act: Callable[[int], object], flags: int = os.O_RDONLY) -> None:
    descriptor = os.open(path, flags)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def _attributes(descriptor: int) -> None:
    """The flags of a file (chattr), unchanged."""
    flags = fcntl.ioctl(descriptor, 0x80086601, bytes(8))
    fcntl.ioctl(descriptor, 0x40086602, flags)


def _there(a: Arguments, name: str = "there") -> str:
    return os.path.join(a["folder"], name)


def _prctl(option: int, *arguments: int) -> None:
    if libc.prctl(option, *map(ctypes.c_ulong, (*arguments, 0, 0, 0, 0)[:4])) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _capset(a: Arguments) -> None:
    header, held = struct.pack("<Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    raw(125, 90, header, held)
    raw(126, 91, header, held)


# Attempts to be refused. As they are written, every one succeeds for root without a sandbox.
ESCAPES: dict[str, Callable[[Arguments], object]] = {
    # other processes
    "prlimit, a pointer of high word alone": _prlimit_by_a_high_word,
    "prlimit of another process": lambda a: resource.prlimit(
        a["target"], resource.RLIMIT_CPU, resource.prlimit(a["target"], resource.RLIMIT_CPU)
    ),
    "kill": lambda a: os.kill(a["target"], 0),
    "kill the process group": lambda a: os.killpg(a["group"], 0),
    "tgkill": lambda a: raw(234, 131, a["target"], a["target"], 0),
    "tkill": lambda a: raw(200, 130, a["target"], 0),
    "a handle of a process": lambda a: os.close(os.pidfd_open(a["target"])),
    "ptrace": lambda a: raw(101, 117, 0x4206, a["target"], 0, 0),  # PTRACE_SEIZE: stops nothing
    "process_vm_readv": lambda a: _vm(a, (310, 270)),
    "process_vm_writev": lambda a: _vm(a, (311, 271)),
    "read /proc/PID/mem": lambda a: _memory(a, os.O_RDONLY),
    "write /proc/PID/mem": lambda a: _memory(a, os.O_RDWR),
    "read /proc/PID/environ": lambda a: _read_file(f"/proc/{a['target']}/environ"),
    "read /proc/PID/maps": lambda a: _read_file(f"/proc/{a['target']}/maps"),
    "open a file of another process": lambda a: _on(f"/proc/{a['target']}/fd/0", bool),
    "write /proc/PID/oom_score_adj": lambda a: _on(f"/proc/{a['target']}/oom_score_adj", bool, os.O_WRONLY),
    "sched_setaffinity": lambda a: os.sched_setaffinity(a["target"], os.sched_getaffinity(a["target"])),
    "sched_setscheduler": lambda a: os.sched_setscheduler(a["target"], os.SCHED_OTHER, os.sched_param(0)),
    "setpriority": lambda a: os.setpriority(os.PRIO_PROCESS, a["target"], 0),
    "ioprio_set": lambda a: raw(251, 30, 1, a["target"], 0),
    "move_pages": lambda a: raw(279, 239, a["target"], 0, None, None, None, 0),
    "perf_event_open": lambda a: os.close(
        raw(298, 241, struct.pack("<IIQ", 1, 112, 0) + bytes(96), a["target"], -1, -1, 0)
    ),
    # processes and programs of its own
    "fork": lambda a: _fork(os.fork),
    "clone": lambda a: _fork(lambda: raw(56, 220, signal.SIGCHLD, 0, 0, 0, 0)),
    "clone3": lambda a: _fork(lambda: raw(435, 435, struct.pack("<8Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)),
    "run a program": lambda a: subprocess.run(["true"], check=True),
    "spawn a program": lambda a: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "run a program from memory": _run_memfd,
    "outlive the host": lambda a: _prctl(1, 0),
    "be traced by anybody": lambda a: _prctl(4, 1),
    "leave the session": lambda a: _fork(lambda: _child(lambda: (os.setsid(), os._exit(0)))),
    # files
    "open to write": lambda a: _on(_there(a), bool, os.O_WRONLY),
    "open to append": lambda a: _on(_there(a), bool, os.O_WRONLY | os.O_APPEND),
    "create": lambda a: _on(_there(a, "new"), bool, os.O_CREAT | os.O_RDONLY),
    "a file without a name": lambda a: _on(a["folder"], bool, os.O_TMPFILE | os.O_RDWR),
    "openat2": lambda a: os.close(
        raw(437, 437, -100, _there(a).encode() + b"\0", struct.pack("<3Q", os.O_RDWR, 0, 0), 24)
    ),
    "truncate": lambda a: os.truncate(_there(a), 4),
    "chmod": lambda a: os.chmod(_there(a), 0o644),
    "chmod of an open file": lambda a: _on(_there(a), lambda f: os.fchmod(f, 0o644)),
    "chown": lambda a: os.chown(_there(a), os.getuid(), os.getgid()),
    "chown of an open file": lambda a: _on(_there(a), lambda f: os.fchown(f, os.getuid(), os.getgid())),
    "utime": lambda a: os.utime(_there(a)),
    "utime of an open file": lambda a: _on(_there(a), os.utime),
    "setxattr": lambda a: os.setxattr(_there(a), "user.x", b"y"),
    "removexattr": lambda a: os.removexattr(_there(a), "user.x"),
    "chattr": lambda a: _on(_there(a), _attributes),
    "rename": lambda a: (os.rename(_there(a), _there(a, "other")), os.rename(_there(a, "other"), _there(a))),
    "link": lambda a: (os.link(_there(a), _there(a, "link")), os.unlink(_there(a, "link"))),
    "symlink": lambda a: (os.symlink("/", _there(a, "link")), os.unlink(_there(a, "link"))),
    "mkdir": lambda a: (os.mkdir(_there(a, "made")), os.rmdir(_there(a, "made"))),
    "fifo": lambda a: (os.mkfifo(_there(a, "fifo")), os.unlink(_there(a, "fifo"))),
    "lock": lambda a: _on(_there(a), lambda f: fcntl.flock(f, fcntl.LOCK_EX)),
    "watch": lambda a: os.close(raw(294, 26, 0)),
    "shared memory with a name": lambda a: _on(f"/dev/shm/tokitai-{os.getpid()}", bool, os.O_CREAT | os.O_RDONLY),
    # other ways to speak
    "unix socket": lambda a: _connect(socket.AF_UNIX, _there(a, "socket")),
    "abstract socket": lambda a: _connect(socket.AF_UNIX, "\0" + a["abstract"]),
    "TCP": lambda a: _connect(socket.AF_INET, ("127.0.0.1", 9)),
    "UDP": lambda a: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "netlink": lambda a: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
    "socketpair": lambda a: [s.close() for s in socket.socketpair()],
    "System V memory of another": lambda a: raw(30, 196, a["shm"], 0, 0),
    "memfd": lambda a: os.close(os.memfd_create("mine")),
    "keyrings": lambda a: raw(250, 219, 0, -3, 1),
    "a key": lambda a: raw(248, 217, b"user\0", b"tokitai\0", b"x", 1, -2),
    # identity, namespaces, interfaces of the kernel
    "setuid": lambda a: os.setuid(os.getuid()),
    "setgroups": lambda a: os.setgroups(os.getgroups()),
    "capset": _capset,
    "personality": lambda a: raw(135, 92, raw(135, 92, 0xFFFFFFFF)),
    "raise a limit": lambda a: resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU)),
    "mount namespace": lambda a: raw(272, 97, 0x20000),
    "chroot": lambda a: os.chroot("/"),
    "io_uring": lambda a: os.close(raw(425, 425, 1, ctypes.create_string_buffer(120))),
    "bpf": lambda a: os.close(raw(321, 280, 0, struct.pack("<5I", 2, 4, 4, 1, 0) + bytes(100), 72)),
    "userfaultfd": lambda a: os.close(raw(323, 282, 1)),
    "a file by its handle": lambda a: os.close(raw(430, 430, b"tmpfs\0", 0)),
    "a filter of its own": lambda a: raw(317, 277, 2, 0, struct.pack("<I", 0x7FFF0000)),  # is this action known?
    "user namespace": lambda a: raw(272, 97, 0x10000000),  # last: it takes privileges away
}


def attempt(arguments: Arguments, tensors: list[memoryview]) -> dict[str, str]:
    """Every attempt: "done", or the error that it met."""
    found = {}
    for name, act in ESCAPES.items():
        try:
            act(arguments)
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno or 0, str(error))
        except ValueError:  # how `resource` reports EPERM
            found[name] = "EPERM"
    return found


def call(arguments: Arguments, tensors: list[memoryview]) -> dict[str, str]:
    """Every system call of a list by its number, with arguments that mean nothing: the error of each."""
    found = {}
    for name, number in arguments["calls"].items():
        try:
            raw(number, number, *[-1] * 6)
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    return found


def other_abi(arguments: Arguments, tensors: list[memoryview]) -> None:
    """getpid by a number of the x32 interface."""
    raw(0x40000000 | 39, None)
