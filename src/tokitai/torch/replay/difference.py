"""Where a tensor differs from a recorded one: as near as what was recorded tells."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .run import Entry
from .sums import CHUNK, digest, locate, unit_bits


@dataclass(frozen=True)
class Difference:
    """The first tensor of a step that differs.

    ``block`` is the block of tokens, and ``rank`` the one that had it when it was recorded, where it is a tensor of one
    block; of several that share its layers the first. Of a sharded tensor ``rank`` is the one that had the element.
    ``part`` names elements, [first, last], among which the first difference is, ``element`` the one that differs, with
    its bits as recorded and here, where they are known; ``note`` says why, where they are not."""

    step: int
    tensor: str
    block: int | None = None
    rank: int | None = None
    part: tuple[int, int] | None = None
    element: tuple[int, ...] | None = None
    recorded: str | None = None
    here: str | None = None
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        said = f"step {self.step}: {self.tensor}"
        if self.block is not None:
            said += f", block {self.block} of the batch"
        if self.rank is not None:
            said += f" (recorded on rank {self.rank})"
        if self.element is not None:
            said += f", element {list(self.element)}: recorded {self.recorded}, here {self.here}"
        elif self.part is not None:
            said += f", among elements {self.part[0]} to {self.part[1]}"
        return said if self.note is None else f"{said}; {self.note}"


def place_of(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The place of an element, in the order of a shape."""
    return tuple(int(i) for i in np.unravel_index(index, tuple(shape))) if shape else ()


def between(recorded: Mapping[str, Any], here: Entry, value: Tensor, **known: Any) -> Difference | None:
    """What differs, if anything does. ``value`` is the tensor here; ``known`` are the step and the rank. A collective
    call where it is sharded."""
    about = dict(known, tensor=here.name, block=here.block)
    found = f"{recorded['dtype']} {tuple(recorded['shape'])}"
    if found != f"{here.dtype} {here.shape}":
        return Difference(**about, note=f"recorded as {found}, here {here.dtype} {here.shape}")
    if recorded["digest"] == digest(here.dtype, here.shape, here.sums):
        return None
    if "sums" not in recorded:
        return Difference(**about, note="of this step digests were recorded, no check sums (see `detail`)")
    sums = np.frombuffer(base64.b64decode(recorded["sums"]), "<i8").reshape(-1, 3)
    chunk = int(np.flatnonzero((sums != here.sums).any(axis=1))[0])
    dtype = getattr(torch, here.dtype)
    per = max(dtype.itemsize // 4, 1) if dtype.itemsize == 8 else 1
    length = math.prod(here.shape)
    part = (chunk * CHUNK // per, min((chunk + 1) * CHUNK // per, length) - 1)
    single = locate(sums[chunk].tolist(), here.sums[chunk].tolist())
    if single is None:
        return Difference(**about, part=part, note="several elements of them differ")
    place, change = single
    unit = chunk * CHUNK + place
    element = place_of(unit // per, here.shape)
    bits = int(_units(value)[unit])
    return Difference(**about, part=part, element=element, **_both(bits + change, bits, dtype))


def beside(stored: Tensor, value: Tensor, found: Difference) -> Difference:
    """The first element that differs from a tensor of a checkpoint. A collective call where the value is sharded."""
    if stored.dtype != value.dtype or stored.shape != value.shape:
        return found
    then, now = _units(stored), _units(value)
    different = np.flatnonzero(then != now)
    if not len(different):
        return replace(found, note="the checkpoint of this step has the bits that are here, the record others")
    unit = int(different[0])
    per = len(now) // max(value.numel(), 1)
    note = f"{len(different)} elements differ from the checkpoint of this step"
    both = _both(int(then[unit]), int(now[unit]), value.dtype)
    return replace(found, element=place_of(unit // per, value.shape), note=note, **both)


def _both(recorded: int, here: int, dtype: torch.dtype) -> dict[str, Any]:
    digits = unit_bits(dtype) // 4
    return dict(recorded=f"0x{recorded:0{digits}x}", here=f"0x{here:0{digits}x}")


def _units(x: Tensor) -> np.ndarray:
    """A tensor's bits as whole numbers of 32 bits at most."""
    whole = x.full_tensor() if isinstance(x, DTensor) else x
    raw = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw.view(f"<u{min(x.dtype.itemsize, 4)}")
