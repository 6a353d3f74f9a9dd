"""Attention by steps of a matrix unit, on a GPU: its bits beside the CPU's, and its kernels beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tokitai import ops  # noqa: E402
from tokitai.backends import backend_of  # noqa: E402
from tokitai.backends.cuda.target import CudaTarget  # noqa: E402
from tokitai.families import make_plan  # noqa: E402
from tokitai.families.attention import step_tiling  # noqa: E402
from tokitai.lang import Sizes  # noqa: E402
from tokitai.runtime.gpu_kernel import GpuKernel  # noqa: E402
from tokitai.verification import cases  # noqa: E402
from tokitai.verification.run import run_numbers  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
FUSED: dict[str, Any] = {"accumulator": "fused16", "scale": 0.3}
DTYPES = [torch.float16, torch.bfloat16]
# Batch, heads, heads of keys, queries, keys, dimension: every slab, tails of everything, several chains, few blocks and
# many, heads that no access is wide in.
SHAPES = [
    (1, 2, 1, 70, 65, 64), (2, 4, 4, 130, 257, 128), (1, 3, 3, 33, 100, 80), (1, 2, 2, 64, 64, 96),
    (2, 2, 1, 50, 40, 16), (1, 1, 1, 5, 3, 7), (1, 2, 2, 40, 90, 33), (1, 1, 1, 100, 130, 192),
    (1, 1, 1, 70, 60, 256), (40, 6, 6, 150, 70, 64), (1, 1, 1, 9, 4200, 32), (1, 1, 1, 4200, 9, 32),
    (210, 1, 1, 130, 90, 128), (90, 4, 2, 100, 210, 40),
]  # fmt: skip


def noise(*shape: int, dtype: Any) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def limits(kind: str, batch: int, heads: int, queries: int, keys: int) -> Any:
    if kind == "all":
        return None
    if kind == "causal":
        return torch.arange(1, queries + 1, device="cuda").clamp(max=keys).to(torch.int32)
    return torch.randint(0, keys + 1, (batch, heads, queries), device="cuda", dtype=torch.int32)


def drawn(shape: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    batch, heads, shared, queries, keys, dim = shape
    q, dy = (noise(batch, heads, queries, dim, dtype=dtype) for _ in range(2))
    k, v = (noise(batch, shared, keys, dim, dtype=dtype) for _ in range(2))
    return q, k, v, dy


def both(q: Any, k: Any, v: Any, dy: Any, limit: Any) -> list[Any]:
    y, top, total = ops.attention(q, k, v, limit, **FUSED)
    return [y, top, total, *ops.attention_backward(dy, q, k, v, top, total, limit, **FUSED)]


def cpu(x: Any) -> Any:
    return None if x is None else x.cpu()


NAMES = ("y", "top", "total", "dq", "dk", "dv")


def hold(made: list[Any], want: list[Any], what: object) -> None:
    for name, x, y in zip(NAMES, made, want, strict=True):
        kind = torch.int16 if x.element_size() == 2 else torch.int32
        differ = (x.cpu().contiguous().view(kind) != y.cpu().contiguous().view(kind)).sum()
        assert differ == 0, f"{name}: {int(differ)} of {x.numel()} elements differ, {what}"


@pytest.mark.parametrize("kind", ["causal", "all", "any"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_are_those_of_the_cpu(shape: tuple[int, ...], dtype: Any, kind: str) -> None:
    torch.manual_seed(1)
    q, k, v, dy = drawn(shape, dtype)
    limit = limits(kind, shape[0], shape[1], shape[3], shape[4])
    made = both(q, k, v, dy, limit)
    if q.numel() * k.shape[-2] > 1 << 26:  # of the first two items, on the CPU
        q, k, v, dy, limit = (x if x is None or x.ndim == 1 else x[:2] for x in (q, k, v, dy, limit))
        made = [x[:2] for x in made]
    hold(made, both(*map(cpu, (q, k, v, dy, limit))), (shape, dtype, kind))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_seen_does_not_matter(dtype: Any, wrong: float) -> None:
    """NaN and infinities behind the limit, inside a step that others see."""
    torch.manual_seed(2)
    for shape in (
        (1, 2, 2, 70, 130, 64),
        (2, 1, 1, 130, 100, 128),
        (110, 1, 1, 70, 130, 64),
        (60, 1, 1, 130, 100, 128),
    ):
        q, k, v, dy = drawn(shape, dtype)
        limit = limits("any", shape[0], shape[1], shape[3], shape[4]).clamp(max=37)
        limit[..., 5] = 0
        clean = both(q, k, v, dy, limit)
        k[..., 37:, :], v[..., 37:, :] = wrong, -wrong
        hold(both(q, k, v, dy, limit), clean, (shape, dtype, wrong))
        v[..., 11, 3], dy[..., 5, 2] = wrong, wrong  # a key that some see, the gradient of a query that sees nothing
        hold(both(q, k, v, dy, limit), both(*map(cpu, (q, k, v, dy, limit))), (shape, dtype, wrong))


TILES: list[dict[str, Any]] = [
    {"rows": 64, "tiles": 1}, {"rows": 32, "tiles": 1}, {"rows": 32, "tiles": 1, "atom": False},
    {"rows": 64, "tiles": 1, "dim": 64, "whole": False},
    {"rows": 64, "cols": 64, "tiles": 1, "warpgroups": True}, {"rows": 128, "cols": 64, "tiles": 1, "warpgroups": True},
]  # fmt: skip


@pytest.mark.parametrize("changes", [{"rows": 128, "tiles": 2}, *TILES], ids=str)
@pytest.mark.parametrize("name", ["attention", "attention_backward"])
def test_tilings_have_the_definitions_bits(name: str, changes: dict[str, Any]) -> None:
    """Small and large tiles; integers in place of matrix units; slabs of a part of a head."""
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    op = ops.get(name)
    graph = op.trace("bf16", None, {"accumulator": "fused16"})

    def schedule(plan: Any, sizes: Sizes, width: int) -> step_tiling.StepTiling:
        return replace(step_tiling.tiling_of(plan, sizes, width, target.fused_units), **changes)

    for sizes in (Sizes(140, 150, 64, 2), Sizes(100, 70, 128)):
        kernel = GpuKernel(op, graph, make_plan(graph), False, target, schedule=schedule)
        found = run_numbers(kernel, cases.seeded(op, graph, "normal", sizes, 3), None, 2)
        assert found.failure is None and found.compared, found.failure


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whole_models_heads(dtype: Any) -> None:
    """A long causal sequence with groups of heads: the last queries of a head, beside the CPU."""
    torch.manual_seed(4)
    q, k, v, _ = drawn((1, 4, 2, 2048, 2048, 128), dtype)
    limit = limits("causal", 1, 4, 2048, 2048)
    y, top, total = ops.attention(q, k, v, limit, **FUSED)
    some = q[:, :, -40:].contiguous()
    want = ops.attention(some.cpu(), k.cpu(), v.cpu(), limit[-40:].cpu(), **FUSED)
    hold([y[:, :, -40:], top[..., -40:], total[..., -40:]] * 2, [*want] * 2, dtype)
