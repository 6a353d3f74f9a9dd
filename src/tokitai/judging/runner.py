"""Call a third-party kernel: in a sandboxed process that it may take down, or as a function of this one.

The judge's side of a call: memory is filled before it and compared after it, and whatever comes back is checked. No
answer of the other process is trusted beyond what the memory shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import (
    DeviceMissingError,
    SharedMemoryError,
    TokitaiError,
    UsageError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerStartError,
    WorkerTimeoutError,
)
from ..lang import Graph
from ..verification.cases import size_of
from ..worker import Pool
from . import candidate
from .candidate import Tensor
from .containment import limits_for, not_contained
from .kept import Kept
from .lending import Array, Memory, Placement, spaced

MODULE = "tokitai.judging.candidate"
LOADED = 60.0  # seconds within which a kernel's file must be loaded: importing PyTorch takes some
SHOWN = 700  # characters of what a kernel says
UNDECIDED = (WorkerTimeoutError, WorkerStartError, WorkerBusyError, SharedMemoryError)


@dataclass
class Outcome:
    """What one call did: results by name; or what is wrong with it; ``refused``: by an exception by which a kernel may
    refuse a layout."""

    results: dict[str, Array] = field(default_factory=dict)
    wrong: str | None = None
    refused: bool = False


class Runner(Protocol):
    """Something that calls a kernel. ``device``: ``numpy``, or the device of PyTorch's tensors."""

    device: str
    deaths: int  # processes that it took down
    contained: list[str]  # what keeps the kernel from harm, and what does not, in words

    def prepare(self, tensors: Sequence[str], named: Mapping[str, Any], offered: Sequence[str]) -> list[str]:
        """Which of the keywords ``offered`` it takes. Raises UsageError where it cannot be called."""
        ...

    def room(self, which: int, nbytes: int) -> Array:
        """Memory that the kernel sees, lent (0) or for results (1)."""
        ...

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> Any:  # fmt: skip
        """Call it. Returns an answer as `candidate.call` does, or anything else."""
        ...


class Here:
    """A function of this process."""

    def __init__(self, function: candidate.Function, device: str) -> None:
        self.function, self.device = function, device
        self.path = Path(getattr(getattr(function, "__code__", None), "co_filename", "kernel"))
        self.contained = ["nothing: the kernel is a function of the judge's own process"]
        self.deaths = 0
        self._kept = Kept()

    def prepare(self, tensors: Sequence[str], named: Mapping[str, Any], offered: Sequence[str]) -> list[str]:
        """Look at its signature."""
        asked = {"tensors": list(tensors), "named": dict(named), "offered": list(offered), "device": self.device}
        return candidate.ready(self.function, self.path, asked)

    def room(self, which: int, nbytes: int) -> Array:
        """New memory, zeroed."""
        return np.zeros(nbytes, np.uint8)

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> Any:  # fmt: skip
        """Call it."""
        asked = {**arguments, "device": self.device}
        return candidate.call(self.function, self.path, inputs, results, memory, asked, self._kept)

    def close(self) -> None:
        """Nothing is left."""


class Isolated:
    """A function of a file, called in processes of their own, in a sandbox unless ``unconfined``.

    Raises WorkerTimeoutError where a call does not end within ``seconds``, and other errors of `UNDECIDED`.
    """

    def __init__(self, file: Path, name: str, device: str, seconds: float, unconfined: bool = False) -> None:
        self.file, self.name, self.device, self.seconds = file.resolve(), name, device, seconds
        self.deaths = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="tokitai-judge-", ignore_cleanup_errors=True)
        self._limits = limits_for(device, self.file, self._scratch.name, unconfined)
        self.pool = self._new()
        self._rooms: dict[int, Array] = {}
        try:
            self.contained = not_contained(self.pool.applied, device, unconfined)
        except BaseException:
            self.close()
            raise

    def _new(self) -> Pool:
        return Pool(1, deadline=self.seconds, limits=self._limits)

    def _asked(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {**more, "file": str(self.file), "name": self.name, "device": self.device}

    def prepare(self, tensors: Sequence[str], named: Mapping[str, Any], offered: Sequence[str]) -> list[str]:
        """Load it. Raises UsageError and DeviceMissingError; what it does besides, its first call will show."""
        asked = {"tensors": list(tensors), "named": dict(named), "offered": list(offered)}
        try:
            taken = self.pool.run(f"{MODULE}:prepare", self._asked(asked), deadline=max(self.seconds, LOADED))
        except (UsageError, DeviceMissingError) as error:
            raise type(error)(clean(str(error))) from None
        except UNDECIDED:
            raise
        except TokitaiError:
            return []
        return [n for n in offered if n in taken] if isinstance(taken, list) else []

    def room(self, which: int, nbytes: int) -> Array:
        """Memory that both processes see."""
        if which not in self._rooms or self._rooms[which].size < nbytes:
            self._rooms[which] = self.pool.empty(1 << max(nbytes - 1, 1 << 16).bit_length(), np.uint8)
        return self._rooms[which]

    def __call__(self, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Array],
                 arguments: Mapping[str, Any]) -> Any:  # fmt: skip
        """Call it there."""
        asked = {**arguments, "inputs": [astuple(t) for t in inputs], "results": [astuple(t) for t in results]}
        try:
            said = self.pool.run(f"{MODULE}:run", self._asked(asked), [], memory)
        except UNDECIDED:
            raise
        except WorkerCrashedError as error:
            self.deaths += 1
            return {"wrong": f"took its process down: {error.reason.removeprefix(f'{MODULE}:run: ')}"}
        except TokitaiError as error:
            return {"wrong": f"gave no proper answer: {error}"}
        broken = isinstance(said, dict) and said.get("wrong") is not None
        if broken and self.device not in ("numpy", "cpu"):  # a GPU's context may be lost with it
            rooms, self._rooms = self._rooms, {}
            self.pool.close()
            self.pool = self._new()
            del rooms
        return said

    def close(self) -> None:
        """End its processes, and remove its folder."""
        self.pool.close()
        self._rooms.clear()
        self._scratch.cleanup()


def run(
    runner: Runner, graph: Graph, shape: tuple[int, int], given: Mapping[str, Array], entries: int,
    named: Mapping[str, Any], only: Sequence[str], places: Sequence[str] = (), turn: int = 0,
    placement: Placement | None = None,
) -> Outcome:  # fmt: skip
    """Call a kernel on the tensors of a case.

    ``entries``: of tables among the results; ``named``: scalars and options; ``only``: the results that it has;
    ``places``: those that are columns, whole numbers; ``turn``: which stale memory it meets.
    """
    inputs = [(t.name, str(t.format), tuple(given[t.name].shape)) for t in graph.inputs]
    results, size = spaced([
        (o.name, o.format, size_of(o.space, shape, entries, o.slots), "i32" if o.name in places else None)
        for o in graph.outputs
        if o.name in only
    ])  # fmt: skip
    memory = Memory(inputs, placement or Placement(seed=turn))
    memory.fill(runner.room(0, memory.nbytes), given)
    made = runner.room(1, size)[:size]
    inplace = [o.name for o in graph.outputs if o.inplace]
    said = runner(memory.tensors, results, [memory.now, made], {"named": dict(named), "inplace": inplace, "turn": turn})
    if not isinstance(said, dict) or not isinstance(said.get("wrong"), (str, type(None))):
        return Outcome(wrong=f"gave a malformed answer: {clean(repr(said)[:SHOWN])}")
    wrong, refused = said["wrong"], said.get("refused") is True
    there = memory.changed(inplace if wrong is None else [])
    if there is not None and (wrong is None or refused):
        return Outcome(wrong=there if wrong is None else f"{there}, and then {clean(wrong)}")
    if wrong is not None:
        return Outcome(wrong=clean(wrong), refused=refused)
    return Outcome({r.name: memory.after(r.name) if r.name in inplace else r.view(made).copy() for r in results})


def clean(text: str) -> str:
    """What a kernel said, so that it cannot move a terminal's cursor, nor fill it."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: SHOWN + 1])
    return shown[:SHOWN] + (" ..." if len(shown) > SHOWN else "")
