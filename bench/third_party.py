"""Kernels that a user would call instead, as `tokitai judge` takes them: PyTorch's, and Liger's in Triton for a GPU.

Each is called as the operator of tokitai is: `tokitai judge bench/third_party.py:torch_softmax --op softmax`.
`JUDGED` says which operator each is, and which of its results it has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tokitai.torch.peers import COUNTERPARTS, Make

Tensor = torch.Tensor


def torch_embedding(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, table)


def torch_linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def liger_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, eps: float) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, gamma, beta, eps)


def liger_rms_norm(x: Tensor, gamma: Tensor, *, eps: float) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, gamma, eps, 0.0, "gemma", False)  # all of it in f32


def liger_softmax(x: Tensor) -> Any:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def liger_swiglu(gate: Tensor, up: Tensor) -> Any:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate, up)


# kernel: (operator, its results or None for all, optional inputs that are not given)
JUDGED: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "torch_embedding": ("embedding", None, ()),
    "torch_linear": ("linear", None, ("bias", "residual")),
    "liger_layer_norm": ("layer_norm", "y", ()),
    "liger_rms_norm": ("rms_norm", "y", ()),
    "liger_softmax": ("softmax", None, ()),
    "liger_swiglu": ("swiglu", None, ()),
}
OTHERWISE = ("rms_norm_backward", "cross_entropy_with_grad")  # computed with scalars of the timed calls


def _called(make: Make) -> Callable[..., Any]:
    @functools.wraps(make)
    def call(*tensors: Tensor, **scalars: float) -> Any:
        return make(*tensors, **scalars)()

    return call


for _operator, (_make, _results) in COUNTERPARTS.items():
    if _operator not in OTHERWISE:
        _name = f"torch_{_operator.replace('_erf', '')}"  # PyTorch's gelu is that of erf
        globals()[_name] = _called(_make)
        JUDGED[_name] = _operator, ",".join(_results), ()
