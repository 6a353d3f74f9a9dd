"""The kernels of a call on a GPU, to be launched again with other addresses and host scalars."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays.results import torch_pattern
from .gpu_checks import Checks
from .gpu_device import Launcher, launchers
from .gpu_kernel import GpuKernel, Ready
from .launch_cache import CallSignature
from .problem import Problem

_word = struct.Struct("<q")


class Frame:
    """The parameter of a call's kernels, and their launches that read it. One call at a time has a frame."""

    __slots__ = ("last", "launches", "parameter", "scalars", "scalars_size")

    def __init__(self, ready: Ready, scalars: bytes, addresses_size: int) -> None:
        packed = ready.head + bytes(addresses_size) + ready.middle + scalars + bytes(8)
        self.last, self.scalars_size = len(packed) - 8, len(scalars)
        self.parameter = (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        self.scalars = ctypes.addressof(self.parameter) + self.last - self.scalars_size
        self.launches: tuple[Launcher, ...] = launchers(ready, self.parameter)

    def launch(self, scalars: bytes, workspace: int, stream: int) -> None:
        """Put all kernels into a stream, with these host scalars, as many as before, and this workspace."""
        ctypes.memmove(self.scalars, scalars, self.scalars_size)
        _word.pack_into(self.parameter, self.last, workspace)
        for launch in self.launches:
            launch(stream)


class LaunchScalars(NamedTuple):
    """Host scalars as the kernels' parameter holds them and by name, and the free frames that hold them."""

    packed: bytes
    params: Mapping[str, float]
    free: list[Frame]


@dataclass(slots=True)
class GpuLaunch:
    """`Launch` of kernels on a GPU, for torch tensors, in the current stream of their device."""

    kernel: GpuKernel
    problem: Problem
    ready: Ready
    device: int
    value_checks: Checks
    workspace: Any  # the pattern of one for `empty_like`, or None
    addresses: struct.Struct
    first: int  # where in the parameter the addresses begin,
    last: int  # and where that of the workspace does
    empty_like: Callable[[Any], Any]
    stream: Callable[[int], int]  # the current one of a device
    checks: bool
    on_device: bool = True

    def scalars_of(self, params: Mapping[str, float]) -> LaunchScalars:
        """The host scalars of a launch, which no frame holds yet."""
        table = self.kernel.scalar_table(self.problem.rows, self.problem.cols, params)
        return LaunchScalars(self.kernel.scalar_bytes(table), params, [])

    def check(self, signature: CallSignature, addresses: list[int], scalars: LaunchScalars) -> None:
        """Check indices, offsets of groups and NaN, which waits for the stream. Raises ArgumentError."""
        named = {t.name: address for t, address in zip(self.kernel.graph.inputs, addresses, strict=True)}
        self.value_checks(named, scalars.params, self.stream(self.device))

    def __call__(self, scalars: LaunchScalars, addresses: list[int], threads: int | None) -> None:
        """Put one call into the current stream, asynchronously."""
        free = scalars.free
        try:
            frame = free.pop()
        except IndexError:  # the first call, or others run the same call now
            frame = Frame(self.ready, scalars.packed, self.addresses.size)
        parameter = frame.parameter
        self.addresses.pack_into(parameter, self.first, *addresses)
        if self.ready.maps is not None:
            ctypes.memmove(parameter, self.ready.maps.at(addresses), self.first)
        if self.workspace is not None:
            workspace = self.empty_like(self.workspace)
            _word.pack_into(parameter, self.last, workspace.data_ptr())
        stream = self.stream(self.device)
        for launch in frame.launches:
            launch(stream)
        free.append(frame)


def gpu_launch_of(
    kernel: GpuKernel, problem: Problem, ready: Ready, device: int, checks: Checks, example: Any, scalars_size: int,
    stream: Callable[[int], int],
) -> GpuLaunch:  # fmt: skip
    """The launch of a call on tensors like those of `example`."""
    torch = sys.modules["torch"]
    workspace = torch_pattern(example, (ready.workspace,), np.dtype(np.bool_)) if ready.workspace else None
    addresses = struct.Struct(f"<{len(kernel.graph.inputs) + len(kernel.graph.outputs)}q")
    first = len(ready.head)
    last = first + addresses.size + len(ready.middle) + scalars_size
    return GpuLaunch(
        kernel, problem, ready, device, checks, workspace, addresses, first, last, torch.empty_like, stream,
        bool(checks),
    )  # fmt: skip


def torch_workspace(example: Any, nbytes: int) -> Callable[[], Any]:
    """What gives so many bytes of new workspace on the device of `example`."""
    pattern = torch_pattern(example, (nbytes,), np.dtype(np.bool_))
    return functools.partial(sys.modules["torch"].empty_like, pattern)
