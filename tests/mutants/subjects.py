"""What is mutated: the program of an operator on a device, and the cases of its verification, each of which knows the
places of the program that it runs through."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants.program import PRELUDE, SITES, Mutant, alone, schemata
from tokitai import emit, ops
from tokitai.backends.backend import GPU_LANES
from tokitai.backends.cpu.backend import LANES
from tokitai.backends.sim.target import SimTarget
from tokitai.emit.cpp import KernelText
from tokitai.errors import ProofError
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import Graph, Operator
from tokitai.meaning import bits, structure
from tokitai.proving.buffers import Buffers
from tokitai.proving.choice import family_of
from tokitai.proving.kernel import Kernel
from tokitai.proving.prove import LANES as PROVED_LANES
from tokitai.proving.prove import SECONDS, WALKS
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import KernelBase, build_text
from tokitai.toolchain.build import COMMON, ISAS, machine_here, native_isa
from tokitai.toolchain.compilers import find_compiler
from tokitai.verification import cases, run, suite
from tokitai.verification.lists import lists_of, run_list

DTYPE = "f16"
SEED = 16
THREADS = 2  # of the runs in two batches


@dataclass(frozen=True)
class Slip:
    """A wrong emitter: one change in every program that has its line, the ``nth`` of such changes in it. On the
    simulated device an operator has a program for each schedule."""

    what: str
    nth: int

    def __str__(self) -> str:
        return self.what + f" (place {self.nth + 1})" * (self.nth > 0)


@dataclass
class Trial:
    """A case of a verification on a build; after `Subject.run_all` also what the right program takes for it, and which
    sites of which programs it reaches."""

    run: Callable[[], str | None]
    seconds: float = 0.0
    reached: frozenset[tuple[str, int]] = frozenset()


@dataclass
class Subject:
    """The programs of an operator with all their mutants in them."""

    name: str
    device: str
    operator: Operator
    make: Callable[[bool], KernelBase]
    sources: dict[str, tuple[str, list[Mutant]]]  # by the digest of what is compiled: the right one, and its mutants
    build: Callable[[str, str], str]  # the digest of the machine code of a program with this source
    walk: Callable[[str], Kernel | Buffers] | None = None  # such a program, as the solver reads it
    kernels: dict[bool, KernelBase] = field(default_factory=dict)
    numbered: dict[str, dict[Slip, Mutant]] = field(default_factory=dict)

    def kernel(self, hashed: bool) -> KernelBase:
        """The build over hashes, or over numbers."""
        if hashed not in self.kernels:
            self.kernels[hashed] = self.make(hashed)
        return self.kernels[hashed]

    def trials(self, hashed: bool) -> list[Trial]:
        """The cases of a verification over hashes, or over numbers: those of `tokitai verify`."""
        return [Trial(r) for r in (self._hashed() if hashed else self._numbers())]

    def _hashed(self) -> Iterator[Callable[[], str | None]]:
        op, kernel = self.operator, self.kernel(True)
        for name, shape in suite.structure_runs(op, kernel.plan, self._lanes(), None, SEED, self.device):
            yield functools.partial(_structure, op, kernel, shape, name)
        yield from self._lists(kernel)

    def _numbers(self) -> Iterator[Callable[[], str | None]]:
        op, kernel = self.operator, self.kernel(False)
        for case in suite.number_cases(op, kernel.plan, self._lanes(), None, SEED, self.device, suite.VERSION):
            yield functools.partial(_number, kernel, case)
        yield from self._lists(kernel)

    def _lists(self, kernel: KernelBase) -> Iterator[Callable[[], str | None]]:
        for name in lists_of(kernel.graph) if kernel.plan.flat else ():
            yield functools.partial(_list, self.operator, kernel, name)

    def _lanes(self) -> int:
        return LANES[native_isa()] if self.device == "cpu" else GPU_LANES

    def libraries(self, hashed: bool) -> dict[str, ctypes.CDLL]:
        """The programs that were loaded so far, by the digest of their source."""
        kernel = self.kernel(hashed)
        if not isinstance(kernel, GpuKernel):
            (digest,) = self.sources
            return {digest: ctypes.CDLL(str(kernel.artifact.path))}  # type: ignore[attr-defined]
        loaded: list[tuple[Any, Any]] = list(kernel.programs.values())
        return {i.source_digest: ctypes.CDLL(str(p.loaded.artifact.path)) for p, i in loaded}

    def run_all(self, trials: Sequence[Trial], hashed: bool, seconds: float) -> list[Trial]:
        """Run the right program, as long as there is time, on each case; those that were run, cheap ones first. Raises
        AssertionError where one refutes it.

        In a thread of its own: the threads of OpenMP that it starts end with it, so that processes can be forked.
        """
        ran: list[Trial] = []
        thread = threading.Thread(target=lambda: ran.extend(self._run_all(trials, hashed, seconds)))
        thread.start()
        thread.join()
        assert ran, f"{self.name}: the right program is refuted, or nothing was run"
        return sorted(ran, key=lambda t: t.seconds)

    def _run_all(self, trials: Sequence[Trial], hashed: bool, seconds: float) -> Iterator[Trial]:
        started = time.monotonic()
        for trial in trials:
            for library in self.libraries(hashed).values():
                ctypes.memset(_reached(library), 0, SITES)
            began = time.perf_counter()
            failure = trial.run()
            assert failure is None, f"the right program is refuted: {failure}"
            trial.seconds = time.perf_counter() - began
            trial.reached = frozenset(
                (digest, int(site))
                for digest, library in self.libraries(hashed).items()
                for site in np.flatnonzero(np.frombuffer(_reached(library), np.uint8))
            )
            yield trial
            if time.monotonic() - started > seconds:
                return

    def slips(self) -> list[Slip]:
        """Those of all programs that were loaded so far."""
        return list(dict.fromkeys(slip for mutants in self._numbered().values() for slip in mutants))

    def mutants(self, slip: Slip) -> dict[str, Mutant]:
        """What a slip is in each of the programs that have it."""
        return {digest: mutants[slip] for digest, mutants in self._numbered().items() if slip in mutants}

    def _numbered(self) -> dict[str, dict[Slip, Mutant]]:
        for digest, (_, mutants) in self.sources.items():
            if digest not in self.numbered:
                seen: Counter[str] = Counter()
                made = self.numbered[digest] = {}
                for m in mutants:
                    made[Slip(str(m), seen[str(m)])] = m
                    seen[str(m)] += 1
        return self.numbered

    def reaching(self, slip: Slip, trials: Sequence[Trial]) -> list[Trial]:
        """The cases that run through what a slip changes: on all others the program is the right one."""
        sites = {(digest, m.number // 2) for digest, m in self.mutants(slip).items()}
        return [t for t in trials if sites & t.reached]

    def same(self, slip: Slip) -> bool:
        """Whether the compiler makes the same machine code of it as of the right programs."""
        return all(
            self.build(digest, source) == self.build(digest, alone(source, mutant.number))
            for digest, mutant in self.mutants(slip).items()
            for source in self.sources[digest][:1]
        )


def disproved(subject: Subject, slip: Slip) -> str | None:
    """Which statement for all sizes the solver refutes of a mutant, and for which; None where there is none. What no
    case shows may be wrong at sizes that none can have."""
    if subject.walk is None:
        return None
    for digest, mutant in subject.mutants(slip).items():
        source = alone(subject.sources[digest][0], mutant.number)
        try:
            found = list(subject.walk(source).obligations(subject.name))
        except ProofError:  # it cannot be read any more
            continue
        for o in found:
            if o.status == "refuted":
                return f"{o.name}, {', '.join(f'{n} = {v}' for n, v in o.sizes.items())}"
    return None


def _reached(library: ctypes.CDLL) -> Any:
    return (ctypes.c_char * SITES).in_dll(library, "tokitai_reached")


def set_alive(library: ctypes.CDLL, number: int) -> None:
    """Make a program one of its mutants, or with -1 the right one."""
    ctypes.c_int.in_dll(library, "tokitai_mutant").value = number


def _structure(op: Operator, kernel: KernelBase, shape: tuple[int, int], name: str) -> str | None:
    integers = cases.drawn_integers(op, kernel.graph, name, shape, SEED)
    params = cases.drawn_scalars(op, kernel.graph, shape)
    return _said(run.run_structure(kernel, shape, integers, params, SEED, name))


def _number(kernel: KernelBase, case: cases.Case) -> str | None:
    return _said(run.run_numbers(kernel, case, None, THREADS))


def _list(op: Operator, kernel: KernelBase, name: str) -> str | None:
    return _said(run_list(op, kernel, name, SEED, THREADS))


def _said(result: run.CaseResult) -> str | None:
    return f"{result.id}: {result.failure}" if result.failure else None


def remember_oracles() -> None:
    """The oracle of a case is computed once for all mutants."""
    known: dict[object, Any] = {}

    def key(x: object) -> object:
        if isinstance(x, np.ndarray):
            return (x.shape, x.dtype.str, hashlib.sha256(np.ascontiguousarray(x).view(np.uint8).data).digest())
        if isinstance(x, Graph):
            return x.digest
        if isinstance(x, Mapping):
            return tuple((n, key(v)) for n, v in x.items())
        return tuple(key(v) for v in x) if isinstance(x, list) else repr(x)

    def once(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def cached(*args: Any) -> Any:
            asked = (evaluate, *(key(a) for a in args))
            if asked not in known:
                known[asked] = evaluate(*args)
            return known[asked]

        return cached

    for module in (structure, bits):
        for name in ("evaluate", "evaluate_tensors"):
            setattr(module, name, once(getattr(module, name)))


# ------------------------------------------------------------------ on each device
def operator_of(name: str) -> str:
    """The operator of a subject's name."""
    return name.partition("/")[0].split()[0]


@functools.cache
def _machine_code(source: str, headers: tuple[tuple[str, str], ...], flags: tuple[str, ...]) -> str:
    """Compiled without assuming that no array is left: a mutant that leaves one would be made the right code."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (*headers, ("kernel.cpp", source)):
            Path(folder, name).write_text(text)
        own = tuple(f for f in COMMON if f not in ("-shared", "-Wl,-z,defs", "-O3"))
        level = ("-O1", "-fno-aggressive-loop-optimizations", *flags)
        command = [str(find_compiler().path), *own, *level, "-S", "-o", "-", "kernel.cpp"]
        made = subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout
    return hashlib.sha256(made).hexdigest()


def machine_code(source: str, headers: Mapping[str, str], flags: Sequence[str]) -> str:
    """The digest of the assembler that the compiler makes of a source."""
    return _machine_code(source, tuple(headers.items()), tuple(flags))


def on_cpu(name: str) -> Subject:
    """The program of an operator for the CPU, with vectors as wide as here; a header of it where a name has one:
    ``OPERATOR OPTION=VALUE/HEADER``."""
    named, _, header = name.partition("/")
    op, options = ops.get(operator_of(name)), named.split()[1:]
    graph = op.trace(DTYPE, None, dict(option.split("=") for option in options))
    plan = make_plan(graph)
    text = emit_cpu(plan)
    isa = native_isa()
    right = text.headers[header] if header else text.text
    changed, mutants = schemata(right)

    def make(hashed: bool) -> KernelBase:
        whole = PRELUDE + (text.text if header else changed)
        headers = {**text.headers, header: changed} if header else text.headers
        return build_text(op, graph, plan, whole, headers, isa=isa, structure=hashed)

    def build(_: str, source: str) -> str:
        headers = {**text.headers, header: source} if header else text.headers
        return machine_code(
            text.text if header else source,
            headers,
            (*ISAS[machine_here()][isa].flags, f"-DTOKITAI_ISA_{isa.upper()}=1"),
        )

    def walk(source: str) -> Kernel | Buffers:
        made = (text.text, {**text.headers, header: source}) if header else (source, text.headers)
        return WALKS[family_of(plan)](op, plan, LANES[isa], SECONDS, KernelText(*made))

    known = isa in PROVED_LANES and family_of(plan) in WALKS
    return Subject(name, "cpu", op, make, {"cpu": (right, mutants)}, build, walk if known else None)


def on_sim(name: str) -> Subject:
    """The programs of an operator for GPUs, on the simulated device: one for each schedule that its cases need."""
    op = ops.get(name)
    graph = op.trace(DTYPE)
    sources: dict[str, tuple[str, list[Mutant]]] = {}

    def edit(source: str) -> str:
        if "KERNEL(" not in source or "#pragma once" in source:
            return source
        made, mutants = schemata(source)
        sources[hashlib.sha256((PRELUDE + made).encode()).hexdigest()] = source, mutants
        return PRELUDE + made

    def make(hashed: bool) -> KernelBase:
        return GpuKernel(op, graph, gpu_plan(graph, "sim"), hashed, SimTarget(), edit)

    folder = Path(emit.__file__).parent
    headers = {p.name: p.read_text() for part in ("cpu", "gpu") for p in (folder / part).glob("*.h")}
    flags = ("-DTOKITAI_SIM=1", "-DTOKITAI_WARP=32", "-fno-threadsafe-statics")

    def build(_: str, source: str) -> str:
        return machine_code(source, headers, flags)

    return Subject(name, "sim", op, make, sources, build)


def made(name: str, device: str) -> Subject:
    """A subject by its name and device."""
    return on_cpu(name) if device == "cpu" else on_sim(name)
