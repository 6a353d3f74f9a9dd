"""Minimax polynomials with f32 coefficients: Remez exchange, then rounding one coefficient after another.

The shared half of the derive_*.py scripts. A fit minimises ``max |weight(x) * (f(x) - sum c_i x**power_i)|``; after the
first coefficient is rounded to f32, the remaining ones are fitted again round it, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np

mp.mp.prec = 120
Real = Callable[[mp.mpf], mp.mpf]


def remez(f: Real, weight: Real, powers: Sequence[int], low: float, high: float) -> tuple[list[mp.mpf], float]:
    """Real coefficients of the best weighted polynomial on [low, high], and its weighted error."""
    count = len(powers)
    grid = [mp.mpf(low) + (mp.mpf(high) - low) * (1 - mp.cos(mp.pi * i / 1200)) / 2 for i in range(1201)]
    values = [(x, f(x), weight(x)) for x in grid]
    values = [v for v in values if mp.isfinite(v[1]) and v[2] != 0]
    last = len(values) - 1
    chosen = [round(last * (1 - np.cos(np.pi * i / count)) / 2) for i in range(count + 1)]
    coefficients: list[mp.mpf] = []
    error = 0.0
    for _ in range(30):
        rows = [[values[i][0] ** p for p in powers] + [(-1) ** k / values[i][2]] for k, i in enumerate(chosen)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([values[i][1] for i in chosen]))
        coefficients = list(solution[:count])
        level = abs(float(solution[count]))
        terms = list(zip(coefficients, powers, strict=True))
        residual = np.array([float(w * (y - mp.fsum(c * x**p for c, p in terms))) for x, y, w in values])
        error = float(np.max(np.abs(residual)))
        if error <= level * 1.001 + 1e-30:
            break
        # one extremum for each run of equal sign, then the `count + 1` neighbours that hold the largest
        runs = np.split(np.arange(last + 1), np.flatnonzero(np.diff(np.sign(residual))) + 1)
        peaks = [int(r[np.argmax(np.abs(residual[r]))]) for r in runs]
        while len(peaks) > count + 1:
            peaks.pop(0 if abs(residual[peaks[0]]) < abs(residual[peaks[-1]]) else -1)
        if len(peaks) < count + 1:
            break
        chosen = peaks
    return coefficients, error


def fit(
    f: Real, weight: Real, powers: Sequence[int], low: float, high: float, fixed: Sequence[float] = ()
) -> list[float]:
    """f32 coefficients for ``powers``, lowest first; ``fixed`` gives the first ones where they are not free."""
    found: list[float] = []
    for i in range(len(powers)):
        if i < len(fixed):
            found.append(fixed[i])
            continue
        known = list(found)

        def rest(x: mp.mpf, known: list[float] = known) -> mp.mpf:
            return f(x) - mp.fsum(mp.mpf(c) * x**p for c, p in zip(known, powers, strict=False))

        best, _ = remez(rest, weight, powers[i:], low, high)
        found.append(float(np.float32(float(best[0]))))
    return found


def error_of(f: Real, weight: Real, powers: Sequence[int], low: float, high: float, found: Sequence[float]) -> float:
    """The weighted error of given coefficients over a grid: the approximation error, without rounding."""
    grid = [mp.mpf(low) + (mp.mpf(high) - low) * i / 2000 for i in range(2001)]
    return max(
        float(abs(weight(x) * (f(x) - mp.fsum(mp.mpf(c) * x**p for c, p in zip(found, powers, strict=True)))))
        for x in grid
        if mp.isfinite(f(x))
    )


def show(name: str, found: Sequence[float], error: float) -> None:
    """Print coefficients as they are copied into a definition."""
    print(f"{name}: error {error:.3g} = 2^{np.log2(error):.2f}")
    for c in found:
        print(f"    {np.float32(c)!s:>16}  # {float(np.float32(c)).hex()}")


def rational(f: Real, degrees: tuple[int, int], points: Sequence[mp.mpf]) -> tuple[list[mp.mpf], list[mp.mpf], float]:
    """Numerator and denominator (lowest power first, the latter 1 + ...) of the best relative fit of f on the points.

    Remez exchange; inside it the level E is found by solving N - f D + (-1)^i E f D_before = 0 repeatedly.
    """
    n, m = degrees
    count = n + m + 2
    values = [f(x) for x in points]
    last = len(points) - 1
    chosen = [round(last * (1 - float(mp.cos(mp.pi * i / (count - 1)))) / 2) for i in range(count)]
    bottom = [mp.mpf(1)] + [mp.mpf(0)] * m
    top: list[mp.mpf] = []
    error = 0.0
    for _ in range(25):
        for _ in range(12):
            rows, right = [], []
            for k, i in enumerate(chosen):
                x, y = points[i], values[i]
                before = mp.polyval(bottom[::-1], x)
                over, under = [x**p for p in range(n + 1)], [-y * x**p for p in range(1, m + 1)]
                rows.append([*over, *under, (-1) ** k * y * before])
                right.append(y)
            solution = mp.lu_solve(mp.matrix(rows), mp.matrix(right))
            top, bottom = list(solution[: n + 1]), [mp.mpf(1), *solution[n + 1 : n + 1 + m]]
        level = abs(float(solution[count - 1]))
        ratios = [mp.polyval(top[::-1], x) / mp.polyval(bottom[::-1], x) for x in points]
        residual = np.array([float(r / y - 1) for r, y in zip(ratios, values, strict=True)])
        error = float(np.max(np.abs(residual)))
        if error <= level * 1.01:
            break
        runs = np.split(np.arange(last + 1), np.flatnonzero(np.diff(np.sign(residual))) + 1)
        peaks = [int(r[np.argmax(np.abs(residual[r]))]) for r in runs]
        while len(peaks) > count:
            peaks.pop(0 if abs(residual[peaks[0]]) < abs(residual[peaks[-1]]) else -1)
        if len(peaks) < count:
            break
        chosen = peaks
    return top, bottom, error


def tail_points(last: float, bend: float, count: int = 600) -> list[mp.mpf]:
    """Points on [0, last], dense below `bend` and towards both ends: Chebyshev points in a / (a + bend)."""
    top = mp.mpf(last) / (last + bend)
    steps = [top * (1 - mp.cos(mp.pi * i / count)) / 2 for i in range(count + 1)]
    return [bend * s / (1 - s) for s in steps]


def value(coefficients: Sequence[float], x: mp.mpf) -> mp.mpf:
    """The polynomial, lowest power first."""
    return mp.polyval([mp.mpf(c) for c in coefficients[::-1]], x)


def squares(goal: Sequence[mp.mpf], points: Sequence[mp.mpf], count: int) -> list[float]:
    """f32 coefficients by relative least squares in f64, rounded one after another: near to minimax on such points,
    and safe where the points lie on both sides of zero, which Remez exchange is not once the constant is fixed."""
    found: list[float] = []
    for power in range(count):
        left = [float((g - (value(found, x) if found else 0)) / g) for g, x in zip(goal, points, strict=True)]
        basis = np.array([[float(x**p / g) for p in range(power, count)] for g, x in zip(goal, points, strict=True)])
        found.append(float(np.float32(np.linalg.lstsq(basis, np.array(left), rcond=None)[0][0])))
    return found


def fit_rational(f: Real, degrees: tuple[int, int], points: Sequence[mp.mpf]) -> tuple[list[float], list[float], float]:
    """The same with f32 coefficients: the denominator is rounded, then the numerator fitted to f times it.

    Both may be multiplied by one factor; of 32 factors the one is taken whose coefficients happen to round best.
    """
    _, bottom, _ = rational(f, degrees, points)
    tries = []
    for k in range(32):
        rounded = [float(np.float32(float(c * (1 + mp.mpf(k) / 32)))) for c in bottom]
        goal = [f(x) * value(rounded, x) for x in points]
        top = squares(goal, points, degrees[0] + 1)
        ratios = [value(top, x) / g for g, x in zip(goal, points, strict=True)]
        tries.append((max(float(abs(r - 1)) for r in ratios), top, rounded))
    error, top, rounded = min(tries)
    return top, rounded, error
