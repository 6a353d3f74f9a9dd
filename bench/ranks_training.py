"""A step of the mixture of 0.7 billion weights on the GPUs of one host, weights in shards, beside plain torch's FSDP2:

NCCL_NVLS_ENABLE=0 torchrun --standalone --nproc-per-node N -m bench.ranks_training [--steps 8] [--accumulator NAME]

Each rank has 8,192 tokens a step, so perfect scaling keeps the time of a step from 1 rank to N. Prints a line of JSON:
milliseconds of a step of both, and which share of ours the reduce-scatter takes on the GPU. `python -m bench.ranks
--page` makes a table of the lines of several N.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bench.gpu_timing import Spans
from bench.plain_mixture import Plain
from bench.ranks import exit_code, where
from bench.training import BATCH, LARGE, LENGTH, WARM, WORDS, batches
from examples.mixture.model import Mixture
from examples.mixture.training import digest_of, spread
from tokitai.errors import ArgumentError
from tokitai.torch import accumulate, ranks
from tokitai.torch.optim import AdamW, clip_grad_norm_
from tokitai.torch.ranks import Gradients, arrange, exchange, gradients


def timed(step: Callable[[Tensor], object], tokens: Sequence[Tensor]) -> float:
    """The median of the milliseconds of a step, over those behind the first ones."""
    taken = []
    for batch in tokens:
        if dist.is_initialized():
            dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken[WARM:])


def by_tokitai(tokens: Sequence[Tensor], accumulator: str) -> dict[str, Any]:
    """Blocks of 4,096 tokens, their gradients added in the tree; the digest of the weights behind the last step."""
    model = Mixture(LARGE, torch.bfloat16, "cuda")
    losses = spread(model, "fsdp")
    arrangement = arrange(len(tokens[0]) * LENGTH)
    summed, parameters = Gradients(losses, arrangement), list(model.parameters())
    optimizer = AdamW(parameters, **WORDS)

    def step(batch: Tensor) -> None:
        for block in summed.blocks():
            total, loss = losses(block.of(batch))
            (total / arrangement.blocks).backward()
            block.record(loss=loss)
        clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    exchanges = Spans(exchange.reduce_scatter)
    with mock.patch.object(gradients, "reduce_scatter", exchanges), accumulate(accumulator):
        taken = timed(step, tokens)
    share = exchanges.seconds() * 1e3 / len(tokens) / taken
    return {"milliseconds": round(taken, 2), "exchange": round(share, 4), "weights": digest_of(model)}


def by_torch(tokens: Sequence[Tensor]) -> dict[str, Any]:
    """The mean over ranks, added by NCCL; each rank has its own rows of the batch."""
    model = Plain(dict(Mixture(LARGE, torch.bfloat16, "cuda").named_parameters()), LARGE, LENGTH)
    if dist.is_initialized() and dist.get_world_size() > 1:
        for part in (*model.blocks, model):
            fully_shard(part, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    parameters, rank = list(model.parameters()), dist.get_rank() if dist.is_initialized() else 0
    optimizer = torch.optim.AdamW(parameters, fused=True, **WORDS)

    def step(batch: Tensor) -> None:
        total, _ = model(batch[rank * BATCH : (rank + 1) * BATCH])
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return {"milliseconds": round(timed(step, tokens), 2)}


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks_training", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulator", default="f32", help="of products of 16-bit operands")
    a = parser.parse_args(arguments)
    return exit_code(lambda: measure(a.steps, a.accumulator))


def measure(steps: int, accumulator: str) -> None:
    """Time steps of both. Raises ArgumentError."""
    if steps <= WARM:
        raise ArgumentError(f"--steps {steps}; accepted: more than {WARM}, which are not timed")
    ranks.start("cuda")
    count = dist.get_world_size() if dist.is_initialized() else 1
    tokens = [torch.cat(b) for b in zip(*(batches(steps, "cuda", rank) for rank in range(count)), strict=True)]
    found = where("cuda") | {"ranks": count, "accumulator": accumulator}
    found["tokitai"] = by_tokitai(tokens, accumulator)
    torch.cuda.empty_cache()
    found["torch"] = by_torch(tokens)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
