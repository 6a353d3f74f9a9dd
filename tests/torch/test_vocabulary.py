"""Cross-entropy of classes that are split over ranks, by processes that meet through gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import functional as F
from tokitai.torch.vocabulary import parallel_cross_entropy

ROWS, CLASSES = 12, 100
PROGRAM = """
import sys, torch, torch.distributed as dist
from tests.torch.test_vocabulary import drawn
from tokitai.errors import ArgumentError
from tokitai.torch.ranks import stop
from tokitai.torch.vocabulary import parallel_cross_entropy
place, rank, dtype, *ends = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3]), *map(int, sys.argv[4:])
dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=len(ends))
logits, target = drawn(dtype)
begin = 0 if rank == 0 else ends[rank - 1]
made = {}
for reduction in ("mean", "sum", "none"):
    part = logits[:, begin : ends[rank]].clone().requires_grad_()
    loss = parallel_cross_entropy(part.reshape(3, 4, -1), target.reshape(3, 4), reduction=reduction)
    loss.backward(torch.linspace(0.5, 2, loss.numel()).reshape(loss.shape))
    made[reduction] = loss.detach(), part.grad
for wrong in (target.clone().fill_(100), target.clone().fill_(-1)):
    try:
        parallel_cross_entropy(part, wrong)
    except ArgumentError as error:
        made[str(int(wrong[0]))] = str(error)
torch.save(made, f"{place}/{rank}.pt")
stop()
"""


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(ROWS, CLASSES, generator=generator) * 4).to(dtype)
    target = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    target[3] = -100
    logits[5] = logits[5].round()
    return logits, target


def in_parts(place: Path, dtype: str, ends: list[int]) -> list[dict[str, Any]]:
    words = [str(place), *map(str, ends)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, words[0], str(r), dtype, *words[1:]]) for r in range(len(ends))
    ]
    assert [p.wait(120) for p in ranks] == [0] * len(ends)
    return [torch.load(place / f"{r}.pt") for r in range(len(ends))]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("float32", 32), ("bfloat16", 64), ("float16", 128)])
def test_ranks_have_the_bits_of_whole_rows(tmp_path: Path, dtype: str, width: int) -> None:
    ends = [*range(width, CLASSES, width), CLASSES]
    ranks = in_parts(tmp_path, dtype, ends)
    logits, target = drawn(getattr(torch, dtype))
    for reduction in ("mean", "sum", "none"):
        whole = logits.clone().requires_grad_()
        loss = F.cross_entropy(whole, target, reduction=reduction)
        loss.backward(torch.linspace(0.5, 2, loss.numel()).reshape(loss.shape))
        assert all(torch.equal(r[reduction][0].reshape(-1), loss.detach().reshape(-1)) for r in ranks), reduction
        assert torch.equal(torch.cat([r[reduction][1] for r in ranks], dim=1), whole.grad), reduction
    assert all(f"target 100; accepted: 0 to {CLASSES - 1}" in r["100"] and "target -1" in r["-1"] for r in ranks)


@pytest.mark.slow
def test_uneven_parts_have_the_bits_of_the_operators(tmp_path: Path) -> None:
    """Which `tests/ops/test_vocabulary.py` holds to their bounds, one part after another in one process."""
    ends = [7, 60, CLASSES]
    ranks = in_parts(tmp_path, "float32", ends)
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
        nothing = parallel_cross_entropy(logits, torch.full((2,), -100))
        nothing.backward()
        assert nothing == 0 and logits.grad is not None and not logits.grad.any()
    finally:
        dist.destroy_process_group()
