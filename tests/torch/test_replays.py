"""Calls of functions that are repeated as launches alone: the bits, gradients and refusals of those that are not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.torch.test_derived import CALLS, equal, noise, sloped, tuple_of
from tests.torch.test_dispatch import Looking
from tokitai.errors import ArgumentError
from tokitai.runtime import launch_cache
from tokitai.torch import accumulate, functional, nn, operators, replays


class Calling(TorchFunctionMode):
    """Notes the functions that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


WARM = 6  # calls after which forward and backward passes are recorded
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in CALLS if n not in ("layer_norm", "swiglu", "cross_entropy")]


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    launch_cache.LAUNCHES.clear()
    yield
    launch_cache.LAUNCHES.clear()


def kinds() -> list[str]:
    """What the cache holds of calls that were recorded."""
    found = launch_cache.LAUNCHES.programs.values()
    return [f if isinstance(f, str) else type(f).__name__ for f in found if f != replays.SEEN]


def gradients(call: Callable[..., Any], *leaves: Tensor | None) -> list[Tensor | None]:
    """Results, then gradients of slopes that are drawn."""
    mine = [x if x is None else x.detach().clone().requires_grad_(x.requires_grad) for x in leaves]
    made = [m for m in tuple_of(call(*mine)) if m.requires_grad][:1]
    torch.autograd.backward(made, [noise(50, *m.shape, dtype=m.dtype) for m in made])
    return [*made, *(x.grad for x in mine if x is not None)]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["layer_norm", "swiglu", "cross_entropy", *SLOW])
def test_operators_give_the_same_bits_again(name: str) -> None:
    given = CALLS[name]
    leaves = sloped(name, given.tensors(torch.float32))

    def run(*x: Any) -> Any:
        return getattr(operators, name)(*x, **given.words)

    with torch.no_grad():
        first = [x.clone() for x in tuple_of(run(*leaves))]
    want = gradients(run, *leaves)
    for _ in range(WARM):
        assert same(gradients(run, *leaves), want)
        with torch.no_grad():
            assert same(list(tuple_of(run(*leaves))), list(first))
            other = [x.flip(0) if x is not None and x.is_floating_point() else x for x in leaves]
            found = tuple_of(run(*other))
    launch_cache.LAUNCHES.clear()
    with torch.no_grad():
        assert same(list(found), list(tuple_of(run(*other))))


X, GAMMA, BETA = noise(1, 8, 64), noise(2, 64), noise(3, 64)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "layer_norm": (lambda x, g, b: functional.layer_norm(x, (64,), g, b), (X, GAMMA, BETA)),
    "rms_norm": (lambda x, g: functional.rms_norm(x, (64,), g), (X, GAMMA)),
    "softmax": (lambda x: functional.softmax(x), (X,)),
    "log_softmax": (lambda x: functional.log_softmax(x, dim=1), (X,)),
    "gelu": (lambda x: functional.gelu(x, approximate="tanh"), (X,)),
    "linear": (functional.linear, (X, noise(4, 8, 64), noise(5, 8), noise(6, 8, 8))),
    "matmul": (functional.matmul, (X, noise(4, 64, 8))),
    "cross_entropy": (lambda x: functional.cross_entropy(x, torch.arange(8), reduction="none"), (X,)),
    "linear with silu": (lambda x, w, b: functional.linear(x, w, b, None, "silu"), (X, noise(4, 8, 64), noise(5, 8))),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_are_repeated(name: str) -> None:
    call, given = FUNCTIONS[name]
    leaves = [x.clone().requires_grad_() for x in given]
    want, plain = gradients(call, *leaves), call(*given)
    for _ in range(WARM):
        assert same(gradients(call, *leaves), want) and equal(call(*given), plain)
    assert sorted(kinds()) == ["_Node", "_Replayed", "_Replayed"]  # with a gradient, that gradient, and without
    other = [x.flip(0).contiguous() for x in given]
    again = [x.clone().requires_grad_() for x in other]
    found, passed = call(*other), gradients(call, *again)
    launch_cache.LAUNCHES.clear()
    assert equal(found, call(*other)) and same(passed, gradients(call, *again))


def warm(call: Callable[[], Any]) -> None:
    for _ in range(WARM):
        call()


@pytest.mark.parametrize(
    "x",
    [X.t().contiguous().t(), X[:, None].expand(8, 2, 64), X[::2], noise(1, 8 * 64 + 1)[1:].view(8, 64), X[:0],
     X.bfloat16(), X[0], torch._neg_view(X)],
    ids=["transposed", "expanded", "strided", "misaligned", "empty", "bf16", "one row", "negated"],
)  # fmt: skip
def test_other_layouts_are_of_another_kind(x: Tensor) -> None:
    warm(lambda: functional.softmax(X))
    for _ in range(3):
        if x.is_neg():
            with pytest.raises(ArgumentError, match="signs"):
                functional.softmax(x)
        else:
            assert equal(functional.softmax(x), functional.softmax(x.clone(memory_format=torch.contiguous_format)))


def test_strided_tensors_are_copied_and_the_launches_repeated() -> None:
    heads, slope = noise(9, 2, 6, 3, 4, 8), noise(10, 2, 6, 4, 8).transpose(1, 2)

    def attend(x: Tensor) -> Tensor:
        made: Tensor = functional.attention(*x.permute(2, 0, 3, 1, 4), causal=True)
        return made

    def run(heads: Tensor) -> tuple[Tensor, Tensor]:
        x = heads.clone().requires_grad_()
        y = attend(x)
        return (y, *torch.autograd.grad(y, x, slope))

    want = run(heads), run(heads.flip(0)), attend(heads)
    warm(lambda: (run(heads), attend(heads)))
    assert {"_Node", "_Replayed"} <= {*kinds()} and replays.REFUSED not in kinds()
    assert same(list(run(heads)), list(want[0])) and equal(attend(heads), want[2])
    assert same(list(run(heads.flip(0))), list(want[1]))


def test_tensors_at_one_address_are_not_taken_for_others() -> None:
    warm(lambda: functional.layer_norm(X, (64,), GAMMA, GAMMA))
    found = functional.layer_norm(X, (64,), GAMMA, BETA)
    launch_cache.LAUNCHES.clear()
    assert equal(found, functional.layer_norm(X, (64,), GAMMA, BETA))
    warm(lambda: functional.layer_norm(X, (64,), GAMMA, BETA))
    found = functional.layer_norm(X, (64,), GAMMA, GAMMA)
    launch_cache.LAUNCHES.clear()
    assert equal(found, functional.layer_norm(X, (64,), GAMMA, GAMMA))


def test_other_arguments_and_their_types() -> None:
    warm(lambda: functional.rms_norm(X, (64,), GAMMA, 1e-6))
    assert not equal(functional.rms_norm(X, (64,), GAMMA, 1.0), functional.rms_norm(X, (64,), GAMMA, 1e-6))
    with pytest.raises(ArgumentError, match="eps"):
        functional.rms_norm(X, (64,), GAMMA, True)
    for wrong in (lambda: functional.softmax(X, dim=2), lambda: functional.softmax(X, 1.5),
                  lambda: functional.softmax(), lambda: functional.softmax(X, axis=1),
                  lambda: functional.softmax([1.0])):  # fmt: skip
        with pytest.raises(ArgumentError, match="accepted"):
            wrong()


def test_a_list_that_changes_is_read_in_each_call() -> None:
    shape = [64]
    warm(lambda: functional.layer_norm(X, shape))
    shape[0] = 32
    with pytest.raises(ArgumentError, match=r"normalized_shape=\(32,\)"):
        functional.layer_norm(X, shape)


def test_what_no_guard_takes_is_found_by_its_key() -> None:
    """More kinds than there are guards, memory of another alignment than a guard's, and where no gradient is wanted."""
    given = [X[:n].clone() for n in range(1, replays.MOST_GUARDS // 2)]
    given += [x.clone().requires_grad_() for x in given]
    given += [noise(1, 8 * 64 + n)[n:].view(8, 64) for n in range(1, replays.MOST_GUARDS)]
    want = [functional.softmax(x) for x in given]
    for again in range(2 * WARM):
        with torch.set_grad_enabled(again >= WARM):
            for x, y in zip(given, want, strict=True):
                found = functional.softmax(x)
                assert equal(found, y) and found.requires_grad == (x.requires_grad and again >= WARM)
    assert max(map(len, launch_cache.LAUNCHES.guards.values())) == replays.MOST_GUARDS
    launch_cache.LAUNCHES.clear()
    warm(lambda: functional.softmax(X))
    (near,) = launch_cache.LAUNCHES.guards
    assert replays._near(near, (X,)) is not None and replays._near(near, (given[-1],)) is None


def test_a_scalar_in_a_tensor_is_read_in_each_call() -> None:
    eps = torch.tensor(1e-6)
    warm(lambda: operators.rms_norm(X, GAMMA, eps=eps))
    eps.fill_(1.0)
    assert equal(operators.rms_norm(X, GAMMA, eps=eps), operators.rms_norm(X, GAMMA, eps=1.0))


OF_INDICES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "embedding": functional.embedding,
    "cross_entropy": lambda index, table: functional.cross_entropy(table, index, reduction="none"),
}
INDICES = {
    "int64": torch.arange(8),
    "int32": torch.arange(8, dtype=torch.int32),
    "strided": torch.arange(8).repeat_interleave(2)[::2],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=list(INDICES))
@pytest.mark.parametrize("name", list(OF_INDICES))
def test_indices_are_checked_in_each_call(name: str, index: Tensor) -> None:
    table, function = noise(7, 8, 8), OF_INDICES[name]

    def call(index: Tensor) -> Tensor:
        made = function(index, table)
        assert isinstance(made, Tensor)
        return made

    warm(lambda: call(index))
    assert kinds() == ["_Replayed"] or index.dtype == torch.int32 or not index.is_contiguous()  # which are copied
    other = index.flip(0)
    found = call(other)
    refused = []
    for value in (8, -1, 2**40 if index.dtype == torch.int64 else 2**31 - 1):
        index[5] = value
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"\[5\]=.*accepted: 0 to 7") as error:
                call(index)
            refused.append(str(error.value))
            launch_cache.LAUNCHES.clear()  # the second message is that of a full check
        index[5] = 5
        warm(lambda: call(index))
    assert refused[::2] == refused[1::2]
    launch_cache.LAUNCHES.clear()
    assert equal(found, call(other))


def test_an_index_that_stands_for_none_is_accepted_again() -> None:
    target = torch.tensor([0, -100, 2, 3])
    warm(lambda: functional.cross_entropy(X[:4], target))
    found = functional.cross_entropy(X[:4], target)
    launch_cache.LAUNCHES.clear()
    assert equal(found, functional.cross_entropy(X[:4], target))


def test_constants_that_require_a_gradient_are_refused_again() -> None:
    x, half = noise(1, 4, 8).requires_grad_(), noise(2, 4, 8)
    cos, sin = noise(3, 4, 8), noise(4, 4, 8)
    warm(lambda: operators.rotate_pairs(x, half, cos, sin))
    with pytest.raises(ArgumentError, match="cos requires a gradient"):
        operators.rotate_pairs(x, half, cos.requires_grad_(), sin)


# ------------------------------------------------------------------ what is not plain
def test_modes_subclasses_and_transforms_see_the_operation() -> None:
    warm(lambda: functional.softmax(X))
    want = functional.softmax(X)
    with Looking() as mode:
        assert equal(functional.softmax(X), want)
    assert "tokitai.softmax.default" in mode.names
    with Calling() as calls:
        assert equal(functional.softmax(X), want)
    assert "tokitai.softmax.default" in calls.names
    kind = type("Own", (Tensor,), {})
    assert type(functional.softmax(X.as_subclass(kind))) is kind
    assert equal(torch.vmap(functional.softmax)(X), want)
    with pytest.raises(ArgumentError, match="do not pass through"):
        torch.func.grad(lambda x: functional.softmax(x).sum())(X)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ArgumentError, match="forward-mode"):
        functional.softmax(torch.autograd.forward_ad.make_dual(X, X))
    assert functional.softmax(X.to("meta")).is_meta
    traced = torch.jit.trace(functional.softmax, X)  # type: ignore[no-untyped-call]
    assert equal(traced(X.flip(0)), functional.softmax(X.flip(0)))


def test_autocast_and_the_context_of_accumulators_hold() -> None:
    x, w = noise(1, 8, 512).half(), noise(4, 8, 512).half()
    warm(lambda: (functional.linear(x.float(), w.float()), functional.linear(x, w)))
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.linear(x.float(), w.float()).dtype == torch.bfloat16
    plain = functional.linear(x, w)
    with accumulate("fused16"):
        chosen = functional.linear(x, w)
    assert equal(chosen, functional.linear(x, w, accumulator="fused16")) and not equal(chosen, plain)
    assert equal(functional.linear(x, w), plain)


def test_inference_mode_gives_its_own_tensors() -> None:
    with torch.inference_mode():
        warm(lambda: functional.softmax(X))
        assert functional.softmax(X).is_inference()
    made = functional.softmax(X)
    assert not made.is_inference() and equal(made, functional.softmax(X.clone()))


@pytest.mark.slow
def test_a_compiled_function_holds_the_operation() -> None:
    warm(lambda: functional.layer_norm(X, (64,), GAMMA, BETA))
    graphs: list[Any] = []

    def kept(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: functional.layer_norm(x, (64,), GAMMA, BETA), backend=kept, fullgraph=True)
    for x in (X, X.flip(0)):
        assert equal(compiled(x), functional.layer_norm(x, (64,), GAMMA, BETA))
    assert len(graphs) == 1 and any("layer_norm" in str(n.target) for n in graphs[0].graph.nodes)


# ------------------------------------------------------------------ gradients
def test_what_is_saved_passes_through_hooks_and_is_guarded() -> None:
    module = nn.LayerNorm(64)
    x = X.clone().requires_grad_()
    packed: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(tuple(t.shape)), t)[1], lambda t: t * 1)
    with hooks:
        first = gradients(module, x)
    before, packed[:] = list(packed), []
    warm(lambda: gradients(module, x))
    assert "_Node" in kinds()
    with hooks:
        assert same(gradients(module, x), first)
    assert packed == before != []
    y = module(x)
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_tensors_that_are_exchanged_before_the_backward_pass() -> None:
    def run(again: int) -> Tensor:
        for _ in range(again):
            x = X.clone().requires_grad_()
            gamma = GAMMA.clone().requires_grad_()
            y = functional.rms_norm(x, (64,), gamma)
            y.backward(X)
        y = functional.rms_norm(x, (64,), gamma)
        gamma.data = torch.stack([BETA, BETA], 1)[:, 0]  # another layout, which no version tells of
        (slope,) = torch.autograd.grad(y, x, X)
        return slope

    found = run(WARM)
    launch_cache.LAUNCHES.clear()
    assert equal(found, run(1))


def test_gradients_that_are_not_wanted_and_those_of_gradients() -> None:
    x = X.clone().requires_grad_()
    module = nn.Linear(64, 8)
    want = [torch.autograd.grad(module(x), [x, *module.parameters()], X[:, :8])[i] for i in range(3)]
    for _ in range(WARM):
        for i, leaf in enumerate([x, *module.parameters()]):
            for p in (x, *module.parameters()):
                p.requires_grad_(p is leaf)
            assert equal(torch.autograd.grad(module(x), leaf, X[:, :8])[0], want[i])
    leaves = [x, *module.parameters()]
    for p in leaves:
        p.requires_grad_()
    warm(lambda: torch.autograd.grad(module(x), x, X[:, :8]))  # one of three
    assert same(list(torch.autograd.grad(module(x), leaves, X[:, :8])), list(want))
    warm(lambda: torch.autograd.grad(functional.softmax(x), x, X))
    for slope in (X, X.clone().requires_grad_()):
        (g,) = torch.autograd.grad(functional.softmax(x), x, slope, create_graph=True)
        with pytest.raises(ArgumentError, match="the gradient of a gradient"):
            g.sum().backward()


def test_slopes_of_other_layouts() -> None:
    x = X.clone().requires_grad_()
    for slope in (torch.ones(()).expand(8, 64), X.t().contiguous().t(), X):
        want = torch.autograd.grad(functional.softmax(x), x, slope.contiguous())[0]
        for _ in range(WARM):
            assert equal(torch.autograd.grad(functional.softmax(x), x, slope)[0], want)


def test_threads_at_once() -> None:
    module, found = nn.LayerNorm(64), []
    given = [noise(i, 8, 64) for i in range(4)]
    want = [gradients(module, x.requires_grad_()) for x in given]

    def work(i: int) -> None:
        found.append(all(same(gradients(module, given[i]), want[i]) for _ in range(50)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 4


def test_results_are_tensors_of_their_own() -> None:
    warm(lambda: functional.layer_norm(X, (64,), GAMMA, BETA))
    a, b = (functional.layer_norm(X, (64,), GAMMA, BETA) for _ in range(2))
    assert a.data_ptr() != b.data_ptr() and equal(a, b) and a._base is None and not a.requires_grad


# ------------------------------------------------------------------ what a repeated call costs
def python_calls(call: Callable[[], Any]) -> int:
    """How many functions of Python a warm call runs: as time is, but the same on every machine."""
    warm(call)
    count = 0

    def seen(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_a_repeated_call_runs_little_of_python(name: str) -> None:
    """At most 10 functions a call, where 40 to 60 ran, beside three of this test: the function, its guards and states
    of torch, the program, its launches."""
    call, given = FUNCTIONS[name]
    assert python_calls(lambda: call(*given)) <= 13
    leaves, slope = [x.clone().requires_grad_() for x in given], noise(9, *call(*given).shape)

    def both() -> None:
        torch.autograd.backward(call(*leaves), slope)

    assert python_calls(both) <= 55  # with torch's own; 37 for a softmax, 55 for linear, which launches four kernels


def test_replays_are_found_by_what_a_call_depends_on() -> None:
    key: list[Any] = []
    assert replays._describe((X, GAMMA, 1, (64,), None, "none"), key, []) is False
    other: list[Any] = []
    assert replays._describe((X, GAMMA, True, (64,), None, "none"), other, []) is False and key != other
    assert replays._describe((object(),), [], []) is None
    keys: list[list[Any]] = [[], []]
    for k, x in zip(keys, (X, noise(1, 8 * 64 + 1)[1:].view(8, 64)), strict=True):  # of another alignment
        replays._describe((x,), k, [])
    assert keys[0] != keys[1]
