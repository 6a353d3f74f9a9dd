"""The reduce-scatter in the balanced tree beside NCCL's own, on the GPUs of one host:

NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node N -m bench.ranks [--megabytes 1,16,256] [--device cuda|cpu]

Prints a line of JSON for each size: milliseconds of both, bytes that a rank sends, and the share of NCCL's speed. Each
rank has one block. With --device cpu the collectives are gloo's, which shows that the program runs and nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tokitai.errors import ArgumentError, TokitaiError
from tokitai.torch import ranks
from tokitai.torch.ranks.exchange import reduce_scatter

REPEATS = 10


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", default="1,16,256,1024", help="of f32 on each rank")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    a = parser.parse_args(arguments)
    try:
        device = ranks.start(a.device)
        if not dist.is_initialized():
            raise ArgumentError("one process; accepted: started by torchrun --standalone --nproc-per-node N")
        n, rank = dist.get_world_size(), dist.get_rank()
        arrangement = ranks.Arrangement(n, n, rank)
        for megabytes in map(int, a.megabytes.split(",")):
            length = megabytes * 2**18 // n * n
            gradient = torch.randn(length, device=device)
            shard = torch.empty(length // n, device=device)
            tree = seconds(lambda g=gradient: reduce_scatter([g], arrangement), device)  # type: ignore[misc]
            peer = seconds(lambda s=shard, g=gradient: dist.reduce_scatter_tensor(s, g), device)  # type: ignore[misc]
            made = dict(ranks=n, device=a.device, megabytes=megabytes, sent=length * 4 // n * (n - 1))
            if rank == 0:
                print(json.dumps(made | dict(tree_ms=tree * 1e3, peer_ms=peer * 1e3, share=peer / tree)), flush=True)
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
