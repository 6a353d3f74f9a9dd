"""The pickles of torch's checkpoints, read without torch and without running anything that they name.

A pickle names functions to call. Here only names of a short list are known, each of which stands for plain data; any
other one is refused by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from ..errors import InputFileError
from .dtypes import TORCH

_STORAGES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64", "UntypedStorage": "",
}  # fmt: skip


class Record:
    """An object of a class of torch that holds data alone: its attributes."""

    def __init__(self, *_: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} without {name}")

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update((str(name), value) for name, value in state.items())
        else:
            self.__dict__["state"] = state


class Metadata(Record):
    """All of a folder's metadata."""


class TensorMetadata(Record):
    """Of a tensor: properties, size, chunks."""


class BytesMetadata(Record):
    """Of what is no tensor."""


class Properties(Record):
    """Of a tensor: `state`, of which the first item is its type."""


class Chunk(Record):
    """Of a section: offsets, sizes."""


class Index(Record):
    """The key of a section: fqn, offset. Equal to itself alone, since its attributes may be set when it is a key."""


class StorageInfo(Record):
    """Where a section lies: relative_path, offset, length."""


class Dtype(str):
    """The name of a type of elements in torch."""

    __slots__ = ()  # shared by all pickles: none may set an attribute of it


class StorageType(str):
    """The name of a type of elements, as of a class of storages; empty for bytes."""

    __slots__ = ()


class Storage(Record):
    """A storage in an archive: its type, name and count of elements."""


class Rebuilt(Record):
    """A tensor: storage, offset, size, stride."""


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Rebuilt:
    return Rebuilt(storage=storage, offset=offset, size=size, stride=stride, dtype=None)


def _typed_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> Rebuilt:
    return Rebuilt(storage=storage, offset=offset, size=size, stride=stride, dtype=dtype)


def _first(value: Any = None, *rest: Any) -> Any:
    return value


def _path(*parts: Any) -> str:
    return "/".join(part for part in parts if isinstance(part, str))


_CHECKPOINT = "torch.distributed.checkpoint"
_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): dict,
    ("pathlib", "PosixPath"): _path, ("pathlib", "WindowsPath"): _path, ("pathlib._local", "PosixPath"): _path,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): _first,
    (f"{_CHECKPOINT}.metadata", "Metadata"): Metadata,
    (f"{_CHECKPOINT}.metadata", "TensorStorageMetadata"): TensorMetadata,
    (f"{_CHECKPOINT}.metadata", "BytesStorageMetadata"): BytesMetadata,
    (f"{_CHECKPOINT}.metadata", "TensorProperties"): Properties,
    (f"{_CHECKPOINT}.metadata", "ChunkStorageMetadata"): Chunk,
    (f"{_CHECKPOINT}.metadata", "MetadataIndex"): Index,
    (f"{_CHECKPOINT}.metadata", "StorageMeta"): Record,
    (f"{_CHECKPOINT}.metadata", "_MEM_FORMAT_ENCODING"): _first,
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"): StorageInfo,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _typed_tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    **{("torch", name): Dtype(name) for name in TORCH},
    **{("torch", name): StorageType(dtype) for name, dtype in _STORAGES.items()},
    ("torch.storage", "UntypedStorage"): StorageType(),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._persistent = persistent

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"names {module}.{name}, which no checkpoint of tensors needs")
        return known

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("names data outside of it")
        return self._persistent(pid)


def unpickled(data: bytes, where: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """What a pickle holds, as plain data. Raises InputFileError, naming what it asks for and may not have."""
    try:
        return _Unpickler(data, persistent).load()
    except Exception as error:  # a pickle of a stranger can raise anything
        raise InputFileError(f"{where}: not metadata of a checkpoint: {error or type(error).__name__}") from error


def storage(pid: Any) -> Storage:
    """The storage that a tensor's pickle refers to."""
    kind, of, key, _, count = pid
    if kind != "storage" or not isinstance(of, StorageType) or not isinstance(key, str) or type(count) is not int:
        raise pickle.UnpicklingError("refers to what is no storage")
    return Storage(dtype=str(of), key=key, count=count)
