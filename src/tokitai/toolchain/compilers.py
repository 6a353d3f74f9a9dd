"""Find the C++ compilers of this machine and say exactly which ones they are.

An identity is more than a version number: distributions patch a compiler without renaming it, and a `g++` may be a
wrapper. So it holds the full version text and a digest over the files that generate code.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ..errors import CompilerMissingError
from .fingerprint import FileStamp, digest_of
from .process import run, shown

logger = logging.getLogger("tokitai")

ENV_COMPILER = "TOKITAI_CXX"
CANDIDATES = ("g++", "clang++", "clang++-19", "clang++-18", "clang++-17")
CROSS_CANDIDATES = ("aarch64-linux-gnu-g++", "x86_64-linux-gnu-g++")  # listed by `all_compilers`, used only by name

_PROBE_SECONDS = 30.0
_MACHINES = {"__x86_64__": "x86_64", "__aarch64__": "aarch64"}
_STRANGERS = {"__INTEL_LLVM_COMPILER", "__INTEL_COMPILER", "__NVCOMPILER"}  # approximate arithmetic unless told not to

Kind = Literal["gcc", "clang"]


@dataclass(frozen=True)
class Compiler:
    """One C++ compiler.

    ``path`` is where it was found, symbolic links kept: `clang++` and `ccache` links behave by the name they are called
    by. ``digest`` is the sha256 over what is behind the path: the driver and the programs and libraries that it
    generates code with. ``machine`` is the architecture it compiles for.
    """

    path: Path
    kind: Kind
    version: str
    digest: str
    machine: str

    @property
    def title(self) -> str:
        """The first line of the version text."""
        return self.version.partition("\n")[0]

    @property
    def major(self) -> int | None:
        """The major version number, or None where the text shows none."""
        found = re.search(r"(?:version |\) )(\d+)\.", self.title)
        return int(found[1]) if found else None


def find_compiler(prefer: str | None = None) -> Compiler:
    """The compiler to use: `prefer` (a name or a path), else ``$TOKITAI_CXX``, else the first of `CANDIDATES` found.

    A compiler that was asked for and is missing is an error; another one never takes its place.
    Raises CompilerMissingError, which names the package to install.
    """
    wanted, origin = (prefer, "") if prefer else (os.environ.get(ENV_COMPILER), f"{ENV_COMPILER}=")
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            present = ", ".join(name for name in CANDIDATES if shutil.which(name)) or "no C++ compiler"
            raise CompilerMissingError(
                f"{origin}{wanted!r}: no such program (accepted: a name on PATH or a path, without options; "
                f"present: {present}); install it with `apt install {_package(wanted)}`"
            )
        return identify(found)
    for name in CANDIDATES:
        found = shutil.which(name)
        if found is not None:
            return identify(found)
    raise CompilerMissingError(
        f"no C++ compiler on PATH (looked for {', '.join(CANDIDATES)}); install one with `apt install g++`, "
        f"or name one in {ENV_COMPILER}"
    )


def all_compilers() -> list[Compiler]:
    """Every compiler found on this machine, each once; one that does not run is logged as a warning."""
    compilers: list[Compiler] = []
    seen: set[Path] = set()
    for name in (os.environ.get(ENV_COMPILER), *CANDIDATES, *CROSS_CANDIDATES):
        found = shutil.which(name) if name else None
        if found is None or Path(found).resolve() in seen:
            continue
        seen.add(Path(found).resolve())
        try:
            compilers.append(identify(found))
        except CompilerMissingError as error:
            logger.warning("%s", error)
    return compilers


def identify(path: str | Path) -> Compiler:
    """The compiler at `path`. Raises CompilerMissingError where it is neither GCC nor Clang, or does not run."""
    where = Path(os.path.abspath(path))
    try:
        return _identify(where, FileStamp.of(where.resolve()))
    except OSError as error:
        raise CompilerMissingError(f"{where}: cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _identify(path: Path, stamp: FileStamp) -> Compiler:
    version = _ask(path, "--version").strip()
    macros = set(re.findall(r"^#define (\w+)", _ask(path, "-dM", "-E", "-xc++", os.devnull), flags=re.MULTILINE))
    kind: Kind = "clang" if "__clang__" in macros else "gcc"
    if "__GNUC__" not in macros or macros & _STRANGERS:
        raise CompilerMissingError(
            f"{path} ({version.partition(chr(10))[0]}) is neither GCC nor Clang, whose arithmetic is known here; "
            "install one with `apt install g++`"
        )
    parts = [("driver", stamp.digest)] + [(part.name, FileStamp.of(part).digest) for part in _generators(path, kind)]
    machine = next((name for macro, name in _MACHINES.items() if macro in macros), "another machine")
    return Compiler(path, kind, version, digest_of(parts), machine)


def _generators(path: Path, kind: Kind) -> list[Path]:
    """The files that generate code on the driver's behalf: GCC's are programs, Clang's also its shared libraries."""
    files: list[Path] = []
    for program in ("cc1plus", "as", "ld"):
        found = program_of(path, program)
        if found is not None:
            files.append(found)
    if kind == "clang":
        libraries = path.resolve().parent.parent / "lib"
        patterns = ("libLLVM*.so*", "libclang-cpp.so*")
        files += {found.resolve() for pattern in patterns for found in libraries.glob(pattern) if found.is_file()}
    return sorted(files)


def program_of(path: Path, program: str) -> Path | None:
    """The program that the driver at `path` would run under this name, or None. Raises CompilerMissingError."""
    answer = _ask(path, f"-print-prog-name={program}").strip()
    found = shutil.which(answer) if answer else None
    return None if found is None else Path(found).resolve()


def _ask(path: Path, *options: str) -> str:
    command = [str(path), *options]
    try:
        answer = run(command, None, _PROBE_SECONDS, {**os.environ, "LC_ALL": "C"}, output=True)
    except OSError as error:
        raise CompilerMissingError(f"{' '.join(command)}: cannot be run: {error}") from error
    if answer.status != 0:
        how = f"did not end within {_PROBE_SECONDS:g} s" if answer.status is None else f"exit status {answer.status}"
        raise CompilerMissingError(f"{' '.join(command)}: {how}: {shown(answer.messages)} (accepted: GCC or Clang)")
    return answer.output


def _package(name: str) -> str:
    """The Debian package that holds the program `name`."""
    base = Path(name).name
    clang = re.fullmatch(r"clang\+\+(?:-(\d+))?", base)
    if clang:
        return f"clang-{clang[1]}" if clang[1] else "clang"
    cross = re.fullmatch(r"(\w+)-linux-gnu-g\+\+(?:-\d+)?", base)
    if cross:
        return f"g++-{cross[1].replace('_', '-')}-linux-gnu"
    return base if re.fullmatch(r"g\+\+-\d+", base) else "g++"
