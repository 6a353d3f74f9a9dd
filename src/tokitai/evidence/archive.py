"""Certificates of one folder in one file, each with exactly the bytes that it had as a file of its own.

``certificates.archive`` holds them in the form of `compact`: a line of magic, the number of digests, the digests, and
an xz stream with one line a certificate. ``certificates.sha256`` beside it, the index, names them with the SHA-256 of
their bytes, as ``sha256sum`` does: a changed certificate is a changed line, and other bytes than listed are refused.

A certificate in an archive has the path that it had as a file: whatever reads certificates through `read` takes either.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EvidenceError
from . import check
from .compact import Table, expanded, shortened

ARCHIVE, INDEX = "certificates.archive", "certificates.sha256"
MAGIC = b"tokitai certificates 1\n"
LARGEST = 1 << 26  # bytes of an archive
LARGEST_TEXT = 1 << 26  # bytes of its lines together; nine times those so far
LARGEST_LINE = 1 << 21  # of one; sixteen times the largest so far
LARGEST_INDEX = 1 << 22
MEMORY = 1 << 26  # bytes that decompressing may take beside its result
# Literal bytes are text of few letters, and nothing lies at even addresses.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 25, "lc": 4, "pb": 0}]
_HEAD = struct.Struct(f">{len(MAGIC)}sI")
_LISTED = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.json)")


# ---------------------------------------------------------------------- reading
def read(path: str | Path) -> check.Certificate:
    """The certificate at this path: a file, or in an archive of the folder. Raises OSError, and ValueError where it is
    none."""
    return check.opened(read_bytes(path)) if holds(path) else check.read(path)


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a certificate, a file or in an archive. Raises OSError, and ValueError for an archive that is
    damaged, too large, or gives other bytes than its index says."""
    path = Path(path)
    if not holds(path):
        return _limited(path, check.LARGEST)
    listed = _listed(path.parent)
    if path.name == ARCHIVE:
        raise ValueError(f"an archive of {len(listed)} certificates (accepted: its folder, or one that {INDEX} lists)")
    data = _opened(path.parent).certificate(path.name)
    if (digest := hashlib.sha256(data).hexdigest()) != listed[path.name]:
        raise ValueError(f"its SHA-256 is {digest}, where {path.with_name(INDEX)} says {listed[path.name]}")
    return data


def holds(path: str | Path) -> bool:
    """Whether this is an archive, or the path of a certificate in one and of no file: also where the index cannot be
    read, of which `read` then says why."""
    path = Path(path)
    if path.name == ARCHIVE:
        return os.path.lexists(path)
    if os.path.lexists(path) or not os.path.lexists(path.with_name(INDEX)):
        return False
    try:
        return path.name in _listed(path.parent)
    except (OSError, ValueError):
        return True


def members(folder: str | Path) -> list[Path]:
    """The certificates in the archive of a folder: none where it has no archive; where its index cannot be read the
    path of the archive, which `read` then refuses with the reason."""
    folder = Path(folder)
    if not os.path.lexists(folder / ARCHIVE) and not os.path.lexists(folder / INDEX):
        return []
    try:
        return [folder / name for name in _listed(folder)]
    except (OSError, ValueError):
        return [folder / ARCHIVE]


@dataclass(frozen=True)
class _Archive:
    """An archive's digests, and its certificates in the compact form: the number of the first new digest, and JSON."""

    where: Path
    digests: bytes
    lines: Mapping[str, tuple[int, bytes]]

    def certificate(self, name: str) -> bytes:
        begin, line = self.lines[name]
        try:
            value = check.parse(line)
            if isinstance(value, str):
                return value.encode("utf-8")
            table = Table(self.digests)
            table.begin(begin)
            return _text(expanded(value, table))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"damaged in {self.where}: {type(error).__name__}: {error}") from error


def _listed(folder: Path) -> dict[str, str]:
    """The SHA-256 of each certificate in the archive of a folder, by name."""
    return _index(folder / INDEX, _state(folder / INDEX))


def _opened(folder: Path) -> _Archive:
    path = folder / ARCHIVE
    found = _archive(path, _state(path))
    if found.lines.keys() != (listed := _listed(folder)).keys():
        here, there = sorted(found.lines.keys() - listed), sorted(listed.keys() - found.lines)
        raise ValueError(f"{path} has {here or 'nothing'} that {INDEX} does not list, and lacks {there or 'nothing'}")
    return found


def _state(path: Path) -> tuple[int, ...]:
    """What tells another file with this name from the one that was read."""
    try:
        state = os.stat(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file (accepted: {ARCHIVE} and {INDEX} together)") from error
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _index(path: Path, _: tuple[int, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _limited(path, LARGEST_INDEX).decode("utf-8").splitlines():
        matched = _LISTED.fullmatch(line)
        if matched is None or matched[2] in found:
            raise ValueError(f"{path}: {line[:80]!r} (accepted: a SHA-256, two spaces, NAME.json; each name once)")
        found[matched[2]] = matched[1]
    return found


@functools.lru_cache(maxsize=2)
def _archive(path: Path, _: tuple[int, ...]) -> _Archive:
    data = _limited(path, LARGEST)
    if len(data) < _HEAD.size or not data.startswith(MAGIC):
        raise ValueError(f"{path}: no archive of certificates (accepted: a file that begins with {MAGIC!r})")
    _, count = _HEAD.unpack_from(data)
    end = _HEAD.size + 32 * count
    if end > len(data):
        raise ValueError(f"{path}: truncated: {count} digests end at byte {end}, the file at byte {len(data)}")
    lines: dict[str, tuple[int, bytes]] = {}
    for line in _decompressed(path, data[end:]).split(b"\n"):
        parts = line.split(b"\t", 2)
        name = parts[0].decode("utf-8", "replace")
        if len(parts) < 3 or not parts[1].isdigit() or len(parts[1]) > 9 or name in lines:
            raise ValueError(
                f"{path}: damaged: the line {line[:60]!r} (accepted: NAME, a number, JSON; each name once)"
            )
        if len(line) > LARGEST_LINE:
            raise ValueError(f"{path}: {name} takes {len(line)} bytes (accepted: at most {LARGEST_LINE})")
        lines[name] = int(parts[1]), parts[2]
    return _Archive(path, data[_HEAD.size : end], lines)


def _decompressed(path: Path, data: bytes) -> bytes:
    """An xz stream's text; nothing is made beyond the limit, however much the stream would give."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        text = unpacker.decompress(data, LARGEST_TEXT + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"{path}: damaged: {error}") from error
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"{path}: more than {LARGEST_TEXT >> 20} MiB when decompressed")
    if not unpacker.eof:
        raise ValueError(f"{path}: truncated: its xz stream does not end")
    if unpacker.unused_data:
        raise ValueError(f"{path}: damaged: {len(unpacker.unused_data)} bytes behind the xz stream")
    return text


def _limited(path: Path, largest: int) -> bytes:
    with check.open_regular(path) as file:
        data = file.read(min(largest, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > largest:
        raise ValueError(f"{path}: more than {largest >> 20} MiB")
    return data


# ---------------------------------------------------------------------- writing
def write(certificates: Mapping[str, bytes], folder: Path) -> None:
    """Write the archive of a folder, with its index, in place of the ones that are there.

    Raises EvidenceError for a name that is none, a file that is no text, what `read` would refuse as too large, and a
    folder that cannot be written.
    """
    table, lines, listed = Table(), [], []
    for name, data in sorted(certificates.items()):
        row = f"{hashlib.sha256(data).hexdigest()}  {name}"
        if _LISTED.fullmatch(row) is None:
            raise EvidenceError(f"{name!r} (accepted: names of letters, digits, '_', '.' and '-' that end in .json)")
        listed.append(row)
        begin = table.begin(len(table))
        value, table = _compact(name, data, table)
        lines.append(f"{name}\t{begin}\t".encode() + value)
        if len(lines[-1]) > LARGEST_LINE:
            raise EvidenceError(
                f"{name}: {len(lines[-1])} bytes in the compact form (accepted: at most {LARGEST_LINE})"
            )
    text = b"\n".join(lines)
    made = _HEAD.pack(MAGIC, len(table)) + table.digests + lzma.compress(text, lzma.FORMAT_XZ, filters=_FILTERS)
    if len(text) > LARGEST_TEXT or len(made) > LARGEST:
        raise EvidenceError(f"{folder}: {len(text)} bytes of text, {len(made)} in all: too many for one archive")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in ((ARCHIVE, made), (INDEX, "".join(f"{row}\n" for row in listed).encode())):
            (folder / f"{file}.part").write_bytes(content)
            os.replace(folder / f"{file}.part", folder / file)
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be written: {error}") from error


def _compact(name: str, data: bytes, table: Table) -> tuple[bytes, Table]:
    """The compact form of a certificate, with the table that its digests are in; of one that would not come out again
    as it is, its text as a JSON string."""
    try:
        after, again = table.copy(), table.copy()
        value: Any = shortened(check.parse(data), after)
        again.digests = after.digests
        if _text(expanded(value, again)) == data:
            return _json(value), after
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # whatever a file holds is kept as it is
    try:
        return _json(data.decode("utf-8")), table
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{name}: no text in UTF-8: {error}") from error


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _text(statement: object) -> bytes:
    """A statement as `statement.write` writes it. Raises ValueError where that is too large."""
    made, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(statement):
        made.append(part)
        size += len(part)
        if size > check.LARGEST:
            raise ValueError(f"more than {check.LARGEST >> 20} MiB")
    return ("".join(made) + "\n").encode("utf-8")


def pack(folder: Path, without: Iterable[str] = ()) -> list[str]:
    """Put every ``.json`` file of a folder into its archive, in place of what has its name there, take out those named
    in ``without``, and remove the files, with their renderings. Returns the names that the archive then holds.

    Raises EvidenceError where a file cannot be read or a name in ``without`` is not there, and what `write` does.
    """
    files = sorted(path for path in folder.glob("*.json") if path.is_file())
    try:
        held = {path.name: read_bytes(path) for path in [*members(folder), *files]}
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{folder}: {error}") from error
    for name in without:
        if held.pop(name, None) is None:
            raise EvidenceError(f"{folder}: no certificate {name} to take out (accepted: {', '.join(held) or 'none'})")
    write(held, folder)
    for path in files:
        path.unlink()
        path.with_suffix(".md").unlink(missing_ok=True)
    return sorted(held)
