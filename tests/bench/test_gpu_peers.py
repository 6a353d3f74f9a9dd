"""What is timed beside kernels for GPUs is the function of the operator: held here on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bench.gpu import shapes_of  # noqa: E402
from bench.gpu_peers import peers  # noqa: E402
from tokitai import ops  # noqa: E402
from tokitai.bench import held, workload  # noqa: E402
from tokitai.errors import ArgumentError  # noqa: E402
from tokitai.runtime.binding import bind  # noqa: E402
from tokitai.torch.peers import COUNTERPARTS  # noqa: E402


@pytest.mark.parametrize("name", sorted(COUNTERPARTS))
def test_counterparts_compute_the_operator(name: str) -> None:
    work = workload.workload(ops.get(name), "f32", ((24, 96),))
    _, params, _ = bind(work.operator, work.arguments, work.scalars)
    given = {n: torch.from_numpy(a[0].copy()) for n, a in work.tensors.items()}
    returned, names = peers(name)["torch"](given | params)(), COUNTERPARTS[name][1]
    several = returned if isinstance(returned, tuple) else (returned,)
    found: dict[str, Any] = {n: [t.numpy()] for n, t in zip(names, several, strict=False)}
    wanted, left_out = held.wanted(work, work.tensors, params)
    assert left_out == {}
    shares = held.hold_theirs(name, "torch", wanted, found, names, "f32")
    assert set(shares) == set(names)
    with pytest.raises(ArgumentError, match="accepted: the same function"):
        held.hold_theirs(name, "torch", wanted, {n: [a[0] * np.float32(1.2)] for n, a in found.items()}, names, "f32")
    assert all(rows * cols >= 2**25 for rows, cols in shapes_of(name)), "more than an L2 cache holds"
