"""What ranks are sent by the tests of `tokitai.torch.ranks`: a very small mixture, trained in any arrangement."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from examples.mixture.model import Mixture, Shape
from tokitai.torch import accumulate, nn
from tokitai.torch import functional as F
from tokitai.torch.optim import AdamW, clip_grad_norm_
from tokitai.torch.ranks import Gradients, arrange

TINY = Shape(vocabulary=32, features=16, layers=1, heads=2, key_heads=1, experts=3, hidden=8)
WIDER = Shape(vocabulary=32, features=64, layers=1, heads=2, key_heads=1, experts=3, hidden=64)
LENGTH = 16


class Losses(Module):
    """A model whose forward pass is its losses."""

    def __init__(self, model: Mixture) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.loss(tokens)


class Small(torch.nn.Module):
    """A norm, a layer that widens, an activation, one that narrows, and what is left of the input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.norm = nn.LayerNorm(32, dtype=dtype)
        self.up = nn.Linear(32, 96, dtype=dtype, generator=draw)
        self.down = nn.Linear(96, 32, dtype=dtype, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        whole = x.full_tensor() if hasattr(x, "full_tensor") else x
        total.update(name.encode() + whole.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def trained(
    group: Any, way: str, dtype: str, blocks: int, block: int = LENGTH, steps: int = 20,
    shape: Shape = TINY,
) -> tuple[str, ...]:  # fmt: skip
    """Losses, norms and weights of a run, as digests."""
    model = Mixture(shape, getattr(torch, dtype), "cpu")
    if way == "fsdp":
        more: dict[str, Any] = dict(
            mesh=DeviceMesh.from_group(group, "cpu"), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32)
        )
        for part in model.blocks:
            fully_shard(part, **more)
        fully_shard(model, **more)
    losses: Module = Losses(model)
    wrapped = DistributedDataParallel(losses, process_group=group, bucket_cap_mb=0.002) if way == "ddp" else losses
    arrangement = arrange(blocks * LENGTH, block, group)
    gradients = Gradients(wrapped, arrangement)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(steps):
        batch = torch.randint(0, 32, (blocks, LENGTH + 1), generator=draw)
        for one in gradients.blocks():
            total, loss = wrapped(one.of(batch))
            (total / arrangement.blocks).backward()
            one.record(loss=loss, tokens=LENGTH)
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert gradients.totals["tokens"] == blocks * LENGTH // block * LENGTH
        seen += [gradients.totals["loss"], norm.reshape(())]
    return digest({"seen": torch.stack(seen)}), digest(dict(model.named_parameters()))


def trained_by(group: Any, accumulator: str, way: str) -> tuple[str, ...]:
    """As `trained`, in bf16, of a model whose sums are longer than a step of a matrix unit."""
    with accumulate(accumulator):
        return trained(group, way, "bfloat16", 4, shape=WIDER)
