"""The model in plain torch beside which training is timed: the same weights, the same losses, compiled once."""

from __future__ import annotations

import pytest
import torch

from bench.plain_mixture import Plain
from examples.mixture.model import Mixture, Shape

SMALL = Shape(vocabulary=32, features=64, layers=2, heads=2, key_heads=1, experts=4, hidden=32)


@pytest.mark.slow
def test_it_is_the_same_model() -> None:
    """Within what operands and results of 8 bits, rounded at other places, can differ by: one unit of bf16."""
    model = Mixture(SMALL, torch.bfloat16, "cpu")
    peer = Plain(dict(model.named_parameters()), SMALL, 16)
    assert [n for n, _ in sorted(peer.named_parameters())] == [n for n, _ in sorted(model.named_parameters())]
    tokens = torch.randint(0, 32, (2, 17), generator=torch.Generator().manual_seed(0))
    for mine, other in zip(model.loss(tokens), peer(tokens), strict=True):
        assert abs(mine.item() - other.item()) <= abs(other.item()) * 2**-7
