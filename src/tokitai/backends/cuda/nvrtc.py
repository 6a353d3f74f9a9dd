"""Compile one source of kernels for an NVIDIA architecture by NVRTC, with options that leave its bits alone.

NVRTC needs no driver and no GPU, so kernels of every architecture are built and examined anywhere. The source sees its
own headers and nothing else: no include path is given, and the one that NVRTC adds by itself is taken away.

`OPTIONS` ask for ptxas' resource report (``-Xptxas=-v``), which NVRTC 13 puts into the program log and which leaves the
code as it is. Where several processes compiled one source at once, it is sometimes missing; so NVRTC's own cache is off
(``-no-cache``), and the toolchain's is used. A build without the report counts as failed, because nothing would be
known about spills.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ...errors import CompileError, CompilerMissingError, UnknownNameError
from ...toolchain import cache
from ...toolchain.build import Source, check_names, macros, write_source
from ...toolchain.fingerprint import FileStamp, cache_key, file_digest
from ...toolchain.process import shown
from ...toolchain.progress import building

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
SPECIFIC = ("sm_90a",)  # with instructions that only this generation has; taken where a kernel needs them
HINT = "install it with `pip install 'tokitai[cuda]'`"

# -fmad=false              a*b+c is two roundings unless the source says __fmaf_rn
# -ftz=false               subnormal numbers are numbers
# -prec-div, -prec-sqrt    correctly rounded, as IEEE 754 has them
# -no-source-include       an #include finds the headers given with the source, never a file that lies about
OPTIONS: tuple[str, ...] = (
    "-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true",
    "--device-as-default-execution-space", "-no-source-include", "-no-cache", "-Xptxas=-v",
)  # fmt: skip

_STEERING = ("NVRTC_PREPEND_FLAGS", "NVRTC_APPEND_FLAGS")  # options from elsewhere


@dataclass(frozen=True)
class Nvrtc:
    """The library in use: its version, and sha256 digests of it and of its table of built-in functions."""

    version: str
    digest: str
    builtins: str
    path: Path


@dataclass(frozen=True)
class Resources:
    """What ptxas gave a kernel: registers a thread; bytes of spills, stack and local memory a thread; bytes of static
    shared memory a CTA; bytes of constant banks where ptxas tells them (0 where it does not)."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    constant: int
    barriers: int = 0


@dataclass(frozen=True)
class CudaArtifact:
    """A cubin that holds the kernels of one source, and the PTX that it was made from.

    ``digest`` is the sha256 of the file at ``path``; ``seconds`` is how long its compilation took, in this call or in
    the one that filled the cache (``cached``); ``healed`` says that a damaged cache entry was replaced.
    """

    path: Path
    ptx: Path
    ptx_digest: str
    fingerprint: str
    digest: str
    arch: str
    structure: bool
    seconds: float
    cached: bool
    options: tuple[str, ...]
    nvrtc: Nvrtc
    resources: Mapping[str, Resources]
    healed: str | None = None

    def read_ptx(self) -> str:
        """The PTX as it was built. Raises CacheError where the file has changed since."""
        return cache.read_built(self.ptx, self.ptx_digest).decode()

    def read_cubin(self) -> bytes:
        """The cubin as it was built. Raises CacheError where the file has changed since."""
        return cache.read_built(self.path, self.digest)


def build(source: Source, arch: str, structure: bool = False, defines: Sequence[str] = ()) -> CudaArtifact:
    """Compile `source` for `arch` (``"sm_90"``), or take it from the cache. ``defines``: ``"NAME"``, ``"NAME=VALUE"``.

    The source sees ``TOKITAI_STRUCTURE=1`` in a structure build. Every ``extern "C" __global__`` function is a kernel.

    Raises UnknownNameError, ArgumentError, CompileError, CompilerMissingError and CacheError.
    """
    options = options_of(arch, structure, defines)
    check_names(source)
    compiler = find_nvrtc()
    for name in _STEERING:
        if os.environ.get(name):
            raise CompileError(f"{name}={os.environ[name]!r}: would change the options of every kernel; unset it")
    key = key_of(source, compiler, options)

    def make(folder: Path) -> cache.Made:
        with building(source.stem, arch):
            return _compile(folder, key, source, compiler, options)

    entry = cache.obtain(key, make, executable=False)
    notes = entry.notes
    return CudaArtifact(
        entry.path, entry.path.with_name(notes["ptx"]), notes["ptx_digest"], entry.fingerprint, entry.digest, arch,
        structure, float(notes["seconds"]), entry.cached, options, compiler,
        {name: Resources(**row) for name, row in notes["resources"].items()}, entry.healed,
    )  # fmt: skip


def options_of(arch: str, structure: bool = False, defines: Sequence[str] = ()) -> tuple[str, ...]:
    """All options of a build. Raises UnknownNameError and ArgumentError."""
    if arch not in (*ARCHITECTURES, *SPECIFIC):
        raise UnknownNameError("architecture", arch, (*ARCHITECTURES, *SPECIFIC))
    own = ("TOKITAI_STRUCTURE=1",) if structure else ()
    return (f"-arch={arch}", *OPTIONS, *macros(*own, *defines))


def key_of(source: Source, compiler: Nvrtc, options: Sequence[str]) -> str:
    """The cache key of a build, known before it runs."""
    identity = {"version": compiler.version, "digest": compiler.digest, "builtins": compiler.builtins}
    return cache_key("cuda", source.text, source.headers, {"nvrtc": identity, "options": list(options),
                                                           "stem": source.stem})  # fmt: skip


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture to build for a GPU of this compute capability: the newest one that it runs.

    Raises UnknownNameError for a GPU older than sm_80 or of a later generation than those known here.
    """
    major, minor = capability
    runs = [name for name in ARCHITECTURES if _split(name)[0] == major and _split(name)[1] <= minor]
    if not runs:
        raise UnknownNameError("architecture", f"sm_{major}{minor}", ARCHITECTURES)
    return max(runs, key=_split)


def _split(arch: str) -> tuple[int, int]:
    return int(arch[3:-1]), int(arch[-1])


def missing() -> str | None:
    """Why no CUDA kernel can be built here, and what to install; None where one can."""
    try:
        find_nvrtc()
    except CompilerMissingError as error:
        return str(error)
    return None


@lru_cache(maxsize=1)
def find_nvrtc() -> Nvrtc:
    """The NVRTC that `cuda.bindings` finds. Raises CompilerMissingError."""
    bindings = _bindings()
    try:
        status, major, minor = bindings.nvrtcVersion()
    except Exception as error:  # which one differs between releases of cuda-bindings
        said = str(error).strip().partition("\n")[0]
        raise CompilerMissingError(f"the NVRTC library is not to be found ({said}); {HINT}") from error
    _check(bindings, status, "nvrtcVersion")
    path = _library()
    tables = sorted(path.parent.glob(f"libnvrtc-builtins.so.{major}.{minor}*"))
    builtins = FileStamp.of(tables[0]).digest if tables else ""
    return Nvrtc(f"{major}.{minor}", FileStamp.of(path).digest, builtins, path)


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompilerMissingError(f"the Python package cuda-bindings is missing ({error}); {HINT}") from error
    return nvrtc


def _library() -> Path:
    """The file of the NVRTC that is loaded: `cuda.pathfinder` knows it; older releases leave it to /proc."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return Path(str(load_nvidia_dynamic_lib("nvrtc").abs_path)).resolve()
    except Exception:
        maps = Path("/proc/self/maps").read_text() if os.path.exists("/proc/self/maps") else ""
        found = re.findall(r"(/\S*/libnvrtc\.so[.\d]*)$", maps, flags=re.MULTILINE)
        if not found:
            raise CompilerMissingError(f"NVRTC is loaded, but from which file is not known; {HINT}") from None
        return Path(found[-1]).resolve()


def _check(bindings: Any, status: Any, call: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{call} failed: {getattr(status, 'name', status)}")


def _compile(folder: Path, key: str, source: Source, compiler: Nvrtc, options: tuple[str, ...]) -> cache.Made:
    """Compile in memory; what went in and what came out is left in `folder`."""
    main = write_source(folder, source, "cu")
    bindings = _bindings()
    names = list(source.headers)
    status, program = bindings.nvrtcCreateProgram(
        source.text.encode(), main.encode(), len(names),
        [source.headers[name].encode() for name in names], [name.encode() for name in names],
    )  # fmt: skip
    _check(bindings, status, "nvrtcCreateProgram")
    try:
        clock = time.perf_counter()
        (status,) = bindings.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        seconds = time.perf_counter() - clock
        log = _fetch(bindings, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        (folder / "messages.txt").write_text(log)
        if int(status) != 0:
            _fail(folder, key, compiler, options, main, f"failed: {getattr(status, 'name', status)}", log)
        cubin, ptx = _fetch(bindings, program, "CUBIN"), _fetch(bindings, program, "PTX").rstrip(b"\0")
    finally:
        bindings.nvrtcDestroyProgram(program)
    (folder / f"{source.stem}.cubin").write_bytes(cubin)
    ptx_file = folder / f"{source.stem}.ptx"
    ptx_file.write_bytes(ptx)
    resources = parse_report(log)
    kernels = re.findall(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", ptx.decode(), flags=re.MULTILINE)
    unknown = sorted(set(kernels) ^ set(resources))
    if unknown or not kernels:
        what = f"gave no resource report of {', '.join(unknown)}" if unknown else "found no kernel in the text"
        _fail(folder, key, compiler, options, main, what, log)
    notes = {
        "seconds": seconds, "ptx": ptx_file.name, "ptx_digest": file_digest(ptx_file),
        "resources": {name: asdict(row) for name, row in resources.items()},
    }  # fmt: skip
    return cache.Made(f"{source.stem}.cubin", (), notes)


def _fetch(bindings: Any, program: Any, what: str) -> bytes:
    """One of the results that NVRTC hands out by a size and a buffer."""
    status, size = getattr(bindings, f"nvrtcGet{what}Size")(program)
    _check(bindings, status, f"nvrtcGet{what}Size")
    buffer = bytearray(size)
    (status,) = getattr(bindings, f"nvrtcGet{what}")(program, buffer)
    _check(bindings, status, f"nvrtcGet{what}")
    return bytes(buffer)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")


def parse_report(log: str) -> dict[str, Resources]:
    """The resources of every kernel, from ptxas' report. Functions that were not inlined count for their kernel."""
    found: dict[str, Resources] = {}
    name, stack, stores, loads = "", 0, 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, stack, stores, loads = entry[1], 0, 0, 0
        elif frame := _STACK.search(line):
            stack, stores, loads = stack + int(frame[1]), stores + int(frame[2]), loads + int(frame[3])
        elif (used := _USED.search(line)) and name:
            rest = used[2]
            counts = [re.findall(rf"(\d+) {word}", rest) for word in ("bytes smem", r"bytes cmem", "barriers")]
            shared, constant, barriers = (sum(map(int, count)) for count in counts)
            found[name] = Resources(int(used[1]), stores, loads, stack, shared, constant, barriers)
    return found


def _fail(
    folder: Path, key: str, compiler: Nvrtc, options: Sequence[str], main: str, what: str, log: str
) -> NoReturn:  # fmt: skip
    kept = cache.keep_failed(folder, key)
    raise CompileError(
        f"NVRTC {compiler.version} ({compiler.path}) {what}\n"
        f"  source:  {kept / main}\n  options: {' '.join(options)}\n{shown(log, first=True)}"
    )
