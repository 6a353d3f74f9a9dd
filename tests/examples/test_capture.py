"""The captured files of the sentence encoder, against what they claim to hold. Slow where the whole page is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from examples.sentence_encoder import capture as capturing
from examples.sentence_encoder import encoder, files
from examples.sentence_encoder import model as parameters
from examples.sentence_encoder.model import Array, Model
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.ops import registry
from tokitai.verification.files import case_from_file
from tools import small_model

U32 = 2.0**-24  # unit roundoff

SITES = ("layer0.attention", "layer5.output")
NAMES = {f"{kind}_norm{way}.{site}" for kind in ("layer", "rms") for way in ("", "_backward") for site in SITES}
NAMES |= {f"gelu_{form}{way}.layer5" for form in ("erf", "tanh") for way in ("", "_backward")}
NAMES |= {f"{kind}softmax{way}.{layer}.attention" for layer in ("layer0", "layer5") for way in ("", "_backward")
          for kind in ("", "masked_")}  # fmt: skip
NAMES |= {f"embedding{way}.{table}" for table in ("tokens", "positions") for way in ("", "_backward")}
LINEARS = {f"linear{kind}" for kind in ("", "_backward_input", "_backward_weight", "_backward_bias")}
LINEARS |= {"linear_accumulate_weight"}
PRODUCTS = {f"{kind}.{site}" for kind in LINEARS for site in ("layer0.mix", "layer5.contract")}
PRODUCTS |= {f"matmul{way}.{layer}.attention" for layer in ("layer0", "layer5") for way in ("", "_backward_left",
             "_backward_right")}  # fmt: skip
PRODUCTS |= {f"attention{way}.{layer}.attention" for layer in ("layer0", "layer5") for way in ("", "_backward")}
TENSORS = {
    "layer_norm": {"x", "gamma", "beta"}, "layer_norm_backward": {"dy", "x", "gamma", "mean", "rstd"},
    "rms_norm": {"x", "gamma"}, "rms_norm_backward": {"dy", "x", "gamma", "rstd"},
    "gelu_erf": {"x"}, "gelu_erf_backward": {"dy", "x"}, "gelu_tanh": {"x"}, "gelu_tanh_backward": {"dy", "x"},
    "softmax": {"x"}, "softmax_backward": {"dy", "y"},
    "masked_softmax": {"x", "limit"}, "masked_softmax_backward": {"dy", "y", "limit"},
    "embedding": {"table", "ids"}, "embedding_backward": {"dy", "ids", "dtable"},
}  # fmt: skip
MAIN = {"softmax_backward": "y", "masked_softmax_backward": "y", "embedding": "table", "embedding_backward": "dtable"}


@pytest.fixture(scope="module")
def captured(found: files.ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return capturing.capture(tmp_path_factory.mktemp("captured") / "made" / "on the way")


def read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def at(captured: list[Path], name: str) -> dict[str, Array]:
    """A file's tensors, widened."""
    tensors, _ = read(next(path for path in captured if path.stem == name))
    return {key: tensor.astype(np.float64) for key, tensor in tensors.items()}


def test_the_page_is_a_batch_of_sentences() -> None:
    assert 16 <= len(capturing.sentences()) <= 32
    assert all(sentence.endswith(".") and "\n\n" not in sentence for sentence in capturing.sentences())


@pytest.mark.slow
def test_each_file_holds_what_its_operator_takes(captured: list[Path]) -> None:
    assert {path.stem for path in captured} == NAMES | PRODUCTS and len(captured) == len(NAMES | PRODUCTS)
    for path in captured:
        if path.stem in PRODUCTS:
            continue
        tensors, metadata = read(path)
        operator, _, place = path.stem.partition(".")
        assert metadata["operator"] == operator and metadata["site"].startswith(place)
        assert metadata.get("eps") == ("1e-12" if operator in ("layer_norm", "rms_norm") else None)
        assert tensors.keys() == TENSORS[operator]
        assert path.stat().st_size < 4 * 2**20
        main = MAIN.get(operator, "x")
        limit = tensors.pop("limit", np.full(len(tensors[main]), tensors[main].shape[1]))
        assert limit.dtype == np.int64 and ((limit > 0) & (limit <= tensors[main].shape[1])).all()
        ids = tensors.pop("ids", np.arange(len(tensors[main])))
        rows, cols = len(ids), tensors[main].shape[1]
        assert ids.dtype == np.int64 and ids.min() == 0 and ids.max() < len(tensors[main])
        assert metadata["rows"].split(" of ")[0] == str(rows) and rows >= 300
        for name, tensor in tensors.items():
            shape = {"gamma": (cols,), "beta": (cols,), "mean": (rows,), "rstd": (rows,)}.get(name, (rows, cols))
            assert tensor.dtype == np.float32 and (tensor.shape == shape or name == main)
            assert np.isfinite(tensor).all() and len(np.unique(tensor)) > 0.5 * min(tensor.size, 384)


@pytest.mark.slow
def test_products_have_real_operands(captured: list[Path], model: Model) -> None:
    """Of one size along each side, each other's, and of the weights that the file of the model holds."""
    for name in PRODUCTS:
        path = next(path for path in captured if path.stem == name)
        tensors, metadata = read(path)
        operator, _, place = name.partition(".")
        assert metadata["operator"] == operator and metadata["site"].startswith(place)
        assert path.stat().st_size < 4 * 2**20
        names = {t.name for t in registry()[operator].tensors}
        assert tensors.keys() == names  # optional ones as well
        for tensor in tensors.values():
            whole = tensor.dtype.kind == "i"
            assert tensor.dtype == (np.int64 if whole else np.float32) and np.isfinite(tensor).all()
            assert len(np.unique(tensor)) > (1 if whole else 0.5 * min(tensor.size, 384))
        assert case_from_file(registry()[operator], path, "f16")[1].kind == "yours"  # the sides fit
    part = model.layers[5].contract
    linear, weight = at(captured, "linear.layer5.contract"), at(captured, "linear_accumulate_weight.layer5.contract")
    assert len(linear["x"]) == len(weight["dy"]) == capturing.PRODUCT_ROWS
    assert np.array_equal(linear["weight"], part.weight) and np.array_equal(linear["bias"], part.bias)
    # What the layer adds up is what the norm after it was given.
    norm = at(captured, "layer_norm.layer5.output")["x"][: len(linear["x"])]
    summed = linear["x"] @ part.weight.T + part.bias + linear["residual"]
    off = U32 * (np.abs(linear["x"]) @ np.abs(part.weight).T + np.abs(linear["residual"]) + np.abs(norm))
    assert (np.abs(summed - norm) <= 2 * off).all()
    a, b = (at(captured, "matmul.layer0.attention")[name] for name in "ab")
    assert a.shape == (12, b.shape[1], b.shape[1]) and (np.abs(a.sum(axis=2) - 1) <= 2 * U32).all()


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    rows = {"x": np.arange(6.0).reshape(2, 3)}
    inputs = capturing.Inputs("layer_norm", "here", "here", rows, {"gamma": np.ones(3)}, {"eps": 1e-12})
    (written,) = {inputs.write(tmp_path).read_bytes() for _ in range(20)}  # unsorted, one of 24 orders each time
    assert int.from_bytes(written[:8], "little") % 8 == 0
    assert np.array_equal(at([tmp_path / "layer_norm.here.safetensors"], "layer_norm.here")["x"], rows["x"])


def test_a_long_capture_keeps_its_leading_rows_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "LARGEST_FILE", 4 * 2 * 3 * 2 + 1)  # two rows of two tensors of 3 columns
    x = np.arange(12.0).reshape(4, 3)
    tensors, metadata = read(capturing.Inputs("gelu_erf_backward", "p", "p", {"dy": -x, "x": x}).write(tmp_path))
    assert metadata["rows"] == "2 of 4"
    assert np.array_equal(tensors["x"], x[:2]) and np.array_equal(tensors["dy"], -x[:2])


@pytest.mark.slow
def test_the_last_layer_norm_gives_the_embedding(captured: list[Path], model: Model, tokenizer: Tokenizer) -> None:
    """From the file of the last norm, the rows of the first sentence are normed and pooled: its embedding again.

    x, gamma and beta are each off by a factor 1 + U32. With X the largest |x| of a row: x - mean is off by at most
    2 U32 X; rstd, relatively, by U32 X rstd; so y by U32 (3 |gamma| rstd X max(1, |x^|) + |gamma x^| + |beta|). Pooling
    averages that, divides by the mean's length, and the normalisation at most doubles it.
    """
    file, ids = at(captured, "layer_norm.layer5.output"), tokenizer.encode(capturing.sentences()[0])
    x, gamma, beta = file["x"][: len(ids)], np.abs(file["gamma"]), np.abs(file["beta"])
    norm = parameters.LayerNorm(file["gamma"], file["beta"], 1e-12)
    y = encoder.layer_norm(x, norm)
    mean, rstd = encoder.moments(x, norm.eps)
    normed = np.abs(x - mean[:, None]) * rstd[:, None]
    reach = (np.abs(x).max(axis=1) * rstd)[:, None]
    error = U32 * (3 * gamma * reach * np.maximum(1, normed) + gamma * normed + beta)
    bound = 2 * np.linalg.norm(error.mean(axis=0)) / np.linalg.norm(y.mean(axis=0))
    assert bound < 1e-4
    assert np.linalg.norm(encoder.pool(y) - encoder.embed(model, [ids])[0]) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_the_statistics_belong_to_the_rows(captured: list[Path], site: str) -> None:
    """First-order bounds for inputs that were rounded once, as above; twice as much for the second order."""
    file = at(captured, f"layer_norm_backward.{site}")
    mean, rstd = encoder.moments(file["x"], 1e-12)
    reach = np.abs(file["x"]).max(axis=1)
    assert (np.abs(file["mean"] - mean) <= 2 * U32 * (reach + np.abs(mean))).all()
    assert (np.abs(file["rstd"] / rstd - 1) <= 2 * U32 * (1 + reach * rstd)).all()
    file = at(captured, f"rms_norm_backward.{site}")
    root = np.sqrt(np.square(file["x"]).mean(axis=1) + 1e-12)
    assert (np.abs(file["rstd"] * root - 1) <= 2 * 2 * U32).all()


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["layer0", "layer5"])
def test_the_softmax_files_belong_together(captured: list[Path], layer: str) -> None:
    """A score that is off by U32 |x| moves a weight by that factor, its row's sum by the largest; y is rounded once."""
    x, y = at(captured, f"softmax.{layer}.attention")["x"], at(captured, f"softmax_backward.{layer}.attention")["y"]
    weights = encoder.softmax(x)
    assert (np.abs(y - weights) <= 2 * U32 * (1 + 2 * np.abs(x).max(axis=1, keepdims=True)) * weights).all()
    padded = at(captured, f"masked_softmax_backward.{layer}.attention")["y"]
    limit = at(captured, f"masked_softmax.{layer}.attention")["limit"]
    assert len(np.unique(limit)) > 1 and limit.max() == padded.shape[1]
    assert np.array_equal((padded > 0).sum(axis=1), limit)


@pytest.mark.slow
def test_a_smaller_vocabulary_changes_no_result(found: files.ModelFiles, model: Model, tmp_path: Path) -> None:
    text = "Half the energy is lost."
    made = small_model.write(found, tmp_path, [*capturing.sentences(), text])
    small, words = parameters.load(made), Tokenizer.load(made.vocabulary)
    assert made.weights.parents[1].name == files.MODULE and made.weights.stat().st_size < 60_000_000
    assert len(small.tokens) == len(words.vocabulary) < len(model.tokens)
    ids, whole = words.encode(text), Tokenizer.load(found.vocabulary).encode(text)
    assert ids != whole
    assert encoder.embed(small, [ids]).tobytes() == encoder.embed(model, [whole]).tobytes()
    half = parameters.load(small_model.write(found, tmp_path, [text], half=True))
    assert np.array_equal(half.layers[5].mix.weight, model.layers[5].mix.weight.astype(np.float16).astype(np.float64))
