"""The mutation score: of the wrong programs of every operator, on the CPU and on the simulated device, how many does a
verification refute?

    python -m tests.mutants.score [OPERATOR ...] [--device cpu|sim] [--sample N] [--settle] [--out FILE]

Results are kept in FILE as they come: what is in it is not run again. A mutant that ends its process, or does not end,
is refuted as well.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import functools
import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tests.mutants.equivalent import SAME_CODE, why_equivalent
from tests.mutants.program import PRELUDE, Mutant, alone, schemata
from tokitai import emit, ops
from tokitai.emit.cpp import KernelText
from tokitai.errors import TokitaiError
from tokitai.families import emit_cpu, make_plan
from tokitai.formats import format_of
from tokitai.lang import Graph, Operator, shape_text
from tokitai.meaning import structure
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.gpu_targets import SimTarget
from tokitai.runtime.kernel import KernelBase, build_text
from tokitai.toolchain.build import native_isa
from tokitai.verification import cases, run, suite
from tokitai.verification.derived import GPU_LANES, LANES
from tokitai.verification.lists import run_lists

DTYPE = "f16"
SEED = 16
DEADLINE = 20  # seconds of a mutant: one that does not end is refuted
SIM_CASES = 5  # small ones: the simulated device is slow, and each shape may be a program of its own
FOLDER = Path(__file__).parents[2] / "bench" / "results"
HEADERS = ("rows.h", "segments.h", "products.h", "groups.h", "attention.h")
OF_HEADERS = {  # whose header is mutated with which operator's kernel
    "softmax": "rows.h", "layer_norm_backward": "rows.h", "embedding_backward": "segments.h", "matmul": "products.h",
    "grouped_linear": "groups.h", "attention": "attention.h", "attention_backward": "attention.h",
}  # fmt: skip


@dataclass
class Subject:
    """A program with its mutants: how one is brought to life, and the cases on which it is run, cheap ones first."""

    name: str
    kernel: KernelBase
    device: str
    mutants: list[tuple[Mutant, Callable[[int], None], Callable[[], bool]]]
    shapes: list[tuple[tuple[int, int], bool]]
    lanes: int
    most: int = 1 << 16  # elements of a case
    cases: list[cases.Case] = field(default_factory=list)

    def refuted(self) -> str | None:
        """The first case that shows that the program is wrong."""
        op, graph = self.kernel.operator, self.kernel.graph
        if not self.kernel.structure:
            if not self.cases:
                shown = suite.number_cases(op, self.kernel.plan, self.lanes, None, SEED, self.device, suite.VERSION)
                self.cases += [c for c in shown if cases.work_of(c.shape) <= self.most]
            found = chain(
                (run.run_numbers(self.kernel, c, None, 2) for c in self.cases),
                (f for _ in range(self.kernel.plan.flat) for f in run_lists(op, self.kernel, None, SEED, 2)),
            )
            return next((f"{f.id}: {f.failure}" for f in found if f.failure), None)
        for shape, expanded in self.shapes:
            params = cases.drawn_scalars(op, graph, shape)
            found_here = run.run_structure(self.kernel, shape, _integers(op, graph, shape), params, SEED, expanded)
            if found_here.failure:
                return f"{found_here.id}: {found_here.failure}"
        return None


def _integers(op: Operator, graph: Graph, shape: tuple[int, int]) -> Mapping[str, Any]:
    return {
        t.name: cases.draw(op, t, "normal", shape, SEED) for t in graph.inputs if not format_of(t.format).is_float
    }  # fmt: skip


def remember_oracles() -> None:
    """The oracle of a case is computed once for all mutants."""
    known: dict[object, Any] = {}
    evaluate = structure.evaluate

    def once(graph: Graph, tensors: Any, shape: Any, hashes: Any, params: Any) -> Any:
        key = (graph.digest, shape_text(shape), *(hashlib.sha256(t.tobytes()).digest() for t in tensors.values()))
        if key not in known:
            known[key] = evaluate(graph, tensors, shape, hashes, params)
        return known[key]

    structure.evaluate = once


def _set(path: Path) -> Callable[[int], None]:
    library = ctypes.CDLL(str(path))
    variable = ctypes.c_int.in_dll(library, "tokitai_mutant")

    def alive(number: int) -> None:
        variable.value = number

    return alive


def on_cpu(name: str, hashed: bool = True) -> Subject:
    """The program of an operator for the CPU, with vectors as wide as here; a header of it where a name has one."""
    named, _, header = name.partition("/")
    op = ops.get(named)
    graph = op.trace(DTYPE)
    plan = make_plan(graph)
    text = emit_cpu(plan)
    headers = dict(text.headers)
    if header:
        headers[header], mutants = schemata(text.headers[header])
        source = text.text
    else:
        source, mutants = schemata(text.text)
    isa = native_isa()
    kernel = build_text(op, graph, plan, PRELUDE + source, headers, isa=isa, structure=hashed)
    alive = _set(kernel.artifact.path)

    def same(mutant: Mutant) -> bool:
        """Whether the compiler makes the same machine code of a mutant as of the right program."""
        changed = dict(text.headers)
        if header:
            changed[header] = alone(text.headers[header], mutant.number)
        own = text.text if header else alone(text.text, mutant.number)
        right = build_text(op, graph, plan, text.text, text.headers, isa=isa)
        return build_text(op, graph, plan, own, changed, isa=isa).artifact.digest == right.artifact.digest

    shapes = _ordered(suite.structure_ids(op, plan, LANES[isa], None, SEED, "cpu"))
    tried = [(s, False) for s in shapes] + [(s, True) for s in suite.expanded_shapes(op, plan)]
    return Subject(name, kernel, "cpu", [(m, alive, functools.partial(same, m)) for m in mutants], tried, LANES[isa])


def on_sim(name: str, hashed: bool = True) -> Subject:
    """The programs of an operator for GPUs, on the simulated device: one for each schedule that its cases need."""
    op = ops.get(name)
    graph = op.trace(DTYPE)
    plan = gpu_plan(graph, "sim")
    found: dict[str, tuple[str, list[Mutant]]] = {}

    def edit(source: str) -> str:
        if "KERNEL(" not in source or "#pragma once" in source:
            return source
        made, mutants = schemata(source)
        found[hashlib.sha256((PRELUDE + made).encode()).hexdigest()] = source, mutants
        return PRELUDE + made

    kernel = GpuKernel(op, graph, plan, hashed, SimTarget(), edit)
    tried: list[tuple[tuple[int, int], bool]] = []
    subject = Subject(name, kernel, "sim", [], tried, GPU_LANES, 4000)
    started = time.monotonic()
    for shape in _spread(_ordered(suite.structure_ids(op, plan, GPU_LANES, None, SEED, "sim")), SIM_CASES):
        tried.append((shape, False))
        if not hashed:
            continue
        alone = Subject(name, kernel, "sim", [], [(shape, False)], GPU_LANES)
        said = alone.refuted()
        assert said is None, f"the right program is refuted: {said}"
        if time.monotonic() - started > 90:
            break
    if not hashed:
        assert (said := subject.refuted()) is None, f"the right program is refuted: {said}"
    for program, identity in kernel.programs.values():
        loaded: Any = program
        alive = _set(loaded.loaded.artifact.path)
        source, mutants = found.get(identity.source_digest, ("", []))
        same = functools.partial(_same_on_sim, op, graph, source)
        subject.mutants += [(m, alive, functools.partial(same, m)) for m in mutants]
    return subject


def _same_on_sim(op: Operator, graph: Graph, source: str, mutant: Mutant) -> bool:
    """Whether the compiler makes the same machine code of a mutant as of the right program."""
    folder = Path(emit.__file__).parent
    headers = {p.name: p.read_text() for part in ("cpu", "gpu") for p in (folder / part).glob("*.h")}
    texts = (KernelText(source, headers), KernelText(alone(source, mutant.number), headers))
    right, wrong = (SimTarget().build(text, graph.name, False)[1].digest for text in texts)
    return right == wrong


def _ordered(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Middling shapes first, which show most; then small ones and large ones."""
    return sorted(shapes, key=lambda s: abs(cases.work_of(s) - 200))


def _spread(shapes: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    few = [s for s in shapes if cases.work_of(s) <= 40_000]
    return few if len(few) <= count else [few[i * len(few) // count] for i in range(count)]


def results(subject: Subject, chosen: list[int]) -> Iterator[tuple[int, str | None]]:
    """What refutes each mutant, or None. They run in processes of their own, as some end theirs."""
    left = list(chosen)
    while left:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(subject, left, write)
        os.close(write)
        done = 0
        with os.fdopen(read) as pipe:
            for line in pipe:
                said = json.loads(line)
                yield left[done], said
                done += 1
        _, status = os.waitpid(child, 0)
        if done < len(left):
            how = "does not end" if os.WTERMSIG(status) == signal.SIGALRM else f"ends its process ({status})"
            yield left[done], f"the kernel {how}"
            done += 1
        left = left[done:]


def _child(subject: Subject, chosen: list[int], write: int) -> None:
    faulthandler.disable()
    with os.fdopen(write, "w") as pipe:
        for i in chosen:
            mutant, alive, _ = subject.mutants[i]
            signal.alarm(DEADLINE)
            alive(mutant.number)
            said = subject.refuted()
            alive(-1)
            signal.alarm(0)
            pipe.write(json.dumps(said) + "\n")
            pipe.flush()
    os._exit(0)


def score(name: str, device: str, sample: int | None, seconds: float) -> dict[str, Any]:
    """How many of a program's mutants are refuted over hashes, and which are not."""
    started = time.monotonic()
    subject = made(name, device)
    order = list(range(len(subject.mutants)))
    if sample is not None and sample < len(order):
        order = sorted(random.Random(f"{SEED} {name}").sample(order, sample))
    refuted, left = 0, []
    for i, said in results(subject, order):
        refuted += said is not None
        left += [i] if said is None else []
        if time.monotonic() - started > seconds:
            break
    alive = [str(subject.mutants[i][0]) for i in left]
    return dict(
        mutants=len(subject.mutants), run=refuted + len(left), refuted=refuted, survivors=alive, left=left,
        settled=not left, equivalent=[], seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip


def settle(name: str, device: str, result: dict[str, Any]) -> None:
    """Of what hashes did not refute, tell what is known to be equivalent; run the others over numbers; of what is left,
    tell what the compiler makes the same code of."""
    started = time.monotonic()
    subject = made(name, device)
    left = [i for i in result["left"] if why_equivalent(device, subject.mutants[i][0]) is None]
    told = {i: why_equivalent(device, subject.mutants[i][0]) for i in result["left"] if i not in left}
    if left:
        over_numbers = made(name, device, hashed=False)
        known = {str(m): i for i, (m, *_) in enumerate(over_numbers.mutants)}
        there = {known[n]: i for i in left if (n := str(subject.mutants[i][0])) in known}
        shown = {there[k] for k, said in results(over_numbers, list(there)) if said is not None}
        result["refuted"] += len(shown)
        left = [i for i in left if i not in shown]
    for i in list(left):
        if subject.mutants[i][2]():
            told[i] = SAME_CODE
            left.remove(i)
    result["survivors"] = [str(subject.mutants[i][0]) for i in left]
    result["equivalent"] = [dict(mutant=str(subject.mutants[i][0]), reason=why) for i, why in told.items()]
    result["settled"], result["left"] = True, left
    result["seconds"] = round(result["seconds"] + time.monotonic() - started, 1)


def subjects(names: list[str], devices: list[str]) -> Iterator[tuple[str, str]]:
    """The operators, and the headers that are shared, on each device."""
    for device in devices:
        for name in names or sorted(ops.registry()):
            yield name, device
        if device == "cpu":
            of_these = {n: h for n, h in OF_HEADERS.items() if not names or n in names}
            yield from ((f"{name}/{header}", device) for name, header in of_these.items())


def made(name: str, device: str, hashed: bool = True) -> Subject:
    """A subject by its name and device."""
    return on_cpu(name, hashed) if device == "cpu" else on_sim(name, hashed)


def main() -> int:
    """Run what is not in the file yet, and write a table beside it. Exit code 1 where something survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", choices=["cpu", "sim"])
    parser.add_argument("--sample", type=int, help="mutants of each program; all by default")
    parser.add_argument("--seconds", type=float, default=600, help="of each program; what is left is told")
    parser.add_argument("--settle", action="store_true", help="run what hashes do not refute over numbers as well")
    parser.add_argument("--out", type=Path, default=FOLDER / "mutants.json")
    given = parser.parse_args()
    remember_oracles()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, device in subjects(given.operators, [given.device] if given.device else ["cpu", "sim"]):
        key = f"{name} {device}"
        try:
            if key not in found or "error" in found[key]:
                found[key] = score(name, device, given.sample, given.seconds)
            if given.settle and not found[key]["settled"]:
                settle(name, device, found[key])
        except TokitaiError as error:
            found[key] = dict(error=str(error).splitlines()[0])
        print(key, told(found[key]), flush=True)
        given.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        given.out.with_suffix(".md").write_text(table(found))
    return int(any(r.get("survivors") or r.get("error") for r in found.values()))


def told(result: Mapping[str, Any]) -> str:
    """A result in a line."""
    if "error" in result:
        return f"not run: {result['error']}"
    wrong = result["run"] - len(result["equivalent"])
    return (
        f"{result['refuted']}/{wrong} refuted, {len(result['equivalent'])} equivalent, {result['run']} of "
        f"{result['mutants']} run, {result['seconds']} s" + "".join(f"\n    survives: {s}" for s in result["survivors"])
    )


def table(found: Mapping[str, Any]) -> str:
    """All results in Markdown, with survivors and equivalents by name."""
    ran = {k: r for k, r in found.items() if "error" not in r}
    wrong = sum(r["run"] - len(r["equivalent"]) for r in ran.values())
    refuted = sum(r["refuted"] for r in ran.values())
    lines = [
        "# Mutation score", "",
        f"Made by `make mutants`, in {DTYPE}: {refuted:,} of {wrong:,} wrong programs are refuted, "
        f"{100 * refuted / max(wrong, 1):.2f} %. Equivalent ones do nothing else than the right program.", "",
        "| program | device | refuted | wrong | equivalent | run of all |", "| --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for key, r in sorted(found.items()):
        name, _, device = key.rpartition(" ")
        if "error" in r:
            lines.append(f"| {name} | {device} | not run: {r['error']} | | | |")
            continue
        count = r["run"] - len(r["equivalent"])
        ran_of = f"{r['run']}/{r['mutants']}"
        lines.append(f"| {name} | {device} | {r['refuted']} | {count} | {len(r['equivalent'])} | {ran_of} |")
    survivors = [(k, s) for k, r in sorted(ran.items()) if r["settled"] for s in r["survivors"]]
    open_ = [(k, s) for k, r in sorted(ran.items()) if not r["settled"] for s in r["survivors"]]
    lines += ["", f"## Survivors: {len(survivors)}", "", *(f"- {k}: `{s}`" for k, s in survivors)]
    if open_:
        said = "Hashes do not refute them; they were not run over numbers, nor were their machine codes compared."
        lines += ["", f"## Not settled: {len(open_)}", "", said, "", *(f"- {k}: `{s}`" for k, s in open_)]
    reasons: dict[str, list[str]] = {}
    for key, r in sorted(ran.items()):
        for e in r["equivalent"]:
            reasons.setdefault(e["reason"], []).append(f"{key}: `{e['mutant']}`")
    lines += ["", "## Equivalent", ""]
    for reason, some in sorted(reasons.items()):
        lines += [f"### {reason}", "", *(f"- {one}" for one in sorted(set(some))), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
