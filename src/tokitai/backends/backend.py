"""What a backend is: one kind of device, from the source of its kernels to the strongest verdict that it may give.

Each folder beside this file holds one backend and names its object ``BACKEND``; another distribution adds one through
the entry-point group ``tokitai.backends``. Verification, the command line and worker processes ask the objects, by the
interface of this file, and name none of them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np

from ..emit.cpp import KernelText
from ..errors import ArgumentError
from ..families.gpu_family import Capabilities, Program
from ..lang import Graph, Operator
from ..toolchain.build import Source

Array = np.ndarray[Any, Any]
GPU_LANES = 8  # a thread's chunk: the cases of a GPU kernel do not depend on the host's processor


class Language(StrEnum):
    """Which source a backend takes."""

    HOST = "host"  # C++, one function for each operator (`emit.cpp`)
    GPU = "gpu"  # kernels of threads in blocks (`emit.gpu_text`)
    OWN = "own"  # none: the backend makes kernels from graphs


class CaseSet(StrEnum):
    """Which shapes verification tries on a device, by the names that families (`families.shapes`) know them by."""

    VECTORS = "cpu"  # every branch of a plan over the vectors of a processor
    SCHEDULES = "cuda"  # every schedule of a GPU, large shapes among them
    SIMULATED = "sim"  # every schedule of a GPU at few and small shapes: one thread after another takes long


@dataclass(frozen=True)
class Identity:
    """A binary, as certificates name it: what it was made of, by what, and what came out."""

    structure: bool
    fingerprint: str  # SHA-256 over everything that can change the binary
    digest: str  # SHA-256 of the binary
    source_digest: str
    compiler: str
    compiler_version: str
    compiler_digest: str
    isa: str
    flags: tuple[str, ...]
    sums: Mapping[str, str]  # where its source joins pending sums, as `emit.counters.sums_of` has it


class Inspected:
    """A program whose binary is held against each launch, while the binaries ``beside`` it, of the same source, run."""

    beside: tuple[Identity, ...]


class Target(Capabilities, Protocol):
    """One opened device: it compiles, loads and launches the source of GPU kernels, and has memory for them."""

    def describe(self) -> dict[str, Any]:
        """The device, as certificates show it: plain JSON values."""

    def entered(self) -> AbstractContextManager[None]:
        """Make the device's context the current one of this thread, and the caller's again afterwards."""

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a source, or take it from the build cache, and load it."""

    def place(self, values: Array) -> tuple[int, object]:
        """The address at which kernels can read these values, and what keeps them there."""

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """The address of so many bytes, whatever they hold, and what keeps them there."""

    def lent(self, memory: Sequence[Array]) -> AbstractContextManager[list[int]]:
        """Host memory (arrays of bytes) for one launch: the addresses at which kernels find it, with the same
        remainder by 256. On leaving, all launches have ended and the arrays hold what kernels wrote. Raises
        DeviceError."""

    def again(self) -> tuple[str, str | None] | None:
        """The device's name and compiler with which another process opens the same; None where that cannot be."""


class Trial(Protocol):
    """Verifies one small case."""

    def __call__(self, device: str, compiler: str | None = None) -> str | None:
        """Why the case was not verified on the device; None where it was."""


def size_shown(count: int | None) -> str:
    """An amount of memory, for people."""
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


@dataclass(frozen=True)
class Shown:
    """What a verification tells a backend for its sentences: the graphs that were run, the architectures for which some
    source was compiled and inspected, the warp width of the device, and why kernels did not run on one."""

    graphs: Sequence[Graph]
    archs: Sequence[str] = ()
    warp: str = ""
    not_run: str = ""


class Backend(ABC):
    """One kind of device. Making one opens nothing and imports no package of a vendor."""

    name: str
    devices: tuple[str, ...]  # what a user may pick, as messages list it
    language: Language
    cases: CaseSet
    strongest: Literal["verified", "undecided"] = "verified"  # the verdict where nothing was found wrong
    ahead: bool = False  # its kernels are compiled for an architecture without opening a device
    picks_compiler: bool = True  # a user may name its compiler
    confined: bool = False  # a worker process can run its kernels in a sandbox
    isolated: bool = True  # a worker process can run its kernels
    not_run_start: str = ""  # how the sentence begins that says why kernels ran on a stand-in
    where: str = ""  # follows "structure run" in a certificate's proofs, where kernels run on a stand-in

    # ------------------------------------------------------------------ devices
    def takes(self, device: str) -> bool:
        """Whether a user's word means a device of this backend."""
        return device == self.name

    def parts(self, device: str, arch: str | None = None) -> tuple[str, ...]:
        """The devices on which a verification runs one after another, where a user has picked `device` and perhaps an
        architecture. Raises UsageError for an architecture that does not go with it."""
        if arch is not None:
            raise ArgumentError(f"arch={arch!r} goes with a device of several architectures, not with {device}")
        return (device,)

    @abstractmethod
    def missing(self) -> str | None:
        """Why no kernel can be built and run on a device here, and what to install; None where one can."""

    def open(self, device: str, compiler: str | None = None, graph: Graph | None = None) -> Target:
        """Open a device for sources of the language GPU. ``graph`` is the definition for which kernels are built there.
        Raises UnavailableError."""
        raise ArgumentError(f"device {device}: takes no source of GPU kernels")

    def describe(self, devices: Sequence[str], compiler: str | None = None) -> dict[str, Any] | None:
        """The devices of one verification as its certificate shows them: plain JSON values; None for this machine's
        processor alone. Raises UnavailableError."""
        return self.open(devices[0], compiler).describe()

    # ------------------------------------------------------------------ kernels
    def compile(
        self, source: Source, graph: Graph, arch: str | None = None, compiler: str | None = None
    ) -> Any:  # fmt: skip
        """The artifact of a source for an architecture, not loaded: its ``fingerprint``, ``digest``, ``arch``, ``path``
        and ``resources``. Raises UnknownNameError, ArgumentError, CompilerMissingError, CompileError."""
        raise ArgumentError(f"{self.name}: kernels are compiled for an open device alone")

    def arch_for(self, arch: str | None) -> str:
        """The architecture to compile for: the one that is named, else the one that is here. Raises UnknownNameError,
        ArgumentError, DeviceMissingError."""
        raise ArgumentError(f"arch={arch!r} does not go with the target {self.name}")

    def layout_of(self, arch: str | None) -> tuple[int, bool]:
        """The warp width of an architecture, and whether rows may be copied to shared memory ahead of their use."""
        return 32, True

    def kernel(self, operator: Operator, graph: Graph, structure: bool) -> Any:
        """Of the language OWN: a kernel (`runtime.kernel.KernelBase`) that is made from a graph."""
        raise ArgumentError(f"{self.name}: makes no kernel from a graph")

    def forks(self, isolate: bool) -> bool:
        """Whether several processes that are forked from this one may use its devices; ``isolate``: by workers."""
        return not isolate

    # ------------------------------------------------------------------ evidence
    def lanes(self, isa: str) -> int:
        """The vector width on which the shapes of cases depend."""
        return GPU_LANES

    def not_run(self, archs: Sequence[str]) -> str:
        """What was done in place of running kernels on a device, and why; empty where they ran on one."""
        return ""

    def claims(self, shown: Shown) -> list[str]:
        """What certificates of this backend claim beside what all claim."""
        return []

    def non_claims(self, shown: Shown) -> list[str]:
        """What they do not claim, beside what none claims."""
        return []

    def known_flags(self) -> frozenset[str]:
        """The compiler flags that a certificate of this backend may name."""
        return frozenset()

    def needed_flags(self) -> tuple[str, ...]:
        """Those without which the bits are not defined."""
        return ()

    def departures(self, predicate: Mapping[str, Any]) -> Iterator[str]:
        """Where a certificate's device, compiler and instruction set do not belong together."""
        return iter(())

    # ------------------------------------------------------------------ this machine
    def examine(self, trial: Trial) -> dict[str, Any]:
        """What of it is on this machine, for `tokitai doctor`: ``works``, ``claims``, and keys of its own."""
        problem = self.missing() or trial(self.name)
        return {"works": problem is None, "problem": problem, "claims": []}

    def lacks(self, found: Mapping[str, Any]) -> Iterator[str]:
        """What is missing here, in sentences."""
        if found.get("problem"):
            yield str(found["problem"])

    def shown(self, found: Mapping[str, Any]) -> str:
        """What is here, in one line."""
        return "works" if found["works"] else "does not work"

    def compiler_shown(self, found: Mapping[str, Any]) -> str | None:
        """Its own compiler, in one line."""
        return None


def source_digest(text: KernelText) -> str:
    """SHA-256 of a source."""
    return hashlib.sha256(text.text.encode()).hexdigest()


def compiled_archs(kernels: Sequence[Any]) -> list[str]:
    """The architectures for which some source of these kernels was compiled and inspected beside what ran it."""
    every = [pair for kernel in kernels for pair in getattr(kernel, "programs", {}).values()]
    return list(dict.fromkeys(made.isa for program, made in every if isinstance(program, Inspected)))


def workspace_of(call: Any) -> int:
    """The address that ends the parameter of a GPU's kernel."""
    return int.from_bytes(call[-8:], "little")


__all__ = [
    "Array", "Backend", "Capabilities", "CaseSet", "Identity", "Inspected", "Language", "Program", "Shown",
    "Target", "Trial", "compiled_archs", "size_shown", "source_digest", "workspace_of",
]  # fmt: skip
