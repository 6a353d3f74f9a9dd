"""Compile one kernel's C++ text into a shared library, with flags that leave its bits alone.

`COMMON` and `ISAS` are the whole set of flags. The instruction set is named (`-march=x86-64-v3`), never `native`: so the
flags say everything, two machines share an entry exactly when the binary runs on both, and no processor model has to go
into the key. Tuning stays generic for the same reason.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn

from ..errors import ArgumentError, CompileError, CompilerMissingError, DeviceMissingError, UnknownNameError
from . import cache
from .compilers import Compiler, normal_machine
from .fingerprint import FileStamp, cache_key, parse_depfile

Isa = Literal["avx512", "avx2", "neon", "scalar"]

COMPILE_SECONDS = 300.0

# -ffp-contract=off    a*b+c is two roundings unless the text says fma
# -fno-math-errno      sqrt is one instruction; only errno is lost
# -fno-trapping-math   conditional arithmetic may be vectorised; only exception flags are lost, no value depends on them.
#                      Clang does so anyway; GCC needs to be told. (It permits neither reassociation, nor reciprocals,
#                      nor assumptions about NaN, infinities or zero signs: those are other flags, and stay off.)
# -Wl,-z,defs          a symbol that nobody defines is an error now, not a crash in the first call
COMMON: tuple[str, ...] = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fopenmp",
    "-fvisibility=hidden", "-Wl,-z,defs", "-iquote", ".",
)  # fmt: skip


@dataclass(frozen=True)
class IsaRow:
    """What an instruction set takes: compiler flags, and processor features as /proc/cpuinfo spells them."""

    flags: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

# machine -> instruction sets, widest first
ISAS: dict[str, dict[Isa, IsaRow]] = {
    "x86_64": {
        "avx512": IsaRow(("-march=x86-64-v4", "-mprefer-vector-width=512"), _V4),
        "avx2": IsaRow(("-march=x86-64-v3",), _V3),
        "scalar": IsaRow(("-march=x86-64",), frozenset()),
    },
    "aarch64": {
        "neon": IsaRow(("-march=armv8-a",), frozenset({"asimd"})),
        "scalar": IsaRow(("-march=armv8-a",), frozenset()),
    },
}


@dataclass(frozen=True)
class Source:
    """A kernel's text; ``headers`` maps the names that it includes by ``#include "name"`` to their texts."""

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    stem: str = "kernel"


@dataclass(frozen=True)
class Artifact:
    """A shared library that holds one kernel.

    ``digest`` is the sha256 of the file at ``path``; ``seconds`` is how long its compilation took, in this call or in the
    one that filled the cache (``cached``); ``healed`` says that a damaged cache entry was replaced, and how it was
    damaged. The text and the compiler's messages lie beside ``path``.
    """

    path: Path
    fingerprint: str
    digest: str
    flags: tuple[str, ...]
    compiler: Compiler
    isa: Isa
    structure: bool
    seconds: float
    cached: bool
    healed: str | None = None


def build(
    source: Source, compiler: Compiler, isa: Isa, structure: bool = False, defines: Sequence[str] = ()
) -> Artifact:
    """Compile `source` for `isa`, or take it from the cache. ``defines`` are ``"NAME"`` or ``"NAME=VALUE"``.

    The text sees ``TOKITAI_ISA_<NAME>=1`` and, in a structure build, ``TOKITAI_STRUCTURE=1``. Everything but what it
    marks ``__attribute__((visibility("default")))`` is hidden.

    Raises UnknownNameError, ArgumentError, CompileError, CompilerMissingError (no OpenMP runtime) and CacheError.
    """
    flags = flags_of(compiler, isa, structure, defines)
    _check_names(source)
    toolchain = {
        "compiler": [str(compiler.path), compiler.kind, compiler.version, compiler.digest, compiler.machine],
        "flags": list(flags),
        "stem": source.stem,
    }
    key = cache_key("cpu", source.text, source.headers, toolchain)
    entry = cache.obtain(key, lambda folder: _compile(folder, key, source, compiler, flags))
    return Artifact(
        entry.path, entry.fingerprint, entry.digest, flags, compiler, isa, structure,
        float(entry.notes["seconds"]), entry.cached, entry.healed,
    )  # fmt: skip


def flags_of(compiler: Compiler, isa: Isa, structure: bool = False, defines: Sequence[str] = ()) -> tuple[str, ...]:
    """All flags of a build but the file names. Raises UnknownNameError and ArgumentError."""
    known = {name for rows in ISAS.values() for name in rows}
    if isa not in known:
        raise UnknownNameError("instruction set", isa, known)
    rows = ISAS.get(compiler.machine, {})
    if isa not in rows:
        accepted = ", ".join(rows) or f"none; kernels are built for {', '.join(ISAS)}"
        raise ArgumentError(f"isa={isa!r}: {compiler.path} compiles for {compiler.machine} (accepted: {accepted})")
    for define in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", define):
            raise ArgumentError(f"defines: {define!r} is not a macro (accepted: NAME or NAME=VALUE)")
    own = (f"TOKITAI_ISA_{isa.upper()}=1", *(("TOKITAI_STRUCTURE=1",) if structure else ()))
    return (*COMMON, *rows[isa].flags, *(f"-D{define}" for define in (*own, *defines)))


def isas_here() -> tuple[Isa, ...]:
    """The instruction sets that this machine runs, widest first; empty on a machine that has no row in `ISAS`."""
    features = cpu_features()
    rows = ISAS.get(normal_machine(platform.machine()), {})
    return tuple(isa for isa, row in rows.items() if row.needs <= features)


def native_isa() -> Isa:
    """The widest instruction set that this machine runs. Raises DeviceMissingError on an unknown architecture."""
    isas = isas_here()
    if not isas:
        raise DeviceMissingError(f"machine {platform.machine()!r}: kernels are built for {', '.join(ISAS)}")
    return isas[0]


@lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """The features that every processor of this machine has and its kernel allows, as /proc/cpuinfo spells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # no Linux: claim nothing beyond what the architecture guarantees
        return frozenset({"asimd"} if normal_machine(platform.machine()) == "aarch64" else ())
    lists = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    return frozenset(set.intersection(*(set(line.split()) for line in lists))) if lists else frozenset()


def _check_names(source: Source) -> None:
    main = f"{source.stem}.cpp"
    if not re.fullmatch(r"\w[\w.-]*", source.stem, flags=re.ASCII):
        raise ArgumentError(f"stem={source.stem!r}: a file name of letters, digits, '_', '-' and '.' is accepted")
    for name in source.headers:
        if name == main or not all(re.fullmatch(r"\w[\w.+-]*", part, flags=re.ASCII) for part in name.split("/")):
            raise ArgumentError(f"header {name!r}: a relative path other than {main!r} is accepted, without '..'")


def _compile(folder: Path, key: str, source: Source, compiler: Compiler, flags: tuple[str, ...]) -> cache.Made:
    """Compile in `folder` by names relative to it, so that the binary does not depend on where the cache lies."""
    main, binary, depfile = f"{source.stem}.cpp", f"{source.stem}.so", f"{source.stem}.d"
    for name, text in {**source.headers, main: source.text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    command = [str(compiler.path), *flags, "-MD", "-MF", depfile, main, "-o", binary]
    started, clock = time.time_ns(), time.perf_counter()
    status = _run(command, folder)
    seconds = time.perf_counter() - clock
    size = (folder / binary).stat().st_size if (folder / binary).exists() else 0
    if status != 0 or size == 0:
        what = {0: "wrote no binary", None: f"did not end within {COMPILE_SECONDS:g} s"}.get(status, f"failed ({status})")
        _fail(folder, key, compiler, command, what)
    ours = {(folder / name).resolve() for name in (*source.headers, main)}
    reads = {(folder / name).resolve() for name in parse_depfile((folder / depfile).read_text(errors="surrogateescape"))}
    return cache.Made(binary, tuple(_stamp(read, started) for read in sorted(reads - ours)), {"seconds": seconds})


def _stamp(path: Path, started: int) -> FileStamp:
    stamp = FileStamp.of(path)
    if stamp.mtime_ns < started:
        return stamp
    # Written while the compiler ran: which bytes it read is unknown, so this build is never a hit.
    return FileStamp(stamp.path, stamp.size, -1, "")


def _run(command: list[str], folder: Path) -> int | None:
    """Run the compiler in `folder`; its exit status, or None where it was ended at the time limit.

    It gets a process group of its own, because ending the driver alone would leave the compiler proper running, and
    puts its temporary files into `folder`, so that nothing of a killed build is left elsewhere.
    """
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    with (folder / "messages.txt").open("wb") as messages:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CompilerMissingError(f"{command[0]}: cannot be run: {error}") from error
        try:
            return process.wait(COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:  # the time limit, or an interrupt from the keyboard
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _fail(folder: Path, key: str, compiler: Compiler, command: list[str], what: str) -> NoReturn:
    messages = (folder / "messages.txt").read_text(errors="replace").strip()
    if compiler.kind == "clang" and re.search(r"-lomp\b|library '?omp\b|omp\.h' file not found", messages):
        package = f"libomp-{compiler.major}-dev" if compiler.major else "libomp-dev"
        raise CompilerMissingError(f"{compiler.path} has no OpenMP runtime; install it with `apt install {package}`")
    kept = cache.keep_failed(folder, key)
    last = "\n".join(messages.splitlines()[-20:]) or "(it printed nothing)"
    raise CompileError(
        f"{compiler.path} ({compiler.title}) {what}\n"
        f"  source:  {kept / Path(command[-3])}\n  command: {' '.join(command)}\n{last}"
    )
