"""Tensor maps: how Hopper's Tensor Memory Accelerator describes a matrix, by the driver's `cuTensorMapEncodeTiled`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache

from .driver import call, fail

BYTES, ALIGNED = 128, 64
_FORMATS = {"f16": 6, "bf16": 9}  # CUtensorMapDataType
_SWIZZLED_128, _PROMOTED_256 = 3, 3  # CUtensorMapSwizzle, CUtensorMapL2promotion
MOST_KNOWN = 4096


@lru_cache(maxsize=1)
def encoder() -> Callable[..., int]:
    """`cuTensorMapEncodeTiled` itself."""
    found = call("cuGetProcAddress", b"cuTensorMapEncodeTiled", 12000, 0, about="cuTensorMapEncodeTiled")
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4
    )
    return kind(int(found[0] if isinstance(found, tuple) else found))


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices of 16-bit elements, and the box that is copied of one at a time. Sides are given from the
    innermost on, whose elements are neighbours; strides in elements are multiples of 8, as the address is of 16."""

    format: str
    sides: tuple[int, int, int]  # the last is how many matrices there are
    strides: tuple[int, int]  # from line to line, and from matrix to matrix
    box: tuple[int, int]

    def encoded(self, address: int) -> bytes:
        """The map of what lies at an address. Raises DeviceError where the driver refuses it."""
        room = (ctypes.c_char * (BYTES + ALIGNED))()
        start = -ctypes.addressof(room) % ALIGNED
        sides = (ctypes.c_uint64 * 3)(*self.sides)
        strides = (ctypes.c_uint64 * 2)(*(2 * s for s in self.strides))
        box, steps = (ctypes.c_uint32 * 3)(*self.box, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
        status = encoder()(
            ctypes.addressof(room) + start, _FORMATS[self.format], 3, address, sides, strides, box, steps,
            0, _SWIZZLED_128, _PROMOTED_256, 0,
        )  # fmt: skip
        if status != 0:
            fail(status, "cuTensorMapEncodeTiled", f"{self} at {address:#x}")
        return bytes(room.raw[start : start + BYTES])


@dataclass(frozen=True)
class TensorMaps:
    """The maps of some of a call's tensors, as its kernels' parameter begins with them, then ``padding`` bytes."""

    matrices: tuple[tuple[int, Matrix], ...]  # which tensor, and what it is
    padding: int
    entered: Callable[[], AbstractContextManager[None]]  # makes the device's context the current one
    known: dict[tuple[int, ...], bytes] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return BYTES * len(self.matrices) + self.padding

    def at(self, addresses: Sequence[int]) -> bytes:
        """The bytes for tensors at these addresses."""
        key = tuple(addresses[i] for i, _ in self.matrices)
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            with self.entered():
                maps = [m.encoded(a) for (_, m), a in zip(self.matrices, key, strict=True)]
            found = self.known[key] = b"".join(maps) + bytes(self.padding)
        return found
