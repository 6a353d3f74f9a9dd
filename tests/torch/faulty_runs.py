"""Recorded runs of a very small mixture, in which one bit is flipped on the way."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from examples.mixture import training
from examples.mixture.training import Training, train
from tests.torch.small_runs import LENGTH, TINY
from tokitai.torch import nn
from tokitai.torch.optim import AdamW
from tokitai.torch.ranks import exchange
from tokitai.torch.replay import Difference, Outcome, Record, replay, unequal_replicas

RUN = Training(steps=6, batch=4, length=LENGTH, block=LENGTH, dtype="f32", shape=TINY, lr=1e-2)
STEP, BLOCK, PLACE, BIT = 4, 2, 5, 11


def text_in(folder: Path) -> Path:
    file = folder / "text"
    file.write_bytes(bytes(i * i % 32 for i in range(500)))
    return file


def flip(x: Tensor, place: int = PLACE) -> None:
    x.detach().view(-1).view(torch.int32 if x.element_size() == 4 else torch.int16)[place] ^= 1 << BIT


@contextlib.contextmanager
def planted(fault: str | None, rank: int) -> Iterator[None]:
    """One bit that flips in step 4: of what a layer gives in block 2, of that block's gradient of a weight, of a moment
    behind the update, or of what rank 1 received."""
    calls = dict(norms=0, steps=0, sent=0, models=[])

    def norm(module: Any, _: Any, out: Any) -> None:
        if isinstance(module, nn.RMSNorm):
            calls["norms"] += 1
            if calls["norms"] == ((STEP - 1) * 4 + BLOCK) * 3 + 1:  # the first of three in block 2
                flip(out if isinstance(out, Tensor) else out[0])

    update = AdamW.step

    def step(self: AdamW, *args: Any, **options: Any) -> Any:
        made = update(self, *args, **options)
        calls["steps"] += 1
        if calls["steps"] == STEP:
            flip(self.state[self.param_groups[0]["params"][0]]["exp_avg"])
        return made

    exchanged = dist.all_to_all_single

    def receive(output: Tensor, *args: Any, **options: Any) -> Any:
        made = exchanged(output, *args, **options)
        calls["sent"] += 1
        if rank == 1 and calls["sent"] == STEP:
            flip(output)
        return made

    class Kept(training.Mixture):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            passes = []

            def behind(p: Tensor) -> None:
                passes.append(1)
                if len(passes) == (STEP - 1) * 4 + BLOCK + 1:
                    assert p.grad is not None
                    flip(p.grad)

            self.norm.weight.register_post_accumulate_grad_hook(behind)

    with contextlib.ExitStack() as stack:
        if fault == "activation":
            stack.callback(register_module_forward_hook(norm).remove)
        elif fault == "moment":
            stack.enter_context(mock.patch.object(AdamW, "step", step))
        elif fault == "buffer":
            stack.enter_context(mock.patch.object(exchange.dist, "all_to_all_single", receive))
        elif fault == "gradient":
            stack.enter_context(mock.patch.object(training, "Mixture", Kept))
        yield


def recorded(
    group: Any, folder: Path, text: Path, fault: str | None = None, parallel: str = "ddp", run: Training = RUN,
    **options: Any,
) -> str:  # fmt: skip
    """Record a run; the digest of its weights."""
    config = {"run": dataclasses.asdict(run) | {"steps": 1}, "text": str(text), "parallel": parallel}
    options = dict(layers=1, every=3, device=run.device) | options
    watched = Record(folder, "examples.mixture.training:replayed", config, free=("parallel",), **options)
    with planted(fault, 0 if group is None else dist.get_rank(group)):
        return train(text.read_bytes(), run, parallel=parallel, watched=watched, group=group).digest


def again(_: Any, folder: Path, first: int = 1, last: int | None = None) -> Outcome:
    return replay(folder, first=first, last=last)


def found(folder: Path, **options: Any) -> Difference:
    made = replay(folder, **options).difference
    assert made is not None
    return made


def compared(group: Any, wrong: tuple[int, ...], device: str = "cpu") -> list[str]:
    """What is said of replicas of which some ranks have a flipped bit."""
    tensors = {"a": torch.ones(3, device=device), "b": torch.ones(50, 100, dtype=torch.bfloat16, device=device)}
    if dist.get_rank(group) in wrong:
        flip(tensors["b"], 4203 + dist.get_rank(group))
    return unequal_replicas(tensors, group)
