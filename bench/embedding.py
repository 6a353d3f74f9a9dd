"""``python -m bench.embedding [REPEATS]``: embedding on two threads beside PyTorch's, forward and backward.

One JSON object a line: milliseconds, the fastest of calls that take turns, for ids that are uniform, that follow Zipf's
law as words do, and that are all one id. The backward pass writes the whole gradient of the table, as PyTorch's does;
ours are written into memory that is there, which PyTorch offers for neither.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tokitai import ops
from tokitai.formats import FORMATS

from .products import THREADS, fastest

ENTRIES, COLUMNS, IDS = 50_304, 1024, 32_768


def choices(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Ids, and what they are like."""
    yield "uniform", rng.integers(0, ENTRIES, IDS)
    weights = 1 / np.arange(1, ENTRIES + 1)
    yield "Zipf", rng.choice(ENTRIES, IDS, p=weights / weights.sum())
    yield "one id", np.full(IDS, 7)


def main() -> None:
    """Every format and choice of ids."""
    import torch

    torch.set_num_threads(THREADS)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rng = np.random.default_rng(0)
    for dtype in ("f16", "bf16", "f32"):
        kind, theirs = FORMATS[dtype].dtype, dict(f16=torch.float16, bf16=torch.bfloat16, f32=torch.float32)[dtype]
        table = rng.standard_normal((ENTRIES, COLUMNS), np.float32).astype(kind)
        dy = rng.standard_normal((IDS, COLUMNS), np.float32).astype(kind)
        bits = np.int32 if dtype == "f32" else np.int16
        of_torch = [torch.from_numpy(x.view(bits)).view(theirs) for x in (table, dy)]
        y, dtable = np.empty_like(dy), np.empty_like(table)
        for name, ids in choices(rng):
            index = torch.from_numpy(ids)
            calls: dict[str, Callable[[], object]] = {
                "forward": partial(ops.embedding, table, ids, out=y, threads=THREADS),
                "torch forward": partial(torch.nn.functional.embedding, index, of_torch[0]),
                "backward": partial(ops.embedding_backward, dy, ids, entries=ENTRIES, out=dtable, threads=THREADS),
                "torch backward": partial(
                    torch.ops.aten.embedding_dense_backward, of_torch[1], index, ENTRIES, -1, False
                ),
            }
            ms = fastest(calls, repeats)
            ratio = {n: ms[f"torch {n}"] / ms[n] for n in ("forward", "backward")}
            print(json.dumps(dict(dtype=dtype, ids=name, ms=ms, ratio=ratio)), flush=True)


if __name__ == "__main__":
    main()
