"""The statements of an operator's kernels that hold for all sizes, and what the solver makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import ProofError, TargetMissingError
from ..families import Plan, make_plan
from ..lang import Operator
from ..toolchain.build import ISAS
from . import plans
from .attention_memory import AttentionMemory
from .buffers import Buffers
from .choice import family_of
from .cpu import walk_flat, walk_rowwise
from .gpu_flat import flat_cases
from .gpu_kernel import Case, worst
from .gpu_products import product_cases
from .gpu_rows import row_cases
from .groups import walk_grouped
from .kernel import Kernel
from .obligation import Obligation
from .products import walk_products
from .row_plans import WARP
from .scatter import walk_scatter

TARGETS = ("cpu", "cuda", "hip")
LANES = {"avx512": 16, "avx2": 8, "neon": 4}  # of a vector, by instruction set
DEFAULT_ISA = "avx512"
# Of kernels for CPUs, by family.
WALKS: dict[str, Callable[..., Kernel | Buffers | AttentionMemory]] = {
    "rowwise": walk_rowwise, "elementwise": walk_flat, "scatter": walk_scatter, "matmul": walk_products,
    "grouped": walk_grouped, "attention": AttentionMemory,
}  # fmt: skip
# Of kernels of GPUs.
CASES: dict[str, Callable[..., Iterator[Case]]] = {
    "elementwise": flat_cases, "rowwise": row_cases, "matmul": product_cases, "grouped": product_cases,
}  # fmt: skip
# Row-wise operators of whose kernels of GPUs launches alone are stated: nothing is on record of what the rest comes to.
LAUNCHES: tuple[str, ...] = (
    "add_layer_norm", "add_layer_norm_backward", "add_rms_norm", "add_rms_norm_backward", "combine",
    "combine_backward", "cross_entropy", "cross_entropy_backward", "cross_entropy_with_grad",
    "expert_load_backward", "interval_softmax", "interval_softmax_backward", "layer_norm_backward",
    "load_balance_loss", "load_balance_loss_backward", "log_softmax", "log_softmax_backward", "masked_softmax",
    "masked_softmax_backward", "merged_cross_entropy", "part_cross_entropy_backward", "part_sums", "part_top",
    "rms_norm_backward", "rotary", "rotary_backward", "router", "router_backward", "router_z_loss",
    "router_z_loss_backward", "soft_cross_entropy", "soft_cross_entropy_backward", "top_k",
)  # fmt: skip
SECONDS = 20.0  # for one question to the solver, where nobody says how many
CODES = {"proved": 0, "refuted": 1, "undecided": 3}


@dataclass(frozen=True)
class Proof:
    """All obligations of an operator in one format on one target."""

    operator: str
    family: str
    dtype: str
    target: str
    obligations: Sequence[Obligation]

    @property
    def status(self) -> str:
        """Refuted where one is, else undecided where one is."""
        return overall(self.obligations)


def overall(obligations: Iterable[Obligation]) -> str:
    """The worst of all obligations; undecided where there are none."""
    found = {o.status for o in obligations}
    return "refuted" if "refuted" in found else "undecided" if "undecided" in found or not found else "proved"


def prove(
    operator: Operator, dtype: str, target: str = "cpu", isa: str = DEFAULT_ISA, seconds: float = SECONDS
) -> Proof:  # fmt: skip
    """State and discharge the obligations of an operator's kernels, with its optional tensors and default options."""
    plan = plan_of(operator, dtype)
    return Proof(
        operator.name, family_of(plan), dtype, target, list(_obligations(operator, plan, target, isa, seconds))
    )


def plan_of(operator: Operator, dtype: str) -> Plan:
    """The plan with all optional tensors and default options."""
    optional = frozenset(t.name for t in operator.tensors if t.optional)
    return make_plan(operator.trace(dtype, optional, {o.name: o.default for o in operator.options}))


def _obligations(operator: Operator, plan: Plan, target: str, isa: str, seconds: float) -> Iterator[Obligation]:
    family = family_of(plan)
    name = f"{operator.name} ({family}, {f'cpu {isa}' if target == 'cpu' else target})"
    if not covered(plan, target):
        reason = f"no obligations are stated for kernels of the family {family} on {target}"
        yield Obligation(f"{name}: accesses", "undecided", 0.0, reason=reason)
        return
    try:
        if target == "cpu":
            yield from WALKS[family](operator, plan, LANES[isa], seconds).obligations(name)
        else:
            planned = plan.family.gpu.plan(plan, target)
            yield from plans.obligations(operator, planned, target, name, seconds)
            yield from worst(name, cases(operator, planned, target, seconds))
    except ProofError as error:
        yield Obligation(f"{name}: what cannot be read", "undecided", 0.0, reason=str(error))


def cases(operator: Operator, plan: Plan, target: str, seconds: float) -> Iterator[Case]:
    """The kernels of a GPU that are walked, for each number of lanes that a target's warps have."""
    family = family_of(plan)
    if (of := CASES.get(family)) is not None and operator.name not in LAUNCHES:
        for warp in WARP[target]:
            yield from of(operator, plan, warp, target, seconds)


def covered(plan: Plan, target: str) -> bool:
    """Whether there are obligations for a plan's kernels on a target."""
    if target == "cpu":
        return family_of(plan) in WALKS
    try:
        plan.family.gpu.plan(plan, target)
    except TargetMissingError:
        return False
    return True


def covers(operator: Operator, target: str) -> bool:
    """Whether there are obligations for an operator's kernels on a target."""
    return covered(plan_of(operator, operator.contract.formats[0]), target)


def isas() -> list[str]:
    """The instruction sets whose vectors are proved."""
    return [i for rows in ISAS.values() for i in rows if i in LANES]


__all__ = ["CODES", "DEFAULT_ISA", "LANES", "SECONDS", "TARGETS", "Proof", "covers", "isas", "overall", "prove"]
