"""Functions that torch has too: called alike, they compute alike: names, order and meaning of arguments, shapes.

Their bits are the operators', which are verified elsewhere; here they are held to what torch asks of its own f32
kernels beside f64 (`torch.testing.assert_close`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.torch.test_derived import noise, whole
from tokitai.errors import ArgumentError
from tokitai.torch import functional
from tokitai.torch.experts import experts


def wide(x: Any) -> Any:
    return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.is_floating_point() else x


def alike(ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Results and gradients."""
    args = tuple(a.requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    beside = tuple(map(wide, args))
    made, want = ours(*args, **kwargs), theirs(*beside, **{n: wide(v) for n, v in kwargs.items()})
    assert made.shape == want.shape
    torch.testing.assert_close(made, want.float())
    slope = noise(99, *made.shape)
    leaves = [(a, b) for a, b in zip(args, beside, strict=True) if isinstance(a, Tensor) and a.requires_grad]
    found = torch.autograd.grad(made, [a for a, _ in leaves], slope)
    for a, b in zip(found, torch.autograd.grad(want, [b for _, b in leaves], slope.double()), strict=True):
        torch.testing.assert_close(a, b.float())


X, IMAGE = (4, 3, 5), (2, 5, 3, 4)
HEADS = (2, 4, 6, 8)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, dim: int) -> None:
    alike(getattr(functional, name), getattr(F, name), noise(1, *X), dim)
    with pytest.raises(ArgumentError, match=rf"^{name}: dim=3 of 3 dimensions; accepted: -3 to 2"):
        getattr(functional, name)(noise(1, *X), 3)


@pytest.mark.slow
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    alike(functional.gelu, F.gelu, noise(1, *X), approximate=approximate)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 3, 5)])
def test_norms(shape: tuple[int, ...]) -> None:
    x, weight, bias = noise(1, *X), noise(2, *shape), noise(3, *shape)
    alike(functional.layer_norm, F.layer_norm, x, shape)
    alike(functional.layer_norm, F.layer_norm, x, shape, weight, bias, 1e-3)
    alike(functional.rms_norm, F.rms_norm, x, shape, weight)
    alike(functional.rms_norm, F.rms_norm, x, shape, weight, 1e-3)
    for norm in (functional.layer_norm, functional.rms_norm):
        with pytest.raises(ArgumentError, match="normalized_shape is a tensor; accepted: sizes"):
            norm(x, weight)
        with pytest.raises(ArgumentError, match=r"normalized_shape=\(4,\) of x of \(4, 3, 5\)"):
            norm(x, (4,))
        with pytest.raises(ArgumentError, match=r"weight of shape \(4,\); accepted: \(5,\)"):
            norm(x, (5,), noise(2, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b"),
    [((5,), (5,)), ((4, 5), (5,)), ((5,), (5, 3)), ((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((2, 3, 4, 5), (5,)),
     ((2, 4, 5), (2, 5, 3)), ((4, 5), (2, 5, 3)), ((5,), (2, 5, 3)), ((2, 3, 4, 5), (2, 3, 5, 6)), ((0, 5), (5, 3)),
     ((4, 0), (0, 3))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    alike(functional.matmul, torch.matmul, noise(1, *a), noise(2, *b))


def test_products_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"other of shape \(4, 3\); accepted beside input of \(4, 5\): 5 rows"):
        functional.matmul(noise(1, 4, 5), noise(2, 4, 3))
    with pytest.raises(ArgumentError, match="accepted: the same leading dimensions, or none in one of both; expand"):
        functional.matmul(noise(1, 2, 4, 5), noise(2, 3, 5, 4))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(7,), (6, 7), (2, 7, 3), (2, 7, 3, 7), (7, 7, 7)], ids=str)
def test_cross_entropy(shape: tuple[int, ...], reduction: str) -> None:
    """(7, 7, 7): classes are dimension 1, also where another reading of the shapes is possible."""
    places = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = whole(3, 7, *places)
    input = noise(1, *shape)
    words: dict[str, Any] = {"reduction": reduction}
    alike(functional.cross_entropy, F.cross_entropy, input, target, **words)
    alike(functional.cross_entropy, F.cross_entropy, input, target, **words, ignore_index=int(target.flatten()[0]) ^ 1)
    alike(functional.cross_entropy, F.cross_entropy, input, target, **words, label_smoothing=0.2)
    dim = min(len(shape), 2) - 1
    soft = noise(4, *shape).softmax(dim)
    for more in ({}, {"label_smoothing": 0.2}):
        given, beside = input.detach().requires_grad_(), input.detach().double().requires_grad_()
        made = functional.cross_entropy(given, soft, **words, **more)
        want = F.cross_entropy(beside, soft.double(), **words, **more)
        torch.testing.assert_close(made, want.float())
        made.sum().backward()
        want.sum().backward()
        assert given.grad is not None and beside.grad is not None
        torch.testing.assert_close(given.grad, beside.grad.float())
    last = functional.cross_entropy(input.movedim(dim, -1), target, dim=-1, **words)
    assert torch.equal(last, functional.cross_entropy(input, target, **words))


def test_the_mean_over_no_rows_is_zero() -> None:
    """torch's is NaN: so the reference page says."""
    logits = noise(1, 3, 5).requires_grad_()
    loss = functional.cross_entropy(logits, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and not logits.grad.any()


def test_an_ignored_row_may_hold_anything() -> None:
    logits = noise(1, 3, 5)
    logits[1] = float("nan")
    logits.requires_grad_()
    loss = functional.cross_entropy(logits, torch.tensor([1, -100, 2]))
    loss.backward()
    assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all() and not logits.grad[1].any()


@pytest.mark.slow
def test_what_no_query_sees_may_be_anything() -> None:
    """NaN behind a sequence's length is in no result and no gradient; in a padded token of experts it raises."""
    tensors = [noise(i, 2, 2, 4, 8) for i in range(3)]
    for t in tensors[1:]:
        t[0, :, 3] = float("nan")
    leaves = [t.requires_grad_() for t in tensors]
    y = functional.attention(*leaves, lengths=torch.tensor([3, 4]))
    y.sum().backward()
    assert y.isfinite().all() and all(t.grad is not None and t.grad.isfinite().all() for t in leaves)
    x = noise(1, 2, 4)
    x[0, 3] = float("nan")
    x.requires_grad_()
    functional.masked_softmax(x, torch.tensor([3, 4])).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    tokens = noise(1, 3, 6)
    tokens[1] = float("nan")
    with pytest.raises(ArgumentError, match=r"logits\[1\] holds NaN"):
        experts(
            tokens, noise(2, 4, 6), noise(3, 4, 8, 6), noise(4, 4, 6, 4), padding=torch.tensor([False, True, False])
        )


def test_losses_that_are_refused() -> None:
    logits, target = noise(1, 2, 5, 7), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"target of shape \(2, 5\); accepted .*: \(2, 7\); with dim=-1"):
        functional.cross_entropy(logits, target)
    with pytest.raises(ArgumentError, match=r"accepted as probabilities: \(2, 5, 7\)"):
        functional.cross_entropy(logits, noise(2, 2, 7))
    with pytest.raises(ArgumentError, match="ignore_index=3 beside probabilities"):
        functional.cross_entropy(logits, noise(2, 2, 5, 7), ignore_index=3)
    with pytest.raises(ArgumentError, match="target requires a gradient and has none"):
        functional.cross_entropy(logits, noise(2, 2, 5, 7).requires_grad_())
    with pytest.raises(ArgumentError, match="unknown argument size_average; accepted: cross_entropy"):
        functional.cross_entropy(logits, target, size_average=True)


def masks() -> dict[str, Tensor]:
    keys = HEADS[2]
    lengths = torch.tensor([2, keys])
    return {
        "causal": torch.ones(keys, keys, dtype=torch.bool).tril(),
        "padding": (torch.arange(keys) < lengths[:, None])[:, None, None],
        "both": ((torch.arange(keys) < lengths[:, None])[:, None, None])
        & torch.ones(keys, keys, dtype=torch.bool).tril(),
    }


@pytest.mark.slow
def test_attention_of_torch() -> None:
    q, k, v = (noise(i, *HEADS) for i in range(3))
    ours, theirs = functional.scaled_dot_product_attention, F.scaled_dot_product_attention
    alike(ours, theirs, q, k, v)
    alike(ours, theirs, q, k, v, is_causal=True, scale=0.2)
    alike(ours, theirs, q, k[:, :2], v[:, :2], enable_gqa=True)
    for mask in (*masks().values(), noise(3, 6, 6), noise(4, 2, 4, 1, 6), noise(5, 1, 6, 6), noise(6, 6, 1)):
        alike(ours, theirs, q, k, v, mask)
    alike(ours, theirs, q, k, noise(7, 2, 4, 6, 3), is_causal=True)
    for wrong, named in (
        (masks()["causal"].flip(-1), r"attn_mask\[0\] does not show the first keys alone"),
        (torch.zeros(6, 6, dtype=torch.int32), "attn_mask of torch.int32; accepted: torch.bool, .* or floats"),
        (masks()["causal"][None], r"attn_mask of shape \(1, 6, 6\); accepted: \(6, 6\) or \(2, 4, 6, 6\)"),
    ):
        with pytest.raises(ArgumentError, match=named):
            ours(q, k, v, wrong)
    with pytest.raises(ArgumentError, match="2 heads of keys beside 4; accepted: as many, or a divisor"):
        ours(q, k[:, :2], v[:, :2])
    with pytest.raises(ArgumentError, match=r"dropout_p without seed; accepted: seed"):
        ours(q, k, v, dropout_p=0.1)


@pytest.mark.slow
def test_what_queries_see_has_one_reading() -> None:
    """As many sequences as heads, as many heads as queries: a shape that could mean two things is refused."""
    q = noise(1, 4, 4, 4, 8)
    lengths = torch.tensor([1, 2, 3, 4])
    mask = (torch.arange(4) < lengths[:, None])[:, None, None]
    want = functional.scaled_dot_product_attention(q, q, q, mask)
    for limit in (lengths.view(4, 1, 1), lengths.view(4, 1, 1).expand(4, 4, 4)):
        assert torch.equal(functional.attention(q, q, q, limit), want)
    assert torch.equal(functional.attention(q, q, q, lengths=lengths), want)
    assert torch.equal(functional.attention(q, q, q, lengths=lengths.to(torch.int32)), want)
    assert torch.equal(functional.attention(q, q, q, lengths), functional.attention(q, q, q, causal=True))
    for shape in ((4, 1), (4, 4), (1, 4), (1, 4, 4, 4)):
        with pytest.raises(ArgumentError, match=r"limit: shape .*; accepted: \(4,\), of queries alone, or \(4, 4, 4\)"):
            functional.attention(q, q, q, torch.ones(shape, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"lengths of shape \(4, 4\); accepted beside q of \(4, 4, 4, 8\): \(4,\)"):
        functional.attention(q, q, q, lengths=torch.ones(4, 4, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"limit of torch\.bool, a mask; accepted: counts of keys"):
        functional.attention(q, q, q, torch.ones(4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="holds 1099511627777; accepted: -2147483648 to 2147483647"):
        functional.attention(q, q, q, torch.full((4,), 2**40 + 1))


@pytest.mark.slow
def test_rotary_positions() -> None:
    """Of the Llama model of Hugging Face: halves of heads, cos and sin of (batch, length, dim)."""
    x1, x2 = noise(1, 2, 3, 5, 4).requires_grad_(), noise(2, 2, 3, 5, 4)
    position, frequency = torch.arange(5), noise(3, 4).abs()
    y = functional.rotary(x1, x2, position, frequency)
    angle = (position[:, None].float() * frequency).double()
    cos, sin = angle.cos(), angle.sin()
    ready = functional.rotary(x1, x2, cos=cos.float(), sin=sin.float())
    want = x1.double() * cos - x2.double() * sin, x1.double() * sin + x2.double() * cos
    for a, b, c in zip(y, ready, want, strict=True):
        torch.testing.assert_close(a, c.float())
        torch.testing.assert_close(b, c.float())
    whole = functional.rotary(x1, x2, position.view(1, 1, 5).expand(2, 3, 5).to(torch.int32), frequency)
    assert all(map(torch.equal, y, whole))
    with pytest.raises(ArgumentError, match=r"position of shape \(3,\); accepted: what broadcasts to \(2, 3, 5\)"):
        functional.rotary(x1, x2, torch.arange(3), frequency)
    with pytest.raises(ArgumentError, match="position holds 4294967296"):
        functional.rotary(x1, x2, position + 2**32, frequency)
    for words in ({}, {"position": position}, {"cos": cos.float()}, dict(position=position, cos=cos, sin=sin)):
        with pytest.raises(ArgumentError, match="accepted: position and frequency, or cos and sin"):
            functional.rotary(x1, x2, **words)


@pytest.mark.slow
def test_dropout() -> None:
    x = noise(1, 8, 64)
    assert functional.dropout(x, 0.5, False) is x
    a, b, c = (functional.dropout(x, 0.5, seed=s, stream=t) for s, t in ((1, 0), (2, 0), (1, 1)))
    assert not torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(a, functional.dropout(x, 0.5, seed=torch.tensor(1)))
    with pytest.raises(ArgumentError, match="dropout: no seed"):
        functional.dropout(x)
