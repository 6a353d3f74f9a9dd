"""The parameters of the encoder, widened exactly from the file's float32 to float64."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from tokitai.errors import InputFileError

from .files import ModelFiles

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b."""

    weight: Array  # outputs x inputs
    bias: Array  # outputs


@dataclass(frozen=True)
class LayerNorm:
    gamma: Array  # hidden
    beta: Array  # hidden
    eps: float


@dataclass(frozen=True)
class Layer:
    """One transformer layer: attention, then a network with one inner layer; each is added to its input and normed."""

    heads: int
    query: Linear
    key: Linear
    value: Linear
    mix: Linear  # hidden x hidden, after the heads
    attention_norm: LayerNorm
    expand: Linear  # inner x hidden
    contract: Linear  # hidden x inner
    output_norm: LayerNorm


@dataclass(frozen=True)
class Model:
    tokens: Array  # vocabulary x hidden
    positions: Array  # longest sentence x hidden
    segment: Array  # hidden; a sentence on its own is segment 0
    norm: LayerNorm
    layers: tuple[Layer, ...]


def load(files: ModelFiles) -> Model:
    """Reads the model. Raises InputFileError where a file is not what this encoder computes."""
    config = json.loads(files.config.read_text(encoding="utf-8"))
    for key, accepted in (("model_type", "bert"), ("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(key) != accepted:
            raise InputFileError(f"{files.config}: {key} is {config.get(key)!r}; this encoder computes {accepted!r}")
    try:
        tensors = load_file(files.weights)
    except SafetensorError as error:
        raise InputFileError(f"{files.weights} is not a whole .safetensors file: {error}") from error
    return _Reader(tensors, config, str(files.weights)).model()


class _Reader:
    """Gives the file's tensor names their place in the model."""

    def __init__(self, tensors: dict[str, NDArray[Any]], config: dict[str, Any], source: str) -> None:
        self.tensors, self.config, self.source = tensors, config, source

    def tensor(self, name: str) -> Array:
        if name not in self.tensors:
            raise InputFileError(f"{self.source} holds no tensor {name!r}, which a BERT encoder has")
        return self.tensors[name].astype(np.float64)

    def linear(self, name: str) -> Linear:
        return Linear(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"), self.config["layer_norm_eps"])

    def layer(self, number: int) -> Layer:
        at = f"encoder.layer.{number}"
        return Layer(
            heads=self.config["num_attention_heads"],
            query=self.linear(f"{at}.attention.self.query"),
            key=self.linear(f"{at}.attention.self.key"),
            value=self.linear(f"{at}.attention.self.value"),
            mix=self.linear(f"{at}.attention.output.dense"),
            attention_norm=self.norm(f"{at}.attention.output.LayerNorm"),
            expand=self.linear(f"{at}.intermediate.dense"),
            contract=self.linear(f"{at}.output.dense"),
            output_norm=self.norm(f"{at}.output.LayerNorm"),
        )

    def model(self) -> Model:
        return Model(
            tokens=self.tensor("embeddings.word_embeddings.weight"),
            positions=self.tensor("embeddings.position_embeddings.weight"),
            segment=self.tensor("embeddings.token_type_embeddings.weight")[0],
            norm=self.norm("embeddings.LayerNorm"),
            layers=tuple(self.layer(number) for number in range(self.config["num_hidden_layers"])),
        )
