"""The digest of every emitted source and of its launches: of each operator in each format, variant and target, and of
a few definitions beside them, which take emitters where no operator does.

``python -m tests.snapshot.emitted`` compares with the recorded digests and names the keys that differ, ``--write``
records them anew, and ``--show KEY`` prints what the digests of a key are made of, so that two checkouts can be
compared by ``diff``. A key is ``OPERATOR FORMAT VARIANT [structure] TARGET`` with ``source`` (the translation units) or
``launch`` (kernels by name, blocks, threads, shared memory, parameters, tables of lists, workspace) behind it. Headers
and compiler flags have keys of their own, so a changed header names itself instead of every kernel that includes it.

Nothing is compiled or run, and tensors are arrays without memory: no compiler, GPU or instruction set has a say.
What has to follow when the code under test moves is this file.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.snapshot.definitions import OWN
from tests.snapshot.shapes import points
from tokitai.backends.cuda import matrix_checks, nvrtc
from tokitai.backends.cuda.tensor_map import Matrix
from tokitai.backends.hip import clang
from tokitai.emit.cpp import KernelText
from tokitai.errors import TargetMissingError
from tokitai.families import emit_cpu, make_plan
from tokitai.formats import FORMATS
from tokitai.lang import Graph, Operator, extent
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import Kernel, KernelBase, Scalars
from tokitai.toolchain.build import ISAS, SIMULATED, flags_of
from tokitai.toolchain.compilers import Compiler
from tokitai.verification.variant import Variant, variants

RECORDED = Path(__file__).with_name("emitted.txt")
ENTRIES = 1000  # of tables
WORKSPACE = 1 << 40  # its address; tensors are elsewhere


# ------------------------------------------------------------------ targets
@dataclass(frozen=True)
class Device:
    """What the choice of kernels depends on."""

    name: str  # the target
    warp: int
    shared_bytes: int
    units: bool = False  # has matrix units and warpgroups
    few: bool = False  # a few shapes do: the same choices as of another device


DEVICES = {
    "sm_90": Device("cuda", 32, 227 << 10, units=True),
    "sm_80": Device("cuda", 32, 163 << 10),
    "gfx942": Device("hip", 64, 0),
    "gfx1101": Device("hip", 32, 0, few=True),
    "sim": Device("sim", 32, 227 << 10, few=True),
}
TARGETS = ("cpu", *DEVICES)


@dataclass
class Trace:
    """What kernels of one target are made of and launched with."""

    source: list[str] = field(default_factory=list)
    launch: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def unit(self, text: KernelText, *about: object) -> str:
        """Record a translation unit; its digest. A header has one content for all kernels of a target."""
        for name, content in text.headers.items():
            made = digest_of(content)
            if self.headers.setdefault(name, made) != made:
                raise AssertionError(f"{name}: two headers of this name; accepted: one content for each target")
        made = digest_of(text.text)
        self.texts[made] = text.text
        self.source.append(f"{made} includes {' '.join(sorted(text.headers))} {about}")
        return made


@lru_cache(maxsize=256)
def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Program:
    """A translation unit that is never compiled."""

    trace: Trace
    digest: str
    spilling: bool

    def launch(self, step: Any, call: bytes, order: int, stream: int) -> None:
        parts = (step.name, step.grid, step.block, step.in_turn, step.shared, step.cleared)
        self.trace.source.append(f"launches {self.digest}")
        self.trace.launch.append(f"{parts} {len(call)} {call.hex()}")

    def spills(self, name: str) -> int:
        return (1 << 20) * self.spilling


@dataclass
class Recorder:
    """A device that compiles and runs nothing. One that is `spilling` makes a kernel try all of its fallbacks."""

    trace: Trace
    device: Device
    spilling: bool = False
    entered = nullcontext

    def __post_init__(self) -> None:
        self.name, self.warp, self.shared_bytes = self.device.name, self.device.warp, self.device.shared_bytes
        self.matrix_units = self.fused_units = self.warpgroups = self.device.units
        self.integer_units = self.integer_warpgroups = self.device.units

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, None]:
        return Program(self.trace, self.trace.unit(text, stem, structure), self.spilling), None

    def place(self, values: np.ndarray[Any, Any]) -> tuple[int, object]:
        self.trace.launch.append(f"table {values.dtype} {values.shape} {hashlib.sha256(values.tobytes()).hexdigest()}")
        return 2 * WORKSPACE, None

    def workspace(self, nbytes: int) -> tuple[int, object]:
        self.trace.launch.append(f"workspace {nbytes}")
        return WORKSPACE, None


def encoded(matrix: Matrix, address: int) -> bytes:
    """What a tensor map is made of, in place of the driver's encoding."""
    about = (matrix.format, matrix.sides, matrix.strides, matrix.box, address)
    return 4 * hashlib.sha256(repr(about).encode()).digest()


# ------------------------------------------------------------------ tensors
class _At:
    """Memory that is not there."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        kind = f"|V{size}"
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": kind
        }  # fmt: skip


def tensors_of(
    kernel: KernelBase, shapes: Sequence[tuple[int, int]], wide: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The inputs and results of a list of shapes, which lie at addresses of their own; misaligned ones an element off
    a boundary, with a gap of an element between rows."""
    graph, address = kernel.graph, 1 << 12
    given: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []

    def array(space: Any, fmt: str, slots: int, shape: tuple[int, int]) -> Any:
        nonlocal address
        dtype, size = kernel.element(fmt), extent(space, shape, ENTRIES, slots)
        gap, item = 0 if wide or len(size) < 2 else 1, kernel.element(fmt).itemsize
        strides = [item]
        for i, side in enumerate(reversed(size[1:])):
            strides.insert(0, strides[0] * (max(side, 1) + gap * (i == 0)))
        start = address + item * (not wide)
        address += (math.prod(size) + size[0] if size else 1) * item + 4096
        address += -address % 4096
        return np.asarray(_At(start, size, tuple(strides[len(strides) - len(size) :]), item)).view(dtype)

    for shape in shapes:
        given.append({t.name: array(t.space, str(t.format), t.slots, shape) for t in graph.inputs})
        own = {o.name: array(o.space, o.format, o.slots, shape) for o in graph.outputs if not o.inplace}
        made.append({o.name: given[-1][o.name] if o.inplace else own[o.name] for o in graph.outputs})
    return given, made


def scalars_of(kernel: KernelBase, shape: tuple[int, int]) -> Scalars:
    """As many host scalars as a launch takes, all 0 but whole numbers: their values are another test's affair."""
    operator = kernel.operator
    given = {p.name: p.default if p.default is not None else 1.0 for p in operator.params}
    params = {**given, **dict(operator.contract.defaults), "entries": ENTRIES}
    params = {name: params[name] for name in given}
    with np.errstate(all="ignore"):
        values, whole = kernel.host_scalars(*shape, params)
    return Scalars(np.zeros(len(values), np.uint64 if kernel.structure else np.float32), whole)


# ------------------------------------------------------------------ recording
def record_cpu(operator: Operator, graph: Graph, structure: bool, trace: Trace) -> None:
    """A kernel for the CPU: one source for every instruction set."""
    plan = make_plan(graph)
    text = emit_cpu(plan)
    trace.unit(text, graph.name)
    kernel = Kernel(operator, graph, plan, text, None, structure)
    for name, shapes, wide in points(operator, graph, plan.flat):
        given, made = tensors_of(kernel, shapes, wide)
        scalars = scalars_of(kernel, shapes[0])
        sizes = kernel.sizes_of(given, made, shapes, scalars)
        entries = kernel.entries_in(sizes)
        need = [kernel.workspace_bytes(shapes, threads, entries) for threads in (1, 7)]
        trace.launch.append(f"{name}: sizes {sizes} scalars {len(scalars.table)} workspace {need}")


def record_gpu(operator: Operator, graph: Graph, structure: bool, device: Device, trace: Trace) -> None:
    """A kernel for a GPU, or for the simulated device."""
    try:
        plan = gpu_plan(graph, device.name)
    except TargetMissingError:
        trace.source.append("no kernel")
        return
    every = points(operator, graph, plan.flat)
    if structure or device.few:
        every = [*every[:2], *every[-1:]]
    for spilling in (False, True)[: 1 + (device.units and not structure)]:
        kernel = GpuKernel(operator, graph, plan, structure, Recorder(trace, device, spilling))  # type: ignore[arg-type]
        for name, shapes, wide in every[: 1 if spilling else None]:
            trace.source.append(name)
            trace.launch.append(name)
            given, made = tensors_of(kernel, shapes, wide)
            kernel.launch_list(given, made, shapes, scalars_of(kernel, shapes[0]), 0)


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


@dataclass
class Recording:
    """Digests by key, and what they are made of where that was asked for."""

    digests: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    wanted: str | None = None

    def add(self, key: str, lines: Sequence[str], texts: Mapping[str, str] | None = None) -> None:
        self.digests[key] = digest(lines)
        if self.wanted is not None and key.startswith(self.wanted):
            self.shown[key] = "\n".join([*lines, *(f"== {d}\n{t}" for d, t in (texts or {}).items())])


def record_operators(
    made: Recording, chosen: Callable[[Operator, str, Variant], bool] = lambda o, f, v: True
) -> None:  # fmt: skip
    """Every operator, format and variant that is chosen, on every target; and the headers that they include."""
    headers: dict[str, dict[str, str]] = {target: {} for target in TARGETS}
    with patch.object(Matrix, "encoded", encoded):
        for operator in (*registry().values(), *OWN):
            for dtype in operator.contract.formats:
                for v in variants(operator, dtype):
                    if not chosen(operator, dtype, v):
                        continue
                    graph = operator.trace(dtype, v.present, dict(v.options))
                    for structure in (False, True):
                        for target in TARGETS:
                            trace = Trace(headers=headers[target])
                            if target == "cpu":
                                record_cpu(operator, graph, structure, trace)
                            else:
                                record_gpu(operator, graph, structure, DEVICES[target], trace)
                            key = f"{operator.name} {dtype} {v}{' structure' * structure} {target}"
                            made.add(f"{key} source", trace.source, trace.texts)
                            made.add(f"{key} launch", trace.launch)
    for target, found in headers.items():
        for name, content in found.items():
            made.add(f"header {name} {target} source", [content])


def record_device_checks(made: Recording) -> None:
    """The sources that try out a GPU's matrix units."""
    sources = {"f64": matrix_checks.source(), "integers": matrix_checks.integer_source()}
    sources["integer-warpgroups"] = matrix_checks.integer_warpgroup_source()
    for fmt in ("f16", "bf16"):
        sources[f"warps-{fmt}"] = matrix_checks.fused_source(FORMATS[fmt].emin)
        sources[f"warpgroups-{fmt}"] = matrix_checks.warpgroup_source(FORMATS[fmt].emin)
    for name, source in sources.items():
        headers = [f"{n} {digest_of(t)}" for n, t in sorted(source.headers.items())]
        made.add(f"device-check {name} sm_90 source", [source.text, *headers], {name: source.text})


def record_flags(made: Recording) -> None:
    """The compiler flags of every instruction set and architecture."""
    for structure in (False, True):
        kind = "structure" if structure else "numbers"
        for machine, isas in ISAS.items():
            for compiler in ("gcc", "clang"):
                about = Compiler(Path("c++"), compiler, "", "", machine)  # type: ignore[arg-type]
                for isa in isas:
                    made.add(f"flags {machine}-{isa} {compiler}-{kind} cpu source", flags_of(about, isa, structure))
                sim = flags_of(about, "scalar", structure, (SIMULATED, "TOKITAI_WARP=32"))
                made.add(f"flags {machine}-scalar {compiler}-{kind} sim source", sim)
        for arch in ("sm_80", "sm_90", "sm_90a"):
            made.add(f"flags {arch} nvrtc-{kind} {arch[:5]} source", nvrtc.options_of(arch, structure))
        for arch in ("gfx942", "gfx1101"):
            made.add(
                f"flags {arch} clang-{kind} {arch} source", (*clang.flags_of(arch, structure), *clang.BACK, *clang.JOIN)
            )


QUICK = ("softmax", "layer_norm_backward", "adamw", "linear", "grouped_linear", "embedding_backward", "attention",
         "whole_numbers")  # fmt: skip


def is_quick(operator: Operator, dtype: str, v: Variant) -> bool:
    """A few operators in one format, of each kind of plan."""
    chosen = {variants(operator, dtype)[0], Variant(frozenset(), (("accumulator", "fused16"),))}
    return operator.name in QUICK and dtype == "bf16" and v in chosen


def quick(wanted: str | None = None) -> Recording:
    """The digests of a few operators."""
    made = Recording(wanted=wanted)
    record_operators(made, is_quick)
    record_flags(made)
    return made


def everything(wanted: str | None = None) -> Recording:
    """Every digest."""
    made = Recording(wanted=wanted)
    record_operators(made)
    record_device_checks(made)
    record_flags(made)
    return made


# ------------------------------------------------------------------ the file
def written(digests: Mapping[str, str]) -> str:
    """Digests as they are recorded: a line for each operator, format and variant, a column for each target, of the
    source and of the launches."""
    rows: dict[str, dict[str, str]] = {}
    for key, value in digests.items():
        row, target, what = key.rsplit(" ", 2)
        rows.setdefault(row, {})[f"{target} {what}"] = value
    lines = [f"# source/launch of {' '.join(TARGETS)}; renewed by python -m tests.snapshot.emitted --write"]
    for row, cells in sorted(rows.items()):
        each = (f"{cells.get(f'{t} source', '-')}/{cells.get(f'{t} launch', '-')}" for t in TARGETS)
        lines.append(f"{row}: {' '.join(each).replace('-/-', '-').replace('/-', '')}")
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, str]:
    """What `written` wrote."""
    found = {}
    for line in text.splitlines()[1:]:
        row, _, cells = line.partition(": ")
        for target, cell in zip(TARGETS, cells.split(" "), strict=True):
            for what, value in zip(("source", "launch"), cell.split("/"), strict=False):
                if value != "-":
                    found[f"{row} {target} {what}"] = value
    return found


def differences(recorded: Mapping[str, str], found: Mapping[str, str], every: bool = True) -> list[str]:
    """The keys whose digests differ, in words; ``every``: those that are recorded and not found count as well."""
    lines = [f"{'changed' if k in recorded else 'new'}: {k}" for k, v in found.items() if recorded.get(k) != v]
    return lines + [f"gone: {k}" for k in recorded if every and k not in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.snapshot.emitted", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the digests anew")
    parser.add_argument("--show", metavar="KEY", help="print what the digests are made of whose keys begin like this")
    parser.add_argument("--quick", action="store_true", help="a few operators only")
    chosen = parser.parse_args(arguments)
    found = (quick if chosen.quick else everything)(chosen.show)
    if chosen.show is not None:
        for key, text in found.shown.items():
            print(f"==== {key}\n{text}")
        return 0
    recorded = read(RECORDED.read_text()) if RECORDED.exists() else {}
    lines = differences(recorded, found.digests, every=not chosen.quick)
    print("\n".join(lines[:200]))
    print(f"{len(found.digests)} digests, {len(lines)} differ", file=sys.stderr)
    if chosen.write:
        RECORDED.write_text(written({**recorded, **found.digests} if chosen.quick else found.digests))
        return 0
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
