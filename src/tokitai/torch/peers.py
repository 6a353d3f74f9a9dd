"""PyTorch's counterparts of our operators, on the same memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops

Array = np.ndarray[Any, Any]
Make = Callable[..., Callable[[], Any]]
aten = torch.ops.aten


@dataclass(frozen=True)
class TorchPeer:
    """A call of PyTorch's and our names for what it returns, in order. Where a call changes tensors of its own,
    ``look`` gives its results after it, and ``given`` its inputs and scalars, by our names, as the next call finds
    them."""

    call: Callable[[], Any]
    results: tuple[str, ...]
    look: Callable[[], Sequence[Any]] | None = None
    given: Callable[[], tuple[Mapping[str, Sequence[Array]], Mapping[str, float]]] | None = None
    version: str = str(torch.__version__)

    def read(self, returned: Any) -> Mapping[str, Any]:
        """The results of a call by our names; of a list of tensors, lists."""
        found = returned if self.look is None else self.look()
        several = found if isinstance(found, tuple) else (found,)
        return {
            name: [as_array(x) for x in t] if isinstance(t, list) else as_array(t)
            for name, t in zip(self.results, several, strict=False)
            if t is not None
        }


def as_array(tensor: Any) -> Array:
    """The tensor's own memory as an array."""
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.detach().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.detach().numpy())


def as_tensor(array: Array) -> Any:
    """The array's own memory as a tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def peer(
    operator: str, dtype: str, tensors: Mapping[str, Sequence[Array]], scalars: Mapping[str, float], threads: int
) -> TorchPeer:
    """The counterpart of an operator of `OPERATORS`, on the memory of these tensors; scalars that are not given have
    our defaults."""
    torch.set_num_threads(threads)
    given: dict[str, Any] = {p.name: p.default for p in ops.get(operator).params if p.default is not None}
    given |= scalars
    if operator == "adamw":
        return _adamw(tensors, given)
    made, results = call_of(operator, {n: as_tensor(arrays[0]) for n, arrays in tensors.items()} | given)
    return TorchPeer(made, results)


def call_of(operator: str, given: Mapping[str, Any]) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """The counterpart's call on tensors and scalars by name, and our names for what it returns."""
    make, results = COUNTERPARTS[operator]
    return make(**{n: given[n] for n in inspect.signature(make).parameters}), results


def _adamw(tensors: Mapping[str, Sequence[Array]], scalars: Mapping[str, float]) -> TorchPeer:
    """The fused step. It keeps its moments in the format of the weights, where ours are always f32: for 16-bit weights
    it moves 14 bytes an element instead of 22, and computes less."""
    leaves = [as_tensor(p.copy()).requires_grad_() for p in tensors["param"]]
    for leaf, g in zip(leaves, tensors["grad"], strict=True):
        leaf.grad = as_tensor(g.copy())
    words: dict[str, Any] = {n: scalars[n] for n in ("lr", "eps", "weight_decay")}
    step = torch.optim.AdamW(leaves, betas=(scalars["beta1"], scalars["beta2"]), fused=True, **words)
    step.step()  # makes the state
    for i, leaf in enumerate(leaves):
        leaf.detach().copy_(as_tensor(tensors["param"][i]))
        for name in ("exp_avg", "exp_avg_sq"):
            step.state[leaf][name].copy_(torch.from_numpy(tensors[name][i]))

    def state(name: str) -> list[Any]:
        return [step.state[leaf][name] for leaf in leaves]

    def given() -> tuple[Mapping[str, Sequence[Array]], Mapping[str, float]]:
        moments = {n: [as_array(t.float()).copy() for t in state(n)] for n in ("exp_avg", "exp_avg_sq")}
        weights = {"param": [as_array(leaf).copy() for leaf in leaves], "grad": tensors["grad"]}
        return {**weights, **moments}, {**scalars, "step": float(step.state[leaves[0]]["step"]) + 1}

    def look() -> Sequence[Any]:
        return leaves, state("exp_avg"), state("exp_avg_sq")

    return TorchPeer(step.step, ("param", "exp_avg", "exp_avg_sq"), look, given)


def _layer_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> Callable[[], Any]:
    kept = [t[:, None].to(torch.float32 if x.is_cuda else x.dtype) for t in (mean, rstd)]  # as PyTorch keeps them
    backward = aten.native_layer_norm_backward
    return lambda: backward(dy, x, x.shape[1:], *kept, gamma, gamma, [True] * 3)


def _rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> Callable[[], Any]:
    if x.is_cuda:  # on a CPU it is several operations, which autograd knows
        backward = aten._fused_rms_norm_backward
        return lambda: backward(dy, x, x.shape[1:], rstd[:, None], gamma, [True] * 2)
    leaves = x.clone().requires_grad_(), gamma.clone().requires_grad_()
    result = F.rms_norm(leaves[0], x.shape[1:], leaves[1], 1e-6)
    return lambda: torch.autograd.grad(result, leaves, dy, retain_graph=True)


def _cross_entropy_with_grad(logits: Tensor, target: Tensor) -> Callable[[], Any]:
    """The mean loss and its gradient, by the operations that autograd takes."""
    classes = target.to(torch.int64)

    def call() -> Any:
        logarithms = torch.log_softmax(logits, -1)
        loss, total = aten.nll_loss_forward(logarithms, classes, None, 1, -100)
        slope = aten.nll_loss_backward(torch.ones_like(loss), logarithms, classes, None, 1, -100, total)
        return loss, aten._log_softmax_backward_data(slope, logarithms, -1, logits.dtype)

    return call


COUNTERPARTS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "layer_norm": (lambda x, gamma, beta, *, eps: lambda: F.layer_norm(x, x.shape[1:], gamma, beta, eps), ("y",)),
    "layer_norm_backward": (_layer_norm_backward, ("dx", "dgamma", "dbeta")),
    "add_layer_norm": (
        lambda x, residual, gamma, beta, *, eps: lambda: F.layer_norm(x + residual, x.shape[1:], gamma, beta, eps),
        ("y",),
    ),
    "rms_norm": (lambda x, gamma, *, eps: lambda: F.rms_norm(x, x.shape[1:], gamma, eps), ("y",)),
    "rms_norm_backward": (_rms_norm_backward, ("dx", "dgamma")),
    "add_rms_norm": (
        lambda x, residual, gamma, *, eps: lambda: F.rms_norm(x + residual, x.shape[1:], gamma, eps), ("y",)
    ),
    "softmax": (lambda x: lambda: torch.softmax(x, -1), ("y",)),
    "softmax_backward": (lambda dy, y: lambda: torch._softmax_backward_data(dy, y, -1, y.dtype), ("dx",)),
    "log_softmax": (lambda x: lambda: torch.log_softmax(x, -1), ("y",)),
    "gelu_erf": (lambda x: lambda: F.gelu(x), ("y",)),
    "gelu_erf_backward": (lambda dy, x: lambda: aten.gelu_backward(dy, x), ("dx",)),
    "gelu_tanh": (lambda x: lambda: F.gelu(x, approximate="tanh"), ("y",)),
    "gelu_tanh_backward": (lambda dy, x: lambda: aten.gelu_backward(dy, x, approximate="tanh"), ("dx",)),
    "silu": (lambda x: lambda: F.silu(x), ("y",)),
    "silu_backward": (lambda dy, x: lambda: aten.silu_backward(dy, x), ("dx",)),
    "swiglu": (lambda gate, up: lambda: F.silu(gate) * up, ("y",)),
    "cross_entropy_with_grad": (_cross_entropy_with_grad, ("loss", "dlogits")),
}  # fmt: skip
"""By operator: from its tensors and scalars, by name, to a call; and our names for what the call returns, in order."""
OPERATORS = (*COUNTERPARTS, "adamw")
"""Those with a counterpart."""
