"""The derivative of a loss with respect to the activations, by hand, layer by layer. No weight is trained here, so
none gets a gradient.

A name `dx` means "the derivative of the loss with respect to x", of x's shape. A `tape` holds what the forward run
recorded; `record` collects the gradients that arrive at the operators, under the same sites.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from .encoder import Record, Spans, ignore, merge, moments, normal_cdf, split, within
from .model import Array, Layer, LayerNorm, Model

Tape: TypeAlias = dict[str, Array]


def dissimilarity(embeddings: Array) -> float:
    """The loss, from embeddings of length 1 (sentences x hidden): the sum over neighbours of 1 - cosine similarity."""
    return float(np.sum(1 - np.sum(embeddings[:-1] * embeddings[1:], axis=1)))


def dissimilarity_backward(embeddings: Array) -> Array:
    """Each sentence is pulled towards the one before and the one after."""
    d_embeddings = np.zeros_like(embeddings)
    d_embeddings[:-1] -= embeddings[1:]
    d_embeddings[1:] -= embeddings[:-1]
    return d_embeddings


def embed_backward(model: Model, d_embeddings: Array, spans: Spans, tape: Tape, record: Record = ignore) -> Array:
    """The gradient with respect to the first layer's input (tokens x hidden); `tape` is that of `encoder.embed`."""
    last = tape["last.x"]
    pooled = [pool_backward(dy, last[span]) for dy, span in zip(d_embeddings, spans, strict=True)]
    record("unit.dy", d_embeddings)
    record("mean.dy", np.stack([d_mean for d_mean, _ in pooled]))
    dx = np.concatenate([d_tokens for _, d_tokens in pooled])
    for number, layer in reversed(list(enumerate(model.layers))):
        site = f"layer{number}"
        dx = transform_backward(layer, dx, spans, part_of(tape, site), within(site, record))
    record("embeddings.norm.dy", dx)
    return dx


def part_of(tape: Tape, site: str) -> Tape:
    """What was recorded within `site`, under the names that it had there."""
    return {name.removeprefix(f"{site}."): tensor for name, tensor in tape.items() if name.startswith(f"{site}.")}


def transform_backward(layer: Layer, dy: Array, spans: Spans, tape: Tape, record: Record = ignore) -> Array:
    """Backward through one layer: tokens x hidden -> tokens x hidden; `tape` is that of `encoder.transform`."""
    record("output.norm.dy", dy)
    d_output = layer_norm_backward(dy, tape["output.norm.x"], layer.output_norm)
    record("contract.dy", d_output)
    d_active = d_output @ layer.contract.weight  # the derivative of y = x W^T + b is dx = dy W
    record("gelu.dy", d_active)
    d_attended = d_output + gelu_backward(d_active, tape["gelu.x"]) @ layer.expand.weight

    record("attention.norm.dy", d_attended)
    d_attended = layer_norm_backward(d_attended, tape["attention.norm.x"], layer.attention_norm)
    record("mix.dy", d_attended)
    d_context = d_attended @ layer.mix.weight
    here = "attention"
    return d_attended + attention_backward(layer, d_context, spans, part_of(tape, here), within(here, record))


def attention_backward(layer: Layer, dy: Array, spans: Spans, tape: Tape, record: Record = ignore) -> Array:
    """From the gradient of the heads' merged context to that of the layer's input: tokens x hidden."""
    d_query, d_key, d_value = (np.empty_like(dy) for _ in range(3))
    for number, span in enumerate(spans):
        here = f"sentence{number}"
        parts = attend_backward(split(dy[span], layer.heads), part_of(tape, here), within(here, record))
        d_query[span], d_key[span], d_value[span] = (merge(part) for part in parts)
    for name, d_part in (("query", d_query), ("key", d_key), ("value", d_value)):
        record(f"{name}.dy", d_part)
    return d_query @ layer.query.weight + d_key @ layer.key.weight + d_value @ layer.value.weight


def attend_backward(dy: Array, tape: Tape, record: Record = ignore) -> tuple[Array, Array, Array]:
    """The gradients with respect to query, key and value: all heads x tokens x hidden/heads."""
    query, key, value, weights = tape["query"], tape["key"], tape["value"], tape["softmax.y"]
    record("context.dy", dy)
    d_weights = dy @ value.swapaxes(1, 2)
    record("softmax.dy", d_weights)
    d_scores = softmax_backward(d_weights, weights)
    record("scores.dy", d_scores)
    d_scores = d_scores / math.sqrt(key.shape[2])
    return d_scores @ key, d_scores.swapaxes(1, 2) @ query, weights.swapaxes(1, 2) @ dy


def layer_norm_backward(dy: Array, x: Array, norm: LayerNorm) -> Array:
    """dx = rstd (g - mean(g) - x^ mean(g x^)), where g = dy gamma and x^ is the normed row."""
    mean, rstd = moments(x, norm.eps)
    normed = (x - mean[..., None]) * rstd[..., None]
    g = dy * norm.gamma
    along = (g * normed).mean(axis=-1, keepdims=True)
    dx: Array = rstd[..., None] * (g - g.mean(axis=-1, keepdims=True) - normed * along)
    return dx


def gelu_backward(dy: Array, x: Array) -> Array:
    """The derivative of x cdf(x) is cdf(x) + x pdf(x)."""
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return dy * (normal_cdf(x) + x * density)


def softmax_backward(dy: Array, y: Array) -> Array:
    """dx = y (dy - sum(dy y)), of each row."""
    dx: Array = y * (dy - (dy * y).sum(axis=-1, keepdims=True))
    return dx


def pool_backward(dy: Array, x: Array) -> tuple[Array, Array]:
    """Of one sentence, with respect to the mean and to the tokens. Only what is at right angles to the unit vector
    turns it; every token has the same share."""
    mean = x.mean(axis=0)
    length = np.linalg.norm(mean)
    unit = mean / length
    d_mean = (dy - unit * (unit @ dy)) / length
    return d_mean, np.broadcast_to(d_mean / len(x), x.shape)
