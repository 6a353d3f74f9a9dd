"""The operators of `tokitai.ops` with gradients, by their own names and arguments.

Each is a custom op of `torch.library`, so that autograd takes its gradient and `torch.compile` may carry it through a
graph. All tensors of a call share one storage format; results and gradients are what the operators of the same names
give, to the last bit. `functional` has what torch has too, named and shaped as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .custom_ops import torch_op
from .derive import differentiable


def _over_rows(slope: Tensor, named: Mapping[str, Any]) -> Tensor:
    """The gradient of each row of a loss that was summed, or averaged over the rows that are kept, by their
    weights where there are some."""
    logits, weight = named["logits"], named.get("weight")
    if named["reduction"] == "mean" and weight is not None:  # the sum of the operator, to the last bit
        kept = named["target"] != named["ignore_index"]
        of_rows = torch.where(kept, weight[torch.where(kept, named["target"], 0)], 0).reshape(-1, 1)
        total = torch_op(ops.linear_backward_bias, several=True)((of_rows,), {})[0].reshape(())
        slope = slope * (1 / torch.where(total == 0, 1, total))
    elif named["reduction"] == "mean":
        kept = (named["target"] != named["ignore_index"]).sum() if "ignore_index" in named else logits[..., 0].numel()
        slope = slope * (1 / torch.as_tensor(kept, device=slope.device).clamp(min=1).to(slope.dtype))
    return slope.expand(logits.shape[:-1])


layer_norm = differentiable(ops.layer_norm, autocast="f32")
rms_norm = differentiable(ops.rms_norm, autocast="f32")
add_layer_norm = differentiable(ops.add_layer_norm, same={"residual": "x"}, autocast="f32")
add_rms_norm = differentiable(ops.add_rms_norm, same={"residual": "x"}, autocast="f32")
softmax = differentiable(ops.softmax, autocast="f32")
masked_softmax = differentiable(ops.masked_softmax, autocast="f32")
log_softmax = differentiable(ops.log_softmax, autocast="f32")
cross_entropy = differentiable(ops.cross_entropy, constant=["weight"], spread=_over_rows, autocast="f32")
soft_cross_entropy = differentiable(ops.soft_cross_entropy, constant=["target"], spread=_over_rows, autocast="f32")
attention = differentiable(ops.attention, autocast="lower")
gelu_erf = differentiable(ops.gelu_erf)
gelu_tanh = differentiable(ops.gelu_tanh)
silu = differentiable(ops.silu)
swiglu = differentiable(ops.swiglu)
geglu = differentiable(ops.geglu)
dropout = differentiable(ops.dropout)
rotary = differentiable(ops.rotary, constant=["frequency"])
rotate_pairs = differentiable(ops.rotate_pairs, constant=["cos", "sin"])
scale = differentiable(ops.scale)
clip = differentiable(ops.clip)
router_logits = differentiable(ops.router_logits, autocast="lower")
router = differentiable(ops.router, autocast="f32")
expert_load = differentiable(ops.expert_load, constant=["load"], autocast="f32")
load_balance_loss = differentiable(ops.load_balance_loss, constant=["load"])
router_z_loss = differentiable(ops.router_z_loss, spread=_over_rows, autocast="f32")
