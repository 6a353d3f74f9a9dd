"""From a verdict to a certificate: the facts, and in plain sentences what they do and do not show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import numerics
from ..backends import backend_of
from ..backends.backend import compiled_archs
from ..backends.cpu import device as cpu
from ..evidence import statement as ev
from ..evidence.render import render
from ..lang import Operator, Sizes
from . import conditioned, sentences, suite
from .verdict import Verdict

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def certify(operator: Operator, verdict: Verdict, folder: Path, key: Ed25519PrivateKey | None = None) -> Path:
    """Write the certificate as JSON, with a key signed, and beside it a rendering in Markdown. Returns the path of the
    JSON."""
    first = verdict.kernels[0]
    # A kernel for GPUs has as many binaries as it needed schedules, and none where a fault was found before.
    binary = next(i for k in verdict.kernels for i in k.identities())
    c, facts = operator.contract, _facts(operator, verdict)
    made = ev.build_statement(
        ev.Verification(
            operator=ev.OperatorIdentity(
                operator.name,
                first.graph.digest,
                numerics.NUMERICS_VERSION,
                ev.Contract(c.formats, c.max_rows, c.max_cols, c.domain),
            ),
            dtype=verdict.dtype,
            target=backend_of(verdict.device).name,
            device=verdict.about or cpu.describe(),
            compiler=ev.CompilerIdentity(binary.compiler, binary.compiler_version, binary.compiler_digest),
            isa=binary.isa,
            flags=binary.flags,
            plan=first.described(),
            kernels=[
                ev.KernelIdentity(i.structure, i.fingerprint, i.digest, i.source_digest, i.sums)
                for k in verdict.kernels
                for i in k.identities()
            ],
            cases=[
                ev.Case(
                    *(r.kind, r.name, *r.shape, r.seed, r.params, cpu.default_threads()),
                    *(r.inputs, r.outputs, r.oracle, r.compared, r.equal, r.max_ulp),
                    inner=r.shape.inner if isinstance(r.shape, Sizes) else None,
                    batch=r.shape.batch if isinstance(r.shape, Sizes) else None,
                    layouts=r.layouts,
                )
                for r in verdict.results
            ],
            proofs=sentences.proofs(facts),
            error=ev.LargestError(
                verdict.max_ulp_error,
                _worst(verdict),
                None if verdict.failure else verdict.max_bound,
                None if verdict.failure else conditioned.stated(verdict.conditioned),
            ),
            verdict=verdict.verdict,
            failure=verdict.failure,
            claims=sentences.claims(facts),
            non_claims=sentences.non_claims(facts),
            seconds=verdict.seconds,
            isolation=verdict.isolation,
            suite=_suite(verdict),
            machine_code=verdict.code,
        )
    )
    path = ev.write(made, folder, key)
    path.with_suffix(".md").write_text(render(made))
    return path


def _suite(verdict: Verdict) -> ev.Suite:
    """What was to be run. The one case that was asked for has a seed and a shape of its own."""
    if verdict.only is None:
        return ev.Suite(suite.VERSION, verdict.seed, None, verdict.shape)
    seed = verdict.results[0].seed if verdict.results else verdict.seed
    return ev.Suite(suite.VERSION, seed, verdict.only, None)


def _worst(verdict: Verdict) -> str | None:
    top = max((r for r in verdict.results if r.max_ulp is not None), key=lambda r: r.max_ulp or 0.0, default=None)
    return top.worst if top is not None else None


def _facts(operator: Operator, verdict: Verdict) -> sentences.Facts:
    """What the sentences of a verdict are made of."""
    backend, archs = backend_of(verdict.device), compiled_archs(verdict.kernels)
    return sentences.Facts(
        operator, verdict.dtype, backend.name, [k.graph for k in verdict.kernels],
        [sentences.Ran(r.kind, r.shape, r.compared, r.equal, r.layouts, r.split) for r in verdict.results],
        bool(verdict.failure), verdict.isolation, verdict.derivative, verdict.only, archs,
        str((verdict.about or {}).get("warp", "")), verdict.not_run or backend.not_run(archs), verdict.code,
        suite.VERSION, sentences.joined(i.sums for k in verdict.kernels for i in k.identities()),
    )  # fmt: skip
