"""Calls past torch's dispatcher: the bits, gradients and saved tensors of those that it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.test_derived import CALLS, equal, noise, sloped, tuple_of
from tokitai.errors import ArgumentError
from tokitai.torch import dispatch, functional, operators
from tokitai.torch.rotations import _in_rows


class Looking(TorchDispatchMode):
    """A mode that changes nothing, and the names of the operations that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def both(call: Callable[[], list[Tensor | None]]) -> tuple[list[Tensor | None], list[Tensor | None], list[str]]:
    """What a plain call gives, and one that a mode looks at."""
    with Looking() as mode:
        seen = call()
    return call(), seen, mode.names


def run(name: str, packed: list[Any]) -> list[Tensor | None]:
    """Results, then gradients; what is saved for them goes into a list."""
    given = CALLS[name]
    leaves = sloped(name, given.tensors(torch.float32))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (packed.append(tuple(x.shape)), x)[1], lambda x: x):
        made = tuple_of(getattr(operators, name)(*leaves, **given.words))
    with_slopes = [m for m in made if m.requires_grad][: 1 if "cross_entropy" in name else None]
    torch.autograd.backward(with_slopes, [noise(40 + i, *m.shape, dtype=m.dtype) for i, m in enumerate(with_slopes)])
    return [*made, *(t.grad for t in leaves if t is not None and t.requires_grad)]


@pytest.mark.parametrize("name", ["rms_norm", "swiglu", "cross_entropy", "router", "rotary"])
def test_plain_calls_are_those_that_the_dispatcher_sees(name: str) -> None:
    packed: list[Any] = []
    plain, seen, names = both(lambda: run(name, packed))
    assert f"tokitai.{name}.default" in names
    assert len(plain) == len(seen) > 1
    assert all(
        a is b is None or (a is not None and b is not None and equal(a, b)) for a, b in zip(plain, seen, strict=True)
    )
    assert packed[: len(packed) // 2] == packed[len(packed) // 2 :] != []


def test_products_and_embeddings() -> None:
    def call() -> list[Tensor | None]:
        x, w, b = (noise(i, *s).requires_grad_() for i, s in enumerate([(3, 8), (5, 8), (5,)]))
        table, ids = noise(4, 7, 8).requires_grad_(), torch.tensor([[1, 6, 1]])
        (functional.linear(x, w, b, activation="silu").sum() + functional.embedding(ids, table).sum()).backward()
        return [x.grad, w.grad, b.grad, table.grad]

    plain, seen, names = both(call)
    assert {"tokitai.linear.default", "tokitai.embedding.default"} <= set(names)
    assert all(a is not None and b is not None and equal(a, b) for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize("by", ["angle", "pairs"])
@pytest.mark.parametrize("lying", ["whole", "part", "transposed", "expanded", "one", "none"])
def test_heads_are_turned_as_their_halves_are(by: str, lying: str) -> None:
    """And nothing is put together, forward or backward; heads whose rows lie at one distance are not copied."""
    base = noise(1, 2, 5, 6, 8)
    x = {"whole": base, "part": base[..., :4, :], "transposed": base.transpose(1, 2), "one": base[:, :, 1:2],
         "expanded": base[:1].expand(3, 5, 6, 8), "none": base[:, :0]}[lying]  # fmt: skip
    turns: dict[str, Tensor] = {"position": torch.arange(x.shape[-2]), "frequency": noise(2, 4).abs()}
    if by == "pairs":
        turns = {n: noise(i, x.shape[-2], 4) for i, n in enumerate(("cos", "sin"))}
    slope = noise(3, *x.shape)

    def whole() -> list[Tensor | None]:
        leaf = x.detach().requires_grad_()
        y = functional.rotary_heads(leaf, **turns)
        return [y, *torch.autograd.grad(y, leaf, slope)]

    def halves() -> list[Tensor | None]:
        leaf = x.detach().requires_grad_()
        y = torch.cat(functional.rotary(*leaf.chunk(2, dim=-1), **turns), dim=-1)
        return [y, *torch.autograd.grad(y, leaf, slope)]

    plain, seen, names = both(whole)
    for made in (plain, seen, whole(), whole()):  # the last ones from what earlier calls have settled
        assert all(a is not None and b is not None and equal(a, b) for a, b in zip(made, halves(), strict=True))
        assert all(t is not None and t.is_contiguous() for t in made)
    assert sum("heads" in n for n in names) == 2 and not any("cat" in n for n in names)
    with Looking() as mode:
        _in_rows(x)
    assert mode.names == ([] if lying in ("whole", "one", "none") else ["aten.clone.default"])


def test_heads_that_cannot_be_turned() -> None:
    x, position, frequency = noise(0, 3, 8), torch.arange(3), noise(1, 4).requires_grad_()
    with pytest.raises(ArgumentError, match=r"rotary_heads: x of shape \(3, 7\); accepted: \(\.\.\., dim\), dim even"):
        functional.rotary_heads(x[:, :7], position, frequency)
    with pytest.raises(ArgumentError, match="rotary_heads: frequency requires a gradient and has none"):
        functional.rotary_heads(x, position, frequency)
    with pytest.raises(ArgumentError, match=r"rotary_heads: position of shape \(2,\); accepted: what broadcasts to"):
        functional.rotary_heads(x, position[:2], frequency.detach())
    with pytest.raises(ArgumentError, match="rotary_heads: position; accepted: position and frequency, or cos and sin"):
        functional.rotary_heads(x, position)


def test_a_plain_call_is_not_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(0, 3, 8).requires_grad_()
    want = functional.softmax(x)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("dispatched")

    monkeypatch.setattr(torch.library.CustomOpDef, "__call__", refuse)
    assert equal(functional.softmax(x), want)
    with torch.no_grad():
        assert equal(functional.softmax(x), want)
    with Looking(), pytest.raises(AssertionError, match="dispatched"):
        functional.softmax(x)
    kind = type("Own", (Tensor,), {})
    with pytest.raises(AssertionError, match="dispatched"):
        functional.softmax(x.detach().as_subclass(kind))
    with pytest.raises(AssertionError, match="dispatched"):
        functional.softmax(torch.empty(3, 8, device="meta"))


def test_a_trace_holds_the_operation() -> None:
    traced = torch.jit.trace(lambda x: functional.softmax(x), noise(0, 3, 8))  # type: ignore[no-untyped-call]
    other = noise(1, 3, 8)
    assert equal(traced(other), functional.softmax(other))


def test_gradients_of_gradients_are_refused_in_both() -> None:
    for mode in (None, Looking()):
        x = noise(0, 3, 8).requires_grad_()

        def twice(x: Tensor) -> None:
            (g,) = torch.autograd.grad(functional.softmax(x).square().sum(), x, create_graph=True)
            g.sum().backward()

        with pytest.raises(ArgumentError, match="the gradient of a gradient"):
            if mode is None:
                twice(x)
            else:
                with mode:
                    twice(x)


def test_what_is_watched() -> None:
    assert not dispatch.is_watched()
    with Looking():
        assert dispatch.is_watched()
    with torch.device("cpu"):
        assert dispatch.is_watched()
    with torch.autograd.forward_ad.dual_level():
        assert dispatch.is_watched()
    assert torch.vmap(lambda x: x + dispatch.is_watched())(torch.zeros(1)).item() == 1
    found: Any = torch.compile(lambda x: x + dispatch.is_watched(), backend="eager", fullgraph=True)(torch.zeros(1))
    assert found.item() == 1
