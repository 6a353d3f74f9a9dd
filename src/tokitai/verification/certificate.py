"""From a verdict to a certificate: the facts, and in plain sentences what they do and do not show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from .. import gpu_hip, numerics
from ..device import cpu
from ..evidence import statement as ev
from ..evidence.render import render
from ..formats import FORMATS
from ..kernel import target_of
from ..lang import Operator, Sizes, shape_text
from .buffers import GUARD
from .verdict import Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def certify(operator: Operator, verdict: Verdict, folder: Path, key: Ed25519PrivateKey | None = None) -> Path:
    """Write the certificate as JSON, with a key signed, and beside it a rendering in Markdown. Returns the path of the
    JSON."""
    first = verdict.kernels[0]
    # A kernel for GPUs has as many binaries as it needed schedules, and none where a fault was found before.
    binary = next(i for k in verdict.kernels for i in k.identities())
    c = operator.contract
    made = ev.build_statement(
        ev.Verification(
            operator=ev.OperatorIdentity(
                operator.name,
                first.graph.digest,
                numerics.NUMERICS_VERSION,
                ev.Contract(c.formats, c.max_rows, c.max_cols, c.domain),
            ),
            dtype=verdict.dtype,
            target=target_of(verdict.device),
            device=verdict.about or cpu.describe(),
            compiler=ev.CompilerIdentity(binary.compiler, binary.compiler_version, binary.compiler_digest),
            isa=binary.isa,
            flags=binary.flags,
            plan=first.described(),
            kernels=[
                ev.KernelIdentity(i.structure, i.fingerprint, i.digest, i.source_digest)
                for k in verdict.kernels
                for i in k.identities()
            ],
            cases=[
                ev.Case(
                    *(r.kind, r.name, *r.shape, r.seed, r.params, cpu.default_threads()),
                    *(r.inputs, r.outputs, r.oracle, r.compared, r.equal, r.max_ulp),
                    *((r.shape.inner, r.shape.batch) if isinstance(r.shape, Sizes) else ()),
                )
                for r in verdict.results
            ],
            proofs=_proofs(verdict),
            error=ev.LargestError(
                verdict.max_ulp_error, _worst(verdict), None if verdict.failure else verdict.max_bound
            ),
            verdict=verdict.verdict,
            failure=verdict.failure,
            claims=_claims(operator, verdict),
            non_claims=[
                *([_not_run(verdict)] if verdict.device == "hip" else []),
                *_other_variants(operator, verdict),
                *NON_CLAIMS,
            ],
            seconds=verdict.seconds,
            isolation=verdict.isolation,
        )
    )
    path = ev.write(made, folder, key)
    path.with_suffix(".md").write_text(render(made))
    return path


def _worst(verdict: Verdict) -> str | None:
    top = max((r for r in verdict.results if r.max_ulp is not None), key=lambda r: r.max_ulp or 0.0, default=None)
    return top.worst if top is not None else None


def _proofs(verdict: Verdict) -> list[ev.Proof]:
    found = {r.shape for r in verdict.results if r.kind == "structure" and r.equal}
    shapes = sorted(found, key=lambda s: (*s, *((s.inner, s.batch) if isinstance(s, Sizes) else ())))
    sides = "rows x cols x inner" if any(isinstance(s, Sizes) for s in shapes) else "rows x cols"
    proofs = []
    if shapes:
        listed = ", ".join(map(shape_text, shapes))
        proofs.append(
            ev.Proof(
                f"for {_inputs(verdict)} at {sides} of {listed}, the kernel evaluates exactly the defined expression",
                "proved",
                f"structure run{SIMULATED if verdict.device == 'hip' else ''}: 64-bit hashes in place of numbers, "
                "collision probability below 2**-50",
            )
        )
    return proofs


def _inputs(verdict: Verdict) -> str:
    """What the hashes of a structure run stand for: integers stay numbers in it."""
    integers = {t.name for k in verdict.kernels for t in k.graph.inputs if not FORMATS[str(t.format)].is_float}
    return f"all values of float inputs beside the drawn {', '.join(sorted(integers))}" if integers else "all inputs"


def _variants(operator: Operator, verdict: Verdict) -> list[str]:
    """The graphs that were run, in words."""
    usual, optional = {o.name: o.default for o in operator.options}, any(t.optional for t in operator.tensors)
    found = []
    for graph in (k.graph for k in verdict.kernels):
        present = sorted(t.name for t in graph.inputs if t.optional)
        chosen = [f"{n}={v}" for n, v in graph.options.items() if v != usual.get(n)]
        found.append(" and ".join([*present, *chosen]) or ("no optional input" if optional else "its defaults"))
    return list(dict.fromkeys(found))


def _other_variants(operator: Operator, verdict: Verdict) -> list[str]:
    """What is said of the others, where there are any."""
    there = math.prod([*(len(o.accepted) for o in operator.options), *(2 for t in operator.tensors if t.optional)])
    others = there > len(_variants(operator, verdict))
    return ["Combinations of optional inputs and options that are not listed were not run."] * others


def _claims(operator: Operator, verdict: Verdict) -> list[str]:
    compared = sum(r.compared for r in verdict.results if r.kind != "structure")
    outcome = "all equal" if not verdict.failure else "not all equal"
    made = _compiled(verdict) if verdict.device == "hip" else []
    if verdict.isolation is not None:
        limits = ", ".join(verdict.isolation)
        made.append(f"Kernels ran in a worker process, apart from the comparison ({limits}).")
    made += [f"{compared} result elements were compared with the oracle bit for bit, {outcome}."]
    if operator.options or any(t.optional for t in operator.tensors):
        made.append(f"It was run with: {'; '.join(_variants(operator, verdict))}.")
    if any(r.kind == "exhaustive" for r in verdict.results):
        made.append(f"Every one of the 65,536 {verdict.dtype} inputs was tried.")
    if any(r.kind == "structure" and r.equal for r in verdict.results):
        made.append(
            f"At the shapes listed under proofs the kernel evaluates the defined expression for {_inputs(verdict)}, "
            "but for a chance below 2**-50; the arithmetic of its operations is what the other cases compare."
        )
    for name, error, explained in verdict.derivative:
        if error <= explained:
            made.append(
                f"At the sampled points {name} is the derivative of the forward definition: reverse mode in extended "
                f"precision is {error:.2g} of the largest element away, where rounding explains {explained:.2g}."
            )
    if not verdict.failure:
        layouts = sorted({name for r in verdict.results for name in r.layouts})
        split = sum(r.split for r in verdict.results)
        made.append(
            f"No kernel wrote into the {GUARD} bytes round its tensors or between their rows or changed an input, and "
            f"results had the same bits under every layout that was tried ({', '.join(layouts)})"
            + (f" and, in {split} of the cases, in batches split in two." if split else ".")
        )
    return made


SIMULATED = " on the simulated device"


def _compiled(verdict: Verdict) -> list[str]:
    """What was seen of kernels for AMD GPUs, which were not run on one."""
    about, archs = verdict.about or {}, ", ".join(gpu_hip.compiled(verdict.kernels))
    inspected = (
        f"Every text over numbers was compiled for {archs}. In LLVM's text and in the assembly there was no "
        "contraction, no flushed subnormal number, no approximate division or square root and no float atomic; no "
        "kernel takes another argument, fewer threads, other wavefronts or more LDS than its launches have."
    )
    return [
        *([inspected] if archs else []),
        f"All cases ran{SIMULATED}: the same text as HIP, with its header over fibers of the CPU, in wavefronts of "
        f"{about['warp']} lanes.",
    ]


def _not_run(verdict: Verdict) -> str:
    return f"No kernel ran on an AMD device: {verdict.not_run or gpu_hip.not_run(verdict.kernels)}."


NON_CLAIMS = [
    "The compiler and the processor are trusted to execute the IEEE 754 operations that the text asks for; machine "
    "code is not verified.",
    "Shapes that are not listed were not run.",
    "Reads outside the inputs that no result depends on, and writes far from every tensor, were not looked for.",
    "Speed is not a subject of this certificate.",
    "Nothing is said about values outside the operator's stated domain but that the bits equal the definition's.",
]
