"""``python -m bench.gpu_embedding``: embedding on an NVIDIA GPU, forward beside a copy and backward beside torch's.

Ids that are uniform, that follow Zipf's law as words do, and that are all one id. Several calls in a row between two
events, medians; tables and gradients are larger than the L2 cache. Figures are added to
bench/results/gpu_embedding.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokitai import ops
from tokitai.backends.cuda.target import CudaTarget

from .embedding import COLUMNS, ENTRIES, IDS, choices
from .gpu import TORCH, copy_bandwidth
from .gpu_run import keep, opened
from .gpu_timing import between_events

RESULTS = Path(__file__).parent / "results" / "gpu_embedding.jsonl"
IN_A_ROW = 10  # calls between two events: the host is ahead of the GPU then


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median time of one call."""
    call()
    return statistics.median(between_events(call, IN_A_ROW) for _ in range(repeats))


def measure(target: CudaTarget, dtype: str, name: str, chosen: np.ndarray, repeats: int, copy: float) -> dict[str, Any]:
    """One record: times, the forward pass's fraction of the copy, torch's backward pass over ours."""
    torch.manual_seed(0)
    table, dy = (torch.randn(n, COLUMNS, device="cuda").to(TORCH[dtype]) for n in (ENTRIES, IDS))
    ids = torch.from_numpy(chosen).cuda()
    y, dtable = torch.empty_like(dy), torch.empty_like(table)
    given = dict(entries=ENTRIES, check=False)
    forward = partial(ops.embedding, table, ids, out=y, check=False)
    backward = partial(ops.embedding_backward, dy, ids, out=dtable, **given)
    calls: dict[str, Callable[[], object]] = {
        "forward": forward,
        "torch forward": partial(torch.index_select, table, 0, ids, out=y.clone()),
        "backward": backward,
        "torch backward": partial(torch.ops.aten.embedding_dense_backward, dy, ids, ENTRIES, -1, False),
    }
    took = {n: seconds(call, repeats) for n, call in calls.items()}
    some = np.unique(chosen)[:3]
    on_cpu = ops.embedding_backward(dy.cpu(), ids.cpu(), entries=ENTRIES)
    equal = torch.equal(y, table[ids]) and torch.equal(dtable[torch.from_numpy(some).cuda()].cpu(), on_cpu[some])
    nbytes = 2 * IDS * COLUMNS * table.element_size() + 8 * IDS
    return {
        "dtype": dtype, "ids": name, "entries": ENTRIES,
        "rows": IDS, "cols": COLUMNS, "equal": equal, "microseconds": {k: round(v * 1e6, 1) for k, v in took.items()},
        "of_copy": round(nbytes / took["forward"] / copy, 3),
        "torch_of_copy": round(nbytes / took["torch forward"] / copy, 3),
        "ratio_backward": round(took["torch backward"] / took["backward"], 2),
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_embedding", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = opened()
    copy = copy_bandwidth(target)
    for dtype in ("f16", "bf16", "f32"):
        for name, chosen in choices(np.random.default_rng(0)):
            record = measure(target, dtype, name, chosen, options.repeats, copy)
            keep(record, target, options.out)
            print({k: record[k] for k in ("dtype", "ids", "equal", "microseconds", "of_copy", "ratio_backward")})


if __name__ == "__main__":
    main()
