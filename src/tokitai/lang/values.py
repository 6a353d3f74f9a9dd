"""Symbolic values: what a definition computes with. Python's operators build nodes; everything else is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar, Union

import numpy as np

from ..formats import FORMATS, Format
from .graph import Function, Node, Space, Type
from .origin import refuse, where_from

INTEGERS: tuple[Type, ...] = ("i32", "i64", "u32")

Number = Union["Value", float, int]


class FormatTag:
    """A format as an annotation: ``Matrix[f32]``. ``storage`` is the format that ``dtype=`` selects."""


class storage(FormatTag):  # noqa: N801
    """The format that ``dtype=`` selects."""


class f16(FormatTag):  # noqa: N801
    """IEEE 754 binary16."""


class bf16(FormatTag):  # noqa: N801
    """bfloat16: the upper half of an f32."""


class f32(FormatTag):  # noqa: N801
    """IEEE 754 binary32."""


class f64(FormatTag):  # noqa: N801
    """IEEE 754 binary64."""


class i32(FormatTag):  # noqa: N801
    """Signed integers of 32 bits."""


class i64(FormatTag):  # noqa: N801
    """Signed integers of 64 bits."""


class u32(FormatTag):  # noqa: N801
    """Unsigned integers of 32 bits."""


@dataclass
class _Tracing:
    """What one tracing knows: its nodes, so that equal ones are one, and the format that `storage` stands for."""

    storage: str | None = None
    nodes: dict[tuple[object, ...], Node] = field(default_factory=dict)


# Of this thread: definitions share no nodes, whose origin would then be another definition's line.
_tracing: ContextVar[_Tracing] = ContextVar("tracing", default=_Tracing())  # noqa: B039  (values outside a definition)


@contextmanager
def tracing(storage_format: str | None) -> Iterator[None]:
    """Trace a definition, or None the body of a function: it is traced once for all storage formats."""
    token = _tracing.set(_Tracing(storage_format))
    try:
        yield
    finally:
        _tracing.reset(token)


def storage_format() -> str | None:
    """The storage format of the definition that is being traced."""
    return _tracing.get().storage


def make(
    op: str,
    *args: Node,
    space: Space | None = None,
    type: Type = "f32",
    data: tuple[object, ...] = (),
    body: Function | None = None,
    exact: bool | None = None,
    origin: str | None = None,
) -> Node:
    """The node for this operation; equal operations on equal operands are one node. ``origin`` is the user's line,
    where that is not the one that is running."""
    if any(a.op == "slots" for a in args):
        refuse(f"{op} of several values a row (slots)", "slots(...) as a result, and computations before it")
    if space is None:
        space = join(*(a.space for a in args))
    if exact is None:
        exact = bool(args) and all(a.exact for a in args) and type in (*INTEGERS, "bool")
    # The constant -0.0 equals 0.0 in Python, so floats are distinguished by their bits.
    key = (op, args, space, type, tuple(d.hex() if isinstance(d, float) else d for d in data), body)
    nodes = _tracing.get().nodes
    found = nodes.get(key)
    return found or nodes.setdefault(key, Node(op, args, space, type, data, exact, body, origin or where_from()))


def join(*spaces: Space) -> Space:
    """The smallest space that holds values of all these: a row value with a column value is rows x cols."""
    has = set("".join(spaces)) - {"s"}
    if "t" in has:
        if "r" in has:
            refuse("a value of a table beside one with rows", "gather(table, index) brings a table's entries to rows")
        return "t"
    if "k" in has:
        if {"r", "c"} <= has:
            refuse("a value with a K dimension beside rows and columns", "values of rows or of columns beside it")
        return "rk" if "r" in has else "ck"
    return "rc" if has == {"r", "c"} else "r" if has == {"r"} else "c" if has == {"c"} else "s"


def _refused(symbol: str, accepted: str) -> Callable[..., NoReturn]:
    """A method that refuses what Python would do with a value."""

    def method(self: Value, *others: object) -> NoReturn:
        refuse(f"{symbol} of {self}", accepted)

    return method


_ARITHMETIC = "+ - * / and comparisons; the functions of tokitai.lang"


class Value:
    """A symbolic value. Supports ``+ - * /`` and comparisons with other values and numbers."""

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]  # `==` builds a comparison

    def __init__(self, node: Node) -> None:
        self.node = node

    def __add__(self, other: Number) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Number) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return binary("sub", other, self)

    def __mul__(self, other: Number) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return binary("mul", other, self)

    def __truediv__(self, other: Number) -> Value:
        return binary("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return binary("div", other, self)

    def __neg__(self) -> Value:
        if self.node.type == "host":
            return Value(make("host_neg", self.node, type="host"))
        return Value(make("neg", floating(self, "neg"), type=self.node.type))

    def __abs__(self) -> Value:
        node = floating(self, "abs")
        return Value(make("abs", node, type=node.type))

    def __lt__(self, other: Number) -> Value:
        return compare("lt", self, other)

    def __le__(self, other: Number) -> Value:
        return compare("le", self, other)

    def __gt__(self, other: Number) -> Value:
        return compare("lt", other, self)

    def __ge__(self, other: Number) -> Value:
        return compare("le", other, self)

    def __eq__(self, other: Number) -> Value:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self, other: Number) -> Value:  # type: ignore[override]
        return compare("ne", self, other)

    def __and__(self, other: Value) -> Value:
        return logical("logical_and", self, other)

    def __or__(self, other: Value) -> Value:
        return logical("logical_or", self, other)

    def __invert__(self) -> Value:
        return logical("logical_not", self)

    def __pow__(self, power: Number) -> Value:
        if self.node.type == "host" and (power.node.exact if isinstance(power, Value) else _is_whole(power)):
            return binary("power", self, power)
        refuse(
            f"{self} ** {power!r}",
            "x * x; ** of a host scalar, with a whole exponent: 0, 1, 2 ..., an int parameter, rows or columns",
        )

    def __bool__(self) -> bool:
        refuse(f"the truth of {self}, which differs from element to element", "where(condition, a, b)")

    __float__ = _refused("the Python number", "the functions of tokitai.lang (sqrt, exp ...) instead of those of math")
    __int__ = __index__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = __float__
    __iter__ = __len__ = __contains__ = _refused("iteration", "whole-tensor expressions and row_sum, row_max, col_sum")
    __mod__ = __rmod__ = _refused("the remainder %", _ARITHMETIC)
    __floordiv__ = __rfloordiv__ = _refused("the whole quotient //", _ARITHMETIC)
    __divmod__ = __rdivmod__ = _refused("divmod", _ARITHMETIC)
    __matmul__ = __rmatmul__ = _refused("the product @", _ARITHMETIC)
    __rpow__ = _refused("a power", "exp2(x) and the like of tokitai.elementary")
    __xor__ = __rxor__ = _refused("^", "bit_xor of u32 values; != between conditions is a & ~b | ~a & b")
    __lshift__ = __rlshift__ = _refused("<<", "a product with a power of two")
    __rshift__ = __rrshift__ = _refused(">>", "shift_right of a u32 value")

    def __getitem__(self, index: object) -> NoReturn:
        refuse(f"{self}[{index!r}]", "whole-tensor expressions; take_column(x, index) for one element of each row")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        refuse(f"{self} as a NumPy array", "the functions of tokitai.lang instead of NumPy's")

    def __array_ufunc__(self, ufunc: Any, *args: object, **kwargs: object) -> NoReturn:
        refuse(f"numpy.{ufunc.__name__} of {self}", "the functions of tokitai.lang; values, int and float beside +-*/")

    def __array_function__(self, function: Any, *args: object) -> NoReturn:
        refuse(f"numpy.{function.__name__} of {self}", "the functions of tokitai.lang instead of NumPy's")

    def __repr__(self) -> str:
        spaces = {"rc": "a rows x cols", "r": "a one-per-row", "c": "a one-per-column", "s": "a scalar"}
        spaces |= {"t": "an entries x cols", "rk": "a rows x inner", "ck": "a cols x inner"}
        return f"{spaces[self.node.space]} {self.node.type} value ({self.node.op})"


F = TypeVar("F")


class Matrix(Value, Generic[F]):
    """A tensor of rows x cols; leading dimensions flatten into rows."""


class Operand(Value, Generic[F]):
    """A matrix that a product takes; which of its sides are rows, columns or inner follows from its use there."""

    __slots__ = ("format", "name")

    def __init__(self, name: str, stored_as: str) -> None:
        self.name, self.format = name, stored_as

    @property
    def node(self) -> Node:  # type: ignore[override]
        """An operand is no value that can be computed with."""
        refuse(f"{self} outside a product", "matmul(a, b)")

    def placed(self, space: Space) -> Node:
        """The operand as it lies in memory."""
        return make("input", space=space, type="f32", data=(self.name, self.format))

    def __repr__(self) -> str:
        return f"the operand {self.name}"


class Rows(Value, Generic[F]):
    """A tensor with one element a row."""


class Cols(Value, Generic[F]):
    """A tensor with one element a column."""


class Table(Value, Generic[F]):
    """A tensor of entries x cols, whose number of entries is its own: `gather` brings them to rows."""


class Slots(Value, Generic[F]):
    """A tensor of rows x k, where k is the operator's option of that name: the definition gets its k row values."""


def lift(x: Any, like: Node | None = None) -> Node:
    """The node of a value; a Python number becomes a constant of the type of its partner, rounded once."""
    if isinstance(x, Value):
        return x.node
    if isinstance(x, (bool, np.generic, np.ndarray)) or not isinstance(x, (int, float)):
        refuse(f"{x!r} of type {type(x).__name__} in an expression", "values of the language, int and float")
    kind: Type = like.type if like is not None and like.type != "bool" else "f32"
    if kind in INTEGERS:
        if not isinstance(x, int):
            refuse(f"the number {x!r} beside an integer value", "a whole number")
        limits = np.iinfo(FORMATS[kind].dtype)
        if not limits.min <= x <= limits.max:
            refuse(f"the whole number {x} beside a value of type {kind}", f"{limits.min} to {limits.max}")
        return make("const", space="s", type=kind, data=(x,), exact=True)
    if isinstance(x, int) and abs(x) > 2**53:
        refuse(f"the whole number {x}", "whole numbers up to 2**53 beside floating-point values")
    if math.isnan(x):
        refuse("the constant nan", "finite numbers and infinities")
    return make("number" if kind == "host" else "const", space="s", type=kind, data=(float(x),))


def _is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def unify(name: str, *values: Any) -> list[Node]:
    """Operands of one type: numbers adapt to values, and host scalars are rounded once to the kernel's type."""
    partner = next((v.node for v in values if isinstance(v, Value) and v.node.type not in ("host", "bool")), None)
    if partner is None:
        partner = next((v.node for v in values if isinstance(v, Value)), None)
    nodes = [lift(v, partner) for v in values]
    types = {n.type for n in nodes} - {"host"}
    if len(types) > 1:
        found = ", ".join(str(Value(n)) for n in nodes)
        refuse(f"{name} of {found}", "operands of one type; convert(x, f32) and the like change it explicitly")
    if types and any(n.type == "host" for n in nodes):
        kind = types.pop()
        if kind in INTEGERS:
            refuse(f"{name} of a host scalar and a value of type {kind}", "f32 or f64 values beside host scalars")
        nodes = [make("round", n, type=kind) if n.type == "host" else n for n in nodes]
    return nodes


def floating(x: Number, name: str) -> Node:
    """The node of a floating-point operand; a host scalar is rounded to f32 here."""
    node = lift(x)
    if node.type == "host":
        return make("round", node, type="f32")
    if node.type not in ("f32", "f64"):
        refuse(f"{name} of {Value(node)}", "an f32 or f64 value")
    return node


def binary(name: str, a: Number, b: Number) -> Value:
    """An operation of two operands, on the host, on integers or on numbers."""
    left, right = unify(name, a, b)
    if left.type == "host":
        return Value(make(f"host_{name}", left, right, type="host"))
    if left.type in INTEGERS:
        if name == "div":
            refuse(f"division of {Value(left)}", "floating-point values; int division is not part of the language")
        return Value(make(f"int_{name}", left, right, type=left.type))
    if left.type == "bool":
        refuse(f"{name} of {Value(left)}", "numbers; & | ~ and where for conditions")
    return Value(make(name, left, right, type=left.type))


def compare(name: str, a: Number, b: Number) -> Value:
    """A comparison of two operands."""
    left, right = unify(name, a, b)
    if left.type == "host":
        left, right = (make("round", n, type="f32") for n in (left, right))
    if left.type == "bool":
        refuse(f"{name} of {Value(left)}", "numbers; & | ~ for conditions")
    return Value(make(name, left, right, type="bool"))


def logical(name: str, *values: Value) -> Value:
    """An operation on conditions."""
    nodes = [lift(v) for v in values]
    for n in nodes:
        if n.type != "bool":
            refuse(f"{name} of {Value(n)}", "conditions, made by < <= == != > >=")
    if len({n.exact for n in nodes}) > 1:
        refuse(f"{name} of a condition on numbers and one on indices", "nested where(...)")
    return Value(make(name, *nodes, type="bool"))


def format_name(tag: object) -> str:
    """The name of the format that an annotation or argument means; `storage` stands for the one ``dtype=`` selects."""
    if isinstance(tag, Format):
        return tag.name
    if isinstance(tag, type) and issubclass(tag, FormatTag) and (tag is storage or tag.__name__ in FORMATS):
        return tag.__name__
    refuse(f"the format {tag!r}", f"storage or one of {', '.join(FORMATS)}")
