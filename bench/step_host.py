"""``python -m bench.step_host [--against CHECKOUT] [--profile] [--json]``: host time of a training step whose launches
do nothing.

A mixture of experts as `bench.training` trains it, with small sizes: tensors of host memory that say they lie on a GPU,
kernels that are never compiled, launches that return at once. What is left is what the host does between launches. It
is the time of one thread on a processor. What waits for the stream is counted. Results are whatever the memory holds.

With ``--against`` another checkout is timed too, in turns with this one, each turn a process of its own, as in
`bench.host`; the ratio is that of the least times.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.mixture.model import Mixture, Shape
from tokitai.arrays import device_array
from tokitai.arrays import gpu as arrays
from tokitai.arrays.libraries import place_of_torch
from tokitai.backends.sim.target import SimTarget
from tokitai.runtime import gpu_device, gpu_executor, gpu_launch, gpu_lists
from tokitai.torch import functional
from tokitai.torch.optim import AdamW, clip_grad_norm_

SMALL = Shape(vocabulary=64, features=64, layers=12, heads=4, key_heads=2, experts=4, hidden=32)
BATCH, LENGTH, STEPS, TURNS = 2, 8, 10, 5
HERE = Path(__file__).resolve().parents[1]


class Standing:
    """A device that does nothing, and counts how often it is waited for."""

    def __init__(self) -> None:
        self.target, self.waits = SimTarget(), 0

    def capturing(self, stream: int) -> bool:
        return False

    def wait(self, stream: int) -> None:
        self.waits += 1

    def read(self, address: int, values: Any, stream: int) -> None:
        self.waits += 1
        values.fill(0)

    def write(self, address: int, values: Any, stream: int) -> None:
        """Nothing is written."""

    def pinned(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    @contextmanager
    def workspace(self, nbytes: int, stream: int) -> Iterator[int]:
        yield 1 << 20


class _Unbuilt:
    """Kernels that are never compiled."""

    def spills(self, name: str) -> int:
        return 0

    def launch(self, step: Any, call: bytes, order: int, stream: int) -> None:
        """Nothing runs."""


def _view(name: str, x: Tensor) -> device_array.DeviceView:
    address, fmt = place_of_torch(name, x)
    return device_array.DeviceView(address, tuple(x.shape), x.stride(), fmt, 0, False, x)


def installed() -> Standing:
    """The device that stands in for every GPU in this process, and tensors of torch that say they lie there."""
    device: Any = Standing()
    device.target.build = lambda text, stem, structure: (_Unbuilt(), None)
    for module in (gpu_device, gpu_executor, gpu_lists):
        vars(module)["gpu_device"] = lambda index: device
    vars(device_array)["_of_torch"] = _view
    for module in (arrays, gpu_lists):
        vars(module)["stream_of"] = lambda x: 1
    vars(gpu_executor)["torch_streams"] = lambda: lambda index: 1
    vars(gpu_launch)["launchers"] = lambda ready, call: tuple((lambda stream: None) for _ in ready.steps)
    every: Any = Tensor
    every.is_cuda, every.is_cpu = property(lambda x: True), property(lambda x: False)
    every.get_device = lambda x: 0
    real, waiting = torch.Tensor.item, torch.Tensor.__bool__

    def item(x: Tensor) -> Any:
        device.waits += 1
        return real(x)

    def truth(x: Tensor) -> bool:
        device.waits += 1
        return waiting(x)

    every.item, every.__bool__ = item, truth
    return device  # type: ignore[no-any-return]


def rows() -> dict[str, Callable[[], object]]:
    """What is timed: calls and a whole step, forward and backward."""
    torch.set_num_threads(1)
    model = Mixture(SMALL, torch.bfloat16, "cpu")
    weights = list(model.parameters())
    optimizer = AdamW(weights, lr=1e-3)
    tokens = torch.zeros(BATCH, LENGTH + 1, dtype=torch.int64)
    x = torch.zeros(BATCH, LENGTH, 12, 8, dtype=torch.bfloat16, requires_grad=True)
    position, frequency = torch.zeros(1, LENGTH, 1, dtype=torch.int32), torch.zeros(4)
    logits = torch.zeros(64, 16, requires_grad=True)
    norm = model.norm

    def gradients(call: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            made = call()
            several = made if isinstance(made, tuple) else (made,)
            torch.autograd.backward(several, [torch.empty_like(m) for m in several])

        return both

    def step() -> None:
        total, _ = model.loss(tokens)
        total.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def last() -> None:
        for w in weights:
            w.grad = torch.empty_like(w)
        clip_grad_norm_(weights, 1.0)
        optimizer.step()

    stream = torch.zeros(BATCH, LENGTH, SMALL.features, dtype=torch.bfloat16, requires_grad=True)
    return {
        "rotary of halves": gradients(lambda: functional.rotary(x[..., :6, :4], x[..., :6, 4:], position, frequency)),
        "RMS norm": gradients(lambda: norm(stream)),
        "a router's loss": gradients(lambda: functional.router_z_loss(logits, reduction="mean")),
        f"clipping and AdamW, {len(weights)} weights": last,
        "a whole step": step,
    }


def least(call: Callable[[], object]) -> float:
    """Milliseconds of this thread that a call takes."""
    for _ in range(3):
        call()
    best = float("inf")
    for _ in range(STEPS):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best * 1e3


def turn(checkout: Path) -> dict[str, dict[str, float]]:
    """One process that times a checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/src{os.pathsep}{checkout}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Time this checkout, or this one and another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, timed in turns")
    asked = parser.parse_args()
    if asked.against is not None:
        turns = [(turn(asked.against.resolve()), turn(HERE)) for _ in range(TURNS)]
        for row in turns[0][1]:
            there, here = (min(t[k][row]["milliseconds"] for t in turns) for k in (0, 1))
            waits = "{} waits, {} there".format(*(turns[0][k][row]["waits"] for k in (1, 0)))
            print(f"{row:36} {here:8.3f} ms, {there:8.3f} ms there: {here / there:.3f}; {waits}")
        return
    device, found = installed(), {}
    for row, call in rows().items():
        milliseconds = least(call)
        before = device.waits
        call()
        found[row] = dict(milliseconds=milliseconds, waits=device.waits - before)
        if asked.profile and row == "a whole step":
            profile = cProfile.Profile()
            for _ in range(STEPS):
                profile.runcall(call)
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    if asked.json:
        print(json.dumps(found))
    for row, value in ({} if asked.json else found).items():
        print(f"{row:36} {value['milliseconds']:8.3f} ms, {value['waits']} waits")


if __name__ == "__main__":
    main()
