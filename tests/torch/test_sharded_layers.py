"""Layers that are sharded in any way: the norm of their gradients, their runs recorded and run again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.modules.module import register_module_forward_hook

from tests.torch.small_runs import PLAN, Small, digest
from tests.torch.world import World, world_of
from tokitai.errors import ArgumentError
from tokitai.torch import accumulate
from tokitai.torch import functional as F
from tokitai.torch.optim import AdamW, clip_grad_norm_
from tokitai.torch.ranks import Arrangement, Gradients, arrange, checkpoint
from tokitai.torch.replay import Record, Run, unequal_replicas
from tokitai.torch.replay import replay as run_again

RANKS, STEPS, STEP, PLACE, BIT = 4, 4, 3, 5, 9
WAYS = ("4 ways", "2 ways", "2 ways, fully_shard")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(RANKS) as made:
        yield made


# ------------------------------------------------------------------ norms
SHAPES = ((12, 10), (7, 13), (5, 3, 6), (1, 9), (130, 33), (3,), (2, 0))


def gradients_of(dtype: torch.dtype, scale: float) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(s, generator=draw) * scale).to(dtype) for s in SHAPES]


def clipped(group: Any, dtype: torch.dtype, scale: float) -> list[str]:
    """Where a norm, or gradients clipped by it, have other bits than whole ones, cut in many ways."""
    ranks, found = dist.get_world_size(group), []
    line = DeviceMesh.from_group(group, "cpu")
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")) if ranks == RANKS else None
    ways: list[Any] = [(line, [p]) for p in (Shard(0), Shard(1), Replicate())]
    for a in (Shard(0), Shard(1), Replicate()) if square is not None else ():
        ways += [(square, [a, b]) for b in (Shard(0), Shard(1), Replicate())]
    ways += [(square["a"], [Shard(1)])] if square is not None else []

    def placed(g: Tensor, mesh: DeviceMesh, placements: list[Any]) -> Tensor:
        if any(p.is_shard() and p.dim >= g.ndim for p in placements):
            return g.clone()  # a weight that is not sharded, beside those that are
        return distribute_tensor(g, mesh, placements)

    def clip(grads: list[Tensor]) -> tuple[str, list[Tensor]]:
        weights = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
        for w, g in zip(weights, grads, strict=True):
            w.grad = g
        norm = clip_grad_norm_(weights, 0.25)
        return digest({"": norm.reshape(1)}), grads

    want, whole = clip(gradients_of(dtype, scale))
    mixed = [placed(g, *ways[i % len(ways)]) for i, g in enumerate(gradients_of(dtype, scale))]
    every = [(str(w), [placed(g, *w) for g in gradients_of(dtype, scale)]) for w in ways]
    for name, grads in [*every, ("mixed", mixed)]:
        norm, made = clip(grads)
        same = all(digest({"": a}) == digest({"": b}) for a, b in zip(made, whole, strict=True))
        if norm != want or not same:
            found.append(f"{name}: {norm == want} {same}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shards_of_any_kind_have_the_norm_of_whole_gradients(world: World, ranks: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for scale in (1.0, 1e-4, 1e30):
            assert world.same(ranks, clipped, dtype, scale) == [], (dtype, scale)


def refused(group: Any) -> list[str]:
    mesh, messages = DeviceMesh.from_group(group, "cpu"), []
    unequal = torch.full((3,), 1.0 + (dist.get_rank(group) == 1))
    parts: Any = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    for wrong in (unequal, parts):
        weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh))]
        weights[0].grad = None
        weights[1].grad = distribute_tensor(torch.ones(4, 2), mesh, [Shard(1)])
        if isinstance(wrong, DTensor):
            weights[0] = torch.nn.Parameter(distribute_tensor(torch.zeros(3), mesh))
        weights[0].grad = wrong
        with pytest.raises(ArgumentError) as error:
            clip_grad_norm_(weights, 1.0)
        messages.append(str(error.value))
    table, x = distribute_tensor(torch.ones(4, 2), mesh), distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    for call in (lambda: F.embedding(torch.tensor([1]), table), lambda: F.layer_norm(x, (2,)), lambda: F.gelu(x)):
        with pytest.raises(ArgumentError) as error:
            call()
        messages.append(str(error.value))
    return messages


@pytest.mark.slow
def test_gradients_that_are_no_part_of_one_whole_are_refused_and_other_functions_of_shards(world: World) -> None:
    replicas, sums, *functions = world.same(2, refused)
    assert replicas.startswith("gradients beside sharded ones are not the same on each rank; accepted: replicas")
    assert sums.startswith("a tensor with placements (Partial(sum),); accepted: shards and replicas")
    for message, name in zip(functions, ("embedding: a", "layer_norm: a", "gelu_erf: a"), strict=True):
        assert message.startswith(f"{name} DTensor with placements (")


# ------------------------------------------------------------------ runs
def train(config: dict[str, Any], watched: Run) -> None:
    """Four blocks a step, over the ranks of the world in one of `WAYS`; on one rank, where there are no others."""
    model, arrangement = Small(torch.bfloat16), Arrangement(4)
    if dist.is_initialized():
        ways = int(config["way"][0])
        mesh = init_device_mesh("cpu", (RANKS // ways, ways), mesh_dim_names=("blocks", "ways"))
        parallelize_module(model, mesh["ways"], PLAN)
        if ways < RANKS:
            arrangement = arrange(16, 4, mesh["blocks"].get_group())
        if config["way"].endswith("fully_shard"):
            fully_shard(model, mesh=mesh["blocks"], mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    gradients, optimizer = Gradients(model, arrangement), AdamW(model.parameters(), lr=1e-2)

    def save(path: Path) -> None:
        checkpoint.save(path, model, optimizer)

    def load(path: Path) -> None:
        checkpoint.load(path, model, optimizer)

    for step in watched.steps(STEPS, model, optimizer, gradients, save=save, load=load):
        draw = torch.Generator().manual_seed(step)
        x, target = torch.randn(16, 32, generator=draw).bfloat16(), torch.randint(0, 32, (16,), generator=draw)
        watched.note("batch", x)
        with accumulate("fixed16"):
            for block in gradients.blocks():
                loss = F.cross_entropy(model(block.of(x)), block.of(target))
                (loss / 4).backward()
                block.record(loss=loss)
        watched.note("norm", clip_grad_norm_(model.parameters(), 0.05))
        optimizer.step()
        config["end"] = digest(model.state_dict())


def flip(x: Tensor) -> None:
    here = x.to_local() if isinstance(x, DTensor) else x
    here.detach().view(-1).view(torch.int32 if x.element_size() == 4 else torch.int16)[PLACE] ^= 1 << BIT


@contextlib.contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """A bit that flips in step 3: of the first result of `up`, or, behind it, of a moment of `down.weight`."""
    update, calls = AdamW.step, dict(steps=0, flipped=0)

    def step(self: AdamW, *args: Any, **options: Any) -> Any:
        made = update(self, *args, **options)
        calls["steps"] += 1
        if fault == "moment" and calls["steps"] == STEP:
            flip(next(s["exp_avg"] for p, s in self.state.items() if tuple(p.shape) == (32, 96)))
        return made

    def behind(_: Any, __: Any, made: Any) -> None:
        if fault == "activation" and calls == dict(steps=STEP - 1, flipped=0) and made.shape[-1] == 96:
            calls["flipped"] = 1
            flip(made)

    hook = register_module_forward_hook(behind)
    with mock.patch.object(AdamW, "step", step):
        yield
    hook.remove()


def recorded(_: Any, folder: Path, way: str, fault: str | None = None, rank: int = 0) -> str:
    """Record a run; the digest of its weights."""
    watched = Record(folder, f"{__name__}:train", {"way": way}, free=("way", "end"), layers=1, every=2)
    config = dict(watched.config)
    with planted(fault if dist.is_initialized() and dist.get_rank() == rank else None):
        train(config, watched)
    return str(config["end"])


def again(_: Any, folder: Path) -> Any:
    return run_again(folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_run_has_the_digests_of_whole_weights(world: World, tmp_path: Path, way: str) -> None:
    assert world.same(4, recorded, tmp_path / "run", way) == recorded(None, tmp_path / "alone", way)
    alone = run_again(tmp_path / "run")
    assert alone.difference is None and alone.tensors > 150
    outcomes = world(4, again, tmp_path / "alone")
    assert [o.difference for o in outcomes] == [None] * 4 and outcomes[0].ranks == 4
    first, *_ = world(4, again, tmp_path / "run")
    assert (first.difference, first.missing) == (None, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "rank", "block", "element"),
    [("4 ways", 3, 0, (0, 77)), ("2 ways", 1, 0, (0, 53)), ("2 ways, fully_shard", 3, 2, (16, 53))],
)
def test_a_flipped_bit_of_a_shard_is_named_with_its_rank_and_place_in_the_whole(
    world: World, tmp_path: Path, way: str, rank: int, block: int, element: tuple[int, int]
) -> None:
    """The rank has the last columns; beside `fully_shard` also the last rows."""
    for fault, tensor, of in (("moment", "exp_avg of down.weight", None), ("activation", "result of up", block)):
        assert len(set(world(4, recorded, tmp_path / fault, way, fault, rank))) == 1
        made = run_again(tmp_path / fault).difference
        assert made is not None and made.recorded is not None and made.here is not None
        assert (made.step, made.tensor, made.block, made.rank) == (STEP, tensor, of, rank)
        assert made.element == (element if fault == "moment" else (0, element[1]))
        assert int(made.recorded, 16) ^ int(made.here, 16) == 1 << BIT
        assert f"(recorded on rank {rank}), element [" in str(made)


def replicas(group: Any, wrong: bool) -> list[str]:
    """What is said of shards that ranks have twice, of which rank 3 has one with a flipped bit."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("blocks", "ways"))
    tensors = dict(a=distribute_tensor(torch.ones(8, 6), mesh["ways"], [Shard(1)]))
    if wrong and dist.get_rank() == 3:
        flip(tensors["a"])
    with pytest.raises(ArgumentError, match="a has other parts on the ranks"):
        unequal_replicas(tensors, mesh["ways"].get_group())
    return unequal_replicas(tensors, mesh["blocks"].get_group())


@pytest.mark.slow
def test_replicas_of_shards_are_compared_with_each_other(world: World) -> None:
    assert world(4, replicas, False) == [[]] * 4
    assert world(4, replicas, True) == [[], ["a: no bits that most of the 2 ranks have"]] * 2
