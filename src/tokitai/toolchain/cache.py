"""The cache of built binaries: one folder for each key, which appears at once and whole or not at all.

    <root>/v1/<key>/                 the folder in which the build ran: source, headers, messages, binary, entry.json
    <root>/v1/<key>.lock             held while a build of this key runs; the kernel frees it when its holder dies
    <root>/v1/<key>.build-*/         a build under way, or what a killed one left; the next build of the key removes it
    <root>/v1/failed/<key>/          the last failed build of the key, kept to look at

A reader takes no lock. It trusts an entry only where entry.json carries its own digest and the binary has the digest
that entry.json records; any other entry is removed and built again, and the caller is told (`Entry.healed`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from ..errors import CacheError
from .fingerprint import SCHEMA, FileStamp, digest_of, file_digest, fingerprint

logger = logging.getLogger("tokitai")

ENV_FOLDER = "TOKITAI_CACHE_DIR"
LOCK_SECONDS = 600.0  # longer than the longest build, so that a waiter gives up only where something is wrong

_RECORD = "entry.json"


@dataclass(frozen=True)
class Made:
    """What a build left in its folder: the binary's name there, the other files it read, and notes to keep (JSON)."""

    binary: str
    reads: tuple[FileStamp, ...]
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A binary in the cache. ``healed`` says why an earlier entry of this key was damaged and replaced, or is None."""

    path: Path
    digest: str
    fingerprint: str
    notes: Mapping[str, Any]
    cached: bool
    healed: str | None = None


@dataclass(frozen=True)
class Folder:
    """The cache folder in use. ``problem`` says why it is a temporary one, private to this process, or is None."""

    path: Path
    problem: str | None


class _Damaged(Exception):
    """An entry that is not what was published."""


class _Stale(Exception):
    """A sound entry, built from a file that has changed since."""


def folder() -> Folder:
    """The cache folder: ``$TOKITAI_CACHE_DIR``, else the user's cache folder.

    Where it cannot be written, a warning is logged and a temporary folder serves this process alone. Raises CacheError
    where that cannot be had either.
    """
    wanted = os.environ.get(ENV_FOLDER) or platformdirs.user_cache_dir("tokitai")
    return _usable_folder(Path(wanted).expanduser().absolute())


@lru_cache(maxsize=8)
def _usable_folder(wanted: Path) -> Folder:
    path = wanted / f"v{SCHEMA}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return Folder(path, None)
    except OSError as error:
        problem = f"cache folder {wanted} cannot be written ({error}); set {ENV_FOLDER} to one that can"
    try:
        private = Path(tempfile.mkdtemp(prefix="tokitai-"))
    except OSError as error:
        raise CacheError(f"{problem}; nor can a temporary folder be made: {error}") from error
    atexit.register(_remove_in, os.getpid(), private)
    logger.warning("%s; kernels are kept in %s until this process ends", problem, private)
    return Folder(private, problem)


def _remove_in(pid: int, path: Path) -> None:
    if os.getpid() == pid:  # a forked child ends too, and its parent still needs the folder
        shutil.rmtree(path, ignore_errors=True)


def obtain(key: str, make: Callable[[Path], Made], wait: float | None = None) -> Entry:
    """The entry of `key`; where there is none, `make` builds it in the empty folder that it is given.

    Among all processes and threads one builds and the others wait for it, at most `wait` seconds (`LOCK_SECONDS`).
    Whatever `make` raises is passed on, and nothing is published. Raises CacheError.
    """
    root = folder().path
    place = root / key
    with contextlib.suppress(_Damaged, _Stale):  # looked at again under the lock: it may be replaced this very moment
        found = _read(place)
        if found is not None:
            return found
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # the whole cache may have been deleted since
    except OSError as error:
        raise CacheError(f"{root}: cannot be made: {error}") from error
    with _locked(root / f"{key}.lock", LOCK_SECONDS if wait is None else wait):
        healed = None
        try:
            found = _read(place)
            if found is not None:
                return found
        except _Damaged as damage:
            healed = f"cache entry {key}: {damage}; removed and built again"
            logger.warning("%s", healed)
        except _Stale as change:
            logger.info("cache entry %s: %s; built again", key, change)
        return _build(root, key, make, healed)


def _read(place: Path) -> Entry | None:
    """The entry at `place`, or None where there is none."""
    try:
        sealed = json.loads((place / _RECORD).read_bytes())
        record = sealed["record"]
        if sealed["sha256"] != digest_of(record):
            raise _Damaged(f"{_RECORD} does not have the digest it carries")
        reads = [FileStamp.from_json(read) for read in record["reads"]]
        binary = place / record["binary"]
        found = file_digest(binary)
        if found != record["digest"]:
            raise _Damaged(f"{binary.name}: sha256 is {found}, recorded was {record['digest']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError) and not place.exists():
            return None
        raise _Damaged(f"{type(error).__name__}: {error}") from error
    for read in reads:
        if not read.unchanged():
            raise _Stale(f"{read.path} has changed")
    return Entry(binary, record["digest"], record["fingerprint"], record["notes"], cached=True)


def _build(root: Path, key: str, make: Callable[[Path], Made], healed: str | None) -> Entry:
    for left in root.glob(f"{key}.build-*"):  # we hold the lock: their builder is dead
        _remove(left)
    try:
        work = Path(tempfile.mkdtemp(prefix=f"{key}.build-", dir=root))
    except OSError as error:
        raise CacheError(f"{root}: no build folder can be made: {error}") from error
    try:
        made = make(work)
        digest = file_digest(work / made.binary)
        # The name carries the digest: the dynamic loader takes two libraries of one path for the same one.
        name = Path(made.binary)
        binary = f"{name.stem}-{digest[:16]}{name.suffix}"
        (work / made.binary).rename(work / binary)
        identity = fingerprint(key, made.reads)
        record = {
            "key": key,
            "binary": binary,
            "digest": digest,
            "fingerprint": identity,
            "reads": [read.to_json() for read in made.reads],
            "notes": dict(made.notes),
        }
        (work / _RECORD).write_text(json.dumps({"sha256": digest_of(record), "record": record}, indent=1))
        _publish(work, root / key)
        return Entry(root / key / binary, digest, identity, made.notes, cached=False, healed=healed)
    except OSError as error:
        raise CacheError(f"{root}: a build cannot be kept: {error}") from error
    finally:
        if work.exists():
            _remove(work)


def _publish(work: Path, place: Path) -> None:
    """Move `work` to `place`, where an unusable entry may stand."""
    if place.exists():
        aside = place.with_name(f"{place.name}.build-old")
        place.rename(aside)  # a process that has the old binary loaded keeps its open file
        work.rename(place)
        _remove(aside)
    else:
        work.rename(place)


def keep_failed(work: Path, key: str) -> Path:
    """Move the folder of a failed build aside, in place of an older failure of this key. Returns where it is now."""
    kept = folder().path / "failed" / key
    try:
        kept.parent.mkdir(exist_ok=True)
        _remove(kept)
        work.rename(kept)
    except OSError as error:
        raise CacheError(f"{kept}: a failed build cannot be kept: {error}") from error
    return kept


def _remove(path: Path) -> None:
    """Remove what nobody needs. That it cannot be removed is told, and does no harm."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s: cannot be removed: %s", path, error)


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock at `path`, of the kind that the kernel releases when its holder ends in whatever way."""
    lock = FileLock(path, timeout=seconds, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise CacheError(
            f"{path}: another process has held this lock for {seconds:g} s; it is free as soon as that process ends "
            f"(find it with `fuser {path}`)"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise CacheError(f"{path}: cannot be locked: {error}; set {ENV_FOLDER} to a folder on a local disk") from error
    try:
        yield
    finally:
        lock.release()


def read_built(path: Path, digest: str) -> bytes:
    """What a build left there. Raises CacheError where the file is gone or has changed since."""
    try:
        found = file_digest(path)
        if found == digest:
            return path.read_bytes()
    except OSError as error:
        raise CacheError(f"{path}: cannot be read: {error}; build it again") from error
    raise CacheError(f"{path}: sha256 is {found}, not {digest} as built; build it again")
