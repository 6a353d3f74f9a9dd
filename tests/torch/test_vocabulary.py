"""Cross-entropy of classes that are split over ranks, by processes that meet through gloo."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch.world import World, world_of
from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import functional as F
from tokitai.torch.vocabulary import parallel_cross_entropy

ROWS, CLASSES = 12, 100
RANKS = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(RANKS) as made:
        yield made


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(ROWS, CLASSES, generator=generator) * 4).to(dtype)
    target = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    target[3] = -100
    logits[5] = logits[5].round()
    return logits, target


def part(group: Any, dtype: str, ends: list[int]) -> bytes:
    """Loss and gradient of a rank's columns for each reduction, and the messages of targets that there are not."""
    rank = dist.get_rank(group)
    logits, target = drawn(getattr(torch, dtype))
    here, made = logits[:, [0, *ends][rank] : ends[rank]], {}
    for reduction in ("mean", "sum", "none"):
        leaf = here.clone().requires_grad_()
        given = leaf.reshape(3, 4, -1), target.reshape(3, 4)
        loss = parallel_cross_entropy(*given, reduction=reduction, group=group)
        loss.backward(torch.linspace(0.5, 2, loss.numel()).reshape(loss.shape))
        made[reduction] = loss.detach(), leaf.grad
    for wrong in (100, -1):
        with pytest.raises(ArgumentError) as error:
            parallel_cross_entropy(here, torch.full_like(target, wrong), group=group)
        made[str(wrong)] = str(error.value)
    return pickle.dumps(made)


def in_parts(world: World, dtype: str, ends: list[int]) -> list[dict[str, Any]]:
    return list(map(pickle.loads, world(len(ends), part, dtype, ends)))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("float32", 32), ("bfloat16", 64), ("float16", 128)])
def test_ranks_have_the_bits_of_whole_rows(world: World, dtype: str, width: int) -> None:
    ends = [*range(width, CLASSES, width), CLASSES]
    ranks = in_parts(world, dtype, ends)
    logits, target = drawn(getattr(torch, dtype))
    for reduction in ("mean", "sum", "none"):
        whole = logits.clone().requires_grad_()
        loss = F.cross_entropy(whole, target, reduction=reduction)
        loss.backward(torch.linspace(0.5, 2, loss.numel()).reshape(loss.shape))
        assert all(torch.equal(r[reduction][0].reshape(-1), loss.detach().reshape(-1)) for r in ranks), reduction
        assert torch.equal(torch.cat([r[reduction][1] for r in ranks], dim=1), whole.grad), reduction
    assert all(f"target 100; accepted: 0 to {CLASSES - 1}" in r["100"] and "target -1" in r["-1"] for r in ranks)


@pytest.mark.slow
def test_uneven_parts_have_the_bits_of_the_operators(world: World) -> None:
    """Which `tests/ops/test_vocabulary.py` holds to their bounds, one part after another in one process."""
    ends = [7, 60, CLASSES]
    ranks = in_parts(world, "float32", ends)
    logits, target = drawn(torch.float32)
    parts = [(begin, logits[:, begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    top = logits.amax(1)
    sums = torch.stack([torch.stack(ops.part_sums(x, target, top, first=first)) for first, x in parts], dim=-1)
    loss, _, rest, total = ops.merged_cross_entropy(*sums, top, target)
    for rank, (first, x) in zip(ranks, parts, strict=True):
        assert torch.equal(rank["none"][0].reshape(-1), loss)
        dloss = torch.linspace(0.5, 2, ROWS)
        want = ops.part_cross_entropy_backward(dloss, x, target, top, rest, total, first=first)
        assert torch.equal(rank["none"][1], want)
        assert torch.equal(rank["sum"][0], ops.linear_backward_bias(loss[:, None])[0])


def test_without_a_group_it_says_what_is_missing() -> None:
    with pytest.raises(ArgumentError, match=r"no process group; accepted: after torch.distributed.init_process_group"):
        parallel_cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_wrong_calls() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        logits, target = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, dtype=torch.int64)
        with pytest.raises(ArgumentError, match=r"target of \(3,\)"):
            parallel_cross_entropy(logits, torch.zeros(3, dtype=torch.int64))
        with pytest.raises(ArgumentError, match=r"torch.int32; accepted: int64"):
            parallel_cross_entropy(logits, target.int())
        with pytest.raises(ArgumentError, match="reduction='total'"):
            parallel_cross_entropy(logits, target, reduction="total")
        (slope,) = torch.autograd.grad(parallel_cross_entropy(logits, target), logits)
        assert torch.allclose(slope.sum(1), torch.zeros(2), atol=2**-23) and not slope.requires_grad
        with pytest.raises(ArgumentError, match=r"^parallel_cross_entropy: torch.vmap .*accepted: leading"):
            torch.vmap(parallel_cross_entropy)(logits[None], target[None])
        nothing = parallel_cross_entropy(logits, torch.full((2,), -100))
        nothing.backward()
        assert nothing == 0 and logits.grad is not None and not logits.grad.any()
    finally:
        dist.destroy_process_group()
