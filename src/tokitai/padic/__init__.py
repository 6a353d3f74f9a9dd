"""p-adic numbers whose precision is known: `Padic`, one number, and `PadicArray`, vectors and matrices of them.

    x = Padic.of(Fraction(3, 50), 5, digits=6)       # 3/50 = 3/2 * 5^-2, its first six digits
    print(x * x - x)                                 # 3871 * 5^-4 + O(5^2): no digit more than is known, and none less
    a = PadicArray(5, [[1, 2], [3, 4]], 0, 8)        # a matrix of integers modulo 5^8
    print(a @ a)

A number is a ball: all x with x = unit * p^valuation modulo p^precision. The result of an operation is the smallest
ball that holds the results for all members of the operands, each operand taken on its own: x - x is O(p^precision),
x * x is a product of two numbers that happen to have the same known digits, and x**2 is a square.
"""

from .array import PadicArray
from .number import Padic

__all__ = ["Padic", "PadicArray"]
