"""The inputs that a verification tries."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from mutants import centred

from tokitai import ops
from tokitai.errors import UnknownNameError, UsageError
from tokitai.families import make_plan
from tokitai.families.rowwise.plan import plan_rows
from tokitai.families.scatter.schedule import passes_of
from tokitai.formats import FORMATS
from tokitai.lang import Contract, Matrix, Operator, operator, row_sum, storage
from tokitai.verification import cases, suite, verify
from tokitai.verification.cases import DRAWS
from tokitai.verification.verdict import Variant, variants

GRAPH = centred.trace("f16")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("how", DRAWS)
def test_draws_are_the_same_for_a_seed_and_differ_between_seeds(how: str, dtype: str) -> None:
    graph = centred.trace(dtype)
    a, b, other = (cases.seeded(centred, graph, how, (40, 9), seed) for seed in (5, 5, 6))
    for name in ("x", "w"):
        assert a.tensors[name].tobytes() == b.tensors[name].tobytes()
        assert a.tensors[name].dtype == FORMATS[dtype].dtype
    assert a.tensors["x"].tobytes() != other.tensors["x"].tobytes()
    assert a.id == f"seeded/{how}@40x9#5" and a.params == dict(eps=0.1)
    assert a.tensors["x"].tobytes()[:18] != a.tensors["w"].tobytes() or how == "zeros"


def values(how: str, dtype: str = "f16") -> Any:
    return cases.seeded(centred, centred.trace(dtype), how, (200, 50), 0).tensors["x"].astype(np.float64)


def test_what_is_drawn_is_what_its_name_says() -> None:
    assert abs(values("normal").mean() - 0.5) < 0.1
    exponents = np.frexp(values("wide"))[1]
    assert exponents.max() - exponents.min() > 30 and (values("wide") != 0).mean() > 0.9
    special = values("special")
    assert np.isnan(special).any() and np.isposinf(special).any() and np.isneginf(special).any()
    tiny = np.abs(special[np.isfinite(special) & (special != 0)]).min()
    assert tiny <= 2.0**-15, "a subnormal number of f16"
    zeros = special == 0
    assert np.signbit(special[zeros]).any() and not np.signbit(special[zeros]).all()
    assert len(np.unique(values("equal"))) == 1
    tiny_rows = np.abs(values("tiny", "f32"))
    subnormal = tiny_rows < 2.0**-126
    assert subnormal.any(axis=1).any()
    assert ((tiny_rows**2 < 2.0**-125) & (tiny_rows > 2.0**-76)).all(axis=1).any(), (
        "rows of which all squares are subnormal"
    )
    zeros_only = values("zeros")
    assert (zeros_only == 0).all() and np.signbit(zeros_only[:100]).all() and not np.signbit(zeros_only[100:]).all()


def test_noise_of_seeds_has_seeds_of_its_own() -> None:
    op, graph = ops.dropout, ops.dropout.trace("f16")
    drawn = [cases.seeded(op, graph, "seeds", (3, cols), seed).params for cols in (33, 34) for seed in (0, 1)]
    assert len({p["seed"] for p in drawn}) == len({p["stream"] for p in drawn}) == 4
    assert {p["p"] for p in drawn} == {0.25}, "whole numbers alone"
    x = cases.seeded(op, graph, "seeds", (3, 40), 0).tensors["x"].astype(float)
    assert not np.isnan(x[:2]).any() and 0 < np.isnan(x[2]).sum() < 20
    assert cases.seeds_of(ops.softmax) == [] and cases.seeds_of(ops.adamw) == ["step", "seed"]


def test_segments_begin_at_every_place_in_a_chain() -> None:
    op = ops.embedding_backward
    (how, shape), *_ = make_plan(op.trace("f16")).family.shapes.partitioned(op, make_plan(op.trace("f16")), "cpu")
    ids = cases.seeded(op, op.trace("f16"), how, shape, 0).tensors["ids"]
    counts = np.bincount(ids)
    starts = np.cumsum(counts) - counts
    long = starts[counts > cases.CHAIN]
    assert set(long % cases.CHAIN) == set(range(cases.CHAIN)) and any(s and s % cases.CHAIN == 0 for s in long)
    assert (np.diff(ids) < 0).any(), "in any order"


def test_tables_have_the_entries_that_a_case_names() -> None:
    """One to four digits of 8 bits; parts of a workspace that are full, and one number less."""
    op = ops.embedding_backward
    plan = make_plan(op.trace("f16"))
    digits = Counter()
    for how, (rows, cols) in plan.family.shapes.partitioned(op, plan, "cuda")[1:]:
        entries = cases.ENTRIES[how]
        if entries < 2**24:
            case = cases.seeded(op, op.trace("f16"), how, (rows, cols), 0)
            assert case.params["entries"] == len(case.tensors["dtable"]) == entries
            assert {entries // 2, entries - 1, entries - 2} <= set(case.tensors["ids"]) <= set(range(entries))
        digits[passes_of(entries)] += 1
        assert (rows % 32, entries % 4) in ((0, 3), (1, 0))
    assert digits == {1: 2, 2: 2, 3: 2, 4: 2}


def test_what_older_versions_have_stays() -> None:
    """Later versions add cases behind those of earlier ones."""
    for op in (ops.embedding_backward, ops.attention, ops.dropout, ops.softmax):
        plan = make_plan(op.trace("f16"))
        for device in ("cpu", "sim", "cuda"):
            for ids in (suite.structure_ids, suite.structure_runs, suite.seeded_ids):
                found = [ids(op, plan, 8, None, 0, device, v) for v in range(2, suite.VERSION + 1)]
                assert all(set(a) <= set(b) for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("device", ["cpu", "sim", "cuda"])
@pytest.mark.parametrize(
    "op", [o for o in ops.registry().values() if any(t.name == "limit" for t in o.tensors)], ids=str
)
def test_at_every_shape_some_row_sees_all_that_there_is(op: Operator, device: str) -> None:
    """Where all queries attend to no key, or to a few, most of a kernel may be wrong; and the last columns of rows."""
    graph = op.trace("f16")
    plan = make_plan(graph)
    for seed in range(3):
        every = suite.structure_runs(op, plan, 8, None, seed, device)
        runs = [run for run in every if run[0] != cases.ROWS_ALIKE]
        assert {name for name, _ in runs} == {cases.ALL_INPUTS, cases.WHOLE_LENGTHS}
        seen: dict[tuple[int, int], int] = {}
        for name, shape in runs:
            limit = cases.drawn_integers(op, graph, name, shape, seed)["limit"]
            seen[shape] = max(seen.get(shape, 0), limit.max(initial=0))
        assert all(most == shape[1] for shape, most in seen.items() if shape[0])
        if any(t.name == "limit" and t.optional for t in op.tensors):
            assert not cases.none_is_whole(op, op.trace("f16", ()), (2, 3), seed), "no lengths: all see all"


def test_hard_inputs_keep_their_values() -> None:
    for op in ops.registry().values():
        for dtype in op.contract.formats:
            graph = op.trace(dtype)
            found = list(cases.hard(op, graph))
            assert len({c.id for c in found}) == len(found) >= 2, f"{op.name}: hard inputs with names of their own"
            for case in found:
                assert set(case.tensors) == {t.name for t in graph.inputs}
                finite = all(np.isfinite(a.astype(float)).all() for a in case.tensors.values() if a.dtype.kind != "i")
                assert finite or not case.in_domain


def test_all_values_are_tried_where_that_is_possible() -> None:
    assert cases.exhaustive(centred, GRAPH) is None
    assert cases.exhaustive(ops.gelu_erf, ops.gelu_erf.trace("f32")) is None
    case = cases.exhaustive(ops.gelu_erf, ops.gelu_erf.trace("bf16"))
    assert case is not None and len(np.unique(case.tensors["x"].view(np.uint16))) == 65536


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("op", [centred, ops.gelu_erf, ops.softmax], ids=str)
def test_shapes_take_every_branch(op: Operator, lanes: int) -> None:
    """Full vectors and tails of every length class, one block of vectors, several and a part; rows alike."""
    plan = plan_rows(op.trace("f16"))
    shapes = plan.family.shapes.branches(plan, lanes)
    cols = {c for _, c in shapes}
    assert {1, 3, 17, 2**7 - 1, 2**7 + 1, lanes, lanes + 1, 8 * lanes - 1, 8 * lanes, 8 * lanes + 1} <= cols
    rows = {r for r, _ in shapes}
    assert {1, 31, 32, 33, 65, 97} <= rows if plan.block > 1 else {1, 2, 7} <= rows
    if plan.flat:
        assert any(c > plan.tile for c in cols)
    assert len(shapes) == len(set(shapes))


def test_a_suite_stays_within_the_contract() -> None:
    @operator(contract=Contract(min_cols=4, max_cols=200))
    def narrow(x: Matrix[storage]) -> Any:
        return x * row_sum(x)

    plan = plan_rows(narrow.trace("f16"))
    seen = [c.shape for c in suite.number_cases(narrow, plan, 8, (3, 7), 0)]
    assert (3, 7) in seen and all(4 <= cols <= 200 for _, cols in seen)


def test_variants_are_all_optional_tensors_none_of_them_and_each_option() -> None:
    found = {v.flags(ops.layer_norm) for v in variants(ops.layer_norm)}
    assert found == {"", " --without gamma --without beta"}
    assert variants(ops.softmax) == [Variant(frozenset())]


# ------------------------------------------------------------------ wrong requests
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(shape=dict(rows=3)), r"shape has rows; accepted: rows and cols"),
        (dict(shape=dict(rows=-1, cols=2)), r"rows=-1; accepted: a whole number of at least 0"),
        (dict(shape=dict(rows=2.0, cols=2)), r"rows=2\.0; accepted"),
        (dict(shape=dict(rows=True, cols=2)), r"rows=True; accepted"),
        (dict(shape=dict(rows=1, cols=2**21)), r"softmax: rows=1, cols=2097152; accepted: at most"),
        (dict(device="cdua"), r"no device named 'cdua'.*accepted: cpu"),
        (dict(dtype="f8"), r"no format named 'f8'"),
        (dict(dtype="f64"), r"no storage format of softmax named 'f64'"),
    ],
)
def test_wrong_requests_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        verify(ops.softmax, **arguments)
    assert issubclass(UnknownNameError, UsageError)
