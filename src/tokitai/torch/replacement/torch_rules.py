"""Rules for the modules of `torch.nn`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from .. import functional
from ..nn import CrossEntropyLoss, Dropout, Embedding
from .rule import Rule, accumulator_of


def linear(self: Any, input: Tensor) -> Tensor:
    """As `functional.linear`."""
    made: Tensor = functional.linear(input, self.weight, self.bias, accumulator=accumulator_of(self))
    return made


def layer_norm(self: Any, input: Tensor) -> Tensor:
    """As `functional.layer_norm`."""
    made: Tensor = functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
    return made


def rms_norm(self: Any, x: Tensor) -> Tensor:
    """As `functional.rms_norm`."""
    made: Tensor = functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
    return made


def gelu(self: Any, input: Tensor) -> Tensor:
    """As `functional.gelu`."""
    made: Tensor = functional.gelu(input, self.approximate)
    return made


def silu(self: Any, input: Tensor) -> Tensor:
    """As `functional.silu`."""
    made: Tensor = functional.silu(input)
    return made


def softmax(self: Any, input: Tensor) -> Tensor:
    """As `functional.softmax`."""
    made: Tensor = functional.softmax(input, self.dim)
    return made


def log_softmax(self: Any, input: Tensor) -> Tensor:
    """As `functional.log_softmax`."""
    made: Tensor = functional.log_softmax(input, self.dim)
    return made


def refuse_embedding(module: Module) -> str | None:
    """What an embedding does beside looking up."""
    for name in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(module, name):
            return f"{name}={getattr(module, name)!r} is not offered"
    return None


def refuse_inplace(module: Module) -> str | None:
    """Results are new tensors."""
    return "inplace=True writes into its input" if getattr(module, "inplace", False) else None


def refuse_dim(module: Module) -> str | None:
    """A dimension must be named."""
    return "dim=None names no dimension" if getattr(module, "dim", None) is None else None


def refuse_attention(module: Module) -> str | None:
    """torch's own attention."""
    return "it computes inside torch.nn.functional.multi_head_attention_forward, past the modules inside it"


def refuse_encoder(module: Module) -> str | None:
    """torch's own layers of encoders."""
    return "its fast path in evaluation takes the weights of the modules inside it past them"


RULES = (
    Rule("linear", "torch.nn.modules.linear.Linear", linear, products=True),
    Rule("embedding", "torch.nn.modules.sparse.Embedding", Embedding.forward, refuse=refuse_embedding),
    Rule("norm", "torch.nn.modules.normalization.LayerNorm", layer_norm),
    Rule("norm", "torch.nn.modules.normalization.RMSNorm", rms_norm),
    Rule("activation", "torch.nn.modules.activation.GELU", gelu),
    Rule("activation", "torch.nn.modules.activation.SiLU", silu, refuse=refuse_inplace),
    Rule("activation", "torch.nn.modules.activation.Softmax", softmax, refuse=refuse_dim),
    Rule("activation", "torch.nn.modules.activation.LogSoftmax", log_softmax, refuse=refuse_dim),
    Rule("dropout", "torch.nn.modules.dropout.Dropout", Dropout.forward, refuse=refuse_inplace),
    Rule("loss", "torch.nn.modules.loss.CrossEntropyLoss", CrossEntropyLoss.forward),
    Rule("attention", "torch.nn.modules.activation.MultiheadAttention", refuse=refuse_attention, whole=True),
    Rule("layer", "torch.nn.modules.transformer.TransformerEncoderLayer", refuse=refuse_encoder, whole=True),
)
