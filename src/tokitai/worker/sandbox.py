"""What foreign code may not do: a seccomp filter and a Landlock domain that a process puts on itself, for good.

Both are offered by the kernel to any process; neither needs privileges, and those of root are dropped. The filter
refuses (EPERM) system calls that code which computes has no use for: new processes and programs, signals to others,
memory of others, sockets, changes of files, limits, scheduling and identity, namespaces, mounts, interfaces with a
history of faults. Landlock lets files be read and run, and nothing be written, forbids TCP, and keeps memory and
environment of other processes out of reach. Neither hides files that the user can read, and neither is a boundary
against a fault of the kernel's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP, SECCOMP_MODE_FILTER = 38, 22, 24, 2
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
Calls = dict[str, tuple[int | None, int | None]]
REFUSED: Calls = {
    # processes, programs, signals to others
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "setsid": (112, 157),
    "setpgid": (109, 154), "kill": (62, 129), "tkill": (200, 130), "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "process_mrelease": (448, 448),
    # memory of others
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "get_robust_list": (274, 100),
    # sockets and other ways to speak
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # what a file is besides its content
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469), "mknod": (133, None),
    "mknodat": (259, 33), "open_by_handle_at": (304, 265), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "sync": (162, 81),
    "syncfs": (306, 267), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    # limits, scheduling, identity
    "setrlimit": (160, 164), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setgroups": (116, 159), "setresuid": (117, 147), "setresgid": (119, 149), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "personality": (135, 92), "lsm_set_self_attr": (460, 460),
    # namespaces and mounts
    "setns": (308, 268), "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "open_tree_attr": (467, 467), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # interfaces with a history of faults, and those of administrators
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_setup": (206, 0),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "seccomp": (317, 277),
    "modify_ldt": (154, None), "uselib": (134, None), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None), "vhangup": (153, 58),
}  # fmt: skip
# Refused as well where no folder may be written; where one may, Landlock says which.
CHANGES: Calls = {
    "creat": (85, None), "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35), "flock": (73, 32),
}  # fmt: skip
# Their arguments lie in memory, out of a filter's sight. They are said not to exist, and C libraries use older ones.
UNKNOWN: Calls = {"clone3": (435, 435), "openat2": (437, 437)}
NEWEST = 469  # calls of higher numbers have not been judged here: they do not exist either

CLONE, CLONE_THREAD = (56, 220), 0x10000
OPEN, OPENAT, WRITES = (2, None), (257, 56), 0x3 | 0o100 | 0o1000  # for writing, to create, to truncate
TGKILL = (234, 131)
PRCTL = (157, 167)
# Ask: death signal, dumpable, keep capabilities, name, seccomp, bounding set, securebits, no new privileges. Set: the
# name, no new privileges, huge pages, names of mappings. Ask: the auxiliary vector.
PRCTL_ALLOWED = (2, 3, 7, 15, 16, 21, 23, 27, 38, 39, 41, 42, 0x53564D41, 0x41555856)
PRLIMIT = (302, 261)
MMAP, SHARED_ANONYMOUS = (9, 222), 0x21
IOCTL = (16, 29)
IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # about terminals, bytes to read, how files are kept

DAC_READ_SEARCH = 2  # the only privilege of root's that is kept: it reads files of others


def enter(scratch: str | None = None, reads: Sequence[str] = ()) -> list[str]:
    """Give up what a kernel does not need. Returns what was done, and what this kernel does not offer, in words.

    With a folder ``scratch``, that alone may be written, and no files are read but those of programs (`PROGRAMS`), of
    ``sys.path``, below ``reads`` and in that folder.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = [] if scratch is not None else [_drop_capabilities(libc)]  # else its user namespace has seen to that
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        why = f"not offered by this kernel ({os.strerror(ctypes.get_errno())}); nothing is contained"
        return [*done, f"landlock: {why}", f"seccomp: {why}"]
    # The filter last: it would refuse nothing of the other, but need not show that.
    landlock = _landlock(libc, scratch, reads)
    domain = landlock.startswith("landlock: version")
    if not domain:
        landlock += "; not contained: memory and environment of other processes of this user can be read through /proc"
    return [*done, landlock, _seccomp(libc, writes=domain and scratch is not None)]


def _drop_capabilities(libc: ctypes.CDLL) -> str:
    """A superuser's privileges are not needed, but to read files of other users as before."""
    header = struct.pack("<Ii", 0x20080522, 0)  # version 3, this process
    held = ctypes.create_string_buffer(24)  # effective, permitted, inheritable: low words, then high words
    if libc.capget(header, held) != 0:
        return f"capabilities: not offered by this kernel ({os.strerror(ctypes.get_errno())})"
    effective, permitted, *_ = struct.unpack("<6I", held.raw)
    kept = effective & permitted & 1 << DAC_READ_SEARCH
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails where there is none, or no privilege to drop it
    if libc.capset(header, struct.pack("<6I", kept, kept, 0, 0, 0, 0)) != 0:
        return f"capabilities: kept ({os.strerror(ctypes.get_errno())})"
    return "capabilities: none but to read files" if kept else "capabilities: none"


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


def _seccomp(libc: ctypes.CDLL, writes: bool) -> str:
    machine = platform.machine()
    if machine not in ARCH:
        return f"seccomp: no filter for {machine}; there is one for {', '.join(ARCH)}"
    code = filter_for(machine, os.getpid(), writes)
    program = _Program(len(code) // 8, code)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        return f"seccomp: not offered by this kernel ({os.strerror(ctypes.get_errno())})"
    count = len(REFUSED) + len(UNKNOWN) + (0 if writes else len(CHANGES))
    return f"seccomp: {count} system calls are refused, and others but for some arguments"


LOAD, EQUAL, ABOVE, AT_LEAST, AND, ANSWER = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
ALLOW, REFUSE, NO_SUCH, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
NUMBER, ARCHITECTURE = 0, 4  # in struct seccomp_data

Step = tuple[int, int, int, int]


def _low(argument: int) -> Step:
    """Load the low word of an argument: all of one that the kernel takes as an int, or as bits."""
    return LOAD, 0, 0, 16 + 8 * argument


def _high(argument: int) -> Step:
    """Load the high word, which pointers have too."""
    return LOAD, 0, 0, 20 + 8 * argument


def _unless(number: int | None, allowed: Sequence[Step]) -> list[Step]:
    """For this call: steps that answer ALLOW, or lead to the refusal after them."""
    if number is None:
        return []
    body = [*allowed, (ANSWER, 0, 0, REFUSE)]
    return [(EQUAL, 0, len(body), number), *body]


def _one_of(values: Sequence[int]) -> list[Step]:
    """Allow where the word that is loaded is one of these."""
    return [step for v in values for step in ((EQUAL, 0, 1, v), (ANSWER, 0, 0, ALLOW))]


def filter_for(machine: str, process: int, writes: bool = False) -> bytes:
    """The filter of a process as BPF, each instruction (code, jump if true, jump if false, k) in eight bytes.
    ``writes``: some folder may be written."""
    which = list(ARCH).index(machine)
    code: list[Step] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, ARCH[machine]), (ANSWER, 0, 0, KILL)]
    code += [(LOAD, 0, 0, NUMBER)]
    code += [(AT_LEAST, 0, 1, X32), (ANSWER, 0, 0, KILL)] if machine == "x86_64" else []
    for calls, answer in ((REFUSED if writes else REFUSED | CHANGES, REFUSE), (UNKNOWN, NO_SUCH)):
        for n in sorted(n for both in calls.values() if (n := both[which]) is not None):
            code += [(EQUAL, 0, 1, n), (ANSWER, 0, 0, answer)]
    code += [(ABOVE, 0, 1, NEWEST), (ANSWER, 0, 0, NO_SUCH)]
    # A thread may be made, a process not.
    code += _unless(CLONE[which], [_low(0), (AND, 0, 0, CLONE_THREAD), (EQUAL, 1, 0, 0), (ANSWER, 0, 0, ALLOW)])
    # Files are opened to be read.
    for call, argument in () if writes else ((OPEN, 1), (OPENAT, 2)):
        code += _unless(call[which], [_low(argument), (AND, 0, 0, WRITES), *_one_of([0])])
    # A thread of this process gets a signal, as `abort` and `pthread_kill` send it.
    code += _unless(TGKILL[which], [_low(0), *_one_of([process])])
    # The process ends with its host, and nobody else may trace it: that cannot be changed.
    code += _unless(PRCTL[which], [_low(0), *_one_of(PRCTL_ALLOWED)])
    # Limits of this process may be read (no new value: both words of the pointer are 0), not set.
    reads = [_low(0), (EQUAL, 0, 5, 0), _low(2), (EQUAL, 0, 3, 0), _high(2), *_one_of([0])]
    code += _unless(PRLIMIT[which], reads)
    # Shared memory without a file would escape the memory limit.
    alone = [_low(3), (AND, 0, 0, SHARED_ANONYMOUS), (EQUAL, 1, 0, SHARED_ANONYMOUS), (ANSWER, 0, 0, ALLOW)]
    code += _unless(MMAP[which], alone)
    code += _unless(IOCTL[which], [_low(1), *_one_of(IOCTL_ALLOWED)])
    code += [(ANSWER, 0, 0, ALLOW)]
    return b"".join(struct.pack("<HBBI", *one) for one in code)
