"""Functions of real numbers in high precision: what the elementary functions approximate, and what these share.

NumPy's `longdouble` carries 64 bits of significand on x86-64 and 113 on most others. The few functions that NumPy lacks
in that precision (erf, erfc) are taken in f64, whose error of a few 2^-53 is far below anything that a stored f32 can
show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources

import numpy as np

from ..lang import Array, Bound, Derivative, RealFunction, Value, function

REAL = np.longdouble
ROOT_PI = np.sqrt(4 * np.arctan(REAL(1)))
DECLARED: dict[str, RealFunction] = {}
"""What every elementary function approximates, by name."""


@cache
def proved() -> dict[str, float]:
    """The largest error of each elementary function in ulp, over all 2**32 inputs, as `tools.prove_elementary` found
    it."""
    return dict(json.loads((resources.files(__package__) / "proved.json").read_text()))


def elementary(
    value: Callable[[Array], Array], *, lipschitz: Bound, derivative: Derivative | None = None
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Make a definition an elementary function: what it approximates, its derivative, what it makes of an error of its
    argument (`lang.RealFunction`), and the largest error of its bits that is on record under its name."""

    def decorate(body: Callable[..., Value]) -> Callable[..., Value]:
        name = body.__name__
        DECLARED[name] = RealFunction(value, derivative, lipschitz, proved().get(name))
        return function(body, real=DECLARED[name])

    return decorate


def by_elements(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python floats as one of arrays."""
    ufunc = np.frompyfunc(f, 1, 1)  # which hands over an element of an f64 array as the Python float that it is
    return lambda x: np.asarray(ufunc(np.asarray(x, np.float64)), dtype=REAL)


def gated(x: Array, gate: Array) -> Array:
    """x gate, 0 in the limit of -inf, where the gate vanishes faster."""
    return np.where(np.isneginf(x), -0.0, x * gate)


def everywhere(bound: float) -> Bound:
    """The bound on a derivative that is nowhere larger in magnitude."""
    return lambda x, e: bound
