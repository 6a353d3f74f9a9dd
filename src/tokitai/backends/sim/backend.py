"""The simulated device as a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import CompilerMissingError
from ...lang import Graph
from ...toolchain.compilers import find_compiler
from ..backend import Backend, CaseSet, Language, Target, Trial
from ..cpu.backend import FLAGS, NEEDED
from .target import SimTarget


class SimBackend(Backend):
    """The source of GPU kernels as C++, every thread a fiber: slow, and as exact as a GPU."""

    name = "sim"
    devices = ("sim",)
    language = Language.GPU
    cases = CaseSet.SIMULATED

    def missing(self) -> str | None:
        """A C++ compiler may be missing."""
        try:
            find_compiler()
        except CompilerMissingError as error:
            return str(error)
        return None

    def open(self, device: str, compiler: str | None = None, graph: Graph | None = None) -> Target:
        """Warps of 32. Raises CompilerMissingError."""
        return SimTarget(compiler)

    def known_flags(self) -> frozenset[str]:
        """Those of the processor's kernels."""
        return FLAGS

    def needed_flags(self) -> tuple[str, ...]:
        """Contraction is off."""
        return NEEDED

    def examine(self, trial: Trial) -> dict[str, Any]:
        """Whether the source of a GPU's kernel has the defined bits."""
        problem = trial(self.name)
        claims = [] if problem else ["the text of GPU kernels can be run and verified on this processor"]
        return {"works": problem is None, "problem": problem, "claims": claims}

    def lacks(self, found: Mapping[str, Any]) -> Iterator[str]:
        """Nothing beside the compiler, which the processor's backend reports."""
        if self.missing() is None:
            yield from super().lacks(found)
