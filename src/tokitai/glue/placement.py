"""Where the tensors of a file lie in the tensors of the model: what files of shards, or a cover file beside them, say.

In the metadata of a safetensors file, under `tokitai.sections`, as JSON:

    {"rank": "3", "sections": {"w": {"offset": [9, 0], "shape": [19, 37]}, "head": {"tensor": "embedding"}}}

Each key names a tensor of the file. `tensor` is its name in the model, where that is another one; `offset` the index of
its first element there; `shape` that of the model's tensor; `dtype` the type that it should have. All are optional, and
so are the sections: what is not named is a whole tensor. A cover file has the same for several files, and names files
that must be there:

    {"files": {"rank3.safetensors": {"rank": "3", "sections": {...}}, ...}}

Files that `torch.distributed.checkpoint` writes as safetensors have the offsets under `DCP_SHARDING_INFO`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputFileError
from .dtypes import ITEM_BYTES
from .json_fields import object_in, parsed, shortened, sizes_in, string_in

SECTIONS, DCP_SECTIONS = "tokitai.sections", "DCP_SHARDING_INFO"  # keys of a file's metadata


@dataclass(frozen=True)
class Placement:
    """Where one tensor of a file lies."""

    tensor: str
    offset: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Placements:
    """Those of one file, and whose it is."""

    rank: str | None = None
    sections: Mapping[str, Placement] = field(default_factory=dict)


def placements(value: object, where: str) -> Placements:
    """What a file's entry says. Raises InputFileError."""
    entry = object_in(value, where)
    _only(entry, {"rank", "sections"}, where)
    rank = entry.get("rank")
    if type(rank) is int:
        rank = str(rank)
    sections = {}
    for name, said in object_in(entry.get("sections", {}), f"{where}: sections").items():
        at = f"{where}: {name!r}"
        fields = object_in(said, at)
        _only(fields, {"tensor", "offset", "shape", "dtype"}, at)
        dtype = fields.get("dtype")
        if dtype is not None and (not isinstance(dtype, str) or dtype not in ITEM_BYTES):
            raise InputFileError(f"{at}: dtype {shortened(dtype)}; accepted: {', '.join(ITEM_BYTES)}")
        sections[name] = Placement(
            string_in(fields.get("tensor", name), f"{at}: tensor"),
            sizes_in(fields["offset"], f"{at}: offset") if "offset" in fields else None,
            sizes_in(fields["shape"], f"{at}: shape") if "shape" in fields else None,
            dtype,
        )
    return Placements(None if rank is None else string_in(rank, f"{where}: rank"), sections)


def in_metadata(metadata: Mapping[str, Any], where: str) -> Placements:
    """What a safetensors file's metadata says of its own tensors. Raises InputFileError."""
    if SECTIONS in metadata:
        return placements(parsed(metadata[SECTIONS], f"{where}: {SECTIONS}"), f"{where}: {SECTIONS}")
    if DCP_SECTIONS in metadata:
        at = f"{where}: {DCP_SECTIONS}"
        found = {}
        for name, said in parsed(metadata[DCP_SECTIONS], at).items():
            offset = sizes_in(object_in(said, f"{at}: {name!r}").get("saved_offsets"), f"{at}: {name!r}: saved_offsets")
            found[name] = Placement(name, offset)
        return Placements(None, found)
    return Placements()


def cover_file(text: bytes, where: str) -> dict[str, Placements]:
    """What a cover file says of each file that it names. Raises InputFileError."""
    value = parsed(text, where)
    _only(value, {"files"}, where)
    if "files" not in value:
        raise InputFileError(f"{where}: has no files; accepted: an object with the key files")
    files = object_in(value["files"], f"{where}: files")
    return {file_name(name, where): placements(said, f"{where}: {name!r}") for name, said in files.items()}


def file_name(name: object, where: str) -> str:
    """The path of a file below the folder of the one that names it. Raises InputFileError."""
    text = string_in(name, f"{where}: a file")
    if not text.isprintable() or "\\" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise InputFileError(f"{where}: names the file {shortened(text)}; accepted: files in its folder, or below it")
    return text


def _only(fields: Mapping[str, object], accepted: set[str], where: str) -> None:
    other = sorted(set(fields) - accepted)
    if other:
        raise InputFileError(f"{where}: {shortened(other[0])}; accepted: {', '.join(sorted(accepted))}")
