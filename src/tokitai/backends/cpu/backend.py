"""This machine's processor as a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import CompilerMissingError
from ...toolchain import build
from ...toolchain.compilers import find_compiler
from ..backend import GPU_LANES, Backend, CaseSet, Language, Trial
from . import device as cpu

LANES: Mapping[str, int] = {"avx512": 16, "avx2": 8, "neon": 4, "scalar": 1}
FLAGS = frozenset({
    *build.COMMON, *build.LINES, *build.STRUCTURE, "-fno-threadsafe-statics", *build.BOUNDS.values(),
    *build.LIBRARIES["gcc"], *build.LIBRARIES["clang"],
    *(f for rows in build.ISAS.values() for row in rows.values() for f in row.flags),
})  # fmt: skip
NEEDED = ("-ffp-contract=off",)


class CpuBackend(Backend):
    """C++ by the system's compiler, loaded into this process."""

    name = "cpu"
    devices = ("cpu",)
    language = Language.HOST
    cases = CaseSet.VECTORS
    ahead = True
    confined = True

    def missing(self) -> str | None:
        """A C++ compiler may be missing."""
        try:
            find_compiler()
        except CompilerMissingError as error:
            return str(error)
        return None

    def describe(self, devices: Sequence[str], compiler: str | None = None) -> dict[str, Any] | None:
        """A certificate describes this machine's processor where it has nothing else."""
        return None

    def forks(self, isolate: bool) -> bool:
        """Processes share nothing but the build cache."""
        return True

    def lanes(self, isa: str) -> int:
        """Those of the instruction set."""
        return LANES.get(isa, GPU_LANES)

    def known_flags(self) -> frozenset[str]:
        """Those of every compiler, instruction set and kind of build."""
        return FLAGS

    def needed_flags(self) -> tuple[str, ...]:
        """Contraction is off."""
        return NEEDED

    def departures(self, predicate: Mapping[str, Any]) -> Iterator[str]:
        """The processor has the instruction set."""
        isa, has = predicate["isa"], predicate["device"].get("isas")
        if isa not in (has if isinstance(has, list) else ()):
            yield f"built for {isa}, on a device that has {has}"

    def examine(self, trial: Trial) -> dict[str, Any]:
        """Whether a kernel by the compiler of choice has the defined bits."""
        works = self.missing() is None and cpu.check_float_mode() is None and trial(self.name) is None
        return {"works": works, "claims": self._claims() if works else []}

    def _claims(self) -> list[str]:
        runs = list(build.isas_here())
        other = sorted({isa for rows in build.ISAS.values() for isa in rows} - set(runs))
        here = f"kernels by {find_compiler().title} for {', '.join(runs)} can be run and verified here"
        there = f"nothing about {', '.join(other)}, which this machine does not run"
        return [here, there] if other else [here]
