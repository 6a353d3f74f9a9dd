"""Times of calls on a GPU, by a CUDA graph of them that is replayed: and whether the graph holds their work at all.

A call may launch on another stream than the one that is captured, or compute on the host. Its graph is then too short,
or empty, and replays in no time. So every call says what it writes: it returns those tensors. They are filled with NaN
before a replay, and must be written by it; and a replay must not take less, by the events of its stream, than by the
clock of the host until the whole device is idle, nor much less than the same calls without a graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

HOST_SECONDS = 1e-3  # what the host may take for a few launches, beside what the device takes
APART = 3.0  # times as long by one clock as by another: work that one of them does not see


class EscapedWork(RuntimeError):
    """Work of a timed call that the timing does not see."""


@dataclass(frozen=True)
class InPlace:
    """What a call returns that changes its own inputs: those tensors."""

    tensors: Sequence[Any]


class Spans:
    """A function whose calls are timed on the current stream of PyTorch's, as a part of what is timed in all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.events: list[tuple[Any, Any]] = []

    def __call__(self, *arguments: Any) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        made = self.function(*arguments)
        end.record()
        self.events.append((begin, end))
        return made

    def seconds(self) -> float:
        """Of all calls, which the device has done."""
        return sum(float(begin.elapsed_time(end)) for begin, end in self.events) / 1e3


class Device(Protocol):
    """What runs and times."""

    def now(self) -> float:
        """Seconds by the host's clock."""

    def synchronize(self) -> None:
        """Wait until all of the device is idle."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What launches again what `work` launches on the captured stream."""

    def elapsed(self, replay: Callable[[], None]) -> float:
        """Seconds of a replay, by events on its stream."""


class Cuda:
    """The current GPU of PyTorch's."""

    def now(self) -> float:
        """Seconds by the host's clock."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Wait until all of the device is idle."""
        torch.cuda.synchronize()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph, after a run on another stream, as PyTorch asks for."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def elapsed(self, replay: Callable[[], None]) -> float:
        """Seconds between two events."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def seconds(calls: Sequence[Callable[[], object]], repeats: int = 11, device: Device | None = None) -> float:
    """The median time of one call: a graph of calls that take turns, replayed. Raises EscapedWork."""
    device = device or Cuda()
    inner = max(len(calls), 6)
    for call in calls:
        call()
    device.synchronize()
    begin = device.now()
    for i in range(inner):
        calls[i % len(calls)]()
    device.synchronize()
    eager = device.now() - begin
    returned: list[object] = []

    def work() -> None:
        returned.clear()
        returned.extend(calls[i % len(calls)]() for i in range(inner))

    replay = device.capture(work)
    _check_results(device, replay, returned)
    times, walls = [], []
    for _ in range(repeats):
        begin = device.now()
        times.append(device.elapsed(replay))
        device.synchronize()
        walls.append(device.now() - begin)
    timed = statistics.median(times)
    _check_clocks(inner, timed, statistics.median(walls), 1, "until the device is idle")
    _check_clocks(inner, timed, eager, inner, "without a graph")
    return timed / inner


def between_events(call: Callable[[], object], count: int = 1, device: Device | None = None) -> float:
    """Seconds of one call without a graph, of so many in a row. Raises EscapedWork."""
    device = device or Cuda()

    def several() -> None:
        for _ in range(count):
            call()

    device.synchronize()
    begin = device.now()
    timed = device.elapsed(several)
    device.synchronize()
    _check_clocks(count, timed, device.now() - begin, count, "until the device is idle")
    return timed / count


def _check_clocks(calls: int, timed: float, took: float, launches: int, what: str) -> None:
    if took > APART * timed + HOST_SECONDS * launches:
        raise EscapedWork(
            f"{calls} calls take {timed * 1e3:.3f} ms by the events of their stream, {took * 1e3:.3f} ms {what}: "
            "some of their work is not on that stream"
        )


def tensors_in(returned: object) -> Iterator[Any]:
    """The tensors that a call returned."""
    if isinstance(returned, torch.Tensor):
        yield returned.detach()
    elif isinstance(returned, (tuple, list)):
        for one in returned:
            yield from tensors_in(one)


def _check_results(device: Device, replay: Callable[[], None], returned: Sequence[object]) -> None:
    """A replay writes what its calls returned. Raises EscapedWork."""
    changed = list(
        {t.data_ptr(): t for r in returned if isinstance(r, InPlace) for t in r.tensors if t.numel()}.values()
    )
    made = {t.data_ptr(): t for r in returned for t in tensors_in(r) if t.numel()}
    if not made and not changed:
        raise EscapedWork("the calls return no tensors; accepted: what each writes, so that it can be checked")
    replay()
    device.synchronize()
    before = [t.detach().reshape(-1)[:4096].clone() for t in changed[:8]]
    known = {key: bool(_unwritten(t)) for key, t in made.items()}  # perhaps a result holds such values
    for t in made.values():
        t.fill_(_poison(t))
    replay()
    device.synchronize()
    left = [key for key, t in made.items() if _unwritten(t) and not known[key]]
    same = sum(torch.equal(a, t.detach().reshape(-1)[:4096]) for a, t in zip(before, changed, strict=False))
    if left or (before and same == len(before)):
        raise EscapedWork(f"a replay does not write {len(left) or same} of the tensors that its calls return")


def _poison(t: Any) -> Any:
    return float("nan") if t.is_floating_point() else 0 if t.dtype == torch.bool else torch.iinfo(t.dtype).min


def _unwritten(t: Any) -> bool:
    """Whether some element holds what it was filled with."""
    if t.dtype == torch.bool:
        return False
    return bool(t.isnan().any() if t.is_floating_point() else (t == torch.iinfo(t.dtype).min).any())
