"""The sentence encoder on arrays of a device: the same bits as on the CPU. The simulated device goes the way of a GPU,
all but the driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from examples.sentence_encoder import __main__ as command
from examples.sentence_encoder import files
from examples.sentence_encoder.model import Model
from examples.sentence_encoder.operators import Encoder, placing, read_back
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.arrays.device_array import DeviceArray
from tokitai.backends.cuda import driver as cuda_driver

FORMATS = ("f32", "f16", "bf16")
SHORT = ("Tides rise.", "Low water falls slowly.")
TEXTS = (*SHORT, "", "Water facing the Moon is drawn towards it more strongly than the Earth as a whole.", "Yes!")


def encoded(model: Model, tokenizer: Tokenizer, dtype: str, device: str, texts: tuple[str, ...]) -> tuple[Any, Any]:
    """The vectors, the first of them beside all; and the cosines of each two."""
    encoder = Encoder(model, dtype, placing(device), check=device == "cpu")
    sentences = [tokenizer.encode(text) for text in texts]
    vectors, alone = encoder.embed(sentences), encoder.embed(sentences[:1])
    assert device == "cpu" or isinstance(vectors, DeviceArray)
    assert read_back(alone).tobytes() == read_back(vectors[:1]).tobytes()
    return read_back(vectors), read_back(encoder.similarities(vectors, vectors))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_one_layer_has_the_same_bits_on_the_simulated_device(model: Model, tokenizer: Tokenizer, dtype: str) -> None:
    short = replace(model, layers=model.layers[:1])
    (want, cosines), (got, theirs) = (encoded(short, tokenizer, dtype, d, SHORT) for d in ("cpu", "sim"))
    assert got.shape == want.shape == (len(SHORT), 384) and np.isfinite(want.astype(np.float32)).all()
    assert got.tobytes() == want.tobytes() and theirs.tobytes() == cosines.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_model_has_the_same_bits_on_a_gpu(model: Model, tokenizer: Tokenizer, dtype: str) -> None:
    (want, cosines), (got, theirs) = (encoded(model, tokenizer, dtype, d, TEXTS) for d in ("cpu", "cuda:0"))
    assert got.shape == want.shape == (len(TEXTS), 384)
    assert got.tobytes() == want.tobytes() and theirs.tobytes() == cosines.tobytes()


@pytest.mark.slow
def test_everything_is_placed_once_and_only_the_result_is_read_back(
    model: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the device for a batch are its ids, positions, lengths, shares and a row of zeros."""
    place, placed = placing("sim"), []
    real = DeviceArray.numpy
    read: list[DeviceArray] = []
    monkeypatch.setattr(DeviceArray, "numpy", lambda self: (read.append(self), real(self))[1])
    encoder = Encoder(replace(model, layers=()), "f16", lambda a: (placed.append(a.nbytes), place(a))[1])
    weights = len(placed)
    assert weights == 5 and sum(placed) == 2 * sum(np.size(a) for a in _arrays(model))
    vectors = encoder.embed([tokenizer.encode(text) for text in SHORT])
    assert len(placed) == weights + 5 and not read
    read_back(encoder.similarities(vectors[:1], vectors[1:]))
    assert len(placed) == weights + 5 and [a.shape for a in read] == [(1, 1)]


def _arrays(model: Model) -> tuple[Any, ...]:
    return model.tokens, model.positions, model.segment, model.norm.gamma, model.norm.beta


# --- the command
Printed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sentence_encoder", *words])
        code = command.main()
        return (code, *capsys.readouterr())

    return run


@pytest.mark.slow
def test_the_command_takes_a_device(
    found: files.ModelFiles, model: Model, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    short = replace(model, layers=model.layers[:1])
    monkeypatch.setattr(command.parameters, "load", cache(lambda _: short))
    on_the_cpu = printed(*SHORT)
    assert on_the_cpu[0] == 0 and printed("--device", "sim", *SHORT) == on_the_cpu


def test_a_missing_gpu_is_said(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setattr(cuda_driver, "bindings", lambda: Driverless())
    code, out, err = printed("--device", "cuda:77", *SHORT)
    assert (code, out) == (3, "") and err == (
        "error: device cuda:77: there is no NVIDIA driver here (libcuda.so.1 is not there): install it\n"
    )


class Driverless:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("libcuda.so.1 is not there")


def test_a_wrong_device_is_said(printed: Printed) -> None:
    code, out, err = printed("--device", "hip", *SHORT)
    assert (code, out) == (2, "") and "'hip'" in err and "cuda:N" in err and "sim" in err
    code, out, err = printed("--device", "cuda", "--textbook", *SHORT)
    assert (code, out) == (2, "") and err.startswith("error: --device cuda beside --textbook")
