"""Build ahead what a model's first step would wait for, and say so on a terminal where it waits all the same."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..toolchain import progress
from ..toolchain.progress import Build


@dataclass(frozen=True)
class Warmed:
    """The kernels that were compiled, in order; and the seconds that the whole took. None were, if all were kept."""

    kernels: tuple[str, ...]
    seconds: float


def warm(
    model: Callable[..., Any], *inputs: Any, optimizer: torch.optim.Optimizer | None = None, **words: Any
) -> Warmed:
    """Call ``model(*inputs, **words)`` forwards and backwards, so that its kernels are compiled, and with an optimizer
    those of a step. Results that are single numbers are taken for losses; without one, all results are.

    Parameters, their gradients, buffers, the optimizer and torch's generators are left as they were. Inputs should be
    those of a training step in format, device and shape: kernels for a GPU are chosen by shape. Hooks of the model are
    called. Raises what the model raises.
    """
    begun, kernels = time.perf_counter(), []

    def watch(build: Build) -> None:
        if build.seconds is not None:
            kernels.append(build.name)

    with progress.watched(watch), _untouched(model):
        given = pytree.tree_map_only(Tensor, _apart, (inputs, words))
        with torch.enable_grad():
            made = pytree.tree_leaves(model(*given[0], **given[1]))
        sloped = [t for t in made if isinstance(t, Tensor) and t.requires_grad]
        losses = [t for t in sloped if t.ndim == 0] or sloped
        if losses:
            torch.autograd.backward(losses, [torch.ones_like(t) for t in losses])
        if optimizer is not None:
            _step_elsewhere(optimizer)
    return Warmed(tuple(kernels), time.perf_counter() - begun)


def _apart(x: Tensor) -> Tensor:
    """The same values in a graph of their own."""
    return x.detach().requires_grad_(x.requires_grad)


@contextlib.contextmanager
def _untouched(model: Any) -> Iterator[None]:
    """Gradients and buffers of a module, and what torch draws from, are afterwards what they were."""
    modules = [model] if isinstance(model, torch.nn.Module) else []
    parameters = [p for m in modules for p in m.parameters()]
    buffers = [b for m in modules for b in m.buffers()]
    gradients, values = [p.grad for p in parameters], [b.detach().clone() for b in buffers]
    devices = sorted({p.device.index or 0 for p in parameters if p.is_cuda})
    for p in parameters:
        p.grad = None
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        with torch.no_grad():
            for b, v in zip(buffers, values, strict=True):
                b.copy_(v)


def _step_elsewhere(optimizer: torch.optim.Optimizer) -> None:
    """A step of an optimizer like this one, of a weight of one element in place of each."""
    groups = []
    for group in optimizer.param_groups:
        small = [torch.nn.Parameter(p.detach().new_zeros(1)) for p in group["params"]]
        for p in small:
            p.grad = torch.zeros_like(p)
        groups.append({**group, "params": small})
    if groups:
        made: Any = type(optimizer)
        made(groups).step()


# ------------------------------------------------------------------ a terminal
class Terminal:
    """One line that is overwritten, on a terminal, while kernels are compiled."""

    def __init__(self) -> None:
        self.lock, self.count, self.shown = threading.Lock(), 0, 0

    def __call__(self, build: Build) -> None:
        stream = sys.stderr
        if stream is None or not stream.isatty():
            return
        with self.lock:
            self.count += build.seconds is not None
            line = f"tokitai: compiling {build.name} for {build.target} ({self.count} kernels so far)"
            text = line if build.seconds is None else ""
            stream.write(f"\r{text.ljust(self.shown)}{'' if text else chr(13)}")
            stream.flush()
            self.shown = len(text)


progress.watch(Terminal())
