"""Products by steps of a matrix unit, on a GPU: its units, its kernels beside each other, and what libraries have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokitai import ops  # noqa: E402
from tokitai.backends import backend_of  # noqa: E402
from tokitai.backends.cuda.target import CudaTarget  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
FUSED: dict[str, Any] = {"accumulator": "fused16"}
DTYPES = [torch.float16, torch.bfloat16]


def noise(*shape: int, dtype: Any) -> Any:
    return torch.randn(*shape, dtype=torch.float32, device="cuda").to(dtype)


def misaligned(x: Any) -> Any:
    """The same values one element further on: no copy engine reads them, so other kernels run."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)


def equal(x: Any, y: Any) -> bool:
    return bool((x.contiguous().view(torch.int16) == y.contiguous().to(x.device).view(torch.int16)).all())


def hopper() -> CudaTarget:
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    if target.device.arch != "sm_90":
        pytest.skip(f"{target.device.arch}: the model is that of Hopper's matrix units")
    return target


def test_hoppers_units_take_the_defined_steps() -> None:
    """Four million results of a warp's instruction and of a warpgroup's, in every regime."""
    target = hopper()
    assert target.fused_units and target.warpgroups


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_products(dtype: Any, layout: str) -> None:
    """Beside the CPU, and beside the kernels that take any address: sizes with tails, one chain and several, and tiles
    enough for warpgroups that alternate, with fewer and more steps along k than the ring has stages."""
    torch.manual_seed(1)
    large = ((2100, 2056, 72), (2100, 2056, 1032), (2100, 2056, 2056))
    for m, n, k in ((200, 328, 72), (130, 264, 4104), (64, 72, 13000), (1000, 1000, 1000), *large):
        a = noise(k, m, dtype=dtype) if layout[0] == "T" else noise(m, k, dtype=dtype)
        b = noise(n, k, dtype=dtype) if layout[1] == "T" else noise(k, n, dtype=dtype)
        made = ops.matmul(a, b, layout=layout, **FUSED)
        assert equal(made, ops.matmul(misaligned(a), misaligned(b), layout=layout, **FUSED))
        if m * n * k < 2**27:
            assert equal(made, ops.matmul(a.cpu(), b.cpu(), layout=layout, **FUSED))
    a, b = noise(5, 136, 200, dtype=dtype), noise(5, 200, 264, dtype=dtype)
    assert equal(ops.matmul(a, b, **FUSED), ops.matmul(a.cpu(), b.cpu(), **FUSED))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_layers_and_groups(dtype: Any) -> None:
    torch.manual_seed(2)
    shapes = (300, 200), (456, 200), (456, 200), (456,), (300, 456)
    x, w, up, bias, residual = (noise(*s, dtype=dtype) for s in shapes)
    for activation in ("none", "gelu", "silu"):
        made = ops.linear(x, w, bias, residual, activation=activation, **FUSED)
        assert equal(made, ops.linear(x.cpu(), w.cpu(), bias.cpu(), residual.cpu(), activation=activation, **FUSED))
    assert equal(ops.linear_swiglu(x, w, up, **FUSED), ops.linear_swiglu(x.cpu(), w.cpu(), up.cpu(), **FUSED))
    x[7, 3], x[8, 5] = float("inf"), 0.0  # sums of either infinity, of which silu divides
    assert equal(ops.linear_swiglu(x, w, up, **FUSED), ops.linear_swiglu(x.cpu(), w.cpu(), up.cpu(), **FUSED))
    many = [0, 900, 1, 64, 1300, 5, 257]  # tiles enough for warpgroups that alternate
    for counts, wide in (([0, 130, 1, 64, 300, 5, 257], 264), ([0, 4500, 1, 64], 264), (many, 1032)):
        offsets = torch.tensor(np.concatenate([[0], np.cumsum(counts)]))
        rows, groups = sum(counts), len(counts)
        x, w, dy = noise(rows, 136, dtype=dtype), noise(groups, wide, 136, dtype=dtype), noise(rows, wide, dtype=dtype)
        x[3, 5] = float("inf")  # of one group, which another must not see
        for name, given in (
            ("grouped_linear", (x, w)), ("grouped_linear_backward_input", (dy, w)),
            ("grouped_linear_backward_weight", (dy, x)),
        ):  # fmt: skip
            made = getattr(ops, name)(*given, offsets.cuda(), **FUSED)
            there = getattr(ops, name)(*(g.cpu() for g in given), offsets, **FUSED)
            assert equal(made, there), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_libraries_whose_products_are_chains_have_the_same_bits(dtype: Any) -> None:
    """cuBLAS where it does not split k, and Triton's dot: what a user's own kernels give on Hopper is fused16."""
    hopper()
    torch.manual_seed(3)
    for m, n, k in ((4096, 4096, 1024), (1000, 1000, 1000), (8192, 1024, 4096)):
        a, b = noise(m, k, dtype=dtype), noise(n, k, dtype=dtype)
        assert equal(ops.matmul(a, b, layout="NT", **FUSED), torch.mm(a, b.t())), (m, n, k)
    a, b = noise(6, 512, 256, dtype=dtype), noise(6, 256, 512, dtype=dtype)
    assert equal(ops.matmul(a, b, **FUSED), torch.bmm(a, b))
    triton = pytest.importorskip("triton")
    from .triton_dot import product

    assert triton.__version__
    a, b = noise(512, 1024, dtype=dtype), noise(1024, 384, dtype=dtype)
    assert equal(ops.matmul(a, b, **FUSED), product(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repeated_calls_follow_the_addresses(dtype: Any) -> None:
    """A call that is known again has tensor maps of the tensors that it is given, not of those before."""
    torch.manual_seed(4)
    for _ in range(4):
        a, b = noise(256, 128, dtype=dtype), noise(256, 128, dtype=dtype)
        assert equal(ops.matmul(a, b, layout="NT", **FUSED), ops.matmul(a.cpu(), b.cpu(), layout="NT", **FUSED))
        del a, b
        torch.cuda.empty_cache()
