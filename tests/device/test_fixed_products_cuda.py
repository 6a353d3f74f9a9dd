"""Products of operands in fixed point, on a GPU: its units for integers, and bits beside those of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokitai import ops, verify  # noqa: E402
from tokitai.backends import backend_of  # noqa: E402
from tokitai.backends.cuda.target import CudaTarget  # noqa: E402
from tokitai.families import make_plan  # noqa: E402
from tokitai.lang import FIXED_BITS, Sizes  # noqa: E402
from tokitai.ops import registry  # noqa: E402
from tokitai.runtime.gpu_kernel import GpuKernel  # noqa: E402
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
    """Millions of sums, in every regime and of every pair of signed and other integers; by warpgroups, too."""
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    assert target.integer_units
    assert target.integer_warpgroups == (target.device.arch == "sm_90")


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


def drawn(lines: int, k: int, regime: int, dtype: Any) -> Any:
    """Lines along k: plain; of wide exponents, with zeros and without units; of the largest integers; subnormal."""
    x = torch.randn(lines, k, device="cuda")
    if regime == 1:
        span = 12 if dtype == torch.float16 else 100
        x *= torch.exp2(torch.randint(-span, span, x.shape, device="cuda").float())
        x[torch.rand(x.shape, device="cuda") < 0.1] = 0
        x[::7] *= 2.0**-100
        x[3::11], x[5::13, -1], x[6::17, 0], x[4::19, k // 2] = 0, np.nan, np.inf, -np.inf
    elif regime == 2:
        x = torch.where(x > 1.5, -1.0, 1.0) * (2 - 2.0**-23)
        x[1::3] = x[1::3].abs()
    elif regime == 3:
        x *= torch.exp2(torch.randint(-75, -60, x.shape, device="cuda").float())
        x[::4] *= 2.0**-70
    return x.to(dtype)


class ByWarps(CudaTarget):
    """The same device, whose warpgroups are left alone."""

    integer_warpgroups = False  # type: ignore[assignment]


def product_on(target: CudaTarget, options: dict[str, str], a: Any, b: Any, sizes: Sizes) -> tuple[Any, bool]:
    """A product by a new kernel, and whether warpgroups made it."""
    op, fmt = registry()["matmul"], str(a.dtype).split(".")[1]
    graph = op.trace({"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[fmt], (), options)
    kernel = GpuKernel(op, graph, make_plan(graph), False, target)
    y = torch.full((sizes[0], sizes[1]), 7.0, dtype=a.dtype, device="cuda")
    room = torch.full((kernel.workspace_bytes([sizes], 0),), 255, dtype=torch.uint8, device="cuda")
    each = [n for t in (a, b, y) for n in (t.stride(0), 0)]
    table = kernel.scalar_table(sizes[0], sizes[1], {"alpha": 1.0, "beta": 1.0}).table
    torch.cuda.synchronize()
    addresses = [t.data_ptr() for t in (a, b, y)]
    kernel.launch_raw(addresses, [*sizes[:2], sizes.inner, 1, *each], [sizes], table, 0, place=room.data_ptr())
    torch.cuda.synchronize()
    return y, any(t.stages for t in kernel.settled.values())


SIDES = (1000, 1400, 1000), (257, 2100, 4097), (2050, 1030, 33), (700, 1300, 8224), (4100, 600, 127)  # rows, columns, k


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_bits_by_warpgroups_are_those_by_warps(accumulator: str, dtype: Any, layout: str) -> None:
    """On operands that are hard to cut; some lie at any address, with lines of any length."""
    target, other = CudaTarget(0), ByWarps(0)
    if not target.integer_warpgroups:
        pytest.skip("needs Hopper's warpgroups")
    torch.manual_seed(4)
    for m, n, k in SIDES:
        for regime in range(4):
            left, right = drawn(m, k, regime, dtype), drawn(n, k, regime, dtype)
            a, b = (left.T if layout[0] == "T" else left), (right if layout[1] == "T" else right.T)
            odd = int(regime == 3)  # one element further on in memory, and lines an element longer
            a, b = (torch.nn.functional.pad(x, (odd, 0))[:, odd:] for x in (a.contiguous(), b.contiguous()))
            options, sizes = {"accumulator": accumulator, "layout": layout}, Sizes(m, n, k)
            made, by_groups = product_on(target, options, a, b, sizes)
            there, by_others = product_on(other, options, a, b, sizes)
            assert (by_groups, by_others) == (True, False), (m, n, k)
            assert alike(made, there), (m, n, k, regime)


@pytest.mark.parametrize(("accumulator", "fmt"), list(zip(FIXED_BITS, ("bf16", "f16", "f32"), strict=True)))
def test_a_product_is_verified(accumulator: str, fmt: str) -> None:
    variant = Variant(frozenset({"bias", "residual"}), (("accumulator", accumulator),))
    verdict = verify(ops.linear, dtype=fmt, device="cuda", variant=variant)
    assert verdict.verdict == "verified", verdict.failure
