"""Kernels that a user would call instead, as `tokitai judge` takes them: PyTorch's, and Liger's in Triton for a GPU.

Each is called as the operator of tokitai is: `tokitai judge bench/third_party.py:torch_softmax --op softmax`.
`JUDGED` says which operator each is, and which of its results it has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def torch_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[1:], gamma, beta, eps)


def torch_layer_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Any:
    wide = [t[:, None].to(x.dtype if x.device.type == "cpu" else torch.float32) for t in (mean, rstd)]
    dx, dgamma, dbeta = torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[1:], *wide, gamma, gamma, [True] * 3)
    return dx, dbeta, dgamma


def torch_rms_norm(x: Tensor, gamma: Tensor, *, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[1:], gamma, eps)


def torch_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def torch_softmax_backward(dy: Tensor, y: Tensor) -> Any:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def torch_log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def torch_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def torch_gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def torch_gelu_backward(dy: Tensor, x: Tensor) -> Any:
    return torch.ops.aten.gelu_backward(dy, x)


def torch_silu(x: Tensor) -> Tensor:
    return F.silu(x)


def torch_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


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
    "torch_layer_norm": ("layer_norm", "y", ()),
    "torch_layer_norm_backward": ("layer_norm_backward", None, ()),
    "torch_rms_norm": ("rms_norm", "y", ()),
    "torch_softmax": ("softmax", None, ()),
    "torch_softmax_backward": ("softmax_backward", None, ()),
    "torch_log_softmax": ("log_softmax", None, ()),
    "torch_gelu": ("gelu_erf", None, ()),
    "torch_gelu_tanh": ("gelu_tanh", None, ()),
    "torch_gelu_backward": ("gelu_erf_backward", None, ()),
    "torch_silu": ("silu", None, ()),
    "torch_swiglu": ("swiglu", None, ()),
    "torch_embedding": ("embedding", None, ()),
    "torch_linear": ("linear", None, ("bias", "residual")),
    "liger_layer_norm": ("layer_norm", "y", ()),
    "liger_rms_norm": ("rms_norm", "y", ()),
    "liger_softmax": ("softmax", None, ()),
    "liger_swiglu": ("swiglu", None, ()),
}
