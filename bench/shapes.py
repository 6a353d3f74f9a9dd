"""What is timed: operators, storage formats and shapes."""

from __future__ import annotations

OPERATORS = (
    "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward", "softmax", "softmax_backward",
    "gelu_erf", "gelu_erf_backward", "gelu_tanh", "gelu_tanh_backward", "silu", "swiglu", "cross_entropy_with_grad",
)  # fmt: skip
FORMATS = ("f16", "bf16", "f32")
SHAPES = ((4096, 1024), (8192, 4096))  # rows, columns: one that fits into many a last-level cache, one that does not
OWN_SHAPES = {"cross_entropy_with_grad": ((2048, 32000),)}  # a vocabulary
