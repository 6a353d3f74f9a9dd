"""What a training loop tells of its steps, for whoever records them or compares them."""

from __future__ import annotations

import base64
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module

from ..optim import AdamW
from ..ranks import Block, Gradients
from ..shards import parts_of
from .sums import digest, sums_of
from .ways import Ways

Saving = Callable[[Path], None]


@dataclass
class Entry:
    """One tensor of a step: its name, the block of tokens that it belongs to, its check sums; of one that is sharded,
    which elements of the whole each rank has, as [first, end] along each dimension."""

    name: str
    block: int | None
    dtype: str
    shape: tuple[int, ...]
    sums: np.ndarray = field(repr=False)
    parts: list[tuple[int, list[list[int]]]] | None = None
    difference: Any = None  # from what was recorded, in a `Replay`

    def as_json(self, detail: bool) -> dict[str, Any]:
        """As it stands in a file; with ``detail`` check sums beside the digest."""
        made: dict[str, Any] = dict(name=self.name, dtype=self.dtype, shape=list(self.shape))
        if self.block is not None:
            made["block"] = self.block
        if self.parts is not None:
            made["parts"] = self.parts
        made["digest"] = digest(self.dtype, self.shape, self.sums)
        if detail:
            made["sums"] = base64.b64encode(self.sums.astype("<i8").tobytes()).decode()
        return made


class Run(ABC):
    """The base of `Record` and `Replay`: a loop asks it for its steps.

    ``device`` is where the steps run. Tensors of a step come in this order: what was noted ahead of the blocks; of each
    block what was noted, the results of layers, what the block recorded, the gradients of the results, and of weights;
    then totals and gradients over all blocks; what was noted behind them; moments, f32 copies, weights.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.layers = False  # whether results of layers are taken in this step
        self._ahead: list[Entry] = []
        self._behind: list[Entry] = []
        self._of_blocks: dict[int, dict[str, list[Entry]]] = {}
        self._block: Block | None = None
        self._reduced = False
        self._names: dict[str, str] = {}
        self._parts: dict[Any, Any] = {}  # of shapes and placements, which each rank asks for in one order
        self.model: Module
        self.optimizer: AdamW
        self.gradients: Gradients
        self.ways: Ways

    # -------------------------------------------------------------- what a loop calls
    def steps(
        self, steps: int, model: Module, optimizer: AdamW, gradients: Gradients, *, save: Saving, load: Saving
    ) -> Iterator[int]:  # fmt: skip
        """The numbers of the steps to run, from 1 on to ``steps``; behind a checkpoint where there is one.

        ``model`` is the one whose layers and weights are named, without a wrapper; ``save`` and ``load`` write and read
        a checkpoint of all that the loop changes. Every rank asks for the same steps."""
        self.model, self.optimizer, self.gradients = model, optimizer, gradients
        self.ways = Ways.of(gradients)
        own = {p: n for n, p in model.named_parameters()}
        self._names = {n: own.get(p, n) for n, p in gradients.named}  # without the wrapper's part
        hooks = [
            m.register_forward_hook(self._hook(n), prepend=self.ways.count > 1)  # ahead of what takes a result's shard
            for n, m in model.named_modules()
            if n and not list(m.children())
        ]
        gradients.observer = self
        try:
            for step in range(self._begin(steps, save, load) + 1, self._last(steps) + 1):
                self._clear()
                self.layers = self._wants_layers(step)
                yield step
                if not self._end(step, [*self._gathered(), *self.state()], step == steps, save):
                    break
        finally:
            gradients.observer = None
            for hook in hooks:
                hook.remove()

    def note(self, name: str, x: Tensor) -> None:
        """A tensor of the step, such as the batch, or of the block that is passed through. Outside of blocks it is the
        same on every rank; a sharded one is a collective call."""
        if self._block is None:
            (self._behind if self._reduced else self._ahead).append(self._entry(name, None, x))
        elif not self._block.idle:
            self._add("notes", name, x)

    # -------------------------------------------------------------- what gradients call
    def pass_begins(self, block: Block) -> None:
        """Ahead of a block."""
        self._block = block

    def pass_ends(self, block: Block, gradients: Sequence[tuple[str, Tensor]]) -> None:
        """Behind a block."""
        if not block.idle:
            for name, value in block.values.items():
                self._add("values", name, value)
            for name, g in gradients if self.layers else ():
                self._add("weights", f"gradient of {self._names[name]} from the block", g)
        self._block = None

    def reduced(self, gradients: Gradients) -> None:
        """Behind all blocks."""
        self._behind += [self._entry(f"total {n}", None, t) for n, t in gradients.totals.items()]
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                self._behind.append(self._entry(f"gradient of {name}", None, p.grad))
        self._reduced = True

    # -------------------------------------------------------------- what those that record and compare define
    @abstractmethod
    def _begin(self, steps: int, save: Saving, load: Saving) -> int:
        """How many steps are done."""

    @abstractmethod
    def _last(self, steps: int) -> int:
        """The last step, counted from 1, of so many."""

    @abstractmethod
    def _wants_layers(self, step: int) -> bool:
        """Whether results of layers are noted in a step."""

    @abstractmethod
    def _end(self, step: int, entries: list[Entry], last: bool, save: Saving) -> bool:
        """Behind a step, with its entries on the first rank; whether another one is to run."""

    # -------------------------------------------------------------- inside
    def _entry(self, name: str, block: int | None, x: Tensor) -> Entry:
        """Of a tensor; a collective call for a sharded one."""
        parts = None
        if isinstance(x, DTensor):
            kind = x.shape, x.device_mesh, x.placements
            parts = self._parts[kind] = self._parts.get(kind) or parts_of(x)
        about = name, block, str(x.dtype).removeprefix("torch."), tuple(x.shape)
        return Entry(*about, sums_of(x).cpu().numpy(), parts)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a step leaves: moments, f32 copies, weights and buffers, by name."""
        names = {p: n for n, p in self.model.named_parameters()}
        found = {
            f"{what} of {names[p]}": t
            for group in self.optimizer.param_groups
            for p in group["params"]
            for what, t in self.optimizer.state.get(p, {}).items()
            if isinstance(t, Tensor)
        }
        return found | {f"weight {n}": t for n, t in self.model.state_dict().items()}

    def state(self) -> list[Entry]:
        """The entries of `state_tensors`."""
        return [self._entry(n, None, t) for n, t in self.state_tensors().items()]

    @property
    def first_rank(self) -> bool:
        """Whether this rank writes, or compares."""
        return self.gradients.arrangement.rank == 0 and self.ways.index == 0

    def told(self, value: Any) -> Any:
        """What the first rank has, on every rank."""
        a, box = self.gradients.arrangement, [value]
        for count, group in ((a.ranks, a.group), (self.ways.count, self.ways.group)):
            if count > 1:
                dist.broadcast_object_list(box, group=group, group_src=0)
        return box[0]

    def _clear(self) -> None:
        self._ahead, self._behind, self._of_blocks = [], [], {}
        self._block, self._reduced = None, False

    def _add(self, kind: str, name: str, x: Tensor) -> None:
        assert self._block is not None
        if kind in ("results", "slopes") and not isinstance(x, DTensor):
            name += self.ways.suffix
        of_block = self._of_blocks.setdefault(self._block.index, {})
        of_block.setdefault(kind, []).append(self._entry(name, self._block.index, x))

    def _hook(self, name: str) -> Callable[[Module, Any, Any], None]:
        def behind(_: Module, __: Any, made: Any) -> None:
            if not self.layers or self._block is None or self._block.idle:
                return
            every = made if isinstance(made, tuple) else (made,)
            for i, x in enumerate(every):
                if isinstance(x, Tensor):
                    here = f"{name}[{i}]" if len(every) > 1 else name
                    self._add("results", f"result of {here}", x)
                    if x.requires_grad:
                        _behind_gradient(x, functools.partial(self._slope, f"gradient at {here}"))

        return behind

    def _slope(self, name: str, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._add("slopes", name, gradient)

    def _gathered(self) -> list[Entry]:
        """All entries of a step but those of its state, in order, on the first rank."""
        a = self.gradients.arrangement
        blocks: Mapping[int, dict[str, list[Entry]]] = self.ways.merged(self._of_blocks)
        if a.ranks > 1:
            every: list[Any] = [None] * a.ranks
            dist.all_gather_object(every, blocks, group=a.group)
            blocks = {i: kinds for of_rank in every for i, kinds in of_rank.items()}
        kinds = ("notes", "results", "values", "slopes", "weights")
        of_blocks = [e for i in sorted(blocks) for kind in kinds for e in blocks[i].get(kind, ())]
        return [*self._ahead, *of_blocks, *self._behind]


def _behind_gradient(x: Any, called: Callable[[Tensor | None], None]) -> None:
    x.register_hook(called)
