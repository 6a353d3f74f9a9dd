"""A cache that other machines or other users reach: rivals that no lock binds, planted builds, folders of others."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from sample_kernels import scale_of, scaling

from tokitai.toolchain import cache, folders
from tokitai.toolchain.build import build, flags_of, key_of, native_isa
from tokitai.toolchain.compilers import Compiler
from tokitai.toolchain.fingerprint import FileStamp

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def maker(content: bytes, reads: tuple[Path, ...] = (), during: Callable[[Path], object] = lambda _: None) -> Any:
    def make(folder: Path) -> cache.Made:
        (folder / "kernel.so").write_bytes(content)
        during(folder)
        return cache.Made("kernel.so", tuple(map(FileStamp.of, reads)), {})

    return make


@pytest.fixture
def no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines on a network file system whose locks hold on each of them alone."""

    @contextmanager
    def held(path: Path, seconds: float) -> Any:
        yield True

    monkeypatch.setattr(cache, "_locked", held)


def elsewhere(monkeypatch: pytest.MonkeyPatch, name: str, make: Any) -> cache.Entry:
    """`obtain` on another machine."""
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_machine", lambda: name)
        return cache.obtain("key", make)


# ------------------------------------------------------------------ rivals on other machines
@pytest.mark.parametrize("theirs", [b"the same", b"other bytes"])
def test_who_loses_a_race_uses_its_own_build(
    theirs: bytes, no_lock: None, monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    won: list[cache.Entry] = []

    def rival(_: Path) -> None:
        won.append(elsewhere(monkeypatch, "rival", maker(theirs)))

    mine = cache.obtain("key", maker(b"the same", during=rival))
    assert not mine.cached and mine.healed is None
    assert mine.path.read_bytes() == b"the same"
    assert won[0].path.read_bytes() == theirs, "the rival's build is in use"
    assert cache.obtain("key", maker(b"never")).cached
    assert not list(cache_root.glob("*.build-*"))


def test_a_build_under_way_on_another_machine_is_left_alone(
    no_lock: None, monkeypatch: pytest.MonkeyPatch, cache_root: Path
) -> None:
    """Neither by one who builds the same key meanwhile, nor by one who heals a damaged entry."""
    seen: list[bool] = []

    def rival(folder: Path) -> None:
        for _ in range(2):
            other = elsewhere(monkeypatch, "rival", maker(b"binary"))
            seen.append(folder.is_dir() and (folder / "kernel.so").read_bytes() == b"binary")
            other.path.write_bytes(b"damaged")

    mine = cache.obtain("key", maker(b"binary", during=rival))
    assert seen == [True, True]
    assert mine.path.read_bytes() == b"binary"


def test_what_another_machine_left_is_removed_when_it_is_old(cache_root: Path) -> None:
    young, old = (cache_root / f"key.build-another-{age}" for age in ("young", "old"))
    for place in (young, old):
        place.mkdir(parents=True)
        (place / "kernel.cpp").write_text("half")
    long_ago = time.time() - 2 * cache.OLD_SECONDS
    os.utime(old, (long_ago, long_ago))
    cache.obtain("key", maker(b"binary"))
    assert young.is_dir() and not old.exists()


def test_machines_with_other_headers_keep_their_builds(tmp_path: Path, cache_root: Path) -> None:
    """One key, two sets of headers: each is built once, and nobody's binary is taken away."""
    header = tmp_path / "system.h"
    header.write_text("first")
    first = cache.obtain("key", maker(b"first", (header,)))
    header.write_text("second")
    second = cache.obtain("key", maker(b"second", (header,)))
    assert (second.cached, second.healed) == (False, None)
    assert first.path.read_bytes() == b"first", "another machine may be about to load it"
    assert cache.obtain("key", maker(b"never")).path == second.path
    header.write_text("first")
    assert cache.obtain("key", maker(b"never")).path == first.path


def test_a_file_system_without_locks_serves(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", refuses)
    assert not cache.obtain("key", maker(b"binary")).cached
    assert "No locks available" in caplog.text
    assert cache.obtain("key", maker(b"never")).cached


def test_a_build_that_cannot_be_published_is_used(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write_record", full)
    artifact = build(scaling("2"), compiler, native_isa())
    assert "No space left on device" in caplog.text
    assert scale_of(artifact) == 2


# ------------------------------------------------------------------ other users
def act_as(user: int, act: Callable[[], object]) -> None:
    """Do something in a process of another user."""

    def run() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        act()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(30)
    assert process.exitcode == 0


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that every user reaches and can write to, as /tmp is."""
    for place in (tmp_path, *tmp_path.parents):
        if str(place).startswith("/tmp/"):
            place.chmod(0o755)
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o1777)
    return path


def planted_key(compiler: Compiler) -> str:
    return key_of(scaling("2"), compiler, flags_of(compiler, native_isa()))


@as_root
@pytest.mark.parametrize("whose", ["the whole cache is theirs", "the cache is writable", "an entry is theirs"])
def test_a_build_that_another_user_planted_is_not_run(
    whose: str, compiler: Compiler, open_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The planted kernel multiplies by 666 under the key of one that multiplies by 2, with all digests right."""
    monkeypatch.setenv(folders.ENV_FOLDER, str(tmp_path / "theirs"))
    bad = build(scaling("666"), compiler, native_isa())
    key = planted_key(compiler)
    sealed = json.loads((bad.path.parent / "entry.json").read_text())
    sealed["record"]["key"] = key
    sealed["sha256"] = cache.digest_of(sealed["record"])
    (bad.path.parent / "entry.json").write_text(json.dumps(sealed))
    for path in (bad.path.parent.parent.parent, *bad.path.parent.parent.parent.rglob("*")):
        path.chmod(0o755)
    root = open_path / "cache"
    if whose == "an entry is theirs":  # it was planted before the folder was made safe
        (root / "v1").mkdir(parents=True)
        (root / "v1").chmod(0o777)
    elif whose == "the cache is writable":
        (root / "v1").mkdir(parents=True)
        root.chmod(0o755)
        (root / "v1").chmod(0o777)

    def plant() -> None:
        (root / "v1").mkdir(parents=True, exist_ok=True)
        shutil.copytree(bad.path.parent, root / "v1" / key)

    act_as(NOBODY, plant)
    if whose == "an entry is theirs":
        (root / "v1").chmod(0o755)
    assert (root / "v1" / key).stat().st_uid == NOBODY
    monkeypatch.setenv(folders.ENV_FOLDER, str(root))
    artifact = build(scaling("2"), compiler, native_isa())
    assert scale_of(artifact) == 2 and not artifact.cached
    said = {
        "the whole cache is theirs": f"belongs to user {NOBODY}", "the cache is writable": "can be written by others",
        "an entry is theirs": f"belongs to user {NOBODY}",
    }  # fmt: skip
    assert said[whose] in caplog.text


@as_root
def test_a_folder_above_the_cache_that_others_own_or_can_write(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode, owner, refused in (
        ("theirs", 0o755, NOBODY, True), ("writable", 0o777, 0, True), ("sticky", 0o1777, 0, False),
        ("mine", 0o755, 0, False),
    ):  # fmt: skip
        above = open_path / name
        (above / "cache").mkdir(parents=True)
        above.chmod(mode)
        os.chown(above, owner, owner)
        monkeypatch.setenv(folders.ENV_FOLDER, str(above / "cache"))
        assert (folders.folder().problem is not None) is refused, name


@as_root
def test_a_link_to_a_folder_of_others_is_no_way_around(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = open_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (open_path / "mine").mkdir()
    (open_path / "mine" / "cache").symlink_to(theirs)
    monkeypatch.setenv(folders.ENV_FOLDER, str(open_path / "mine" / "cache"))
    assert f"belongs to user {NOBODY}" in str(folders.folder().problem)


def test_a_binary_is_a_plain_name_in_its_entry(tmp_path: Path, cache_root: Path) -> None:
    first = cache.obtain("key", maker(b"binary"))
    outside = tmp_path / "outside.so"
    outside.write_bytes(b"binary")
    place = cache_root / "key"
    for i, name in enumerate([str(outside), "../../../outside.so", "..", "", "link.so", 7]):
        with suppress(FileExistsError):
            (place / "link.so").symlink_to(outside)
        sealed = json.loads((place / "entry.json").read_text())
        sealed["record"]["binary"] = name
        sealed["sha256"] = cache.digest_of(sealed["record"])
        (place / "entry.json").write_text(json.dumps(sealed))
        healed = cache.obtain("key", maker(b"binary"))
        assert healed.healed and healed.path == first.path, (i, name)


def test_an_entry_under_another_key_is_not_taken(cache_root: Path) -> None:
    cache.obtain("key", maker(b"binary"))
    (cache_root / "key").rename(cache_root / "other")
    healed = cache.obtain("other", maker(b"another"))
    assert healed.path.read_bytes() == b"another" and "is of the key key" in str(healed.healed)


def test_no_umask_makes_a_cache_that_others_can_write(cache_root: Path) -> None:
    before = os.umask(0)
    try:
        cache.obtain("key", maker(b"binary"))
    finally:
        os.umask(before)
    assert folders.folder().problem is None
    for path in (cache_root.parent, cache_root, cache_root / "key", *(cache_root / "key").iterdir()):
        assert path.stat().st_mode & 0o022 == 0, path
    assert cache.obtain("key", maker(b"never")).cached
