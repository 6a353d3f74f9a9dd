"""Tensors of more than 2**31 and 2**32 elements on a GPU: sampled rows and elements have the oracle's bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  (formats of the oracle)
import numpy as np
import pytest

from tokitai.backends.cuda.device import probe
from tokitai.families import make_plan
from tokitai.meaning import bits
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.verification.cases import defaults, settled

GIB = 1 << 30
PROBLEM = probe()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"no GPU: {PROBLEM}")]
DTYPE = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i64": "int64", "i32": "int32"}
ROW_WISE = ("layer_norm", "rms_norm", "softmax", "softmax_backward", "layer_norm_backward")
SHAPES = ((33000, 65536), (66000, 65536), (2100, 1048576))  # beyond 2**31, beyond 2**32, and long rows beyond 2**31


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_properties(0).total_memory < 70 * GIB:
        pytest.skip("needs a GPU of 70 GiB")
    torch.cuda.empty_cache()
    return torch


def _kernel(name: str, present: frozenset[str] | None = None) -> tuple[GpuKernel, dict[str, float]]:
    from tokitai.backends import backend_of

    op = registry()[name]
    graph = op.trace("f16", present)
    params = settled(op, graph, defaults(op))
    return GpuKernel(op, graph, make_plan(graph), False, backend_of("cuda").open("cuda")), params


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ROW_WISE)
def test_rows_of_huge_tensors(torch: Any, name: str, shape: tuple[int, int]) -> None:
    rows, cols = shape
    kernel, params = _kernel(name)
    graph = kernel.graph
    size = {"rc": shape, "r": (rows,), "c": (cols,), "s": (1,)}
    tensors: dict[str, Any] = {}
    for t in graph.inputs:
        kind = getattr(torch, DTYPE[str(t.format)])
        if str(t.format).startswith("i"):
            tensors[t.name] = torch.randint(0, cols, size[t.space], device="cuda", dtype=kind)
        else:
            made = torch.empty(size[t.space], device="cuda", dtype=kind).normal_()
            tensors[t.name] = made.abs_().add_(0.5) if t.name == "rstd" else made
    for o in graph.outputs:
        kind = getattr(torch, DTYPE[o.format])
        tensors.setdefault(o.name, torch.full(size[o.space], float("nan"), device="cuda", dtype=kind))
    ordered = [tensors[t.name] for t in graph.inputs] + [tensors[o.name] for o in graph.outputs]
    scalars = kernel.scalar_table(rows, cols, params)
    sizes = [rows, cols, *(cols for a in ordered if a.ndim == 2), *scalars.whole]
    kernel.launch_raw([a.data_ptr() for a in ordered], sizes, [shape], scalars.table, 0)
    torch.cuda.synchronize()
    checked = 0
    for r in (0, rows // 2, (1 << 31) // cols, rows - 1):
        some = {
            t.name: (tensors[t.name][r : r + 1] if t.space in ("rc", "r") else tensors[t.name]).cpu().numpy()
            for t in graph.inputs
        }
        want = bits.evaluate(graph, some, (1, cols), params)
        for o in graph.outputs:
            if o.space in ("rc", "r"):
                got = tensors[o.name][r : r + 1].cpu().numpy()
                assert got.tobytes() == want[o.name].tobytes(), (o.name, r)
                checked += got.size
    assert checked


def test_adamw_beyond_two_to_the_32(torch: Any) -> None:
    kernel, params = _kernel("adamw", frozenset())
    n = (1 << 32) + 12345
    names = [t.name for t in kernel.graph.inputs]
    kinds = {t.name: getattr(torch, DTYPE[str(t.format)]) for t in kernel.graph.inputs}
    tensors = {k: torch.empty(n, device="cuda", dtype=kinds[k]).normal_().abs_() for k in names}
    spots = [0, (1 << 31) - 4, (1 << 32) - 4, n - 8]
    before = {k: np.concatenate([tensors[k][s : s + 8].cpu().numpy() for s in spots])[None, :] for k in names}
    scalars = kernel.scalar_table(1, 1, params)
    addresses = [tensors[k].data_ptr() for k in names] + [tensors[o.name].data_ptr() for o in kernel.graph.outputs]
    sizes = [1, 1, n, *([n] * kernel.matrices), *scalars.whole]
    kernel.launch_raw(addresses, sizes, [(1, n)], scalars.table, 0)
    torch.cuda.synchronize()
    want = bits.evaluate(kernel.graph, before, (1, before["grad"].shape[1]), params)
    for o in kernel.graph.outputs:
        got = np.concatenate([tensors[o.name][s : s + 8].cpu().numpy() for s in spots])
        assert got.tobytes() == want[o.name].tobytes(), o.name
