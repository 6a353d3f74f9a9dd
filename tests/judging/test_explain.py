"""The judge names what a wrong kernel computes in place of the definition: planted faults of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokitai
from tokitai.cli import run as main
from tokitai.errors import UnknownNameError
from tokitai.judging import Judgement, judgement
from tokitai.judging.arithmetic import ModelBounds, cut, evaluate, exactly, limits, narrow_sum
from tokitai.judging.models import models
from tokitai.judging.rewrite import named
from tokitai.judging.trials import Ask, Trial, trials
from tokitai.ops import get
from tokitai.verification.cases import work_of
from tokitai.verification.verdict import Variant

from . import planted

ALONE = ("bias", "residual")  # optional inputs that no planted kernel takes
SMALL = 1 << 12

FAULTS = {  # (kernel, operator, format): the models that the judge names, of ordinary or of special values
    ("exp_stored", "softmax", "f16"): "intermediate:e",
    ("sum_in_storage", "softmax", "f16"): "accumulate:sum(e)",
    ("without_maximum", "softmax", "f32"): "no-maximum",
    ("rough_exp", "softmax", "f32"): "approximate:exp:2**",
    ("rough_quotient", "softmax", "f32"): "approximate:division:2**-12",
    ("truncated", "softmax", "bf16"): "store:toward-zero",
    ("through_bf16", "softmax", "f32"): "intermediate:y:bf16",
    ("flushed", "softmax", "f16"): "ftz:f16",
    ("without_tail", "softmax", "f16"): "tail:16",
    ("tail_not_summed", "softmax", "f16"): "tail-of-sums:8",
    ("rows_exchanged", "softmax", "f16"): "rows:exchanged",
    ("columns_reversed", "softmax", "f16"): "columns:reversed",
    ("stale", "softmax", "f16"): "stale",
    ("nothing_written", "softmax", "f16"): "constant",
    ("last_row_missing", "softmax", "f16"): "rows:last-missing",
    ("one_pass", "layer_norm", "f32"): "one-pass-variance",
    ("normalized_stored", "layer_norm", "bf16"): "intermediate:(d-slip)*rstd",
    ("eps_outside", "layer_norm", "f16"): "eps:outside-sqrt",
    ("eps_as_floor", "layer_norm", "f16"): "eps:maximum",
    ("unbiased", "layer_norm", "f16"): "n-1:sum(d*d)/n",
    ("rough_root", "layer_norm", "f32"): "approximate:rsqrt:2**-12",
    ("exchanged", "layer_norm", "f16"): "exchanged:gamma:beta",
    ("no_shift", "layer_norm", "f16"): "ignored:beta=0",
    ("silu_stored", "swiglu", "bf16"): "intermediate:silu",
    ("softmax_backward_stored", "softmax_backward", "f16"): "expanded:y*(dy-sum(dy*y)), intermediate:dy*y",
    ("tanh_gelu", "gelu_erf", "f16"): "formula:tanh-gelu",
    ("product_in_storage", "linear", "f16"): "accumulate:matmul(x,weight)",
    ("operands_in_bf16", "linear", "f32"): "operands:bf16",
    ("one_too_many", "masked_softmax", "f16"): "off-by-one:limit+1",
}


def few(ask: Ask, only_one: str | None = None) -> Iterator[Trial]:
    """Small trials alone, in the layouts that are usual."""
    yield from (t for t in trials(ask, only_one) if work_of(t.case.shape) <= SMALL and len(t.placements) < 2)


def judged(kernel: Any, op: str, dtype: str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Judgement:
    monkeypatch.setattr(judgement, "trials", few)
    operator = get(op)
    given = frozenset(t.name for t in operator.tensors if t.optional and t.name not in ALONE)
    with np.errstate(all="ignore"):
        return tokitai.judge(kernel, operator, dtype=dtype, seed=0, variant=Variant(given), **how)


def test_the_faults_are_of_more_than_twenty_kinds() -> None:
    assert len({cause.partition(":")[0] + fault[0] for fault, cause in FAULTS.items()}) >= 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_a_planted_fault_is_named(
    fault: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, op, dtype = fault
    made = judged(getattr(planted, name), op, dtype, monkeypatch)
    assert made.verdict == "refuted"
    with capsys.disabled():
        print(f"\n{name} as {op} {dtype}: {made.causes[0]}", end="")
    assert FAULTS[fault] in [", ".join(c.models) if "2**" not in FAULTS[fault] else c.models[0][: len(FAULTS[fault])]
                             for c in made.causes if c.models]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_intermediate_result_in_storage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judged(planted.silu_stored, "swiglu", "bf16", monkeypatch)
    first = made.causes[0]
    assert (first.models, first.result, first.of) == (("intermediate:silu",), "y", "ordinary values")
    assert first.same_bits == 1 and first.explained == 1 and first.said == "silu is rounded to bf16"
    with_it = judged(planted.silu_stored, "swiglu", "bf16", monkeypatch, accept=["intermediate:silu"])
    assert (with_it.verdict, with_it.causes, with_it.accepted) == ("verified", [], ["intermediate:silu"])
    assert with_it.same_bits > made.same_bits
    other = judged(planted.silu_stored, "swiglu", "bf16", monkeypatch, accept=["ftz"])
    assert other.verdict == "refuted"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_kernel_means_is_required_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right kernel is wrong by a model that rounds more than it does."""
    made = judged(lambda *args: get("swiglu")(*args), "swiglu", "bf16", monkeypatch, accept=["intermediate:silu"])
    assert made.verdict == "refuted"


def test_an_unknown_model_is_refused_with_the_accepted_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        tokitai.judge(planted.softmax, get("softmax"), dtype="f16", accept=["intermediate:silu"])
    assert "no arithmetic model named 'intermediate:silu'" in str(caught.value)
    assert "intermediate:e" in str(caught.value) and "ftz" in str(caught.value) and "tail" not in str(caught.value)
    words = ["judge", f"{Path(planted.__file__)}:softmax", "--op", "softmax", "--dtype", "f16", "--accept", "silu,ftz"]
    assert main(words) == 2 and "no arithmetic model named 'silu'" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_are_apart_from_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judged(planted.flushed, "softmax", "f16", monkeypatch)
    assert (made.verdict, made.accuracy, made.special_alone) == ("refuted", "verified", True)
    found = made.special["subnormals"]
    assert 0 < found.wrong < found.judged and found.cases == len(made.failures)
    assert made.special["no rows"].wrong == 0 < made.special["no rows"].judged
    assert {f.kinds for f in made.failures} == {("subnormals",)}
    meant = judged(planted.flushed, "softmax", "f16", monkeypatch, accept=["subnormals"])
    assert (meant.verdict, meant.accuracy) == ("verified", "verified")
    said = json.loads(json.dumps(made.as_json()))
    assert said["accuracy"] == "verified" and said["special_values"]["subnormals"]["wrong"] == found.wrong
    assert said["causes"][0]["models"] == ["ftz:f16"]


@pytest.mark.filterwarnings("error")
def test_explaining_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a factor is another one, elements and bounds may be infinite."""

    def scale(x: Any, *, factor: float) -> Any:
        with np.errstate(all="ignore"):
            return x * np.float32(0.37)

    monkeypatch.setattr(judgement, "trials", few)
    assert tokitai.judge(scale, get("scale"), dtype="f32", seed=3).verdict == "refuted"


def test_a_right_kernel_has_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judged(planted.softmax, "softmax", "f16", monkeypatch)
    assert (made.verdict, made.causes, made.special_alone) == ("verified", [], False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_explaining_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = judged(planted.sum_in_storage, "softmax", "f16", monkeypatch, explain_seconds=1e-9)
    assert made.causes and all(c.out_of_time and not c.models for c in made.causes)
    assert "the time to explain ended first" in str(made.causes[0])
    none = judged(planted.sum_in_storage, "softmax", "f16", monkeypatch, explain_seconds=0)
    assert none.verdict == "refuted" and none.causes == []


# ------------------------------------------------------------------ the models themselves
@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "swiglu", "layer_norm_backward", "gelu_erf", "linear"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_the_bits_of_every_model_are_within_its_bound(op: str, dtype: str) -> None:
    operator = get(op)
    given = frozenset(t.name for t in operator.tensors if t.optional and t.name not in ALONE)
    graph = operator.trace(dtype, given)
    case = next(t.case for t in trials(Ask(operator, dtype, given, {}, (), None, 3, "numpy"))
                if t.case.kind == "seeded" and t.case.shape[0] > 2)  # fmt: skip
    changed = 0
    for name, model in models(named(operator, graph)).items():
        other = model.change(named(operator, graph)).graph
        changed += str(other) != str(graph)
        where = (other, case.tensors, case.shape, case.params)
        bits, exact, limit = evaluate(*where), exactly(*where), limits(*where, noise=False)
        for o in graph.outputs:
            with np.errstate(all="ignore"):
                got = np.broadcast_to(bits[o.name], limit[o.name].shape).astype(np.float64)
                distance = np.abs(got - np.broadcast_to(exact[o.name], got.shape))
                sure = np.isfinite(limit[o.name]) & np.isfinite(got)
                assert (distance <= limit[o.name])[sure].all(), name
    assert changed > 5


def test_a_sum_in_a_narrow_format() -> None:
    x = np.array([[2048, 1, 1, 1, 1]], np.float32)
    assert narrow_sum(x, "f16", "chain", 1) == 2048 and narrow_sum(x, "f16", "pairs", 1) == 2052
    assert narrow_sum(x[:, :0], "f16", "chain", 1).shape == (1, 1)
    assert [float(cut(np.float32([v]), "bf16")[0]) for v in (1.0078124, -1.0078124, 1.0)] == [1.0, -1.0, 1.0]
    assert ModelBounds({}).height("chain", 9) == 8


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype", "result", "cause"), [
    ("torch_swiglu", "bf16", "y", "intermediate:silu"),
    ("torch_layer_norm_backward", "bf16", "dx", "without:slip, intermediate:f32-inputs"),
])  # fmt: skip
def test_torchs_kernels_are_explained(
    kernel: str, dtype: str, result: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import third_party

    def first(*given: Any) -> Any:
        made = getattr(third_party, kernel)(*given)
        return made if isinstance(made, third_party.torch.Tensor) else made[0]

    monkeypatch.setattr(judgement, "trials", few)
    made = tokitai.judge(first, get(third_party.JUDGED[kernel][0]), dtype=dtype, device="cpu", seed=0, results=[result])
    found = next(c for c in made.causes if c.of == "ordinary values")
    assert (found.result, ", ".join(found.models)) == (result, cause) and found.same_bits > 0.9
