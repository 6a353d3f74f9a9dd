"""The header of a safetensors file: which tensors it holds, where, and its metadata. No tensor is read."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..errors import InputFileError
from .dtypes import ITEM_BYTES
from .json_fields import BYTES_OF_JSON, object_in, parsed, shortened, sizes_in
from .stored import Stored, size_of


def stored_tensors(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a file by name, and its metadata. Raises InputFileError: it is truncated, say, or no such file."""
    size = size_of(path)
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else None
            if length is None or length > min(size - 8, BYTES_OF_JSON):
                said = f"a header of {length} bytes" if length is not None else "no header"
                raise InputFileError(f"{path}: {size} bytes with {said}: truncated, or not a safetensors file")
            header = parsed(file.read(length), f"{path}: its header")
    except OSError as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error
    metadata = object_in(header.pop("__metadata__", {}), f"{path}: __metadata__")
    found = {}
    for name, said in header.items():
        at = f"{path}: {name!r}"
        entry = object_in(said, at)
        dtype, shape = entry.get("dtype"), sizes_in(entry.get("shape"), f"{at}: shape")
        offsets = sizes_in(entry.get("data_offsets"), f"{at}: data_offsets")
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise InputFileError(f"{at}: dtype {shortened(dtype)}; accepted: {', '.join(ITEM_BYTES)}")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
            raise InputFileError(f"{at}: data_offsets {list(offsets)} for shape {list(shape)} of {dtype}")
        if 8 + length + offsets[1] > size:
            raise InputFileError(f"{at}: ends at byte {8 + length + offsets[1]}; the file is truncated to {size}")
        found[name] = Stored(path, 8 + length + offsets[0], dtype, shape)
    try:
        with safe_open(path, "numpy"):
            return found, metadata
    except (SafetensorError, OSError) as error:
        raise InputFileError(f"{path}: not a whole safetensors file: {error}") from error
