"""Functions, their gradients and the optimizer on an NVIDIA GPU: the CPU's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch.test_derived import CALLS, DTYPES, equal, noise, sloped, tuple_of
from tests.torch.test_optim import WORDS, slopes, weights
from tokitai.torch import operators
from tokitai.torch.experts import experts
from tokitai.torch.optim import AdamW, clip_grad_norm_

pytestmark = pytest.mark.gpu


def there(x: Any) -> Any:
    return x.detach().cuda() if isinstance(x, Tensor) else x


def run(name: str, tensors: tuple[Any, ...], words: dict[str, Any]) -> list[Tensor | None]:
    """Results, then gradients of what has them."""
    leaves = sloped(name, tensors)
    made = tuple_of(getattr(operators, name)(*leaves, **words))
    with_slopes = [m for m in made if m.requires_grad][: 1 if "cross_entropy" in name else None]  # lse has no gradient
    torch.autograd.backward(
        with_slopes, [noise(40 + i, *m.shape, dtype=m.dtype).to(m.device) for i, m in enumerate(with_slopes)]
    )
    return [*made, *(t.grad for t in leaves if t is not None and t.requires_grad)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(CALLS))
def test_results_and_gradients(name: str, dtype: torch.dtype) -> None:
    given = CALLS[name]
    here = given.tensors(dtype)
    moved = tuple(map(there, here))
    more = [{}] if name not in ("router", "cross_entropy", "attention") else [{}, {"check": False}]
    want = run(name, here, given.words)
    for extra in more:
        for t in moved:
            if t is not None:
                t.grad = None
        found = run(name, moved, {**given.words, **extra})
        assert len(found) == len(want) > 1
        assert all(a is not None and a.is_cuda and equal(a.cpu(), b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capacity", [None, 3])
def test_a_layer_of_experts(dtype: torch.dtype, capacity: int | None) -> None:
    shapes = ((2, 9, 16), (4, 16), (4, 24, 16), (4, 16, 12))
    here = [noise(i, *s, dtype=dtype).requires_grad_() for i, s in enumerate(shapes)]
    moved = [there(t).requires_grad_() for t in here]
    found = []
    for given in (here, moved):
        y, logits, _ = experts(*given, k=2, capacity=capacity)
        dy, dlogits = noise(8, *y.shape, dtype=dtype), noise(9, *logits.shape, dtype=logits.dtype)
        torch.autograd.backward([y, logits], [dy.to(y.device), dlogits.to(y.device)])
        found.append([y, logits, *(t.grad for t in given)])
    assert all(equal(a, b.cpu()) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_steps_of_the_optimizer(rounding: Any) -> None:
    here = weights(torch.bfloat16)
    moved = [torch.nn.Parameter(there(p)) for p in here]
    optimizers = [AdamW(p, **WORDS, rounding=rounding) for p in (here, moved)]  # type: ignore[arg-type]
    for step in (1, 2, 3):
        slopes(here, step)
        for p, q in zip(here, moved, strict=True):
            q.grad = there(p.grad)
        if step == 2:
            here[2].grad[13] = moved[2].grad[13] = float("inf")  # type: ignore[index]
        norms = [clip_grad_norm_(p, 1.0) for p in (here, moved)]
        assert equal(norms[0], norms[1].cpu())
        for optimizer in optimizers:
            optimizer.step()
        assert all(equal(p, q.cpu()) for p, q in zip(here, moved, strict=True))
    assert [o.skipped for o in optimizers] == [1, 1]
