"""Modules of `torch.nn` that are replaced, what is left with its reason, and rules of one's own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from tokitai.errors import ArgumentError
from tokitai.torch import functional, nn, replace, restore
from tokitai.torch.experts import chosen_experts, experts
from tokitai.torch.replacement import Report, Rule

WIDTH = 8
LAYERS = dict(  # a module of torch, and of this package with the same arguments
    linear=("Linear", (WIDTH, 6)),
    unbiased=("Linear", (WIDTH, 6, False)),
    embedding=("Embedding", (5, WIDTH, 1)),
    layer_norm=("LayerNorm", (WIDTH, 1e-3)),
    rms_norm=("RMSNorm", (WIDTH,)),
    gelu=("GELU", ("tanh",)),
    silu=("SiLU", ()),
    softmax=("Softmax", (0,)),
    log_softmax=("LogSoftmax", (-1,)),
    dropout=("Dropout", (0.25,)),
    loss=("CrossEntropyLoss", (None, None, 2, None, "sum", 0.1)),
)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def given(kind: str) -> tuple[Tensor, ...]:
    ids = torch.tensor([1, 0, 4, 2])
    if kind == "Embedding":
        return (ids,)
    x = noise(4, WIDTH).requires_grad_()
    return (x, ids) if kind == "CrossEntropyLoss" else (x,)


def results(module: Any, kind: str) -> list[Tensor]:
    torch.manual_seed(5)  # of dropout
    inputs = given(kind)
    y = module(*inputs)
    (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
    gradients = [x.grad for x in (*inputs, *module.parameters()) if x.grad is not None]
    return [y.detach(), *(g.clone() for g in gradients)]


@pytest.mark.parametrize("layer", list(LAYERS))
def test_a_replaced_module_has_the_bits_of_this_package(layer: str) -> None:
    kind, arguments = LAYERS[layer]
    module = torch.nn.Sequential(getattr(torch.nn, kind)(*arguments))[0]
    want = getattr(nn, kind)(*arguments)
    want.load_state_dict(module.state_dict())
    model = torch.nn.ModuleList([module])
    report = replace(model)
    assert [e.name for e in report.swapped] == ["0"] and report.left == ()
    assert model[0] is module and isinstance(module, getattr(torch.nn, kind))
    for found in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert all(torch.equal(a, b) for a, b in zip(results(found, kind), results(want, kind), strict=True))
        want.zero_grad()
    assert repr(module).startswith("Tokitai" + kind)
    assert restore(model) == 1 and type(module) is getattr(torch.nn, kind)


class Shifted(torch.nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (torch.nn.ReLU(), "no rule"),
        (torch.nn.SiLU(inplace=True), "inplace=True writes into its input"),
        (torch.nn.Dropout(inplace=True), "inplace=True writes into its input"),
        (torch.nn.Softmax(), "dim=None names no dimension"),
        (torch.nn.Embedding(3, 4, max_norm=1.0), "max_norm=1.0 is not offered"),
        (torch.nn.Embedding(3, 4, sparse=True), "sparse=True is not offered"),
        (torch.nn.Linear(3, 4, dtype=torch.float64), "weight of torch.float64; taken: torch.float16"),
        (Shifted(3, 4), "it is a subclass of Linear, whose forward may be another"),
        (torch.nn.MultiheadAttention(4, 2), "multi_head_attention_forward"),
    ],
)
def test_what_is_left_says_why(module: torch.nn.Module, reason: str) -> None:
    kinds = [type(m) for m in module.modules()]
    report = replace(module)
    assert report.swapped == () and all(reason in (e.reason or "") for e in report.left) and report.left
    assert [type(m) for m in module.modules()] == kinds and restore(module) == 0


def test_a_layer_that_bypasses_its_modules_is_left_with_them() -> None:
    """In evaluation its fast path would take the weights of replaced modules, and give torch's bits."""
    model = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.nn.Linear(8, 8))
    report = replace(model)
    assert [e.name for e in report.swapped] == ["1"]
    assert {e.name for e in report.left} >= {"0", "0.linear1", "0.norm1", "0.self_attn"}
    assert "inside TransformerEncoderLayer: its fast path" in str(report)


def test_a_module_in_two_places_is_swapped_once() -> None:
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(shared, torch.nn.SiLU(), shared)
    assert len(replace(model).swapped) == 2 and model[0] is model[2]
    assert restore(model) == 2


def doubled(self: Any, input: Tensor) -> Tensor:
    return input * 2


def refuse_odd(module: Any) -> str | None:
    return "odd" if module.in_features % 2 else None


def test_a_rule_of_ones_own_comes_first() -> None:
    name = f"{Shifted.__module__}.Shifted"
    rules = [
        Rule("doubled", name, doubled, refuse=refuse_odd),
        Rule("doubled", "torch.nn.modules.linear.Linear", doubled),
    ]
    model = torch.nn.Sequential(Shifted(4, 4), Shifted(3, 4), torch.nn.Linear(4, 4))
    report = replace(model, rules)
    assert [(e.name, e.kind) for e in report.swapped] == [("0", "doubled"), ("2", "doubled")]
    assert [(e.name, e.reason) for e in report.left] == [("1", "odd")]
    x = noise(2, 4)
    assert torch.equal(model[0](x), 2 * x) and torch.equal(pickle.loads(pickle.dumps(model))[2](x), 2 * x)


def test_graphs_made_before_are_made_anew() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH))
    compiled, x = torch.compile(model, backend="eager", fullgraph=True), noise(3, WIDTH)
    before = compiled(x)
    replace(model)
    assert torch.equal(compiled(x), functional.layer_norm(functional.linear(x, *model[0].parameters()), (WIDTH,)))
    restore(model)
    assert torch.equal(compiled(x), before)


def test_report_is_a_table() -> None:
    model = torch.nn.ModuleDict(
        dict(a=torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(12)]), b=torch.nn.ReLU())
    )
    assert str(replace(model)) == ("swapped: 12\n  a.*   12 x Linear  linear\nleft: 1\n  b    1 x ReLU  no rule")
    assert str(Report((), ())) == "swapped: 0\nleft: 0"


@pytest.mark.parametrize(("called", "name"), [(replace, "replace"), (restore, "restore")])
def test_wrong_calls_name_what_is_accepted(called: Any, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: list; accepted: a torch.nn.Module"):
        called([])
    with pytest.raises(ArgumentError, match=r"more holds str; accepted: tokitai.torch.replacement.Rule"):
        replace(torch.nn.Linear(2, 2), ["linear"])  # type: ignore[list-item]


def test_vmap_over_a_replaced_layer() -> None:
    """Over rows it is the layer; over weights one layer for each."""
    model = torch.nn.Linear(4, 4)
    replace(model)
    x = noise(3, 4)
    assert torch.equal(torch.vmap(model)(x), model(x))
    weights = {n: torch.stack([p.detach() * i for i in (1, 2, 3)]) for n, p in model.named_parameters()}

    def of(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(model, weights, (row,))
        return made

    want = [of({n: w[i] for n, w in weights.items()}, x[i]) for i in range(3)]
    assert torch.equal(torch.vmap(of)(weights, x), torch.stack(want))


# ------------------------------------------------------------------ experts that are chosen elsewhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_experts_are_the_layer_without_its_router(dtype: torch.dtype) -> None:
    shapes = dict(x=(9, 16), router=(4, 16), gate_up=(4, 24, 16), down=(4, 16, 12))
    first, second = ([(noise(*s) / 4).to(dtype).requires_grad_() for s in shapes.values()] for _ in range(2))
    y, _, _ = experts(*first, k=2, renormalise=True)
    x, router, gate_up, down = second
    weights, chosen = functional.router(functional.router_logits(x, router), k=2, renormalise=True)
    found = chosen_experts(x, chosen.long(), weights, gate_up, down)
    assert torch.equal(found, y)
    for made in (y, found):
        made.backward(noise(9, 16).to(dtype))
    for name, a, b in zip(shapes, first, second, strict=True):
        if name != "x":  # which torch adds up of two parts
            assert torch.equal(a.grad, b.grad), name  # type: ignore[arg-type]


def test_chosen_experts_refuses_what_does_not_fit() -> None:
    x, gate_up, down = noise(3, 8), noise(4, 12, 8), noise(4, 8, 6)
    chosen, weights = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
    with pytest.raises(ArgumentError, match=r"chosen of \(3, 2\), weights of \(3,\); accepted"):
        chosen_experts(x, chosen, weights[:, 0], gate_up, down)
    with pytest.raises(ArgumentError, match=r"gate_up of \(4, 10, 8\); accepted .*: \(4, 12, 8\)"):
        chosen_experts(x, chosen, weights, gate_up[:, :10], down)
    with pytest.raises(ArgumentError, match=r"experts\[0,0\]=4 .*accepted: 0 to 3"):
        chosen_experts(x, chosen + 4, weights, gate_up, down)


@pytest.mark.slow
def test_the_number_of_tokens_may_change_in_an_export_of_experts() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
            return chosen_experts(x, chosen, share, *weights)

    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(s, generator=draw) for s in ((3, 16, 8), (3, 8, 8))]

    def given(tokens: int) -> tuple[Tensor, ...]:
        chosen = torch.randint(0, 3, (tokens, 2), generator=draw)
        return torch.randn(tokens, 8, generator=draw), chosen, torch.rand(tokens, 2, generator=draw)

    tokens = {0: torch.export.Dim("tokens", min=2, max=32)}
    exported = torch.export.export(Layer(), given(10), dynamic_shapes=(tokens,) * 3).module()
    other = given(7)
    assert torch.equal(exported(*other), Layer()(*other))
