"""What the tensors and scalars of a trial hold: drawn from the seed, scalars for each case anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..formats import FORMATS
from ..lang import OPERANDS, TOTALS, Graph, Operator, TensorSpec
from ..lang.contract import ParamSpec
from ..meaning.structure import drawn_entries
from ..runtime.shapes import in_groups
from ..verification import cases
from ..verification.cases import Array, Case, rng_for

WHOLE_BITS = 12  # of an operand of an exact probe: more than bf16 and TF32 have
HUGE = 1e30
LARGEST_SUM = 1 << 24  # of whole numbers: each partial sum is an f32


def scalars(
    operator: Operator, rng: np.random.Generator, shape: tuple[int, int], exact: bool = False
) -> dict[str, Any]:
    """Scalars over their ranges, and now and then one of their ends; ``exact``: such that products with them are."""
    base = cases.defaults(operator)
    plain = [p.name for p in operator.params if not p.whole and _range(operator, p)[0] == -math.inf]
    signs = all(base[n] > 0 for n in plain)  # a lower and an upper limit keep their order
    made = {p.name: _scalar(operator, p, float(base[p.name]), rng, shape, exact, signs) for p in operator.params}
    return {**base, **made}  # of a backward pass the forward pass's own as well


def _range(operator: Operator, p: ParamSpec) -> tuple[float, float]:
    """What a scalar may be; the largest numbers of a format are no ends worth trying."""
    usual = (0.0 if p.name == "eps" else -math.inf, math.inf)  # under a root
    low, high = operator.contract.ranges.get(p.name, usual)
    return low if p.whole or low > -HUGE else -math.inf, high if p.whole or high < HUGE else math.inf


def _scalar(
    operator: Operator, p: ParamSpec, base: float, rng: np.random.Generator, shape: tuple[int, int], exact: bool,
    signs: bool,
) -> Any:  # fmt: skip
    low, high = _range(operator, p)
    entries = drawn_entries(shape[0])
    if p.whole:
        besides = [i for i in operator.contract.indices.values() if i.besides == p.name]
        if p.name == "entries":
            return entries
        if besides or low < 0:  # a value that stands for no place; of columns, and of what is padding, a place as well
            places = entries if not besides else 0 if besides[0].entries else shape[1]
            inside = [int(rng.integers(0, places))] if places else []
            return int(rng.choice([int(base), -1, -7 if besides else -entries, *inside]))
        if rng.random() < 0.5:
            return int(low) + int(2 ** rng.uniform(0, 10))
        return int(rng.integers(int(low), int(high) + 1))
    if math.isfinite(low) and math.isfinite(high):
        if exact:
            return 0.5
        ends = [low + (high - low) * 10.0 ** rng.uniform(-3, -1), high - (high - low) * 10.0 ** rng.uniform(-3, -1)]
        return float(rng.choice([*ends, *rng.uniform(low, high, 4)]))
    if low >= 0:
        if not exact and low == 0 and p.name != "eps" and rng.random() < 0.08:
            return 0.0
        top = max(16 * base, 0.5)
        drawn = float(2 ** rng.uniform(math.log2(base / 16 if base else 1e-4), math.log2(top)))
        return float(2.0 ** round(math.log2(drawn))) if exact else max(drawn, low)
    sign = float(rng.choice([-1.0, 1.0])) if signs else math.copysign(1, base)
    if exact:
        return sign * float(2.0 ** rng.integers(-1, 2))
    return float(rng.choice([base, sign])) if rng.random() < 0.08 else sign * abs(base) * float(2 ** rng.uniform(-2, 2))


def seeded(
    operator: Operator, graph: Graph, how: str, shape: tuple[int, int], seed: int, params: Mapping[str, Any]
) -> Case:  # fmt: skip
    """A case as `cases.seeded` draws it, with these scalars; or, where ``how`` says so, an exact probe."""
    shape = in_groups(graph, shape)
    large = how.removeprefix(PROBE) if how.startswith(PROBE) else None
    kind = how if how in cases.DRAWS else "normal"
    tensors = {t.name: cases.draw(operator, t, kind, shape, seed) for t in graph.inputs}
    if how in BLOCKS:
        tensors |= {
            t.name: _blocks(t, tensors[t.name], *BLOCKS[how])
            for t in graph.inputs
            if t.space == "rc" and FORMATS[str(t.format)].is_float and t.name not in operator.contract.draw
        }
    if large is not None:
        for t in graph.inputs:
            if FORMATS[str(t.format)].is_float and t.name not in operator.contract.draw:
                rng = rng_for(seed, t.name, how)
                bits = min(WHOLE_BITS, FORMATS[str(t.format)].precision)
                few = LARGEST_SUM / (2**bits * max(_terms(graph, shape), 1)) if large else 1.0
                made = _large(rng, tensors[t.name].shape, bits) if t.name == large else _small(
                    rng, tensors[t.name].shape, few, 1 if large else 3)  # fmt: skip
                tensors[t.name] = cases.to_format(made, FORMATS[str(t.format)])
    usual = cases.defaults(operator)
    for name, index in operator.contract.indices.items():
        if index.besides and name in tensors:
            old, new = int(usual[index.besides]), int(params[index.besides])
            tensors[name] = np.where(tensors[name] == old, new, tensors[name]).astype(tensors[name].dtype)
    agreed = cases.settled(operator, graph, params, drawn_entries(shape[0]))
    kind = "seeded" if large is None else "exact"
    return cases.saved(operator, graph, Case(kind, how, shape, seed, tensors, agreed, in_domain=how == "normal"))


PROBE = "whole numbers "
# What columns of a row's block hold, and others.
BLOCKS = {"blocks among -30": (0.0, -30.0), "blocks among 0": (1.0, 0.0)}


def _blocks(t: TensorSpec, like: Array, inside: float, outside: float) -> Array:
    """Each row has its own block of columns, all of them together every column: where some columns are left out, it
    shows in the rows whose blocks have them, however long rows are."""
    rows, cols = like.shape[-2:]
    block = np.arange(cols)[None, :] * rows // max(cols, 1) == np.arange(rows)[:, None]
    made = np.broadcast_to(np.where(block, inside, outside), like.shape)
    return cases.to_format(made, FORMATS[str(t.format)])


def probes(graph: Graph) -> list[str]:
    """The names of exact probes: small whole numbers; large ones of each tensor that is summed over, others small."""
    sums = any(n.op in (*TOTALS, "matmul", "weighted_sum", "col_sum", "scatter_sum", "row_sum") for n in graph.nodes)
    if not sums:
        return []
    spaces = (*OPERANDS, "rc", "t")
    each = [t.name for t in graph.inputs if FORMATS[str(t.format)].is_float and t.space in spaces]
    products = any(n.op in ("matmul", "weighted_sum", "col_sum", "scatter_sum") for n in graph.nodes)
    return [PROBE, *([f"{PROBE}{name}" for name in each] if products else [])]


def _terms(graph: Graph, shape: tuple[int, int]) -> int:
    inner = getattr(shape, "inner", 0)
    return int(max(inner, *((shape[0],) if not inner else ()), 1)) if inner else max(shape)


def _large(rng: np.random.Generator, size: tuple[int, ...], bits: int) -> Array:
    """Whole numbers that any shorter format rounds, and always to the same side, so that it adds up."""
    most = 1 << (bits - 1)
    return most + 16 * rng.integers(0, max(most // 16, 1), size) + 7


def _small(rng: np.random.Generator, size: tuple[int, ...], few: float, most: int) -> Array:
    """Signs, more of one kind than of the other; zeros where there would be too many."""
    signs = np.where(rng.random(size) < 0.125, -1, 1) * rng.integers(1, most + 1, size)
    return np.where(rng.random(size) < few * 0.9, signs, 0)
