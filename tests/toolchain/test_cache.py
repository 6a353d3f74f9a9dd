"""What the cache does with damage, and with folders that cannot be written."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from sample_kernels import scale_of, scaling

import tokitai.toolchain
from tokitai.errors import CacheError
from tokitai.toolchain import cache
from tokitai.toolchain.build import Artifact, build, native_isa
from tokitai.toolchain.compilers import Compiler
from tokitai.toolchain.fingerprint import FileStamp


class Maker:
    """Builds a little file in no time, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> cache.Made:
        self.count += 1
        (folder / "kernel.so").write_bytes(b"binary")
        return cache.Made("kernel.so", (FileStamp.of(Path(__file__)),), {"note": 1})


@pytest.fixture
def make() -> Maker:
    return Maker()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def truncate(path: Path, part: float) -> None:
    os.truncate(path, int(path.stat().st_size * part))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def left_of(place: Path, machine: str | None = None) -> Path:
    """What a killed build of this machine, or of another one, leaves beside an entry."""
    return place.with_name(f"{place.name}.build-{machine or cache._machine()}-left")


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "binary cut to nothing": lambda binary, record: truncate(binary, 0),
    "binary cut in half": lambda binary, record: truncate(binary, 0.5),
    "binary's first bit": lambda binary, record: flip(binary, 0),
    "binary's last bit": lambda binary, record: flip(binary, -1),
    "binary longer": lambda binary, record: binary.write_bytes(binary.read_bytes() + b"\0"),
    "binary removed": lambda binary, record: binary.unlink(),
    "record emptied": lambda binary, record: truncate(record, 0),
    "record cut in half": lambda binary, record: truncate(record, 0.5),
    "record removed": lambda binary, record: record.unlink(),
    "record is other JSON": lambda binary, record: record.write_text("[1]"),
    "record is no text": lambda binary, record: record.write_bytes(b"\xff\xfe\0"),
    "note changed in the record": lambda binary, record: edit(record, '"note": 1', '"note": 2'),
    "digest changed in the record": lambda binary, record: edit(record, '"sha256": "', '"sha256": "0'),
    "entry is a file": lambda binary, record: record.parent.rename(left_of(record.parent)).with_name("key").touch(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_healed_and_told(
    damage: str, make: Maker, cache_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C110."""
    first = cache.obtain("key", make)
    DAMAGES[damage](first.path, cache_root / "key" / "entry.json")
    with caplog.at_level(logging.WARNING, "tokitai"):
        healed = cache.obtain("key", make)
    assert not healed.cached
    assert healed.healed and "cache entry key" in healed.healed
    assert healed.healed in caplog.text
    assert healed.path.read_bytes() == b"binary"
    assert replace(cache.obtain("key", make), cached=False) == first
    assert make.count == 2
    assert sorted(path.name for path in cache_root.iterdir()) == ["key", "key.lock"]


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_truncated_kernel_still_gives_right_results(part: float, compiler: Compiler, cache_root: Path) -> None:
    artifact = build(scaling("2"), compiler, native_isa())
    truncate(artifact.path, part)
    healed = build(scaling("2"), compiler, native_isa())
    assert healed.healed and artifact.path.name in healed.healed
    assert (healed.path, healed.digest, scale_of(healed)) == (artifact.path, artifact.digest, 2)
    again = build(scaling("2"), compiler, native_isa())
    assert (again.cached, again.healed, again.seconds) == (True, None, healed.seconds)


def test_clean_up_errors_after_publication_do_no_harm(
    make: Maker, cache_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C107: the artifact is there; that a folder could not be removed is a warning."""

    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "busy", str(path))

    truncate(cache.obtain("key", make).path, 0)
    monkeypatch.setattr(shutil, "rmtree", busy)
    assert cache.obtain("key", make).healed
    assert "busy" in caplog.text
    assert cache.obtain("key", make).cached


def test_left_overs_of_a_killed_builder_are_removed(make: Maker, cache_root: Path) -> None:
    mine, other = left_of(cache_root / "key"), left_of(cache_root / "other")
    for folder in (mine, other):
        folder.mkdir(parents=True)
        (folder / "kernel.cpp").write_text("half")
    found = cache.obtain("key", make)
    assert (found.path.read_bytes(), found.notes) == (b"binary", {"note": 1})
    assert not mine.exists()
    assert other.exists(), "another key's builder may be alive"


def test_a_waiter_gives_up_in_bounded_time_and_names_the_lock(make: Maker, cache_root: Path) -> None:
    cache_root.mkdir(parents=True)
    path = cache_root / "key.lock"
    with FileLock(path), pytest.raises(CacheError, match=str(path)):
        cache.obtain("key", make, wait=0.2)
    assert not cache.obtain("key", make, wait=0.2).cached


def test_what_the_builder_raises_is_passed_on_and_leaves_nothing(make: Maker, cache_root: Path) -> None:
    def fails(folder: Path) -> cache.Made:
        (folder / "kernel.so").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.obtain("key", fails)
    assert [path.name for path in cache_root.iterdir()] == ["key.lock"]
    assert not cache.obtain("key", make).cached


def test_a_cache_that_was_deleted_is_made_again(make: Maker, cache_root: Path) -> None:
    cache.obtain("key", make)
    shutil.rmtree(cache_root.parent)
    assert not cache.obtain("key", make).cached
    assert cache.obtain("key", make).cached


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that nobody can write, root included: a file stands in its way."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENV_FOLDER, str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache"


def test_an_unwritable_folder_is_told_and_a_private_one_serves(
    unwritable: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    first = build(scaling("2"), compiler, native_isa())
    assert str(unwritable) in caplog.text and cache.ENV_FOLDER in caplog.text
    used = cache.folder()
    assert used.problem and str(unwritable) in used.problem
    assert first.path.is_relative_to(used.path)
    assert used.path.stat().st_mode & 0o777 == 0o700
    assert scale_of(first) == 2
    again: Artifact = build(scaling("2"), compiler, native_isa())
    assert again.cached
    assert caplog.text.count(str(used.path)) == 1, "told once a process"


def test_the_private_folder_is_removed_at_exit(unwritable: Path) -> None:
    code = "from tokitai.toolchain import cache; print(cache.folder().path)"
    environment = {**os.environ, "PYTHONPATH": str(Path(tokitai.toolchain.__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert str(unwritable) in ran.stderr, "a warning is shown even where logging is not set up"
    assert ran.stdout.strip() and not Path(ran.stdout.strip()).exists()


def test_no_folder_at_all_is_an_error(make: Maker, unwritable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable / "tmp"))
    with pytest.raises(CacheError, match=f"{unwritable}.*nor can a temporary folder"):
        cache.obtain("key", make)
