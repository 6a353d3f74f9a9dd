"""What each function is compared with: C++ double expressions in ``x``, from glibc unless they say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

HELPERS = """\
static const double C1 = 1.59576912160573071176, C3 = C1 * 0.044715;
static double cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
static double pdf(double x) { return std::exp(-0.5 * x * x) * 0.39894228040143267794; }
static double logistic(double v) { const double e = std::exp(-std::fabs(v)); return (v < 0 ? e : 1) / (1 + e); }
static double gelu_exponent(double x) { return x * (C1 + C3 * x * x); }
// x times a factor that vanishes faster than |x| grows
static double times(double x, double factor) { return factor == 0 ? std::copysign(0.0, x) : x * factor; }
// s + x s (1 - s) v'(x); 1 - s is taken from the other side, so that neither cancels
static double slope(double v, double rise) {
    const double s = logistic(v), r = logistic(-v);
    return times(1 + times(rise, r), s);
}
"""


@dataclass(frozen=True)
class Reference:
    """A C++ double expression in ``x``, the magnitude that bounds the domain, and words for the table."""

    expression: str
    words: str
    limit: float = float("inf")
    falling: bool = False  # defined for x <= 0 and NaN only: NaN is tried in place of a positive input


REFERENCES: dict[str, Reference] = {
    "exp": Reference("std::exp(x)", "glibc exp"),
    "exp_down": Reference("x > 0 ? NAN : std::exp(x)", "glibc exp", falling=True),
    "exp_short": Reference("x > 0 ? 1.0 : std::exp(x)", "glibc exp, 1 above 0"),
    "exp2": Reference("std::exp2(x)", "glibc exp2"),
    "expm1": Reference("std::expm1(x)", "glibc expm1"),
    "log": Reference("std::log(x)", "glibc log"),
    "log1p": Reference("std::log1p(x)", "glibc log1p"),
    "tanh": Reference("std::tanh(x)", "glibc tanh"),
    "erf": Reference("std::erf(x)", "glibc erf"),
    "erfc": Reference("std::erfc(x)", "glibc erfc"),
    "normal_cdf": Reference("cdf(x)", "glibc erfc(-x/sqrt 2)/2"),
    "softplus": Reference("x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x))", "glibc log1p, exp"),
    "sin": Reference("std::sin(x)", "glibc sin", 2.0**20),
    "cos": Reference("std::cos(x)", "glibc cos", 2.0**20),
    "gelu": Reference("times(x, cdf(x))", "x Phi(x) by glibc erfc"),
    "gelu_slope": Reference("x < -38 ? -0.0 : cdf(x) + times(x, pdf(x))", "Phi(x) + x phi(x) by glibc erfc and exp"),
    "gelu_tanh": Reference("times(x, logistic(gelu_exponent(x)))", "x sigmoid(2u), glibc exp"),
    "gelu_tanh_slope": Reference("slope(gelu_exponent(x), x * (C1 + 3 * C3 * x * x))", "its derivative, glibc exp"),
    "silu": Reference("times(x, logistic(x))", "x sigmoid(x), glibc exp"),
    "silu_slope": Reference("slope(x, x)", "its derivative, glibc exp"),
    "sigmoid": Reference("logistic(x)", "glibc exp, e/(1+e) below 0"),
}
