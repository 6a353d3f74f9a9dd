"""Cross-entropy with weights of the classes: torch's numbers, and the operator's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import functional, nn

X = torch.randn(40, 9, generator=torch.Generator().manual_seed(1))
TARGET = torch.arange(40) % 9
TARGET[5], TARGET[17] = -100, -100
WEIGHT = torch.rand(9, generator=torch.Generator().manual_seed(2)) * 2


def gradient(called: Any, *args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x = X.clone().requires_grad_()
    loss = called(x, *args, **options)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_are_torchs(reduction: str, smoothing: float) -> None:
    options = dict(reduction=reduction, label_smoothing=smoothing)
    got, want = (
        gradient(f, TARGET, WEIGHT, **options) for f in (functional.cross_entropy, torch.nn.functional.cross_entropy)
    )
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    kept = ops.cross_entropy_with_grad(X, TARGET, WEIGHT, **options)
    assert torch.equal(got[0], kept[0]) and torch.equal(got[1], kept[1])


def test_the_module_takes_them_too() -> None:
    mine, theirs = nn.CrossEntropyLoss(weight=WEIGHT), torch.nn.CrossEntropyLoss(weight=WEIGHT)
    torch.testing.assert_close(mine(X, TARGET), theirs(X, TARGET))
    assert torch.equal(mine(X, TARGET), functional.cross_entropy(X, TARGET, WEIGHT.double()))


def test_what_is_no_weight_is_refused() -> None:
    for weight in (WEIGHT[:8], WEIGHT.long(), WEIGHT[None]):
        with pytest.raises(ArgumentError, match=r"cross_entropy: weight of shape .*; accepted: \(9,\) of floats"):
            functional.cross_entropy(X, TARGET, weight)
    with pytest.raises(ArgumentError, match="weight beside probabilities of classes"):
        functional.cross_entropy(X, X.softmax(1), WEIGHT)
    with pytest.raises(ArgumentError, match="weight requires a gradient and has none"):
        functional.cross_entropy(X, TARGET, WEIGHT.clone().requires_grad_())
