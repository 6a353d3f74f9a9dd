"""Kernels of captured CUDA graphs whose parameter is another one at each replay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

from ...errors import DeviceError
from .device import Device
from .driver import bindings, call, fail

CUDA_12 = 12000  # the version of the driver's functions, as `cuGetProcAddress` takes it
_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL


class KernelNode(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2` of cuda.h."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("grid", "grid_y", "grid_z", "block", "block_y", "block_z", "shared")),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )  # fmt: skip


@lru_cache
def _native(name: str, count: int) -> Callable[..., int]:
    """A function of the driver that takes so many pointers."""
    found = call("cuGetProcAddress", name.encode(), CUDA_12, 0, about=name)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)
    return kind(int(found[0] if isinstance(found, tuple) else found))


def _run(name: str, *arguments: object) -> None:
    status = _native(name, len(arguments))(*arguments)
    if status != 0:
        fail(status, name, "a captured graph")


class CapturedKernel:
    """The nodes of a graph that launch kernels with this parameter, ``count`` of them.

    Raises DeviceError where the graph has another number.
    """

    def __init__(self, device: Device, graph: int, parameter: bytes, count: int) -> None:
        self.device = device
        self.nodes: list[tuple[int, KernelNode]] = []
        with device.entered():
            for node in _nodes(graph):
                kind = ctypes.c_int()
                _run("cuGraphNodeGetType", node, ctypes.addressof(kind))
                if kind.value != _KERNEL:
                    continue
                found = KernelNode()
                _run("cuGraphKernelNodeGetParams", node, ctypes.addressof(found))
                same = _size_of_parameter(found) == len(parameter) and found.parameters
                if same and ctypes.string_at(found.parameters[0] or 0, len(parameter)) == parameter:
                    self.nodes.append((node, found))
        if len(self.nodes) != count:
            raise DeviceError(f"a captured graph with {len(self.nodes)} launches of a list; accepted: {count}")

    def set(self, executable: int, parameter: bytes) -> None:
        """What the kernels read at later replays of an executable graph made of the graph."""
        held = ctypes.create_string_buffer(parameter, len(parameter))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(held))
        with self.device.entered():
            for node, found in self.nodes:
                changed = KernelNode.from_buffer_copy(found)
                changed.parameters = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
                _run("cuGraphExecKernelNodeSetParams", executable, node, ctypes.addressof(changed))


def _size_of_parameter(node: KernelNode) -> int:
    """Bytes of the first parameter of a node's kernel; -1 where it has none."""
    try:
        if node.function:
            found = call("cuFuncGetParamInfo", bindings().CUfunction(node.function), 0)
        else:
            found = call("cuKernelGetParamInfo", bindings().CUkernel(node.kernel), 0)
    except DeviceError:
        return -1
    return int(found[1])


def _nodes(graph: int) -> list[int]:
    count = ctypes.c_size_t()
    _run("cuGraphGetNodes", graph, None, ctypes.addressof(count))
    nodes = (ctypes.c_void_p * count.value)()
    _run("cuGraphGetNodes", graph, ctypes.addressof(nodes), ctypes.addressof(count))
    return [node for node in nodes if node]
