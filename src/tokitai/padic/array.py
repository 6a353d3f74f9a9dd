"""Vectors and matrices of p-adic numbers with precision, and their exact products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from ..errors import ArgumentError, PrecisionError
from .number import Operators, Padic, exact_operand
from .residues import Array, checked_prime, fits, integers, inverse_of_unit, powers, product_modulo, scaled

MAX_EXPONENT = 2**31  # of valuations and precisions, whose sums and differences then never leave int64


@dataclass(frozen=True, eq=False, repr=False)
class PadicArray(Operators):
    """An array of p-adic numbers of one prime, of one axis or more: three arrays of one shape, which are not writable.

    Each element has its own valuation and precision, as `Padic` has them. One precision for the whole array would have
    to be the least of all: after a product of matrices whose elements have mixed valuations it would state less of most
    elements than is known. Units are residues, int64 where the largest prime^(precision - valuation) of the array
    allows it, else Python's integers.

    ``units``, ``valuation`` and ``precision`` are arrays, lists or numbers, broadcast together and brought to the one
    form of each element: ``PadicArray(5, [[1, 2], [3, 4]], 0, 8)`` is a matrix of integers modulo 5^8.

    ``a == b`` is one bool: the same shape, and the same balls. `agrees` tells for each element whether both may be the
    same number. Operators other than ``@`` work on each element and broadcast; a Padic, an int or a Fraction is an
    operand too.

    Raises ArgumentError for what is no prime, no integer, of no axis, or does not broadcast.
    """

    prime: int
    units: Array
    valuation: Array
    precision: Array

    def __post_init__(self) -> None:
        p, units = checked_prime(self.prime), integers("units", self.units)
        v, n = exponents("valuation", self.valuation), exponents("precision", self.precision)
        if not np.broadcast_shapes(*broadcastable(units.shape, v.shape, n.shape)):
            raise ArgumentError("units, valuation and precision of shape (); accepted: at least one axis, or a Padic")
        units, v, n = np.broadcast_arrays(units, v, n)
        known = np.maximum(n - v, 0)
        units = scaled(units, np.zeros_like(v), p, int(known.max(initial=0)))
        units = units % powers(p, known, units.dtype)
        while (multiple := (units != 0) & (units % p == 0)).any():
            units, v = np.where(multiple, units // p, units), v + multiple
        v = np.where(units == 0, n, v)
        units = units.astype(np.int64 if fits(p, int((n - v).max(initial=0))) else object)
        object.__setattr__(self, "prime", p)
        for name, array in (("units", units), ("valuation", v), ("precision", n)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def of(cls, values: Any, prime: int, *, precision: int | None = None, digits: int | None = None) -> Self:
        """The array of integers and fractions, nested in lists or in an array, each as `Padic.of` has it. For integers
        with a precision, ``PadicArray(prime, values, 0, precision)`` is the same, and fast."""
        array = np.asarray(values, dtype=object)
        elements = [Padic.of(value, prime, precision=precision, digits=digits) for value in array.flat]
        return cls._joined(checked_prime(prime), elements, array.shape)

    @classmethod
    def from_elements(cls, elements: Any) -> Self:
        """The array of Padic numbers, nested in lists or in an array. Raises ArgumentError where there is none, for
        other elements, and for different primes."""
        array = np.asarray(elements, dtype=object)
        foreign = [x for x in array.flat if not isinstance(x, Padic)]
        primes = sorted({x.prime for x in array.flat if isinstance(x, Padic)})
        if foreign or len(primes) != 1:
            raise ArgumentError(f"elements {foreign[:1]}, primes {primes}; accepted: Padic numbers of one prime")
        return cls._joined(primes[0], list(array.flat), array.shape)

    @classmethod
    def _joined(cls, prime: int, elements: list[Padic], shape: tuple[int, ...]) -> Self:
        units = np.array([x.unit for x in elements], dtype=object).reshape(shape)
        valuation = np.array([x.valuation for x in elements], dtype=object).reshape(shape)
        return cls(prime, units, valuation, np.array([x.precision for x in elements], dtype=object).reshape(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each of the three arrays."""
        return tuple(self.units.shape)

    @property
    def T(self) -> Self:
        """The array with its axes reversed."""
        return type(self)(self.prime, self.units.T, self.valuation.T, self.precision.T)

    @property
    def relative_precision(self) -> Array:
        """How many digits of each element are known from its first one that is not zero."""
        return self.precision - self.valuation

    @property
    def is_zero(self) -> Array:
        """For each element, whether it may be zero."""
        return np.asarray(self.units == 0)

    @property
    def residues(self) -> Array:
        """The elements as integers, each modulo prime^precision: int64 where those fit, else Python's. Raises
        ArgumentError where a valuation is negative."""
        if (self.valuation < 0).any():
            raise ArgumentError(f"residues of valuation {self.valuation.min()}; accepted: valuations of at least 0")
        return scaled(self.units, self.valuation, self.prime, int(self.precision.max(initial=0)))

    def agrees(self, other: Self | Padic | int | Fraction) -> Array:
        """For each element, whether both may be the same number, as `Padic.agrees` has it."""
        return (self - other).is_zero

    def reduced(self, precision: Any) -> Self:
        """The array with the digits from an absolute precision on forgotten: of one precision, or one for each element.
        Raises PrecisionError where that many are not known."""
        n = exponents("precision", precision)
        if (n > self.precision).any():
            raise PrecisionError(f"reduced to precision {precision}; accepted: at most {self.precision.tolist()}")
        return type(self)(self.prime, self.units, self.valuation, n)

    def lifted(self, precision: Any) -> Self:
        """The representatives to a higher absolute precision: the new digits are zeros by choice, not knowledge. Raises
        ArgumentError for a lower precision."""
        n = exponents("precision", precision)
        if (n < self.precision).any():
            raise ArgumentError(f"lifted to precision {precision}; accepted: at least {self.precision.tolist()}")
        return type(self)(self.prime, self.units, self.valuation, n)

    def sum(self) -> Padic:
        """The sum of all elements. Raises ArgumentError where there is none: an empty sum has no precision."""
        if not self.units.size:
            raise ArgumentError(f"the sum of an array of shape {self.shape}; accepted: at least one element")
        n, v = int(self.precision.min()), int(self.valuation.min())
        terms = scaled(self.units, self.valuation - v, self.prime, n - v)
        return Padic(self.prime, int(terms.astype(object).sum()), v, n)

    def __matmul__(self, other: object) -> Any:
        """The product of matrices, a matrix and a vector, or the dot product of two vectors, which is a Padic.

        An element is known to the least precision of its products; it is summed exactly, as a residue. Raises
        ArgumentError for other shapes, and for an inner dimension of 0, since an empty sum has no precision.
        """
        if not isinstance(other, PadicArray):
            return NotImplemented
        same_prime(self, other)
        a, b = (self, other) if self.units.ndim > 1 else (self[None], other)
        b = b if other.units.ndim > 1 else b[:, None]
        if a.units.ndim != 2 or b.units.ndim != 2 or a.shape[1] != b.shape[0] or not a.shape[1]:
            raise ArgumentError(f"shapes {self.shape} @ {other.shape}; accepted: ([m,] k) @ (k [, n]), k of at least 1")
        n = np.full((a.shape[0], b.shape[1]), 4 * MAX_EXPONENT, np.int64)
        for k in range(a.shape[1]):
            np.minimum(n, a.valuation[:, k, None] + b.precision[k], out=n)
            np.minimum(n, a.precision[:, k, None] + b.valuation[k], out=n)
        top, left = a.valuation.min(1, keepdims=True), b.valuation.min(0, keepdims=True)
        v = top + left  # below the valuation of every product that is summed for an element
        digits = int((n - v).max(initial=0))
        rows = scaled(a.units, a.valuation - top, self.prime, digits)
        columns = scaled(b.units, b.valuation - left, self.prime, digits)
        product = type(self)(self.prime, product_modulo(rows, columns, self.prime, digits), v, n)
        index = (slice(None) if self.units.ndim > 1 else 0, slice(None) if other.units.ndim > 1 else 0)
        return product[index]

    def __getitem__(self, index: Any) -> Any:
        """An element as a Padic, or part of the array, by NumPy's indices."""
        units, v, n = self.units[index], self.valuation[index], self.precision[index]
        if np.ndim(v) == 0:
            return Padic(self.prime, int(units), int(v), int(n))
        return type(self)(self.prime, units, v, n)

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PadicArray)
            and self.prime == other.prime
            and np.array_equal(self.units, other.units)
            and np.array_equal(self.valuation, other.valuation)
            and np.array_equal(self.precision, other.precision)
        )

    def __hash__(self) -> int:
        parts = (tuple(array.ravel().tolist()) for array in (self.units, self.valuation, self.precision))
        return hash((self.prime, self.shape, *parts))

    def __reduce__(self) -> tuple[Any, ...]:  # arrays lose on the way that they are not writable
        return type(self), (self.prime, self.units, self.valuation, self.precision)

    def __repr__(self) -> str:
        lists = f"{self.units.tolist()}, {self.valuation.tolist()}, {self.precision.tolist()}"
        return f"{type(self).__name__}({self.prime}, {lists})"

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self))}]"

    def _operand(self, other: object, factor: bool = False) -> Self | None:
        if isinstance(other, PadicArray):
            same_prime(self, other)
            broadcastable(self.shape, other.shape)
            return other  # type: ignore[return-value]
        if isinstance(other, Padic):
            same_prime(self, other)
            return type(self)._joined(self.prime, [other], (1,))
        digits = int(self.relative_precision.max(initial=1)) if factor else None
        exact = exact_operand(other, self.prime, int(self.precision.max(initial=0)), digits)
        return None if exact is None else type(self)._joined(self.prime, [exact], (1,))

    def __neg__(self) -> Self:
        return type(self)(self.prime, -self.units, self.valuation, self.precision)

    def _plus(self, other: Self) -> Self:
        n, v = np.minimum(self.precision, other.precision), np.minimum(self.valuation, other.valuation)
        digits = int((n - v).max(initial=0))
        terms = (scaled(x.units, x.valuation - v, self.prime, digits) for x in (self, other))
        return type(self)(self.prime, sum(terms), v, n)  # type: ignore[arg-type]

    def _times(self, other: Self) -> Self:
        n = np.minimum(self.valuation + other.precision, other.valuation + self.precision)
        return type(self)(self.prime, self.units * other.units, self.valuation + other.valuation, n)

    def _over(self, other: Self) -> Self:
        if other.is_zero.any():
            where = tuple(np.argwhere(other.is_zero)[0].tolist())
            raise PrecisionError(f"division by {other[where]} at {where}, which may be zero; accepted: a known digit")
        inverse = np.frompyfunc(lambda unit, digits: inverse_of_unit(unit, self.prime, digits), 2, 1)
        inverses = inverse(other.units.astype(object), other.relative_precision.astype(object))
        v = self.valuation - other.valuation
        n = np.minimum(self.precision - other.valuation, v + other.relative_precision)
        return type(self)(self.prime, self.units.astype(object) * inverses, v, n)

    def __pow__(self, exponent: int) -> Self:
        """The power of each element, as `Padic` has it."""
        return type(self)._joined(self.prime, [self[i] ** exponent for i in np.ndindex(self.shape)], self.shape)


def same_prime(a: PadicArray, b: PadicArray | Padic) -> None:
    """Raises ArgumentError for operands of different primes."""
    if a.prime != b.prime:
        raise ArgumentError(f"primes {a.prime} and {b.prime}; accepted: operands of one prime")


def broadcastable(*shapes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The shapes themselves. Raises ArgumentError where they do not broadcast."""
    try:
        np.broadcast_shapes(*shapes)
    except ValueError as wrong:
        raise ArgumentError(f"shapes {', '.join(map(str, shapes))}; accepted: those that broadcast") from wrong
    return shapes


def exponents(name: str, value: object) -> Array:
    """Valuations or precisions, as int64. Raises ArgumentError for what is no integer, or beyond 2^31."""
    array = integers(name, value)
    if ((array > MAX_EXPONENT) | (array < -MAX_EXPONENT)).any():
        raise ArgumentError(f"{name}={value!r}; accepted: -2^31 to 2^31")
    return array.astype(np.int64)
