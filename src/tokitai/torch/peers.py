"""PyTorch's counterparts of our operators, on the same memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

Array = np.ndarray[Any, Any]
OPERATORS = (
    "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward", "softmax", "softmax_backward", "log_softmax",
    "gelu_erf", "gelu_erf_backward", "gelu_tanh", "gelu_tanh_backward", "silu", "silu_backward", "swiglu",
    "cross_entropy_with_grad", "adamw",
)  # fmt: skip


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
    if operator == "adamw":
        return _adamw(tensors, scalars)
    t = {name: as_tensor(arrays[0]) for name, arrays in tensors.items()}
    name, _, backward = operator.partition("_backward")
    return (_gradient if "_backward" in operator else _forward)(name if backward == "" else operator, t)


def _forward(operator: str, t: Mapping[str, Any]) -> TorchPeer:
    x: Any = t.get("x")
    match operator:
        case "layer_norm":
            cols = tuple(t["gamma"].shape)
            return TorchPeer(lambda: F.layer_norm(x, cols, t["gamma"], t["beta"], 1e-5), ("y",))
        case "rms_norm":
            return TorchPeer(lambda: F.rms_norm(x, tuple(t["gamma"].shape), t["gamma"], 1e-6), ("y",))
        case "softmax":
            return TorchPeer(lambda: torch.softmax(x, -1), ("y",))
        case "log_softmax":
            return TorchPeer(lambda: torch.log_softmax(x, -1), ("y",))
        case "gelu_erf" | "gelu_tanh":
            how = "none" if operator == "gelu_erf" else "tanh"
            return TorchPeer(lambda: F.gelu(x, approximate=how), ("y",))
        case "silu":
            return TorchPeer(lambda: F.silu(x), ("y",))
        case "swiglu":
            a, b = list(t.values())[:2]
            return TorchPeer(lambda: F.silu(a) * b, ("y",))
        case "cross_entropy_with_grad":
            leaf, target = t["logits"].clone().requires_grad_(), t["target"].to(torch.int64)

            def loss_and_gradient() -> Any:
                loss = F.cross_entropy(leaf, target)
                return loss.detach(), *torch.autograd.grad(loss, leaf)

            return TorchPeer(loss_and_gradient, ("loss", "dlogits"))
    raise KeyError(operator)


def _gradient(operator: str, t: Mapping[str, Any]) -> TorchPeer:
    dy, x, gamma = t["dy"], t.get("x"), t.get("gamma")
    match operator:
        case "layer_norm":
            cols = tuple(t["gamma"].shape)
            beta = torch.zeros_like(t["gamma"])
            _, mean, rstd = torch.native_layer_norm(t["x"], cols, gamma, beta, 1e-5)  # in the formats PyTorch keeps
            backward = functools.partial(
                torch.ops.aten.native_layer_norm_backward, dy, x, cols, mean, rstd, gamma, beta, [True, True, True]
            )
            return TorchPeer(backward, ("dx", "dgamma", "dbeta"))
        case "rms_norm":
            leaves = t["x"].clone().requires_grad_(), t["gamma"].clone().requires_grad_()
            result = F.rms_norm(leaves[0], tuple(t["gamma"].shape), leaves[1], 1e-6)
            grad = functools.partial(torch.autograd.grad, result, leaves, dy, retain_graph=True)
            return TorchPeer(grad, ("dx", "dgamma"))
        case "softmax":
            y = t["y"]
            return TorchPeer(lambda: torch._softmax_backward_data(dy, y, -1, dy.dtype), ("dx",))
        case "gelu_erf" | "gelu_tanh":
            how = "none" if operator == "gelu_erf" else "tanh"
            return TorchPeer(lambda: torch.ops.aten.gelu_backward(dy, x, approximate=how), ("dx",))
        case "silu":
            return TorchPeer(lambda: torch.ops.aten.silu_backward(dy, x), ("dx",))
    raise KeyError(operator)


def _adamw(tensors: Mapping[str, Sequence[Array]], scalars: Mapping[str, float]) -> TorchPeer:
    """The fused step. It keeps its moments in the format of the weights, where ours are always f32: for 16-bit weights
    it moves 14 bytes an element instead of 22, and computes less."""
    leaves = [as_tensor(p.copy()).requires_grad_() for p in tensors["param"]]
    for leaf, g in zip(leaves, tensors["grad"], strict=True):
        leaf.grad = as_tensor(g.copy())
    every = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "step": 1.0, **scalars}
    step = torch.optim.AdamW(
        leaves, lr=every["lr"], betas=(every["beta1"], every["beta2"]), eps=every["eps"],
        weight_decay=every["weight_decay"], fused=True,
    )  # fmt: skip
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
        return {**weights, **moments}, {**every, "step": float(step.state[leaves[0]]["step"]) + 1}

    def look() -> Sequence[Any]:
        return leaves, state("exp_avg"), state("exp_avg_sq")

    return TorchPeer(step.step, ("param", "exp_avg", "exp_avg_sq"), look, given)
