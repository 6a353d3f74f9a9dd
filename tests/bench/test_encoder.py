"""`python -m bench.encoder`: torch computes the same model, and other bits than the CPU's are noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import encoder as bench
from examples.sentence_encoder import encoder as textbook
from examples.sentence_encoder import files
from examples.sentence_encoder import model as parameters
from examples.sentence_encoder.model import Model
from examples.sentence_encoder.operators import converted
from tests.examples.test_sentence_encoder import ROUNDINGS_A_LAYER, U64
from tokitai.errors import InputFileError


@pytest.fixture(scope="module")
def model() -> Model:
    """One layer of the model."""
    try:
        whole = parameters.load(files.locate())
    except InputFileError as missing:
        pytest.skip(str(missing))
    return replace(whole, layers=whole.layers[:1])


@pytest.fixture
def small(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "load", lambda _: model)


def test_torch_computes_the_textbook(model: Model) -> None:
    sentences, device = bench.drawn(4, 9, len(model.tokens)), torch.device("cpu")
    lengths = [len(ids) for ids in sentences]
    assert lengths[0] == max(lengths) == 9 and len(set(lengths)) > 1
    got = bench.theirs(converted(model, bench.placing(device)), sentences, device).numpy()
    assert np.abs(got - textbook.embed(model, sentences)).max() <= ROUNDINGS_A_LAYER * U64


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_figures_and_equality(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "encoder.jsonl"
    words = ["--device", "cpu", "--dtype", "bf16", "--batch", "3x5", "--repeats", "1", "--out", str(out)]
    assert bench.main(words) == 0 and "bf16 3x5 same bits as the CPU" in capsys.readouterr().out
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["equal"] and (record["sentences"], record["longest"]) == (3, 5)
    for who in ("tokitai", "torch"):
        ms, half = record["milliseconds"][who], 0.0005  # as it was rounded
        assert 3e3 / (ms + half) - 1 <= record["sentences_a_second"][who] <= 3e3 / (ms - half) + 1
    real = bench.placing

    def off(device: torch.device) -> Any:
        return lambda array: real(device)(-array if array.dtype.kind == "V" else array)

    monkeypatch.setattr(bench, "placing", off)
    assert bench.main(words) == 1 and "OTHER BITS" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "encoder.jsonl"
    assert bench.main(["--out", str(out)]) == 3 and not out.exists()
    assert capsys.readouterr().err == "error: device cuda:0: torch sees 0 CUDA devices\n"
