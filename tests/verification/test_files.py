"""The user's own tensors: read whole, rounded once, run, and refused with the name of the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tokitai import ops
from tokitai.errors import ArgumentError, InputFileError
from tokitai.lang import Cols, Matrix, operator, storage
from tokitai.verification import verify
from tokitai.verification.files import case_from_file
from tokitai.verification.verdict import Variant

X = np.linspace(-2, 2, 12).reshape(3, 4)
GAMMA = np.arange(4.0)


@operator
def affine(x: Matrix[storage], w: Cols[storage] | None, b: Cols[storage] | None) -> Any:
    y = x if w is None else x * w
    return y if b is None else y + b


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_npz_tensors_of_any_format_are_rounded_once(tmp_path: Path) -> None:
    hard = np.full((1, 4), 1 + 2.0**-8 + 2.0**-40)
    graph, case = case_from_file(ops.rms_norm, npz(tmp_path, x=hard, gamma=GAMMA, eps=0.25), "bf16")
    assert case.id == "yours/mine.npz@1x4#0" and case.params == dict(eps=0.25) and graph.dtype == "bf16"
    assert case.tensors["x"].view(np.uint16).tolist() == [[0x3F81] * 4], "f64 to bf16 in one rounding"
    _, exact = case_from_file(ops.rms_norm, npz(tmp_path, x=X.astype(np.float16)), "f16")
    assert exact.tensors["x"].tobytes() == X.astype(np.float16).tobytes()
    assert set(exact.tensors) == {"x"} and exact.params == dict(eps=1e-6)


def test_safetensors_with_scalars_in_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file({"x": X.astype(ml_dtypes.bfloat16), "gamma": GAMMA.astype(np.float32)}, path, metadata={"eps": "0.5"})
    _, case = case_from_file(ops.rms_norm, path, "bf16")
    assert case.params == dict(eps=0.5)
    assert case.tensors["x"].tobytes() == X.astype(ml_dtypes.bfloat16).tobytes()


def test_leading_dimensions_flatten_and_empty_tensors_keep_their_rows(tmp_path: Path) -> None:
    assert case_from_file(ops.softmax, npz(tmp_path, x=np.zeros((2, 3, 5))), "f16")[1].shape == (6, 5)
    assert case_from_file(ops.softmax, npz(tmp_path, x=np.zeros(5)), "f16")[1].shape == (1, 5)
    assert case_from_file(ops.softmax, npz(tmp_path, x=np.zeros((4, 0))), "f16")[1].shape == (4, 0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(gamma=GAMMA), r"holds gamma; accepted for rms_norm: x, gamma"),
        (dict(x=X, weight=GAMMA), r"holds weight, x; accepted for rms_norm: x, gamma"),
        (dict(), r"holds nothing; accepted for rms_norm: x, gamma"),
        (dict(x=X, gamma=GAMMA[:3]), r"gamma has shape \(3,\); accepted beside x: 4 elements"),
        (dict(x=np.float32(1)), r"x is a scalar; accepted: rows x cols"),
        (dict(x=np.zeros((2, 4), np.int32)), r"x has format int32; accepted: f16"),
        (dict(x=X, eps=np.array("small")), r"a scalar is no number"),
    ],
)
def test_files_that_do_not_hold_what_the_operator_takes(tmp_path: Path, arrays: Any, message: str) -> None:
    with pytest.raises(InputFileError, match=rf"^{re.escape(str(tmp_path / 'mine.npz'))}: {message}"):
        case_from_file(ops.rms_norm, npz(tmp_path, **arrays), "f16")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = npz(tmp_path, x=X).read_bytes()
    save_file({"x": X}, tmp_path / "whole.safetensors")
    tensors = (tmp_path / "whole.safetensors").read_bytes()
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], object))
    save_file({"x": np.zeros((2, 2), np.uint8)}, tmp_path / "bytes.safetensors")
    save_file({"x": X}, tmp_path / "word.safetensors", metadata={"eps": "tiny"})
    for path, message in [
        (tmp_path / "absent.npz", "no such file; accepted: .npz or .safetensors"),
        (tmp_path, "a folder; accepted: .npz or .safetensors"),
        (write(tmp_path / "short.npz", whole[:-30]), "cannot be read, perhaps truncated"),
        (write(tmp_path / "cut.npz", whole[:100]), "cannot be read, perhaps truncated"),
        (write(tmp_path / "empty.npz", b""), "cannot be read, perhaps truncated"),
        (write(tmp_path / "short.safetensors", tensors[:-8]), "not a whole safetensors file"),
        (write(tmp_path / "empty.safetensors", b""), "not a whole safetensors file"),
        (write(tmp_path / "x.pt", b"?"), r"suffix '\.pt'; accepted: \.npz, \.safetensors"),
        (tmp_path / "pickled.npz", "cannot be read"),
        (tmp_path / "bytes.safetensors", "x has format U8; accepted: F16, BF16"),
        (tmp_path / "word.safetensors", "a scalar is no number: could not convert string to float: 'tiny'"),
    ]:
        with pytest.raises(InputFileError, match=message) as caught:
            case_from_file(ops.rms_norm, path, "f16")
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.slow
def test_verify_runs_the_users_tensors(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X * 1e30, gamma=GAMMA)
    verdict = verify(ops.rms_norm, dtype="bf16", inputs=path, case="yours/mine.npz@3x4#0")
    assert verdict.verdict == "verified" and verdict.evidence == ["yours"]
    (result,) = verdict.results
    assert result.shape == (3, 4) and set(result.inputs) == {"x", "gamma"}


def test_tensors_for_a_variant_of_their_own_are_run_not_skipped(tmp_path: Path) -> None:
    """w without b is neither all optional tensors nor none."""
    path = npz(tmp_path, x=X, w=GAMMA)
    verdict = verify(affine, dtype="f32", inputs=path, case="yours/mine.npz@3x4#0")
    assert [r.kind for r in verdict.results] == ["yours"] and verdict.verdict == "verified"
    with pytest.raises(ArgumentError, match=r"mine\.npz: holds w; accepted beside this variant: no optional tensor"):
        verify(affine, dtype="f32", inputs=path, variant=Variant(frozenset()))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_numbers_of_either_byte_order(tmp_path: Path, order: str, kind: str, dtype: str) -> None:
    x = np.random.default_rng(26).standard_normal((3, 7)).astype(kind)
    cases = []
    for name, values in (("given", x.astype(f"{order}{kind}")), ("native", x)):
        np.savez(tmp_path / f"{name}.npz", x=values, eps=np.array(0.25, f"{order}f8"))
        cases.append(case_from_file(ops.rms_norm, tmp_path / f"{name}.npz", dtype)[1])
    given, native = cases
    assert given.tensors["x"].dtype == native.tensors["x"].dtype and given.params["eps"] == 0.25
    assert given.tensors["x"].tobytes() == native.tensors["x"].tobytes()


@pytest.mark.parametrize("kind", ["<i4", ">i4", "<i8", ">i8", "<u4", ">u4"])
def test_indices_of_either_byte_order(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "a.npz", logits=np.ones((2, 5), ">f4"), target=np.array([1, 4], kind))
    case = case_from_file(ops.cross_entropy, tmp_path / "a.npz", "f32")[1]
    assert case.tensors["target"].tolist() == [1, 4]


ONE, LIMIT = np.ones((1, 2)), np.ones(1, np.int32)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (dict(x=ONE.astype(np.longdouble), limit=LIMIT), "x has format float128"),
        (dict(x=ONE.astype(bool), limit=LIMIT), "x has format bool; accepted: f16"),
        (dict(x=ONE.astype(complex), limit=LIMIT), "x has format complex128"),
        (dict(x=ONE, limit=np.zeros(1)), "limit has format float64; accepted: i32, i64, u32"),
        (dict(x=ONE, limit=LIMIT.astype(np.int16)), "limit has format int16; accepted: i32"),
        (dict(x=ONE, limit=np.array([2**40])), "limit holds 1099511627776; accepted: what i32 holds"),
        (dict(x=ONE, limit=np.array([-(2**31) - 1])), "limit holds -2147483649; accepted"),
    ],
)
def test_formats_that_are_not_taken_are_named(tmp_path: Path, tensors: Any, says: str) -> None:
    with pytest.raises(InputFileError, match=says):
        case_from_file(ops.masked_softmax, npz(tmp_path, **tensors), "f32")
