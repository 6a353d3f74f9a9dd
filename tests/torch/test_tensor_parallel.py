"""Linear layers whose weights are sharded over ranks have the bits of whole ones, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.torch.small_runs import PLAN, Small, digest
from tests.torch.world import World, world_of
from tokitai.errors import ArgumentError
from tokitai.torch import accumulate, nn
from tokitai.torch import functional as F
from tokitai.torch.optim import AdamW
from tokitai.torch.ranks import Gradients, arrange, checkpoint
from tokitai.torch.vocabulary import parallel_cross_entropy

RANKS = 4
FIXED = ("fixed8", "fixed16", "fixed24")
DTYPES = ("float16", "bfloat16", "float32")
INNER = 4 * 3 * 512  # over 2, 3 and 4 ranks; of 3 and 4 no cut is that of a block of 4096
Bits = dict[str, str]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(RANKS) as made:
        yield made


# ------------------------------------------------------------------ one layer
def hard(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Tensor:
    """A row each: of zeros, of zeros and a subnormal number, with an outlier, with one on each of two ranks, with an
    infinity, with a NaN, at the ends of the format, next to a power of two, subnormal; two whose product cancels in a
    block but for one small product; the others normal."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=draw) * torch.exp2(torch.randint(-6, 6, (rows, 1), generator=draw))
    ends = torch.finfo(dtype)
    x[0] = 0
    x[1] = 0
    x[1, 7] = ends.smallest_normal / 4
    x[2, columns // 2 + 1] = 3e4
    x[3, 1], x[3, columns - 1] = 2.0**12, -(2.0**9)
    x[4, columns - 2] = torch.inf
    x[5, 3] = torch.nan
    x[6] = x[6].sign() * ends.max
    x[7] = torch.where(x[7] > 0, 2 - 2 * ends.eps, -1.0)
    x[8] = x[8] * ends.tiny
    half = min(columns, 4096) // 2
    x[9:11] = 0
    x[9:11, :half] = 1 + torch.rand(half, generator=draw)
    x[9, half : 2 * half], x[10, half : 2 * half] = -x[9, :half], x[10, :half]
    x[9, half - 1], x[9, 2 * half - 1] = 2.0**-20, 0
    return x.to(dtype)


def layer(dtype: str, inputs: int, outputs: int) -> dict[str, Tensor]:
    """Operands and the gradient of the result, the same on every rank."""
    kind = getattr(torch, dtype)
    return dict(
        x=hard(17, inputs, kind, 0),  # a line along the longer side is hard, so that not every one holds a NaN
        weight=hard(outputs, inputs, kind, 1) if inputs > outputs else hard(inputs, outputs, kind, 1).T.contiguous(),
        bias=hard(17, outputs, kind, 2)[7],
        dy=hard(17, outputs, kind, 3),
    )


def bits(t: Tensor) -> str:
    return digest({"": t})


def whole(dtype: str, accumulator: str, inputs: int, outputs: int, activation: str = "none") -> Bits:
    """Result and gradients of a layer on one rank."""
    given = layer(dtype, inputs, outputs)
    x, weight, bias = (given[n].requires_grad_() for n in ("x", "weight", "bias"))
    y = F.linear(x, weight, bias, activation=activation, accumulator=accumulator)
    y.backward(given["dy"])
    return {n: bits(t) for n, t in dict(y=y, x=x.grad, weight=weight.grad, bias=bias.grad).items() if t is not None}


def device(group: Any) -> str:
    return {"gloo": "cpu", "nccl": "cuda"}[dist.get_backend(group)]


def in_shards(
    group: Any, way: str, dtype: str, accumulator: str, inputs: int, outputs: int, activation: str = "none"
) -> Bits:
    """The same, of a weight that is sharded along its outputs (``columns``) or its inputs (``rows``)."""
    mesh = DeviceMesh.from_group(group, device(group))
    places: Any = dict(x=Replicate(), weight=Shard(0), bias=Shard(0), dy=Shard(1))
    if way == "rows":
        places = dict(x=Shard(1), weight=Shard(1), bias=Replicate(), dy=Replicate())
    given = {n: distribute_tensor(t, mesh, [places[n]]) for n, t in layer(dtype, inputs, outputs).items()}
    x, weight, bias = (given[n].requires_grad_() for n in ("x", "weight", "bias"))
    y = F.linear(x, weight, bias, activation=activation, accumulator=accumulator)
    y.backward(given["dy"])
    found: dict[str, Any] = dict(y=y, x=x.grad, weight=weight.grad, bias=bias.grad)
    assert all(found[n].placements == given["dy" if n == "y" else n].placements for n in found)
    return {n: bits(t) for n, t in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("accumulator", FIXED)
@pytest.mark.parametrize("way", ["columns", "rows"])
def test_ways_have_the_bits_of_one(world: World, way: str, accumulator: str) -> None:
    """The side that is cut is longer than a block; the other one is not."""
    sizes = (12, INNER) if way == "columns" else (INNER, 12)
    for dtype in DTYPES:
        want = whole(dtype, accumulator, *sizes)
        for ranks in (1, 2, 3, 4):
            found = world.same(ranks, in_shards, way, dtype, accumulator, *sizes)
            assert [n for n in want if found[n] != want[n]] == [], (dtype, ranks)


@pytest.mark.slow
def test_a_weight_along_its_outputs_may_have_an_activation(world: World) -> None:
    for activation in ("gelu", "silu"):
        want = whole("bfloat16", "fixed16", 12, 24, activation)
        assert world.same(2, in_shards, "columns", "bfloat16", "fixed16", 12, 24, activation) == want


# ------------------------------------------------------------------ runs
def run(model: Small, optimizer: AdamW, passes: Callable[[Tensor, Tensor], Any], steps: range = range(20)) -> str:
    """The digest of weights behind these steps."""
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(16, 32, generator=draw).to(model.norm.weight)
        with accumulate("fixed16"):
            passes(x, torch.randint(0, 32, (16,), generator=draw).to(x.device))
        optimizer.step()
    return digest(model.state_dict())


def trained(
    group: Any, dtype: str, steps: range = range(20), load: Path | None = None, save: Path | None = None
) -> str:
    """Over the ranks of a group; or without one."""
    model = Small(getattr(torch, dtype))
    if group is not None:
        model.to(device(group))
        parallelize_module(model, DeviceMesh.from_group(group, device(group)), PLAN)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    if load is not None:
        checkpoint.load(load, model, optimizer)

    def passes(x: Tensor, target: Tensor) -> None:
        model.zero_grad()
        F.cross_entropy(model(x), target).backward()

    made = run(model, optimizer, passes, steps)
    if save is not None:
        checkpoint.save(save, model, optimizer, group=group)
    return made


def trained_in_blocks(group: Any, ways: int | None) -> str:
    """The same batch in four blocks, over ranks of which so many share a layer; or on one."""
    model, arrangement = Small(torch.bfloat16), arrange(16, 4, group)
    if ways is not None:
        mesh = init_device_mesh("cpu", (RANKS // ways, ways), mesh_dim_names=("blocks", "ways"))
        parallelize_module(model, mesh["ways"], PLAN)
        arrangement = arrange(16, 4, mesh["blocks"].get_group())
    gradients = Gradients(model, arrangement)

    def passes(x: Tensor, target: Tensor) -> None:
        for block in gradients.blocks():
            F.cross_entropy(model(block.of(x)), block.of(target)).backward()

    return run(model, AdamW(model.parameters(), lr=1e-2), passes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_any_number_of_ways_ends_a_run_with_the_same_bits(world: World, dtype: str) -> None:
    want = trained(None, dtype)
    assert {ranks: world.same(ranks, trained, dtype) for ranks in (1, 2, 3, 4)} == dict.fromkeys((1, 2, 3, 4), want)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ways(world: World, tmp_path: Path) -> None:
    ends = [tmp_path / str(i) for i in range(2)]
    world.same(4, trained, "bfloat16", range(8), None, ends[0])
    world.same(2, trained, "bfloat16", range(8, 15), ends[0], ends[1])
    assert world.same(1, trained, "bfloat16", range(15, 20), ends[1]) == trained(None, "bfloat16")


@pytest.mark.slow
def test_blocks_and_ways_go_together(world: World) -> None:
    want = world.same(1, trained_in_blocks, None)
    assert {ways: world.same(4, trained_in_blocks, ways) for ways in (1, 2, 4)} == dict.fromkeys((1, 2, 4), want)


def passed(group: Any, ways: int | None, compiled: bool) -> Bits:
    """Result and gradients of both layers, whose input and result are sharded along tokens; or are not, on one rank."""
    model, x = Small(torch.bfloat16), torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    up, down = model.up, model.down
    if ways is not None:
        mesh = DeviceMesh.from_group(group, "cpu")
        parallelize_module(up, mesh, ColwiseParallel(input_layouts=Shard(0)))
        parallelize_module(down, mesh, RowwiseParallel(output_layouts=Shard(0)))
        x = x.chunk(ways)[dist.get_rank(group)].clone()
    x.requires_grad_()
    layers: Any = torch.nn.Sequential(up, nn.GELU(), down)
    with accumulate("fixed16"):
        y = (torch.compile(layers, backend="aot_eager", fullgraph=True) if compiled else layers)(x)
        y.backward(torch.ones_like(y))
    made = {n: p.grad for n, p in layers.named_parameters()}
    for name, t in dict(y=y, x=x.grad).items():
        made[name] = t if ways is None else DTensor.from_local(t, mesh, [Shard(0)])
    return {n: bits(t) for n, t in made.items() if t is not None}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_tokens_may_be_sharded_between_layers(world: World, compiled: bool) -> None:
    want = passed(None, None, False)
    assert len(want) == 6
    assert world.same(2, passed, 2, compiled) == want


def split_loss(group: Any, compiled: bool, reduction: str) -> Bits:
    """The loss of logits whose columns are split over a group, and the gradients of all of them."""
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(6, 64, generator=draw), torch.randint(0, 64, (6,), generator=draw)
    here = logits.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].clone().requires_grad_()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        made: Tensor = parallel_cross_entropy(logits, target, group=group, reduction=reduction)
        return made

    made = (torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss)(here, target)
    made.backward(torch.ones_like(made))
    assert here.grad is not None
    every = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, here.grad, group=group)
    return dict(loss=bits(made.reshape(-1)), gradient=bits(torch.cat(every, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_graph_may_hold_a_loss_over_ranks(world: World, reduction: str) -> None:
    want = world.same(2, split_loss, False, reduction)
    assert world.same(2, split_loss, True, reduction) == world.same(4, split_loss, False, reduction) == want


# ------------------------------------------------------------------ what is refused
def refused(group: Any) -> list[str]:
    """The messages of wrong calls."""
    mesh, other = DeviceMesh.from_group(group, "cpu"), init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["b"]

    def placed(where: Any, *shape: int, on: DeviceMesh = mesh) -> DTensor:
        return distribute_tensor(torch.ones(shape), on, [where])

    columns, rows = placed(Shard(0), 4, 8), placed(Shard(1), 4, 8)
    x, x_in_shards = placed(Replicate(), 3, 8), placed(Shard(1), 3, 8)
    exact = dict(accumulator="fixed16")
    calls: dict[str, Callable[[], Any]] = {
        "f32 rows": lambda: F.linear(x_in_shards, rows),
        "f64 rows": lambda: F.linear(x_in_shards, rows, accumulator="f64"),
        "fused16 rows": lambda: F.linear(x_in_shards.bfloat16(), rows.bfloat16(), accumulator="fused16"),
        "f32 columns": lambda: F.linear(x.detach().requires_grad_(), columns),
        "plain x": lambda: F.linear(torch.ones(3, 8), columns),
        "plain bias": lambda: F.linear(x, columns, torch.ones(4)),
        "x in shards": lambda: F.linear(x_in_shards, columns),
        "x whole": lambda: F.linear(x, rows, **exact),
        "other group": lambda: F.linear(placed(Replicate(), 3, 8, on=other), columns),
        "replicated": lambda: F.linear(x, placed(Replicate(), 4, 8)),
        "uneven": lambda: F.linear(x, placed(Shard(0), 5, 8)),
        "residual": lambda: F.linear(x, columns, residual=torch.ones(3, 4)),
        "activation": lambda: F.linear(x_in_shards, rows, activation="gelu", **exact),
        "sizes": lambda: F.linear(placed(Shard(1), 3, 12), rows, **exact),
        "formats": lambda: F.linear(x_in_shards.bfloat16(), rows, **exact),
    }
    messages = []
    for name, call in calls.items():
        with pytest.raises(ArgumentError) as error:
            call()
        messages.append(f"{name}: {error.value}")
    with torch.no_grad():  # where nothing is summed over ranks any accumulator will do
        assert torch.equal(F.linear(x, columns).full_tensor(), torch.full((3, 4), 8.0))
    with pytest.raises(
        RuntimeError, match=r"accumulator='f32' of a sum over 4 ranks, the result of .*; accepted: 'fixed8'"
    ):
        torch.compile(calls["f32 rows"], backend="aot_eager", fullgraph=True)()
    model = torch.nn.ModuleDict(dict(up=nn.Linear(4, 4), down=nn.Linear(4, 4)))
    parallelize_module(model, mesh, PLAN)
    with pytest.raises(ArgumentError) as error:
        Gradients(model, arrange(8, 2, group))
    messages.append(f"gradients: {error.value}")
    return messages


EXPECTED = (
    "f32 rows: linear: accumulator='f32' of a sum over 4 ranks, the result of a weight sharded along its inputs; "
    "accepted: 'fixed8', 'fixed16', 'fixed24'",
    "f64 rows: linear: accumulator='f64' of a sum over 4 ranks",
    "fused16 rows: linear: accumulator='fused16' of a sum over 4 ranks",
    "f32 columns: linear: accumulator='f32' of a sum over 4 ranks, the gradient of the input of a weight sharded along "
    "its outputs; accepted: 'fixed8', 'fixed16', 'fixed24'",
    "plain x: linear: x is no DTensor beside a weight sharded along its outputs; accepted: a layer in",
    "plain bias: linear: bias is no DTensor",
    "x in shards: linear: x with placements (Shard(dim=1),)",
    "x whole: linear: x with placements (Replicate(),)",
    "other group: linear: x with placements (Replicate(),) on DeviceMesh",
    "replicated: linear: weight with placements (Replicate(),)",
    "uneven: linear: a weight sharded along its outputs, 5 of them over 4 ranks; accepted: a multiple of the ranks",
    "residual: linear: a residual beside a weight sharded along its outputs; accepted: add it to the result",
    "activation: linear: activation='gelu' behind a sum over ranks; accepted: 'none'",
    "sizes: linear: x of 12 features, weight of 8; accepted: as many",
    "formats: weight: torch.float32 beside torch.bfloat16; accepted: one storage format for all",
    "gradients: up.weight is sharded over ranks of the arrangement, [0, 1, 2, 3]; accepted: fully_shard, or arrange(",
)


@pytest.mark.slow
def test_what_is_not_defined_is_refused_by_name(world: World) -> None:
    every = world(4, refused)
    assert not [e for e in every if isinstance(e, Exception)]
    assert [m for m, start in zip(every[0], EXPECTED, strict=True) if not m.startswith(start)] == []
