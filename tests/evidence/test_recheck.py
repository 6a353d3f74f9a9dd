"""Cases are computed again whatever a certificate says: what it says may be anything, and never raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample import VALUES, altered, paths

from tokitai.lang import Operator
from tokitai.ops import get
from tokitai.verification import verify
from tokitai.verification.again import sampled
from tokitai.verification.recheck import Outcome, check_file
from tokitai.verification.sentences import graphs_of
from tokitai.verification.verdict import Variant, variants

Statement = dict[str, Any]
GOOD = ("well-formed", "partly recomputed", "recomputed")
FUZZ = settings(
    max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WEIRD = (*VALUES, 3, 3.0, 17.0, 10**300, 1 << 40, "nope", "list, one tensor", "f8", None)
TRIED = ("kind", "name", "rows", "cols", "inner", "batch", "seed", "dtype", "verdict", "equal", "formats", "max_rows")
KINDS = ("structure", "seeded", "hard", "exhaustive", "list", "yours", "derivative", "guessed")


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> list[Statement]:
    """Of operators on lists and on rows, and of a product."""
    folder = tmp_path_factory.mktemp("certificates")
    made = []
    for name, case in (("silu", "3x17"), ("softmax", "3x17"), ("matmul", "3x5x7"), ("global_norm", "1x17")):
        v = verify(get(name), dtype="f16", case=f"seeded/normal@{case}#0", variant=variants(get(name))[0], out=folder)
        assert v.certificate is not None
        assert check_file(v.certificate, rerun=0).outcome == "recomputed"
        made.append(json.loads(v.certificate.read_text()))
    return made


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_nothing_that_a_certificate_says_raises(
    statements: list[Statement], tmp_path: Path, data: st.DataObject
) -> None:
    statement = data.draw(st.sampled_from(statements))
    places = [at for at in paths(statement) if at and (at[-1] in TRIED or data.draw(st.integers(0, 9)) == 0)]
    for at in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        try:
            statement = altered(statement, at, data.draw(st.sampled_from((*WEIRD, *KINDS))))
        except (LookupError, TypeError):
            continue  # what lies there was replaced
    path = tmp_path / "x.json"
    path.write_text(json.dumps(statement))
    found = check_file(path, rerun=0)
    assert found.outcome in get_args(Outcome)
    assert (found.outcome in GOOD) is not bool(found.problems)


SIDES = (None, 0, 1, 5, 7, 3.0, 1 << 16, 1 << 20, 1 << 40, 10**300)


@FUZZ
@given(data=st.data())
def test_any_shape_and_kind_is_told_or_left_out(
    statements: list[Statement], tmp_path: Path, data: st.DataObject
) -> None:
    """In a certificate whose parts agree, so that nothing but the computation looks at them."""
    statement = json.loads(json.dumps(data.draw(st.sampled_from(statements))))
    predicate = statement["predicate"]
    predicate["operator"]["contract"].update(max_rows=10**301, max_cols=10**301)
    for case in predicate["cases"]:
        case["rows"], case["cols"] = (data.draw(st.sampled_from(SIDES[1:])) for _ in range(2))
        case["inner"], case["batch"], case["seed"] = (data.draw(st.sampled_from((*SIDES, 2))) for _ in range(3))
        case["seed"] = case["seed"] and int(case["seed"])
        case["kind"] = data.draw(st.sampled_from(KINDS))
        case["name"] = data.draw(st.sampled_from((case["name"], "list, one tensor", "one tensor", "all f16")))
    path = tmp_path / "x.json"
    path.write_text(json.dumps(statement))
    found = check_file(path, rerun=0)
    assert (found.outcome in GOOD) is not bool(found.problems)


@pytest.mark.parametrize(
    ("operator", "changes", "said"),
    [
        ("matmul", dict(inner=None), "case seeded/normal@3x5#0: matmul has no such shape"),
        ("softmax", dict(inner=4), "case seeded/normal@3x17x4#0: softmax has no such shape"),
        ("global_norm", dict(rows=3), "case seeded/normal@3x17#0: global_norm has no such shape"),
        ("softmax", dict(kind="list", name="one tensor"), "case list/one tensor@3x17#0: no graph of softmax has it"),
        ("softmax", dict(kind="hard"), "case hard/normal@3x17#0: no graph of softmax has it"),
        ("softmax", dict(seed=None), "case seeded/normal@3x17#None: no seed draws its inputs"),
        ("matmul", dict(rows=1, cols=1, inner=1 << 17), "nothing was recomputed: none of"),
        ("matmul", dict(rows=1, cols=1, inner=1, batch=1 << 17), "nothing was recomputed: none of"),
        ("softmax", dict(rows=1 << 11, cols=(1 << 9) + 1), "nothing was recomputed: none of"),
    ],
)
def test_a_case_that_its_operator_cannot_have(
    statements: list[Statement], tmp_path: Path, operator: str, changes: dict[str, Any], said: str
) -> None:
    (statement,) = [s for s in statements if s["predicate"]["operator"]["name"] == operator]
    statement = json.loads(json.dumps(statement))
    statement["predicate"]["operator"]["contract"].update(max_rows=1 << 40)
    statement["predicate"]["cases"][0].update(changes)
    (tmp_path / "x.json").write_text(json.dumps(statement))
    found = check_file(tmp_path / "x.json", rerun=0)
    assert found.outcome in ("invalid", "undecided") and len(found.problems) == 1
    assert found.problems[0].startswith(said)


def digests(op: Operator) -> list[str]:
    return [graph.digest for graph in graphs_of(op, "f16")]


def test_every_combination_of_options_and_optional_tensors_is_looked_at() -> None:
    op = get("linear")
    some = [op.trace("f16", v.present, dict(v.options)).digest for v in variants(op)]
    every = digests(op)
    assert every[: len(dict.fromkeys(some))] == list(dict.fromkeys(some)) and len(every) > 2 * len(some)
    assert len(set(every)) == len(every)


def test_a_certificate_of_an_uncommon_combination_is_computed_again(tmp_path: Path) -> None:
    """Its definition's digest is that of no graph that a verification takes by itself."""
    op = get("linear")
    uncommon = Variant(frozenset({"bias"}), (("activation", "silu"),))
    made = verify(op, dtype="f16", case="seeded/normal@3x5x7#0", variant=uncommon, out=tmp_path)
    assert made.certificate is not None
    found = check_file(made.certificate, rerun=0)
    assert (found.outcome, found.rerun) == ("recomputed", {"cases": 1, "of": 1}), found.problems


def test_the_sample_depends_on_the_seed() -> None:
    given = [dict(kind="seeded", rows=1, cols=1, number=i) for i in range(50)]
    assert sampled(given, 5, 1) == sampled(given, 5, 1) != sampled(given, 5, 2)
