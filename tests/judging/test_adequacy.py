"""Whether the cases of a judgement tell a kernel from answers that compute nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai import judge, ops
from tokitai.judging import adequacy
from tokitai.lang import Matrix, Outputs, operator, outputs, row_sum, storage

QUICK: dict[str, Any] = dict(dtype="f32", seed=5, explain_seconds=0)


def softmax(x: Any) -> Any:
    with np.errstate(all="ignore"):
        e = np.exp((x - x.max(axis=-1, keepdims=True, initial=-np.inf)).astype(np.float64))
        return (e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)


NULLS = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "the input": lambda x: x.copy(),
    "shifted": lambda x: np.roll(softmax(x).reshape(-1), 1).reshape(x.shape),
    "smaller": lambda x: softmax(x).astype(ml_dtypes.bfloat16).astype(x.dtype),
}


@pytest.mark.parametrize("which", NULLS)
def test_null_candidates_are_refuted(which: str) -> None:
    assert judge(NULLS[which], ops.softmax, first=True, **QUICK).verdict == "refuted"


@pytest.mark.slow
def test_how_many_cases_tell_is_said() -> None:
    made = judge(softmax, ops.softmax, shape={"rows": 5, "cols": 33}, **QUICK)
    assert made.verdict == "verified" and made.undecided is None
    assert made.asked > made.told > made.asked // 2 and made.null_candidates.get("zeros", 0) < made.asked // 4
    assert made.as_json()["adequacy"] == dict(results=made.asked, told=made.told, passed_by=made.null_candidates)


@operator
def nothing(x: Matrix[storage]) -> Outputs:
    """What is left of a row when it is taken from itself: zeros, whatever the row."""
    return outputs(y=x - x, total=row_sum(x))


def left(x: Any) -> Any:
    return x - x, x.astype(np.float64).sum(axis=1).astype(np.float32)


@pytest.mark.slow
def test_a_result_that_no_case_tells_from_zeros_is_not_judged_to_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judge(left, nothing, **QUICK)
    assert made.verdict == "undecided" and made.undecided is not None
    assert made.undecided.startswith("y: no case tells it from null candidates (") and "zeros" in made.undecided
    assert "total" not in made.undecided
    monkeypatch.setattr(adequacy.Adequacy, "untold", lambda self: {})
    assert judge(left, nothing, **QUICK).verdict == "verified"
