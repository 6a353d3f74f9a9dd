"""One .safetensors file for each operator and site, from a run over page.txt:

    python -m examples.sentence_encoder.capture OUT_DIR

A file `<operator>.<site>.safetensors` holds the tensors that the operator takes, under the operator's own names:
true activations and gradients, computed in float64 and rounded once to float32. Its metadata say `operator`, `site`,
`rows` and the scalars that the operator takes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from tokitai.errors import TokitaiError

from . import model as parameters
from .encoder import embed, moments, spans_of
from .files import locate
from .gradient import Tape, dissimilarity_backward, embed_backward, layer_norm_backward
from .model import Array, LayerNorm, Linear, Model
from .tokenizer import Tokenizer

PAGE = Path(__file__).with_name("page.txt")
LARGEST_FILE = 4_000_000  # bytes of tensors; a longer capture keeps its leading rows, and its metadata say so
BATCH = 4  # sentences that are padded to one length
PRODUCT_ROWS = 48  # of a product with a matrix of weights: each takes the oracle as many steps as the weights have rows


@dataclass(frozen=True)
class Inputs:
    """What one operator takes at one site of the model."""

    operator: str
    place: str  # the site in the file's name
    site: str  # the site in words
    rows: dict[str, NDArray[Any]]  # tensors with a leading dimension of rows
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)  # tensors that all rows share
    scalars: dict[str, float] = field(default_factory=dict)
    most: int | None = None  # rows to keep, if not all that fit

    def write(self, folder: Path) -> Path:
        """Writes `<operator>.<place>.safetensors`, float32 and ids as int64, and returns its path."""
        total = len(next(iter(self.rows.values())))
        bytes_a_row = 4 * sum(tensor[0].size for tensor in self.rows.values())
        kept = min(total, LARGEST_FILE // bytes_a_row, self.most or total)
        tensors = {name: tensor[:kept] for name, tensor in self.rows.items()} | self.columns
        metadata = {"operator": self.operator, "site": self.site, "rows": f"{kept} of {total}"}
        metadata |= {name: repr(value) for name, value in self.scalars.items()}
        path = folder / f"{self.operator}.{self.place}.safetensors"
        formats = {"f": np.float32, "i": np.int64}
        narrow = {name: np.ascontiguousarray(t, formats[t.dtype.kind]) for name, t in tensors.items()}
        path.write_bytes(with_sorted_header(save(narrow, metadata)))
        return path


def with_sorted_header(data: bytes) -> bytes:
    """The library orders metadata anew in every process; sorted, equal contents are equal files."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors that follow stay aligned
    return len(header).to_bytes(8, "little") + header + data[start:]


class Run:
    """What was recorded, forward and backward, over all sentences."""

    def __init__(self, model: Model, sentences: list[list[int]]) -> None:
        self.lengths = [len(ids) for ids in sentences]
        self.tape: Tape = {}
        embeddings = embed(model, sentences, self.tape.__setitem__)
        d_embeddings = dissimilarity_backward(embeddings)
        dx = embed_backward(model, d_embeddings, spans_of(sentences), self.tape, self.tape.__setitem__)
        self.ids = np.concatenate([np.asarray(ids) for ids in sentences])
        self.positions = np.concatenate([np.arange(len(ids)) for ids in sentences])
        looked_up = model.tokens[self.ids] + model.positions[self.positions] + model.segment
        self.d_looked_up = layer_norm_backward(dx, looked_up, model.norm)

    def scores(self, site: str, name: str, length: int) -> Array:
        """A tensor of the softmax (heads x tokens x tokens) of the sentences of `length` tokens, as rows."""
        chosen = [number for number, tokens in enumerate(self.lengths) if tokens == length]
        found = (self.tape[f"{site}.sentence{number}.softmax.{name}"] for number in chosen)
        return np.concatenate([tensor.reshape(-1, length) for tensor in found])

    def padded(self, site: str, name: str) -> Array:
        """A tensor of the softmax of the first sentences, as rows that zeros fill up."""
        wide = max(self.lengths[:BATCH])
        found = (self.tape[f"{site}.sentence{number}.softmax.{name}"] for number in range(BATCH))
        return np.concatenate([np.pad(t, ((0, 0), (0, 0), (0, wide - t.shape[2]))).reshape(-1, wide) for t in found])

    def batch(self, site: str, name: str) -> Array:
        """A tensor of the attention of the first sentences as sentences x heads x tokens x hidden/heads; zeros fill up
        the tokens."""
        longest = max(self.lengths[:BATCH])
        found = (self.tape[f"{site}.sentence{number}.{name}"] for number in range(BATCH))
        return np.stack([np.pad(t, ((0, 0), (0, longest - t.shape[1]), (0, 0))) for t in found])

    def limits(self, site: str) -> NDArray[np.int64]:
        """The length of each of these rows."""
        found = (self.tape[f"{site}.sentence{number}.softmax.x"].shape for number in range(BATCH))
        return np.concatenate([np.full(heads * tokens, tokens) for heads, tokens, _ in found])

    def fullest_length(self) -> int:
        """The number of tokens whose sentences have, together, the most attention scores; the longer one of equals."""
        counts = Counter(self.lengths)
        return max(counts, key=lambda length: (counts[length] * length**2, length))


def capture(out_dir: Path) -> list[Path]:
    """Writes the files into `out_dir`, which is made where it is missing, and returns their paths.

    Raises InputFileError where the model's package is missing.
    """
    files = locate()
    model, tokenizer = parameters.load(files), Tokenizer.load(files.vocabulary)
    run = Run(model, [tokenizer.encode(sentence) for sentence in sentences()])
    out_dir.mkdir(parents=True, exist_ok=True)
    return [inputs.write(out_dir) for inputs in all_inputs(model, run)]


def sentences() -> list[str]:
    """The sentences of page.txt, in order."""
    return re.split(r"(?<=[.!?])\s+", PAGE.read_text(encoding="utf-8").strip())


def all_inputs(model: Model, run: Run) -> Iterator[Inputs]:
    """The embeddings; norms, softmax and products of the first and the last layer; GELU of the last."""
    last = len(model.layers) - 1
    yield from embedding_inputs("positions", model.positions, run.positions, run.d_looked_up)
    used, ids = np.unique(run.ids, return_inverse=True)  # the page's words alone: the whole vocabulary takes 47 MB
    yield from embedding_inputs("tokens", model.tokens[used], ids, run.d_looked_up)
    yield from norm_inputs(run, "layer0.attention", model.layers[0].attention_norm)
    yield from norm_inputs(run, f"layer{last}.output", model.layers[last].output_norm)
    yield from gelu_inputs(run, f"layer{last}")
    yield from softmax_inputs(run, "layer0.attention")
    yield from softmax_inputs(run, f"layer{last}.attention")
    yield from linear_inputs(run, "layer0.mix", model.layers[0].mix)
    yield from linear_inputs(run, f"layer{last}.contract", model.layers[last].contract)
    yield from matmul_inputs(run, "layer0.attention")
    yield from matmul_inputs(run, f"layer{last}.attention")
    yield from attention_inputs(run, "layer0.attention")
    yield from attention_inputs(run, f"layer{last}.attention")


def embedding_inputs(site: str, table: Array, ids: NDArray[np.int64], dy: Array) -> Iterator[Inputs]:
    """The look-up; and its gradient, added to that of the same page before."""
    yield Inputs("embedding", site, f"{site}: the entries and ids of the page", {"ids": ids}, {"table": table})
    before = np.zeros_like(table)
    np.add.at(before, ids, dy)
    words = f"{site}: the gradient that arrives there"
    rows = {"dy": dy, "ids": ids}
    yield Inputs("embedding_backward", site, words, rows, {"dtable": before}, {"entries": len(table)})


def norm_inputs(run: Run, site: str, norm: LayerNorm) -> Iterator[Inputs]:
    x, dy = run.tape[f"{site}.norm.x"], run.tape[f"{site}.norm.dy"]
    gamma, beta, eps = {"gamma": norm.gamma}, {"beta": norm.beta}, {"eps": norm.eps}
    mean, rstd = moments(x, norm.eps)
    yield Inputs("layer_norm", site, site, {"x": x}, gamma | beta, eps)
    yield Inputs("layer_norm_backward", site, site, {"dy": dy, "x": x, "mean": mean, "rstd": rstd}, gamma)

    # The model has no RMS norm: one is put where its layer norm stands.
    stand_in = f"{site}: layer norm's input and weight"
    root = 1 / np.sqrt(np.square(x).mean(axis=1) + norm.eps)
    yield Inputs("rms_norm", site, stand_in, {"x": x}, gamma, eps)
    yield Inputs("rms_norm_backward", site, f"{stand_in}, and the gradient of its output",
                 {"dy": dy, "x": x, "rstd": root}, gamma)  # fmt: skip


def gelu_inputs(run: Run, site: str) -> Iterator[Inputs]:
    x, dy = run.tape[f"{site}.gelu.x"], run.tape[f"{site}.gelu.dy"]
    for form, words in (("gelu_erf", site), ("gelu_tanh", f"{site}: the tensors of its GELU, which is the erf form")):
        yield Inputs(form, site, words, {"x": x})
        yield Inputs(f"{form}_backward", site, words, {"dy": dy, "x": x})


def softmax_inputs(run: Run, site: str) -> Iterator[Inputs]:
    length = run.fullest_length()
    x, y, dy = (run.scores(site, name, length) for name in ("x", "y", "dy"))
    words = f"{site}: the sentences of {length} tokens"
    yield Inputs("softmax", site, words, {"x": x})
    yield Inputs("softmax_backward", site, words, {"dy": dy, "y": y})
    x, y, dy = (run.padded(site, name) for name in ("x", "y", "dy"))
    limit = {"limit": run.limits(site)}
    words = f"{site}: the first {BATCH} sentences, padded to the longest"
    yield Inputs("masked_softmax", site, words, {"x": x, **limit})
    yield Inputs("masked_softmax_backward", site, words, {"dy": dy, "y": y, **limit})


def linear_inputs(run: Run, site: str, part: Linear) -> Iterator[Inputs]:
    """A layer with its bias and its residual; its gradients, that of the weight also added to what the rest of the page
    gives."""
    x, residual, dy = (run.tape[f"{site}.{name}"] for name in ("x", "residual", "dy"))
    weight, most = {"weight": part.weight}, PRODUCT_ROWS
    yield Inputs("linear", site, site, {"x": x, "residual": residual}, {**weight, "bias": part.bias}, most=most)
    yield Inputs("linear_backward_input", site, site, {"dy": dy}, weight, most=most)
    yield Inputs("linear_backward_weight", site, site, {"dy": dy, "x": x}, most=most)
    yield Inputs("linear_backward_bias", site, site, {"dy": dy})
    rest = {"total": dy[most:].T @ x[most:]}
    yield Inputs("linear_accumulate_weight", site, site, {"dy": dy, "x": x}, rest, most=most)


def matmul_inputs(run: Run, site: str) -> Iterator[Inputs]:
    """Attention's weights times its values, of all heads of the page's first sentence; the model adds nothing to that:
    the query stands in."""
    here = f"{site}.sentence0"
    a, b, c, dy = (run.tape[f"{here}.{name}"] for name in ("softmax.y", "value", "query", "context.dy"))
    yield Inputs("matmul", site, f"{site}: the first sentence; c is its query", {"a": a, "b": b, "c": c})
    yield Inputs("matmul_backward_left", site, f"{site}: the first sentence", {"dy": dy, "b": b})
    yield Inputs("matmul_backward_right", site, f"{site}: the first sentence", {"dy": dy, "a": a})


def attention_inputs(run: Run, site: str) -> Iterator[Inputs]:
    """The first sentences, padded to the longest, and what the backward pass takes from the forward pass."""
    q, k, v, dy = (run.batch(site, name) for name in ("query", "key", "value", "context.dy"))
    lengths = np.array(run.lengths[:BATCH])[:, None, None]
    limit, scale = np.broadcast_to(lengths, q.shape[:-1]), 1 / math.sqrt(q.shape[-1])
    scores = np.where(np.arange(k.shape[2]) < lengths[..., None], scale * (q @ k.swapaxes(2, 3)), -np.inf)
    top = scores.max(axis=-1)
    saved = {"top": top, "total": np.exp(scores - top[..., None]).sum(axis=-1)}
    words = f"{site}: the first {BATCH} sentences, padded to the longest"
    given = {"q": q, "k": k, "v": v, "limit": limit}
    yield Inputs("attention", site, words, given, scalars={"scale": scale})
    yield Inputs("attention_backward", site, words, {"dy": dy, **given, **saved}, scalars={"scale": scale})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sentence_encoder.capture", description=capture.__doc__)
    parser.add_argument("out_dir", type=Path)
    try:
        for path in capture(parser.parse_args().out_dir):
            print(path)
    except TokitaiError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
