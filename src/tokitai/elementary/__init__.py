"""Elementary functions as fixed sequences of primitives: the same bits on every target.

Each states its largest error in ulp, found by trying all 2^32 f32 inputs (docs/reference/elementary.md).
"""

from .error_function import erf, erfc
from .exponential import exp, exp2, exp_down, exp_short, expm1
from .gelu import gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, normal_cdf
from .hyperbolic import tanh
from .logarithm import log, log1p, softplus
from .logistic import sigmoid, silu, silu_slope
from .trigonometric import cos, sin

__all__ = [
    "cos", "erf", "erfc", "exp", "exp2", "exp_down", "exp_short", "expm1", "gelu", "gelu_slope", "gelu_tanh",
    "gelu_tanh_slope", "log", "log1p", "normal_cdf", "sigmoid", "silu", "silu_slope", "sin", "softplus", "tanh",
]  # fmt: skip
