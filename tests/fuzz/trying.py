"""Try drawn programs: each is refused with a line of its own file, or verified on the CPU and the simulated device."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from batches import BatchedSim, Library, cpu_kernel
from drawn import program
from programs import Program

from tokitai.errors import ArgumentError, DefinitionError, TargetMissingError
from tokitai.families import Plan, emit_cpu, make_plan
from tokitai.formats import format_of
from tokitai.lang import Graph, Operator
from tokitai.meaning import real, structure
from tokitai.runtime.call import call_with
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import Kernel, KernelBase, Scalars
from tokitai.toolchain.build import Isa
from tokitai.verification import cases
from tokitai.verification.accuracy import measure_error
from tokitai.verification.compare import first_mismatch
from tokitai.verification.run import PLAIN, CaseResult, Launch, Layout, _oracle

LAYOUTS = (
    PLAIN, Layout("gaps between rows", 2, offset=3, gap=5), Layout("drawn 1", 3, draws=("1",)),
    Layout("drawn 2", 1, draws=("2",)), Layout("drawn 3", 2, draws=("3",), aligned=True),
)  # fmt: skip


@dataclass
class Tried:
    """What became of a program."""

    program: Program
    file: Path
    operator: Operator | None = None
    graph: Graph | None = None
    plan: Plan | None = None
    refused: str = ""  # by what, in the words of what is accepted
    refused_calls: list[str] = field(default_factory=list)
    failure: str = ""
    kernels: dict[str, KernelBase] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return "failed" if self.failure else f"refused: {self.refused}" if self.refused else "verified"


def load(tried: Tried) -> Operator:
    """The operator of a program, from its file."""
    tried.file.write_text(tried.program.source)
    spec = importlib.util.spec_from_file_location(tried.file.stem, tried.file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[tried.file.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, tried.program.name)  # type: ignore[no-any-return]


def refusal(tried: Tried, error: DefinitionError) -> None:
    """Note a refusal, which must name a line of the program's definition and what is accepted."""
    text = str(error)
    found = re.match(rf"{re.escape(str(tried.file))}:(\d+): .*?; accepted[^:]*: (.*)", text, re.S)
    lines = tried.program.source.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("@operator"))
    if found is None or not head <= int(found[1]) - 1 < len(lines):
        tried.failure = f"a refusal that does not name a line of the definition: {text}"
        return
    tried.refused = re.sub(r"\d+", "N", found[2])


def trace(tried: Tried) -> None:
    """From the program to its plan."""
    p = tried.program
    try:
        tried.operator = load(tried)
        tried.graph = tried.operator.trace(p.dtype, p.present, p.options)
        tried.plan = make_plan(tried.graph)
    except DefinitionError as error:
        refusal(tried, error)
    except Exception:
        tried.failure = f"a crash:\n{traceback.format_exc()}"


@dataclass
class Batch:
    """Programs whose kernels are compiled together."""

    tried: list[Tried]
    folder: Path
    isa: Isa

    def __post_init__(self) -> None:
        self.cpu = {s: Library(self.folder, self.isa, s) for s in (False, True)}
        self.sim = {s: Library(self.folder, "scalar", s, simulated=True) for s in (False, True)}
        self.target = BatchedSim(self.sim[False], self.sim[True])

    def run(self) -> None:
        """Trace, compile, compare."""
        for t in self.tried:
            trace(t)
        alive = [t for t in self.tried if t.plan is not None and not t.failure]
        for t in alive:
            self._guarded(t, self._emit)
        for t in alive:
            if not t.failure:
                self._guarded(t, self._gather)
        for library in (*self.cpu.values(), *self.sim.values()):
            library.build()
        for t in alive:
            if not t.failure:
                self._guarded(t, self._compare)

    def _guarded(self, t: Tried, step: object) -> None:
        try:
            step(t)  # type: ignore[operator]
        except DefinitionError as error:
            refusal(t, error)
        except Exception:
            t.failure = f"a crash:\n{traceback.format_exc()}"

    def _emit(self, t: Tried) -> None:
        assert t.operator is not None and t.graph is not None and t.plan is not None
        text = emit_cpu(t.plan)
        for s in (False, True):
            self.cpu[s].add(t.program.name, text)
            t.kernels[f"cpu{s}"] = Kernel(t.operator, t.graph, t.plan, text, None, s)
        try:
            plan = gpu_plan(t.graph, "sim")
        except TargetMissingError:
            return
        s = t.program.number % 2 == 1  # numbers and hashes in turn: on the CPU every graph has both
        t.kernels[f"sim{s}"] = GpuKernel(t.operator, t.graph, plan, s, self.target)

    def _gather(self, t: Tried) -> None:
        """Launch kernels of the simulated device that compute nothing yet, so that their sources are known."""
        for _ in self._comparisons(t, ("sim",)):
            pass
        for name, k in t.kernels.items():
            if isinstance(k, GpuKernel):
                t.kernels[name] = GpuKernel(k.operator, k.graph, k.plan, k.structure, self.target)

    def _compare(self, t: Tried) -> None:
        for s in (False, True):
            kernel = t.kernels[f"cpu{s}"]
            kernel.__dict__["loaded"] = cpu_kernel(self.cpu[s], t.program.name)
        t.failure = next(filter(None, self._comparisons(t, ("cpu", "sim"))), "")

    def _comparisons(self, t: Tried, devices: tuple[str, ...]) -> Iterator[str]:
        """What differs between each kernel and the definition."""
        p, graph, operator = t.program, t.graph, t.operator
        assert graph is not None and operator is not None
        for i, (shape, how) in enumerate(zip(p.shapes, p.how, strict=True)):
            case = cases.seeded(operator, graph, how, shape, p.seed)
            want = _oracle(graph, case)
            drawn, hashes = structure.hashes(graph, shape, p.seed)
            drawn |= {t.name: case.tensors[t.name] for t in graph.inputs if not format_of(t.format).is_float}
            hashed = structure.evaluate(graph, drawn, shape, hashes, case.params)
            for name, kernel in t.kernels.items():
                device = name[:3]
                if device not in devices or (device == "sim" and i == 0):
                    continue
                layouts = LAYOUTS if device == "cpu" else (LAYOUTS[(p.number + i) % len(LAYOUTS)],)
                s = kernel.structure
                tensors, wanted = (drawn, hashed) if s else (case.tensors, want)
                scalars = (
                    kernel.hash_table(hashes, *shape, case.params) if s else kernel.scalar_table(*shape, case.params)
                )
                for layout in layouts:
                    yield compare(kernel, case.shape, tensors, layout, scalars, wanted, f"{device} {case.id}")
            if "cpu" in devices:
                yield self._bounded(t, case, want)
                yield self._parts(t, case, want)
                yield self._called(t, case, want)

    def _bounded(self, t: Tried, case: cases.Case, want: dict[str, np.ndarray]) -> str:
        """The exact values as a textbook would give them: a right textbook is not refuted."""
        assert t.graph is not None
        if not case.in_domain or 0 in case.shape:
            return ""
        graph = t.graph
        exact = real.evaluate(graph, case.tensors, case.shape, case.params)
        result = CaseResult(case.kind, case.name, case.shape, case.seed, case.id, {}, ())
        assert t.operator is not None
        t.operator.set_textbook(lambda **_: exact)
        measure_error(graph, case, want, t.operator, result)
        return f"textbook: {result.failure}" if result.failure else ""

    def _called(self, t: Tried, case: cases.Case, want: dict[str, np.ndarray]) -> str:
        """A call on arrays gives the same, or is refused."""
        assert t.graph is not None and t.operator is not None
        kernel = t.kernels["cpuFalse"]
        assert isinstance(kernel, Kernel)
        given = {i.name: case.tensors[i.name].copy() for i in t.graph.inputs}
        given |= {p.name: case.params[p.name] for p in t.operator.params} | t.program.options
        try:
            made = call_with(lambda *_: kernel, t.operator, (), given, None, 2, True)
        except ArgumentError as error:
            t.refused_calls.append(str(error))
            return "" if "; accepted" in str(error) else f"call {case.id}: {error}"
        for o, values in zip(t.graph.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            values = np.asarray(values)
            if values.size != want[o.name].size or values.dtype != want[o.name].dtype:
                return f"call {case.id}: {o.name} of shape {values.shape}"
            mismatch = first_mismatch(o.name, values.reshape(want[o.name].shape), want[o.name])
            if mismatch is not None:
                return f"call {case.id}: {mismatch}"
        return ""

    def _parts(self, t: Tried, case: cases.Case, want: dict[str, np.ndarray]) -> str:
        """Rows in two batches have the same bits."""
        from tokitai.verification.run import _split

        kernel = t.kernels["cpuFalse"]
        if not kernel.plan.rows_are_apart(case.shape):
            return ""
        fault = _split(kernel, case, want, kernel.scalar_table(*case.shape, case.params), 2)
        return f"split {case.id}: {fault}" if fault is not None else ""


def compare(
    kernel: KernelBase, shape: tuple[int, int], tensors: dict[str, np.ndarray], layout: Layout, scalars: Scalars,
    want: dict[str, np.ndarray], what: str,
) -> str:  # fmt: skip
    """What a kernel does that differs from the definition, in a line; nothing where it does the same."""
    from tokitai.verification.run import FAULTS, fault_text

    what = f"{what}, {layout.name}, {'structure' if kernel.structure else 'numbers'}"
    entries = next((len(want[o.name]) for o in kernel.graph.outputs if o.space == "t"), None)
    try:
        got = Launch(kernel, shape, tensors, layout, entries).run(scalars)
    except FAULTS as error:
        return f"{what}: {fault_text(error)}"
    for name, values in got.items():
        mismatch = first_mismatch(name, values.reshape(want[name].shape), want[name])
        if mismatch is not None:
            return f"{what}: {mismatch}"
    return ""


def try_programs(seed: int, numbers: range, folder: Path, isa: Isa, together: int = 120) -> list[Tried]:
    """The programs of these numbers, so many at a time."""
    every = []
    for start in range(numbers.start, numbers.stop, together):
        some = range(start, min(start + together, numbers.stop))
        here = folder / f"from_{start}"
        here.mkdir(parents=True)
        tried = [Tried(p, here / f"{p.name}.py") for p in (program(seed, n) for n in some)]
        Batch(tried, here, isa).run()
        every += tried
    return every


def counts(tried: list[Tried]) -> Counter[str]:
    """How many came out how."""
    return Counter(t.outcome for t in tried)
