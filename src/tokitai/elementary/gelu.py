"""GELU: the normal distribution function, x Phi(x), its tanh approximation, and the slopes of both.

Tails are exp(-x**2/2) times a rational function, so nothing cancels for negative x; the exponent is carried as a pair,
since an error of one ulp in it is one of a hundred in the result.
"""

from __future__ import annotations

import numpy as np

from ..lang import Array, Value, fma, where
from .common import at_most, horner
from .error_function import exact_erfc
from .exact import REAL, elementary, everywhere, gated
from .exponential import scale_down, split_exp
from .logistic import exact_sigmoid


def _tail(a: Value) -> tuple[Value, Value, Value]:
    """(n, t, ratio) with Phi(-a) = 2**n (1 + t) ratio for a in [0, 14.6].

    The ratio has an error of 2^-26.5 relatively on [0, 14.42] (derive_normal.py).
    """
    n, t = _gauss(a)
    top = horner(a, 0.00629378, 0.062156968, 0.2803931, 0.6708887, 0.765625)
    bottom = horner(a, 0.015775982, 0.15581436, 0.7183866, 1.840562, 2.5635388, 1.53125)
    return n, t, top / bottom


def _gauss(a: Value) -> tuple[Value, Value]:
    """(n, t) with exp(-a**2 / 2) = 2**n (1 + t); the square is exact as a pair."""
    square = a * a
    return split_exp(square * -0.5, fma(a, a, -square) * -0.5)


def exact_normal_cdf(x: Array) -> Array:
    """The standard normal distribution function, without cancellation for negative x."""
    return exact_erfc(-x / np.sqrt(REAL(2))) / 2


def density(x: Array) -> Array:
    """The standard normal density."""
    return np.asarray(np.exp(-x * x / 2) / np.sqrt(2 * np.arctan(REAL(1)) * 4))


@elementary(exact_normal_cdf, derivative=lambda x, y: density(x), lipschitz=everywhere(0.399))
def normal_cdf(x: Value) -> Value:
    """Phi(x), the distribution function of the standard normal distribution: erfc(-x / sqrt(2)) / 2.

    Largest error: 5.90 ulp.
    """
    n, t, ratio = _tail(at_most(abs(x), 14.5))
    y = scale_down(fma(ratio, t, ratio), n)
    return where(x < 0.0, y, 1.0 - y)


def exact_gelu(x: Array) -> Array:
    """x Phi(x)."""
    return gated(x, exact_normal_cdf(x))


def exact_gelu_slope(x: Array) -> Array:
    """Phi(x) + x phi(x)."""
    return np.asarray(exact_normal_cdf(x) + np.where(np.isinf(x), 0, x * density(x)))


@elementary(exact_gelu, derivative=lambda x, y: exact_gelu_slope(x), lipschitz=everywhere(1.129))  # at sqrt 2
def gelu(x: Value) -> Value:
    """x Phi(x): -a Phi(-a) below zero and x - a Phi(-a) above, with a = |x|. Largest error: 5.93 ulp."""
    a = at_most(abs(x), 14.6)
    n, t, ratio = _tail(a)
    y = a * ratio
    y = scale_down(fma(y, t, y), n)
    return where(x < 0.0, -y, x - y)


@elementary(exact_gelu_slope, lipschitz=everywhere(0.798))  # 2/sqrt(2 pi), at 0
def gelu_slope(x: Value) -> Value:
    """The derivative of gelu: d = Phi(-a) - a phi(a) at -a, with a = |x|, and 1 - d at +a.

    d = exp(-a**2/2) (root - a) N(a)/D(a): with the zero at 0.7518 as a factor, d is accurate relatively everywhere.
    N/D has an error of 2^-26.2 on [0, 14.42] (derive_normal.py).

    Largest error: 6.47 ulp.
    """
    a = at_most(abs(x), 14.6)
    n, t = _gauss(a)
    top = horner(a, 0.012664838, 0.11625257, 0.45978975, 0.9176095, 0.8105638)
    bottom = horner(a, 0.03174585, 0.26754475, 0.9650057, 1.7034175, 1.21875)
    ratio = top / bottom
    d = scale_down(((0.75179154 - a) - 1.211445e-08) * fma(ratio, t, ratio), n)
    return where(x < 0.0, d, 1.0 - d)


C1, C1_LOW = 1.5957689, 1.930779e-07  # 2 sqrt(2/pi); C1 is a multiple of 2^-20
C1_NEAREST = 1.5957692
C3, C3_LOW = 0.071354814, 2.3988325e-09  # C1 * 0.044715


def _exponent(a: Value) -> tuple[Value, Value, Value]:
    """(n, t, a**2) with e**-v = 2**n (1 + t) for v = C1 a + C3 a**3 and a in [0, 11]; v is carried as a pair.

    w = C1 + C3 a**2 in f32 has an error that the next line recovers: w - C1 is exact, as both are multiples of an
    ulp of w (for w below 16).
    """
    square = a * a
    w = fma(C3, square, C1)
    w_low = fma(C3, square, -(w - C1)) + C1_LOW
    w_low = fma(C3, fma(a, a, -square), fma(C3_LOW, square, w_low))
    v = a * w
    n, t = split_exp(-v, -fma(a, w_low, fma(a, w, -v)))
    return n, t, square


def _argument(x: Array) -> tuple[Array, Array]:
    """2u and its derivative."""
    c = np.sqrt(1 / (2 * np.arctan(REAL(1))))  # sqrt(2/pi)
    return 2 * c * (x + REAL("0.044715") * x**3), 2 * c * (1 + 3 * REAL("0.044715") * x**2)


def exact_gelu_tanh(x: Array) -> Array:
    """x sigmoid(2u)."""
    return gated(x, exact_sigmoid(_argument(x)[0]))


def exact_gelu_tanh_slope(x: Array) -> Array:
    """The derivative of x sigmoid(2u)."""
    v, rise = _argument(x)
    s = exact_sigmoid(v)
    return np.asarray(s + np.where(np.isinf(x), 0, x * s * exact_sigmoid(-v) * rise))


@elementary(exact_gelu_tanh, derivative=lambda x, y: exact_gelu_tanh_slope(x), lipschitz=everywhere(1.13))
def gelu_tanh(x: Value) -> Value:
    """x sigmoid(2u) = x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x**3): GELU's tanh approximation.

    Largest error: 3.41 ulp.
    """
    a = at_most(abs(x), 10.9)
    n, t, _ = _exponent(a)
    w = 1.0 + t
    return where(x < 0.0, scale_down(-a * w, n), x) / (1.0 + scale_down(w, n))


@elementary(exact_gelu_tanh_slope, lipschitz=everywhere(0.8))
def gelu_tanh_slope(x: Value) -> Value:
    """The derivative of gelu_tanh: d = e (1 + e - a v') / (1 + e)**2 at -a, with a = |x|, e = e**-v and v = 2u(a);
    1 - d at +a.

    Within 1/2 of its zero the second factor is (zero - a) times a polynomial, with an error of 2^-24.3
    (derive_slope.py), so that d is accurate relatively.

    Largest error: 7.05 ulp.
    """
    a = at_most(abs(x), 10.9)
    n, t, square = _exponent(a)
    w = 1.0 + t
    e = scale_down(w, n)
    delta = (a - 0.75246143) - -1.1339628e-08
    near = horner(delta, -0.0012096934, 0.003939168, -0.011285201, 0.030428506, -0.07595962, 0.4004527,
                  0.09991153, 2.4606566)  # fmt: skip
    far = fma(-a, fma(3.0 * C3, square, C1_NEAREST), 1.0) + e
    denominator = 1.0 + e
    d = scale_down(where(abs(delta) < 0.5, near * -delta, far) * w / (denominator * denominator), n)
    return where(x < 0.0, d, 1.0 - d)
