"""Linear layers whose weights are sharded over the ranks of a device mesh, to the bits of whole ones.

`torch.distributed.tensor.parallel` shards them: ``ColwiseParallel`` along their outputs, ``RowwiseParallel`` along
their inputs. All sums of a layer but one, forward and backward, are of what one rank has: they are those of the
operators on shards. One is over ranks, and exact: of a weight that is sharded along its outputs the gradient of its
input, of one that is sharded along its inputs the result.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from .. import ops
from ..errors import ArgumentError
from ..lang.graph import FIXED_BITS
from .autocast import cast as to_autocast
from .custom_ops import plain
from .dispatch import custom_op
from .fixed_point import product_over_ranks
from .linears import ToInput, keep_linear, linear_gradients, linear_op
from .shapes import check_dtypes
from .shards import named_group
from .transforms import refuse_second_derivatives, refuse_vmap


def linear(
    x: Tensor, weight: DTensor, bias: Tensor | None, residual: Tensor | None, activation: str, accumulator: str | None
) -> Tensor:
    """As `functional.linear`, of DTensors on one mesh of 1 dimension.

    A weight of Shard(0), with a bias of Shard(0), takes a replicated x of (..., inputs), and gives (..., outputs),
    sharded along the last dimension. One of Shard(1), with a replicated bias, takes an x that is sharded so, and gives
    a replicated result. A collective call on the weight's mesh.

    Raises ArgumentError for other placements, another mesh, features that are no multiple of the ranks, a residual, an
    activation behind a sum over ranks, and for such a sum in an accumulator that is not exact.
    """
    mesh, ranks = weight.device_mesh, weight.device_mesh.size()
    if mesh.ndim != 1 or weight.placements not in ((Shard(0),), (Shard(1),)):
        raise ArgumentError(
            f"linear: weight with placements {weight.placements} on {mesh}; accepted: (Shard(dim=0),) or "
            "(Shard(dim=1),) on a mesh of 1 dimension"
        )
    by_columns = weight.placements == (Shard(0),)
    kind = f"a weight sharded along its {'outputs' if by_columns else 'inputs'}"
    last: Placement = Shard(x.ndim - 1)
    _check("x", x, mesh, Replicate() if by_columns else last, kind)
    if bias is not None:
        _check("bias", bias, mesh, Shard(0) if by_columns else Replicate(), kind)
    if x.shape[-1] != weight.shape[1]:
        raise ArgumentError(f"linear: x of {x.shape[-1]} features, weight of {weight.shape[1]}; accepted: as many")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ArgumentError(f"linear: bias of shape {tuple(bias.shape)}; accepted: ({weight.shape[0]},)")
    sharded = weight.shape[0 if by_columns else 1]
    if sharded % ranks:
        raise ArgumentError(f"linear: {kind}, {sharded} of them over {ranks} ranks; accepted: a multiple of the ranks")
    if residual is not None:
        raise ArgumentError(f"linear: a residual beside {kind}; accepted: add it to the result")
    if not by_columns and activation != "none":
        raise ArgumentError(f"linear: activation={activation!r} behind a sum over ranks; accepted: 'none'")
    x, weight, bias = cast("tuple[DTensor, DTensor, DTensor | None]", to_autocast("lower", [x, weight, bias]))
    check_dtypes(ops.linear, {n: t for n, t in dict(x=x, weight=weight, bias=bias).items() if t is not None})
    chosen = linear_op.accumulators.chosen(accumulator, x.dtype)
    if by_columns and x.requires_grad and torch.is_grad_enabled():
        _check_exact(chosen, ranks, f"the gradient of the input of {kind}")
    elif not by_columns:
        _check_exact(chosen, ranks, f"the result of {kind}")
    parts = x.to_local(), weight.to_local(), None if bias is None else bias.to_local()
    made = (_columns if by_columns else _rows)(*parts, activation, chosen, mesh.get_group().group_name)
    return DTensor.from_local(made, mesh, (last if by_columns else Replicate(),), run_check=False)


def _check(name: str, t: Tensor, mesh: Any, placement: Placement, kind: str) -> None:
    """Raises ArgumentError for what is no DTensor on the mesh with this placement."""
    if not isinstance(t, DTensor):
        raise ArgumentError(
            f"linear: {name} is no DTensor beside {kind}; accepted: a layer in parallelize_module, with "
            f"ColwiseParallel or RowwiseParallel, or a DTensor with placements ({placement},)"
        )
    if t.device_mesh != mesh or t.placements != (placement,):
        raise ArgumentError(
            f"linear: {name} with placements {t.placements} on {t.device_mesh}; accepted beside {kind}: "
            f"({placement},) on {mesh}"
        )


def _check_exact(accumulator: str, ranks: int, what: str) -> None:
    """Raises ArgumentError for an accumulator in which a sum over several ranks is not exact."""
    if ranks > 1 and accumulator not in FIXED_BITS:
        raise ArgumentError(
            f"linear: accumulator={accumulator!r} of a sum over {ranks} ranks, {what}; accepted: "
            f"{', '.join(map(repr, FIXED_BITS))}"
        )


# ------------------------------------------------------------------ shards as custom ops, which name the group
@custom_op("tokitai::product_over_ranks")
def _over_ranks(left: Tensor, right: Tensor, bias: Tensor | None, accumulator: str, group: str) -> Tensor:
    """left right^T + bias of (..., k) and (cols, k), of which each rank of several has a part along k: added up in f32
    and rounded once to the format of both, NaN as the canonical one. A collective call."""
    rows = plain(left).reshape(-1, left.shape[-1])
    made = product_over_ranks(rows, plain(right), FIXED_BITS[accumulator], named_group(group))
    made = (made if bias is None else made + plain(bias).to(torch.float32)).to(right.dtype)
    return made.masked_fill_(made.isnan(), torch.nan).reshape(*left.shape[:-1], len(right))


@custom_op("tokitai::linear_columns")
def _columns(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, accumulator: str, group: str
) -> Tensor:  # fmt: skip
    """The shard of a result from the whole input and the shard of a weight along its outputs."""
    y: Tensor = linear_op([plain(x), plain(weight), plain(bias)], dict(activation=activation, accumulator=accumulator))
    return y


@custom_op("tokitai::linear_rows")
def _rows(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, accumulator: str, group: str) -> Tensor:
    """The whole result from the shards of an input and of a weight along its inputs."""
    if dist.get_world_size(named_group(group)) == 1:
        return cast("Tensor", _columns.run(x, weight, bias, activation, accumulator, group))
    return cast("Tensor", _over_ranks.run(x, weight, bias, accumulator, group))


def _shapes(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, activation, accumulator, ctx.group = inputs
    keep_linear(ctx, (*tensors, None), output, dict(activation=activation, accumulator=accumulator))


def _gradients(ctx: Any, dy: Tensor, to_input: ToInput | None = None) -> tuple[Tensor | None, ...]:
    return (*linear_gradients(ctx, dy, to_input)[:3], None, None, None)


def _gradients_of_columns(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    def over_ranks(dh: Tensor, weight: Tensor) -> Tensor:
        return cast("Tensor", _over_ranks(dh, weight.T, None, ctx.words["accumulator"], ctx.group))

    return _gradients(ctx, dy, over_ranks if dist.get_world_size(named_group(ctx.group)) > 1 else None)


_over_ranks.register_autograd(refuse_second_derivatives("linear"))
_columns.register_autograd(_gradients_of_columns, setup_context=_keep)
_rows.register_autograd(_gradients, setup_context=_keep)
for _op in (_over_ranks, _columns, _rows):
    _op.register_fake(_shapes)
    _op.register_vmap(refuse_vmap("linear"))
