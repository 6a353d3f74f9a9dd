"""Reported ways to pass a test with a wrong kernel (group H of the collected reports): none passes here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokitai
from tokitai.judging import Judgement
from tokitai.ops import get

CHEATS = Path(__file__).parent / "cheats.py"


def judged(name: str, op: str = "softmax", dtype: str = "f16", **how: object) -> Judgement:
    return tokitai.judge((CHEATS, name), get(op), dtype=dtype, **{"seed": 0, "explain_seconds": 0, **how})  # type: ignore[arg-type]


def wrong(made: Judgement) -> str:
    return "\n".join(f"{f.case}: {f.what} {f.where}" for f in made.failures)


@pytest.mark.slow
def test_c124_zeros_where_all_values_are_tiny() -> None:
    shape = {"rows": 1, "cols": 393216}
    made = judged("zeros", shape=shape, case="seeded/normal@1x393216#0", dtype="f32")
    assert made.verdict == "refuted" and "it differs by" in wrong(made)
    assert judged("right", shape=shape, case="seeded/normal@1x393216#0", dtype="f32").verdict == "verified"


@pytest.mark.slow
def test_c126_memory_that_nobody_has_written() -> None:
    made = judged("uninitialised")
    assert made.verdict == "refuted" and len(made.failures) > 0.8 * made.cases


@pytest.mark.slow
def test_c127_an_input_that_is_overwritten() -> None:
    made = judged("zeroes_its_input")
    assert made.verdict == "refuted" and "changed its input x" in wrong(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remembers_by_shape", "remembers_by_address", "remembers_the_first"])
def test_c129_c130_results_that_are_remembered(name: str) -> None:
    """C129, C130: every call has values of its own, and what every call returns is looked at."""
    made = judged(name)
    assert made.verdict == "refuted", made.notes


@pytest.mark.slow
def test_c132_shapes_that_are_tried_are_told() -> None:
    made = judged("right_where_it_is_tested_small")
    assert made.verdict == "refuted" and "all in column 256" in wrong(made)
    shapes = judged("right").as_json()["shapes"]
    assert [5, 257] in shapes and [17, 4096] in shapes and [1, 1] in shapes
    assert [7, 1000] in judged("right", shape={"rows": 7, "cols": 1000}).as_json()["shapes"]


@pytest.mark.slow
def test_c134_nan_and_the_other_infinity() -> None:
    made = judged("nan")
    assert made.verdict == "refuted" and "(nan); the definition gives 0x" in wrong(made)
    made = judged("other_infinity", "log_softmax", "f32")
    assert "is 0x7f800000 (inf); the definition gives 0xff800000 (-inf)" in wrong(made)
    made = judged("right", dtype="f32", case="hard/NaN beside -inf@3x3#0")  # NaN where the definition has NaN
    assert made.verdict == "verified" and made.judged == 9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op"), [
    ("eps_of_the_wrong_sign", "layer_norm"), ("eps_twice", "layer_norm"), ("gamma_twice", "layer_norm"),
    ("mask_off_by_one", "masked_softmax"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_c137_mutants_that_hide_below_a_tolerance(name: str, op: str, dtype: str) -> None:
    assert judged(name, op, dtype).verdict == "refuted"


@pytest.mark.slow
def test_c139_one_distribution_alone() -> None:
    made = judged("balanced_only", dtype="f32")
    assert made.verdict == "refuted"
    other = judged("balanced_only", dtype="f32", seed=2**63 + 11)
    assert other.verdict == "refuted" and f"#{2**63 + 11}" in wrong(other)


@pytest.mark.slow
def test_c123_a_call_that_kills_its_process_is_the_only_culprit() -> None:
    made = judged("crashes_once")
    assert [f.case for f in made.failures] == ["seeded/normal@67x130#0"] and made.cases > 40
    assert "took its process down: the worker process was ended by SIG" in wrong(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lies_about_its_format", "replaces_what_it_is_called_by", "writes_later"])
def test_other_ways(name: str) -> None:
    assert judged(name).verdict == "refuted"
