"""Which compiler is found, and what is said where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tokitai.errors import CompilerMissingError
from tokitai.toolchain.compilers import ENV_COMPILER, Compiler, all_compilers, find_compiler

FAKE = """#!/bin/sh
case "$1" in
    --version) echo "{version}" ;;
    -dM) printf '#define __GNUC__ 12\\n#define __x86_64__ 1\\n{macros}\\n' ;;
    *) echo ;;
esac
"""


def fake(path: Path, version: str = "g++ (Fake) 12.1.0", macros: str = "") -> Path:
    path.write_text(FAKE.format(version=version, macros=macros))
    path.chmod(0o755)
    return path


def test_order_of_preference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    newest = fake(tmp_path / "clang++-19", "clang version 19.1.7", "#define __clang__ 1")
    assert find_compiler().path == newest
    gcc = fake(tmp_path / "g++")
    assert find_compiler().path == gcc
    monkeypatch.setenv(ENV_COMPILER, "clang++-19")
    assert find_compiler().path == newest
    named = fake(tmp_path / "other", "g++ (Other) 13.2.0")
    found = find_compiler(str(named))
    assert (found.path, found.kind, found.machine, found.major) == (named, "gcc", "x86_64", 13)


def test_no_compiler_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissingError, match=r"apt install g\+\+"):
        find_compiler()
    assert all_compilers() == []


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("clang++-19", "clang-19"),
        ("clang++", "clang"),
        ("g++-13", r"g\+\+-13"),
        ("aarch64-linux-gnu-g++", r"g\+\+-aarch64-linux-gnu"),
        ("ccache g++", r"g\+\+"),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_a_compiler_asked_for_is_never_replaced(
    name: str, package: str, by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    if by_environment:
        monkeypatch.setenv(ENV_COMPILER, name)
    with pytest.raises(CompilerMissingError, match=rf"present: g\+\+.*apt install {package}`") as caught:
        find_compiler(None if by_environment else name)
    assert repr(name) in str(caught.value)
    assert (ENV_COMPILER in str(caught.value)) == by_environment


def test_a_stranger_is_refused(tmp_path: Path) -> None:
    path = fake(
        tmp_path / "icpx", "Intel(R) oneAPI DPC++/C++ Compiler 2024.0.0", "#define __INTEL_LLVM_COMPILER 20240000"
    )
    with pytest.raises(CompilerMissingError, match=r"oneAPI.*neither GCC nor Clang"):
        find_compiler(str(path))


def test_a_program_that_is_no_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho broken beyond repair >&2\nexit 7\n")
    broken.chmod(0o755)
    with pytest.raises(CompilerMissingError, match="exit status 7: broken beyond repair"):
        find_compiler(str(broken))
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING, "tokitai"):
        assert all_compilers() == []
    assert "broken beyond repair" in caplog.text


def test_a_new_version_text_or_binary_is_another_compiler(tmp_path: Path) -> None:
    first = find_compiler(str(fake(tmp_path / "g++", "g++ (Fake) 12.1.0")))
    second = find_compiler(str(fake(tmp_path / "g++", "g++ (Fake) 12.1.1")))
    assert first.path == second.path
    assert first.version != second.version
    assert first.digest != second.digest


def test_the_code_generator_behind_the_driver_is_part_of_the_identity(tmp_path: Path) -> None:
    backend = tmp_path / "cc1plus"
    backend.write_text("one")
    backend.chmod(0o755)
    driver = tmp_path / "g++"
    driver.write_text(
        FAKE.format(version="g++ (Fake) 12.1.0", macros="").replace("*) echo ;;", f"*) echo {backend} ;;")
    )
    driver.chmod(0o755)
    first = find_compiler(str(driver))
    link = tmp_path / "g++-link"  # identified anew, because what is known of a path is kept while its driver stays
    link.symlink_to(driver)
    assert find_compiler(str(link)).digest == first.digest
    backend.write_text("two")
    link.unlink()
    other = tmp_path / "g++-other"
    other.symlink_to(driver)
    assert find_compiler(str(other)).digest != first.digest


def test_real_compilers_are_listed_once_each(compiler: Compiler, wrapped: Callable[..., Compiler]) -> None:
    found = all_compilers()
    assert compiler in found
    assert len({entry.path.resolve() for entry in found}) == len(found)
    assert all(len(entry.digest) == 64 and entry.major for entry in found)
