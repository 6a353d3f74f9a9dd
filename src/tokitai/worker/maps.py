"""Shared memory in this process's address space. Unlike Python's ``mmap`` objects, a mapping holds no descriptor: a
worker process, which may open few, can have any number of segments."""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def map_shared(descriptor: int, size: int) -> int:
    """Map a file's first bytes, their pages in place, to read and write. Returns the address. Raises OSError."""
    populate = getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | populate, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(address)


def unmap(address: int, size: int) -> None:
    """Take a mapping away. Nobody may read or write there any more."""
    _libc.munmap(address, size)


def free_pages(descriptor: int, size: int) -> None:
    """Give a file's pages back to the system, for every process that maps them."""
    _libc.fallocate(descriptor, PUNCH_HOLE, 0, size)
