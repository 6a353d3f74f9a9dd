"""Folders that `torch.distributed.checkpoint` wrote: `.metadata` says which file holds which part of which tensor.

Each part lies in its file as an archive of `torch.save`, which is a zip file: what it says of itself, type, shape and
where its elements are, is read and compared with what `.metadata` says.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InputFileError
from . import torch_pickle
from .boxes import box_of
from .dtypes import ITEM_BYTES, TORCH
from .json_fields import shortened, sizes_in, string_in
from .placement import file_name
from .section import Absent, Section, Values
from .stored import Stored, Strided, row_major, size_of

METADATA = ".metadata"
BYTES_OF_METADATA = 2**30
BYTES_OF_PICKLE = 2**20  # of one tensor, which says its shape and type


def distributed_sections(folder: Path) -> tuple[list[Section | Absent], list[str]]:
    """The sections of a folder, and the names of what it holds that is no tensor. Raises InputFileError."""
    path = folder / METADATA
    if size_of(path) > BYTES_OF_METADATA:
        raise InputFileError(f"{path}: {path.stat().st_size} bytes; accepted: at most {BYTES_OF_METADATA}")
    try:
        metadata = torch_pickle.unpickled(path.read_bytes(), str(path))
    except OSError as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error
    state, stored = getattr(metadata, "state_dict_metadata", None), getattr(metadata, "storage_data", None)
    if not isinstance(metadata, torch_pickle.Metadata) or not isinstance(state, dict) or not isinstance(stored, dict):
        raise InputFileError(f"{path}: not metadata of a checkpoint: lacks state_dict_metadata or storage_data")
    where = dict(_where(stored, path))
    found: list[Section | Absent] = []
    others = []
    for name, entry in state.items():
        at = f"{path}: {shortened(name)}"
        if isinstance(entry, torch_pickle.BytesMetadata):
            others.append(string_in(name, str(path)))
            continue
        dtype, shape, chunks = _tensor(entry, at)
        for offset, sizes in chunks:
            if not math.prod(sizes):  # of a rank that holds nothing of the tensor; nothing is read
                found.append(Section("", name, Stored(folder, 0, dtype, sizes), offset, shape))
            elif (name, offset) in where:
                found.append(_section(folder, name, dtype, shape, offset, sizes, where[name, offset]))
            else:
                raise InputFileError(f"{at}: no file is named for its section at {list(offset)}")
    return found, others


def _where(stored: dict[Any, Any], path: Path) -> Iterator[tuple[tuple[str, tuple[int, ...]], Any]]:
    """Where each section of a tensor lies."""
    for index, info in stored.items():
        if not isinstance(index, torch_pickle.Index) or not isinstance(info, torch_pickle.StorageInfo):
            raise InputFileError(f"{path}: storage_data holds {shortened(index)}; accepted: sections of tensors")
        offset = getattr(index, "offset", None)
        if offset is not None:  # None for what is no tensor
            name = string_in(getattr(index, "fqn", None), f"{path}: a section")
            yield (name, sizes_in(offset, f"{path}: {name!r}: offset")), info


def _tensor(entry: Any, at: str) -> tuple[str, tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A tensor's type, shape and the offsets and sizes of its sections."""
    chunks, properties = getattr(entry, "chunks", None), getattr(entry, "properties", None)
    kind = getattr(properties, "state", None)
    kind = kind[0] if isinstance(kind, tuple) and kind else getattr(properties, "dtype", None)
    if not isinstance(entry, torch_pickle.TensorMetadata) or not isinstance(chunks, list):
        raise InputFileError(f"{at}: {shortened(entry)}; accepted: metadata of a tensor")
    if not isinstance(kind, torch_pickle.Dtype):
        raise InputFileError(f"{at}: type {shortened(kind)}; accepted: {', '.join(TORCH)}")
    shape = sizes_in(getattr(entry, "size", None), f"{at}: size")
    sections = []
    for chunk in chunks:
        offset = sizes_in(getattr(chunk, "offsets", None), f"{at}: offsets")
        sections.append((offset, sizes_in(getattr(chunk, "sizes", None), f"{at}: sizes")))
        if not len(offset) == len(sections[-1][1]) == len(shape):
            raise InputFileError(f"{at}: a section at {list(offset)}; accepted: {len(shape)} indices")
    return TORCH[kind], shape, sections


def _section(
    folder: Path, name: str, dtype: str, shape: tuple[int, ...], offset: tuple[int, ...], sizes: tuple[int, ...],
    info: Any,
) -> Section | Absent:  # fmt: skip
    file = file_name(getattr(info, "relative_path", None), f"{folder / METADATA}: {name!r}")
    numbered = re.fullmatch(r"__(\d+)_\d+\.distcp", file)
    rank = numbered[1] if numbered else Path(file).stem
    if not (folder / file).exists():
        return Absent(rank, name, file, box_of(offset, sizes), shape, dtype)
    at = f"{folder / file}: {name!r} at {list(offset)}"
    if getattr(info, "transform_descriptors", None):
        raise InputFileError(f"{at}: transformed by {info.transform_descriptors}; accepted: what is stored as it is")
    (start, length) = sizes_in((getattr(info, "offset", None), getattr(info, "length", None)), at)
    values = archived(folder / file, start, length, at)
    if values.shape != sizes:
        raise InputFileError(f"{at}: has shape {list(values.shape)}, and {list(sizes)} in {METADATA}")
    return Section(rank, name, values, offset, shape, file, dtype)


def archived(path: Path, start: int, length: int, at: str) -> Values:
    """The tensor of an archive of `torch.save` that lies in a part of a file. Raises InputFileError."""
    size = size_of(path)
    if start + length > size:
        raise InputFileError(f"{at}: ends at byte {start + length}; the file is truncated to {size}")
    try:
        with open(path, "rb") as file, zipfile.ZipFile(_Part(file, start, length)) as archive:
            names = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if "byteorder" in names and archive.read(names["byteorder"]) != b"little":
                raise InputFileError(f"{at}: its byte order is not little; accepted: least significant byte first")
            if "data.pkl" not in names or names["data.pkl"].file_size > BYTES_OF_PICKLE:
                raise InputFileError(f"{at}: holds no tensor that torch.save wrote")
            tensor = torch_pickle.unpickled(archive.read(names["data.pkl"]), at, torch_pickle.storage)
            if not isinstance(tensor, torch_pickle.Rebuilt) or not isinstance(tensor.storage, torch_pickle.Storage):
                raise InputFileError(f"{at}: holds {type(tensor).__name__}; accepted: a tensor")
            data = names.get(f"data/{tensor.storage.key}")
            if data is None or data.compress_type != zipfile.ZIP_STORED:
                raise InputFileError(f"{at}: its data are compressed or not there; accepted: what torch.save writes")
            file.seek(start + data.header_offset)
            header = file.read(30)
            if len(header) < 30 or header[:4] != b"PK\3\4":
                raise InputFileError(f"{at}: the archive has no data where it says")
            position = data.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    except (
        OSError,
        zipfile.BadZipFile,
        NotImplementedError,
        EOFError,
        RuntimeError,
        ValueError,
        struct.error,
    ) as error:
        raise InputFileError(f"{at}: not an archive of torch.save: {error}") from error
    shape, strides = sizes_in(tensor.size, f"{at}: size"), sizes_in(tensor.stride, f"{at}: stride")
    (first,) = sizes_in((tensor.offset,), f"{at}: offset")
    dtype = TORCH[tensor.dtype] if isinstance(tensor.dtype, torch_pickle.Dtype) else tensor.storage.dtype
    if dtype not in ITEM_BYTES or len(strides) != len(shape):
        raise InputFileError(f"{at}: holds no tensor of a known type; accepted: {', '.join(TORCH)}")
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    bytes_needed = (first + extent) * ITEM_BYTES[dtype]
    if bytes_needed > data.file_size or position + data.file_size > length:
        raise InputFileError(f"{at}: needs {bytes_needed} bytes of {data.file_size}")
    begin = start + position + first * ITEM_BYTES[dtype]
    contiguous = all(n == 1 or s == r for n, s, r in zip(shape, strides, row_major(shape), strict=True))
    if contiguous:
        return Stored(path, begin, dtype, shape)
    return Strided(path, begin, dtype, shape, strides)


class _Part(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: io.BufferedReader, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._length)[whence]
        if self._at < 0:
            raise ValueError("before the beginning")
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer)[: max(0, self._length - self._at)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(wanted)
        self._at += count
        return count
