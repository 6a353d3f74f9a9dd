"""What worker processes could leave behind: processes, shared memory, descriptors."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path


def processes(host: int) -> list[int]:
    """The worker processes that a host has started, wherever they are now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) > 5 and words[3].endswith(b"worker/__main__.py") and words[5] == str(host).encode():
                found.append(int(folder.name))
    return found


def segments(process: int) -> int:
    """How many descriptors of shared memory a process holds, and how many mappings, once garbage is collected."""
    if _held(process):  # else there is nothing to let go of, and a collection is slow in a process with many objects
        gc.collect()
    return _held(process)


def _held(process: int) -> int:
    found = 0
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        found += "memfd:tokitai" in target or "/small/#" in target  # a file without a name
    maps = Path(f"/proc/{process}/maps").read_text().splitlines()
    return found + sum("memfd:tokitai" in line or "/small/#" in line for line in maps)


def ended(process: int) -> bool:
    """Whether a process is over: gone, or a zombie, which holds neither memory nor descriptors any more."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether the condition holds within some time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
