"""The global norm of gradients that are sharded over ranks, in the order of `ops.global_norm`.

Each rank adds the squares of a run of neighbouring elements as far as the tree over all elements of a tensor lets it.
The sums of those subtrees, a few numbers a tensor, are gathered and added by every rank in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..errors import ArgumentError
from ..ops import clip_global_norm
from ..runtime.binding import check_params
from .shards import gathered, run_of
from .tree import Partial, roots, total, width


def clip_sharded(grads: Sequence[Tensor], max_norm: float, error_if_nonfinite: bool) -> Tensor:
    """As `optim.clip_grad_norm_`, for gradients of which some are DTensors, sharded in any way. A collective call on
    their meshes. Raises ArgumentError for others that are not the same on each rank, and RuntimeError for a norm that
    is infinite or NaN where ``error_if_nonfinite`` is set."""
    check_params(clip_global_norm, dict(max_norm=max_norm))
    norm = _norm([g for g in grads if g.numel()])
    made = torch.tensor(norm, device=grads[0].device)
    if error_if_nonfinite and not np.isfinite(norm):
        accepted = "a finite one, or error_if_nonfinite=False"
        raise RuntimeError(f"the norm of the gradients is {norm}; accepted: {accepted}")
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.minimum(np.float32(max_norm) / norm, np.float32(1)))
    for g in grads:
        here = g.to_local() if isinstance(g, DTensor) else g
        here.copy_(here.to(torch.float32) * factor)
    return made


def finite(grads: Sequence[Tensor]) -> Tensor:
    """Whether no element of sharded gradients, on any rank that holds a part, is infinite or NaN. A collective call:
    a rank whose parts are all empty takes part in it."""
    every = [g for g in grads if isinstance(g, DTensor)]
    flags = []
    for mesh in dict.fromkeys(g.device_mesh for g in every):
        parts = [g.to_local().isfinite().all() for g in every if g.device_mesh == mesh]
        flag = torch.stack(parts).all().to(torch.int32)
        for dimension in range(mesh.ndim):
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=mesh.get_group(dimension))
        flags.append(flag > 0)
    return torch.stack(flags).all()


def _norm(grads: Sequence[Tensor]) -> np.float32:
    """The norm of tensors of 1 element or more."""
    whole = {i: _squares(g.reshape(-1), g.numel(), 0)[0] for i, g in enumerate(grads) if not isinstance(g, DTensor)}
    sums: dict[int, np.float32] = {i: x.cpu().numpy()[0] for i, x in whole.items()}
    every = {i: g for i, g in enumerate(grads) if isinstance(g, DTensor)}
    for mesh in dict.fromkeys(g.device_mesh for g in every.values()):
        _check_replicas(list(whole.values()), mesh)
        sums |= _sums({i: g for i, g in every.items() if g.device_mesh == mesh}, mesh)
    made: np.float32 = np.sqrt(total([sums[i] for i in range(len(grads))], _add)) if grads else np.float32(0)
    return made


def _check_replicas(sums: Sequence[Tensor], mesh: DeviceMesh) -> None:
    """Raises ArgumentError, on every rank, where ranks have not the same gradients of weights that are not sharded."""
    if not sums:
        return
    bits = gathered(torch.cat(list(sums)).view(torch.int32), mesh)
    if (bits != bits[0]).any():
        raise ArgumentError(
            "gradients beside sharded ones are not the same on each rank; accepted: replicas, of whole batches"
        )


def _sums(grads: dict[int, DTensor], mesh: DeviceMesh) -> dict[int, np.float32]:
    """The sums of squares of tensors on one mesh, by their numbers."""
    runs = [run_of(g) for g in grads.values()]
    device = runs[0][0].device
    ends = gathered(torch.tensor([[first, first + len(x)] for x, first in runs], device=device), mesh).tolist()
    nodes = [[roots(g.numel(), *end) for g, end in zip(grads.values(), of_rank, strict=True)] for of_rank in ends]
    own = [v for g, (x, first) in zip(grads.values(), runs, strict=True) for v in _squares(x, g.numel(), first)]
    sent = torch.zeros(max(sum(map(len, of_rank)) for of_rank in nodes), dtype=torch.float32, device=device)
    if own:
        sent[: sum(map(len, own))] = torch.cat(own)
    arrived = [iter(x) for x in gathered(sent, mesh).cpu().numpy()]
    sums: dict[int, np.float32] = {}
    for number, (i, g) in enumerate(grads.items()):
        partial: Partial[np.float32] = Partial(g.numel(), 0, _add)
        parts = [[(n, next(values)) for n in of_rank[number]] for of_rank, values in zip(nodes, arrived, strict=True)]
        for rank in sorted(range(len(parts)), key=lambda r: ends[r][number][0]):
            for node, value in parts[rank]:
                partial.join(node, value)
        sums[i] = partial.whole()
    return sums


def _add(a: np.float32, b: np.float32) -> np.float32:
    with np.errstate(over="ignore", invalid="ignore"):
        made: np.float32 = a + b
    return made


def _squares(x: Tensor, leaves: int, first: int) -> list[Tensor]:
    """The sums of squares of the subtrees that elements ``first`` and on make, in the order of `tree.roots`."""
    wide = x.to(torch.float32)
    values, left, right = wide * wide, list[Tensor](), list[Tensor]()
    level, last = 0, first + len(x)
    while first < last:
        count = width(leaves, level)
        if count == 1:
            left.append(values)
            break
        if first % 2:
            left.append(values[:1])
            values, first = values[1:], first + 1
        if last % 2 and last < count and first < last:
            right.append(values[-1:])
            values, last = values[:-1], last - 1
        pairs = len(values) // 2 * 2
        values = torch.cat([values[0:pairs:2] + values[1:pairs:2], values[pairs:]])
        first, last, level = first // 2, (last + 1) // 2, level + 1
    return left + right[::-1]
