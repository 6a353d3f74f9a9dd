"""Large cases of which few rows and columns are computed: what they must be is what the whole computation says."""

from __future__ import annotations

import numpy as np
import pytest

from tokitai.judging import reference
from tokitai.judging.reference import expected
from tokitai.judging.trials import Ask, Trial, trials
from tokitai.lang import Sizes
from tokitai.meaning import bits
from tokitai.ops import get
from tokitai.verification.cases import size_of


def large(op: str, shape: tuple[int, int], how: str) -> Trial:
    """One large trial, repeated rows and columns and all."""
    operator = get(op)
    present = frozenset(t.name for t in operator.tensors if t.optional)
    ask = Ask(operator, "f32", present, {}, [], shape, 3, "numpy")
    return next(t for t in trials(ask) if t.case.shape == shape and t.case.name == how)


@pytest.mark.parametrize(("op", "shape", "how"), [
    ("softmax", (64, 400), "normal"), ("layer_norm_backward", (70, 300), "normal"),
    ("matmul", Sizes(40, 70, 130), "normal"), ("matmul", Sizes(40, 70, 130), "whole numbers a"),
    ("embedding_backward", (90, 256), "normal"), ("attention", Sizes(40, 90, 72), "normal"),
    ("attention_backward", Sizes(40, 90, 72), "normal"), ("combine", (70, 300), "normal"),
])  # fmt: skip
def test_what_is_computed_for_some_holds_for_all(
    op: str, shape: tuple[int, int], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "REDUCED", 1 << 11)
    monkeypatch.setattr("tokitai.judging.trials.REDUCED", 1 << 11)
    trial = large(op, shape, how)
    case = trial.case
    whole = bits.evaluate(trial.graph, case.tensors, case.shape, case.params)
    with np.errstate(all="ignore"):
        for e in expected(get(op), trial.graph, case, trial.spread, trial.noise):
            o = e.output
            right = np.asarray(whole[o.name])
            right = right.reshape(size_of(o.space, case.shape, len(right), o.slots))
            found = e.hold(right)
            assert (found.wrong, found.identical) == (0, True), found.first
            other = right.copy()
            at = tuple(int(n) for n in np.argwhere(np.isfinite(right))[-1])
            if e.rows is not None or e.cols is not None:
                at = tuple(n - 1 for n in right.shape)  # the edges are computed, or repeat what is
            other[at] = -3 * other[at] - 7
            found = e.hold(other)
            assert found.wrong == 1 and found.first.startswith(f"{e.output.name}[{','.join(map(str, at))}]")
