"""Work that a timed graph does not hold is noticed, on a device of the test's own with known streams and clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import gpu_timing  # noqa: E402
from bench.gpu_timing import EscapedWork, InPlace, seconds  # noqa: E402


class Device:
    """Runs work at once, but what is launched on its main stream while that is captured: that is kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[Callable[[], object], float]] | None = None
        self.clock = self.busy = 0.0  # what other streams still have to do

    def now(self) -> float:
        return self.clock

    def launch(self, work: Callable[[], object], cost: float = 1e-4, stream: str = "main") -> None:
        if stream == "main" and self.kept is not None:
            self.kept.append((work, cost))
            return
        work()
        if stream == "main":
            self.clock += cost
        else:
            self.busy += cost

    def synchronize(self) -> None:
        self.clock += self.busy
        self.busy = 0.0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.kept = kept = []
        work()
        self.kept = None

        def replay() -> None:
            for run, cost in kept:
                run()
                self.clock += cost

        return replay

    def elapsed(self, replay: Callable[[], None]) -> float:
        begin = self.clock
        replay()
        return self.clock - begin


@pytest.fixture
def device() -> Device:
    return Device()


def filling(device: Device, value: float = 3.0, **how: Any) -> Callable[[], Any]:
    out = torch.zeros(1000)

    def call() -> Any:
        device.launch(lambda: out.fill_(value), **how)
        return out

    return call


def test_the_time_of_a_call(device: Device) -> None:
    assert seconds([filling(device, cost=2e-3), filling(device, cost=4e-3)], 3, device) == pytest.approx(3e-3)


def test_a_graph_that_holds_nothing(device: Device) -> None:
    """All of the work is on another stream: 0 ms by the stream's events."""
    with pytest.raises(EscapedWork, match="a replay does not write 1 of the tensors"):
        seconds([filling(device, cost=21e-3, stream="side")], 3, device)


def test_work_on_the_host(device: Device) -> None:
    def call() -> Any:
        device.clock += 1e-3
        return torch.ones(10)

    with pytest.raises(EscapedWork, match="a replay does not write"):
        seconds([call], 3, device)


def test_most_of_the_work_is_elsewhere(device: Device) -> None:
    """The results are written on the stream, what they took is not."""
    fill = filling(device, cost=1e-5)

    def call() -> Any:
        device.launch(lambda: None, cost=21e-3, stream="side")
        return fill()

    with pytest.raises(EscapedWork, match=r"by the events of their stream, \d+\.\d+ ms without a graph"):
        seconds([call], 3, device)


def test_a_replay_that_goes_on_elsewhere(device: Device) -> None:
    out = torch.zeros(10)

    def call() -> Any:
        device.launch(lambda: (out.fill_(1), device.launch(lambda: None, 60e-3, "side")), 1e-3)
        return out

    with pytest.raises(EscapedWork, match=r"until the device is idle|without a graph"):
        seconds([call], 3, device)


def test_a_part_of_the_results(device: Device) -> None:
    here, there = filling(device), filling(device, stream="side")
    with pytest.raises(EscapedWork, match="does not write 1 of the tensors"):
        seconds([lambda: (here(), [there()])], 3, device)


@pytest.mark.parametrize("call", [lambda: None, lambda: 3, lambda: torch.empty(0)])
def test_a_call_that_does_not_say_what_it_writes(call: Callable[[], Any], device: Device) -> None:
    with pytest.raises(EscapedWork, match="the calls return no tensors"):
        seconds([call], 3, device)


def test_calls_in_place(device: Device) -> None:
    x = torch.zeros(10)

    def step(stream: str) -> Callable[[], Any]:
        def call() -> Any:
            device.launch(lambda: x.add_(1), 1e-3, stream)
            return InPlace([x])

        return call

    assert seconds([step("main")], 3, device) == pytest.approx(1e-3)
    with pytest.raises(EscapedWork, match="does not write 1"):
        seconds([step("side")], 3, device)


def test_calls_between_events(device: Device) -> None:
    assert gpu_timing.between_events(filling(device, cost=2e-3), 5, device) == pytest.approx(2e-3)
    with pytest.raises(EscapedWork, match=r"5 calls take 0\.000 ms by the events of their stream, 105\.000 ms until"):
        gpu_timing.between_events(filling(device, cost=21e-3, stream="side"), 5, device)


def test_results_that_hold_nan_and_numbers_of_other_kinds(device: Device) -> None:
    assert seconds([filling(device, float("nan"))], 3, device) > 0
    ids, mask = torch.zeros(5, dtype=torch.int32), torch.zeros(5, dtype=torch.bool)

    def call(stream: str) -> Callable[[], Any]:
        def one() -> Any:
            device.launch(lambda: (ids.fill_(2), mask.fill_(True)), stream=stream)
            return ids, mask

        return one

    assert seconds([call("main")], 3, device) > 0
    with pytest.raises(EscapedWork):
        seconds([call("side")], 3, device)


def test_all_scripts_time_by_it() -> None:
    """No other script has a graph, or events, of its own."""
    own = {
        path.name
        for path in Path(gpu_timing.__file__).parent.glob("*.py")
        if re.search("CUDAGraph|elapsed_time", path.read_text()) and path.name != "gpu_timing.py"
    }
    assert own == set()
