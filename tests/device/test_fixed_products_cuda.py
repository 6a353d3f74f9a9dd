"""Products of operands in fixed point, on a GPU: its units for integers, and bits beside those of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokitai import ops, verify  # noqa: E402
from tokitai.backends import backend_of  # noqa: E402
from tokitai.backends.cuda.target import CudaTarget  # noqa: E402
from tokitai.lang import FIXED_BITS  # noqa: E402
from tokitai.verification.verdict import Variant  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def noise(*shape: int, dtype: Any) -> Any:
    """Normal numbers, some lines far smaller, with an outlier here and there."""
    x = torch.randn(*shape, dtype=torch.float32, device="cuda")
    x[..., ::7, :] *= 2.0**-9
    x[..., ::5, -1:] *= 100
    return x.to(dtype)


def alike(x: Any, y: Any) -> bool:
    raw = torch.int32 if x.dtype == torch.float32 else torch.int16
    return bool((x.contiguous().cpu().view(raw) == y.contiguous().cpu().view(raw)).all())


def test_the_units_add_exactly() -> None:
    """Sixteen million sums, in every regime and of every pair of signed and other integers."""
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    assert target.integer_units


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_bits_of_products(accumulator: str, dtype: Any, layout: str) -> None:
    """Beside the CPU: sizes with tails, one block and several, every tile."""
    torch.manual_seed(1)
    for m, n, k in ((200, 328, 72), (130, 264, 4104), (64, 72, 13000), (1000, 1000, 1000), (3, 5, 0), (1, 1, 1)):
        a = noise(k, m, dtype=dtype) if layout[0] == "T" else noise(m, k, dtype=dtype)
        b = noise(n, k, dtype=dtype) if layout[1] == "T" else noise(k, n, dtype=dtype)
        made = ops.matmul(a, b, layout=layout, accumulator=accumulator)
        assert alike(made, ops.matmul(a.cpu(), b.cpu(), layout=layout, accumulator=accumulator)), (m, n, k)


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_batches_epilogues_and_groups(accumulator: str) -> None:
    torch.manual_seed(2)
    a, b = noise(3, 130, 200, dtype=torch.bfloat16), noise(3, 200, 136, dtype=torch.bfloat16)
    made = ops.matmul(a, b, accumulator=accumulator)
    assert alike(made, ops.matmul(a.cpu(), b.cpu(), accumulator=accumulator))
    x, gate, up = (noise(*s, dtype=torch.bfloat16) for s in ((300, 264), (520, 264), (520, 264)))
    made = ops.linear_swiglu(x, gate, up, accumulator=accumulator)
    assert alike(made, ops.linear_swiglu(x.cpu(), gate.cpu(), up.cpu(), accumulator=accumulator))
    bias = noise(1, 520, dtype=torch.bfloat16)[0]
    words: dict[str, Any] = dict(activation="gelu_tanh", accumulator=accumulator)
    made = ops.linear(x, gate, bias, **words)
    assert alike(made, ops.linear(x.cpu(), gate.cpu(), bias.cpu(), **words))
    offsets = torch.tensor([0, 0, 70, 71, 5000, 9000], device="cuda")
    x, dy, w = (noise(*s, dtype=torch.bfloat16) for s in ((9000, 136), (9000, 72), (5, 72, 136)))
    for op, given in (
        (ops.grouped_linear, (x, w)), (ops.grouped_linear_backward_input, (dy, w)),
        (ops.grouped_linear_backward_weight, (dy, x)),
    ):  # fmt: skip
        made = op(*given, offsets, accumulator=accumulator)
        assert alike(made, op(*(t.cpu() for t in given), offsets.cpu(), accumulator=accumulator)), op.name


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_lines_without_a_unit(accumulator: str) -> None:
    torch.manual_seed(3)
    a, b = noise(70, 300, dtype=torch.float32), noise(300, 80, dtype=torch.float32)
    a[3, 4], a[5, 6], b[7, 8], a[9], b[:, 10] = np.inf, np.nan, -np.inf, 0, 0
    a[11] *= 2.0**-140
    made = ops.matmul(a, b, accumulator=accumulator)
    assert alike(made, ops.matmul(a.cpu(), b.cpu(), accumulator=accumulator))
    assert int(made.isnan().sum()) == 2 * 80 + 68


@pytest.mark.parametrize(("accumulator", "fmt"), list(zip(FIXED_BITS, ("bf16", "f16", "f32"), strict=True)))
def test_a_product_is_verified(accumulator: str, fmt: str) -> None:
    variant = Variant(frozenset({"bias", "residual"}), (("accumulator", accumulator),))
    verdict = verify(ops.linear, dtype=fmt, device="cuda", variant=variant)
    assert verdict.verdict == "verified", verdict.failure
