"""A recorded run, run again from a checkpoint: the first step, tensor and element that differ."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ArgumentError, TokitaiError, UnavailableError
from ..ranks.arrangement import Arrangement
from .difference import Difference, beside, between
from .record import ABOUT, FORMAT, STEPS, checkpoint_of, checkpoints
from .run import Entry, Run, Saving


@dataclass(frozen=True)
class Outcome:
    """What a replay found: nothing, where ``difference`` is None. ``tensors`` were compared; ``missing`` were recorded,
    and are not computed in this arrangement."""

    begin: int
    first: int
    last: int
    device: str
    ranks: int
    tensors: int
    missing: int
    difference: Difference | None

    @property
    def exit_code(self) -> int:
        """0: the same bits. 1: others."""
        return int(self.difference is not None)

    def __str__(self) -> str:
        where = f"on {self.device}, {self.ranks} rank{'s' * (self.ranks > 1)}, from the checkpoint of step {self.begin}"
        counted = f"{self.tensors} tensors compared" + f", {self.missing} not computed here" * (self.missing > 0)
        if self.difference is not None:
            return f"{self.difference}\nOTHER BITS {where}, {counted}"
        return f"steps {self.first} to {self.last}: the same bits {where}, {counted}"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        made = {n: getattr(self, n) for n in ("begin", "first", "last", "device", "ranks", "tensors", "missing")}
        found = None if self.difference is None else self.difference.as_json()
        return {"verdict": "different" if found else "same", **made, "difference": found}


class Replay(Run):
    """Compares the steps of a loop with those of a folder, from the nearest checkpoint on, up to the first difference.

    Raises ArgumentError for a folder that holds no run, and for steps that were not recorded."""

    def __init__(self, folder: Path, device: str = "cpu", first: int = 1, last: int | None = None) -> None:
        super().__init__(device)
        self.folder = folder
        try:
            self.about = json.loads((folder / ABOUT).read_text())
            lines = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
            self.recorded = {int(line["step"]): line for line in lines}
            self.entry, self.config = str(self.about["entry"]), dict(self.about["config"])
            if self.about["format"] != FORMAT:
                raise ArgumentError(f"{folder}: format {self.about['format']}; accepted: {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"{folder}: {error}; accepted: the folder of a recorded run") from None
        most = max(self.recorded, default=0)
        self.first, self.last = first, most if last is None else last
        if not 1 <= self.first <= self.last <= most:
            raise ArgumentError(f"steps {self.first} to {self.last}; accepted: within 1 to {most}, which are recorded")
        begin = [n for n in checkpoints(folder) if n < self.first and n in self.recorded]
        if not begin:
            raise ArgumentError(f"{folder}: no checkpoint ahead of step {self.first}; accepted: a folder with one")
        self.begin = begin[-1]
        self.now = self.begin
        self.difference: Difference | None = None
        self.tensors = self.missing = self.ranks = 0

    def outcome(self) -> Outcome:
        """What was found so far."""
        counts = dict(tensors=self.tensors, missing=self.missing, ranks=self.ranks)
        return Outcome(self.begin, self.first, self.last, self.device, difference=self.difference, **counts)

    def _begin(self, steps: int, save: Saving, load: Saving) -> int:
        self.ranks = self.gradients.arrangement.ranks * self.ways.count
        if (blocks := self.gradients.arrangement.blocks) != self.about["blocks"]:
            raise ArgumentError(f"{blocks} blocks; accepted beside {self.folder}: {self.about['blocks']}")
        load(checkpoint_of(self.folder, self.begin))
        self._enter(self.begin)
        return self.last if not self._compare(self.begin, self.state()) else self.begin

    def _last(self, steps: int) -> int:
        return self.last

    def _wants_layers(self, step: int) -> bool:
        self._enter(step)
        return bool(self.recorded[step]["layers"]) if step in self.recorded else False

    def _enter(self, step: int) -> None:
        self.now = step
        if step not in self.recorded:
            raise ArgumentError(f"{self.folder}: step {step} is not recorded; accepted: a record without gaps")
        self.here = {(t["name"], t.get("block")): t for t in self.recorded[step]["tensors"]}

    def _entry(self, name: str, block: int | None, x: Tensor) -> Entry:
        made = super()._entry(name, block, x)
        recorded = self.here.get((name, block))
        if recorded is None:
            return made
        found = between(recorded, made, x, step=self.now, rank=self._rank_of(block))
        if found is not None and found.element is None and self.now in checkpoints(self.folder):
            stored = self._stored(name)
            found = found if stored is None else beside(stored, x, found)
        if found is not None and found.element is not None and "parts" in recorded:
            found = replace(found, rank=next(r for r, ends in recorded["parts"] if _holds(ends, found.element)))
        made.difference = found
        return made

    def _rank_of(self, block: int | None) -> int | None:
        if block is None:
            return None
        line = self.recorded[self.now]
        then = Arrangement(self.about["blocks"], line["ranks"])
        place = next(r for r in range(then.ranks) if block in then.of(r))
        return int(line["over"][place]) if "over" in line else place

    def _stored(self, name: str) -> Tensor | None:
        """A weight, moment or copy of the checkpoint behind this step, where `ranks.checkpoint` wrote it."""
        what, _, weight = name.rpartition(" of ") if " of " in name else ("model", "", name.removeprefix("weight "))
        key = f"model.{weight}"
        if what != "model":
            names = {p: n for n, p in self.model.named_parameters()}
            order = [names[p] for group in self.optimizer.param_groups for p in group["params"]]
            key = f"optimizer.{order.index(weight)}.{what}" if weight in order else ""
        try:
            with safe_open(checkpoint_of(self.folder, self.now), "pt") as file:
                made: Tensor | None = file.get_tensor(key) if key in file.keys() else None  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
        return made

    def _end(self, step: int, entries: list[Entry], last: bool, save: Saving) -> bool:
        return self._compare(step, entries)

    def _compare(self, step: int, entries: list[Entry]) -> bool:
        """Whether a step has the bits that were recorded; on every rank the same answer."""
        if self.first_rank:
            found = {(e.name, e.block): e for e in entries}
            for key in self.here:
                if key not in found:
                    self.missing += 1
                    continue
                self.tensors += 1
                if self.difference is None:
                    self.difference = found[key].difference
        self.difference = self.told(self.difference)
        return self.difference is None


def _holds(ends: Sequence[Sequence[int]], element: Sequence[int]) -> bool:
    return all(first <= place < end for (first, end), place in zip(ends, element, strict=True))


def replay(folder: Path, device: str = "cpu", first: int = 1, last: int | None = None) -> Outcome:
    """Run steps of a recorded run again, and compare. Every rank of the process group calls it.

    Raises ArgumentError for a folder without a run and steps without a record; UnavailableError where what runs it
    cannot be imported, fails, or runs none of its steps."""
    run = Replay(folder, device, first, last)
    function = _imported(run.entry)
    try:
        function(run.config, run)
    except TokitaiError:
        raise
    except Exception as error:
        raise UnavailableError(f"{run.entry} failed: {type(error).__name__}: {error}") from error
    if run.difference is None and run.now != run.last:
        raise UnavailableError(f"{run.entry} ran up to step {run.now}; accepted: up to {run.last}")
    return run.outcome()


def _imported(name: str) -> Callable[[dict[str, Any], Run], None]:
    """The function that runs a recorded run, from here or from an installed package."""
    module, _, function = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Callable[[dict[str, Any], Run], None] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UnavailableError(
            f"{name}: {error}; accepted: a folder to run this in from which it is imported"
        ) from None
    return found
