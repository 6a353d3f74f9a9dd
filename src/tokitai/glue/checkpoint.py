"""Checkpoints on disk, as sections: a safetensors file, a cover file, or a folder of one of three kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputFileError
from .boxes import box_of
from .distributed import METADATA, distributed_sections
from .json_fields import BYTES_OF_JSON, object_in, parsed
from .placement import Placement, Placements, cover_file, file_name, in_metadata
from .safetensors_file import stored_tensors
from .section import Absent, Section
from .stored import size_of

COVER = "cover.json"
ACCEPTED = (
    f"a .safetensors file, a cover file (.json), or a folder with {METADATA}, {COVER}, *.safetensors.index.json or "
    "*.safetensors in it"
)


@dataclass(frozen=True)
class Checkpoint:
    """What checkpoints hold: sections of tensors, those that are missing, and the names of what is no tensor."""

    sections: tuple[Section | Absent, ...]
    others: tuple[str, ...] = ()


def read(*paths: str | Path) -> Checkpoint:
    """The sections of checkpoints; no tensor is read yet. Raises InputFileError.

    A rank is called what the file says, else by its file's name. Of several checkpoints, a rank in a folder or a cover
    file is called by that one's path as well, and so is any that two of them have.
    """
    if not paths:
        raise InputFileError(f"no checkpoint; accepted: {ACCEPTED}")
    opened = [(str(path), _opened(Path(path))) for path in paths]
    if len(opened) == 1:
        return opened[0][1]
    ranks = [{s.rank for s in one.sections} for _, one in opened]
    found: list[Section | Absent] = []
    for path, one in opened:
        several = not path.endswith(".safetensors")
        for section in one.sections:
            shared = sum(section.rank in other for other in ranks) > 1
            rank = f"{path}/{section.rank}" if several else path if shared else section.rank
            found.append(replace(section, rank=rank, origin=f"{path}/{section.origin}" if several else path))
    return Checkpoint(tuple(found), tuple(name for _, one in opened for name in one.others))


def _opened(path: Path) -> Checkpoint:
    try:
        if path.is_dir():
            return _folder(path)
        if path.is_file() and path.suffix == ".json":
            return _cover(path)
        if path.is_file() and path.suffix == ".safetensors":
            return Checkpoint(tuple(_sections(path.parent, path.name, Placements())))
        there = f"suffix {path.suffix!r}" if path.is_file() else "no such file or folder"
    except (OSError, ValueError) as error:  # a name that no file can have
        there = f"cannot be read: {error}"
    raise InputFileError(f"{path}: {there}; accepted: {ACCEPTED}")


def _folder(path: Path) -> Checkpoint:
    if (path / METADATA).exists():
        sections, others = distributed_sections(path)
        return Checkpoint(tuple(sections), tuple(others))
    if (path / COVER).exists():
        return _cover(path / COVER)
    files = sorted(p.name for p in path.iterdir() if p.suffix == ".safetensors")
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        raise InputFileError(f"{path}: has {len(indices)} indices, such as {indices[1].name}; accepted: one")
    if indices:
        return _index(indices[0], files)
    if not files:
        raise InputFileError(f"{path}: holds no checkpoint; accepted: {ACCEPTED}")
    return Checkpoint(tuple(s for name in files for s in _sections(path, name, Placements())))


def _cover(path: Path) -> Checkpoint:
    """The files that a cover file names."""
    found: list[Section | Absent] = []
    for name, said in cover_file(_text(path), str(path)).items():
        if (path.parent / name).exists():
            found += _sections(path.parent, name, said)
        else:
            found += _absent(name, said)
    return Checkpoint(tuple(found))


def _index(path: Path, files: Iterable[str]) -> Checkpoint:
    """The files of a folder, and what its index says that they hold besides."""
    value = parsed(_text(path), str(path))
    map_ = object_in(value.get("weight_map"), f"{path}: weight_map")
    wanted = {name: file_name(file, f"{path}: {name!r}") for name, file in map_.items()}
    present = set(files) | {file for file in wanted.values() if (path.parent / file).exists()}
    found = [s for name in sorted(present) for s in _sections(path.parent, name, Placements())]
    held = {(s.origin, s.tensor) for s in found}
    at = {file: {tensor for origin, tensor in held if origin == file} for file in present}
    for tensor, file in wanted.items():
        if tensor not in at.get(file, ()):
            found.append(Absent(Path(file).stem, tensor, file))
    return Checkpoint(tuple(found))


def _sections(folder: Path, name: str, said: Placements) -> Sequence[Section | Absent]:
    """The sections of one file, and those that it should hold and does not."""
    tensors, metadata = stored_tensors(folder / name)
    own = in_metadata(metadata, str(folder / name))
    rank = said.rank or own.rank or Path(name).stem
    places = {**own.sections, **said.sections}
    found: list[Section | Absent] = []
    for key, values in tensors.items():
        place = places.get(key, Placement(key))
        if place.offset is not None and len(place.offset) != len(values.shape):
            axes = f"{len(values.shape)} indices, for shape {list(values.shape)}"
            raise InputFileError(f"{folder / name}: {key!r}: offset {list(place.offset)}; accepted: {axes}")
        found.append(Section(rank, place.tensor, values, place.offset, place.shape, name, place.dtype))
    lacking = {key: place for key, place in places.items() if key not in tensors}
    return [*found, *_absent(name, Placements(rank, lacking))]


def _absent(name: str, said: Placements) -> list[Section | Absent]:
    rank = said.rank or Path(name).stem
    return [Absent(rank, p.tensor, name, _whole(p), p.shape, p.dtype) for p in said.sections.values()]


def _whole(place: Placement) -> tuple[tuple[int, int], ...] | None:
    """The box of a section that is not there: known where it is the whole tensor."""
    known = place.offset is None and place.shape is not None
    return box_of((0,) * len(place.shape), place.shape) if known and place.shape is not None else None


def _text(path: Path) -> bytes:
    if size_of(path) > BYTES_OF_JSON:
        raise InputFileError(f"{path}: {path.stat().st_size} bytes; accepted: at most {BYTES_OF_JSON}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error
