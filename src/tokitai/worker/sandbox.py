"""What foreign code may not do: a seccomp filter and a Landlock domain that a process puts on itself, for good.

Both are offered by the kernel to any process; neither needs privileges. The filter refuses (EPERM) system calls that
code which computes has no use for: new processes and programs, signals to others, sockets, tracing, other limits,
namespaces, mounts, interfaces with a history of faults. Landlock lets files be read and run, and nothing be written,
and forbids TCP. Neither hides files that the user can read, and neither is a boundary against a fault of the kernel's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every machine
RULE_PATH_BENEATH = 1

# Access rights of Landlock's first version, and those that later versions added.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/nix", "/proc", "/sys", "/dev")
HANDLED = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))  # from version, rights to files
TCP = 0b11  # bind and connect, from version 4
SCOPES = 0b11  # abstract sockets and signals to processes outside, from version 6

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000  # the same machine under other numbers

# name: number on x86-64, number on aarch64 (None where it does not exist)
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "setrlimit": (160, 164), "setpriority": (140, 140),
    "setns": (308, 268), "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "init_module": (175, 105),
    "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142), "memfd_create": (319, 279),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
CLONE, CLONE_THREAD = (56, 220), 0x10000
CLONE3 = 435  # its flags lie in memory, out of a filter's sight: it is said not to exist, and C libraries use clone
PRCTL, PR_SET_PDEATHSIG = (157, 167), 1
PRLIMIT = (302, 261)
MMAP, SHARED_ANONYMOUS = (9, 222), 0x21


def enter(scratch: str | None = None, reads: Sequence[str] = ()) -> list[str]:
    """Give up what a kernel does not need. Returns what was done, and what this kernel does not offer, in words.

    With a folder ``scratch``, that alone may be written, and no files are read but those of programs (`PROGRAMS`), of
    ``sys.path``, below ``reads`` and in that folder.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ["seccomp: not offered by this kernel", "landlock: not offered by this kernel"]
    # The filter last: it would refuse nothing of the other, but need not show that.
    return [_landlock(libc, scratch, reads), _seccomp(libc)]


def _folders(scratch: str | None, reads: Sequence[str], files: int) -> dict[str, int]:
    """What may be done below which folder."""
    used = EXECUTE | READ_FILE | READ_DIR
    if scratch is None:
        return {"/": used}
    known = [*PROGRAMS, sys.prefix, sys.base_prefix, *sys.path, *reads]
    return {**{p: used for p in known if p and os.path.isdir(p)}, "/dev/null": READ_FILE | WRITE_FILE, scratch: files}


def _landlock(libc: ctypes.CDLL, scratch: str | None, reads: Sequence[str]) -> str:
    version = libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return f"landlock: not offered by this kernel ({os.strerror(ctypes.get_errno())})"
    files = sum(rights for since, rights in HANDLED if version >= since)
    rules = struct.pack("<QQQ", files, TCP if version >= 4 else 0, SCOPES if version >= 6 else 0)
    rules = rules[: 24 if version >= 6 else 16 if version >= 4 else 8]
    domain = libc.syscall(LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), 0)
    refused = "landlock: refused by this kernel"
    try:
        for path, rights in _folders(scratch, reads, files).items():
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = struct.pack("<Qi", rights, folder)
                if domain < 0 or libc.syscall(LANDLOCK_ADD, domain, RULE_PATH_BENEATH, rule, 0) < 0:
                    return f"{refused} ({os.strerror(ctypes.get_errno())})"
            finally:
                os.close(folder)
        if libc.syscall(LANDLOCK_RESTRICT, domain, 0) < 0:
            return f"{refused} ({os.strerror(ctypes.get_errno())})"
    finally:
        if domain >= 0:
            os.close(domain)
    if scratch is None:
        return f"landlock: version {version}, files are read and run but not written, no TCP"
    return f"landlock: version {version}, files of programs are read and run, a scratch folder is written, no TCP"


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp(libc: ctypes.CDLL) -> str:
    machine = platform.machine()
    if machine not in ARCH:
        return f"seccomp: no filter for {machine}; there is one for {', '.join(ARCH)}"
    code = filter_for(machine)
    program = _Program(len(code) // 8, code)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        return f"seccomp: not offered by this kernel ({os.strerror(ctypes.get_errno())})"
    return f"seccomp: {len(REFUSED) + 1} system calls are refused"


def filter_for(machine: str) -> bytes:
    """The filter as BPF, each instruction (code, jump if true, jump if false, k) in eight bytes."""
    which = list(ARCH).index(machine)
    numbers = sorted(n for both in REFUSED.values() if (n := both[which]) is not None)
    load, equal, at_least, all_of, answer = 0x20, 0x15, 0x35, 0x54, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
    number, architecture, first, third, fourth = 0, 4, 16, 32, 40  # in struct seccomp_data; low words of arguments
    code = [(load, 0, 0, architecture), (equal, 1, 0, ARCH[machine]), (answer, 0, 0, kill), (load, 0, 0, number)]
    code += [(at_least, 0, 1, X32), (answer, 0, 0, kill)] if machine == "x86_64" else []
    for n in numbers:
        code += [(equal, 0, 1, n), (answer, 0, 0, refuse)]
    code += [(equal, 0, 1, CLONE3), (answer, 0, 0, unknown)]
    # A thread may be made, a process not.
    code += [(equal, 0, 4, CLONE[which]), (load, 0, 0, first), (all_of, 0, 0, CLONE_THREAD)]
    code += [(equal, 0, 1, 0), (answer, 0, 0, refuse), (load, 0, 0, number)]
    # The process ends with its host: that cannot be changed.
    code += [(equal, 0, 3, PRCTL[which]), (load, 0, 0, first), (equal, 0, 1, PR_SET_PDEATHSIG)]
    code += [(answer, 0, 0, refuse), (load, 0, 0, number)]
    # Limits may be read (no new value in the third argument), not set: its low word is enough to tell.
    code += [(equal, 0, 3, PRLIMIT[which]), (load, 0, 0, third), (equal, 1, 0, 0), (answer, 0, 0, refuse)]
    code += [(load, 0, 0, number)]
    # Shared memory without a file would escape the memory limit.
    code += [(equal, 0, 4, MMAP[which]), (load, 0, 0, fourth), (all_of, 0, 0, SHARED_ANONYMOUS)]
    code += [(equal, 0, 1, SHARED_ANONYMOUS), (answer, 0, 0, refuse)]
    code += [(answer, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *one) for one in code)
