"""From token ids to embeddings on tokitai's operators alone, in f16, bf16 or f32.

A batch of sentences is padded to its longest: `batch x tokens x hidden`. Between the operators arrays are reshaped,
transposed and handed on, and nothing else. What is padded is masked wherever tokens meet: the attention does not look
at it, and in the mean it enters the sum as 0 x. That changes no sum but one that is -0 and may become +0; as +0 is
added in the end, it is +0 then, and a sentence's vector has the same bits in every batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tokitai import ops
from tokitai.arrays.device_array import DeviceArray, device_named
from tokitai.errors import ArgumentError
from tokitai.formats import format_of
from tokitai.lang import (
    Cols,
    Contract,
    HardInput,
    Index,
    Matrix,
    Operator,
    Outputs,
    Rows,
    Table,
    gather,
    i64,
    operator,
    outputs,
    storage,
)

from ..operators.l2_normalize import l2_normalize
from .encoder import check_ids
from .model import Array, Layer, Linear, Model

T = TypeVar("T")


@operator(contract=Contract(domain=ops.layer_norm.contract.domain, indices={"ids": Index(entries=True)}))
def embedding_norm(
    words: Table[storage], ids: Rows[i64], position: Matrix[storage], segment: Cols[storage],
    gamma: Cols[storage], beta: Cols[storage], *, eps: float = 1e-12,
) -> Outputs:  # fmt: skip
    """y = layer_norm(words[ids] + position + segment): what each token is, where it stands and to which part it
    belongs, summed in f32 and rounded once, after the norm."""
    x = gather(words, ids) + position + segment
    return outputs(y=ops.layer_norm.definition(x, gamma, beta, eps=eps)["y"])


@embedding_norm.set_textbook
def textbook(
    words: Any, ids: Any, position: Any, segment: Any, gamma: Any, beta: Any, *, eps: float
) -> dict[str, Any]:  # fmt: skip
    """Devlin, Chang, Lee and Toutanova, "BERT" (2019), figure 2, and a layer norm."""
    assert ops.layer_norm.textbook is not None
    return dict(y=ops.layer_norm.textbook(words[ids[:, 0]] + position + segment, gamma, beta, eps=eps)["y"])


@embedding_norm.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Sums that a rounding on the way would change, and parts that cancel."""
    words, ids = np.array([[1.0, 2.0, 3.0], [2048.0, 256.0, 1.0]]), [0, 1, 1, 0]
    steps = np.arange(12.0).reshape(4, 3) * 2.0**-12
    yield HardInput("sums that do not fit f16", dict(words=words, ids=ids, position=steps, segment=[1.0, 2.0, 2.0**-9]))
    yield HardInput("they cancel", dict(words=words, ids=ids, position=-words[ids], segment=[0.0, 0.0, 0.0]))


@dataclass(frozen=True)
class Call:
    """One operator on its arrays, and what it gave."""

    site: str  # the place in the model, by the names of `gradient`
    operator: Operator
    tensors: Mapping[str, Any]
    settings: Mapping[str, Any]  # scalars and options
    result: Any


Observe = Callable[[Call], None]


def ignore(call: Call) -> None:
    """The observer that keeps nothing."""


def placing(device: str) -> Callable[[Any], Any]:
    """What brings an array of NumPy to the device ``cpu``, ``cuda``, ``cuda:N`` or ``sim``.

    Raises UnknownNameError, and DeviceMissingError where there is no such GPU.
    """
    if device == "cpu":
        return lambda array: array
    where = device_named(device)
    return lambda array: DeviceArray.of(array, where)


def read_back(array: Any) -> Any:
    """A result as an array of NumPy; from a device by a copy, once what computes it has ended."""
    return array.numpy() if isinstance(array, DeviceArray) else array


class Encoder:
    """The model in one storage format. ``place`` brings an array of NumPy to where the operators are to run. Ids are
    checked here, and with ``check=False``, on a GPU, the operators do not read them back to check them again."""

    def __init__(
        self, model: Model, dtype: object = "f32", place: Callable[[Any], Any] = lambda array: array, check: bool = True
    ) -> None:
        self.format = format_of(dtype)
        self.place = place
        self.words = {} if check else {"check": False}
        self.model = converted(model, lambda array: place(array.astype(self.format.dtype)))

    def embed(self, sentences: list[list[int]], observe: Observe = ignore) -> Any:
        """For each sentence, given by its token ids, a unit vector: sentences x hidden. Raises ArgumentError."""
        if not sentences:
            raise ArgumentError("0 sentences: at least one is needed")
        for ids in sentences:
            check_ids(self.model, ids)
        return _Run(self, sentences, observe).vectors()

    def similarities(self, one: Any, other: Any, observe: Observe = ignore) -> Any:
        """The cosine of each of ``one`` with each of ``other``, both sentences x hidden, of length 1."""
        return run(observe, "similarity", ops.matmul, dict(a=one, b=other), layout="NT")


def converted(part: T, to: Callable[[Array], Any]) -> T:
    """The same part of a model with `to` of every array."""
    if isinstance(part, np.ndarray):
        made: T = to(part)
        return made
    if isinstance(part, tuple):
        return type(part)(converted(item, to) for item in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: converted(getattr(part, f.name), to) for f in fields(part)})
    return part


def run(observe: Observe, site: str, called: Operator, tensors: Mapping[str, Any], **settings: Any) -> Any:
    """Call an operator, and let the observer see."""
    made = called(**tensors, **settings)
    result = made[0] if isinstance(made, tuple) else made
    observe(Call(site, called, tensors, settings, result))
    return result


class _Run:
    """One batch. `x` is batch x tokens x hidden throughout."""

    def __init__(self, encoder: Encoder, sentences: list[list[int]], observe: Observe) -> None:
        self.encoder, self.model, self.observe = encoder, encoder.model, observe
        lengths = [len(ids) for ids in sentences]
        longest = max(lengths)
        place, number = encoder.place, encoder.format.dtype
        self.shape = len(sentences), longest
        self.ids = place(np.array([ids + [0] * (longest - len(ids)) for ids in sentences], np.int64))
        self.positions = place(np.tile(np.arange(longest), (len(sentences), 1)))
        heads = max((layer.heads for layer in self.model.layers), default=1)
        # Of each query in each head: what would be spread in every layer is spread once.
        self.limit = place(np.tile(np.array(lengths, np.int32)[:, None, None], (1, heads, longest)))
        shares = [[1 / n] * n + [0.0] * (longest - n) for n in lengths]
        self.shares = place(np.array(shares).astype(number)[:, None, :])
        self.zero = place(np.zeros((1, self.model.tokens.shape[1]), number))

    def call(self, site: str, called: Operator, tensors: Mapping[str, Any], **settings: Any) -> Any:
        return run(self.observe, site, called, tensors, **settings, **self.encoder.words)

    def vectors(self) -> Any:
        m = self.model
        position = self.call("positions", ops.embedding, dict(table=m.positions, ids=self.positions))
        parts = dict(words=m.tokens, ids=self.ids, position=position, segment=m.segment)
        norm = dict(gamma=m.norm.gamma, beta=m.norm.beta)
        x = self.call("embeddings.norm", embedding_norm, {**parts, **norm}, eps=m.norm.eps)
        for number, layer in enumerate(m.layers):
            x = self.transform(layer, x, f"layer{number}")
        mean = self.call("mean", ops.matmul, dict(a=self.shares, b=x, c=self.zero))
        return self.call("unit", l2_normalize, dict(x=mean), eps=0.0).reshape(self.shape[0], -1)

    def transform(self, layer: Layer, x: Any, at: str) -> Any:
        """One transformer layer."""
        context = self.attention(layer, x, f"{at}.attention")
        attended = self.linear(f"{at}.mix", context, layer.mix, x)
        attended = self.norm(f"{at}.attention.norm", attended, layer.attention_norm)
        inner = self.linear(f"{at}.gelu", attended, layer.expand, activation="gelu")
        output = self.linear(f"{at}.contract", inner, layer.contract, attended)
        return self.norm(f"{at}.output.norm", output, layer.output_norm)

    def attention(self, layer: Layer, x: Any, at: str) -> Any:
        """Tokens attend to the tokens of their own sentence, in every head on its own."""
        parts = dict(query=layer.query, key=layer.key, value=layer.value)
        made = (self.linear(f"{at}.{name}", x, part) for name, part in parts.items())
        q, k, v = (part.reshape(*self.shape, layer.heads, -1).swapaxes(1, 2) for part in made)
        tensors, scale = dict(q=q, k=k, v=v, limit=self.limit), 1 / math.sqrt(q.shape[-1])
        context = self.call(f"{at}.context", ops.attention, tensors, scale=scale)
        return context.swapaxes(1, 2).reshape(*self.shape, -1)

    def linear(self, site: str, x: Any, part: Linear, residual: Any = None, activation: str = "none") -> Any:
        tensors = dict(x=x, weight=part.weight, bias=part.bias)
        more = {} if residual is None else dict(residual=residual)
        return self.call(site, ops.linear, {**tensors, **more}, activation=activation)

    def norm(self, site: str, x: Any, norm: Any) -> Any:
        return self.call(site, ops.layer_norm, dict(x=x, gamma=norm.gamma, beta=norm.beta), eps=norm.eps)
