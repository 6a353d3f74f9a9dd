"""Every function under what torch does to functions: the bits of a plain call, or a refusal that names the function."""

from __future__ import annotations

import copy
import pickle
import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from tests.torch.functions import EVERY, Call, x
from tests.torch.test_derived import equal
from tokitai.errors import ArgumentError
from tokitai.torch import functional, nn
from tokitai.torch.experts import chosen_experts, experts

every = pytest.mark.parametrize("call", list(EVERY.values()), ids=list(EVERY))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SEED = 20261130
MUTATIONS = 12  # of each function's shapes


def same(found: list[Any], want: list[Any]) -> None:
    assert len(found) == len(want)
    assert all(equal(a, b) for a, b in zip(found, want, strict=True))


def test_every_function_is_here() -> None:
    assert set(functional.__all__) <= set(EVERY)


# ------------------------------------------------------------------ tensors without values
def outcome(call: Call, inputs: tuple[Any, ...]) -> list[tuple[Any, Any]] | str:
    """Shapes and dtypes of results, or that the call was refused, for its shapes or for what tensors hold."""
    try:
        return [(tuple(r.shape), r.dtype) for r in call.results(*inputs)]
    except ArgumentError as error:
        return "refused for values" if re.search(r"\[\d+\](=| does not show)", str(error)) else "refused"


def mutated(rng: random.Random, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """One tensor with another shape: a dimension less or more, of another size, empty; or of another dtype."""
    place = rng.choice([i for i, t in enumerate(inputs) if isinstance(t, Tensor)])
    t = inputs[place].detach()
    way = rng.randrange(6)
    d = rng.randrange(t.ndim) if t.ndim else 0
    if way == 0 and t.ndim:
        t = t.select(d, 0)
    elif way == 1:
        t = t.unsqueeze(d)
    elif way == 2 and t.ndim and t.shape[d] > 1:
        t = t.narrow(d, 0, t.shape[d] - 1)
    elif way == 3 and t.ndim:
        t = torch.cat([t, t], d)
    elif way == 4 and t.ndim:
        t = t.narrow(d, 0, 0)
    elif way == 5:
        t = t.to(rng.choice([torch.float16, torch.int64, torch.bool, torch.float64]))
    return (*inputs[:place], t.contiguous(), *inputs[place + 1 :])


def moved(inputs: tuple[Any, ...], to: Any) -> tuple[Any, ...]:
    return tuple(to(t) if isinstance(t, Tensor) else t for t in inputs)


@pytest.mark.slow
@every
def test_results_without_values(call: Call, request: pytest.FixtureRequest) -> None:
    """Of the meta device and of fake tensors: the shapes and formats of a call, or refused where it is."""
    rng = random.Random(f"{SEED} {request.node.callspec.id}")
    print(f"seed {SEED}")
    compared = 0
    real = call.tensors()
    words = {n: v.to("meta") if isinstance(v, Tensor) else v for n, v in call.words.items()}
    there = replace(call, words=words)
    tried = [real, *(mutated(rng, real) for _ in range(MUTATIONS))]
    for inputs in tried:
        want = outcome(call, inputs)
        if want == "refused for values":
            assert inputs is not real
            continue
        compared += 1
        shown = [(tuple(t.shape), t.dtype) if isinstance(t, Tensor) else t for t in inputs]
        assert outcome(there, moved(inputs, lambda t: t.to("meta"))) == want, shown
        with FakeTensorMode() as mode:
            words = {n: mode.from_tensor(v) if isinstance(v, Tensor) else v for n, v in call.words.items()}
            fake = replace(call, words=words)
            assert outcome(fake, moved(inputs, mode.from_tensor)) == want, shown
    assert compared > MUTATIONS // 2


# ------------------------------------------------------------------ autocast
@pytest.mark.slow
@every
def test_autocast(call: Call) -> None:
    """Inputs are converted as the rule says, to the bit as by hand; gradients come back in the format of the inputs."""
    for active, given in (
        (torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float16, torch.bfloat16)
    ):  # fmt: skip
        leaves = call.leaves(given)
        chosen = {"lower": active, "f32": torch.float32, "widest": given}[call.rule]
        by_hand = call.leaves(given, chosen)
        want = call.gradients(*by_hand)
        with torch.autocast("cpu", dtype=active):
            found = call.gradients(*leaves)
        results = len(call.results(*by_hand))
        same(found[:results], want[:results])
        places = [i for i, t in enumerate(leaves) if call.sloped(i, t)]
        same(found[results:], [g.to(leaves[i].dtype) for i, g in zip(places, want[results:], strict=True)])


@pytest.mark.slow
@every
def test_formats_that_differ(call: Call) -> None:
    """Accepted under autocast, refused without."""
    inputs = call.tensors()
    storage = [i for i in call.stored(inputs) if call.sloped(i, inputs[i])]
    if len(storage) < 2:
        return
    mixed = tuple(t.to(torch.bfloat16) if i == storage[0] else t for i, t in enumerate(inputs))
    with pytest.raises(ArgumentError, match=r"beside .*; accepted: "):
        call.results(*mixed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call.results(*mixed)


# ------------------------------------------------------------------ what keeps and replays
@pytest.mark.slow
@every
def test_checkpoint_and_hooks(call: Call) -> None:
    """What is computed again, or was packed and unpacked, has the same bits; every saved tensor passes the hooks."""
    want = call.gradients(*call.leaves())
    again = replace(call, function=lambda *t, **w: checkpoint(call.function, *t, use_reentrant=False, **w))
    same(again.gradients(*call.leaves()), want)
    packed = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.clone()):
        same(call.gradients(*call.leaves()), want)


@pytest.mark.slow
@every
def test_compile(call: Call) -> None:
    """One graph, with the bits of the plain call; whole numbers that change make one more, tensors none."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = replace(call, function=torch.compile(call.function, backend=counter, fullgraph=True))
    same(compiled.gradients(*call.leaves()), call.gradients(*call.leaves()))
    assert counter.frame_count == 1
    graphs = []
    for step in range(2, 12) if call.changing else ():
        words = {n: call.words.get(n, 0) - step if n == "ignore_index" else step for n in call.changing}
        same(compiled.gradients(*call.leaves(), **words), call.gradients(*call.leaves(), **words))
        graphs.append(counter.frame_count)
    assert len(set(graphs[1:])) <= 1, graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, c in EVERY.items() if any(isinstance(v, float) for v in c.words.values())])
def test_numbers_as_tensors(name: str) -> None:
    """The bits of plain numbers; under `torch.compile` one graph for all of them."""
    call = EVERY[name]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = replace(call, function=torch.compile(call.function, backend=counter, fullgraph=True))
    graphs = []
    numbers = {n: v for n, v in call.words.items() if type(v) in (int, float) and n not in ("k", "window")}
    for step in range(1, 6):
        words = {n: v / step if isinstance(v, float) else v + step for n, v in numbers.items()}
        held = {n: torch.tensor(v, dtype=torch.float64 if isinstance(v, float) else None) for n, v in words.items()}
        want = call.gradients(*call.leaves(), **words)
        same(call.gradients(*call.leaves(), **held), want)
        same(compiled.gradients(*call.leaves(), **held), want)
        graphs.append(counter.frame_count)
    assert len(set(graphs)) == 1, graphs
    for wrong in (torch.ones(2), torch.tensor(True)):
        with pytest.raises(ArgumentError, match="accepted: a number, or a tensor that holds one"):
            call.results(*call.tensors(), **{next(iter(numbers)): wrong})


# ------------------------------------------------------------------ what has no rule
@every
def test_transforms_without_a_rule_are_refused_by_name(call: Call) -> None:
    inputs = call.tensors()
    place = next(i for i, t in enumerate(inputs) if call.sloped(i, t))

    def of(t: Tensor) -> Any:
        return call.results(*inputs[:place], t, *inputs[place + 1 :])[0]

    x, name = inputs[place], call.function.__name__
    refused = rf"^({name}|gelu_tanh|attention|matmul): .*accepted: "
    for transform in (
        lambda: torch.func.jvp(of, (x,), (x,)),
        lambda: torch.func.grad(lambda t: of(t).sum())(x),
        lambda: torch.func.vjp(of, x),
        lambda: torch.func.jacfwd(of)(x),
        lambda: torch.func.jacrev(of)(x),
        lambda: torch.func.hessian(lambda t: of(t).sum())(x),
        lambda: torch.func.jvp(torch.func.grad(lambda t: of(t).sum()), (x,), (x,)),
    ):
        with pytest.raises(ArgumentError, match=refused):
            transform()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ArgumentError, match=refused):
        of(torch.autograd.forward_ad.make_dual(x, x))


def elements(call: Call, place: int, x: Any) -> list[Any]:
    """Two values in place of an input: of whole numbers and constants the same in another order."""
    return [x, x / -3 if call.sloped(place, x) else x.flip(0)]


def sloped(call: Call, inputs: tuple[Any, ...]) -> list[int]:
    """Places of the results that a backward pass goes through."""
    made = call.results(*(x.requires_grad_() if call.sloped(i, x) else x for i, x in enumerate(inputs)))
    return [i for i, m in enumerate(made) if m.grad_fn is not None and m.grad_fn.name() != "_NoGradientBackward"]


@every
def test_a_batch_has_the_bits_of_one_call_for_each_element(call: Call) -> None:
    """Forward and backward: of one argument, be it of rows or a weight that they share, and of all of them."""
    inputs = call.tensors()
    tensors = [i for i, t in enumerate(inputs) if isinstance(t, Tensor)]
    with_slopes = sloped(call, call.tensors())
    for dim, places in [*((1, [i]) for i in tensors if call.sloped(i, inputs[i])), (0, tensors)]:

        def of(*batch: Tensor, places: list[int] = places) -> tuple[Tensor, ...]:
            given = dict(zip(places, batch, strict=True))
            return call.results(*(given.get(i, x) for i, x in enumerate(inputs)))

        batches = [torch.stack(elements(call, i, inputs[i]), dim=dim) for i in places]
        leaves = [x.requires_grad_() for i, x in zip(places, batches, strict=True) if call.sloped(i, x)]
        found = torch.vmap(of, in_dims=dim)(*batches)
        want = [torch.stack(each) for each in zip(*map(of, *(x.unbind(dim) for x in batches)), strict=True)]
        same(list(found), want)
        slopes = [torch.randn(want[i].shape) for i in with_slopes]
        gradients = [torch.autograd.grad([of_all[i] for i in with_slopes], leaves, slopes) for of_all in (found, want)]
        same(list(gradients[0]), list(gradients[1]))
    none = torch.vmap(of)(*(x[:0] for x in batches))
    assert [t.shape for t in none] == [(0, *w.shape[1:]) for w in want]


@every
def test_a_batch_of_gradients_has_the_bits_of_one_backward_pass_for_each(call: Call) -> None:
    """As a Jacobian of one `torch.vmap` has them; torch's older way of batching them is refused."""
    leaves = call.leaves()
    floats = [x for i, x in enumerate(leaves) if call.sloped(i, x)]
    made = call.results(*leaves)[sloped(call, call.tensors())[0]]
    slopes = torch.stack([torch.randn(made.shape) for _ in range(2)])

    def gradients(slope: Tensor, **words: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(made, floats, slope, retain_graph=True, **words)

    want = [torch.stack(each) for each in zip(*map(gradients, slopes), strict=True)]
    same(list(torch.vmap(gradients)(slopes)), want)
    with pytest.raises(
        ArgumentError, match=r": gradients in a batch by is_grads_batched=True .*; accepted: torch.vmap"
    ):
        gradients(slopes, is_grads_batched=True)


def test_what_a_batch_shares_has_the_gradients_of_the_calls() -> None:
    """Keys, values and factors that are in all calls; limits of queries alone, in a batch of a batch."""
    q, k, v, factor = x(1, 3, 4, 5, 8), x(2, 2, 6, 8), x(3, 2, 6, 8), x(4, 8, 8)
    limit = torch.tensor([[1, 6, 2, 3, 5], [4, 5, 0, 6, 1]])
    shared = [t.requires_grad_() for t in (k, v, factor)]

    def call(q: Tensor, limit: Tensor) -> Tensor:
        made: Tensor = functional.matmul(functional.attention(q, k, v, limit), factor)
        return made

    found, want = torch.vmap(call, in_dims=(0, None))(q, limit[0]), torch.stack([call(each, limit[0]) for each in q])
    same([found], [want])
    gradients = [torch.autograd.grad(t, shared, x(5, *want.shape)) for t in (found, want)]
    same(list(gradients[0]), list(gradients[1]))
    twice = torch.vmap(torch.vmap(call, in_dims=(0, None)), in_dims=(None, 0))(q, limit)
    same([twice], [torch.stack([torch.stack([call(each, seen) for each in q]) for seen in limit])])


@pytest.mark.parametrize("options", [{}, {"capacity": 3}])
@pytest.mark.parametrize("ensemble", [False, True])
def test_experts_in_a_batch_have_the_bits_of_one_layer_for_each(options: dict[str, Any], ensemble: bool) -> None:
    """Of tokens, and of weights."""
    tokens = x(1, 2, 6, 8).requires_grad_()
    weights = [
        (x(2 + i, *(2,) * ensemble, *s) / 2).requires_grad_() for i, s in enumerate([(3, 8), (3, 8, 8), (3, 8, 4)])
    ]
    chosen = torch.tensor([[0, 2], [2, 1]])[:, None].expand(2, 6, 2)
    share = x(6, 2, 6, 2).requires_grad_()

    def call(t: Tensor, chosen: Tensor, share: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
        return *experts(t, *w, k=2, **options), chosen_experts(t, chosen, share, *w[1:])

    found = torch.vmap(call, in_dims=(0, 0, 0, *[0 if ensemble else None] * 3))(tokens, chosen, share, *weights)
    each = [[w.select(0, i) if ensemble else w for w in weights] for i in range(2)]
    want = [torch.stack(t) for t in zip(*map(call, tokens, chosen, share, *zip(*each, strict=True)), strict=True)]
    same(list(found), want)
    leaves = [tokens, share, *(weights if ensemble else [])]
    slopes = [x(9, *w.shape) for w in want if w.requires_grad]
    made = [torch.autograd.grad([t for t in of if t.requires_grad], leaves, slopes) for of in (found, want)]
    same(list(made[0]), list(made[1]))


def test_what_is_refused_without_a_batch_is_refused_in_one() -> None:
    logits, target = x(1, 2, 3, 5), torch.tensor([0, 1, 2])
    with pytest.raises(ArgumentError, match="weight requires a gradient and has none"):
        torch.vmap(lambda w: functional.cross_entropy(logits[0], target, w))(x(2, 2, 5).requires_grad_())
    _, lse = torch.vmap(lambda t: functional.cross_entropy(t, target, return_lse=True))(logits.requires_grad_())
    with pytest.raises(ArgumentError, match="cross_entropy: its result lse has no gradient"):
        lse.sum().backward()


@pytest.mark.slow
def test_a_graph_may_hold_a_batch() -> None:
    """Of one `torch.vmap`, with its bits; other transforms in a graph are refused."""
    logits, target, weights = x(1, 2, 3, 5).requires_grad_(), torch.tensor([[0, 1, 2], [4, 0, 4]]), x(2, 5).abs()
    tokens, layer = x(3, 2, 4, 8), [x(4, 3, 8), x(5, 3, 8, 8), x(6, 3, 8, 4)]

    def of(logits: Tensor, target: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        seen = functional.attention(tokens, tokens, tokens, causal=True)
        return functional.cross_entropy(logits, target, weights), experts(seen, *layer)[0]

    given = (logits, target, tokens)
    found, want = (
        c(torch.vmap(of))(*given)
        for c in (lambda f: torch.compile(f, backend="aot_eager", fullgraph=True), lambda f: f)
    )
    same(list(found), list(want))
    same(*([torch.autograd.grad(loss.sum(), logits)[0]] for loss, _ in (found, want)))
    for transformed in (
        torch.vmap(torch.vmap(functional.softmax)),
        torch.func.grad(lambda t: functional.silu(t).sum()),
    ):
        with pytest.raises(RuntimeError, match=r"a transform of torch.func inside of torch.compile; accepted: one"):
            torch.compile(transformed, backend="aot_eager", fullgraph=True)(tokens)


def test_an_ensemble_is_a_batch_of_weights() -> None:
    """As `torch.func.stack_module_state` has it."""
    draw = torch.Generator().manual_seed(0)
    models = [
        torch.nn.Sequential(nn.Embedding(9, 8, generator=draw), nn.LayerNorm(8), nn.Linear(8, 5, generator=draw))
        for _ in range(3)
    ]
    ids = torch.tensor([[1, 4, 8], [2, 2, 0]])
    weights, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]

    def call(*state: Any) -> Any:
        return torch.func.functional_call(models[0], state, (ids,))  # type: ignore[arg-type]

    found, want = torch.vmap(call)(weights, buffers), torch.stack([m(ids) for m in models])
    same([found], [want])
    slope = torch.randn(want.shape, generator=draw)
    found.backward(slope)
    want.backward(slope)
    for name, w in weights.items():
        same([w.grad], [torch.stack([dict(m.named_parameters())[name].grad for m in models])])  # type: ignore[misc]


@pytest.mark.parametrize("function", [functional.linear, functional.router_logits])
def test_a_vector_has_the_gradients_of_one_row(function: Any) -> None:
    """Those of weights are sums over rows."""
    found, want = [], []
    for made, lead in ((found, ()), (want, (1,))):
        draw = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(s, generator=draw).requires_grad_() for s in ((*lead, 6), (5, 6)))
        y = function(x, weight)
        made += [t.reshape(-1) for t in (y, *torch.autograd.grad(y, (x, weight), torch.ones_like(y)))]
    same(found, want)


@pytest.mark.slow
@every
def test_gradients_of_gradients_are_refused_by_name(call: Call) -> None:
    leaves = call.leaves()
    floats = [t for i, t in enumerate(leaves) if call.sloped(i, t)]
    made = next(m for m in call.results(*leaves) if m.requires_grad)
    slope = torch.ones_like(made).requires_grad_()
    gradients = torch.autograd.grad(made, floats, slope, create_graph=True, allow_unused=True)
    first = next(g for g in gradients if g is not None and g.requires_grad)
    with pytest.raises(ArgumentError, match=r"the gradient of a gradient is not defined"):
        torch.autograd.grad(first.sum(), [slope, *floats], allow_unused=True)


@pytest.mark.slow
@every
def test_a_gradient_with_a_tangent_is_refused(call: Call) -> None:
    """Forward mode over a backward pass, which a plain forward pass began."""
    leaves = call.leaves()
    floats = [t for i, t in enumerate(leaves) if call.sloped(i, t)]
    made = next(m for m in call.results(*leaves) if m.requires_grad)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ArgumentError, match="forward-mode"):
        slope = torch.autograd.forward_ad.make_dual(torch.ones_like(made), torch.ones_like(made))
        torch.autograd.grad(made, floats, slope, allow_unused=True)


# ------------------------------------------------------------------ calls, copies
@every
def test_wrong_calls_show_what_is_accepted(call: Call) -> None:
    """The function's own arguments, not a dispatcher's schema."""
    inputs, name = call.tensors(), call.function.__name__
    for wrong in (
        lambda: call.function(),
        lambda: call.function(*inputs, **call.words, axis=1),
        lambda: call.function("x", *inputs[1:], **call.words),
        lambda: call.function(*inputs, *[None] * 20),
        lambda: call.function(inputs[0].tolist(), *inputs[1:], **call.words),
    ):
        with pytest.raises(ArgumentError, match=rf"^{name}: .*; accepted: {name}\(\w"):
            wrong()


@every
def test_a_function_is_itself_when_pickled_and_copied(call: Call) -> None:
    if call.function.__module__.startswith("tokitai."):
        assert pickle.loads(pickle.dumps(call.function)) is call.function
    assert copy.deepcopy(call.function) is call.function


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, c in EVERY.items() if n != "embedding"])
def test_whole_numbers_of_int64_are_those_of_int32(name: str) -> None:
    call = EVERY[name]
    inputs = call.tensors()
    wide = tuple(t.to(torch.int64) if isinstance(t, Tensor) and t.dtype == torch.int32 else t for t in inputs)
    same(list(call.results(*wide)), list(call.results(*inputs)))


def test_results_without_a_gradient_are_refused_in_a_loss() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss, lse = functional.cross_entropy(logits, torch.tensor([0, 1, 2]), return_lse=True)
    loss.backward(retain_graph=True)  # what does not go through lse is no matter
    with pytest.raises(ArgumentError, match="cross_entropy: its result lse has no gradient"):
        (loss + lse.sum()).backward()
