"""What torch promises of modules: copies, files, the meta device, hooks, checkpointing, autocast, compiling."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from tokitai.torch import nn

pytestmark = pytest.mark.slow
ROWS, SIZE = (3, 4), 8


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Kind:
    """How a module is made, and what it is called with."""

    name: str
    sizes: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    of_torch: bool = True
    shape: tuple[int, ...] = (*ROWS, SIZE)

    def make(self, dtype: torch.dtype = torch.float32, seed: int = 0, **more: Any) -> Any:
        torch.manual_seed(seed)
        return getattr(nn, self.name)(*self.sizes, **self.options, **(self.typed(dtype) | more))

    def torchs(self, dtype: torch.dtype = torch.float32) -> Any:
        theirs = {n: v for n, v in self.options.items() if n not in ("activation", "logits")}
        return getattr(torch.nn, self.name)(*self.sizes, **theirs, **self.typed(dtype))

    def typed(self, dtype: torch.dtype) -> dict[str, Any]:
        """Modules without weights take no dtype."""
        return {"dtype": dtype} if self.name in WEIGHTED else {}

    def given(self, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, ...]:
        """The first is what a gradient is taken of, where it is of floats."""
        if self.name == "Embedding":
            return (torch.tensor([[0, 3], [5, 0]], device=device),)
        x = noise(1, *self.shape, dtype=dtype).to(device).requires_grad_()
        if self.name == "CrossEntropyLoss":
            return x, torch.tensor([1, 7, -100], device=device)
        return (x,)


WEIGHTED = ("Linear", "Embedding", "LayerNorm", "RMSNorm", "Experts")
KINDS = (
    Kind("Linear", (SIZE, 5)), Kind("Linear", (SIZE, 5), dict(bias=False, activation="gelu")),
    Kind("Embedding", (6, SIZE), dict(padding_idx=0)), Kind("LayerNorm", (SIZE,)),
    Kind("LayerNorm", (SIZE,), dict(bias=False)), Kind("LayerNorm", ((4, SIZE),)),
    Kind("LayerNorm", (SIZE,), dict(elementwise_affine=False)), Kind("RMSNorm", (SIZE,)),
    Kind("RMSNorm", (SIZE,), dict(eps=1e-3, elementwise_affine=False)), Kind("Dropout", (0.4,)),
    Kind("Dropout", (1.0,)),
    Kind("GELU"), Kind("GELU", ("tanh",)), Kind("SiLU"), Kind("Softmax", (-1,)), Kind("Softmax", (0,)),
    Kind("LogSoftmax", (1,)), Kind("CrossEntropyLoss", shape=(3, SIZE)),
    Kind("CrossEntropyLoss", (), dict(reduction="sum", label_smoothing=0.25), shape=(3, SIZE)),
    Kind("Experts", (SIZE, 6, 3, 2), of_torch=False),
    Kind("Experts", (SIZE, 6, 3, 1), dict(capacity_factor=1.0, logits="storage"), of_torch=False),
)  # fmt: skip
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.name}{k.sizes}{k.options or ''}")
OF_TORCH = pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.of_torch], ids=lambda k: f"{k.name}{k.sizes}{k.options or ''}"
)


def equal(a: Any, b: Any) -> bool:
    """To the bit."""
    if a is None or b is None:
        return a is b
    flat = [x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def tensors(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


def run(module: Any, given: tuple[Tensor, ...], called: Callable[..., Any] | None = None) -> list[Tensor | None]:
    """Results; gradients of what was given and of all weights. The generator begins anew: so do masks."""
    for t in (*given, *module.parameters()):
        t.grad = None
    torch.manual_seed(5)
    made = tensors(module(*given) if called is None else called(*given))
    with_slopes = [m for m in made if m.requires_grad]
    slopes = [noise(40 + i, *m.shape, dtype=m.dtype) for i, m in enumerate(with_slopes)]
    torch.autograd.backward(with_slopes, slopes)
    return [*made, *(t.grad for t in (*given, *module.parameters()) if t.is_floating_point())]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return len(a) == len(b) and all(map(equal, a, b)) and any(x is not None for x in a)


# ------------------------------------------------------------------ copies and files
@EVERY
def test_copies_and_files(kind: Kind) -> None:
    """Of modules that have run, gradients and all."""
    module, given = kind.make(torch.bfloat16), kind.given(torch.bfloat16)
    want = run(module, given)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)):
        assert type(other) is type(module) and repr(other) == repr(module)
        assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in module.parameters()}
        assert same(run(other, given), want)


@OF_TORCH
def test_state_and_description_are_torchs(kind: Kind) -> None:
    """In both directions, strictly; also for options that torch does not have."""
    ours, theirs = kind.make(torch.bfloat16, seed=1), kind.torchs(torch.bfloat16)
    assert isinstance(ours, type(theirs)) and type(ours) is not type(theirs)
    assert repr(ours).startswith(repr(theirs)[:-1])
    assert vars(theirs).keys() <= vars(ours).keys()
    theirs.load_state_dict(ours.state_dict())
    again = kind.make(torch.bfloat16, seed=2)
    again.load_state_dict(theirs.state_dict())
    assert all(equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))
    given = kind.given(torch.bfloat16)
    assert same(run(again, given), run(ours, given))


@EVERY
def test_sizes_are_shown(kind: Kind) -> None:
    shown = repr(kind.make())
    for size in kind.sizes:
        assert str(size).strip("()") in shown
    assert all(f"{n}={v}" in shown for n, v in kind.options.items() if n not in ("reduction", "label_smoothing"))


# ------------------------------------------------------------------ where weights begin
@EVERY
def test_the_meta_device(kind: Kind) -> None:
    """No memory, results of the right shapes; then the first values that the module would have had."""
    with torch.device("meta"):
        module = kind.make()
    assert all(p.is_meta for p in module.parameters())
    given = kind.given(torch.float32, "meta")
    want = kind.make(seed=3)
    if kind.name != "Experts":  # whose sizes inside depend on what is chosen
        shown = tensors(module(*given))
        real = tensors(want(*kind.given(torch.float32)))
        assert [(t.shape, t.dtype, t.is_meta) for t in shown] == [(t.shape, t.dtype, True) for t in real]
    if kind.name in WEIGHTED:
        assert hasattr(module, "reset_parameters")
        module.to_empty(device="cpu")
        torch.manual_seed(3)
        module.reset_parameters()
    assert all(equal(a, b) for a, b in zip(module.parameters(), want.parameters(), strict=True))


@EVERY
def test_the_default_dtype_and_device(kind: Kind) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        module = getattr(nn, kind.name)(*kind.sizes, **kind.options)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.dtype == torch.bfloat16 for p in module.parameters())
    if kind.name in WEIGHTED:
        with torch.device("meta"):
            assert all(p.device.type == "cpu" for p in kind.make(device="cpu").parameters())


def test_a_generator_of_its_own_gives_the_first_values() -> None:
    for kind in (k for k in KINDS if k.name in ("Linear", "Embedding", "Experts")):
        first, again, default = (kind.make(generator=g) for g in (*map(seeded, (7, 7)), None))
        assert all(equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
        assert not any(map(equal, first.parameters(), (p for p in default.parameters() if p.any())))
        kind.make(seed=0, device="meta")
        assert torch.equal(torch.get_rng_state(), seeded(0).get_state()), "what has no memory is not drawn"


def test_sharded_modules_begin_as_whole_ones() -> None:
    """As FSDP has it: made on the meta device, sharded, given memory, then first values."""
    kinds = [k for k in KINDS if k.name in WEIGHTED]
    with torch.device("meta"):
        model = torch.nn.Sequential(*(k.make() for k in kinds))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        model.to_empty(device="cpu")
        for kind, module in zip(kinds, model, strict=True):
            torch.manual_seed(4)
            module.reset_parameters()
            whole = kind.make(seed=4)
            for sharded, p in zip(module.parameters(), whole.parameters(), strict=True):
                assert isinstance(sharded, DTensor) and equal(sharded.full_tensor(), p)
    finally:
        dist.destroy_process_group()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ hooks
@EVERY
def test_hooks_of_modules(kind: Kind) -> None:
    """Each is called once, with what went in and what came out; what they return takes its place."""
    module, given = kind.make(), kind.given(torch.float32)
    calls: list[str] = []
    module.register_forward_pre_hook(lambda m, args: calls.append("before"))
    module.register_forward_hook(lambda m, args, made: calls.append("behind"))
    module.register_full_backward_pre_hook(lambda m, slopes: calls.append("backward"))
    module.register_full_backward_hook(lambda m, of_inputs, of_results: calls.append("done"))
    found = run(module, given)
    assert calls == ["before", "behind", "backward", "done"]
    assert same(found, run(kind.make(), given))
    kept = module.register_forward_hook(lambda m, args, made: tuple(2 * t for t in tensors(made)))
    assert equal(tensors(module(*given))[0], 2 * found[0]) or kind.name == "Dropout"
    kept.remove()


@pytest.fixture
def held() -> Iterator[Callable[..., int]]:
    """Called with tensors: bytes of all others that came since and that Python still holds, views left out."""

    def others(*known: Tensor | None) -> int:
        apart = {t.untyped_storage().data_ptr() for t in known if t is not None}
        made = (x for x in gc.get_objects() if type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta)
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in made}
        return sum(size for at, size in storages.items() if at not in apart)

    gc.collect()
    gc.freeze()  # what there was before is no longer listed
    yield others
    gc.unfreeze()


@EVERY
def test_saved_tensors_are_seen_by_hooks(kind: Kind, held: Callable[..., int]) -> None:
    """What the backward pass needs passes through them, and nothing but results is held beside: where it was put away
    elsewhere, and comes back as a copy, gradients are the same."""
    module, given = kind.make(), kind.given(torch.float32)
    want, away = run(module, given), list[bytes]()

    def put(t: Tensor) -> tuple[int, Any, Any]:
        away.append(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return len(away) - 1, t.dtype, t.shape

    def get(packed: tuple[int, Any, Any]) -> Tensor:
        index, dtype, shape = packed
        return torch.frombuffer(bytearray(away[index]) or bytearray(8), dtype=dtype)[: shape.numel()].view(shape)

    for t in (*given, *module.parameters()):
        t.grad = None
    torch.manual_seed(5)
    with torch.autograd.graph.saved_tensors_hooks(put, get):
        made = tensors(module(*given))
    assert held(*given, *module.parameters(), *made, *want) == 0
    with_slopes = [m for m in made if m.requires_grad]
    torch.autograd.backward(with_slopes, [noise(40 + i, *m.shape, dtype=m.dtype) for i, m in enumerate(with_slopes)])
    grads = [t.grad for t in (*given, *module.parameters()) if t.is_floating_point()]
    assert same([*made, *grads], want)


@EVERY
def test_nothing_is_held_behind_a_backward_pass(kind: Kind, held: Callable[..., int]) -> None:
    """While its result has a name."""
    module, given = kind.make(), kind.given(torch.float32)
    made = tensors(module(*given))
    torch.autograd.backward([m for m in made if m.requires_grad], [torch.ones_like(m) for m in made if m.requires_grad])
    leaves = [t for t in (*given, *module.parameters()) if t.is_floating_point()]
    assert held(*given, *leaves, *made, *(t.grad for t in leaves)) == 0
    assert held(*given, *leaves) > 0, "results at least are seen"


# ------------------------------------------------------------------ checkpointing, compiling, calls
@EVERY
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(kind: Kind, reentrant: bool) -> None:
    module, given = kind.make(), kind.given(torch.float32)
    want = run(module, given)

    def called(*args: Tensor) -> Any:
        x = torch.zeros((), requires_grad=True)  # in its first mode torch asks for an input with a gradient
        return checkpoint(lambda _, *a: module(*a), x, *args, use_reentrant=reentrant)

    assert same(run(module, given, called), want)


@EVERY
def test_compiled(kind: Kind) -> None:
    module, given = kind.make(torch.bfloat16), kind.given(torch.bfloat16)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found = run(module, given, compiled)
    if kind.name == "Dropout":  # a graph may draw in another order; never the same mask again
        assert equal(found[0], compiled(*given)) == (kind.sizes == (1.0,))
    else:
        assert same(found, run(module, given))
    torch.compiler.reset()


@EVERY
def test_results_may_be_written_to(kind: Kind) -> None:
    """They are no views, which hooks of FSDP would lose, but where dimensions were moved or split; and what is added to
    one in place changes no gradient."""
    module, given = kind.make(), kind.given(torch.float32)
    want = run(module, given)
    made = tensors(module(*given))
    moved = kind.sizes in [(0,), (1,), ((4, SIZE),)] or kind.name == "Experts"
    assert moved or not any(t._is_view() for t in made)
    if kind.name in (
        "Linear",
        "LayerNorm",
        "RMSNorm",
        "Embedding",
        "Dropout",
        "GELU",
        "SiLU",
        "Experts",
        "CrossEntropyLoss",
    ):

        def called(*args: Tensor) -> Any:
            y, *rest = tensors(module(*args))
            y += 1
            return (y, *rest) if rest else y

        assert same(run(module, given, called)[len(made) :], want[len(made) :])


@EVERY
def test_calls_with_other_weights(kind: Kind) -> None:
    module, given, other = kind.make(), kind.given(torch.float32), kind.make(seed=9)
    torch.manual_seed(5)
    made = torch.func.functional_call(module, dict(other.named_parameters()), given)
    assert same(list(tensors(made)), run(other, given)[: len(tensors(made))])


@EVERY
def test_autocast(kind: Kind) -> None:
    """It runs, what comes back has the format of what was given, and the rule is that of the function."""
    module, given = kind.make(), kind.given(torch.float32)

    def called(*args: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return module(*args)

    found = run(module, given, called)
    made = found[: -len([t for t in (*given, *module.parameters()) if t.is_floating_point()])]
    lower = kind.name in ("Linear", "Experts")
    assert made[0] is not None and made[0].dtype == (torch.bfloat16 if lower else torch.float32)
    assert all(t is None or t.dtype == torch.float32 for t in found[len(made) :])
    if lower:
        narrow = kind.make(torch.bfloat16)
        cast = tuple(t.detach().to(torch.bfloat16).requires_grad_() for t in given)
        assert equal(made[0], run(narrow, cast)[0])


# ------------------------------------------------------------------ dropout
def test_masks_of_dropout() -> None:
    """No mask comes twice, but for the same place of the same generator; none in evaluation; what p says is kept."""
    x = torch.ones(64, 256)
    module = nn.Dropout(0.25)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    assert equal(module(x), first) and not equal(first, second)
    kept = (torch.cat([first, second]) != 0).float().mean().item()
    assert abs(kept - 0.75) < 5 * (0.75 * 0.25 / (2 * x.numel())) ** 0.5  # five standard deviations of a coin's mean
    assert module.eval()(x) is x
    two = torch.nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    assert 0.2 < (two(x) != 0).float().mean().item() < 0.3, "two layers with one mask would keep half"
