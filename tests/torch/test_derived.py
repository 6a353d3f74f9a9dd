"""Functions that follow from definitions: their results and gradients are the operators', to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokitai import ops
from tokitai.errors import ArgumentError, DefinitionError
from tokitai.formats import FORMATS
from tokitai.lang import OPERANDS, Matrix, Operator, Outputs, TensorSpec, operator, outputs, row_sum, storage
from tokitai.torch import operators
from tokitai.torch.derive import differentiable
from tokitai.verification import cases

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LEAD, COLS = (3, 5), 24
ROWS = 15


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(seed: int, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass(frozen=True)
class Given:
    """A call: its tensors in order (those of floats in the format under test, unless they have one), its words."""

    tensors: Callable[[torch.dtype], tuple[Tensor | None, ...]]
    words: dict[str, Any] = field(default_factory=dict)


def matrices(count: int, *more: Callable[[torch.dtype], Tensor | None]) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: (*(noise(i, *LEAD, COLS, dtype=dtype) for i in range(count)), *(m(dtype) for m in more))


def column(seed: int) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: noise(seed, COLS, dtype=dtype)


def heads(dtype: torch.dtype) -> tuple[Tensor, ...]:
    limit = torch.arange(1, 8, dtype=torch.int32)
    return (*(noise(i, 2, h, 7, 8, dtype=dtype) for i, h in enumerate((4, 2, 2))), limit)


def target(dtype: torch.dtype) -> Tensor:
    t = whole(9, COLS, *LEAD)
    t[1, 2] = -100
    return t


CHOSEN = {  # with options and values that are worth a test
    "layer_norm": Given(matrices(1, column(7), column(8)), {"eps": 1e-6}),
    "rms_norm": Given(matrices(1, column(7))),
    "add_layer_norm": Given(matrices(2, column(7), column(8))),
    "add_rms_norm": Given(matrices(2, column(7))),
    "softmax": Given(matrices(1)),
    "masked_softmax": Given(matrices(1, lambda _: whole(8, COLS, *LEAD, dtype=torch.int32))),
    "log_softmax": Given(matrices(1)),
    "cross_entropy": Given(matrices(1, target), {"label_smoothing": 0.1, "z_loss": 1e-3}),
    "attention": Given(heads, {"scale": 0.3}),
    "gelu_erf": Given(matrices(1)),
    "gelu_tanh": Given(matrices(1)),
    "silu": Given(matrices(1)),
    "swiglu": Given(matrices(2)),
    "geglu": Given(matrices(2)),
    "dropout": Given(matrices(1), {"p": 0.3, "seed": 5}),
    "rotary": Given(
        matrices(2, lambda _: whole(8, 99, *LEAD, dtype=torch.int32), lambda _: noise(9, COLS).abs() / 4),
    ),
    "rotate_pairs": Given(matrices(2, lambda _: noise(8, *LEAD, COLS).cos(), lambda _: noise(8, *LEAD, COLS).sin())),
    "soft_cross_entropy": Given(
        matrices(1, lambda dtype: noise(8, *LEAD, COLS).softmax(-1).to(dtype)), {"label_smoothing": 0.1, "z_loss": 1e-3}
    ),
    "scale": Given(matrices(1), {"factor": 0.7}),
    "clip": Given(matrices(1), {"low": -0.5, "high": 1.0}),
    "router": Given(matrices(1), {"k": 4, "renormalise": True}),
    "expert_load": Given(matrices(1, lambda _: whole(8, COLS, *LEAD, 2, dtype=torch.int32))),
    "load_balance_loss": Given(lambda _: (noise(1, 8).abs(), noise(2, 8).abs())),
    "router_z_loss": Given(matrices(1)),
}  # fmt: skip


def by_definition(op: Operator) -> Given:
    """A call that follows from the definition and its contract, with every optional tensor."""
    specs = op.trace(op.contract.formats[0]).inputs
    drawn = [torch.from_numpy(cases.draw(op, replace(t, format=as_drawn(t)), "normal", (ROWS, COLS), 5)) for t in specs]
    lead = {} if any(t.space in OPERANDS for t in specs) else {"rc": (*LEAD, COLS), "r": LEAD}
    shaped = [
        x.reshape(*lead[t.space], *([t.slots] if t.slots else [])) if t.space in lead else x
        for t, x in zip(specs, drawn, strict=True)
    ]
    stored = [t.format == "storage" for t in op.tensors]
    found = cases.defaults(op)
    words = {p.name: int(found[p.name]) if p.whole else found[p.name] for p in op.params if p.default is None}
    both = list(zip(shaped, stored, strict=True))
    return Given(lambda dtype: tuple(x.clone().to(dtype) if s else x.clone() for x, s in both), words)


def as_drawn(t: TensorSpec) -> str:
    """Floats in f32, which every format is made of."""
    return "f32" if FORMATS[str(t.format)].is_float else str(t.format)


# `router_logits` gives float32 whatever it takes: it has tests of its own.
CALLS = {n: CHOSEN.get(n) or by_definition(ops.get(n)) for n in operators.FUNCTIONS if n != "router_logits"}


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """To the bit."""
    if a is None or b is None:
        return a is b
    flat = [x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def tuple_of(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def sloped(name: str, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors, those of floats with a gradient to come."""
    op, constant = ops.get(name), ops.get(name).gradient.constant
    floats = [t.name not in constant and x is not None and x.is_floating_point()
              for t, x in zip(op.tensors, tensors, strict=False)]  # fmt: skip
    return tuple(x.requires_grad_() if f else x for x, f in zip(tensors, floats, strict=True))


def results_of(name: str, tensors: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Tensor]:
    op = ops.get(name)
    made = tuple_of(op(*(t if t is None else t.detach() for t in tensors), **words))
    return dict(zip((o.name for o in op.trace("f32").outputs), made, strict=True))


def backward_of(name: str) -> Operator:
    (backward,) = (b for b in ops.registry().values() if b.backward_of is ops.get(name))
    return backward


def gradients_of(
    name: str, tensors: tuple[Any, ...], words: dict[str, Any], slopes: dict[str, Tensor]
) -> dict[str, Tensor]:
    """By the operator's own backward operator, called by hand."""
    op = ops.get(name)
    backward = backward_of(name)
    found = {t.name: x for t, x in zip(op.tensors, tensors, strict=False) if x is not None}
    found = {n: x.detach() for n, x in {**found, **results_of(name, tensors, words)}.items()} | slopes
    given = {t.name: found[t.name] for t in backward.tensors if t.name in found}
    taken = {p.name for p in backward.params} | {o.name for o in backward.options}
    made = tuple_of(backward(**given, **{n: v for n, v in words.items() if n in taken}))
    optional = [t.name for t in backward.tensors if t.optional and t.name in given]
    return dict(zip((o.name for o in backward.trace("f32", optional).outputs), made, strict=True))


def test_every_operator_with_one_gradient_is_a_function() -> None:
    """But those with several, those that are written out, and those of groups and tables, whose gradients go through
    `experts`."""
    forward = {o.backward_of for o in map(ops.get, ops.registry()) if o.backward_of is not None}
    composed = {o.name for o in forward if o.gradient.composed}
    assert composed == {"linear", "matmul", "embedding", "grouped_linear", "dispatch", "combine"}
    assert {o.name for o in forward} - composed == set(operators.FUNCTIONS)
    assert set(CHOSEN) <= set(CALLS)
    assert all(callable(getattr(operators, name)) for name in operators.FUNCTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list(CALLS))
def test_results_and_gradients_are_the_operators(name: str, dtype: torch.dtype) -> None:
    given = CALLS[name]
    tensors, words = given.tensors(dtype), given.words
    leaves = sloped(name, tensors)
    made = tuple_of(getattr(operators, name)(*leaves, **words))
    want = results_of(name, tensors, words)
    named = {n: m for m in made for n, w in want.items() if equal(m, w)}
    assert len(named) == len(made), f"of {list(want)} only {list(named)} are returned as they are"
    taken = {t.name for t in backward_of(name).tensors}  # a result that no gradient is taken of has none
    slopes = {
        f"d{n}": noise(40 + i, *m.shape, dtype=m.dtype)
        for i, (n, m) in enumerate(named.items()) if m.requires_grad and f"d{n}" in taken
    }  # fmt: skip
    assert slopes
    torch.autograd.backward([named[n[1:]] for n in slopes], list(slopes.values()))
    found = gradients_of(name, tensors, words, slopes)
    op = ops.get(name)
    for t, leaf in zip(op.tensors, leaves, strict=False):
        if leaf is not None and leaf.requires_grad:
            assert equal(leaf.grad, found[f"d{op.gradient.same.get(t.name, t.name)}"]), t.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "add_rms_norm"])
def test_optional_inputs_may_be_left_out(name: str) -> None:
    x = noise(1, *LEAD, COLS).requires_grad_()
    residual = [noise(2, *LEAD, COLS)] if name == "add_rms_norm" else []
    y = tuple_of(getattr(operators, name)(x, *residual))[-1]
    dy = noise(3, *LEAD, COLS)
    y.backward(dy)
    found = gradients_of(name, (x, *residual), {}, {"dy": dy})  # dh is left out: no gradient came through h
    assert equal(x.grad, found["dx"])


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_reduced_loss_has_the_gradient_that_is_made_with_it(reduction: str) -> None:
    logits, to = noise(1, *LEAD, COLS, dtype=torch.bfloat16).requires_grad_(), target(torch.bfloat16)
    loss, _ = operators.cross_entropy(logits, to, reduction=reduction)
    want, slope = ops.cross_entropy_with_grad(logits.detach(), to, reduction=reduction)
    assert loss.ndim == 0 and equal(loss, want)
    loss.backward()
    assert equal(logits.grad, slope)
    by_rows, _ = ops.cross_entropy(logits.detach(), to)
    assert loss.item() == pytest.approx(float(by_rows.sum()) / (1 if reduction == "sum" else ROWS - 1), rel=1e-5)


@pytest.mark.slow
def test_a_reduced_z_loss() -> None:
    logits = noise(1, *LEAD, COLS).requires_grad_()
    operators.router_z_loss(logits, reduction="mean").backward()
    rows = torch.full(LEAD, 1 / ROWS)
    assert equal(logits.grad, ops.router_z_loss_backward(rows, logits.detach()))


@pytest.mark.slow
def test_a_chain_beside_torch() -> None:
    """Through several functions: each gradient arrives where it belongs."""
    x, gamma = noise(1, *LEAD, COLS).requires_grad_(), noise(2, COLS).requires_grad_()
    h, y = operators.add_rms_norm(x, operators.silu(x), gamma, eps=1e-6)
    (operators.softmax(y) * h).sum().backward()
    wide = [t.detach().double().requires_grad_() for t in (x, gamma)]
    h64 = wide[0] + torch.nn.functional.silu(wide[0])
    y64 = h64 * torch.rsqrt((h64**2).mean(-1, keepdim=True) + 1e-6) * wide[1]
    (torch.softmax(y64, -1) * h64).sum().backward()
    for got, want in zip((x, gamma), wide, strict=True):
        assert torch.allclose(got.grad.double(), want.grad, rtol=2e-5, atol=2e-6)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_torch_knows_them(name: str) -> None:
    """Their schemas, shapes without values, gradients, and what a traced graph makes of them."""
    tensors = CALLS[name].tensors(torch.float16)
    leaves = sloped(name, tensors)
    torch.library.opcheck(getattr(torch.ops.tokitai, name).default, leaves, CALLS[name].words, rtol=0.0, atol=0.0)


@pytest.mark.slow
def test_a_compiled_graph_has_the_same_bits() -> None:
    def block(x: Tensor, gamma: Tensor) -> Tensor:
        return operators.softmax(operators.gelu_erf(operators.rms_norm(x, gamma)))  # type: ignore[no-any-return]

    given = noise(1, *LEAD, COLS, dtype=torch.float16), noise(2, COLS, dtype=torch.float16)
    found = []
    for run in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        leaves = [t.clone().requires_grad_() for t in given]
        y = run(*leaves)
        y.backward(noise(3, *LEAD, COLS, dtype=torch.float16))
        found.append((y, *(t.grad for t in leaves)))
    assert all(equal(a, b) for a, b in zip(*found, strict=True))


@operator
def scaled_square(x: Matrix[storage]) -> Outputs:
    """y = x |x|^2, each row on its own."""
    return outputs(y=x * row_sum(x * x))


@operator(backward_of=scaled_square)
def scaled_square_backward(dy: Matrix[storage], x: Matrix[storage]) -> Outputs:
    """dx = dy |x|^2 + 2 x (dy . x)."""
    return outputs(dx=dy * row_sum(x * x) + x * (row_sum(dy * x) * 2))


@pytest.mark.slow
def test_an_operator_of_the_readers_own() -> None:
    called = differentiable(scaled_square, scaled_square_backward)
    x, dy = noise(1, 4, 6).requires_grad_(), noise(2, 4, 6)
    y = called(x)
    assert equal(y, scaled_square(x.detach()))
    y.backward(dy)
    assert equal(x.grad, scaled_square_backward(dy, x.detach()))
    wide = x.detach().double().requires_grad_()
    (wide * (wide**2).sum(-1, keepdim=True)).backward(dy.double())
    assert torch.allclose(x.grad.double(), wide.grad, rtol=1e-5)  # type: ignore[union-attr, arg-type]


@pytest.mark.slow
def test_a_function_may_be_made_again_also_for_another_operator_of_its_name() -> None:
    """As when a cell of a notebook runs again, with a change."""

    def made(factor: float) -> Callable[..., Any]:
        @operator
        def remade(x: Matrix[storage]) -> Outputs:
            return outputs(y=x * factor)

        @operator(backward_of=remade)
        def remade_backward(dy: Matrix[storage]) -> Outputs:
            return outputs(dx=dy * factor)

        return differentiable(remade, remade_backward)

    x = noise(1, 3, 4).requires_grad_()
    for factor in (2.0, 4.0):
        x.grad = None
        y = made(factor)(x)
        y.sum().backward()
        assert equal(y, x.detach() * factor) and equal(x.grad, torch.full((3, 4), factor))
    again = differentiable(ops.silu)
    assert equal(again(x), operators.silu(x))


@pytest.mark.slow
def test_in_host_memory_values_are_always_looked_at() -> None:
    logits, to = noise(1, 2, COLS), torch.tensor([0, COLS])
    for more in ({}, {"check": False}):
        with pytest.raises(ArgumentError, match=r"target\[1\]=24"):
            operators.cross_entropy(logits, to, **more)


def test_what_cannot_be_derived_is_named() -> None:
    with pytest.raises(DefinitionError, match="adamw: it writes into its inputs"):
        differentiable(ops.adamw)

    @operator
    def halved(x: Matrix[storage]) -> Outputs:
        return outputs(y=x * 0.5)

    @operator(backward_of=halved)
    def halved_backward(dz: Matrix[storage]) -> Outputs:
        return outputs(dx=dz * 0.5)

    with pytest.raises(DefinitionError, match="halved: its backward operator takes dz; accepted: dy, x, y"):
        differentiable(halved, halved_backward)
    with pytest.raises(DefinitionError, match="add_rms_norm: no backward operator returns a gradient of residual"):
        differentiable(ops.add_rms_norm, same={})


def test_wrong_arguments_are_named() -> None:
    x = noise(1, *LEAD, COLS)
    with pytest.raises(ArgumentError, match="gamma: shape"):
        operators.layer_norm(x, noise(2, COLS + 1))
    with pytest.raises(ArgumentError, match="format f64"):
        operators.softmax(x.double())
    with pytest.raises(ArgumentError, match="load requires a gradient and has none"):
        operators.load_balance_loss(noise(1, 8).requires_grad_(), noise(2, 8))
    with pytest.raises(ArgumentError, match=r"reduction='total'"):
        operators.router_z_loss(x, reduction="total")


@pytest.mark.slow
def test_a_statistic_has_no_gradient() -> None:
    _, mean, _ = torch.ops.tokitai.layer_norm(noise(1, *LEAD, COLS).requires_grad_(), None, None)
    assert not mean.requires_grad
