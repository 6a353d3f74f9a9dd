"""The same on a GPU's call path: tensors of torch that say they lie on a GPU, and arrays of the simulated device, which
may lie backwards. An operator for every kind of tensor."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from fake_gpu import installed
from layout_calls import drawn_calls, variants

SEED = int(os.environ.get("TOKITAI_LAYOUTS_SEED", "20261130"))
CALLS = int(os.environ.get("TOKITAI_LAYOUTS", "15000")) // 10
KINDS = (
    "layer_norm_backward", "router_backward", "combine", "combine_backward", "embedding_backward", "cross_entropy",
    "attention", "linear", "grouped_linear", "adamw",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("library", ["gpu", "sim"])
def test_layouts_on_a_gpu(library: str, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]) -> None:
    if library == "gpu":
        installed(monkeypatch)
    chosen = [v for v in variants() if v.operator.name in KINDS and v.graph.dtype == "f16"]
    columns = [v for v in variants() if v.operator.name == "top_k" and v.graph.dtype == "f16"]
    say(drawn_calls(SEED, CALLS, chosen + columns * (library == "gpu"), (library,)))
