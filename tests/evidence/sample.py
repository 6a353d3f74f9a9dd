"""A verification as a run would report it, to be altered by tests."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from math import log2
from typing import Any

from tokitai.evidence.statement import (
    Case,
    CompilerIdentity,
    ConditionedErrors,
    Contract,
    KernelIdentity,
    LargestError,
    OperatorIdentity,
    Proof,
    Tool,
    Verification,
)  # fmt: skip


def sha256(text: str) -> str:
    """A digest that tests can tell from others."""
    return hashlib.sha256(text.encode()).hexdigest()


def conditioned(error: float, bound: float, *why: str) -> ConditionedErrors:
    """Of 32 elements one that has the error, with 31 below; as many without a bound as there are reasons."""
    bins = range(-10, 21)
    at = min(max(round(log2(error)), bins[0]), bins[-1]) if error else bins[0]
    counts = [31 * (k == bins[0]) + (k == at) for k in bins]
    return ConditionedErrors(32, error, error, bound, bound / 2, counts, len(why), why)


STRUCTURE = Case(
    kind="structure", name="odd sizes", rows=3, cols=17, seed=1, scalars={"eps": 1e-5}, threads=2,
    input_digests={"x": sha256("x as hashes")}, output_digests={"y": sha256("y as hashes")},
    oracle_digests={"y": sha256("y as hashes")}, compared=51, equal=True,
)  # fmt: skip
SEEDED = Case(
    kind="seeded", name="normal", rows=4, cols=8, seed=7, scalars={"eps": 1e-5}, threads=1,
    input_digests={"x": sha256("x")}, output_digests={"y": sha256("y")}, oracle_digests={"y": sha256("y")},
    compared=32, equal=True, max_ulp_error=0.75,
)  # fmt: skip
EMPTY = Case(
    kind="hard", name="no rows | none", rows=0, cols=8, seed=None, scalars={"eps": float("inf")}, threads=1,
    input_digests={"x": sha256("")}, output_digests={"y": sha256("")}, oracle_digests={"y": sha256("")},
    compared=0, equal=True,
)  # fmt: skip
WRONG = Case(
    kind="seeded", name="large values", rows=4, cols=8, seed=8, scalars={}, threads=1,
    input_digests={"x": sha256("x2")}, output_digests={"y": sha256("wrong")}, oracle_digests={"y": sha256("right")},
    compared=32, equal=False,
)  # fmt: skip
SAMPLE = Verification(
    operator=OperatorIdentity("rms_norm", sha256("graph"), 1, Contract(("f16", "f32"), 2**31, 2**20, "finite values")),
    dtype="f32",
    target="cpu",
    device={"cpu": "an example", "isas": ["scalar", "avx2"], "cores": 2, "float_mode": None},
    compiler=CompilerIdentity("gcc", "g++ 12.2.0\nCopyright and so on", sha256("compiler")),
    isa="avx2",
    flags=("-O2", "-ffp-contract=off"),
    plan={"passes": 2, "block": 64},
    kernels=(
        KernelIdentity(False, sha256("inputs"), sha256("numeric binary"), sha256("source")),
        KernelIdentity(True, sha256("structure inputs"), sha256("structure binary"), sha256("source")),
    ),
    cases=(STRUCTURE, SEEDED, EMPTY),
    proofs=(
        Proof("The kernel computes the definition's expression for every input.", "proved", "structure build"),
        Proof("No sum overflows.", "not proved", "no bound is known"),
    ),
    error=LargestError(
        0.75,
        "rms_norm f32 cpu rows=4 cols=8 seed=7 at y[2, 5]: 0x3f800001 for 0x3f800000",
        condition={"f32": conditioned(0.625, 3.0)},
    ),
    verdict="verified",
    failure=None,
    claims=("Every case has the definition's bits.",),
    non_claims=("Nothing is said about other devices.",),
    created="2026-01-31T12:00:00Z",
    seconds=1.25,
    tool=Tool("tokitai", "0.1.0", "3.11.7", "2.4.6"),
)

VALUES = (None, True, 0, -1, 1.0, 2.5, "", "x", "a\nb", "inf", "verified", [], ["x"], {}, {"x": "y"}, sha256("another"))
"""What tests put in place of a value of a certificate."""

Place = tuple[str | int, ...]


def paths(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*at, key))


def altered(value: Any, at: Place, new: Any) -> Any:
    """A copy with another value at a place; `...` removes it."""
    if not at:
        return new
    result = copy.deepcopy(value)
    inner = result
    for key in at[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return result


def at_place(value: Any, at: Place) -> Any:
    for key in at:
        value = value[key]
    return value
