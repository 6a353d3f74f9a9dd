"""Writing glued tensors to a safetensors file, in pieces and in any order."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArgumentError
from .cover import Cover
from .section import Array


class Writer:
    """A safetensors file that appears under its name when it is finished, and not before."""

    def __init__(self, path: Path, covers: Sequence[Cover]) -> None:
        self.path = path
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position, self._starts = 0, dict[str, int]()
        for cover in sorted(covers, key=lambda c: (-c.item_bytes, c.tensor)):  # so that each is aligned
            end = position + cover.bytes
            header[cover.tensor] = {"dtype": cover.dtype, "shape": cover.shape, "data_offsets": [position, end]}
            self._starts[cover.tensor], position = position, end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        name = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}")
        try:
            self._file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except OSError as error:
            raise ArgumentError(f"{path}: cannot be written ({error}); accepted: a file in a folder") from error
        self._name: Path | None = name
        os.pwrite(self._file, struct.pack("<Q", len(text)) + text, 0)
        os.ftruncate(self._file, self._data + position)

    def write(self, tensor: str, start: int, data: Array) -> None:
        """Put bytes of a tensor where they belong."""
        position, view = self._data + self._starts[tensor] + start, data.data
        while view:
            count = os.pwrite(self._file, view, position)
            position, view = position + count, view[count:]

    def finish(self) -> None:
        """Let the file appear."""
        if self._name is not None:
            try:
                os.replace(self._name, self.path)
            except OSError as error:
                raise ArgumentError(f"{self.path}: cannot be written ({error}); accepted: a file") from error
            self._name = None

    def close(self) -> None:
        """Remove what is not finished."""
        os.close(self._file)
        if self._name is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name)
            self._name = None
