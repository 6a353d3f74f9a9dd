"""Which folder keeps built kernels: the user's cache folder, or a temporary one where that cannot serve.

A kernel is code that this process runs, so the folder must be one in which nobody else can put a file: it belongs to
this user or to root, others cannot write to it, and the same holds for every folder above it (a sticky one, such as
/tmp, may be writable). A folder that cannot be written, but passes that check, is still read: a cache that was filled
beforehand serves many users and processes.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..errors import ArgumentError, CacheError
from .fingerprint import SCHEMA

logger = logging.getLogger("tokitai")

ENV_FOLDER = "TOKITAI_CACHE_DIR"
_OTHER_PLACES = ("/dev/shm", "/var/tmp")  # for a temporary folder, after the usual place


@dataclass(frozen=True)
class Folder:
    """The cache folder in use. ``problem`` says why it is a temporary one, private to this process, or is None;
    ``read_only`` is the user's cache folder where it is read, but builds are kept in ``path``."""

    path: Path
    problem: str | None
    read_only: Path | None = None


def folder(executable: bool = True) -> Folder:
    """The folder that serves now: ``$TOKITAI_CACHE_DIR``, else the user's cache folder. Checked at every call.

    Where that cannot be used, a warning is logged and a temporary folder serves this process alone. ``executable``: the
    processor loads and runs the files. Raises CacheError where no folder can be had.
    """
    named = os.environ.get(ENV_FOLDER)
    problem: str | None = None
    try:
        wanted = Path(named).expanduser().absolute() if named else _user_folder("cache")
    except (ArgumentError, RuntimeError, OSError) as error:
        problem = f"cache folder {named}: {error}" if named else str(error)
        return Folder(_private(executable, f"{problem}; set {ENV_FOLDER} to a folder"), problem)
    path = wanted / f"v{SCHEMA}"
    trusted = False
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        problem = f"cannot be written ({error})"
    try:
        others = stranger(path)
        trusted = others is None
        if others is not None:
            problem = f"is not used: {others}"
        elif problem is None:
            with tempfile.TemporaryFile(dir=path):
                pass
    except OSError as error:
        problem = problem or f"cannot be written ({error})"
    refused = no_execution(path) if executable else None
    if refused is not None:
        trusted, problem = False, f"cannot hold kernels for the processor: {refused}"
    if problem is None:
        return Folder(path, None)
    told = f"cache folder {wanted} {problem}; set {ENV_FOLDER} to a folder of your own that can be written"
    return Folder(_private(executable, told), told, path if trusted else None)


def _user_folder(what: str) -> Path:
    """The user's ``cache`` or ``state`` folder. Raises ArgumentError where the system does not know it."""
    try:
        return Path(getattr(platformdirs, f"user_{what}_dir")("tokitai")).expanduser().absolute()
    except (RuntimeError, KeyError, OSError) as error:  # no HOME, and no entry in the password database
        text = f"the user's {what} folder is not known ({error}); accepted: HOME set to a folder"
        raise ArgumentError(text) from error


def user_state_folder() -> Path:
    """Where certificates and records of the user are kept. Raises ArgumentError where the system does not know it."""
    return _user_folder("state")


def no_execution(path: Path) -> str | None:
    """Why programs cannot run from files in this folder, or None."""
    try:
        if os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0):
            return f"{path} is on a file system that is mounted noexec"
    except OSError:
        pass
    return None


def no_space(path: Path) -> str | None:
    """That nothing can be written to the file system of this folder, since it is full, or None."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


# ------------------------------------------------------------------ who can write there
def stranger(path: Path) -> str | None:
    """Who else can put files into this folder, in words, or None. Raises OSError."""
    resolved = path.resolve()
    system = Path("/").stat().st_uid  # not 0 in a container whose root is another user outside
    above = dict.fromkeys((*path.parents, *resolved.parents))
    for place in (resolved, *above):
        status = place.stat()
        owners = {os.geteuid(), 0} if place == resolved else {os.geteuid(), 0, system}
        problem = others_can_change(place, status, owners, sticky=place != resolved)
        if problem is not None:
            return problem
    return None


def others_can_change(
    path: Path, status: os.stat_result, owners: set[int] | None = None, sticky: bool = False
) -> str | None:
    """Which other user owns a file or a folder, or can write to it, in words, or None."""
    if status.st_uid not in (owners or {os.geteuid(), 0}):
        return f"{path} belongs to user {status.st_uid}, neither to you ({os.geteuid()}) nor to root"
    others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _own_group(status.st_gid))
    if others and not (sticky and status.st_mode & stat.S_ISVTX):
        return f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):o}); `chmod go-w` ends that"
    return None


def _own_group(gid: int) -> bool:
    """Whether a group is root's, or the user's own with no other member."""
    if gid == 0:
        return True
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


# ------------------------------------------------------------------ a temporary folder
_made: dict[tuple[int, bool], Path] = {}  # by process and use: a forked child makes its own


def _private(executable: bool, why: str) -> Path:
    """This process's temporary folder; `why` it is needed is logged when it is made. Raises CacheError."""
    key = (os.getpid(), executable)
    path = _made.get(key)
    if path is not None and path.is_dir() and others_can_change(path, path.stat(), {os.geteuid()}) is None:
        return path
    path = _made[key] = private_folder(executable, why)
    logger.warning("%s; kernels are kept in %s until this process ends", why, path)
    return path


def private_folder(executable: bool, why: str) -> Path:
    """A new temporary folder that is removed when this process ends. Raises CacheError, which says `why` it was
    needed."""
    found = []
    for place in (None, *(_OTHER_PLACES if executable else ())):
        try:
            path = Path(tempfile.mkdtemp(prefix="tokitai-", dir=place))
        except OSError as error:  # `tempfile` has tried several places itself
            found.append(str(error))
            break
        refused = no_execution(path) if executable else None
        if refused is None:
            atexit.register(_remove_in, os.getpid(), path)
            return path
        found.append(refused)
        path.rmdir()
    raise CacheError(f"{why}; nor can a temporary folder be made: {'; '.join(found)}")


def _remove_in(pid: int, path: Path) -> None:
    if os.getpid() == pid:  # a forked child ends too, and its parent still needs the folder
        shutil.rmtree(path, ignore_errors=True)
