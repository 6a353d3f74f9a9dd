"""Launch plans, run on unknown sizes: the limits that every launch and every workspace of a GPU's kernels keeps to.

The functions are those that plan a call, such as `row_steps` and `product_steps`. A row-wise or a tiled kernel has many
schedules: each that there is for some number of columns is planned on its own, for all sizes for which it is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import z3

from ..families import Plan
from ..lang import Operator
from ..lower.gpu import MOST_THREADS
from . import attention_plans, flat_plans, product_plans, row_plans
from .choice import MEMORY, SHARED_BYTES, Choice, Planned, family_of
from .obligation import Obligation
from .symbolic import every_path, term_of
from .terms import Answer, alike, ask

MOST_BLOCKS = 2**31 - 1  # of a launch
MOST_BYTES = 2**63 - 1  # of a workspace, whose size is an int64_t
SIZES = ("rows", "cols", "inner", "batch", "entries", "groups", "more")
CHOICES = {
    "rowwise": row_plans.choices, "elementwise": flat_plans.of_flat, "scatter": flat_plans.of_entries,
    "matmul": product_plans.choices, "grouped": product_plans.choices, "attention": attention_plans.choices,
}  # fmt: skip


def choices(operator: Operator, plan: Any, target: str) -> Iterator[Choice]:
    """Every choice of a plan's family on a target."""
    c = operator.contract
    rows, cols = z3.Int("rows"), z3.Int("cols")
    knows = [rows >= 0, rows <= c.max_rows, cols >= c.min_cols, cols <= c.max_cols, rows * cols <= MEMORY]
    return CHOICES[family_of(plan)](operator, plan, target, knows)


_known: dict[Any, list[tuple[str, Answer]]] = {}  # by such keys


def obligations(operator: Operator, plan: Plan, target: str, name: str, seconds: float) -> Iterator[Obligation]:
    """Of all launches of an operator's kernels on a target."""
    found: dict[str, list[Answer]] = {}
    began: dict[str, float] = {}
    for choice in choices(operator, plan, target):
        # Whatever the target: launches that ask for shared memory are of tilings that one target alone has.
        key = choice.key and (choice.key, str(choice.knows))
        answers = _known.get(key) if key else None
        if answers is None:
            answers = list(limits(choice, target, seconds))
            if key:
                _known[key] = answers
        for what, answer in answers:
            found.setdefault(what, []).append(answer)
            began[what] = began.get(what, 0.0) + answer.seconds
    for what, all_of in found.items():
        worst = next((a for s in ("refuted", "undecided") for a in all_of if a.status == s), all_of[0])
        sizes = {n: v for n, v in worst.at.items() if n in SIZES}
        proved = worst.status == "proved"
        yield Obligation(
            f"{name}: {what}",
            worst.status,
            began[what],
            {} if proved else sizes,
            "" if proved else worst.reason,
            len(all_of),
        )


def limits(choice: Choice, target: str, seconds: float) -> Iterator[tuple[str, Answer]]:
    """What must hold on every path through a plan."""
    start = time.perf_counter()
    paths = every_path(choice.plan, choice.knows)
    spent = time.perf_counter() - start
    for taken, made in paths:
        knows = [*choice.knows, *taken]
        for what, must in statements(made, target, knows):
            answer = ask(must, knows, seconds)
            if answer.status != "proved":
                reason = f"{answer.reason or 'wrong'}: {choice.name}"
                answer = Answer(answer.status, answer.seconds, answer.at, reason)
            yield what, Answer(answer.status, answer.seconds + spent, answer.at, answer.reason)
            spent = 0.0


def statements(made: Planned, target: str, knows: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The limits of launches and of a workspace."""
    for s in made.steps:
        grid, block, shared = map(term_of, (s.grid, s.block, s.shared))
        if not s.in_turn:  # else as many as a GPU runs at a time do the same
            yield "every launch has 1 to 2^31 - 1 blocks", z3.And(grid >= 1, grid <= MOST_BLOCKS)
        else:
            yield "every launch has 1 to 2^31 - 1 blocks", grid >= 1
        yield "every block has 1 to 1,024 threads", z3.And(block >= 1, block <= MOST_THREADS)
        yield "no launch asks for more shared memory than there is", z3.And(shared >= 0, shared <= SHARED_BYTES[target])
    need = term_of(made.workspace)
    yield "the size of the workspace fits an int64_t", z3.And(need >= 0, need <= MOST_BYTES)
    for used in made.used:
        yield "the workspace has room for pending partials and parts", alike(need - used, knows) >= 0
    yield from made.extra


__all__ = ["limits", "obligations", "statements"]
