"""Entries that own a device: kernels for a GPU, or for the simulated one, built and run in the worker process."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from ..backends import backend_of
from ..backends.backend import Array
from ..lang import Operator, Sizes
from ..runtime.compile import kernel_on
from ..runtime.kernel import KernelBase, Scalars
from .graphs import restored

_kernels: dict[tuple[object, ...], KernelBase] = {}


class Buffer:
    """A buffer of the host's in its guard zones, in shared memory."""

    def __init__(self, raw: Array, first: int, shape: tuple[int, ...], strides: list[int], dtype: Any) -> None:
        self.raw, self.first = raw, first
        self.array: Array = np.ndarray(shape, dtype, raw.data, first, tuple(strides))

    def start(self) -> int:
        """Bytes from the beginning of the memory to the first element."""
        return self.first


def describe(arguments: dict[str, Any], tensors: list[memoryview]) -> dict[str, Any] | None:
    """The device, as certificates show it."""
    device = arguments["device"]
    return backend_of(device).describe([device], arguments["compiler"])


def launch(arguments: dict[str, Any], tensors: list[memoryview]) -> list[list[dict[str, Any]]]:
    """Run a kernel on buffers in guard zones; returns the identities of the binaries that it has used so far, and what
    their machine code holds.

    Tensors: the memory of each buffer, the scalars, the graph (pickled by the host, which is trusted), and outputs,
    which are the same buffers again. ``at``, ``sizes``, ``strides``: for each tensor of the kernel the number of a
    buffer and a byte in it, its shape, and its strides in bytes.
    """
    *memory, table, graph = (np.frombuffer(t, np.uint8) for t in tensors[: arguments["buffers"] + 2])
    kernel = _kernel(arguments, graph)
    where = iter(zip(arguments["at"], arguments["extents"], arguments["strides"], strict=True))
    seen: dict[tuple[int, int], Buffer] = {}  # a result may take an input's place, or be one for a whole list

    def buffer(fmt: str) -> Buffer:
        (i, first), extent, strides = next(where)
        if (i, first) not in seen:
            seen[i, first] = Buffer(memory[i], first, tuple(extent), strides, kernel.element(fmt))
        return seen[i, first]

    inputs, results = [], []
    ragged = kernel.graph.ragged
    shapes = [(s[0], s[1]) if len(s) == 2 else Sizes(s[0], s[1], s[2], s[3], ragged) for s in arguments["shapes"]]
    for _ in shapes:
        inputs.append({t.name: buffer(str(t.format)) for t in kernel.graph.inputs})
        results.append({o.name: buffer(o.format) for o in kernel.graph.outputs})
    scalars = Scalars(table.view(np.uint64 if kernel.structure else np.float32), tuple(arguments["whole"]))
    workspace = None
    if arguments["workspace"] is not None:
        i, first = arguments["workspace"]
        word = kernel.element("f32")
        workspace = Buffer(memory[i], first, (arguments["room"],), [word.itemsize], word)
    kernel.launch_buffers(inputs, results, shapes, scalars, arguments["threads"], workspace)
    return [[asdict(found) for found in several] for several in (kernel.identities(), kernel.machine_code())]


def _kernel(arguments: dict[str, Any], graph: Array) -> KernelBase:
    key = (arguments["graph"], arguments["device"], arguments["structure"], arguments["compiler"])
    if key not in _kernels:
        made = restored(pickle.loads(graph.tobytes()))
        # What a kernel knows of its operator is the graph.
        none = cast(Operator, None)
        _kernels[key] = kernel_on(arguments["device"], none, made, arguments["structure"], arguments["compiler"])
    return _kernels[key]
