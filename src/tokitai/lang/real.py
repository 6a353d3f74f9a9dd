"""The function of real numbers that a named function of the language stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Derivative = Callable[[Array, Array], Array]
Bound = Callable[[Array, Array], Array | float]


@dataclass(frozen=True)
class RealFunction:
    """What a named function approximates, and how well.

    ``value`` is the function in high precision. ``derivative`` is f'(x), given x and f(x). ``lipschitz`` bounds |f'| on
    [x - e, x + e], given x and e: what the function makes of an error of its argument. ``ulps`` is the largest error of
    the definition's bits in ulp of the result. What is left out is not known, and refused where it is needed.
    """

    value: Callable[[Array], Array]
    derivative: Derivative | None = None
    lipschitz: Bound | None = None
    ulps: float | None = None
