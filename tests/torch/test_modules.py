"""Modules and the layer of experts: beside the functions and `tokitai.experts` they are made of, to the bit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tokitai import ops
from tokitai.errors import ArgumentError, UsageError
from tokitai.experts import Experts as Weights
from tokitai.experts import expert_layer, expert_layer_backward
from tokitai.torch import functional, nn
from tokitai.torch.custom_ops import TorchOp
from tokitai.torch.experts import experts

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOKENS, FEATURES, HIDDEN, COUNT = (2, 9), 16, 12, 4


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def equal(a: Tensor | None, b: Tensor) -> bool:
    assert a is not None
    flat = [x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


@dataclass
class Layer:
    x: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def drawn(cls, dtype: torch.dtype) -> Layer:
        x, router = noise(1, *TOKENS, FEATURES, dtype=dtype), noise(2, COUNT, FEATURES, dtype=dtype)
        gate_up = noise(3, COUNT, 2 * HIDDEN, FEATURES, dtype=dtype)
        down = noise(4, COUNT, FEATURES, HIDDEN, dtype=dtype)
        return cls(*(t.requires_grad_() for t in (x, router, gate_up, down)))

    @property
    def all(self) -> tuple[Tensor, ...]:
        return self.x, self.router, self.gate_up, self.down

    @property
    def weights(self) -> Weights:
        return Weights(*(t.detach() for t in self.all[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "more", [{}, {"k": 1, "renormalise": True, "capacity": 3}, {"logits": "storage"}], ids=["all", "some", "stored"]
)
def test_experts_are_those_of_the_operators(dtype: torch.dtype, more: dict[str, Any]) -> None:
    """Also the gradient of losses that are made of the logits, which joins the router's."""
    layer, dy = Layer.drawn(dtype), noise(5, *TOKENS, FEATURES, dtype=dtype)
    y, logits, chosen = experts(*layer.all, **more)
    z = functional.router_z_loss(logits, reduction="mean")
    torch.autograd.backward([y, z], [dy, torch.tensor(0.5)])
    want, saved = expert_layer(layer.x.detach(), layer.weights, **{"k": 2, **more})
    assert equal(y, want) and equal(logits, saved.logits) and equal(chosen, saved.experts)
    assert not chosen.requires_grad
    rows = torch.full((18,), 0.5) * (1 / torch.tensor(18.0))
    assert logits.dtype == (torch.float32 if more.get("logits") != "storage" else dtype)
    dlogits = ops.router_z_loss_backward(rows, saved.logits)
    dx, of = expert_layer_backward(dy, layer.weights, saved, dlogits=dlogits)
    for got, expected in zip(layer.all, (dx, of.router, of.gate_up, of.down), strict=True):
        assert equal(got.grad, expected)
    without, _ = expert_layer_backward(dy, layer.weights, saved)
    assert not equal(dx, without)


@pytest.mark.slow
def test_a_loss_of_the_logits_alone() -> None:
    layer = Layer.drawn(torch.float32)
    _, logits, _ = experts(*layer.all)
    functional.router_z_loss(logits, reduction="sum").backward()
    wide = [t.detach().double().requires_grad_() for t in layer.all[:2]]
    (torch.logsumexp(wide[0].reshape(-1, FEATURES) @ wide[1].T, -1) ** 2).sum().backward()
    assert torch.allclose(layer.x.grad.double(), wide[0].grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr, arg-type]
    assert torch.allclose(layer.router.grad.double(), wide[1].grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr, arg-type]
    assert layer.down.grad is not None and not layer.down.grad.any()


@pytest.mark.slow
def test_a_graph_of_experts_is_freed_with_its_results() -> None:
    """Without the collector of cycles: a graph that held what it returned would keep all of a step's memory."""
    layer = Layer.drawn(torch.float32)
    gc.disable()
    try:
        made = experts(*layer.all)
        watched = [weakref.ref(t) for t in made]
        del made
        assert all(w() is None for w in watched)
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["padding", "capacity", "capacity_factor"])
def test_where_no_choice_is_kept_all_is_zero(why: str) -> None:
    layer, nobody = Layer.drawn(torch.bfloat16), torch.ones(18, dtype=torch.bool)
    options: dict[str, Any] = {why: dict(padding=nobody, capacity=0, capacity_factor=0.0)[why]}
    padding = options.get("padding")
    limits = {} if padding is not None else options
    module = nn.Experts(FEATURES, HIDDEN, COUNT, 4, dtype=torch.bfloat16, **limits)
    for y in (experts(*layer.all, k=4, **options)[0], module(layer.x, padding)[0]):
        assert y.shape == layer.x.shape and not y.any()
        y.sum().backward()
    for t in (*layer.all, *module.parameters()):
        assert t.grad is not None and not t.grad.any()


def test_padding_is_in_no_loss() -> None:
    torch.manual_seed(1)
    layer, x = nn.Experts(FEATURES, HIDDEN, COUNT), noise(1, *TOKENS, FEATURES)
    padding = torch.arange(18).reshape(TOKENS) % 5 == 0
    y, logits, chosen = layer(x, padding)
    assert not y[padding].any()
    want = layer.losses(*layer(x[~padding])[1:])
    assert all(map(equal, layer.losses(logits, chosen, padding), want))
    assert not any(map(equal, layer.losses(logits, chosen), want))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_router_of_ones_own(dtype: torch.dtype) -> None:
    """Logits in f32 of tokens in any format, and gradients back in theirs: the layer's own, put together by hand."""
    layer, dlogits = Layer.drawn(dtype), noise(6, *TOKENS, COUNT)
    logits = functional.router_logits(layer.x, layer.router)
    assert equal(logits, ops.router_logits(layer.x.detach(), layer.router.detach())) and logits.dtype == torch.float32
    assert equal(logits.reshape(-1, COUNT), experts(*layer.all)[1])
    wide = functional.linear(layer.x.float(), layer.router.float())
    assert equal(logits, wide)
    found = torch.autograd.grad(logits, (layer.x, layer.router), dlogits)
    want = torch.autograd.grad(wide, (layer.x, layer.router), dlogits)
    assert all(map(equal, found, want)) and found[0].dtype == dtype
    weights, chosen = functional.router(logits, k=2)
    assert weights.dtype == torch.float32 and equal(chosen.reshape(-1, 2), experts(*layer.all)[2])


def tensors_of(node: Any) -> list[Tensor]:
    """What a node of the graph holds where neither hooks nor torch's own release can see it."""
    held, seen, met = list(vars(node).values()), list[Tensor](), set[int]()
    while held:
        value = held.pop()
        if id(value) in met or isinstance(value, TorchOp):  # which all calls of an operator share
            continue
        met.add(id(value))
        if isinstance(value, Tensor):
            seen.append(value)
        elif isinstance(value, (list, tuple)):
            held.extend(value)
        elif isinstance(value, dict):
            held.extend(value.values())
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            held.extend(vars(value).values())
    return seen


@pytest.mark.slow
def test_all_that_backward_needs_is_saved_by_autograd() -> None:
    """Hooks see it, and it is freed behind the backward pass, while the result has a name."""
    layer = Layer.drawn(torch.float32)
    seen: list[Tensor] = []

    def pack(t: Tensor) -> int:
        seen.append(t.clone())
        return len(seen) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: seen[i]):
        y, logits, _ = experts(*layer.all)
    node = logits.grad_fn
    assert node is not None and tensors_of(node) == []
    places = 2 * 18
    hidden = sum(t.numel() == places * HIDDEN for t in seen)
    wide = sum(t.numel() == places * FEATURES for t in seen)
    assert (hidden, wide) == (1, 2) and len(seen) == 4 + 4 + 6 + 1
    assert [int(t) for t in seen if t.ndim == 0] == [places]
    (y.sum() + logits.sum()).backward()
    packed = [t.grad for t in layer.all]
    assert tensors_of(node) == []
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = node.saved_tensors  # type: ignore[attr-defined]
    for t in layer.all:
        t.grad = None
    y, logits, _ = experts(*layer.all)
    (y.sum() + logits.sum()).backward()
    assert all(equal(a, b) for a, b in zip(packed, (t.grad for t in layer.all), strict=True))  # type: ignore[arg-type]


@pytest.mark.slow
def test_modules_are_their_functions() -> None:
    x, residual = noise(1, 3, 5, FEATURES, dtype=torch.float16), noise(2, 3, 5, FEATURES, dtype=torch.float16)
    words: dict[str, Any] = dict(dtype=torch.float16)
    norm, rms = nn.LayerNorm(FEATURES, **words), nn.RMSNorm(FEATURES, 1e-5, **words)
    y, _, _ = ops.layer_norm(x, norm.weight.detach(), norm.bias.detach())
    assert equal(norm(x), y)
    h, y, _ = ops.add_rms_norm(x, residual, rms.weight.detach(), eps=1e-5)
    assert equal(rms(x, residual)[0], h) and equal(rms(x, residual)[1], y)
    linear = nn.Linear(FEATURES, 7, activation="gelu", **words)
    assert linear.bias is not None
    assert equal(linear(x), ops.linear(x, linear.weight.detach(), linear.bias.detach(), activation="gelu"))
    assert nn.Linear(FEATURES, 7, bias=False).bias is None
    table, ids = nn.Embedding(11, FEATURES, 3, **words), torch.tensor([[3, 10], [0, 3]])
    assert equal(table(ids), table.weight.detach()[ids])
    layer = nn.Experts(FEATURES, HIDDEN, COUNT, **words)
    y, logits, chosen = layer(x)
    uneven, large = layer.losses(logits, chosen)
    assert y.shape == x.shape and uneven.item() > 0.9 and large.item() > 0
    for p in (*linear.parameters(), *table.parameters(), *layer.parameters(), *rms.parameters()):
        p.grad = None
    (linear(rms(y)).sum() + uneven + large + table(ids).sum()).backward()
    assert all(p.grad is not None for m in (linear, rms, layer, table) for p in m.parameters())


@pytest.mark.slow
def test_a_checkpoint_of_torch_loads() -> None:
    theirs = torch.nn.Linear(FEATURES, 7), torch.nn.LayerNorm(FEATURES), torch.nn.Embedding(5, FEATURES)
    ours = nn.Linear(FEATURES, 7), nn.LayerNorm(FEATURES), nn.Embedding(5, FEATURES)
    for a, b in zip(theirs, ours, strict=True):
        b.load_state_dict(a.state_dict())
        assert all(equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_weights_begin_as_torchs(seed: int) -> None:
    """In f32, drawn by the same generator: to the bit."""
    for name, sizes, options in (
        ("Linear", (7, 5), {}), ("Linear", (640, 3), dict(bias=False)), ("Linear", (1, 9), {}),
        ("Embedding", (9, 4), dict(padding_idx=-2)), ("Embedding", (9, 4), {}), ("LayerNorm", ((2, 3),), {}),
        ("LayerNorm", (5,), dict(bias=False)), ("LayerNorm", (5,), dict(elementwise_affine=False)),
        ("RMSNorm", (4,), {}), ("RMSNorm", ((3, 4),), dict(eps=1e-3)),
    ):  # fmt: skip
        made = []
        for of in (nn, torch.nn):
            torch.manual_seed(seed)
            made.append(getattr(of, name)(*sizes, **options))
        ours, theirs = made
        assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert all(equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_an_expert_begins_as_a_linear_layer() -> None:
    layer = nn.Experts(64, 16, 8, generator=torch.Generator().manual_seed(1))
    for weight in layer.parameters():
        bound = weight.shape[-1] ** -0.5
        assert 0.98 * bound < weight.abs().max().item() <= bound and abs(weight.mean().item()) < bound / 20


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_eps_that_is_left_out_is_that_of_f32(dtype: torch.dtype) -> None:
    """As torch's: beside a mean square of 1e-4 that of 16 bits would not be small."""
    x = noise(1, 5, FEATURES, dtype=dtype) / 100
    y, _ = ops.rms_norm(x, torch.ones(FEATURES, dtype=dtype), eps=torch.finfo(torch.float32).eps)
    module = nn.RMSNorm(FEATURES, dtype=dtype)
    assert equal(module(x), y) and equal(functional.rms_norm(x, (FEATURES,), module.weight), y)
    theirs = torch.nn.RMSNorm(FEATURES, dtype=dtype)(x).double()
    assert ((module(x).double() - theirs).abs() <= 4 * torch.finfo(dtype).eps * theirs.abs()).all()


def test_weights_begin_the_same_in_every_format() -> None:
    """Drawn in f32 and rounded once."""
    made = [nn.Linear(8, 4, dtype=d, generator=torch.Generator().manual_seed(3)) for d in DTYPES]
    assert all(equal(m.weight, made[0].weight.detach().to(m.weight.dtype)) for m in made)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: nn.Linear(2, 2, activation="relu"), "no activation named 'relu'"),
        (lambda: nn.Embedding(4, 2, 4), r"Embedding: padding_idx=4; accepted: -4 to 3"),
        (lambda: nn.Embedding(4, 2, -5), "padding_idx=-5"),
        (lambda: nn.Embedding(0, 2, 0), "padding_idx=0; accepted: None, of no entries"),
        (lambda: nn.Embedding(4, 2, max_norm=1.0), r"max_norm=1.0; accepted: leave it out"),
        (lambda: nn.Embedding(4, 2, scale_grad_by_freq=True), "scale_grad_by_freq=True"),
        (lambda: nn.Embedding(4, 2, sparse=True), "sparse=True"),
        (lambda: nn.LayerNorm(3, eps=-1e-5), r"LayerNorm: eps=-1e-05; accepted: a finite number of at least 0"),
        (lambda: nn.RMSNorm(3, eps=float("nan")), "RMSNorm: eps=nan"),
        (lambda: nn.LayerNorm((2, 3))(torch.ones(5, 3, 2)), r"x of \(5, 3, 2\); accepted: its last dimensions"),
        (lambda: nn.LayerNorm(3, elementwise_affine=False)(torch.ones(2, 4)), r"x of \(2, 4\)"),
        (lambda: nn.RMSNorm(3)(torch.ones(2, 3), torch.ones(2, 4)), r"x or residual of \(2, 4\)"),
        (lambda: nn.Experts(4, 2, 2, logits="f16"), "no format of logits named 'f16'"),  # type: ignore[arg-type]
    ],
)
def test_what_a_module_does_not_take_is_named(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


def test_wrong_sizes_are_named() -> None:
    layer = Layer.drawn(torch.float32)
    with pytest.raises(ArgumentError, match=r"gate_up: shape \(4, 23, 16\)"):
        experts(layer.x, layer.router, layer.gate_up.detach()[:, 1:], layer.down)
