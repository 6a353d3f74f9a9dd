"""NVIDIA GPUs as a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ...errors import DeviceMissingError, TokitaiError
from ...lang import Graph
from ...toolchain.build import Source
from ..backend import Backend, CaseSet, Language, Shown, Trial, size_shown
from ..machine_code import holds_fixed, holds_steps
from . import nvrtc
from .device import open_device, probe
from .driver import in_use
from .nvrtc import CudaArtifact
from .target import CudaTarget

BY_NUMBERS = (
    "Products of 16-bit operands by Hopper's warpgroups were compared by numbers alone: structure runs take the other "
    "kernels of the same plan, as hashes are no operands of a matrix unit."
)
FIXED_BY_NUMBERS = (
    "Products in fixed point by Hopper's warpgroups were compared by numbers alone: structure runs take the other "
    "kernels of the same plan, as hashes have no digits."
)


class CudaBackend(Backend):
    """NVRTC compiles, the driver loads and launches."""

    name = "cuda"
    devices = ("cuda", "cuda:N")
    language = Language.GPU
    cases = CaseSet.SCHEDULES
    ahead = True
    picks_compiler = False

    def takes(self, device: str) -> bool:
        """The first GPU, or one by its number."""
        name, colon, number = device.partition(":")
        return name == self.name and (not colon or (number.isascii() and number.isdigit()))

    def missing(self) -> str | None:
        """NVRTC, the driver or a GPU may be missing."""
        return nvrtc.missing() or probe()

    def open(self, device: str, compiler: str | None = None, graph: Graph | None = None) -> CudaTarget:
        """A GPU, opened once. Raises DeviceMissingError."""
        return _opened(int(device.partition(":")[2] or 0))

    def compile(
        self, source: Source, graph: Graph, arch: str | None = None, compiler: str | None = None
    ) -> CudaArtifact:
        """By NVRTC; no GPU is needed where an architecture is named."""
        return nvrtc.build(source, self.arch_for(arch))

    def arch_for(self, arch: str | None) -> str:
        """The first GPU's, where none is named."""
        if arch is not None:
            nvrtc.options_of(arch)
            return arch
        try:
            return open_device(0).arch
        except DeviceMissingError as missing:
            raise DeviceMissingError(f"{missing}; without one, name the architecture: arch='sm_90', say") from None

    def forks(self, isolate: bool) -> bool:
        """Not where this process has used CUDA, which does not survive a fork."""
        return not (isolate or in_use())

    def non_claims(self, shown: Shown) -> list[str]:
        """What structure runs do not show of warpgroups."""
        said = [BY_NUMBERS] if any(holds_steps(g) for g in shown.graphs) else []
        return said + [FIXED_BY_NUMBERS] * any(holds_fixed(g) and not g.ragged for g in shown.graphs)

    def known_flags(self) -> frozenset[str]:
        """NVRTC's options."""
        return frozenset(nvrtc.OPTIONS)

    def needed_flags(self) -> tuple[str, ...]:
        """No contraction, no flushed subnormal numbers, correctly rounded division and square root."""
        return "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"

    def departures(self, predicate: Mapping[str, Any]) -> Iterator[str]:
        """Device, flags and compiler name one architecture and one NVRTC."""
        device, isa = predicate["device"], predicate["isa"]
        if device.get("arch") != isa or f"-arch={isa}" not in predicate["flags"]:
            yield f"built for {isa}, on a device whose arch is {device.get('arch')}"
        if predicate["compiler"]["kind"] != "nvrtc" or device.get("nvrtc") != predicate["compiler"]["version"]:
            yield "its compiler is not the one that its device names"

    def examine(self, trial: Trial) -> dict[str, Any]:
        """``build`` and ``run`` say what is missing, or are None."""
        build, run = nvrtc.missing(), probe()
        found: dict[str, Any] = {"works": False, "build": build, "run": run, "nvrtc": None, "nvrtc_digest": None}
        found["device"] = None
        if build is None:
            library = nvrtc.find_nvrtc()
            found["nvrtc"], found["nvrtc_digest"] = library.version, library.digest
        if run is None:
            try:
                found["device"] = open_device().describe()
            except TokitaiError as error:
                found["run"] = str(error)
        found["works"] = found["build"] is None and found["run"] is None
        found["claims"] = _claims(found)
        return found

    def lacks(self, found: Mapping[str, Any]) -> Iterator[str]:
        """The compiler, the driver or the GPU."""
        yield from (found[what] for what in ("build", "run") if found[what])

    def shown(self, found: Mapping[str, Any]) -> str:
        """The first GPU and NVRTC."""
        compiler = f"NVRTC {found['nvrtc']}" if found["nvrtc"] else "no NVRTC"
        if found["device"] is None:
            return f"{compiler}, no usable GPU" + ("; kernels can be built and examined" if found["nvrtc"] else "")
        d = found["device"]
        return f"{d['name']}, {d['arch']}, {size_shown(d['memory_bytes'])}, driver {d['driver']}, {compiler}"

    def compiler_shown(self, found: Mapping[str, Any]) -> str | None:
        """NVRTC with its digest."""
        return f"NVRTC {found['nvrtc']}, sha256 {found['nvrtc_digest'][:12]}" if found["nvrtc"] else None


def _claims(found: Mapping[str, Any]) -> list[str]:
    if found["works"]:
        return [f"kernels for {found['device']['arch']} can be run and verified here"]
    if found["build"] is None:
        return [f"kernels for {', '.join(nvrtc.ARCHITECTURES)} can be compiled and inspected here, not run"]
    return []


@lru_cache(maxsize=8)
def _opened(index: int) -> CudaTarget:
    return CudaTarget(index)
