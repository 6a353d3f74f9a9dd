"""A GPU that is none: tensors of torch that say they lie on a GPU, and the simulated device that runs their kernels.

All that a call does is then done here, but for the driver: `SimGpu` keeps what it was asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tokitai.arrays import gpu as arrays
from tokitai.arrays.dlpack import on_gpu as lies_on_gpu
from tokitai.backends.sim.target import SimTarget
from tokitai.lang import Operator
from tokitai.runtime import call as calls
from tokitai.runtime import gpu_device, gpu_executor, gpu_lists, launch_cache

STREAM = 77  # the current one, whatever is asked


class OnGpu(torch.Tensor):
    """A tensor of host memory whose device says otherwise."""

    is_cuda = True
    place = 0

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="cuda", index=self.place)

    def get_device(self) -> int:
        return self.place


class OnAnother(OnGpu):
    place = 1


def on_gpu(x: Any, kind: type[torch.Tensor] = OnGpu) -> Any:
    """A NumPy array or a tensor as one of the fake GPU, in the same memory where that is possible."""
    return torch.as_tensor(x).as_subclass(kind)


class SimGpu:
    """The simulated device as a GPU."""

    def __init__(self) -> None:
        self.target = SimTarget()
        self.recording = False
        self.said: list[tuple[Any, ...]] = []

    def capturing(self, stream: int) -> bool:
        return self.recording

    def wait(self, stream: int) -> None:
        self.said.append(("wait", stream))

    def read(self, address: int, values: Any, stream: int) -> None:
        self.said.append(("read", stream))
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def write(self, address: int, values: Any, stream: int) -> None:
        self.said.append(("write", stream))
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def pinned(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    @contextmanager
    def workspace(self, nbytes: int, stream: int) -> Iterator[int]:
        memory = np.empty(nbytes + 16, np.uint8)
        self.said.append(("room", stream))
        yield (memory.ctypes.data + 15) // 16 * 16
        self.said.append(("freed", stream))


def installed(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    """The fake GPU in place of every GPU, with no call known yet."""
    made = SimGpu()
    for module in (gpu_device, gpu_executor, gpu_lists):
        monkeypatch.setattr(module, "gpu_device", lambda index: made)
    for module in (arrays, gpu_lists):
        monkeypatch.setattr(module, "stream_of", lambda x: STREAM)
    monkeypatch.setattr(gpu_executor, "torch_streams", lambda: lambda index: STREAM)
    launch_cache.LAUNCHES.clear()
    return made


def checked_on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of operators whose calls on tensors of the fake GPU are checked in full from now on."""
    names: list[str] = []
    real = calls.call_checked

    def counted(operator: Operator, args: tuple[Any, ...], kwargs: Any, *rest: Any) -> Any:
        if any(lies_on_gpu(x) for x in (*args, *kwargs.values())):
            names.append(operator.name)
        return real(operator, args, kwargs, *rest)

    monkeypatch.setattr(calls, "call_checked", counted)
    return names
