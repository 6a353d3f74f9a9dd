"""The reduce-scatter in the balanced tree beside NCCL's own, on the GPUs of one host:

NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node N -m bench.ranks [--megabytes 1,16,256] [--device cuda|cpu]

Prints a line of JSON for each size: milliseconds of both, bytes that a rank sends, and the share of NCCL's speed. Each
rank has one block. With --device cpu the collectives are gloo's, which shows that the program runs and nothing else.
`python -m bench.ranks --page` writes what bench/results/ranks.jsonl holds, of this program and of
`bench.ranks_training`, as tables to bench/results/ranks.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tokitai.errors import ArgumentError, TokitaiError
from tokitai.torch import ranks
from tokitai.torch.ranks.exchange import reduce_scatter

REPEATS = 10
RESULTS = Path(__file__).parent / "results" / "ranks.jsonl"


def seconds(call: Callable[[], object], device: str) -> float:
    """The median of some calls, each timed until the device is done."""
    taken = []
    for i in range(REPEATS + 3):
        dist.barrier()
        begin = time.perf_counter()
        call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        if i >= 3:
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def where(device: str) -> dict[str, Any]:
    """The date, the device and its software."""
    cuda = device.startswith("cuda")
    found = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "pytorch": torch.__version__}
    name = torch.cuda.get_device_name() if cuda else "cpu"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda else None  # type: ignore[no-untyped-call]
    return {**found, "device": name, "nccl": nccl}


def exchange_table(lines: Sequence[dict[str, Any]]) -> str:
    """Milliseconds of both, by ranks and size."""
    rows = ["| GPUs | MB a rank | MB sent | tokitai | NCCL | of NCCL's speed |", "|--:|--:|--:|--:|--:|--:|"]
    for x in lines:
        sent, tree, peer = x["sent"] / 2**20, x["tree_ms"], x["peer_ms"]
        rows.append(
            f"| {x['ranks']} | {x['megabytes']} | {sent:.1f} | {tree:.3f} ms | {peer:.3f} ms | {x['share']:.2f} |"
        )
    return "\n".join(rows)


def step_table(lines: Sequence[dict[str, Any]]) -> str:
    """Milliseconds of a step, and the scaling, which is the time on 1 GPU over that on several."""
    rows = [
        "| accumulator | GPUs | tokitai | scaling | in the exchange | plain torch | scaling |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for x in lines:
        alone = next(y for y in lines if y["ranks"] == 1 and y["accumulator"] == x["accumulator"])
        share = f"{x['tokitai']['exchange']:.1%}" if x["ranks"] > 1 else ""
        both = [(n["milliseconds"], m["milliseconds"]) for n, m in ((x[p], alone[p]) for p in ("tokitai", "torch"))]
        (mine, mine_alone), (peer, peer_alone) = both
        rows.append(
            f"| {x['accumulator']} | {x['ranks']} | {mine} ms | {mine_alone / mine:.2f} | {share} | {peer} ms "
            f"| {peer_alone / peer:.2f} |"
        )
    return "\n".join(rows)


def page(lines: Sequence[dict[str, Any]]) -> str:
    """All that was measured, newest last."""
    (about,) = {(x["device"], x["pytorch"], x["nccl"]) for x in lines}
    exchanged, steps = ([x for x in lines if ("megabytes" in x) is wanted] for wanted in (True, False))
    return (
        "# Several GPUs of one host\n\n"
        f"{about[0]}, PyTorch {about[1]}, NCCL {about[2]}, `NCCL_NVLS_ENABLE=0`; {max(x['date'] for x in lines)}. "
        "Written by `python -m bench.ranks --page`.\n\n"
        "## Reduce-scatter in the balanced tree\n\nAn all-to-all of f32 shards and additions where they arrive, beside "
        "`reduce_scatter_tensor`, in one run: the\nmedian of 10 calls (`bench.ranks`).\n\n"
        f"{exchange_table(exchanged)}\n\n"
        "## A step of the mixture of 0.7 billion weights\n\nbf16, weights in shards (FSDP2), 8,192 tokens a GPU, here "
        "in\nblocks of 4,096 (`bench.ranks_training`). Scaling is the time of a step on one GPU over that on several, "
        "of the same\nprogram in one run each.\n\n"
        f"{step_table(steps)}\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", default="1,16,256,1024", help="of f32 on each rank")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--page", action="store_true", help="write the page, and measure nothing")
    a = parser.parse_args(arguments)
    if a.page:
        RESULTS.with_suffix(".md").write_text(page([json.loads(x) for x in RESULTS.read_text().splitlines()]))
        return 0
    return exit_code(lambda: measure(a.device, list(map(int, a.megabytes.split(",")))))


def measure(device: str, sizes: Sequence[int]) -> None:
    """Time both collectives on gradients of so many megabytes. Raises ArgumentError."""
    device = ranks.start(device)
    if not dist.is_initialized():
        raise ArgumentError("one process; accepted: started by torchrun --standalone --nproc-per-node N")
    n, rank = dist.get_world_size(), dist.get_rank()
    arrangement = ranks.Arrangement(n, n, rank)
    for megabytes in sizes:
        length = megabytes * 2**18 // n * n
        gradient = torch.randn(length, device=device)
        shard = torch.empty(length // n, device=device)
        tree = seconds(lambda g=gradient: reduce_scatter([g], arrangement), device)  # type: ignore[misc]
        peer = seconds(lambda s=shard, g=gradient: dist.reduce_scatter_tensor(s, g), device)  # type: ignore[misc]
        made = where(device) | dict(ranks=n, megabytes=megabytes, sent=length * 4 // n * (n - 1))
        if rank == 0:
            print(json.dumps(made | dict(tree_ms=tree * 1e3, peer_ms=peer * 1e3, share=peer / tree)), flush=True)


def exit_code(call: Callable[[], None]) -> int:
    """Of a program on ranks, which then leaves its group."""
    try:
        call()
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
