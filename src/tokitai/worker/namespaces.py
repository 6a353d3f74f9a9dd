"""A user namespace of its own for a process that runs foreign code: without capabilities, network or shared objects.

What is in a user namespace below the host's may not trace the host, nor read or write its memory (`/proc/PID/mem`),
though both belong to the same user. A process without threads may make one where the kernel lets users do so.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

NEWUSER, NEWNET, NEWIPC, NEWUTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000
CAPABILITIES = struct.pack("<Ii", 0x20080522, 0)  # version 3, of this process
NO_CAPABILITIES = struct.pack("<6I", *[0] * 6)


def enter() -> str:
    """Leave the host's user namespace, and give up all capabilities. Returns what was done in words."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    made = libc.unshare(NEWUSER | NEWNET | NEWIPC | NEWUTS) == 0
    why = os.strerror(ctypes.get_errno())
    if made:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    dropped = libc.capset(CAPABILITIES, NO_CAPABILITIES) == 0
    capabilities = "no capabilities" if dropped else "capabilities are kept"
    where = "its own, no network" if made else f"not offered by this kernel ({why})"
    return f"user namespace: {where}, {capabilities}"
