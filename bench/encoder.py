"""``python -m bench.encoder [--device cuda:0]``: sentences a second of the sentence encoder, beside torch's functions.

Both take lists of token ids and give vectors on the device, from the same tensors of weights: the operators as
`examples.sentence_encoder` calls them, and torch's embedding, linear, scaled_dot_product_attention, gelu, layer_norm.
Their calls take turns; the fastest of each counts, with the wait for the device. Some of the vectors are computed by
the operators on the CPU as well: ``equal`` says whether they have the same bits. TF32 is off.
Figures are added to bench/results/encoder.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from examples.sentence_encoder import model as parameters
from examples.sentence_encoder.files import locate
from examples.sentence_encoder.model import LayerNorm, Linear, Model
from examples.sentence_encoder.operators import Encoder
from tokitai.errors import DeviceMissingError, TokitaiError
from tokitai.formats import STORAGE

RESULTS = Path(__file__).parent / "results" / "encoder.jsonl"
BATCHES = ((64, 32), (256, 128))  # sentences, tokens of the longest
CHECKED = 2  # sentences that are encoded on the CPU as well
Sentences = list[list[int]]


def drawn(count: int, longest: int, vocabulary: int) -> Sentences:
    """Sentences of random ids, half as long as the longest and longer; the first is a longest."""
    rng = np.random.default_rng(0)
    lengths = [longest, *rng.integers(longest // 2, longest + 1, count - 1)]
    return [rng.integers(0, vocabulary, n).tolist() for n in lengths]


def placing(device: torch.device) -> Callable[[Any], Any]:
    """What makes of an array of NumPy a tensor of torch there."""

    def place(array: Any) -> Any:
        plain = np.ascontiguousarray(array)
        if plain.dtype.kind == "V":  # NumPy's word for bfloat16
            return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(plain).to(device)

    return place


def as_bytes(x: Any) -> bytes:
    """The bits of a tensor or an array."""
    made = x.contiguous().view(torch.uint8).cpu().numpy() if isinstance(x, torch.Tensor) else x
    return bytes(made.tobytes())


@torch.inference_mode()
def theirs(m: Any, sentences: Sentences, device: torch.device) -> Any:
    """The model's formulas by torch's functions: sentences x hidden."""
    lengths, longest = [len(ids) for ids in sentences], max(map(len, sentences))
    ids = torch.tensor([s + [0] * (longest - len(s)) for s in sentences], device=device)
    held = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]

    def linear(x: Any, part: Linear) -> Any:
        return functional.linear(x, part.weight, part.bias)  # type: ignore[arg-type]

    def norm(x: Any, part: LayerNorm) -> Any:
        return functional.layer_norm(x, x.shape[-1:], part.gamma, part.beta, part.eps)  # type: ignore[arg-type]

    x = norm(functional.embedding(ids, m.tokens) + m.positions[:longest] + m.segment, m.norm)
    for layer in m.layers:
        q, k, v = (
            linear(x, part).reshape(*ids.shape, layer.heads, -1).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        context = functional.scaled_dot_product_attention(q, k, v, held[:, None, None])
        x = norm(x + linear(context.transpose(1, 2).reshape(x.shape), layer.mix), layer.attention_norm)
        x = norm(x + linear(functional.gelu(linear(x, layer.expand)), layer.contract), layer.output_norm)
    mean = torch.where(held[..., None], x, 0).sum(1) / held.sum(1, keepdim=True)
    return functional.normalize(mean, dim=-1)


def fastest(calls: dict[str, Callable[[], object]], wait: Callable[[], object], repeats: int) -> dict[str, float]:
    """The smallest time of each, in seconds, of calls that take turns; what `wait` waits for belongs to a call. The
    first call of each does not count."""
    found = dict.fromkeys(calls, float("inf"))
    for i in range(repeats + 1):
        for name, call in calls.items():
            wait()
            begin = time.perf_counter()
            call()
            wait()
            if i:
                found[name] = min(found[name], time.perf_counter() - begin)
    return found


class Run:
    """The encoder in one format on a device, and beside it on the CPU."""

    def __init__(self, model: Model, dtype: str, device: torch.device) -> None:
        self.dtype, self.device, self.vocabulary = dtype, device, len(model.tokens)
        self.there = Encoder(model, dtype, placing(device), check=device.type != "cuda")
        self.here = Encoder(model, dtype)

    def bits(self, batches: Sequence[tuple[int, int]], there: bool) -> list[bytes]:
        """Of the first vectors of each batch, which builds every kernel: of the whole batch on the device, or of these
        sentences alone on the CPU."""
        encoder, count = (self.there, None) if there else (self.here, CHECKED)
        made = (encoder.embed(drawn(*batch, self.vocabulary)[:count]) for batch in batches)
        return [as_bytes(vectors[:CHECKED]) for vectors in made]

    def record(self, batch: tuple[int, int], equal: bool, repeats: int) -> dict[str, Any]:
        """Both times of a batch."""
        sentences = drawn(*batch, self.vocabulary)
        calls: dict[str, Callable[[], Any]] = {
            "tokitai": partial(self.there.embed, sentences),
            "torch": partial(theirs, self.there.model, sentences, self.device),
        }
        cuda = self.device.type == "cuda"
        times = fastest(calls, partial(torch.cuda.synchronize, self.device) if cuda else lambda: None, repeats)
        ours, other = (calls[who]().double() for who in calls)
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "dtype": self.dtype, "sentences": batch[0],
            "longest": batch[1], "tokens": sum(map(len, sentences)), "equal": equal,
            "milliseconds": {who: round(1e3 * t, 3) for who, t in times.items()},
            "sentences_a_second": {who: round(batch[0] / t) for who, t in times.items()},
            "of_torch": round(times["torch"] / times["tokitai"], 3),
            "least_cosine": round(float((ours * other).sum(1).min()), 6),
            "device": torch.cuda.get_device_name(self.device) if cuda else f"cpu, {torch.get_num_threads()} threads",
            "torch": str(torch.__version__),
        }  # fmt: skip


def sizes(text: str) -> tuple[int, int]:
    """``64x32``: sentences, and tokens of the longest."""
    count, longest = map(int, text.split("x"))
    return count, longest


def main(words: Sequence[str]) -> int:
    """1 where some vectors have other bits than on the CPU, 3 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.encoder", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (the default), or cpu")
    parser.add_argument("--dtype", nargs="*", choices=[f.name for f in STORAGE], default=["f16", "bf16", "f32"])
    parser.add_argument("--batch", nargs="*", type=sizes, default=BATCHES, metavar="SENTENCESxTOKENS")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(words)
    try:
        device = torch.device(asked.device)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise DeviceMissingError(f"device {device}: torch sees {torch.cuda.device_count()} CUDA devices")
        torch.backends.cuda.matmul.allow_tf32 = False
        model = parameters.load(locate())
        runs = [Run(model, dtype, device) for dtype in asked.dtype]
        with ThreadPoolExecutor() as pool:  # most of the time is that of compilers
            found = [[pool.submit(run.bits, asked.batch, there) for there in (True, False)] for run in runs]
        same = True
        for run, (there, here) in zip(runs, found, strict=True):
            for batch, one, other in zip(asked.batch, there.result(), here.result(), strict=True):
                equal = one == other
                record = run.record(batch, equal, asked.repeats)
                with asked.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(run.dtype, "x".join(map(str, batch)), "same bits as the CPU" if equal else "OTHER BITS",
                      record["sentences_a_second"], "of torch", record["of_torch"], "cosine", record["least_cosine"],
                      flush=True)  # fmt: skip
                same = same and equal
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
