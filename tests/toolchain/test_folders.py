"""Folders that cannot serve as a cache: noexec, read-only, full, not writable, or of a user without a home."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sample_kernels import scale_of, scaling

from tokitai.errors import CacheError
from tokitai.toolchain import cache, folders
from tokitai.toolchain.build import build, native_isa
from tokitai.toolchain.compilers import Compiler

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


def make(folder: Path) -> cache.Made:
    (folder / "kernel.so").write_bytes(b"binary")
    return cache.Made("kernel.so", (), {})


def test_a_cache_is_used_as_soon_as_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(folders.ENV_FOLDER, str(tmp_path / "file" / "cache"))
    assert cache.obtain("key", make).path.is_relative_to(folders.folder().path)
    assert folders.folder().problem
    (tmp_path / "file").unlink()
    found = cache.obtain("key", make)
    assert found.path.is_relative_to(tmp_path / "file" / "cache") and folders.folder().problem is None


def mount(kind: str, target: Path, options: str, flags: int = 0) -> None:
    """Mount a file system in memory, in this process's own mount namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), str(target).encode(), kind.encode(), flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_namespace(act: Callable[[], None]) -> None:
    """Run in a child with mounts of its own; skip where this machine does not let it."""
    readable, writable = os.pipe()

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x20000) != 0 or libc.mount(b"none", b"/", None, 0x44000, None) != 0:  # private, recursive
            os.write(writable, b"no mount namespace")
            return
        try:
            act()
        except BaseException as error:
            os.write(writable, repr(error).encode()[:2000] or b"error")
            raise

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(120)
    os.close(writable)
    said = os.read(readable, 4000).decode()
    os.close(readable)
    if "no mount namespace" in said or "Operation not permitted" in said:
        pytest.skip(f"this process may not mount: {said}")
    assert said == "" and process.exitcode == 0, said


NOEXEC, READ_ONLY, REMOUNT = 8, 1, 32


@as_root
def test_a_cache_mounted_noexec(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for the processor go elsewhere, and the cause is named; what no processor loads stays."""
    place = tmp_path / "noexec"
    place.mkdir()
    monkeypatch.setenv(folders.ENV_FOLDER, str(place / "cache"))

    def act() -> None:
        mount("tmpfs", place, "mode=755", NOEXEC)
        found = folders.folder()
        assert "mounted noexec" in str(found.problem) and found.read_only is None, found
        artifact = build(scaling("2"), compiler, native_isa())
        assert scale_of(artifact) == 2
        assert not artifact.path.is_relative_to(place)
        assert folders.folder(executable=False).problem is None

    in_namespace(act)


@as_root
def test_a_filled_cache_that_is_read_only_is_read(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "filled"
    place.mkdir()
    monkeypatch.setenv(folders.ENV_FOLDER, str(place / "cache"))

    def act() -> None:
        mount("tmpfs", place, "mode=755")
        first = build(scaling("2"), compiler, native_isa())
        mount("tmpfs", place, "mode=755", REMOUNT | READ_ONLY)
        again = build(scaling("2"), compiler, native_isa())
        assert again.cached and again.path == first.path
        other = build(scaling("3"), compiler, native_isa())
        assert not other.cached and scale_of(other) == 3
        assert "Read-only file system" in str(folders.folder().problem)

    in_namespace(act)


@as_root
def test_a_full_disk_is_named(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "full"
    place.mkdir()
    monkeypatch.setenv(folders.ENV_FOLDER, str(place / "cache"))

    def act() -> None:
        mount("tmpfs", place, "size=128k,mode=755")
        for room in (24, 12, 4, 0):  # KiB that are left: for messages, for the source, for nothing
            with suppress(OSError), (place / "ballast").open("wb", buffering=0) as ballast:
                ballast.write(bytes((128 - room) << 10))
            try:
                build(scaling("2"), compiler, native_isa())
            except Exception as error:
                assert isinstance(error, CacheError), repr(error)
                assert "No space left on device" in str(error), str(error)
            else:
                raise AssertionError(f"a build in {room} KiB")
            shutil.rmtree(place / "cache")

    in_namespace(act)


@pytest.mark.parametrize("named", [None, "~somebody-who-is-not/cache"])
def test_a_user_without_a_home(
    named: str | None, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No HOME and no entry in the password database, as in a container with a user number of its own."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", folders.ENV_FOLDER):
        monkeypatch.delenv(name, raising=False)
    if named is not None:
        monkeypatch.setenv(folders.ENV_FOLDER, named)

    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert scale_of(build(scaling("2"), compiler, native_isa())) == 2
    assert "home directory" in caplog.text


def test_the_reason_is_in_the_error_where_nothing_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "no_execution", lambda path: f"{path} is on a file system that is mounted noexec")
    with pytest.raises(CacheError, match=r"mounted noexec.*nor can a temporary folder.*noexec"):
        cache.obtain("key", make)
