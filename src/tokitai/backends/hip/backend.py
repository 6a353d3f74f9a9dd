"""AMD GPUs as a backend, and all that it may claim: kernels are compiled and inspected, and run on a stand-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from ...lang import Graph
from ...toolchain.build import Source
from ..backend import Backend, CaseSet, Language, Shown, Target, Trial, size_shown
from ..cpu.backend import FLAGS
from ..machine_code import holds_f64, holds_fma
from ..sim.target import SimTarget
from . import clang as hip
from .probe import amd_devices, probe
from .target import HipTarget

DEFAULT = ("gfx942", "gfx1101")  # one for each width of wavefronts
SIMULATED = " on the simulated device"


class HipBackend(Backend):
    """Clang compiles for AMD GPUs; the same source runs on fibers. The verdict is `refuted` or `undecided`."""

    name = "hip"
    devices = ("hip", "hip:ARCH")
    language = Language.GPU
    cases = CaseSet.SIMULATED
    ahead = True
    strongest = "undecided"
    isolated = False
    not_run_start = "No kernel ran on an AMD device: "
    where = SIMULATED

    def takes(self, device: str) -> bool:
        """Kernels for one architecture of each wavefront width, or for one that is named."""
        name, colon, arch = device.partition(":")
        return name == self.name and (not colon or arch != "")

    def parts(self, device: str, arch: str | None = None) -> tuple[str, ...]:
        """One for each architecture that kernels are compiled for."""
        named = device.partition(":")[2]
        for one in filter(None, (named, arch)):
            hip.flags_of(one)
        if arch is not None and named and arch != named:
            raise ArgumentError(f"arch={arch!r} does not go with the device {device}")
        return tuple(f"{self.name}:{a}" for a in ((arch or named,) if arch or named else DEFAULT))

    def missing(self) -> str | None:
        """Nothing runs on an AMD GPU yet."""
        return hip.missing() or probe()

    def open(self, device: str, compiler: str | None = None, graph: Graph | None = None) -> Target:
        """One architecture, for the kernels of a graph. Raises CompilerMissingError."""
        (part,) = self.parts(device)[:1]
        arch = part.partition(":")[2]
        fma, f64 = (graph is None or holds_fma(graph)), (graph is None or holds_f64(graph))
        return HipTarget(arch, fma, compiler, f64=f64)

    def describe(self, devices: Sequence[str], compiler: str | None = None) -> dict[str, Any] | None:
        """The processor that ran the source, and the architectures it was compiled for."""
        archs = [device.partition(":")[2] for device in devices]
        widths = sorted({hip.ARCHITECTURES[a] for a in archs})
        about = SimTarget(compiler, widths[0], hip=True).describe()
        return {**about, "architectures": ", ".join(archs), "warp": ", ".join(map(str, widths))}

    def compile(
        self, source: Source, graph: Graph, arch: str | None = None, compiler: str | None = None
    ) -> hip.HipArtifact:
        """By clang alone."""
        return hip.build(
            source, self.arch_for(arch), fma_allowed=holds_fma(graph), compiler=hip.find_hip(compiler),
            f64_allowed=holds_f64(graph),
        )  # fmt: skip

    def arch_for(self, arch: str | None) -> str:
        """The one that is named."""
        if arch is None:
            raise ArgumentError(f"arch: none is named; accepted: one of {', '.join(hip.ARCHITECTURES)}")
        hip.flags_of(arch)
        return arch

    def layout_of(self, arch: str | None) -> tuple[int, bool]:
        """The architecture's wavefronts; rows are never copied ahead."""
        return hip.ARCHITECTURES[self.arch_for(arch)], False

    def forks(self, isolate: bool) -> bool:
        """One process compiles at a time."""
        return False

    def not_run(self, archs: Sequence[str]) -> str:
        """No kernel runs on an AMD GPU."""
        done = f"compiled and inspected for {', '.join(archs)}, not run" if archs else "neither compiled nor run"
        return f"{done}: {probe()}"

    def claims(self, shown: Shown) -> list[str]:
        """What the inspection found, and what ran in place of a GPU."""
        inspected = (
            f"Every text over numbers was compiled for {', '.join(shown.archs)}. In LLVM's text and in the assembly "
            "there was no contraction, no flushed subnormal number, no approximate division or square root and no "
            "float atomic; no kernel takes another argument, fewer threads, other wavefronts or more LDS than its "
            "launches have."
        )
        return [
            *([inspected] if shown.archs else []),
            f"All cases ran{SIMULATED}: the same text as HIP, with its header over fibers of the CPU, in wavefronts of "
            f"{shown.warp} lanes.",
        ]

    def non_claims(self, shown: Shown) -> list[str]:
        """Nothing is said of an AMD GPU."""
        return [f"{self.not_run_start}{shown.not_run}."]

    def known_flags(self) -> frozenset[str]:
        """Those of clang for AMD GPUs, and those of what ran."""
        return FLAGS | frozenset(hip.FRONT)

    def needed_flags(self) -> tuple[str, ...]:
        """Contraction is off."""
        return ("-ffp-contract=off",)

    def examine(self, trial: Trial) -> dict[str, Any]:
        """``build`` and ``run`` say what is missing."""
        build = hip.missing()
        found: dict[str, Any] = {"works": False, "build": build, "run": probe(), "clang": None, "digest": None}
        found["devices"] = amd_devices()
        if build is None:
            clang = hip.find_hip().clang
            found["clang"], found["digest"] = clang.title, clang.digest
            found["build"] = trial(self.name)
        found["claims"] = [] if found["build"] else [
            f"kernels for {', '.join(hip.ARCHITECTURES)} can be compiled by {found['clang']} and inspected, "
            "and their text can be run on this processor; nothing about an AMD device"
        ]  # fmt: skip
        return found

    def lacks(self, found: Mapping[str, Any]) -> Iterator[str]:
        """The compiler, and a way to run kernels."""
        yield from (found[what] for what in ("build", "run") if found[what])

    def shown(self, found: Mapping[str, Any]) -> str:
        """Clang, and the GPUs that the system's driver names."""
        built = f"{found['clang']}, sha256 {found['digest'][:12]}" if found["clang"] else "no clang"
        gpus = [
            f"{d['name']}, {d['arch']}, {size_shown(d['memory_bytes'])}, driver {d['driver']}" for d in found["devices"]
        ]
        return "; ".join([built, *(gpus or ["no AMD GPU"])])
