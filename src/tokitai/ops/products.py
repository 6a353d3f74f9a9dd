"""Matrix products: y = alpha a b + beta c, alone or a batch of them, and the products of the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..lang import Contract, Gradient, HardInput, Matrix, Operand, Outputs, fma, operator, outputs, storage
from ..lang import matmul as product

Layout = Literal["NN", "NT", "TN"]
Accumulator = Literal["f32", "f64", "fused16", "fixed8", "fixed16", "fixed24"]
WideAccumulator = Literal["f32", "f64"]  # where an operand may be f32

DOMAIN = "sums of products whose partial sums stay finite in f32"
CONTRACT = Contract(domain=DOMAIN, batched=True)
SCALED = Contract(domain=DOMAIN, batched=True, defaults={"alpha": 0.75, "beta": 0.5}, switches={"add_c": "beta"})


@operator(contract=SCALED, gradient=Gradient(composed=True))
def matmul(
    a: Operand[storage], b: Operand[storage], c: Matrix[storage] | None, *, alpha: float = 1.0, beta: float = 1.0,
    layout: Layout = "NN", accumulator: Accumulator = "f32", add_c: bool = True,
) -> Outputs:  # fmt: skip
    """y = alpha a b + beta c. With the layout NT b is given as its transpose, with TN a. With beta = 0 c is not read.

    The product is rounded to f32 once, times alpha once, and once with beta c added, before the store.
    """
    y = product(a, b, layout, accumulator) * alpha
    return outputs(y=fma(c, beta, y) if c is not None and add_c else y)


@operator(contract=CONTRACT, backward_of=matmul)
def matmul_backward_left(
    dy: Operand[storage], b: Operand[storage], *, alpha: float = 1.0, layout: Layout = "NN",
    accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """da = alpha dy b^T, stored as a was given: ``layout`` is that of the forward product."""
    if layout == "TN":
        return outputs(da=product(b, dy, "NT", accumulator) * alpha)
    return outputs(da=product(dy, b, "NT" if layout == "NN" else "NN", accumulator) * alpha)


@operator(contract=CONTRACT, backward_of=matmul)
def matmul_backward_right(
    dy: Operand[storage], a: Operand[storage], *, alpha: float = 1.0, layout: Layout = "NN",
    accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """db = alpha a^T dy, stored as b was given: ``layout`` is that of the forward product."""
    if layout == "NT":
        return outputs(db=product(dy, a, "TN", accumulator) * alpha)
    return outputs(db=product(a, dy, "TN" if layout == "NN" else "NN", accumulator) * alpha)


def _times(a: Any, b: Any, layout: str) -> Any:
    left = np.swapaxes(a, -1, -2) if layout == "TN" else a
    return left @ (np.swapaxes(b, -1, -2) if layout == "NT" else b)


@matmul.set_textbook
def textbook(
    a: Any, b: Any, *, alpha: float, beta: float, layout: str, accumulator: str, add_c: bool, c: Any = 0.0
) -> dict[str, Any]:
    """Dongarra, Du Croz, Hammarling and Duff, "A Set of Level 3 Basic Linear Algebra Subprograms" (1990), GEMM."""
    return dict(y=alpha * _times(a, b, layout) + (beta * c if add_c else 0.0))


@matmul_backward_left.set_textbook
def textbook_left(dy: Any, b: Any, *, alpha: float, layout: str, accumulator: str) -> dict[str, Any]:
    """The product rule: d tr(dy^T a b) / da = dy b^T."""
    if layout == "TN":
        return dict(da=alpha * _times(b, dy, "NT"))
    return dict(da=alpha * _times(dy, b, "NT" if layout == "NN" else "NN"))


@matmul_backward_right.set_textbook
def textbook_right(dy: Any, a: Any, *, alpha: float, layout: str, accumulator: str) -> dict[str, Any]:
    """The product rule: d tr(dy^T a b) / db = a^T dy."""
    if layout == "NT":
        return dict(db=alpha * _times(dy, a, "TN"))
    return dict(db=alpha * _times(a, dy, "TN" if layout == "NN" else "NN"))


def hard_products(left: str, right: str) -> Iterator[HardInput]:
    """Operands, as rows x inner and inner x cols, that show another order of summation, a narrow accumulator or partial
    sum, a tail that is not masked, a factor rounded on its way."""
    yield HardInput("factors of eleven bits", {left: [[1024.5]], right: [[1.0]]})
    yield HardInput("pi and zeros", {left: [[0.0, 3.14]], right: [[0.0], [3.14]]})
    yield HardInput("no inner side", {left: np.zeros((2, 0)), right: np.zeros((0, 3))})
    yield HardInput("an outer product", {left: [[2.0]], right: np.arange(128.0)[None, :]})
    yield HardInput("1001 ones", {left: np.ones((1, 1001)), right: np.ones((1001, 1))})
    yield HardInput("65 ones", {left: np.ones((65, 65)), right: np.ones((65, 65))})
    halves = np.zeros((1, 130))
    halves[0, [0, 1, 65, 66]] = 256.0, 1.0, -256.0, 0.0
    yield HardInput("halves that cancel", {left: halves, right: np.ones((130, 1))})
    yield HardInput("one large product, then ones", {left: [[2048.0] + [1.0] * 63], right: np.ones((64, 1))})
    yield HardInput("5000 ones", {left: np.ones((2, 5000)), right: np.ones((5000, 1))}, in_domain=True)
    tiny = np.full((3, 4), 2.0**-14)
    yield HardInput("underflow, signs", {left: tiny * [1, -1, 1, -1], right: tiny.T * 2.0**-10})
    zeros = np.array([[0.0, -0.0], [-0.0, -0.0]])
    yield HardInput("zeros of both signs", {left: zeros, right: [[0.0, -0.0, 1.0], [-0.0, -0.0, 1.0]]})
    for name, a, b in hard_steps():
        yield HardInput(name, {left: a, right: b})
    special = [[1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]
    yield HardInput("infinity and NaN", {left: special, right: np.eye(3)})


@matmul.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Products; and c that must not be read."""
    yield from hard_products("a", "b")
    ones = np.ones((65, 65))
    yield HardInput("beta = 0, c of NaN", dict(a=ones, b=ones, c=ones * np.nan), dict(alpha=1.0, beta=0.0))
    yield HardInput("alpha = 0", dict(a=ones, b=ones, c=ones), dict(alpha=0.0, beta=1.0))


@matmul_backward_left.set_hard_inputs
def hard_inputs_left() -> Iterator[HardInput]:
    """Square ones: which operand is on the left depends on the layout."""
    yield from square("dy", "b")


@matmul_backward_right.set_hard_inputs
def hard_inputs_right() -> Iterator[HardInput]:
    """Square ones: which operand is on the left depends on the layout."""
    yield from square("dy", "a")


def hard_steps() -> Iterator[tuple[str, Any, Any]]:
    """Operands that show at which exponent, and how far below it, a matrix unit cuts: of one row and one column."""
    small = np.ldexp(1 + np.arange(48) * 37 % 128 / 128, -70)  # 0 in f16
    yield "products near 2^-140", small[None, :], small[::-1, None]
    below, least = 2.0**-24, 2.0**-14  # f16's smallest number, and its smallest normal one
    yield "a subnormal factor of the largest product", [[below, 1.5 * least]], [[2.0**15], [1.25 * least]]


def square(first: str, second: str) -> Iterator[HardInput]:
    """Square operands, so that either may be on the left."""
    yield HardInput("65 ones", {first: np.ones((65, 65)), second: np.ones((65, 65))})
    yield HardInput("infinity and NaN", {first: [[1.0, np.inf], [np.nan, 1.0]], second: [[1.0, 2.0], [0.0, -0.0]]})
    yield HardInput("nothing", {first: np.zeros((0, 0)), second: np.zeros((0, 0))})
    steps = np.arange(33.0 * 33).reshape(33, 33) % 7 - 3
    yield HardInput("small whole numbers", {first: steps, second: steps.T + 1})
