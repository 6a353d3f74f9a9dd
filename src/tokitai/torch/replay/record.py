"""A run that writes down what its steps compute, so that they can be repeated and compared.

The folder of a run holds ``run.json`` (how a step is run), ``steps.jsonl`` (a line for each step: names, digests, check
sums) and checkpoints, ``step-000010.safetensors``, the first of them ahead of the first step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...errors import ArgumentError
from ...numerics import NUMERICS_VERSION, VERSION
from .run import Entry, Run, Saving

ABOUT, STEPS, FORMAT = "run.json", "steps.jsonl", 1


def checkpoint_of(folder: Path, step: int) -> Path:
    """The file of the checkpoint behind a step."""
    return folder / f"step-{step:06d}.safetensors"


def checkpoints(folder: Path) -> list[int]:
    """Behind which steps there are checkpoints."""
    found = (p.stem.removeprefix("step-") for p in folder.glob("step-*.safetensors"))
    return sorted(int(n) for n in found if n.isdigit())


class Record(Run):
    """Writes a run into a folder, or goes on with one behind its last checkpoint.

    ``entry`` names what runs it again, ``"module:function"``, which is called with the configuration and with a `Run`
    whose `steps` it asks for; ``config`` is its configuration, of what JSON holds; ``free`` names what of it may be
    other when the run goes on. Results of layers are recorded every ``layers`` steps (0: never), and check sums, by
    which elements are named, every ``detail`` steps; a checkpoint is saved every ``every`` steps. Raises ArgumentError
    for a folder of another run.
    """

    def __init__(
        self, folder: Path, entry: str, config: Mapping[str, Any], *, device: str = "cpu", layers: int = 0,
        detail: int = 1, every: int = 100, free: Collection[str] = ("steps", "device"),
    ) -> None:  # fmt: skip
        super().__init__(device)
        for name, n, least in (("layers", layers, 0), ("detail", detail, 0), ("every", every, 1)):
            if n < least:
                raise ArgumentError(f"{name}={n}; accepted: {least} or more")
        if not entry.partition(":")[2]:
            raise ArgumentError(f"entry={entry!r}; accepted: 'module:function'")
        self.folder, self.entry, self.free = folder, entry, free
        self.config = json.loads(json.dumps(dict(config)))  # as it will be read
        self.every_layers, self.every_detail, self.every = layers, detail, every

    def _begin(self, steps: int, save: Saving, load: Saving) -> int:
        a = self.gradients.arrangement
        done = self.told(self._prepare(a.blocks, a.ranks) if self.first_rank else None)
        if isinstance(done, str):
            raise ArgumentError(done)
        if done > steps:
            raise ArgumentError(f"steps={steps}; accepted behind the {done} of {self.folder}: as many or more")
        if done < 0:
            self._write(0, self.state())
            save(checkpoint_of(self.folder, 0))
            return 0
        load(checkpoint_of(self.folder, done))
        return int(done)

    def _prepare(self, blocks: int, ranks: int) -> int | str:
        """How many steps are done, -1 where there is no run yet; or what is wrong."""
        about = dict(
            format=FORMAT, entry=self.entry, config=self.config, blocks=blocks, ranks=ranks, device=self.device,
            torch=torch.__version__, tokitai=VERSION, numerics=NUMERICS_VERSION,
        )  # fmt: skip
        file = self.folder / ABOUT
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            done = max(checkpoints(self.folder), default=-1) if file.exists() else -1
            if done >= 0:
                found = json.loads(file.read_text())
                for name in ("entry", "blocks", "numerics"):
                    if found[name] != about[name]:
                        return f"{self.folder}: {name}={found[name]!r}; accepted beside this run: {about[name]!r}"
                for name in sorted({*found["config"], *self.config} - set(self.free)):
                    old, new = found["config"].get(name), self.config.get(name)
                    if old != new:
                        return f"{self.folder}: {name}={old!r}; accepted beside this run: {new!r}"
                lines = (self.folder / STEPS).read_text().splitlines()
                kept = [line for line in lines if json.loads(line)["step"] <= done]  # of steps that run again
                (self.folder / STEPS).write_text("".join(f"{line}\n" for line in kept))
            elif (self.folder / STEPS).exists():
                (self.folder / STEPS).unlink()
            file.write_text(json.dumps(about, indent=1) + "\n")
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{self.folder}: {error}; accepted: a folder to record a run in"
        return done

    def _last(self, steps: int) -> int:
        return steps

    def _wants_layers(self, step: int) -> bool:
        return self.every_layers > 0 and step % self.every_layers == 0

    def _end(self, step: int, entries: list[Entry], last: bool, save: Saving) -> bool:
        self._write(step, entries)
        if last or step % self.every == 0:
            save(checkpoint_of(self.folder, step))
        return True

    def _write(self, step: int, entries: list[Entry]) -> None:
        failed = None
        if self.first_rank:
            detail = self.every_detail > 0 and step % self.every_detail == 0
            line = dict(step=step, layers=self.layers, tensors=[e.as_json(detail) for e in entries])
            a = self.gradients.arrangement
            line["ranks"] = a.ranks
            if self.ways.count > 1 and a.ranks > 1:  # the numbers of the ranks in the world are others
                line["over"] = dist.get_process_group_ranks(a.group)
            try:
                with (self.folder / STEPS).open("a") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:
                failed = f"{self.folder}: {error.strerror}; accepted: a folder to record a run in"
        failed = self.told(failed)
        if failed is not None:
            raise ArgumentError(failed)
