"""Which kernels of a captured graph get another parameter, by a driver that stands in."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import pytest

from tokitai.backends.cuda import graph as graphs
from tokitai.backends.cuda.graph import CapturedKernel, KernelNode
from tokitai.errors import DeviceError, DeviceOutOfMemoryError

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

OURS, OTHERS, SHORT = b"a parameter.", b"another one.", b"short"


class Driver:
    """A graph of a copy, and of kernels with these parameters."""

    def __init__(self, parameters: list[bytes]) -> None:
        self.held = [ctypes.create_string_buffer(p, len(p)) for p in parameters]
        self.sizes = {100 + i: len(p) for i, p in enumerate(parameters)}
        self.pointers = [(ctypes.c_void_p * 1)(ctypes.addressof(h)) for h in self.held]
        self.changed: dict[int, tuple[int, int, bytes]] = {}

    def run(self, name: str, *given: Any) -> None:
        if name == "cuGraphGetNodes":
            assert given[0] == 7
            ctypes.c_size_t.from_address(given[2]).value = len(self.held) + 1
            if given[1] is not None:
                for i in range(len(self.held) + 1):
                    ctypes.c_void_p.from_address(given[1] + 8 * i).value = 10 + i
        elif name == "cuGraphNodeGetType":
            ctypes.c_int.from_address(given[1]).value = int(given[0] == 10)  # the first copies memory
        elif name == "cuGraphKernelNodeGetParams":
            i = given[0] - 11
            node = KernelNode.from_address(given[1])
            node.function, node.grid, node.block = 100 + i, 3, 128
            node.parameters = ctypes.cast(self.pointers[i], ctypes.POINTER(ctypes.c_void_p))
        else:
            assert name == "cuGraphExecKernelNodeSetParams"
            node = KernelNode.from_address(given[2])
            self.changed[given[1]] = given[0], node.grid, ctypes.string_at(node.parameters[0] or 0, len(OURS))

    def call(self, name: str, function: Any, index: int, **about: Any) -> tuple[int, int]:
        assert name == "cuFuncGetParamInfo" and index == 0
        if self.sizes[int(function)] == 0:
            raise DeviceError("no parameter")
        return 0, self.sizes[int(function)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver([OTHERS, OURS, SHORT, b"", OURS])
    monkeypatch.setattr(graphs, "_run", made.run)
    monkeypatch.setattr(graphs, "call", made.call)
    return made


class Device:
    entered = staticmethod(nullcontext)


def test_kernels_are_found_by_their_parameter(driver: Driver) -> None:
    device: Any = Device()
    CapturedKernel(device, 7, OURS, 2).set(9, b"next number.")
    assert driver.changed == {12: (9, 3, b"next number."), 15: (9, 3, b"next number.")}
    assert [h.raw for h in driver.held][1] == OURS, "the graph itself stays"
    with pytest.raises(DeviceError, match=r"a captured graph with 2 launches of a list; accepted: 1"):
        CapturedKernel(device, 7, OURS, 1)
    with pytest.raises(DeviceError, match="with 0 launches"):
        CapturedKernel(device, 7, b"no parameter", 1)


def test_what_the_driver_returns_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_native", lambda name, count: lambda *given: 2)
    with pytest.raises(DeviceOutOfMemoryError, match="a captured graph: cuGraphGetNodes returned"):
        graphs._run("cuGraphGetNodes", 7, None, None)
