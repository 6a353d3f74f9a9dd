"""The accumulator of products as a choice: by a call, by a module, by a context. Bits are the operators'."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tokitai.experts
from tokitai import ops
from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.lang.graph import ACCUMULATORS
from tokitai.routing import permutation
from tokitai.torch import accumulate, functional, nn, recomputation, replace, restore
from tokitai.torch.accumulators import in_force
from tokitai.torch.experts import chosen_experts, experts

ROWS, INNER, COLS, COUNT, HIDDEN = 120, 160, 96, 3, 48
F16 = torch.float16  # whose fraction shows more of a sum than bf16's
F32, FUSED = dict(accumulator="f32"), dict(accumulator="fused16")


@pytest.fixture(autouse=True)
def sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known of one test is not held against the next."""
    monkeypatch.setattr(recomputation, "_unsure", False)


def noise(seed: int, *shape: int) -> Tensor:
    """Numbers of any size, of which sums in f32 and by a matrix unit's steps differ."""
    draw = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-4, 5, shape, generator=draw))
    return (torch.randn(*shape, generator=draw) * size / 8).to(F16).requires_grad_()


X, W, TARGET = noise(1, ROWS, INNER), noise(2, COLS, INNER), torch.arange(ROWS) % COLS
QKV = noise(8, 1, 4, 40, 48), noise(9, 1, 2, 90, 48), noise(10, 1, 2, 90, 48)
NARROW = (X.detach() / 64).requires_grad_()  # of which no logit hides the others
GATE_UP, DOWN, ROUTER = noise(3, COUNT, 2 * HIDDEN, INNER), noise(4, COUNT, INNER, HIDDEN), noise(5, COUNT, INNER)
CHOSEN, SHARES = (
    (torch.arange(ROWS)[:, None] + torch.arange(2)) % COUNT,
    torch.rand(ROWS, 2, generator=torch.Generator().manual_seed(6)),
)


def run(function: Callable[..., Any], *given: Tensor, **more: Any) -> list[Tensor]:
    """The result, or the first of several, and its gradients."""
    made = function(*given, **more)
    y = made[0] if isinstance(made, tuple) else made
    return [y.detach(), *slopes(y, *given)]


def slopes(y: Tensor, *given: Tensor) -> list[Tensor]:
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    leaves = [t for t in given if t.requires_grad]
    return list(torch.autograd.grad(y, leaves, dy))


def same(found: list[Tensor], want: list[Tensor]) -> bool:
    return [f.dtype for f in found] == [w.dtype for w in want] and all(map(torch.equal, found, want))


def detached(*given: Tensor) -> list[Tensor]:
    return [t.detach() for t in given]


# ------------------------------------------------------------------ what the operators give
def by_linear(accumulator: str) -> list[Tensor]:
    (x, w), more = detached(X, W), dict(accumulator=accumulator)
    y = ops.linear(x, w, activation="gelu", **more)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    dh = ops.gelu_erf_backward(dy, ops.linear(x, w, **more))
    return [y, ops.linear_backward_input(dh, w, **more), ops.linear_backward_weight(dh, x, **more)]


def by_matmul(accumulator: str) -> list[Tensor]:
    (x, w), more = detached(X, W), dict(accumulator=accumulator)
    y = ops.matmul(x, w.T.contiguous(), **more)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    right = ops.matmul_backward_right(dy, x, **more)
    return [y, ops.matmul_backward_left(dy, w.T.contiguous(), **more), right.T]


def by_loss(accumulator: str) -> list[Tensor]:
    """Up to 256 rows the fused loss is the two functions."""
    (x, w), more = detached(NARROW, W), dict(accumulator=accumulator)
    logits = ops.linear(x, w, **more)
    each, _ = ops.cross_entropy(logits, TARGET.int())
    slope = torch.randn(ROWS, generator=torch.Generator().manual_seed(7))
    dlogits = ops.cross_entropy_backward(slope, logits, TARGET.int())
    return [each, ops.linear_backward_input(dlogits, w, **more), ops.linear_backward_weight(dlogits, x, **more)]


def by_experts(accumulator: str) -> list[Tensor]:
    """Of the operators of `tokitai.experts`, one after the other."""
    (x, gate_up, down), more = detached(X, GATE_UP, DOWN), dict(accumulator=accumulator)
    there = permutation(CHOSEN.int(), COUNT)
    at = there.offsets
    gathered = ops.dispatch(x, there.order)
    gate, up = gate_up[:, :HIDDEN], gate_up[:, HIDDEN:]
    hidden = ops.grouped_linear_swiglu(gathered, gate, up, at, **more)
    made = ops.grouped_linear(hidden, down, at, **more)
    y = ops.combine(made, SHARES, there.place, k=2)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    dmade = ops.dispatch(dy, there.order, SHARES.reshape(-1)[there.choice])
    dhidden = ops.grouped_linear_backward_input(dmade, down, at, **more)
    gated = ops.grouped_linear(gathered, gate_up, at, **more)
    dgated = torch.cat(ops.swiglu_backward(dhidden, gated[:, :HIDDEN], gated[:, HIDDEN:]), dim=1)
    back = ops.grouped_linear_backward_input(dgated, gate_up, at, **more)
    dx = ops.dispatch_backward(back, there.order, entries=ROWS)
    weights = [ops.grouped_linear_backward_weight(*of, at, **more) for of in ((dgated, gathered), (dmade, hidden))]
    return [y, dx, *weights]


def by_layer(accumulator: str) -> list[Tensor]:
    """Of the layer with a router, whose own products stay in f32."""
    weights = tokitai.experts.Experts(*detached(ROUTER, GATE_UP, DOWN))
    y, saved = tokitai.experts.expert_layer(X.detach(), weights, accumulator=accumulator)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    dx, made = tokitai.experts.expert_layer_backward(dy, weights, saved)
    return [y, dx, made.router, made.gate_up, made.down]


def cross_entropy(x: Tensor, w: Tensor, **more: Any) -> Tensor:
    made: Tensor = functional.linear_cross_entropy(x, w, TARGET.to(x.device), reduction="none", **more)
    return made


def chosen(x: Tensor, gate_up: Tensor, down: Tensor, **more: Any) -> Tensor:
    return chosen_experts(x, CHOSEN.to(x.device), SHARES.to(x.device), gate_up, down, **more)


def by_attention(accumulator: str) -> list[Tensor]:
    """Of heads whose number is twice that of keys."""
    given, more = detached(*QKV), dict(scale=QKV[0].shape[-1] ** -0.5, accumulator=accumulator)
    y, top, total = ops.attention(*given, **more)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    return [y, *ops.attention_backward(dy, *given, top, total, **more)]


CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Callable[[str], list[Tensor]]]] = {
    "linear": (lambda x, w, **more: functional.linear(x, w, activation="gelu", **more), (X, W), by_linear),
    "matmul": (lambda x, w, **more: functional.matmul(x, w.T, **more), (X, W), by_matmul),
    "linear_cross_entropy": (cross_entropy, (NARROW, W), by_loss),
    "chosen_experts": (chosen, (X, GATE_UP, DOWN), by_experts),
    "attention": (functional.attention, QKV, by_attention),
    "experts": (experts, (X, ROUTER, GATE_UP, DOWN), by_layer),
}
each = pytest.mark.parametrize("name", list(CALLS))


@each
def test_a_context_and_a_call_have_the_bits_of_the_operators(name: str) -> None:
    called, given, reference = CALLS[name]
    plain, fused = reference("f32"), reference("fused16")
    assert not any(map(torch.equal, plain, fused)), "each of the results shows which accumulator it has"
    assert same(run(called, *given), plain)
    assert same(run(called, *given, **FUSED), fused)
    with accumulate("fused16"):
        assert same(run(called, *given), fused)
        assert same(run(called, *given, **F32), plain), "what a call names wins"
        made = called(*given)
    y = made[0] if isinstance(made, tuple) else made
    assert same(slopes(y, *given), fused[1:]), "a backward pass has the choice of its forward pass"


@each
def test_operands_in_f32(name: str) -> None:
    """A call that names an accumulator that does not take them is refused, a context leaves them in f32."""
    called, given, _ = CALLS[name]
    wide = [t.detach().float().requires_grad_() for t in given]
    want = run(called, *wide)
    with accumulate("fused16"):
        assert same(run(called, *wide), want)
    accepted = rf"{name}: accumulator='fused16' of operands of torch.float32; accepted: 'f32'"
    with pytest.raises(ArgumentError, match=accepted):
        called(*wide, **FUSED)
    with torch.autocast("cpu", F16):  # which makes them 16-bit ones
        assert run(called, *wide, **FUSED)[0].dtype == run(called, *given, **FUSED)[0].dtype


@pytest.mark.slow
def test_every_accumulator_of_an_operator_is_a_choice() -> None:
    found = []
    for accumulator in ACCUMULATORS:
        with accumulate(accumulator):
            found.append(run(CALLS["linear"][0], X, W))
        assert same(found[-1], by_linear(accumulator)), accumulator
    assert len({f[0].numpy().tobytes() for f in found}) == len(ACCUMULATORS)


def test_logits_of_a_router_stay_sums_in_f32() -> None:
    want = run(functional.router_logits, X, ROUTER)
    with accumulate("fused16"):
        assert same(run(functional.router_logits, X, ROUTER), want)
    with accumulate("f64"):
        assert not same(run(functional.router_logits, X, ROUTER), want)
    with pytest.raises(ArgumentError, match=r"router_logits: accumulator='fused16' of operands of torch.float16"):
        functional.router_logits(X, ROUTER, **FUSED)


def test_logits_that_are_stored_in_16_bits_take_it() -> None:
    def routed(x: Tensor, router: Tensor, **more: Any) -> Tensor:
        made: Tensor = experts(x, router, GATE_UP, DOWN, logits="storage", **more)[1]
        return made

    want = run(functional.linear, X, ROUTER, **FUSED)
    assert same(run(routed, X, ROUTER, **FUSED)[:1], want[:1]) and not same(run(routed, X, ROUTER)[:1], want[:1])
    assert torch.equal(run(routed, X, ROUTER, **FUSED)[2], want[2])


# ------------------------------------------------------------------ modules
def modules(**more: Any) -> dict[str, tuple[Any, tuple[Tensor, ...], str]]:
    """Each with its inputs, and what is chosen in its representation."""
    kwargs: dict[str, Any] = dict(dtype=F16, generator=torch.Generator().manual_seed(0), **more)
    return {
        "Linear": (nn.Linear(INNER, COLS, activation="silu", **kwargs), (X,), "activation=silu"),
        "LinearCrossEntropyLoss": (nn.LinearCrossEntropyLoss(INNER, COLS, **kwargs), (X, TARGET), ""),
        "Experts": (nn.Experts(INNER, HIDDEN, COUNT, **kwargs), (X,), ""),
    }


@pytest.mark.parametrize("name", list(modules()))
def test_modules(name: str) -> None:
    def found(module: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
        weights = list(module.parameters())
        return run(lambda *_: module(*given), X, *weights)

    (plain, given, _), (fused, _, _), (wide, _, _) = (modules(**more)[name] for more in ({}, FUSED, F32))
    want = found(plain, given)
    by_module = found(fused, given)
    assert not same(by_module, want)
    with accumulate("fused16"):
        assert same(found(plain, given), by_module)
        assert same(found(wide, given), want), "what a module was made with wins"
    assert "accumulator" not in repr(plain) and repr(fused).endswith("accumulator=fused16)")
    with pytest.raises(UnknownNameError, match="accumulator"):
        modules(accumulator="fused8")


# ------------------------------------------------------------------ the context
def test_contexts_nest_and_are_left_behind_errors() -> None:
    seen = []
    with accumulate("fused16"):
        with accumulate("f64"), pytest.raises(ZeroDivisionError), accumulate("f32"):
            seen.append(in_force())
            raise ZeroDivisionError
        seen.append(in_force())
        again = accumulate("f64")
        with again, again:
            seen.append(in_force())
    assert [*seen, in_force()] == ["f32", "fused16", "f64", None]
    with pytest.raises(UnknownNameError, match=r"accumulator.*fused16"):
        accumulate("bf16")


def test_a_decorator_holds_in_calls_alone() -> None:
    @accumulate("fused16")
    def step(depth: int) -> tuple[str | None, ...]:
        return (in_force(), *(step(depth - 1) if depth else ()))

    assert in_force() is None and step(2) == ("fused16",) * 3 and in_force() is None

    async def later() -> None: ...

    def each_one() -> Iterator[None]:
        yield

    for function in (later, each_one):
        with pytest.raises(ArgumentError, match=f"{function.__name__} runs after its call"):
            accumulate("fused16")(function)


def test_threads_and_tasks_have_their_own() -> None:
    seen: list[str | None] = []
    inside, left = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(in_force())
        with accumulate("f64"):
            inside.set()
            left.wait(10)
            seen.append(in_force())

    thread = threading.Thread(target=other)
    with accumulate("fused16"):
        thread.start()
        assert inside.wait(10) and in_force() == "fused16"
    left.set()
    thread.join()
    assert seen == [None, "f64"] and in_force() is None

    async def task(accumulator: str) -> list[str | None]:
        found = []
        with accumulate(accumulator):
            for _ in range(3):
                await asyncio.sleep(0)
                found.append(in_force())
        return found

    async def both() -> list[list[str | None]]:
        return [*await asyncio.gather(task("fused16"), task("f64"))]

    assert asyncio.run(both()) == [["fused16"] * 3, ["f64"] * 3]


# ------------------------------------------------------------------ computed again, compiled
def two_layers(x: Tensor, w: Tensor, v: Tensor, **more: Any) -> Tensor:
    """Whose backward pass needs the result of the first."""
    made: Tensor = functional.linear(functional.linear(x, w, **more), v, **more)
    return made


@pytest.mark.parametrize(
    ("called", "given"),
    [(two_layers, (X, W, noise(11, 40, COLS))), (experts, CALLS["experts"][1])], ids=["two layers", "experts"],
)  # fmt: skip
def test_what_is_computed_again_has_the_choice_of_the_forward_pass(
    called: Callable[..., Any], given: tuple[Tensor, ...]
) -> None:
    plain, fused = run(called, *given, **F32), run(called, *given, **FUSED)
    assert not any(map(torch.equal, plain, fused))

    def again(*args: Tensor) -> Any:
        return checkpoint(called, *args, use_reentrant=False)

    def deep(*args: Tensor) -> Any:
        return checkpoint(accumulate("fused16")(again), *args, use_reentrant=False)

    def first(made: Any) -> Tensor:
        y: Tensor = made[0] if isinstance(made, tuple) else made
        return y

    with accumulate("fused16"):
        inside, bare = first(again(*given)), first(again(*given))
    assert same(slopes(inside, *given), fused[1:])
    with accumulate("f64"):  # a context around a backward pass changes nothing
        assert same(slopes(bare, *given), fused[1:])
    outside = first(again(*given))
    with accumulate("fused16"):
        assert same(slopes(outside, *given), plain[1:])
    assert same(slopes(first(deep(*given)), *given), fused[1:])


def test_what_cannot_be_told_of_a_context_is_refused() -> None:
    called, given, reference = CALLS["linear"]

    def again(function: Callable[..., Tensor], reentrant: bool) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in given]
        y = checkpoint(function, *leaves, use_reentrant=reentrant)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype))
        return [y.detach(), *(t.grad for t in leaves if t.grad is not None)]

    assert same(again(called, reentrant=True), reference("f32")), "where there was never a context all is known"
    assert same(again(accumulate("fused16")(called), reentrant=True), reference("fused16"))

    def twice(x: Tensor, w: Tensor) -> Tensor:
        made: Tensor = checkpoint(called, x.sin(), w, use_reentrant=False).sin()
        return made

    for function, reentrant in ((called, True), (twice, False)):
        with pytest.raises(ArgumentError, match="linear: called in a backward pass"), accumulate("fused16"):
            again(function, reentrant)
    assert same(again(lambda *args: called(*args, **FUSED), reentrant=True), reference("fused16"))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_a_compiled_function_has_a_graph_for_each_choice(name: str) -> None:
    called, given, reference = CALLS[name]
    compiled = torch.compile(called, backend="aot_eager", fullgraph=True)
    found = [run(compiled, *given)]
    with accumulate("fused16"):
        found.append(run(compiled, *given))
        thread = threading.Thread(target=lambda: found.append(run(compiled, *given)))
        thread.start()
        thread.join()
    found.append(run(compiled, *given))
    for made, accumulator in zip(found, ("f32", "fused16", "f32", "f32"), strict=True):
        assert same(made, reference(accumulator)), accumulator
    torch.compiler.reset()


def test_a_context_inside_of_a_compiled_function() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        with accumulate("fused16"):
            return functional.linear(x, w, activation="gelu")

    with pytest.raises(Exception, match=r"accumulate: inside of a function that torch.compile traces"):
        torch.compile(step, backend="aot_eager", fullgraph=True)(X, W)
    assert in_force() is None
    assert same(run(torch.compile(step, backend="aot_eager"), X, W), by_linear("fused16")), "torch runs it as it is"
    torch.compiler.reset()


# ------------------------------------------------------------------ replaced models
def test_replaced_modules_have_it_and_give_it_back() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(INNER, COLS), torch.nn.GELU(), torch.nn.Linear(COLS, COLS)).to(F16)
    untouched = {n: dict(vars(m)) for n, m in model.named_modules()}
    replace(model)
    want = run(model, X)
    with accumulate("fused16"):
        fused = run(model, X)
    replace(model, accumulator="fused16")
    assert same(run(model, X), fused) and not same(fused, want)
    with accumulate("f32"):
        assert same(run(model, X), fused), "what the model was given wins"
    replace(model)
    assert same(run(model, X), fused), "a later call that names none changes nothing"
    with pytest.raises(ArgumentError, match=r"linear: accumulator='fused16' of operands of torch.float32"):
        model.float()(X.float())
    with pytest.raises(UnknownNameError, match="accumulator"):
        replace(model, accumulator="fused")
    model.to(F16)
    assert restore(model) == 3 and {n: dict(vars(m)) for n, m in model.named_modules()}.keys() == untouched.keys()
    assert all(vars(m).keys() == untouched[n].keys() for n, m in model.named_modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen3-MoE", "GPT-2"])
def test_replaced_models_of_hugging_face(name: str) -> None:
    from tools.replaced_models import MODELS, VOCABULARY

    torch.manual_seed(0)
    model: Any = MODELS[name]().to(F16)
    ids = torch.randint(0, VOCABULARY, (2, 12))

    def found() -> list[Tensor]:
        model.zero_grad()
        y = model(input_ids=ids, labels=ids)
        y.loss.backward()
        return [y.logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    replace(model)
    want = found()
    with accumulate("fused16"):
        fused = found()
    model.activation_checkpointing_enable()
    model.train()
    replace(model, accumulator="fused16")
    assert same(found(), fused) and not same(fused, want)


# ------------------------------------------------------------------ a GPU
@pytest.mark.gpu
@each
def test_a_gpu_has_the_bits_of_the_cpu(name: str) -> None:
    """In a context, computed again in the thread of its backward pass."""
    called, given, reference = CALLS[name]
    there = [t.detach().cuda().requires_grad_() for t in given]

    def again(*args: Tensor) -> Any:
        return checkpoint(called, *args, use_reentrant=False)

    for accumulator in ("f32", "fused16"):
        for function in (called, again):
            with accumulate(accumulator):
                made = function(*there)
            y = made[0] if isinstance(made, tuple) else made
            dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype).cuda()
            found = [y.detach(), *torch.autograd.grad(y, there, dy)]
            assert same([t.cpu() for t in found], reference(accumulator)), accumulator
