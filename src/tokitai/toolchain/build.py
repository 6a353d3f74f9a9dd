"""Compile one kernel's C++ source into a shared library, with flags that leave its bits alone.

`flags_of` gives all of them. The instruction set is named (`-march=x86-64-v3`), never `native`: so the flags say
everything, a cache may be shared between machines, and no processor model has to go into the key. Tuning stays generic
for the same reason.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn

from ..errors import ArgumentError, CacheError, CompileError, CompilerMissingError, DeviceMissingError, UnknownNameError
from . import cache
from .compilers import Compiler
from .fingerprint import FileStamp, cache_key, parse_depfile, parse_linker_depfile
from .folders import no_space
from .process import Ran, run, shown
from .progress import building

Isa = Literal["avx512", "avx2", "neon", "scalar"]

COMPILE_SECONDS = 300.0

# -ffp-contract=off    a*b+c is two roundings unless the source says fma
# -fno-math-errno      sqrt is one instruction; only errno is lost
# -fno-trapping-math   conditional arithmetic may be vectorised; only exception flags are lost, no value depends on it.
#                      Clang does so anyway; GCC needs to be told. (It permits neither reassociation, nor reciprocals,
#                      nor assumptions about NaN, infinities or zero signs: those are other flags, and stay off.)
# -fno-exceptions      kernels use no part of the C++ library, and linking with it took a third of a small build
# -Wl,-z,defs          a symbol that nobody defines is an error now, not a crash in the first call
COMMON: tuple[str, ...] = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fopenmp",
    "-fno-exceptions", "-fvisibility=hidden", "-Wl,-z,defs", "-iquote", ".",
)  # fmt: skip
LINES = ("-g1",)  # line numbers, by which machine code is held against the source; no instruction changes
HERE = "/proc/self/cwd"  # what debug information calls the build folder, wherever it lies
LIBRARIES: dict[str, tuple[str, ...]] = {
    "gcc": ("-nodefaultlibs", "-lm", "-lc", "-lgcc"),  # it has -nostdlib++ from release 13 on
    "clang": ("-nostdlib++",),
}


SIMULATED = "TOKITAI_SIM=1"  # blocks run one after another: statics, their shared memory, need no locks
STRUCTURE = ("-Og",)  # hashes and fibers need no speed, and a build takes a third of the time
# They need no vector instructions either: a structure build of any instruction set is made for the plainest one, so
# that the source for wide vectors can be checked on every processor of its architecture.

# A structure build says which access leaves an array of the kernel's own, and the simulated device stops a thread that
# leaves one (`outside.h` and `sim.device` have what is called then). Clang counts a reference behind the end as an
# access; of GCC, copies through one are found by the size of the object.
BOUNDS: dict[str, str] = {"gcc": "-fsanitize=bounds-strict,object-size", "clang": "-fsanitize=array-bounds"}

_REPORTS = ("compiler.d", "linker.d")
_REPORT = ("-MD", "-MF", _REPORTS[0], f"-Wl,--dependency-file={_REPORTS[1]}")  # what was read, system files included


@dataclass(frozen=True)
class IsaRow:
    """What an instruction set takes: compiler flags, and processor features as /proc/cpuinfo spells them."""

    flags: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset(
    {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"}  # x86-64-v2
    | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
)
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
    """A kernel's source; ``headers`` maps the names that it includes by ``#include "name"`` to their contents."""

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    stem: str = "kernel"


@dataclass(frozen=True)
class Artifact:
    """A shared library that holds one kernel.

    ``digest`` is the sha256 of the file at ``path``; ``seconds`` is how long its compilation took, in this call or in
    the one that filled the cache (``cached``); ``healed`` says that a damaged cache entry was replaced, and how it was
    damaged. The source and the compiler's messages lie beside ``path``.
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

    The source sees ``TOKITAI_ISA_<NAME>=1`` and, in a structure build, ``TOKITAI_STRUCTURE=1``. Everything but what it
    marks ``__attribute__((visibility("default")))`` is hidden.

    Raises UnknownNameError, ArgumentError, CompileError, CompilerMissingError (no OpenMP runtime) and CacheError.
    """
    flags = flags_of(compiler, isa, structure, defines)
    check_names(source)
    key = key_of(source, compiler, flags)

    def make(folder: Path) -> cache.Made:
        with building(source.stem, "cpu"):
            return _compile(folder, key, source, compiler, flags)

    entry = cache.obtain(key, make)
    return Artifact(
        entry.path, entry.fingerprint, entry.digest, flags, compiler, isa, structure,
        float(entry.notes["seconds"]), entry.cached, entry.healed,
    )  # fmt: skip


def key_of(source: Source, compiler: Compiler, flags: Sequence[str]) -> str:
    """The cache key of a build, known before it runs."""
    identity = {**asdict(compiler), "path": str(compiler.path)}
    toolchain = {"compiler": identity, "flags": list(flags), "stem": source.stem}
    return cache_key("cpu", source.text, source.headers, toolchain)


def flags_of(compiler: Compiler, isa: Isa, structure: bool = False, defines: Sequence[str] = ()) -> tuple[str, ...]:
    """All flags of a build but the file names. Raises UnknownNameError and ArgumentError."""
    known = {name for rows in ISAS.values() for name in rows}
    if isa not in known:
        raise UnknownNameError("instruction set", isa, known)
    rows = ISAS.get(compiler.machine, {})
    if isa not in rows:
        accepted = ", ".join(rows) or f"none; kernels are built for {', '.join(ISAS)}"
        raise ArgumentError(f"isa={isa!r}: {compiler.path} compiles for {compiler.machine} (accepted: {accepted})")
    simulated = SIMULATED in defines
    statics = ("-fno-threadsafe-statics",) if simulated else ()
    level = (*STRUCTURE, *statics, BOUNDS[compiler.kind]) if structure or simulated else ()
    machine = rows["scalar" if structure else isa].flags
    own = (f"TOKITAI_ISA_{isa.upper()}=1", *(("TOKITAI_STRUCTURE=1",) if structure else ()))
    lines = () if structure else LINES
    return (*COMMON, *lines, *machine, *level, *macros(*own, *defines), *LIBRARIES[compiler.kind])


def macros(*defines: str) -> tuple[str, ...]:
    """The flags that define macros. Raises ArgumentError."""
    for define in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", define):
            raise ArgumentError(f"defines: {define!r} is not a macro (accepted: NAME or NAME=VALUE)")
    return tuple(f"-D{define}" for define in defines)


def machine_here() -> str:
    """This machine's architecture, by the name that `ISAS` uses."""
    name = platform.machine().lower()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def isas_here() -> tuple[Isa, ...]:
    """The instruction sets that this machine runs, widest first, from `TOKITAI_ISA` on where that is set; empty on a
    machine that has no row in `ISAS`. Raises DeviceMissingError for a `TOKITAI_ISA` that this machine does not run."""
    features = cpu_features()
    rows = ISAS.get(machine_here(), {})
    isas = tuple(isa for isa, row in rows.items() if row.needs <= features)
    widest = os.environ.get("TOKITAI_ISA")
    if not widest:
        return isas
    if widest not in isas:
        raise DeviceMissingError(f"TOKITAI_ISA={widest!r}: this machine runs {', '.join(isas)}")
    return isas[isas.index(widest) :]


def native_isa() -> Isa:
    """The widest instruction set that this machine runs. Raises DeviceMissingError on an unknown architecture."""
    isas = isas_here()
    if not isas:
        raise DeviceMissingError(f"machine {machine_here()!r}: kernels are built for {', '.join(ISAS)}")
    return isas[0]


@lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """The features that every processor of this machine has and its kernel allows, as /proc/cpuinfo spells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # no Linux: claim nothing beyond what the architecture guarantees
        return frozenset({"asimd"} if machine_here() == "aarch64" else ())
    lists = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    return frozenset(set.intersection(*(set(line.split()) for line in lists))) if lists else frozenset()


def check_names(source: Source) -> None:
    """Refuse names that could leave the build folder. Raises ArgumentError."""
    if not re.fullmatch(r"\w[\w.-]*", source.stem, flags=re.ASCII):
        raise ArgumentError(f"stem={source.stem!r}: a file name of letters, digits, '_', '-' and '.' is accepted")
    for name in source.headers:
        if not re.fullmatch(r"(\w[\w.+-]*/)*\w[\w.+-]*\.(h|hpp|inc)", name, flags=re.ASCII):
            raise ArgumentError(f"header {name!r}: a relative path in .h, .hpp or .inc is accepted, without '..'")


def write_source(folder: Path, source: Source, suffix: str) -> str:
    """Write a source with this suffix beside its headers. Returns its name."""
    main = f"{source.stem}.{suffix}"
    for name, text in {**source.headers, main: source.text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return main


def _compile(folder: Path, key: str, source: Source, compiler: Compiler, flags: tuple[str, ...]) -> cache.Made:
    """Compile in `folder` by names relative to it, so that the binary does not depend on where the cache lies."""
    main, binary = write_source(folder, source, "cpp"), f"{source.stem}.so"
    command = [str(compiler.path), main, *flags, *_REPORT, "-o", binary]  # libraries after what needs them
    started, clock = time.time_ns(), time.perf_counter()
    ran = run_compiler(command, folder)
    seconds = time.perf_counter() - clock
    if ran.status is None:
        _fail(folder, key, compiler, command, f"did not end within {COMPILE_SECONDS:g} s", ran.messages)
    if ran.status != 0:
        _fail(folder, key, compiler, command, f"failed with exit status {ran.status}", ran.messages)
    for name in (binary, *_REPORTS):
        if not (folder / name).is_file() or (folder / name).stat().st_size == 0:
            _fail(folder, key, compiler, command, f"ended well but left {name} missing or empty", ran.messages)
    return cache.Made(binary, _files_read(folder, started), {"seconds": seconds})


def _files_read(folder: Path, started: int) -> tuple[FileStamp, ...]:
    """Stamps of the files outside `folder` that the compiler and the linker reported; those inside are in the key."""
    names: set[str] = set()
    names.update(parse_depfile((folder / _REPORTS[0]).read_text(errors="surrogateescape")))
    names.update(parse_linker_depfile((folder / _REPORTS[1]).read_text(errors="surrogateescape")))
    paths = [Path(name) for name in sorted(names) if os.path.isabs(name) and not name.startswith(f"{folder}{os.sep}")]
    return tuple(
        # Changed while the compiler ran: which bytes it read is unknown, so no later state of it may count as this one.
        FileStamp(str(path), -1, -1, "") if path.stat().st_ctime_ns >= started else FileStamp.of(path)
        for path in paths
    )


def run_compiler(command: list[str], folder: Path) -> Ran:
    """Run the compiler in `folder`, and keep its messages there in messages.txt. Temporary files lie there too, by
    names relative to it: whatever characters its path has, no compiler sees them, and nothing of a killed build is left
    elsewhere. Raises CompilerMissingError."""
    try:
        ran = run(command, folder, COMPILE_SECONDS, {**os.environ, "LC_ALL": "C", "TMPDIR": ".", "PWD": HERE})
    except OSError as error:
        if not folder.is_dir():
            raise  # the cache was deleted meanwhile: no fault of the compiler
        raise CompilerMissingError(f"{command[0]}: cannot be run: {error}") from error
    with suppress(OSError):  # the disk may be full: they are in the error as well
        (folder / "messages.txt").write_text(ran.messages, errors="replace")
    return ran


def _fail(folder: Path, key: str, compiler: Compiler, command: list[str], what: str, messages: str) -> NoReturn:
    full = no_space(folder)
    if full is not None:
        raise CacheError(f"{full}; {compiler.path} {what}\n{shown(messages)}")
    if compiler.kind == "clang" and re.search(r"-lomp\b|library '?omp\b|omp\.h' file not found", messages):
        package = f"libomp-{compiler.major}-dev" if compiler.major else "libomp-dev"
        raise CompilerMissingError(f"{compiler.path} has no OpenMP runtime; install it with `apt install {package}`")
    kept = cache.keep_failed(folder, key)
    raise CompileError(
        f"{compiler.path} ({compiler.title}) {what}\n"
        f"  source:  {kept / command[1]}\n  command: {' '.join(command)}\n{shown(messages)}"
    )
