"""Compile one source of kernels for an AMD architecture by clang alone: no GPU, no driver, nothing of ROCm is needed.

A build has three steps, each by the same clang: the source becomes LLVM IR, that becomes assembly, and
the assembly becomes the code object that a driver loads. So both listings that `assembly.scan` reads are those that the
binary was made of. A build whose kernels do not hold what the scan asks for is refused: that is how a compiler shows
that leaves square roots approximate.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from ...errors import CacheError, CompileError, CompilerMissingError, MachineCodeError, UnknownNameError
from ...toolchain import cache
from ...toolchain.build import Source, check_names, macros, run_compiler, write_source
from ...toolchain.compilers import Compiler, identify, program_of
from ...toolchain.fingerprint import FileStamp, cache_key, file_digest, parse_depfile
from ...toolchain.folders import no_space
from ...toolchain.process import shown
from ...toolchain.progress import building
from .assembly import scan

# architecture -> lanes of a wavefront
ARCHITECTURES: Mapping[str, int] = {
    "gfx906": 64, "gfx908": 64, "gfx90a": 64, "gfx942": 64,
    "gfx1030": 32, "gfx1100": 32, "gfx1101": 32, "gfx1200": 32, "gfx1201": 32,
}  # fmt: skip
MOST_SHARED = 64 << 10  # bytes of LDS of a workgroup
OLDEST = 17  # release of clang

ENV_COMPILER = "TOKITAI_HIPCXX"
ROCM = "/opt/rocm/llvm/bin/clang++"
CANDIDATES = ("clang++", "clang++-21", "clang++-20", "clang++-19", "clang++-18", "clang++-17", ROCM, "hipcc")
HINT = "install one with `apt install clang-19 lld-19`, or name one in " + ENV_COMPILER

# -ffp-contract=off     a*b+c is two roundings unless the source says fma
# -fhip-fp32-...        division and square root are correctly rounded, as IEEE 754 has them
# -fno-gpu-flush-...    subnormal numbers are numbers
# -fno-slp-vectorize    no operation on pairs: then those of IR and assembly can be counted, and are the same
# -fno-strict-aliasing  chunks are read by words and used by elements
# -fuse-cuid=none       no symbol that is named after the build: the same source gives the same bytes
# -nogpuinc, -nogpulib, -nostdinc    an #include finds the headers given with the source, never a file that lies about
FRONT: tuple[str, ...] = (
    "-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-nostdinc", "-std=c++17", "-O3",
    "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt", "-fno-gpu-flush-denormals-to-zero",
    "-fno-slp-vectorize", "-fno-strict-aliasing", "-fuse-cuid=none", "-mcode-object-version=5",
)  # fmt: skip
BACK: tuple[str, ...] = (
    "--target=amdgcn-amd-amdhsa", "-nogpulib", "-O3", "-ffp-contract=off", "-Xclang", "-disable-llvm-passes",
)  # fmt: skip
JOIN: tuple[str, ...] = ("--target=amdgcn-amd-amdhsa", "-nogpulib", "-Wno-unused-command-line-argument")


@dataclass(frozen=True)
class Resources:
    """What the compiler gave a kernel: registers a lane (of vectors and of accumulators) and a wavefront (scalars);
    how many of them are spilled (scalars into lanes of vectors); bytes of scratch memory a lane, for spills and indexed
    arrays; bytes of LDS a workgroup; bytes of its argument; threads of a workgroup at most; lanes of a wavefront."""

    registers: int
    accumulators: int
    scalars: int
    spills: int
    scalar_spills: int
    scratch: int
    shared: int
    argument: int
    threads: int
    warp: int


@dataclass(frozen=True)
class HipCompiler:
    """A clang that compiles for AMD GPUs, and the linker that it uses."""

    clang: Compiler
    linker: Path
    linker_digest: str


@dataclass(frozen=True)
class HipArtifact:
    """A code object that holds the kernels of one source, with the IR and the assembly that it was made of.

    ``digest`` is the sha256 of the file at ``path``; ``seconds`` is how long its compilation took, in this call or in
    the one that filled the cache (``cached``); ``healed`` says that a damaged cache entry was replaced.
    """

    path: Path
    fingerprint: str
    digest: str
    arch: str
    structure: bool
    seconds: float
    cached: bool
    flags: tuple[str, ...]
    compiler: HipCompiler
    resources: Mapping[str, Resources]
    texts: Mapping[str, str]  # "ir" and "asm": their digests
    healed: str | None = None

    def read(self, what: str) -> str:
        """The text "ir" or "asm" as it was built. Raises CacheError where the file has changed since."""
        return cache.read_built(self.path.with_name(_FILES[what]), self.texts[what]).decode()


READ = "compiler.d"  # the names of the files that were read
_FILES = {"ir": "kernels.ll", "asm": "kernels.s"}


def build(
    source: Source, arch: str, structure: bool = False, fma_allowed: bool = False, defines: Sequence[str] = (),
    compiler: HipCompiler | None = None, f64_allowed: bool = False,
) -> HipArtifact:  # fmt: skip
    """Compile `source` for `arch` (``"gfx942"``), or take it from the cache. ``fma_allowed``, ``f64_allowed``: whether
    the definition holds fused multiply-adds, and sums in f64.

    The source sees ``TOKITAI_HIP=1``, and ``TOKITAI_STRUCTURE=1`` in a structure build. Every kernel takes one argument
    by value. Raises UnknownNameError, ArgumentError, CompilerMissingError, CacheError, and CompileError also where the
    scan of IR and assembly finds something, or a kernel takes more of a GPU than there is.
    """
    flags = flags_of(arch, structure, defines)
    check_names(source)
    compiler = compiler or find_hip()
    allowed = (fma_allowed, f64_allowed)
    key = key_of(source, compiler, flags, *allowed)

    def make(folder: Path) -> cache.Made:
        with building(source.stem, arch):
            return _compile(folder, key, source, arch, compiler, flags, allowed)

    entry = cache.obtain(key, make, executable=False)
    notes = entry.notes
    return HipArtifact(
        entry.path, entry.fingerprint, entry.digest, arch, structure, float(notes["seconds"]), entry.cached, flags,
        compiler, {name: Resources(**row) for name, row in notes["resources"].items()}, notes["texts"], entry.healed,
    )  # fmt: skip


def flags_of(arch: str, structure: bool = False, defines: Sequence[str] = ()) -> tuple[str, ...]:
    """The flags that the source is compiled with. Raises UnknownNameError and ArgumentError."""
    if arch not in ARCHITECTURES:
        raise UnknownNameError("architecture", arch, ARCHITECTURES)
    own = ("TOKITAI_HIP=1", *(("TOKITAI_STRUCTURE=1",) if structure else ()))
    return (*FRONT, f"--offload-arch={arch}", *macros(*own, *defines))


def key_of(
    source: Source, compiler: HipCompiler, flags: Sequence[str], fma_allowed: bool, f64_allowed: bool = False
) -> str:
    """The cache key of a build, known before it runs."""
    clang = {**asdict(compiler.clang), "path": str(compiler.clang.path)}
    toolchain = {
        "compiler": clang, "linker": compiler.linker_digest, "flags": list(flags), "back": [*BACK, *JOIN],
        "fma": fma_allowed, "stem": source.stem, **({"f64": True} if f64_allowed else {}),
    }  # fmt: skip
    return cache_key("hip", source.text, source.headers, toolchain)


def missing() -> str | None:
    """Why no HIP kernel can be built here, and what to install; None where one can."""
    try:
        find_hip()
    except CompilerMissingError as error:
        return str(error)
    return None


def find_hip(prefer: str | None = None) -> HipCompiler:
    """The clang to use: `prefer`, else ``$TOKITAI_HIPCXX``, else the first of `CANDIDATES` that is new enough.

    A compiler that was asked for and will not do is an error. Raises CompilerMissingError, which says what to install.
    """
    wanted = prefer or os.environ.get(ENV_COMPILER)
    too_old = []
    for name in (wanted,) if wanted else CANDIDATES:
        found = shutil.which(name)
        if found is None:
            continue
        clang = identify(found)
        problem = None if clang.kind == "clang" else "is not Clang"
        if problem is None and (clang.major or 0) < OLDEST:
            problem = f"is older than Clang {OLDEST}"
        if problem is None:
            linker = program_of(clang.path, "ld.lld")
            if linker is None:
                package = f"lld-{clang.major}"
                raise CompilerMissingError(f"{found} has no linker ld.lld; install it with `apt install {package}`")
            return HipCompiler(clang, linker, FileStamp.of(linker).digest)
        too_old.append(f"{found} ({clang.title}) {problem}")
    why = "; ".join(too_old) or (f"{wanted!r}: no such program" if wanted else "none is on PATH")
    raise CompilerMissingError(f"no Clang {OLDEST} or newer that compiles for AMD GPUs: {why}; {HINT}")


def _compile(
    folder: Path, key: str, source: Source, arch: str, compiler: HipCompiler, flags: tuple[str, ...],
    allowed: tuple[bool, bool],
) -> cache.Made:  # fmt: skip
    """Compile in `folder` by names relative to it; what went in and what came out is left there."""
    main, binary = write_source(folder, source, "hip"), f"{source.stem}.co"
    clang, (ir, asm) = str(compiler.clang.path), _FILES.values()
    started = time.perf_counter()
    for command in (
        [clang, *flags, "-MD", "-MF", READ, "-S", "-emit-llvm", main, "-o", ir],
        [clang, *BACK, f"-mcpu={arch}", "-x", "ir", "-S", ir, "-o", asm],
        [clang, *JOIN, f"-mcpu={arch}", "-x", "assembler", asm, "-o", binary],
    ):
        ran = run_compiler(command, folder)
        if ran.status != 0 or not (folder / command[-1]).is_file():
            how = "did not end in time" if ran.status is None else f"failed with exit status {ran.status}"
            _fail(folder, key, compiler, main, f"{how}: {' '.join(command)}", ran.messages)
    seconds = time.perf_counter() - started
    text = (folder / asm).read_text()
    found = [str(f) for f in scan((folder / ir).read_text(), text, *allowed)]
    resources = parse_metadata(text)
    found += [f"{name}: {problem}" for name, r in resources.items() if (problem := _refused(r, arch))]
    strange = set(parse_depfile((folder / READ).read_text())) - {main} - set(source.headers)
    found += [f"{name}: was read, and did not come with the text" for name in sorted(strange)]
    found += [] if resources else ["there is no kernel in the text"]
    if (folder / binary).read_bytes()[:20] != ELF:
        found.append(f"{binary} is no code object of AMD GPUs")
    if found:
        _fail(folder, key, compiler, main, "made kernels that are refused", "\n".join(found), MachineCodeError)
    notes = {
        "seconds": seconds, "resources": {name: asdict(r) for name, r in resources.items()},
        "texts": {what: file_digest(folder / name) for what, name in _FILES.items()},
    }  # fmt: skip
    return cache.Made(binary, (), notes)


# A shared object of 64 bits, little-endian, for HSA of code object version 5, for machine 224.
ELF = b"\x7fELF\x02\x01\x01\x40\x03" + bytes(7) + b"\x03\x00\xe0\x00"


def _refused(r: Resources, arch: str) -> str | None:
    if r.warp != ARCHITECTURES[arch]:
        return f"wavefronts have {r.warp} lanes, not {ARCHITECTURES[arch]}"
    if r.shared > MOST_SHARED:
        return f"takes {r.shared} bytes of LDS, where there are {MOST_SHARED}"
    return "takes no single argument by value" if r.argument == 0 else None


def parse_metadata(asm: str) -> dict[str, Resources]:
    """The resources of every kernel, from the metadata that the code object carries as well."""
    found = {}
    block = asm.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    for kernel in re.split(r"^  - ", block, flags=re.MULTILINE)[1:]:
        values = dict(re.findall(r"^(?:    )?\.(\w+):\s+(\S+)$", kernel, flags=re.MULTILINE))
        if "name" not in values:
            continue
        explicit = re.findall(r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)\s+\.value_kind:\s+(?!hidden)(\w+)", kernel)
        single = len(explicit) == 1 and (explicit[0][0], explicit[0][2]) == ("0", "by_value")
        found[values["name"]] = Resources(
            registers=int(values["vgpr_count"]),
            accumulators=int(values.get("agpr_count", 0)),
            scalars=int(values["sgpr_count"]),
            spills=int(values["vgpr_spill_count"]),
            scalar_spills=int(values["sgpr_spill_count"]),
            scratch=int(values["private_segment_fixed_size"]),
            shared=int(values["group_segment_fixed_size"]),
            argument=int(explicit[0][1]) if single else 0,
            threads=int(values["max_flat_workgroup_size"]),
            warp=int(values["wavefront_size"]),
        )
    return found


def _fail(
    folder: Path, key: str, compiler: HipCompiler, main: str, what: str, said: str,
    error: type[CompileError] = CompileError,
) -> NoReturn:  # fmt: skip
    full = no_space(folder)
    if full is not None:
        raise CacheError(f"{full}; {compiler.clang.path} {what}\n{shown(said, first=True)}")
    kept = cache.keep_failed(folder, key)
    words = f"{compiler.clang.path} ({compiler.clang.title}) {what}\n  source:  {kept / main}"
    raise error(f"{words}\n{shown(said, first=True)}")
