"""Third-party kernels: right ones pass in whatever order they sum, wrong ones of every kind are refuted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokitai
from tokitai.errors import ArgumentError, UnknownNameError, UsageError
from tokitai.judging import Judgement
from tokitai.lang import Matrix, Outputs, operator, outputs, storage
from tokitai.ops import get, registry


@operator
def doubled(x: Matrix[storage]) -> Outputs:
    """y = 2 x."""
    return outputs(y=x + x)


KERNELS = Path(__file__).parent / "kernels.py"


def judged(name: str, op: str, dtype: str = "f16", **how: Any) -> Judgement:
    return tokitai.judge((KERNELS, name), get(op), dtype=dtype, **{"seed": 0, "explain_seconds": 0, **how})


def wrong(made: Judgement) -> str:
    return "\n".join(f"{f.case}: {f.what} {f.where}" for f in made.failures)


# ------------------------------------------------------------------ right kernels
QUICK = ("embedding_backward", "clip_global_norm")


@pytest.mark.parametrize("op", [
    pytest.param(o, marks=() if o in QUICK else pytest.mark.slow) for o in registry()
])  # fmt: skip
def test_an_operators_own_kernel_has_the_definitions_bits(op: str) -> None:
    operator = get(op)
    dtype = operator.contract.formats[len(op) % len(operator.contract.formats)]
    made = tokitai.judge(lambda *args, **named: operator(*args, **named), operator, dtype=dtype, seed=len(op))
    assert (made.verdict, made.same_bits, wrong(made)) == ("verified", made.cases, "")
    assert made.cases >= 20 and made.judged > 0 and set(made.not_shown) <= {"seed", "dropped"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("name", "op"), [("layer_norm", "layer_norm"), ("softmax", "softmax")])
def test_another_order_of_summation_passes(name: str, op: str, dtype: str) -> None:
    made = judged(name, op, dtype)
    assert made.verdict == "verified", wrong(made)
    assert made.cases > 40 and made.same_bits < made.cases and 0 < made.share <= 1
    assert made.judged > 0.9 * made.compared and made.calls > 3 * made.cases and made.not_shown == []
    assert made.notes["called again"] == "the same bits"
    assert made.notes["views"] == "read rightly"


@pytest.mark.slow
def test_some_results_alone_are_judged_where_that_is_said() -> None:
    made = judged("layer_norm_alone", "layer_norm", results=["y"])
    assert made.verdict == "verified" and made.notes["not judged"] == "mean, rstd: left out"
    made = judged("layer_norm_alone", "layer_norm")
    assert made.verdict == "refuted" and made.failures[0].what == "returned 1 array; accepted: 3, for y, mean, rstd"


@pytest.mark.slow
def test_what_is_good_to_know_is_no_fault() -> None:
    made = judged("refuses_views", "softmax")
    assert made.verdict == "verified"
    assert made.notes["views"].startswith("refused (rows apart, ") and ": raised " in made.notes["views"]
    made = judged("depends_on_batch", "softmax", "f32")
    assert made.verdict == "verified" and made.notes["rows in two batches"].startswith("other bits: y of ")


@pytest.mark.slow
def test_torchs_kernels(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        "import torch\n"
        "def softmax(x):\n    return torch.softmax(x, -1)\n"
        "def gelu(x):\n    return torch.nn.functional.gelu(x)\n"
        "def aten_out(x):\n    return torch.softmax(x.float(), -1)\n"
    )
    for dtype in ("f16", "bf16", "f32"):
        made = tokitai.judge((file, "softmax"), get("softmax"), dtype=dtype, device="cpu", seed=0)
        assert made.verdict == "verified" and made.judged > 0, wrong(made)
    made = tokitai.judge(
        (file, "gelu"), get("gelu_erf"), dtype="f16", device="cpu", explain_seconds=0
    )  # 1 + erf(x) cancels
    assert made.verdict == "refuted" and "the rounding-error bound is" in wrong(made)
    made = tokitai.judge((file, "aten_out"), get("softmax"), dtype="bf16", device="cpu")
    assert {f.what for f in made.failures} == {"y: an array of float32; accepted: bf16"}


# ------------------------------------------------------------------ wrong kernels
@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "dtype", "says"), [
    ("one_pass", "layer_norm", "f32", "hard/noise shifted by 2000@1x4#0: y["),
    ("eps_outside", "layer_norm", "f32", "rstd["),
    ("swapped", "layer_norm", "f16", "seeded/normal@1x1#0: y[0,0] is "),
    ("rounded_between", "layer_norm", "f16", "y["),
    ("softmax_without_maximum", "softmax", "f32", "y[0,0] is 0xffc00000 (nan); the definition gives 0x3f800000 (1)"),
    ("half_accumulator", "softmax", "f16", "the rounding-error bound is"),
    ("without_tail", "softmax", "f16", "5 of 1285 elements, all in column 256"),
    ("last_row_missing", "softmax", "f16", "of 1285 elements, all in row 4"),
    ("contiguous_only", "softmax", "f16", "given views (rows apart): y["),
    ("changes_input", "softmax", "f16", "changed its input x, at [0,0]"),
    ("wider", "softmax", "f16", "y: an array of float32; accepted: f16"),
    ("flattened", "softmax", "f16", "y: shape (1285,); accepted: (5, 257)"),
    ("raises", "softmax", "f16", "kernels.py:"),
    ("raises", "softmax", "f16", "ValueError: too many columns"),
    ("crashes", "softmax", "f16", "seeded/normal@5x257#0: took its process down: the worker process was ended by SIG"),
    pytest.param("leaves", "softmax", "f16", "took its process down: ", marks=pytest.mark.slow),
    ("nothing", "softmax", "f16", "returned 0 arrays; accepted: 1, for y"),
    ("text", "softmax", "f16", "y: returned str; accepted: an array"),
])  # fmt: skip
def test_a_wrong_kernel_is_refuted(name: str, op: str, dtype: str, says: str) -> None:
    made = judged(name, op, dtype)
    assert made.verdict == "refuted" and made.exit_code == 1
    assert says in wrong(made)
    works = [f.work for f in made.failures]
    assert works == sorted(works)  # the smallest first


def test_a_call_that_does_not_end_leaves_it_undecided() -> None:
    made = judged("hangs", "softmax", seconds=0.5)
    assert made.verdict == "undecided" and made.exit_code == 3 and made.undecided is not None
    assert "no answer before the deadline" in made.undecided
    made = judged("prints_and_hangs", "softmax", seconds=0.5)
    assert made.verdict == "undecided" and made.undecided is not None and "\x1b" not in made.undecided


def test_in_place_results_are_what_the_input_becomes() -> None:
    def unclipped(grad: np.ndarray[Any, Any], *, max_norm: float) -> Any:
        return np.float32(np.sqrt((grad.astype(np.float64) ** 2).sum()))

    made = tokitai.judge(unclipped, get("clip_global_norm"), dtype="f32", seed=0, explain_seconds=0)
    assert made.verdict == "refuted" and "grad[0," in wrong(made)


@pytest.mark.slow
def test_a_failure_is_replayed_by_its_case() -> None:
    made = judged("without_tail", "softmax")
    again = judged("without_tail", "softmax", case=made.failures[0].case)
    assert again.cases == 1 and [f.what for f in again.failures] == [made.failures[0].what]


def test_a_shape_of_ones_own_is_tried() -> None:
    only_there = "seeded/normal@7x1234#3"
    made = judged("softmax", "softmax", shape={"rows": 7, "cols": 1234}, seed=3, case=only_there)
    assert made.cases == 1 and made.verdict == "verified" and made.compared == 7 * 1234


@pytest.mark.slow
def test_json_has_the_documented_keys() -> None:
    made = judged("without_tail", "softmax").as_json()
    assert list(made) == [
        "operator", "kernel", "dtype", "device", "shape", "seed", "verdict", "accuracy", "special_values",
        "accepted", "evidence", "shapes", "cases", "calls",
        "same_bits", "elements", "elements_judged", "max_ulp_error", "max_ulp_error_of_row", "share_of_allowance",
        "failures", "causes", "adequacy", "notes", "not_shown", "containment", "undecided", "seconds",
    ]  # fmt: skip
    assert made["evidence"] == ["hard", "seeded", "exact"] and made["seed"] == 0
    assert list(made["failures"][0]) == ["case", "what", "where", "kinds"]
    json.dumps({**made, "max_ulp_error": 0, "max_ulp_error_of_row": 0, "share_of_allowance": 0})


# ------------------------------------------------------------------ wrong usage
@pytest.mark.parametrize(("how", "error", "says"), [
    ({"dtype": "f64"}, ArgumentError, "accepted: f16, bf16, f32"),
    ({"device": "gpu"}, ArgumentError, "device='gpu'; accepted: numpy"),
    ({"device": "cpu:1"}, ArgumentError, "device='cpu:1'"),
    ({"shape": {"rows": 1 << 20, "cols": 1 << 20}}, ArgumentError, "elements of work; accepted: at most"),
    ({"seed": -1}, ArgumentError, "seed=-1; accepted: a whole number of at least 0"),
    ({"total_seconds": 0}, ArgumentError, "total_seconds=0; accepted: a number of seconds above 0"),
    ({"case": "hard/none"}, UsageError, "no case 'hard/none'"),
    ({"results": ["z"]}, UnknownNameError, "no result of softmax named 'z'"),
    ({"device": "cpu"}, UsageError, "does not import torch"),
])  # fmt: skip
def test_wrong_arguments(how: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says.replace("(", r"\(")):
        judged("softmax", "softmax", **how)


@pytest.mark.parametrize(("text", "says"), [
    ("def other(x): return x", "no function 'softmax'; accepted: other"),
    ("def softmax(x, y): return x", r"softmax is called as \(x\): missing a required argument: 'y'"),
    ("softmax = 3", "no function 'softmax'"),
    ("\n1 / 0", r"theirs.py:2: ZeroDivisionError"),
    ("def softmax(x:", r"theirs.py:1: "),
    ("raise SystemExit(4)", r"theirs.py:1: SystemExit: 4"),
])  # fmt: skip
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "theirs.py").write_text(text)
    with pytest.raises(UsageError, match=says):
        tokitai.judge((tmp_path / "theirs.py", "softmax"), get("softmax"))


@pytest.mark.parametrize(("file", "says"), [("none.py", "no such file"), ("theirs.txt", "suffix '.txt'")])
def test_a_file_that_is_none(tmp_path: Path, file: str, says: str) -> None:
    (tmp_path / "theirs.txt").write_text("x")
    with pytest.raises(UsageError, match=says):
        tokitai.judge((tmp_path / file, "softmax"), get("softmax"))
    with pytest.raises(ArgumentError, match="accepted: a function, or a file"):
        tokitai.judge("softmax", get("softmax"))  # type: ignore[arg-type]


def test_an_operator_of_ones_own_judges_as_well() -> None:
    made = tokitai.judge(lambda x: x * x.dtype.type(2), doubled, dtype="f16", seed=0)
    assert made.verdict == "verified" and made.same_bits >= made.cases - 3  # another NaN
    made = tokitai.judge(lambda x: x + x.dtype.type(2), doubled, dtype="f16", explain_seconds=0)
    assert made.verdict == "refuted"
