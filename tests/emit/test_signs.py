"""Signs of zeros: a compiler that takes -fma(a, b, c) for fma(-a, b, -c) has the other zero where terms cancel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tokitai.lang import Matrix, Operator, Outputs, Rows, Value, f32, fma, operator, outputs, row_sum
from tokitai.meaning import bits
from tokitai.runtime.kernel import host_kernel
from tokitai.toolchain.build import Isa, isas_here
from tokitai.verification.cases import Case
from tokitai.verification.run import run_numbers

PATTERNS = [0.0, -0.0, 1.0, -1.0]


def turned(s: Value, a: Value, b: Value, c: Value) -> dict[str, Value]:
    """The ways to write minus a sum of a product."""
    inner = fma(-fma(-a, b, c), a, b)  # as a gradient of a norm has it
    return dict(neg=-s, ones=fma(a, b, c) * -1.0, zero=-0.0 - fma(b, a, c), div=fma(b, a, c) / -1.0, inner=inner)


@operator
def of_elements(a: Matrix[f32], b: Matrix[f32], c: Matrix[f32]) -> Outputs:
    """Of each element."""
    return outputs(**turned(fma(a, b, c), a, b, c))


@operator
def of_rows(x: Matrix[f32], a: Rows[f32], b: Rows[f32], c: Rows[f32]) -> Outputs:
    """Of each row, beside its sum."""
    total = row_sum(x) * 0.0
    made = turned(fma(a + total, b, c), a, b, c)
    return outputs(y=fma(-fma(-a, b, c + total), x, x), z=fma(fma(b, a + total, c) * -1.0, x, x), **made)


@pytest.mark.parametrize("isa", isas_here())
@pytest.mark.parametrize("op", [of_elements, of_rows], ids=str)
def test_minus_a_sum_of_a_product_has_the_sign_that_is_defined(op: Operator, isa: Isa) -> None:
    grid = np.array(list(itertools.product(PATTERNS, repeat=3)), np.float32)
    rows = op is of_rows
    tensors = {n: grid[:, i].copy() if rows else np.tile(grid[:, i], (2, 1)) for i, n in enumerate("abc")}
    tensors |= {"x": -np.zeros((len(grid), 3), np.float32)} if rows else {}
    kernel = host_kernel(op, "f32", isa=isa)
    case = Case("yours", "zeros", (len(grid), 3) if rows else (2, len(grid)), 0, tensors)
    want = bits.evaluate(kernel.graph, tensors, case.shape, {})
    assert any(np.signbit(a[a == 0]).any() and not np.signbit(a[a == 0]).all() for a in want.values())
    assert run_numbers(kernel, case, None, 2).failure is None
