"""Any number of ranks, in any way that torch has, trains to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from examples.mixture.model import Mixture
from tests.torch.small_runs import LENGTH, TINY, digest, trained, trained_by
from tests.torch.world import World, world_of
from tokitai.errors import ArgumentError
from tokitai.meaning.sums import tree
from tokitai.torch import nn
from tokitai.torch.ranks import Arrangement, Gradients, TreeReduceScatter, arrange
from tokitai.torch.ranks.exchange import all_reduce
from tokitai.torch.tree import Partial

RANKS = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(RANKS) as made:
        yield made


def drawn(blocks: int, length: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(blocks)
    return torch.randn(blocks, length, generator=draw) * torch.exp2(torch.randn(blocks, 1, generator=draw) * 4)


# ------------------------------------------------------------------ sums
def summed(group: Any, blocks: int, length: int, dtype: torch.dtype, roll: int) -> tuple[bytes, bytes]:
    """What the ranks make of vectors, one a block; and what torch's own collective makes of it."""
    a = arrange(blocks, 1, group)
    values, partial = drawn(blocks, length), Partial(blocks, a.of((a.rank + roll) % a.ranks).start, torch.add)
    mine = a.of((a.rank + roll) % a.ranks)
    for i in mine:
        partial.push(values[i])
    made = all_reduce(partial.values(), a, dtype)
    own = values[mine.start : mine.stop].sum(0)
    dist.all_reduce(own, group=group)
    return made.view(torch.uint8).numpy().tobytes(), own.to(dtype).view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("blocks", [4, 7, 12])
def test_ranks_add_in_the_tree(world: World, ranks: int, blocks: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        want = torch.from_numpy(tree(drawn(blocks, 37).numpy(), lambda a, b: a + b, axis=0)[0].copy()).to(dtype)
        for found, _ in world(ranks, summed, blocks, 37, dtype, 0):
            assert found == want.view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
def test_another_order_of_ranks_and_the_sum_of_torch_have_other_bits(world: World) -> None:
    (right, by_torch), *_ = world(4, summed, 4, 1000, torch.float32, 0)
    (rolled, _), *_ = world(4, summed, 4, 1000, torch.float32, 1)
    (on_three, by_torch_on_three), *_ = world(3, summed, 12, 1000, torch.float32, 0)
    (on_four, by_torch_on_four), *_ = world(4, summed, 12, 1000, torch.float32, 0)
    assert len({right, rolled, by_torch}) == 3
    assert on_three == on_four and by_torch_on_three != by_torch_on_four


def test_a_step_is_the_tree_over_passes() -> None:
    """Beside gradients that are taken pass by pass, and added by the rule of sums in NumPy."""
    model, batch = Mixture(TINY, torch.bfloat16, "cpu"), torch.randint(0, 32, (6, LENGTH + 1))
    alone: dict[str, list[np.ndarray[Any, Any]]] = {}
    losses = []
    for row in batch:
        model.zero_grad()
        total, loss = model.loss(row[None])
        total.backward()
        losses.append(loss.numpy())
        for name, p in model.named_parameters():
            assert p.grad is not None
            alone.setdefault(name, []).append(p.grad.float().numpy())
    gradients = Gradients(model, arrange(6 * LENGTH, LENGTH))
    for block in gradients.blocks():
        total, loss = model.loss(block.of(batch))
        total.backward()
        block.record(loss=loss)
    for name, p in model.named_parameters():
        want = torch.from_numpy(tree(np.stack(alone[name]), lambda a, b: a + b, axis=0)[0].copy()).bfloat16()
        assert p.grad is not None and torch.equal(p.grad, want), name
    assert gradients.totals["loss"].numpy() == tree(np.stack(losses), lambda a, b: a + b, axis=0)[0]


def last_projection(group: Any, blocks: int) -> list[str]:
    """Loss and gradients of a batch of three blocks, as three passes over these ranks, or as one."""
    draw = torch.Generator().manual_seed(0)
    model = nn.LinearCrossEntropyLoss(8, 10, bias=True, reduction="sum", generator=draw)
    x, classes = torch.randn(3 * 4096, 8, generator=draw), torch.randint(0, 10, (3 * 4096,), generator=draw)
    gradients = Gradients(model, arrange(3 * 4096, group=group) if blocks > 1 else Arrangement(1))
    for block in gradients.blocks():
        loss = model(block.of(x), block.of(classes))
        (loss / len(x)).backward()
        block.record(loss=loss)
    found = [gradients.totals["loss"].reshape(1), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [digest({"": t}) for t in found]


@pytest.mark.slow
def test_ranks_have_the_last_projection_of_one_call(world: World) -> None:
    want = last_projection(None, 1)
    assert len(set(want)) == 3
    assert {n: world.same(n, last_projection, 3) for n in (1, 2, 3)} == dict.fromkeys((1, 2, 3), want)


# ------------------------------------------------------------------ runs
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "ways"),
    [
        ("float32", ["1 ddp", "2 ddp", "2 fsdp", "3 ddp", "3 fsdp", "4 plain", "4 ddp", "4 fsdp"]),
        ("bfloat16", ["1 fsdp", "2 plain", "3 fsdp", "4 ddp"]),
    ],
)
def test_world_sizes_end_with_the_same_bits(world: World, dtype: str, ways: list[str]) -> None:
    """Four blocks a step: on four ranks without accumulation, on fewer with it, on three unevenly."""
    want = world.same(1, trained, "plain", dtype, 4)
    found = {w: world.same(int(w[0]), trained, w.split()[1], dtype, 4) for w in ways}
    assert found == dict.fromkeys(ways, want)
    if dtype == "float32":  # the block is a part of the run
        assert world.same(2, trained, "ddp", dtype, 4, 2 * LENGTH, 2) != world.same(
            2, trained, "ddp", dtype, 4, LENGTH, 2
        )


@pytest.mark.slow
def test_an_accumulator_has_the_same_bits_on_one_rank_and_on_two(world: World) -> None:
    found = [world.same(n, trained_by, "fused16", way) for n, way in ((1, "plain"), (2, "ddp"), (2, "fsdp"))]
    assert len(set(found)) == 1 and found[0] != world.same(1, trained_by, "f32", "plain")


@pytest.mark.slow
def test_eight_ranks_end_with_the_same_bits() -> None:
    with world_of(8) as eight:
        found = [eight.same(n, trained, way, "float32", 8) for n, way in ((1, "plain"), (8, "ddp"), (8, "fsdp"))]
    assert len(set(found)) == 1


# ------------------------------------------------------------------ what is refused
def refused(group: Any, what: str) -> str:
    """The message that a wrong model, or a wrong pass, gives."""
    model: Any = torch.nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    ranks = dist.get_world_size(group)
    if what == "hybrid":
        fully_shard(model, mesh=DeviceMesh("cpu", torch.arange(ranks).view(2, -1), mesh_dim_names=("a", "b")))
    elif what == "bf16":
        fully_shard(model.bfloat16(), mesh=DeviceMesh.from_group(group, "cpu"))
    elif what == "partly":
        fully_shard(model[0], mesh=DeviceMesh.from_group(group, "cpu"))
    elif what in ("unsynchronised", "smaller"):
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
        model.set_requires_gradient_sync(what != "unsynchronised")
    elif what == "mixed":
        from torch.nn.parallel.distributed import _MixedPrecision

        model = DistributedDataParallel(model, process_group=group)
        model.mixed_precision = _MixedPrecision(reduce_dtype=torch.bfloat16)
    try:
        one = arrange(
            4, 1, dist.new_group([dist.get_rank()], use_local_synchronization=True) if what == "smaller" else group
        )
        gradients = Gradients(model, Arrangement(4, 2, one.rank, one.group) if what == "smaller" else one)
        for _ in gradients.blocks():
            model(torch.ones(2, 8, dtype=next(model.parameters()).dtype)).sum().backward()
    except ArgumentError as error:
        return str(error)
    return "accepted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "what", "message"),
    [
        (4, "hybrid", "0.weight has placements (Replicate(), Shard(dim=0)); accepted: all weights in fully_shard"),
        (2, "partly", "1.weight is not sharded; accepted"),
        (2, "bf16", "a reduction in torch.bfloat16; accepted: torch.float32, by fully_shard"),
        (2, "unsynchronised", "of block 0 reduced its sharded modules [0] times"),
        (2, "mixed", "DistributedDataParallel with mixed_precision; accepted: without it"),
        (2, "smaller", "a model over the ranks [0, 1]; accepted: those of the arrangement"),
    ],
)
def test_what_cannot_have_the_same_bits_is_refused(world: World, ranks: int, what: str, message: str) -> None:
    for found in world(ranks, refused, what):
        assert isinstance(found, str), found
        assert message in found or message.replace("block 0", "block 2") in found


def test_wrong_reductions_and_passes_are_refused() -> None:
    comm, x = TreeReduceScatter(Arrangement(2)), torch.zeros(4)
    with pytest.raises(ArgumentError, match=r"a reduction by .*AVG.*; accepted: SUM"):
        comm(x, x, None, dist.ReduceOp.AVG)
    with pytest.raises(ArgumentError, match=r"a reduction in torch.bfloat16"):
        comm(x, x.bfloat16(), None, dist.ReduceOp.SUM)
    with pytest.raises(ArgumentError, match=r"asynchronous"):
        comm(x, x, None, dist.ReduceOp.SUM, async_op=True)
    model = torch.nn.ModuleDict(dict(used=nn.Linear(2, 2), unused=nn.Linear(2, 2)))
    gradients = Gradients(model, Arrangement(2))
    with pytest.raises(ArgumentError, match=r"unused.weight has no gradient behind block 0"):
        for _ in gradients.blocks():
            model["used"](torch.ones(1, 2)).sum().backward()
    gradients = Gradients(model["used"], Arrangement(2))
    with pytest.raises(ArgumentError, match=r"blocks recorded \[\['a'\], \['b'\]\]; accepted: the same names"):
        for block in gradients.blocks():
            model["used"](torch.ones(1, 2)).sum().backward()
            block.record(**{"ab"[block.index]: 1.0})
    with pytest.raises(ArgumentError, match=r"a batch of 3 rows; accepted: a multiple of its 2 blocks"):
        block.of(torch.zeros(3))
    with pytest.raises(ArgumentError, match=r"values of shape \(3,\); accepted: \(2, ...\)"):
        gradients.sum(torch.zeros(3))


def test_a_loop_that_was_left_begins_again() -> None:
    model = nn.Linear(2, 2)
    gradients = Gradients(model, Arrangement(3))
    for _ in gradients.blocks():
        model(torch.ones(1, 2)).sum().backward()
        break
    for _ in gradients.blocks():
        model(torch.ones(1, 2)).sum().backward()
    assert model.bias.grad is not None and model.bias.grad.tolist() == [3, 3]
