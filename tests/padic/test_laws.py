"""Laws of p-adic numbers as properties of generated ones: those of a commutative ring, the ultrametric inequality, and
Hensel lifting of inverses. Balls that must be equal are compared with ``==``, precision included."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokitai.padic import Padic, PadicArray

PRIMES = st.sampled_from((2, 3, 5, 65537, 2**31 - 1, 2**61 - 1))
FEW = settings(max_examples=200, deadline=None)


def numbers(p: int) -> st.SearchStrategy[Padic]:
    """Balls of any valuation and precision, zeros among them."""

    def made(unit: int, valuation: int, digits: int) -> Padic:
        return Padic(p, unit, valuation, valuation + digits)

    units = st.integers(-(p**8), p**8) | st.integers(-4, 4) | st.integers(-4, 4).map(lambda n: n * p**2 + 1)
    return st.builds(made, units, st.integers(-4, 4), st.integers(1, 8))


@st.composite
def several(draw: st.DrawFn, count: int) -> list[Padic]:
    p = draw(PRIMES)
    return [draw(numbers(p)) for _ in range(count)]


@given(several(3))
@FEW
def test_sums_are_an_abelian_group(xs: list[Padic]) -> None:
    x, y, z = xs
    assert x + y == y + x
    assert (x + y) + z == x + (y + z)
    assert x + 0 == x and (x - x).is_zero and (x - x).precision == x.precision
    negated = -x
    assert -negated == x and y - x == y + negated


@given(several(3))
@FEW
def test_products_are_a_commutative_monoid(xs: list[Padic]) -> None:
    x, y, z = xs
    assert x * y == y * x
    assert (x * y) * z == x * (y * z)
    assert x * 1 == x and x * -1 == -x


@given(several(3))
@FEW
def test_products_distribute_over_sums(xs: list[Padic]) -> None:
    """To the digits that both sides know: x * y + x * z takes the two x each on its own and may know fewer."""
    x, y, z = xs
    left, right = x * (y + z), x * y + x * z
    assert left.agrees(right)
    assert right.precision <= left.precision


@given(several(2))
@FEW
def test_the_ultrametric_inequality(xs: list[Padic]) -> None:
    """|x + y| <= max(|x|, |y|), with equality where |x| and |y| differ; |x y| = |x| |y|."""
    x, y = xs
    assert (x + y).valuation >= min(x.valuation, y.valuation)
    if x.valuation != y.valuation and not (x + y).is_zero:
        assert (x + y).valuation == min(x.valuation, y.valuation)
    assert (x * y).valuation == x.valuation + y.valuation


@given(PRIMES, st.data())
@FEW
def test_inverses_lift(p: int, data: st.DataObject) -> None:
    """Hensel: the inverse of a unit modulo p^n is that modulo p^2n, reduced, and the only one."""
    unit = data.draw(st.integers(1, p**8))
    assume(unit % p)
    n = data.draw(st.integers(1, 8))
    short, long = 1 / Padic(p, unit, 0, n), 1 / Padic(p, unit, 0, 2 * n)
    assert long.reduced(n) == short
    assert (unit * long.unit - 1) % p ** (2 * n) == 0
    assert long == Padic.of(Fraction(1, unit), p, precision=2 * n)


@given(PRIMES, st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_products_of_matrices_are_associative_where_precision_is_one(
    p: int, n: int, k: int, data: st.DataObject
) -> None:
    """Integers modulo p^6: a ring of matrices."""
    draw = st.integers(0, p**6 - 1)

    def matrix(rows: int, columns: int) -> PadicArray:
        drawn = data.draw(st.lists(draw, min_size=rows * columns, max_size=rows * columns))
        return PadicArray(p, np.array(drawn, object).reshape(rows, columns), 0, 6)

    a, b, c = matrix(n, k), matrix(k, n), matrix(n, k)
    left, right = (a @ b) @ c, a @ (b @ c)
    assert left.agrees(right).all()
    plain = a.residues.astype(object) @ b.residues.astype(object) @ c.residues.astype(object) % p**6
    assert (left.reduced(6).residues.astype(object) == plain).all()
