"""Run somebody else's kernel on tensors: in a worker process, which it may take down, or as a function of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import WorkerCrashedError
from ..formats import FORMATS
from ..lang import Graph, Sizes, TensorSpec
from ..verification.cases import size_of
from ..worker import Limits, Pool
from . import candidate
from .candidate import Array, Tensor

ENTRY = "tokitai.judging.candidate:run"


@dataclass
class Outcome:
    """What one call did: results by name, inputs as they are after it; or what is wrong, and nothing else."""

    results: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    wrong: str | None = None


class Runner(Protocol):
    """Something that calls a kernel. ``device``: ``numpy``, or the device of PyTorch's tensors."""

    device: str

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> str | None:  # fmt: skip
        """Call it, so that ``memory`` holds what it made of it. Returns what is wrong."""
        ...


class Here:
    """A function of this process."""

    def __init__(self, function: candidate.Function, device: str) -> None:
        self.function, self.device = function, device
        self.path = Path(getattr(getattr(function, "__code__", None), "co_filename", "kernel"))

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> str | None:  # fmt: skip
        """Call it."""
        return candidate.call(self.function, self.path, inputs, results, memory, {**arguments, "device": self.device})


class Isolated:
    """A function of a file, called in worker processes of a pool.

    A process that it takes down is told of as a fault of its own. Raises WorkerTimeoutError where it does not end
    within ``seconds``, and UsageError where the file cannot be loaded.
    """

    def __init__(self, file: Path, name: str, device: str, seconds: float) -> None:
        self.file, self.name, self.device, self.seconds = file.resolve(), name, device, seconds
        self.pool = self._new()

    def _new(self) -> Pool:
        # It may compile, write caches and start processes of its own: a compiler's wrapper does.
        return Pool(1, deadline=self.seconds, limits=Limits(sandbox=False))

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> str | None:  # fmt: skip
        """Call it there."""
        asked = {
            **arguments, "file": str(self.file), "name": self.name, "device": self.device,
            "inputs": [astuple(t) for t in inputs], "results": [astuple(t) for t in results],
        }  # fmt: skip
        given, made = memory[: len(inputs)], memory[len(inputs) :]
        try:
            said: str | None = self.pool.run(ENTRY, asked, given, [*made, *given])  # inputs come back as they are then
        except WorkerCrashedError as error:
            return f"took its process down: {error.reason.removeprefix(f'{ENTRY}: ')}"
        if said is not None and self.device not in ("numpy", "cpu"):  # a card's context may be lost with it
            self.pool.close()
            self.pool = self._new()
        return said

    def close(self) -> None:
        """End its processes."""
        self.pool.close()


def run(
    runner: Runner, graph: Graph, shape: tuple[int, int], given: Mapping[str, Array], entries: int,
    named: Mapping[str, Any], only: Sequence[str], places: Sequence[str] = (), turn: int = 0, gap: int = 0,
) -> Outcome:  # fmt: skip
    """Call a kernel on the tensors of a case.

    ``entries``: of tables among the results; ``named``: scalars and options; ``only``: the results that it has;
    ``places``: those that are columns, whole numbers; ``turn``: which stale memory it meets; ``gap``: elements between
    rows of its inputs of rows x cols.
    """
    inputs = [Tensor(t.name, str(t.format), _shape(t, given), _gap(t, gap, shape)) for t in graph.inputs]
    results = [
        Tensor(o.name, o.format, size_of(o.space, shape, entries, o.slots), also="i32" if o.name in places else None)
        for o in graph.outputs
        if o.name in only
    ]
    memory = [np.zeros(t.whole, FORMATS[t.format].dtype) for t in (*inputs, *results)]
    flat = [m.reshape(-1).view(np.uint8) for m in memory]
    for t, m in zip(inputs, memory, strict=False):
        m[..., : t.shape[-1]] = given[t.name].reshape(t.shape)
    inplace = [o.name for o in graph.outputs if o.inplace]
    said = runner(inputs, results, flat, {"named": dict(named), "inplace": inplace, "turn": turn})
    if said is not None:
        return Outcome(wrong=said)
    after = {t.name: m[..., : t.shape[-1]] for t, m in zip(inputs, memory, strict=False)}
    return Outcome({t.name: m for t, m in zip(results, memory[len(inputs) :], strict=True)}, after)


def _shape(t: TensorSpec, given: Mapping[str, Array]) -> tuple[int, ...]:
    return tuple(given[t.name].shape)


def _gap(t: TensorSpec, gap: int, shape: tuple[int, int]) -> int:
    return gap if t.space == "rc" and not isinstance(shape, Sizes) else 0
