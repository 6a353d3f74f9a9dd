"""The cache of built binaries: one folder for each key, which appears at once and whole or not at all.

    <root>/<key>/                     the folder in which the build ran: source, headers, messages, binary, entry.json
    <root>/<key>.alt-<fingerprint>/   the same key, where the files that the compiler read were other ones
    <root>/<key>.lock                 held while a build of this key runs; the kernel frees it when its holder dies
    <root>/<key>.build-<machine>-*/   a build under way, or what a killed one left
    <root>/failed/<key>/              the last failed build of the key, kept to look at

A reader takes no lock. It trusts an entry only where this user or root owns it, nobody else can write to it,
entry.json carries its own digest and this key, and the binary has the digest that entry.json records. Any other entry
is removed and built again, and reported to the caller (`Entry.healed`).

Locks of a network file system may not hold between machines. So nothing depends on them but how often a kernel is
built: a build folder is removed only by the machine that made it (or when it is a day old), a sound entry is never
replaced, and whoever is second to publish uses his own build.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import CacheError
from .fingerprint import FileStamp, digest_of, file_digest, fingerprint
from .folders import ENV_FOLDER, Folder, folder, no_space, others_can_change, private_folder
from .process import asked_to_stop

__all__ = ["ENV_FOLDER", "Entry", "Folder", "Made", "folder", "keep_failed", "obtain", "read_built"]

logger = logging.getLogger("tokitai")

LOCK_SECONDS = 600.0  # longer than the longest build, so that a waiter gives up only where something is wrong
STEP_SECONDS = 0.5  # after which a waiter notices that it has been interrupted
OLD_SECONDS = 86400.0  # a build folder that is older belongs to no build that is under way, wherever it runs

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


class _Damaged(Exception):
    """An entry that is not what was published."""


class _Stale(Exception):
    """A sound entry, built from a file that has changed since."""


def obtain(key: str, make: Callable[[Path], Made], wait: float | None = None, executable: bool = True) -> Entry:
    """The entry of `key`; where there is none, `make` builds it in the empty folder that it is given.

    Among all processes and threads one builds and the others wait for it, at most `wait` seconds (`LOCK_SECONDS`).
    ``executable``: the processor loads the binary. Whatever `make` raises is passed on, and nothing is published.
    Raises CacheError.
    """
    where = folder(executable)
    for root in (where.path, where.read_only):
        if root is not None:
            with contextlib.suppress(_Damaged, _Stale):  # checked again under the lock: it may be replaced right now
                found = _find(root, key)
                if found is not None:
                    return found
    root = where.path
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # the whole cache may have been deleted since
    except OSError as error:
        raise CacheError(f"{root}: cannot be made: {error}") from error
    with _locked(root / f"{key}.lock", LOCK_SECONDS if wait is None else wait) as alone:
        healed = None
        try:
            found = _find(root, key)
            if found is not None:
                return found
        except _Damaged as damage:
            healed = f"cache entry {key}: {damage}; removed and built again"
            logger.warning("%s", healed)
        except _Stale as change:
            logger.info("cache entry %s: %s; built again", key, change)
        if alone:
            _remove_left(root, key)
        return _build(root, key, make, healed, executable)


# ------------------------------------------------------------------ reading
def _find(root: Path, key: str) -> Entry | None:
    """A sound and fresh entry, or None where there is no entry. Raises _Damaged and _Stale of the key's own."""
    try:
        return _read(root / key, key)
    except (_Damaged, _Stale):
        for other in sorted(root.glob(f"{key}.alt-*")):
            with contextlib.suppress(_Damaged, _Stale):
                found = _read(other, key)
                if found is not None:
                    return found
        raise


def _read(place: Path, key: str) -> Entry | None:
    """The entry at `place`, or None where there is none."""
    try:
        _check_owner(place, stat.S_ISDIR)
        _check_owner(place / _RECORD, stat.S_ISREG)
        sealed = json.loads((place / _RECORD).read_bytes())
        record = sealed["record"]
        if sealed["sha256"] != digest_of(record):
            raise _Damaged(f"{_RECORD} does not have the digest it carries")
        if record["key"] != key:
            raise _Damaged(f"{_RECORD} is of the key {record['key']}")
        reads = [FileStamp.from_json(read) for read in record["reads"]]
        name = record["binary"]
        if not name or os.path.basename(name) != name or name in (".", ".."):
            raise _Damaged(f"binary={name!r} is no plain file name")
        binary = place / name
        _check_owner(binary, stat.S_ISREG)
        found = file_digest(binary)
        if found != record["digest"]:
            raise _Damaged(f"{binary.name}: sha256 is {found}, recorded was {record['digest']}")
        entry = Entry(binary, record["digest"], record["fingerprint"], record["notes"], cached=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(place):
            return None
        raise _Damaged(f"{type(error).__name__}: {error}") from error
    for read in reads:
        if not read.unchanged():
            raise _Stale(f"{read.path} has changed")
    return entry


def _check_owner(path: Path, kind: Callable[[int], bool]) -> None:
    """Raise _Damaged where a link stands in its place, or another user owns it or can write to it."""
    status = path.lstat()
    if not kind(status.st_mode):
        raise _Damaged(f"{path.name} is neither a folder nor a file of its own")
    problem = others_can_change(path, status)
    if problem is not None:
        raise _Damaged(problem)


# ------------------------------------------------------------------ building
def _build(root: Path, key: str, make: Callable[[Path], Made], healed: str | None, executable: bool) -> Entry:
    try:
        work = Path(tempfile.mkdtemp(prefix=f"{key}.build-{_machine()}-", dir=root))
    except OSError as error:
        raise CacheError(f"{root}: no build folder can be made: {error}") from error
    try:
        try:
            made = make(work)
            digest = file_digest(work / made.binary)
        except OSError as error:
            full = no_space(root) if root.is_dir() else None
            raise CacheError(f"{root}: a build cannot be kept: {full or error}") from error
        # The name carries the digest: the dynamic loader takes two libraries of one path for the same one.
        name = Path(made.binary)
        path = work / f"{name.stem}-{digest[:16]}{name.suffix}"
        entry = Entry(path, digest, fingerprint(key, made.reads), made.notes, cached=False, healed=healed)
        try:
            (work / name).rename(path)
            _write_record(key, made.reads, entry)
            place = _publish(work, key, entry)
        except OSError as error:
            logger.warning("%s: a build cannot be kept: %s", root, error)
            place = None
        if place is None:
            place = _keep_private(work, executable)
        return replace(entry, path=place / path.name)
    finally:
        if work.exists():
            _remove(work)


def _write_record(key: str, reads: tuple[FileStamp, ...], entry: Entry) -> None:
    """Write entry.json beside the binary; neither can be written by others, whatever the umask. Raises OSError."""
    record = {
        "key": key,
        "binary": entry.path.name,
        "digest": entry.digest,
        "fingerprint": entry.fingerprint,
        "reads": [read.to_json() for read in reads],
        "notes": dict(entry.notes),
    }
    path = entry.path.with_name(_RECORD)
    path.write_text(json.dumps({"sha256": digest_of(record), "record": record}))
    for file in (path, entry.path):
        file.chmod(file.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _publish(work: Path, key: str, entry: Entry) -> Path | None:
    """Move the build to where readers look, and return that place; or one that holds the same bytes already. None where
    other builds stand there: they are left alone, but for an entry that was found damaged before. Raises OSError."""
    root = work.parent
    for place in (root / key, root / f"{key}.alt-{entry.fingerprint[:16]}"):
        if _moved(work, place):
            return place
        try:
            found = _read(place, key)
        except _Stale:
            continue
        except _Damaged:
            if entry.healed is None:
                continue  # it came while this build ran, from a machine that the lock does not bind
            aside = root / f"{key}.build-{_machine()}-old-{secrets.token_hex(4)}"
            place.rename(aside)  # a process that has the old binary loaded keeps its open file
            published = _moved(work, place)
            _remove(aside)
            if published:
                return place
        else:
            if found is not None and found.digest == entry.digest:
                return place
    return None


def _moved(work: Path, place: Path) -> bool:
    """Move a folder to where nothing stands; False where something does. Raises OSError."""
    try:
        work.rename(place)
        return True
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise


def _keep_private(work: Path, executable: bool) -> Path:
    """Move a build that cannot be published to a temporary folder, where it serves this process. Raises CacheError."""
    why = f"{work.parent}: a build cannot be published"
    place = private_folder(executable, why) / work.name
    try:
        return Path(shutil.move(work, place))
    except OSError as error:
        raise CacheError(f"{why}; nor can it be kept in {place.parent}: {error}") from error


def keep_failed(work: Path, key: str) -> Path:
    """Move the folder of a failed build aside, in place of an older failure of this key. Returns where it is now; where
    it cannot be kept, a warning is logged."""
    kept = work.parent / "failed" / key
    try:
        kept.parent.mkdir(exist_ok=True)
        _remove(kept)
        work.rename(kept)
        return kept
    except OSError as error:
        logger.warning("%s: a failed build cannot be kept: %s", kept, error)
        return work


def _remove_left(root: Path, key: str) -> None:
    """Remove what killed builds of a key left. The lock is held, so those of this machine are dead; one of another
    machine may be under way until it is too old for that, by the clock of the file system."""
    now: float | None = None
    for left in root.glob(f"{key}.build-*"):
        if not left.name.startswith(f"{key}.build-{_machine()}-"):
            try:
                if now is None:
                    with tempfile.NamedTemporaryFile(dir=root) as probe:
                        now = os.fstat(probe.fileno()).st_mtime
                if left.lstat().st_mtime > now - OLD_SECONDS:
                    continue
            except OSError:
                continue
        _remove(left)


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since it was started: what a lock of the kernel binds. Random where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16]
    except OSError:
        return secrets.token_hex(8)


def _remove(path: Path) -> None:
    """Remove what nobody needs. A failure is logged, and does no harm."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s: cannot be removed: %s", path, error)


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[bool]:
    """Hold the lock at `path`, of the kind that the kernel releases when its holder ends in whatever way. Gives False
    where the file system offers no locks: then several processes may build at once. Raises CacheError."""
    lock = FileLock(path, fallback_to_soft=False)
    until = time.monotonic() + seconds
    try:
        while not lock.is_locked and not asked_to_stop():
            with contextlib.suppress(Timeout) if time.monotonic() < until else contextlib.nullcontext():
                lock.acquire(timeout=min(seconds, STEP_SECONDS))
    except Timeout as error:
        raise CacheError(
            f"{path}: another process has held this lock for {seconds:g} s; it is free as soon as that process ends "
            f"(find it with `fuser {path}`)"
        ) from error
    except (OSError, NotImplementedError) as error:
        logger.warning("%s: cannot be locked: %s; several processes may build the same kernel", path, error)
        yield False
        return
    try:
        if asked_to_stop():
            raise CacheError(f"{path}: interrupted")
        yield True
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
