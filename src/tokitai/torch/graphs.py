"""A training step as one CUDA graph, which is captured once and replayed to the bits of the step itself.

A replay costs the host one launch, however many kernels a step has. The memory of a step is the graph's own. Numbers of
Python are what they were when the step was captured, with one exception: the options of `optim.AdamW`, its learning
rate among them, and its number of steps are those of each replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..backends.cuda.device import open_device
from ..backends.cuda.graph import CapturedKernel
from ..errors import ArgumentError
from ..runtime.gpu_lists import CapturedLaunch, capture_expected, captured_launches
from .pending import wait_for_all

EAGER = 2  # calls before the capture: they compile kernels, make states, and settle what a launch needs


class Step(Protocol):
    """A step of an optimizer inside of a graph."""

    def scalars(self) -> list[tuple[CapturedLaunch, dict[str, Any]]]:
        """The host scalars of the next replay, for each of its launches. Raises ArgumentError."""

    def done(self) -> None:
        """A replay is in the stream."""


@dataclass
class Capture:
    """What a capture that is going on has recorded."""

    launches: list[CapturedLaunch]
    steps: list[Step] = field(default_factory=list)

    def taken(self) -> list[CapturedLaunch]:
        """The launches of lists so far."""
        return list(self.launches)


_going_on: list[Capture] = []


def current() -> Capture | None:
    """The capture of `graphed` that is going on."""
    return _going_on[-1] if _going_on else None


class Graphed:
    """What `graphed` returns."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step, self.calls = step, 0
        self.stream: torch.cuda.Stream | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Any] = []
        self.form: Any = None
        self.results: Any = None
        self.launches: list[tuple[CapturedLaunch, CapturedKernel]] = []
        self.steps: list[Step] = []

    def __call__(self, *args: Any, **words: Any) -> Any:
        """One step. Raises ArgumentError for arguments of another form than those of the first call."""
        given, form = pytree.tree_flatten((args, words))
        if self.stream is None:
            self._begin(given, form)
        assert self.stream is not None
        self._take(given, form)
        now = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(now)
        with torch.cuda.stream(self.stream):
            if self.calls < EAGER:
                self.calls += 1
                with capture_expected():
                    made = self._run()
            else:
                if self.graph is None:
                    self._capture()
                made = self._replay()
        now.wait_stream(self.stream)
        for x in pytree.tree_leaves(made):
            if isinstance(x, Tensor) and x.is_cuda:
                x.record_stream(now)
        return made

    def _begin(self, given: list[Any], form: Any) -> None:
        devices = {x.device for x in given if isinstance(x, Tensor)}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            found = ", ".join(sorted(map(str, devices))) or "no tensors"
            raise ArgumentError(f"graphed: {found}; accepted: tensors of one CUDA device")
        self.stream = torch.cuda.Stream(devices.pop())  # type: ignore[no-untyped-call]
        self.inputs = [x.detach().clone() if isinstance(x, Tensor) else x for x in given]
        self.form = form

    def _take(self, given: list[Any], form: Any) -> None:
        """Copy the tensors of a call to where the graph reads them."""
        if form != self.form:
            raise ArgumentError(f"graphed: arguments {form}; accepted, as in the first call: {self.form}")
        for x, kept in zip(given, self.inputs, strict=True):
            if isinstance(kept, Tensor):
                same = isinstance(x, Tensor) and (x.shape, x.dtype, x.device) == (kept.shape, kept.dtype, kept.device)
                if not same:
                    found = f"{tuple(x.shape)} of {x.dtype} on {x.device}" if isinstance(x, Tensor) else repr(x)
                    accepted = f"{tuple(kept.shape)} of {kept.dtype} on {kept.device}"
                    raise ArgumentError(f"graphed: a tensor of {found}; accepted, as in the first call: {accepted}")
                kept.copy_(x.detach(), non_blocking=True)
            elif type(x) is not type(kept) or x != kept:
                raise ArgumentError(f"graphed: {x!r}; accepted, as in the first call: {kept!r}")

    def _run(self) -> Any:
        args, words = pytree.tree_unflatten(self.inputs, self.form)
        return self.step(*args, **words)

    def _capture(self) -> None:
        wait_for_all()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with captured_launches() as launches:
            capture = Capture(launches)
            _going_on.append(capture)
            try:
                with torch.cuda.graph(graph, stream=self.stream):
                    made = self._run()
            finally:
                _going_on.remove(capture)
        graph.instantiate()
        self.results = pytree.tree_map_only(Tensor, lambda x: x.detach(), made)
        assert self.stream is not None
        device = open_device(self.stream.device_index)
        for step in capture.steps:
            for launch, _ in step.scalars():
                count = len(launch.ready.steps)
                nodes = CapturedKernel(device, graph.raw_cuda_graph(), launch.parameter, count)
                self.launches.append((launch, nodes))
        self.graph, self.steps = graph, capture.steps

    def _replay(self) -> Any:
        graph = self.graph
        assert graph is not None
        scalars = [given for step in self.steps for given in step.scalars()]
        for (launch, nodes), (_, params) in zip(self.launches, scalars, strict=True):
            nodes.set(graph.raw_cuda_graph_exec(), launch.with_scalars(params))
        graph.replay()
        for step in self.steps:
            step.done()
        return pytree.tree_map_only(Tensor, Tensor.clone, self.results)


def graphed(step: Callable[..., Any]) -> Graphed:
    """A training step as one CUDA graph: forward, backward, clipping and `optim.AdamW`, layers of experts included.

    The first two calls run ``step`` as it is, in a stream of their own; the third captures it, and from then on each
    call replays the graph: on the tensors that it is given, which are copied to where the graph reads them, and with
    the learning rate and the other options that the optimizer's groups have then. All calls have the bits of ``step``.
    Tensors that are returned are copies.

    Each call has tensors of the shapes, formats and device of the first, and equal other arguments. Numbers that
    ``step`` takes from elsewhere are those of the capture. What would wait for the GPU, or would be frozen unnoticed,
    is refused by name during the capture: scalars in tensors (the seed of a dropout), a capacity or padding of experts,
    masks of attention, ``error_if_nonfinite``. A replay waits for the one before where that decides the number of
    steps. Raises ArgumentError.
    """
    return Graphed(step)
