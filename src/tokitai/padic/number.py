"""One p-adic number with precision, and the operators that numbers and arrays of numbers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np

from ..errors import ArgumentError, PrecisionError
from .residues import checked_prime, inverse_of_unit, valuation_of, whole

Exact = int | Fraction | np.integer[Any]


class Operators:
    """The operators `+ - * /`, between p-adic numbers or arrays of one prime, and with exact integers and fractions.

    An exact operand costs no precision. It may not be a factor 0 or a divisor 0: a product that is exactly zero has no
    precision.
    """

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # NumPy's arrays and scalars leave the operation to these classes

    @abstractmethod
    def _operand(self, other: object, factor: bool = False) -> Self | None:
        """The other operand as one of this class, exact ones with digits enough; None for what is not accepted."""

    @abstractmethod
    def _plus(self, other: Self) -> Self: ...

    @abstractmethod
    def _times(self, other: Self) -> Self: ...

    @abstractmethod
    def _over(self, other: Self) -> Self: ...

    @abstractmethod
    def __neg__(self) -> Self: ...

    def __add__(self, other: object) -> Self:
        operand = self._operand(other)
        return NotImplemented if operand is None else self._plus(operand)

    __radd__ = __add__

    def __sub__(self, other: object) -> Self:
        operand = self._operand(other)
        return NotImplemented if operand is None else self._plus(-operand)

    def __rsub__(self, other: object) -> Self:
        return (-self).__add__(other)

    def __mul__(self, other: object) -> Self:
        operand = self._operand(other, factor=True)
        return NotImplemented if operand is None else self._times(operand)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Self:
        operand = self._operand(other, factor=True)
        return NotImplemented if operand is None else self._over(operand)

    def __rtruediv__(self, other: object) -> Self:
        operand = self._operand(other, factor=True)
        return NotImplemented if operand is None else operand._over(self)


@dataclass(frozen=True, slots=True)
class Padic(Operators):
    """The ball of all x with x = unit * prime^valuation modulo prime^precision.

    Any integers are taken, and brought to the one form that each ball has: the prime does not divide the unit, and
    0 < unit < prime^(precision - valuation); or, where nothing but zeros is known, unit = 0 and valuation = precision.
    The precision is absolute; it is negative where not even the digit at prime^-1 is known.

    ``x == y`` means the same ball: the same prime, the same known digits, the same precision. It is an equivalence, and
    equal numbers have equal hashes. Whether two numbers may be the same one is another question: `agrees` answers it.
    An int or a Fraction is no ball, and equals none.

    Raises ArgumentError for a prime that is not prime, and for arguments that are no integers.
    """

    prime: int
    unit: int
    valuation: int
    precision: int

    def __post_init__(self) -> None:
        prime, unit = checked_prime(self.prime), whole("unit", self.unit)
        valuation, precision = whole("valuation", self.valuation), whole("precision", self.precision)
        unit = unit % prime ** (precision - valuation) if valuation < precision else 0
        if unit:
            shift = valuation_of(unit, prime)
            unit, valuation = unit // prime**shift, valuation + shift
        else:
            valuation = precision
        for name, value in zip(self.__slots__, (prime, unit, valuation, precision), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, value: Exact, prime: int, *, precision: int | None = None, digits: int | None = None) -> Self:
        """The ball round an integer or a fraction: to an absolute ``precision``, or to so many ``digits`` from its
        first digit that is not zero.

        Raises ArgumentError for other values (a float is not the number that its digits show), where not exactly one
        of both is given, for less than one digit, and for digits of 0, which has no first one.
        """
        prime = checked_prime(prime)
        if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
            raise ArgumentError(f"value={value!r}; accepted: an int or a Fraction")
        if (precision is None) == (digits is None):
            raise ArgumentError(f"precision={precision}, digits={digits}; accepted: exactly one of both")
        if digits is not None and (whole("digits", digits) < 1 or value == 0):
            raise ArgumentError(f"digits={digits} of {value}; accepted: at least 1, of a value other than 0")
        top, bottom = int(value.numerator), int(value.denominator)
        shift = valuation_of(bottom, prime)
        if digits is not None:
            precision = valuation_of(top, prime) - shift + digits
        known = max(whole("precision", precision) + shift, 1)
        return cls(prime, top * inverse_of_unit(bottom // prime**shift, prime, known), -shift, precision)  # type: ignore[arg-type]

    @classmethod
    def from_digits(cls, digits: Sequence[int], prime: int, valuation: int = 0) -> Self:
        """The number with these digits, the first one at prime^valuation, and none known after the last.

        Raises ArgumentError for a digit outside 0 to prime - 1.
        """
        prime, unit = checked_prime(prime), 0
        for digit in reversed(digits):
            if not 0 <= whole("digit", digit) < prime:
                raise ArgumentError(f"digit={digit}; accepted: 0 to {prime - 1}")
            unit = unit * prime + whole("digit", digit)
        return cls(prime, unit, valuation, whole("valuation", valuation) + len(digits))

    @property
    def relative_precision(self) -> int:
        """How many digits are known from the first one that is not zero; 0 where there is none."""
        return self.precision - self.valuation

    @property
    def is_zero(self) -> bool:
        """Whether the number may be zero: no known digit is anything else."""
        return self.unit == 0

    @property
    def representative(self) -> Fraction:
        """The member of the ball whose digits from the precision on are zero."""
        return self.unit * Fraction(self.prime) ** self.valuation

    @property
    def digits(self) -> tuple[int, ...]:
        """The known digits, from that at prime^valuation to that at prime^(precision - 1)."""
        return tuple(self.unit // self.prime**i % self.prime for i in range(self.relative_precision))

    def agrees(self, other: Self | Exact) -> bool:
        """Whether both may be the same number: they have the same digits as far as those of both are known. This is no
        equivalence: O(5^1) agrees with 5 and with 10. Raises ArgumentError for numbers of different primes."""
        return (self - other).is_zero

    def reduced(self, precision: int) -> Self:
        """The number with the digits from an absolute precision on forgotten. Raises PrecisionError where that many are
        not known."""
        if whole("precision", precision) > self.precision:
            raise PrecisionError(f"{self} reduced to precision {precision}; accepted: at most {self.precision}")
        return type(self)(self.prime, self.unit, self.valuation, precision)

    def lifted(self, precision: int) -> Self:
        """The representative to a higher absolute precision: the new digits are zeros by choice, not knowledge. Raises
        ArgumentError for a lower precision."""
        if whole("precision", precision) < self.precision:
            raise ArgumentError(f"{self} lifted to precision {precision}; accepted: at least {self.precision}")
        return type(self)(self.prime, self.unit, self.valuation, precision)

    def __bool__(self) -> bool:
        return not self.is_zero

    def __str__(self) -> str:
        known = f"{self.unit} * {self.prime}^{self.valuation} + " if self.unit else ""
        return f"{known}O({self.prime}^{self.precision})"

    def series(self) -> str:
        """The digits that are not zero, as a sum: `2 * 5^-1 + 3 * 5^1 + O(5^4)`."""
        places = enumerate(self.digits, start=self.valuation)
        terms = [f"{digit} * {self.prime}^{place}" for place, digit in places if digit]
        return " + ".join([*terms, f"O({self.prime}^{self.precision})"])

    def _operand(self, other: object, factor: bool = False) -> Self | None:
        if isinstance(other, Padic):
            if other.prime != self.prime:
                raise ArgumentError(f"primes {self.prime} and {other.prime}; accepted: operands of one prime")
            return other  # type: ignore[return-value]
        exact = exact_operand(other, self.prime, self.precision, self.relative_precision if factor else None)
        return exact  # type: ignore[return-value]

    def __neg__(self) -> Self:
        return type(self)(self.prime, -self.unit, self.valuation, self.precision)

    def _plus(self, other: Self) -> Self:
        valuation, p = min(self.valuation, other.valuation), self.prime
        total = self.unit * p ** (self.valuation - valuation) + other.unit * p ** (other.valuation - valuation)
        return type(self)(p, total, valuation, min(self.precision, other.precision))

    def _times(self, other: Self) -> Self:
        precision = min(self.valuation + other.precision, other.valuation + self.precision)
        return type(self)(self.prime, self.unit * other.unit, self.valuation + other.valuation, precision)

    def _over(self, other: Self) -> Self:
        if other.is_zero:
            raise PrecisionError(
                f"{self} divided by {other}, which may be zero; accepted: a divisor with a known digit"
            )
        inverse = inverse_of_unit(other.unit, self.prime, other.relative_precision)
        valuation = self.valuation - other.valuation
        precision = min(self.precision - other.valuation, valuation + other.relative_precision)
        return type(self)(self.prime, self.unit * inverse, valuation, precision)

    def __pow__(self, exponent: int) -> Self:
        """The power of one number, which is known to more digits than a product of equal ones where the prime divides
        the exponent: (u + p^r t)^p = u^p modulo p^(r+1).

        Raises ArgumentError for the exponent 0, since the power is exactly one, and no ball is; PrecisionError for a
        negative exponent of a number that may be zero.
        """
        k = whole("exponent", exponent)
        if k == 0:
            raise ArgumentError("exponent=0; accepted: an integer other than 0, since x**0 is exactly one")
        if self.is_zero:
            if k < 0:
                raise PrecisionError(f"({self})**{k}, of what may be zero; accepted: an exponent of at least 1")
            return type(self)(self.prime, 0, 0, k * self.precision)
        digits = self.relative_precision + valuation_of(k, self.prime)
        if self.prime == 2 and self.relative_precision == 1 and k % 2 == 0:
            digits += 1  # the square of an odd number is 1 modulo 8, not just modulo 4
        first = k * self.valuation
        return type(self)(self.prime, pow(self.unit, k, self.prime**digits), first, first + digits)


def exact_operand(value: object, prime: int, precision: int, digits: int | None) -> Padic | None:
    """An int or a Fraction as a number that limits no sum with one of this precision, or, where ``digits`` is given, no
    product or quotient with one of so many digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | np.integer):
        return None
    if digits is None:
        return Padic.of(value, prime, precision=precision)
    if value == 0:
        raise ArgumentError(
            "0 as an exact factor or divisor; accepted: a zero with a precision, as of Padic.of(0, ...)"
        )
    return Padic.of(value, prime, digits=max(digits, 1))
