"""What a user would call instead, on a GPU: PyTorch, and Liger where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokitai.torch.peers import COUNTERPARTS, call_of

Make = Callable[[dict[str, Any]], Callable[[], object]]


def peers(name: str) -> dict[str, Make]:
    """Each counterpart of an operator: from its tensors and scalars, by name, to a call."""
    found: dict[str, Make] = {"torch": lambda given: call_of(name, given)[0]} if name in COUNTERPARTS else {}
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


def _liger_norm(t: dict[str, Any]) -> Callable[[], object]:
    from liger_kernel.ops.layer_norm import layer_norm_forward

    return lambda: layer_norm_forward(t["x"], t["gamma"], t["beta"], t["eps"])


def _liger_norm_backward(t: dict[str, Any]) -> Callable[[], object]:
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return lambda: layer_norm_backward(t["dy"], t["x"], t["gamma"], t["gamma"], t["mean"], t["rstd"])


def _liger_rms(t: dict[str, Any]) -> Callable[[], object]:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    return lambda: rms_norm_forward(t["x"], t["gamma"], t["eps"], 0.0, "llama", None)


def _liger_softmax(t: dict[str, Any]) -> Callable[[], object]:
    from liger_kernel.ops.softmax import _softmax_forward

    return lambda: _softmax_forward(t["x"])


LIGER: dict[str, Make] = {
    "layer_norm": _liger_norm,
    "layer_norm_backward": _liger_norm_backward,
    "rms_norm": _liger_rms,
    "softmax": _liger_softmax,
}
