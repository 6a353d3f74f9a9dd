"""What a user would call instead, on a GPU: PyTorch, and Liger where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Make = Callable[[dict[str, Any], dict[str, Any], dict[str, float]], Callable[[], object]]


def peers(name: str) -> dict[str, Make]:
    """Each counterpart of an operator: from inputs, results and scalars to a call."""
    found = {"torch": TORCH[name]} if name in TORCH else {}
    if name in LIGER and _liger():
        found["liger"] = LIGER[name]
    return found


def _liger() -> bool:
    try:
        import liger_kernel.ops.layer_norm
        import liger_kernel.ops.rms_norm
        import liger_kernel.ops.softmax  # noqa: F401
    except ImportError as error:
        print(f"no liger: {error}")
        return False
    return True


def _shape(t: dict[str, Any]) -> list[int]:
    return [t["x" if "x" in t else "dy"].shape[-1]]


TORCH: dict[str, Make] = {
    "layer_norm": lambda t, o, p: lambda: F.layer_norm(t["x"], _shape(t), t["gamma"], t["beta"], p["eps"]),
    "layer_norm_backward": lambda t, o, p: (
        lambda: torch.ops.aten.native_layer_norm_backward(
            t["dy"], t["x"], _shape(t), t["mean"][:, None], t["rstd"][:, None], t["gamma"], t["gamma"], [True] * 3
        )
    ),
    "rms_norm": lambda t, o, p: lambda: F.rms_norm(t["x"], _shape(t), t["gamma"], p["eps"]),
    "add_layer_norm": lambda t, o, p: (
        lambda: F.layer_norm(t["x"] + t["residual"], _shape(t), t["gamma"], t["beta"], p["eps"])
    ),
    "add_rms_norm": lambda t, o, p: lambda: F.rms_norm(t["x"] + t["residual"], _shape(t), t["gamma"], p["eps"]),
    "softmax": lambda t, o, p: lambda: torch.softmax(t["x"], -1),
    "softmax_backward": lambda t, o, p: (
        lambda: torch.ops.aten._softmax_backward_data(t["dy"], t["y"], -1, t["y"].dtype)
    ),
    "silu": lambda t, o, p: lambda: F.silu(t["x"]),
    "gelu_erf": lambda t, o, p: lambda: F.gelu(t["x"]),
    "gelu_tanh": lambda t, o, p: lambda: F.gelu(t["x"], approximate="tanh"),
    "gelu_erf_backward": lambda t, o, p: lambda: torch.ops.aten.gelu_backward(t["dy"], t["x"]),
    "swiglu": lambda t, o, p: lambda: F.silu(t["gate"]) * t["up"],
    "cross_entropy_with_grad": lambda t, o, p: lambda: _cross_entropy(t["logits"], t["target"]),
}
# Our names for the first of what a call returns; what is another function's is not held.
RESULTS = {
    name: ("dx",) if name.endswith("_backward") else ("y",)
    for name in TORCH
    if name not in ("swiglu_backward", "cross_entropy_with_grad")
} | {"cross_entropy_with_grad": ("loss", "dlogits")}


def _cross_entropy(logits: Any, target: Any) -> tuple[Any, Any]:
    """The mean loss and its gradient, by the operations that autograd would take."""
    aten, logarithms = torch.ops.aten, torch.log_softmax(logits, -1)
    loss, total = aten.nll_loss_forward(logarithms, target, None, 1, -100)
    slope = aten.nll_loss_backward(torch.ones_like(loss), logarithms, target, None, 1, -100, total)
    return loss, aten._log_softmax_backward_data(slope, logarithms, -1, logits.dtype)


def _liger_norm(t: dict[str, Any], o: dict[str, Any], p: dict[str, float]) -> Callable[[], object]:
    from liger_kernel.ops.layer_norm import layer_norm_forward

    return lambda: layer_norm_forward(t["x"], t["gamma"], t["beta"], p["eps"])


def _liger_norm_backward(t: dict[str, Any], o: dict[str, Any], p: dict[str, float]) -> Callable[[], object]:
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return lambda: layer_norm_backward(t["dy"], t["x"], t["gamma"], t["gamma"], t["mean"], t["rstd"])


def _liger_rms(t: dict[str, Any], o: dict[str, Any], p: dict[str, float]) -> Callable[[], object]:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    return lambda: rms_norm_forward(t["x"], t["gamma"], p["eps"], 0.0, "llama", None)


def _liger_softmax(t: dict[str, Any], o: dict[str, Any], p: dict[str, float]) -> Callable[[], object]:
    from liger_kernel.ops.softmax import _softmax_forward

    return lambda: _softmax_forward(t["x"])


LIGER: dict[str, Make] = {
    "layer_norm": _liger_norm,
    "layer_norm_backward": _liger_norm_backward,
    "rms_norm": _liger_rms,
    "softmax": _liger_softmax,
}
