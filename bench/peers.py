"""The same inputs for an operator of ours and for its counterpart in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

Array = np.ndarray[Any, Any]
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_EPS = 1e-5


@dataclass(frozen=True)
class Peer:
    """Tensors and scalars for our operator, the call of PyTorch's, and our names for what that returns, in order."""

    tensors: tuple[Array, ...]
    scalars: Mapping[str, float]
    call: Callable[[], Any]
    results: tuple[str, ...]


def as_array(tensor: Any) -> Array:
    """The tensor's own memory as an array."""
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.detach().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.detach().numpy())


def peer(operator: str, dtype: str, rows: int, cols: int) -> Peer:
    """Seeded noise for one operator. Weights are near one."""
    generator = torch.Generator().manual_seed(0)
    kind = _DTYPES[dtype]

    def noise(*size: int) -> Any:
        return torch.randn(*size, generator=generator).to(kind)

    x, dy = noise(rows, cols), noise(rows, cols)
    gamma, beta = noise(cols) * 0.1 + 1, noise(cols) * 0.1
    eps = {"eps": _EPS}
    wide = x.to(torch.float32)
    match operator:
        case "layer_norm":
            arrays = _arrays(x, gamma, beta)
            return Peer(arrays, eps, lambda: F.layer_norm(x, (cols,), gamma, beta, _EPS), ("y",))
        case "layer_norm_backward":
            _, mean, rstd = torch.native_layer_norm(x, (cols,), gamma, beta, _EPS)
            stats = torch.native_layer_norm(wide, (cols,), None, None, _EPS)[1:]  # ours are always f32
            backward = functools.partial(
                torch.ops.aten.native_layer_norm_backward, dy, x, (cols,), mean, rstd, gamma, beta
            )
            arrays = _arrays(dy, x, gamma, *(s.reshape(rows).contiguous() for s in stats))
            return Peer(arrays, {}, lambda: backward([True, True, True]), ("dx", "dgamma", "dbeta"))
        case "rms_norm":
            return Peer(_arrays(x, gamma), eps, lambda: F.rms_norm(x, (cols,), gamma, _EPS), ("y",))
        case "rms_norm_backward":
            leaves = x.clone().requires_grad_(), gamma.clone().requires_grad_()
            result = F.rms_norm(leaves[0], (cols,), leaves[1], _EPS)
            arrays = _arrays(dy, x, gamma, torch.rsqrt((wide * wide).mean(1) + _EPS))
            grad = functools.partial(torch.autograd.grad, result, leaves, dy, retain_graph=True)
            return Peer(arrays, {}, grad, ("dx", "dgamma"))
        case "softmax":
            return Peer(_arrays(x), {}, lambda: torch.softmax(x, -1), ("y",))
        case "softmax_backward":
            y = torch.softmax(x, -1)
            return Peer(_arrays(dy, y), {}, lambda: torch._softmax_backward_data(dy, y, -1, kind), ("dx",))
        case "gelu_erf" | "gelu_tanh":
            how = "none" if operator == "gelu_erf" else "tanh"
            return Peer(_arrays(x), {}, lambda: F.gelu(x, approximate=how), ("y",))
        case "gelu_erf_backward" | "gelu_tanh_backward":
            how = "none" if operator == "gelu_erf_backward" else "tanh"
            slope = torch.ops.aten.gelu_backward
            return Peer(_arrays(dy, x), {}, lambda: slope(dy, x, approximate=how), ("dx",))
        case "silu":
            return Peer(_arrays(x), {}, lambda: F.silu(x), ("y",))
        case "swiglu":
            return Peer(_arrays(x, dy), {}, lambda: F.silu(x) * dy, ("y",))
        case "cross_entropy_with_grad":
            target = torch.randint(cols, (rows,), generator=generator)
            leaf = x.clone().requires_grad_()

            def loss_and_gradient() -> Any:
                loss = F.cross_entropy(leaf, target)
                return loss.detach(), *torch.autograd.grad(loss, leaf)

            return Peer((as_array(x), target.numpy()), {}, loss_and_gradient, ("loss", "dlogits"))
    raise ValueError(f"no counterpart for {operator!r}")


def _arrays(*tensors: Any) -> tuple[Array, ...]:
    return tuple(as_array(t) for t in tensors)


def check(peer: Peer, names: tuple[str, ...], results: tuple[Array, ...]) -> None:
    """Refuse to compare times of different functions. What is close enough here says nothing about accuracy."""
    ours = dict(zip(names, results, strict=True))
    returned = peer.call()
    for name, theirs in zip(peer.results, returned if isinstance(returned, tuple) else (returned,), strict=True):
        a, b = ours[name].astype(np.float64), as_array(theirs).astype(np.float64)
        apart = np.abs(a - b).max() / np.abs(b).max()
        if not apart < 0.25:  # 16-bit gradients of PyTorch were seen 0.07 away
            raise ValueError(f"{name}: PyTorch's result lies {apart:.3g} of its largest element away from ours")
