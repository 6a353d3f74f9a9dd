"""Entries that run kernels for the processor. They need the standard library alone: a new process is soon there.

A kernel comes as the file that the host has built, with its digest; the worker process never compiles, and the host
never loads what is to be isolated.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import Any

from ..errors import CacheError, CompileError, DeviceMissingError, KernelFaultError, TokitaiError
from ..toolchain.outside import messages_of
from .child import address

SYMBOL = "tokitai_kernel"

_loaded: dict[tuple[str, str], Any] = {}
_workspace = bytearray(1)


def launch(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """Run the kernel in the file ``path``, which has the SHA-256 ``digest``.

    ``at``: for each address that the kernel takes, the number of a tensor and a byte in it; ``sizes``, ``threads``: as
    it takes them; ``table``: the number of the tensor with its scalars; ``workspace``: [tensor, byte], or how many
    bytes it needs.
    """
    function, outside = _load(arguments["path"], arguments["digest"])
    at = [address(tensors[i]) + first for i, first in arguments["at"]]
    sizes, workspace = arguments["sizes"], arguments["workspace"]
    place = _room(workspace) if isinstance(workspace, int) else address(tensors[workspace[0]]) + workspace[1]
    status = function(
        (ctypes.c_void_p * len(at))(*at), (ctypes.c_int64 * len(sizes))(*sizes), address(tensors[arguments["table"]]),
        place, arguments["threads"],
    )  # fmt: skip
    if said := outside():
        raise KernelFaultError(said)
    if status != 0:
        raise TokitaiError(f"{arguments['path']}: status {status}; a kernel returns 0")


def _room(size: int) -> int:
    """Memory for a workspace, whatever it holds: kept from call to call."""
    global _workspace
    if len(_workspace) < size + 64:
        _workspace = bytearray(size + 64)
    start = ctypes.addressof(ctypes.c_char.from_buffer(_workspace))
    return start + -start % 64


def _load(path: str, digest: str) -> Any:
    """The function in a file, and what tells of accesses outside its arrays. Raises CacheError, DeviceMissingError,
    CompileError."""
    if (path, digest) not in _loaded:
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CacheError(f"{path}: cannot be read: {error}; build it again") from error
        if found != digest:
            raise CacheError(f"{path}: sha256 is {found}, not {digest} as built; build it again")
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
            function = library[SYMBOL]
        except OSError as error:
            raise DeviceMissingError(f"{path}: cannot be loaded: {error}") from error
        except AttributeError as error:
            raise CompileError(f"{path}: exports no {SYMBOL}") from error
        function.restype = ctypes.c_int32
        function.argtypes = [
            ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_int32,
        ]  # fmt: skip
        _loaded[path, digest] = function, messages_of(library)
    return _loaded[path, digest]


def nothing(arguments: dict[str, Any], tensors: list[memoryview]) -> None:
    """An answer: what a request costs by itself."""
