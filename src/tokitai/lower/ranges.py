"""Which values a node can have, as an interval that holds all of them but NaN: what lets a kernel leave out a check.

Plain interval arithmetic, widened by more than a rounding at each step. It follows a function's body for any argument,
so what it proves holds wherever the function is called. Three patterns are matched as a whole, since the interval of
an operand on its own says too little: a clamp by a constant, the remainder of a range reduction, and what a rounding
dropped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from ..lang import Node

Interval = tuple[float, float]
ALL: Interval = (-math.inf, math.inf)
_WIDER = 2.0**-22  # relatively: four roundings of f32
_TINY = 2.0**-140  # many of the smallest f32
_NORMAL, _BIGGEST = 2.0**-126, float.fromhex("0x1.fffffep127")  # of f32: below the first, products may be 0


def ranges(nodes: Iterable[Node], given: Mapping[Node, Interval] | None = None) -> dict[Node, Interval]:
    """The interval of every float node; operands come first. ``given``: of nodes that are known already, none of which
    is NaN."""
    found: dict[Node, Interval] = dict(given or {})
    numbers: set[Node] = set(found)  # nodes that are never NaN, as far as is known
    for n in nodes:
        if n not in found:
            picked = _picked(n, found, numbers)
            found[n] = _unchanged(n, found) or (_widened(_of(n, found)) if picked is None else found[picked])
            if _is_number(n, found, numbers):
                numbers.add(n)
    return found


def constant(n: Node) -> float | None:
    """The value of a float constant; None for other nodes."""
    return float(str(n.data[0])) if n.op == "const" and n.type == "f32" else None


def clamp(n: Node) -> tuple[str, Node, float] | None:
    """("at_least" | "at_most", x, c) where the node is ``where(x < c, c, x)`` or ``where(x > c, c, x)``, with c not 0:
    NaN stays NaN."""
    if n.op != "where" or n.args[0].op != "lt":
        return None
    test, bound, x = n.args
    c = constant(bound)
    if not c or x.type != "f32":
        return None
    if test.args == (x, bound):
        return "at_least", x, c
    if test.args == (bound, x):
        return "at_most", x, c
    return None


def _is_number(n: Node, found: Mapping[Node, Interval], numbers: Collection[Node]) -> bool:
    """Whether a node is never NaN since its operands never are, and no infinities meet."""
    operands = [a for a in n.args if a.type == "f32"]
    if n.type != "f32" or not all(a in numbers for a in operands):
        return False
    if n.op in ("neg", "abs", "where", "maximum", "minimum"):
        return True
    finite = all(math.isfinite(end) for a in operands for end in found[a])
    return constant(n) is not None or (n.op in ("add", "sub", "mul", "fma") and finite)


def _picked(n: Node, found: Mapping[Node, Interval], numbers: Collection[Node]) -> Node | None:
    """The operand that ``where(a < b, x, y)`` always picks; None where it may pick either."""
    if n.op != "where" or n.type != "f32" or n.args[0].op != "lt" or not all(a in numbers for a in n.args[0].args):
        return None
    (low, high), (least, most) = (found[a] for a in n.args[0].args)
    return n.args[1] if high < least else n.args[2] if low >= most else None


def _unchanged(n: Node, found: Mapping[Node, Interval]) -> Interval | None:
    """Of a power of two and what is less than half the distance to its nearest neighbour: the power of two itself."""
    if n.op == "add":
        for c, other in (n.args, n.args[::-1]):
            power, most = constant(c), max(map(abs, found.get(other, ALL)))
            if power and abs(math.frexp(power)[0]) == 0.5 and most < abs(power) * 2.0**-25:
                return power, power
    return None


def _of(n: Node, found: Mapping[Node, Interval]) -> Interval:
    if n.type != "f32":
        return ALL
    known = [found.get(a, ALL) for a in n.args]
    limits = clamp(n)
    if limits is not None:
        (low, high), edge = found.get(limits[1], ALL), limits[2]
        return (max(low, edge), max(high, edge)) if limits[0] == "at_least" else (min(low, edge), min(high, edge))
    for rest in (_remainder(n, found), _dropped(n, found)):
        if rest is not None:
            return rest
    match n.op, known:
        case "const", _:
            value = constant(n)
            return ALL if value is None or math.isnan(value) else (value, value)
        case "neg", [(low, high)]:
            return -high, -low
        case "abs", [(low, high)]:
            return max(low, -high, 0.0), max(-low, high)
        case "add", [a, b]:
            return _sum(a, b)
        case "sub", [a, (low, high)]:
            return _sum(a, (-high, -low))
        case "mul", [a, b]:
            return _product(a, b, n.args[0] is n.args[1])
        case "fma", [a, b, c]:
            return _sum(_product(a, b, n.args[0] is n.args[1]), c)
        case "div", [a, (low, high)] if low > 0:
            return _product(a, (1 / high, 1 / low))
        case "where", [_, a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
        case ("maximum" | "minimum") as op, [a, b]:
            pick = max if op == "maximum" else min
            return pick(a[0], b[0]), pick(a[1], b[1])
        case "sqrt", [(low, high)]:
            return math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))
        case "round_even", [(low, high)]:
            return low - 0.5, high + 0.5
        case "power_of_two", [(low, high)] if low >= -126 and high <= 127:
            return 2.0 ** math.floor(low), 2.0 ** math.ceil(high)
        case _:
            return ALL


def _remainder(n: Node, found: Mapping[Node, Interval]) -> Interval | None:
    """Of ``fma(-k, c, x)`` with ``k = round_even(fma(x, d, shift))`` and c d about 1: half a step and the shift at
    most, and what c d differs from 1 by."""
    if n.op != "fma" or n.args[0].op != "neg" or n.args[0].args[0].op != "round_even":
        return None
    whole, x = n.args[0].args[0].args[0], n.args[2]
    step = constant(n.args[1])
    if step is None or step <= 0 or whole.op != "fma" or whole.args[0] is not x:
        return None
    scale, shift = constant(whole.args[1]), constant(whole.args[2])
    low, high = found.get(x, ALL)
    size = max(abs(low), abs(high))
    if scale is None or shift is None or not math.isfinite(size) or size * abs(scale) > 2.0**20:
        return None
    # |x scale + shift - k| is half at most and a rounding of the fma, which is below 2^-3 for less than 2^20.
    bound = step * (0.625 + abs(shift)) + size * abs(1 - scale * step)
    return -bound, bound


def _dropped(n: Node, found: Mapping[Node, Interval]) -> Interval | None:
    """Of ``fma(a, b, -v)`` with ``v = a * b``: half an ulp of v at most. Of ``fma(a, b, -(w - c))`` with
    ``w = fma(a, b, c)``: half an ulp of w and one of w - c."""
    if n.op != "fma" or n.args[2].op != "neg":
        return None
    kept = n.args[2].args[0]
    factors = {n.args[0], n.args[1]}
    if kept.op == "mul" and set(kept.args) == factors:
        rounded = [kept]
    elif kept.op == "sub" and kept.args[0].op == "fma" and kept.args[0].args[2] is kept.args[1]:
        rounded = [kept.args[0], kept]
        if set(kept.args[0].args[:2]) != factors:
            return None
    else:
        return None
    bound = sum(2.0**-24 * max(map(abs, found.get(r, ALL))) + _TINY for r in rounded)
    return -bound, bound


def _sum(a: Interval, b: Interval) -> Interval:
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _product(a: Interval, b: Interval, square: bool = False) -> Interval:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return max(min(ends), 0.0 if square else -math.inf), max(ends)


def _widened(i: Interval) -> Interval:
    low, high = i
    if math.isfinite(low):
        low = low - abs(low) * _WIDER - (_TINY if low < 0 else 0.0)
    if math.isfinite(high):
        high = high + abs(high) * _WIDER + (_TINY if high > 0 else 0.0)
    if 0 < low < _NORMAL:
        low = 0.0
    if -_NORMAL < high < 0:
        high = 0.0
    return (-math.inf if low < -_BIGGEST else low), (math.inf if high > _BIGGEST else high)
