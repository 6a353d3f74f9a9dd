"""From token ids to embeddings: the textbook, in float64.

Sentences lie one below the other, `tokens x hidden` (hidden = 384 = 12 heads x 32), so that nothing is ever padded;
`spans` says where each begins and ends, and only attention and pooling ask. Every function that meets an operator of
interest hands its tensors to `record(name, tensor)`, named `<site>.<the operator's own name for it>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from tokitai.errors import ArgumentError

from .model import Array, Layer, LayerNorm, Linear, Model

Record: TypeAlias = Callable[[str, Array], None]
Spans: TypeAlias = list[slice]

_erfc = np.frompyfunc(math.erfc, 1, 1)


def ignore(name: str, tensor: Array) -> None:
    """The record that keeps nothing."""


def within(site: str, record: Record) -> Record:
    """A record that puts `site` before every name."""
    return lambda name, tensor: record(f"{site}.{name}", tensor)


def spans_of(sentences: list[list[int]]) -> Spans:
    """The rows that each sentence has where all lie one below the other."""
    ends = list(accumulate(len(ids) for ids in sentences))
    return [slice(end - len(ids), end) for ids, end in zip(sentences, ends, strict=True)]


def embed(model: Model, sentences: list[list[int]], record: Record = ignore) -> Array:
    """For each sentence, given by its token ids, a unit vector: sentences x hidden. Raises ArgumentError."""
    if not sentences:
        raise ArgumentError("0 sentences: at least one is needed")
    x = np.concatenate([look_up(model, ids) for ids in sentences])
    spans = spans_of(sentences)
    for number, layer in enumerate(model.layers):
        x = transform(layer, x, spans, within(f"layer{number}", record))
    record("last.x", x)
    return np.stack([pool(x[span]) for span in spans])


def check_ids(model: Model, ids: list[int]) -> None:
    """Whether the model takes this sentence. Raises ArgumentError."""
    longest, vocabulary = len(model.positions), len(model.tokens)
    if not 1 <= len(ids) <= longest:
        raise ArgumentError(f"a sentence of {len(ids)} tokens: this model takes 1 to {longest}")
    for position, number in enumerate(ids):
        if not 0 <= number < vocabulary:
            raise ArgumentError(f"ids[{position}]={number}: a token id must be in 0..{vocabulary - 1}")


def look_up(model: Model, ids: list[int]) -> Array:
    """Of one sentence: the sum of what each token is and where it stands, normed."""
    check_ids(model, ids)
    return layer_norm(model.tokens[ids] + model.positions[: len(ids)] + model.segment, model.norm)


def transform(layer: Layer, x: Array, spans: Spans, record: Record = ignore) -> Array:
    """One transformer layer: tokens x hidden -> tokens x hidden."""
    context = attention(layer, x, spans, within("attention", record))
    record("mix.x", context)
    record("mix.residual", x)
    attended = x + linear(context, layer.mix)
    record("attention.norm.x", attended)
    attended = layer_norm(attended, layer.attention_norm)

    inner = linear(attended, layer.expand)
    record("gelu.x", inner)
    active = gelu(inner)
    record("contract.x", active)
    record("contract.residual", attended)
    output = attended + linear(active, layer.contract)
    record("output.norm.x", output)
    return layer_norm(output, layer.output_norm)


def attention(layer: Layer, x: Array, spans: Spans, record: Record = ignore) -> Array:
    """Tokens attend to the tokens of their own sentence, in every head on its own."""
    query, key, value = (linear(x, part) for part in (layer.query, layer.key, layer.value))
    contexts = []
    for number, span in enumerate(spans):
        q, k, v = (split(part[span], layer.heads) for part in (query, key, value))
        contexts.append(merge(attend(q, k, v, within(f"sentence{number}", record))))
    return np.concatenate(contexts)


def attend(query: Array, key: Array, value: Array, record: Record = ignore) -> Array:
    """Each token takes the mean of all tokens' values, weighed by how well its query meets their keys.

    All are heads x tokens x hidden/heads.
    """
    scores = query @ key.swapaxes(1, 2) / math.sqrt(key.shape[2])
    weights = softmax(scores)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        record(name, tensor)
    record("softmax.x", scores)
    record("softmax.y", weights)
    return weights @ value


def split(x: Array, heads: int) -> Array:
    """tokens x hidden -> heads x tokens x hidden/heads"""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def merge(x: Array) -> Array:
    """heads x tokens x hidden/heads -> tokens x hidden"""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def linear(x: Array, part: Linear) -> Array:
    """tokens x inputs -> tokens x outputs"""
    return x @ part.weight.T + part.bias


def moments(x: Array, eps: float) -> tuple[Array, Array]:
    """Of each row: the mean, and the reciprocal of the standard deviation."""
    mean = x.mean(axis=-1)
    variance = np.square(x - mean[..., None]).mean(axis=-1)
    return mean, 1 / np.sqrt(variance + eps)


def layer_norm(x: Array, norm: LayerNorm) -> Array:
    """Each row on its own: (x - mean) rstd gamma + beta."""
    mean, rstd = moments(x, norm.eps)
    return (x - mean[..., None]) * rstd[..., None] * norm.gamma + norm.beta


def normal_cdf(x: Array) -> Array:
    """The standard normal distribution function; by erfc, for 1 + erf cancels where x is negative."""
    return np.asarray(_erfc(-x / math.sqrt(2)), np.float64) / 2


def gelu(x: Array) -> Array:
    """x times the probability that a standard normal variable is below x."""
    return x * normal_cdf(x)


def softmax(x: Array) -> Array:
    """Of each row. Subtracting the row's maximum changes nothing but the overflow."""
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    weights: Array = raised / raised.sum(axis=-1, keepdims=True)
    return weights


def pool(x: Array) -> Array:
    """The mean over the tokens, scaled to length 1: tokens x hidden -> hidden"""
    mean = x.mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit
