"""``verify``: run a suite against a kernel, and say what it showed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..backends import DEFAULT, Backend, backend_of, backends
from ..backends.backend import Language, compiled_archs
from ..backends.machine_code import MachineCode
from ..errors import ArgumentError, MachineCodeError, UnavailableError, UsageError
from ..evidence.sign import SigningKey, signing_key
from ..formats import format_of
from ..lang import Graph, Operator, Sizes, check_operator, shape_from_text, shape_text
from ..runtime.compile import kernel_on
from ..runtime.kernel import KernelBase, KernelList
from ..runtime.shapes import asked_shape
from ..toolchain.build import Isa, native_isa
from . import cases, run, suite
from .accuracy import is_measured, measure_error
from .conditioned import ByFormat, stated, together
from .derived import derivatives
from .files import case_from_file
from .lists import run_lists
from .run import CaseResult
from .variant import Variant, variants

if TYPE_CHECKING:
    from ..worker import Pool


Edit = Callable[[str], str]
Progress = Callable[[str], None]


@dataclass
class Verdict:
    """What a verification showed. ``failure`` is one line that can be replayed."""

    operator: str
    dtype: str
    device: str
    shape: dict[str, int] | None
    verdict: Literal["verified", "refuted", "undecided"] = "undecided"
    evidence: list[str] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)
    kernels: list[KernelBase] = field(default_factory=KernelList)
    about: dict[str, Any] | None = None  # the device, where it is not this machine's processor
    isolation: list[str] | None = None  # what limited the worker process in which kernels ran; None where they ran here
    derivative: list[tuple[str, float, float]] = field(default_factory=list)
    code: list[MachineCode] = field(default_factory=list)
    failure: str | None = None
    seed: int = 0
    only: str | None = None  # the id of the one case that was asked for
    not_run: str | None = None  # why a kernel that was compiled for a GPU was not run on one
    seconds: float = 0.0
    certificate: Path | None = None

    @property
    def cases(self) -> int:
        """How many cases were run."""
        return len(self.results)

    @property
    def max_ulp_error(self) -> float | None:
        """The largest distance from the exact value, in units in the last place of the result."""
        return max((r.max_ulp for r in self.results if r.max_ulp is not None), default=None)

    @property
    def max_bound(self) -> float | None:
        """The largest bound on that distance, in the same units; None where some case has none."""
        bounded = [r.max_bound for r in self.results if r.max_ulp is not None]
        return max((b for b in bounded if b is not None), default=None) if None not in bounded else None

    @property
    def conditioned(self) -> ByFormat:
        """Errors and bounds against the condition of their elements, by format, where they were measured."""
        return together(r.conditioned for r in self.results)

    @property
    def max_ulp_error_of_row(self) -> float | None:
        """The same in units in the last place of the largest result of its row: what cancellation does not blur."""
        return max((r.max_ulp_of_row for r in self.results if r.max_ulp_of_row is not None), default=None)

    @property
    def exit_code(self) -> int:
        """0 verified, 1 refuted, 3 undecided."""
        return {"verified": 0, "refuted": 1, "undecided": 3}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The documented, stable keys of ``--json``."""
        return {
            "operator": self.operator,
            "dtype": self.dtype,
            "device": self.device,
            "shape": self.shape,
            "verdict": self.verdict,
            "evidence": self.evidence,
            "cases": self.cases,
            "max_ulp_error": self.max_ulp_error,
            "max_ulp_error_of_row": self.max_ulp_error_of_row,
            "condition": {n: asdict(said) for n, said in (stated(self.conditioned) or {}).items()} or None,
            "failure": self.failure or self.not_run,
            "seconds": round(self.seconds, 3),
            "certificate": str(self.certificate) if self.certificate else None,
        }


def verify(
    operator: Operator,
    *,
    shape: Mapping[str, int] | None = None,
    dtype: object = "f32",
    device: str = DEFAULT,
    inputs: Path | str | Iterable[Path | str] | None = None,
    out: Path | str | None = None,
    sign: SigningKey | None = None,
    seed: int = 0,
    compiler: str | None = None,
    isa: Isa | None = None,
    arch: str | None = None,
    variant: Variant | None = None,
    case: str | None = None,
    edit: Edit | None = None,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> Verdict:
    """Verify one operator in one storage format on one device.

    ``device`` is one that a backend takes: ``cpu``, ``sim``, ``cuda``, ``cuda:N`` (a GPU by its number), ``hip`` or
    ``hip:ARCH``. ``shape`` is ``dict(rows=.., cols=..)`` to try beside the suite's own shapes; ``inputs`` are files of
    the user's own tensors; ``out`` a folder for the certificate; ``sign`` an Ed25519 private key, or its PEM file, that
    signs it; ``case`` the id of the only case to run; ``edit`` changes the emitted text before it is compiled (that is
    how wrong kernels are made); ``pool`` runs kernels in worker processes, so that one that crashes is refuted, and one
    that does not end undecided. ``arch`` is the architecture that kernels are compiled for, of a device that has
    several (default: one of each width of wavefronts). Where a backend's kernels run on a stand-in alone, the verdict
    is `refuted` or `undecided`.
    What the machine code of a kernel holds that its source does not ask for refutes it (`backends.machine_code`).
    Raises UsageError for wrong arguments; a compiler that is missing or fails gives the verdict `undecided`.
    """
    check_operator(operator)
    backend = backend_of(device)
    parts = backend.parts(device, arch)
    if edit is not None and pool is not None and backend.language is not Language.HOST:
        raise ArgumentError(f"edit on {device} in a worker process; accepted: on the cpu, or in this process")
    if pool is not None and not backend.isolated:
        able = ", ".join(b.name for b in backends() if b.isolated)
        raise ArgumentError(f"device {device} in a worker process; accepted: {able}")
    key = signing_key(sign, out)
    fmt = format_of(dtype).name
    asked = asked_shape(operator, shape)
    verdict = Verdict(operator.name, fmt, device, None if asked is None else named_sizes(asked))
    verdict.seed, verdict.only = seed, case
    started = time.perf_counter()
    files = [Path(p) for p in ([inputs] if isinstance(inputs, (str, Path)) else inputs or ())]
    yours = [(_optional(graph), c) for graph, c in (case_from_file(operator, p, fmt) for p in files)]
    chosen = [variant] if variant is not None else variants(operator, fmt)
    for present, c in yours:
        if any(v.present == present for v in chosen):
            continue
        if variant is not None:
            raise ArgumentError(
                f"{c.name}: holds {_names(present)}; accepted beside this variant: {_names(variant.present)}"
            )
        chosen.append(Variant(present))
    try:
        isa = isa or native_isa()
        verdict.isolation = None if pool is None else pool.applied
        verdict.about = _describe(backend, parts, compiler, pool)
        for v, part in ((v, p) for v in chosen for p in parts):
            mine = [c for present, c in yours if present == v.present]
            kernels = _kernels(operator, part, fmt, v, compiler, isa, edit, pool)
            verdict.kernels += kernels
            _read(verdict, v.flags(operator), kernels)  # before a library is loaded that may change this process
            if not verdict.failure:
                _run_variant(verdict, operator, v, kernels, asked, seed, case, mine, isa, progress)
                _read(verdict, v.flags(operator), kernels)  # sources of GPUs are built when a shape needs them
            if verdict.failure:
                break
        if not verdict.failure and operator.backward_of is not None and case is None:
            _derivative(verdict, operator, operator.backward_of, fmt)
        if not verdict.results and not verdict.failure:
            accepted = "an id as a failure prints it, KIND/NAME@ROWSxCOLS#SEED (of a product ROWSxCOLSxINNER)"
            raise UsageError(f"{operator.name}: no case {case!r}; accepted: {accepted}")
        verdict.verdict = "refuted" if verdict.failure else backend.strongest
    except MachineCodeError as error:  # of which no binary is kept that a certificate could name
        verdict.verdict, verdict.failure, out = "refuted", " ".join(str(error).split()), None
    except UnavailableError as error:
        verdict.failure = str(error)
    verdict.evidence = _evidence(verdict)
    verdict.seconds = time.perf_counter() - started
    if verdict.verdict == "undecided" and not verdict.failure:
        verdict.not_run = backend.not_run(compiled_archs(verdict.kernels))
    if out is not None and (verdict.verdict != "undecided" or verdict.not_run):
        from .certificate import certify

        verdict.certificate = certify(operator, verdict, Path(out), key)
    return verdict


def _optional(graph: Graph) -> frozenset[str]:
    return frozenset(t.name for t in graph.inputs if t.optional)


def _names(present: frozenset[str]) -> str:
    return ", ".join(sorted(present)) or "no optional tensor"


def named_sizes(shape: tuple[int, int]) -> dict[str, int]:
    """A shape by the names of its sides."""
    named = dict(rows=shape[0], cols=shape[1])
    if isinstance(shape, Sizes):
        named |= dict(inner=shape.inner) | (dict(batch=shape.batch) if shape.batch != 1 else {})
    return named


def _describe(
    backend: Backend, parts: Sequence[str], compiler: str | None, pool: Pool | None
) -> dict[str, Any] | None:  # fmt: skip
    if pool is None or backend.language is Language.HOST:
        return backend.describe(parts, compiler)
    from ..worker.isolated import describe

    return describe(pool, parts[0], compiler)


def _kernels(
    operator: Operator, device: str, dtype: str, v: Variant, compiler: str | None, isa: Isa, edit: Edit | None,
    pool: Pool | None,
) -> list[KernelBase]:  # fmt: skip
    """The kernel over numbers, and the same source over hashes."""
    graph = operator.trace(dtype, v.present, dict(v.options))
    if pool is None:
        return [kernel_on(device, operator, graph, s, compiler, isa, edit) for s in (False, True)]
    from ..worker.isolated import isolated_kernel

    return [isolated_kernel(device, operator, graph, s, compiler, isa, edit, pool) for s in (False, True)]


def _run_variant(
    verdict: Verdict, operator: Operator, v: Variant, kernels: list[KernelBase], asked: tuple[int, int] | None,
    seed: int, only: str | None, mine: list[cases.Case], isa: Isa, progress: Progress | None,
) -> None:  # fmt: skip
    numbers, hashed = kernels
    backend = backend_of(verdict.device)
    lanes, case_set = backend.lanes(isa), backend.cases
    threads, plan = run.default_threads(), numbers.plan
    if only is not None:
        asked, seed = _shape_and_seed(only, asked, seed)
    for name, shape in suite.structure_runs(operator, plan, lanes, asked, seed, case_set):
        if only not in (None, f"structure/{name}@{shape_text(shape)}#{seed}"):
            continue
        integers = cases.drawn_integers(operator, numbers.graph, name, shape, seed)
        params = cases.drawn_scalars(operator, numbers.graph, shape)
        _add(verdict, operator, v, run.run_structure(hashed, shape, integers, params, seed, name), progress)
        if verdict.failure:
            return
    if plan.flat and only is None:
        for result in run_lists(operator, numbers, hashed, seed, threads):
            _add(verdict, operator, v, result, progress)
            if verdict.failure:
                return

    def measure(graph: Graph, c: cases.Case, want: Mapping[str, Any], result: CaseResult) -> None:
        if is_measured(c, case_set):
            measure_error(graph, c, want, operator, result)

    for c in chain(mine, suite.number_cases(operator, plan, lanes, asked, seed, case_set, suite.VERSION)):
        if only in (None, c.id):
            _add(verdict, operator, v, run.run_numbers(numbers, c, measure, threads), progress)
            if verdict.failure:
                return


def _shape_and_seed(only: str, asked: tuple[int, int] | None, seed: int) -> tuple[tuple[int, int] | None, int]:
    try:
        size, _, number = only.rpartition("@")[2].partition("#")
        shape, drawn = shape_from_text(size), int(number)
    except ValueError:
        return asked, seed
    return (shape, drawn) if drawn >= 0 else (asked, seed)


def _add(verdict: Verdict, operator: Operator, v: Variant, result: CaseResult, progress: Progress | None) -> None:
    verdict.results.append(result)
    if progress is not None:
        progress(result.id)
    if result.failure:
        line = f"tokitai verify {operator.name} --device {verdict.device} --dtype {verdict.dtype}{v.flags(operator)}"
        verdict.failure = f"{line} --case '{result.id}': {result.failure}"


def _derivative(verdict: Verdict, operator: Operator, forward: Operator, dtype: str) -> None:
    verdict.derivative += derivatives(operator, forward, dtype, [k.graph for k in verdict.kernels])
    for name, error, explained in verdict.derivative:
        if not error <= explained:
            verdict.failure = (
                f"{operator.name}: {name} is not the derivative of {forward.name}: "
                f"it differs by {error:.3g} of the largest element, the rounding-error bound is {explained:.3g}"
            )
            verdict.results.append(CaseResult("derivative", name, (5, 7), 1, "", {}, (), failure=verdict.failure))
            return


def _read(verdict: Verdict, flags: str, kernels: Sequence[KernelBase]) -> None:
    """What the machine code of new binaries holds. A finding is named before whatever else went wrong."""
    known = {c.binary for c in verdict.code}
    code = [c for k in kernels for c in k.machine_code() if c.binary not in known]
    verdict.code += code
    found = [f"{c.listing}: {finding}" for c in code for finding in c.findings]
    if found:
        line = f"tokitai verify {verdict.operator} --device {verdict.device} --dtype {verdict.dtype}{flags}"
        more = f" (and {len(found) - 1} more)" if found[1:] else ""
        beside = f"; {verdict.failure}" if verdict.failure else ""
        verdict.failure = f"{line}: machine code: {found[0]}{more}{beside}"


def _evidence(verdict: Verdict) -> list[str]:
    tried = {r.kind for r in verdict.results}
    kinds: list[str] = [k for k in ("structure", "exhaustive", "hard", "seeded", "list", "yours") if k in tried]
    kinds += ["derivative"] if verdict.derivative else []
    return kinds + (["compiled"] if compiled_archs(verdict.kernels) else [])


__all__ = ["Progress", "Variant", "Verdict", "named_sizes", "variants", "verify"]
