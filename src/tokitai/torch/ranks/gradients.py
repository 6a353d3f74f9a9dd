"""Gradients whose unit is a block of tokens of the global batch: one pass a block, and the blocks meet in the tree.

Each rank passes through its own blocks one after another. What a pass leaves in ``.grad`` is the block's gradient, in
the format of the weights. It is taken to f32, waits as in a binary counter, and after the last block the ranks exchange
the roots. The total is rounded once to the format of the weights. So neither the number of ranks, nor how many blocks
each accumulates, nor how weights are sharded shows in a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from ...errors import ArgumentError
from ..tree import Partial
from .arrangement import Arrangement
from .exchange import all_reduce, reduce_scatter, sum_of_blocks


@dataclass
class Block:
    """One pass of a rank: the block ``index`` of the global batch. Where ranks have not as many blocks, one that has
    fewer first passes through its first block once more, ``idle``: nothing of that pass counts."""

    index: int
    blocks: int
    idle: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)

    def of(self, batch: Tensor) -> Tensor:
        """The rows of the block, of a global batch whose first dimension is that of sequences, or of tokens. Raises
        ArgumentError for rows that are no multiple of the blocks."""
        rows, rest = divmod(len(batch), self.blocks)
        if rest or not rows:
            raise ArgumentError(f"a batch of {len(batch)} rows; accepted: a multiple of its {self.blocks} blocks")
        return batch[self.index * rows : (self.index + 1) * rows]

    def record(self, **values: Tensor | float) -> None:
        """Numbers of this block, such as its loss, of which `Gradients.totals` has the sums over all blocks."""
        self.values |= {n: torch.as_tensor(v).detach().reshape(()) for n, v in values.items()}


class Observer(Protocol):
    """Who is called as a step goes on."""

    def pass_begins(self, block: Block) -> None:
        """Ahead of the forward pass of a block."""

    def pass_ends(self, block: Block, gradients: Sequence[tuple[str, Tensor]]) -> None:
        """Behind the backward pass of a block, with its gradients where they lie here as a whole."""

    def reduced(self, gradients: Gradients) -> None:
        """All blocks are in ``.grad`` and in the totals."""


class Gradients:
    """The gradients of a model: on one rank, of replicas, in `DistributedDataParallel`, or sharded by `fully_shard`.

    `blocks` gives the passes of a step; behind the last one each ``.grad`` holds the sum over all blocks, and `totals`
    the sums of what blocks recorded. A model in DistributedDataParallel gets a communication hook, a sharded one a
    reduce-scatter on each of its modules, here and for good.

    Raises ArgumentError for what cannot have the same bits on any number of ranks: hybrid sharding, mixed precision of
    DistributedDataParallel, another process group than the arrangement's, weights of tensor-parallel layers that are
    sharded over ranks of the arrangement. A pass raises it for a weight without a
    gradient, for a reduction in 16 bits, and where gradients were accumulated without being reduced.
    """

    def __init__(self, model: Module, arrangement: Arrangement) -> None:
        self.model, self.arrangement = model, arrangement
        self.observer: Observer | None = None
        self.totals: dict[str, Tensor] = {}
        self.named = [(n.removeprefix("module."), p) for n, p in model.named_parameters() if p.requires_grad]
        sharded = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self._way: _Local | _Hooked | _Sharded
        if not sharded:
            _check_shards(self.named, arrangement)
        if isinstance(model, DistributedDataParallel):
            self._way = _Hooked(model, arrangement, self.named)
        elif sharded and arrangement.ranks > 1:
            self._way = _Sharded(sharded, arrangement, self.named)
        else:
            self._way = _Local(arrangement, self.named)

    @property
    def whole(self) -> bool:
        """Whether a rank sees all of a block's gradient."""
        return not isinstance(self._way, _Sharded)

    def blocks(self) -> Iterator[Block]:
        """The passes of one step: each gives a block, for which the caller runs the model forwards and backwards."""
        a = self.arrangement
        idle = a.turns - len(a.mine)
        every = [Block(a.mine[0], a.blocks, idle=True) for _ in range(idle)] + [Block(i, a.blocks) for i in a.mine]
        for _, p in self.named:
            p.grad = None
        self._way.begin()
        for turn, block in enumerate(every):
            last = turn == len(every) - 1
            self._way.pass_begins(block, last)
            if self.observer is not None:
                self.observer.pass_begins(block)
            yield block
            seen = self._way.pass_ends(block, last)
            if self.observer is not None:
                self.observer.pass_ends(block, seen)
        self.totals = self._sum([b for b in every if not b.idle])
        if self.observer is not None:
            self.observer.reduced(self)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all blocks of what this rank has of each of its own, (blocks, ...), in f32 and in the tree; the
        same on every rank. A collective call. Raises ArgumentError for another number of blocks."""
        if values.ndim == 0 or len(values) != len(self.arrangement.mine):
            mine = len(self.arrangement.mine)
            raise ArgumentError(f"values of shape {tuple(values.shape)}; accepted: ({mine}, ...), one for each block")
        return sum_of_blocks(values, self.arrangement)

    def _sum(self, mine: list[Block]) -> dict[str, Tensor]:
        names = list(mine[0].values)
        if any(list(b.values) != names for b in mine):
            raise ArgumentError(f"blocks recorded {[list(b.values) for b in mine]}; accepted: the same names in each")
        if not names:
            return {}
        device = next((p.device for _, p in self.named), torch.device("cpu"))
        rows = torch.stack([torch.stack([v.to(device, torch.float32) for v in b.values.values()]) for b in mine])
        return dict(zip(names, self.sum(rows).unbind(0), strict=True))


Named = Sequence[tuple[str, Tensor]]


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _added(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(a, b)
    return a


class _Local:
    """One rank, or replicas: what each pass leaves is taken, and the total put back."""

    def __init__(self, arrangement: Arrangement, named: Named) -> None:
        self.arrangement, self.named = arrangement, named
        self.partial: Partial[list[Tensor]]

    def begin(self) -> None:
        self.partial = Partial(self.arrangement.blocks, self.arrangement.mine.start, _added)

    def pass_begins(self, block: Block, last: bool) -> None:
        pass

    def pass_ends(self, block: Block, last: bool) -> list[tuple[str, Tensor]]:
        seen = self.take(block)
        if last:
            self.put()
        return seen

    @torch.no_grad()
    def take(self, block: Block) -> list[tuple[str, Tensor]]:
        """The gradients of a block, which wait in f32 from here on."""
        seen = []
        for name, p in self.named:
            if p.grad is None:
                raise ArgumentError(
                    f"{name} has no gradient behind block {block.index}; accepted: weights that each block has a "
                    "gradient of, or requires_grad=False ahead of Gradients"
                )
            seen.append((name, p.grad.detach()))
            p.grad = None
        if not block.idle:
            self.partial.push([_local(g).to(torch.float32, copy=True) for _, g in seen])
        return seen

    @torch.no_grad()
    def put(self) -> None:
        """The sum over all blocks, in the format of each weight."""
        own = self.partial.values()
        for dtype in dict.fromkeys(p.dtype for _, p in self.named):
            places = [i for i, (_, p) in enumerate(self.named) if p.dtype == dtype]
            flat = [torch.cat([root[i].reshape(-1) for i in places]) for root in own]
            whole = all_reduce(flat, self.arrangement, dtype)
            for i, part in zip(places, torch.split(whole, [own[0][i].numel() for i in places]), strict=True):
                p = self.named[i][1]
                made = part.view(own[0][i].shape)
                p.grad = _like(p, made.clone())


def _like(p: Tensor, local: Tensor) -> Tensor:
    """The part that is here, sharded as a weight is, or as it is."""
    if not isinstance(p, DTensor):
        return local
    given: dict[str, Any] = dict(shape=p.shape, stride=p.stride(), run_check=False)
    made: Tensor = DTensor.from_local(local, p.device_mesh, p.placements, **given)
    return made


class _Hooked(_Local):
    """DistributedDataParallel: all blocks but the last wait here; the last one goes through its buckets."""

    def __init__(self, model: DistributedDataParallel, arrangement: Arrangement, named: Named) -> None:
        super().__init__(arrangement, named)
        self.model = model
        if model.mixed_precision is not None:
            raise ArgumentError("DistributedDataParallel with mixed_precision; accepted: without it")
        _check_group(model.process_group, arrangement)
        self.place = {p: i for i, (_, p) in enumerate(named)}
        model.register_comm_hook(self, _hook)

    def pass_begins(self, block: Block, last: bool) -> None:
        self.model.require_backward_grad_sync = last  # as its no_sync()

    def pass_ends(self, block: Block, last: bool) -> list[tuple[str, Tensor]]:
        if not last:
            return self.take(block)
        return self.seen

    def begin(self) -> None:
        super().begin()
        self.seen: list[tuple[str, Tensor]] = []

    @torch.no_grad()
    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """The last block's gradients of some weights; their sum over all blocks."""
        a, flat = self.arrangement, bucket.buffer()
        places = [self.place[p] for p in bucket.parameters()]
        self.seen += [(self.named[i][0], g.clone()) for i, g in zip(places, bucket.gradients(), strict=True)]
        partial: Partial[Tensor] = Partial(a.blocks, a.mine.start, torch.Tensor.add_)
        for node, root in self.partial.waiting:
            partial.join(node, torch.cat([root[i].reshape(-1) for i in places]))
        partial.push(flat.to(torch.float32, copy=True))
        made = all_reduce(partial.values(), a, flat.dtype)
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)
        future.set_result(made)
        return future


def _hook(way: _Hooked, bucket: Any) -> Any:
    return way.reduce(bucket)


_hook.__annotations__ = {
    "bucket": vars(dist)["GradBucket"],
    "return": torch.futures.Future[Tensor],
}  # torch compares them


class _Sharded:
    """Modules of `fully_shard`: each has a reduce-scatter of its own."""

    def __init__(self, modules: Sequence[FSDPModule], arrangement: Arrangement, named: Named) -> None:
        self.named = named
        for name, p in named:
            if not isinstance(p, DTensor) or p.placements[0].is_replicate():
                found = f"has placements {p.placements}" if isinstance(p, DTensor) else "is not sharded"
                raise ArgumentError(
                    f"{name} {found}; accepted: all weights in fully_shard over a mesh of 1 dimension, the first of "
                    "those of a tensor-parallel layer"
                )
            _check_group(p.device_mesh.get_group(0), arrangement)
        self.every = [TreeReduceScatter(arrangement) for _ in modules]
        for module, comm in zip(modules, self.every, strict=True):
            module.set_custom_reduce_scatter(cast(Any, comm))
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self.used: set[int] = set()

    def begin(self) -> None:
        self.used = set()
        for comm in self.every:
            comm.begin()

    def pass_begins(self, block: Block, last: bool) -> None:
        for comm in self.every:
            comm.idle, comm.last, comm.calls = block.idle, last, 0

    def pass_ends(self, block: Block, last: bool) -> list[tuple[str, Tensor]]:
        calls = [comm.calls for comm in self.every]
        used = {i for i, n in enumerate(calls) if n}
        if not used or max(calls) > 1 or (self.used and used != self.used):
            raise ArgumentError(
                f"the backward pass of block {block.index} reduced its sharded modules {calls} times; accepted: once "
                "each that has weights, with set_requires_gradient_sync(True)"
            )
        self.used = used
        for name, p in self.named:
            if p.grad is None:
                raise ArgumentError(f"{name} has no gradient behind block {block.index}; accepted: one in each block")
            if not last:
                p.grad = None
        return []


class TreeReduceScatter:
    """A reduce-scatter for `FSDPModule.set_custom_reduce_scatter`: f32, a sum, in the tree over blocks.

    It is called once for each block. All blocks but the last wait here, and give -0.0, which changes no sum. Raises
    ArgumentError for another operation than a sum, another format than f32, another group, and an asynchronous call.
    """

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self.idle, self.last, self.calls = False, arrangement.turns == 1, 0
        self.begin()

    def begin(self) -> None:
        """Forget what waits: a new step."""
        self.partial: Partial[Tensor] = Partial(self.arrangement.blocks, self.arrangement.mine.start, torch.Tensor.add_)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent and received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:  # fmt: skip
        """One block; behind the last one, the shard of this rank of the sum over all blocks of all ranks."""
        if op != dist.ReduceOp.SUM:
            raise ArgumentError(f"a reduction by {op}; accepted: SUM, with set_force_sum_reduction_for_comms(True)")
        if input_tensor.dtype != torch.float32:
            raise ArgumentError(
                f"a reduction in {input_tensor.dtype}; accepted: torch.float32, by "
                "fully_shard(..., mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))"
            )
        if async_op:
            raise ArgumentError("an asynchronous reduce-scatter; accepted: async_op=False")
        _check_group(group, self.arrangement)
        self.calls += 1
        if not self.idle:
            self.partial.push(input_tensor.clone())
        if not self.last:
            output_tensor.fill_(-0.0)
            return
        output_tensor.copy_(reduce_scatter(self.partial.values(), self.arrangement))
        self.begin()


def _check_shards(named: Named, arrangement: Arrangement) -> None:
    """Raises ArgumentError for a weight of which ranks of the arrangement have several parts: they would add up."""
    if arrangement.ranks == 1:
        return
    here = set(dist.get_process_group_ranks(arrangement.group))
    for name, p in named:
        if isinstance(p, DTensor) and len(shared := here.intersection(p.device_mesh.mesh.flatten().tolist())) > 1:
            raise ArgumentError(
                f"{name} is sharded over ranks of the arrangement, {sorted(shared)}; accepted: fully_shard, or arrange("
                "..., group=) of ranks that have the same part, as those of another dimension of the mesh"
            )


def _check_group(group: Any, arrangement: Arrangement) -> None:
    """Raises ArgumentError where the ranks are others than those of the arrangement."""
    if arrangement.ranks == 1 and not dist.is_initialized():
        return
    found, here = dist.get_process_group_ranks(group), dist.get_process_group_ranks(arrangement.group)
    if found != here:
        raise ArgumentError(f"a model over the ranks {found}; accepted: those of the arrangement, {here}")
