"""Everything that can change the bytes is in the key, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokitai.toolchain import fingerprint
from tokitai.toolchain.build import Source, flags_of, key_of
from tokitai.toolchain.compilers import Compiler
from tokitai.toolchain.fingerprint import FileStamp, parse_depfile

GCC = Compiler(Path("/usr/bin/g++"), "gcc", "g++ (Fake) 12.1.0", "d" * 64, "x86_64")
SOURCE = Source("int x = A;", {"a.h": "#define A 1", "b.h": ""}, "kernel")


def key(source: Source = SOURCE, compiler: Compiler = GCC, **options: Any) -> str:
    return key_of(source, compiler, flags_of(compiler, **{"isa": "avx2", **options}))


CHANGES: dict[str, Callable[[], str]] = {
    "text": lambda: key(replace(SOURCE, text="int x = A; ")),
    "header text": lambda: key(replace(SOURCE, headers={"a.h": "#define A 2", "b.h": ""})),
    "header name": lambda: key(replace(SOURCE, headers={"a.h": "#define A 1", "c.h": ""})),
    "text moved between headers": lambda: key(replace(SOURCE, headers={"a.h": "", "b.h": "#define A 1"})),
    "stem": lambda: key(replace(SOURCE, stem="other")),
    "isa": lambda: key(isa="scalar"),
    "wider isa": lambda: key(isa="avx512"),
    "structure": lambda: key(structure=True),
    "define": lambda: key(defines=("X=1",)),
    "define's value": lambda: key(defines=("X=2",)),
    "compiler version": lambda: key(compiler=replace(GCC, version="g++ (Fake) 12.1.1")),
    "compiler digest": lambda: key(compiler=replace(GCC, digest="e" * 64)),
    "compiler path": lambda: key(compiler=replace(GCC, path=Path("/opt/bin/g++"))),
    "compiler kind": lambda: key(compiler=replace(GCC, kind="clang")),
    "architecture": lambda: key(compiler=replace(GCC, machine="aarch64"), isa="scalar"),
}


def test_every_component_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"nothing": key(), **{name: change() for name, change in CHANGES.items()}}
    for variable in fingerprint.ENVIRONMENT:
        monkeypatch.setenv(variable, "/somewhere")
        keys[variable] = key()
        monkeypatch.setenv(variable, "")  # set but empty: `CPATH=` means the current folder to GCC
        keys[f"{variable} empty"] = key()
        monkeypatch.delenv(variable)
    for constant in ("NUMERICS_VERSION", "SCHEMA"):
        with monkeypatch.context() as patch:
            patch.setattr(fingerprint, constant, 99)
            keys[constant] = key()
    assert len(set(keys.values())) == len(keys)
    assert key() == keys["nothing"]


def test_the_order_of_headers_does_not_matter() -> None:
    assert key(replace(SOURCE, headers=dict(reversed(list(SOURCE.headers.items()))))) == key()


@pytest.mark.parametrize("variable", ["HOME", "PWD", "LANG", "TMPDIR", "OMP_NUM_THREADS"])
def test_other_variables_do_not_matter(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv(variable, "/elsewhere")
    assert key() == before


def test_files_read_are_part_of_the_fingerprint() -> None:
    one, two = FileStamp("/a.h", 1, 1, "aa"), FileStamp("/b.h", 1, 1, "bb")
    base = fingerprint.fingerprint("key", [one, two])
    assert base == fingerprint.fingerprint("key", [two, one])
    assert base == fingerprint.fingerprint("key", [replace(one, mtime_ns=9), two])
    others = [("key", [one]), ("other", [one, two]), ("key", [replace(one, digest="ab"), two])]
    assert all(base != fingerprint.fingerprint(*other) for other in others)


def test_stamp_sees_an_edit_of_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "a.h"
    path.write_text("#define S 2")
    stamp = FileStamp.of(path)
    assert stamp.unchanged()
    path.write_text("#define S 3")
    os.utime(path, ns=(stamp.mtime_ns + 1, stamp.mtime_ns + 1))
    assert not stamp.unchanged()
    path.write_text("#define S 2")
    os.utime(path, ns=(7, 7))
    assert stamp.unchanged(), "the time alone says nothing"
    path.unlink()
    assert not stamp.unchanged()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("kernel.so: kernel.cpp a.h\n", ["kernel.cpp", "a.h"]),
        ("kernel.so: kernel.cpp \\\n /usr/include/a.h \\\n  b.h\n", ["kernel.cpp", "/usr/include/a.h", "b.h"]),
        ("k.so: /with\\ space/a.h /dollar$$/b.h /hash\\#/c.h\n", ["/with space/a.h", "/dollar$/b.h", "/hash#/c.h"]),
        ("k.so: \\\n  /lib/crti.o\n\n/lib/crti.o:\n", ["/lib/crti.o"]),
        ("/a:b/k.so: x.h\n", ["x.h"]),
        ("k.so:\n", []),
    ],
)
def test_depfile(text: str, names: list[str]) -> None:
    assert parse_depfile(text) == names
