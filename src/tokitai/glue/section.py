"""Sections: the part of a tensor that one rank holds, and where in the tensor it lies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..errors import ArgumentError
from .boxes import Box, box_of
from .dtypes import dtype_of
from .files import Files

Array = np.ndarray[Any, Any]


class Values(Protocol):
    """The elements of a section, in row-major order, in memory or in a file."""

    @property
    def dtype(self) -> str:
        """The type's name, such as BF16."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The section's own."""

    def part(self, start: int, count: int, scratch: Array, files: Files) -> Array:
        """The bytes of `count` elements from element `start`: in `scratch`, which has as many bytes, or elsewhere."""


@dataclass(frozen=True)
class InMemory:
    """The elements of a NumPy array."""

    dtype: str
    shape: tuple[int, ...]
    data: Array  # bytes

    @classmethod
    def of(cls, array: object) -> InMemory:
        """Those of an array of NumPy, or a tensor of torch on the CPU; without a copy where it is contiguous."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            from .dtypes import TORCH

            name = str(array.dtype).removeprefix("torch.")
            if array.device.type != "cpu" or name not in TORCH:
                accepted = f"tensors on the cpu of {', '.join(TORCH)}"
                raise ArgumentError(f"a tensor of {name} on {array.device}; accepted: {accepted}")
            plain = array.detach().resolve_conj().resolve_neg().contiguous()
            shape = tuple(plain.shape)
            return cls(TORCH[name], shape, plain.reshape(-1).view(torch.uint8).numpy())
        if not isinstance(array, (np.ndarray, np.generic)):
            raise ArgumentError(f"values are {type(array).__name__}; accepted: arrays of NumPy, tensors of torch")
        plain = np.asarray(array)
        return cls(dtype_of(plain), plain.shape, np.ascontiguousarray(plain).reshape(-1).view(np.uint8))

    def part(self, start: int, count: int, scratch: Array, files: Files) -> Array:
        item_bytes = len(scratch) // count
        return self.data[start * item_bytes : (start + count) * item_bytes]


@dataclass(frozen=True)
class Section:
    """What `rank` holds of `tensor`: `values`, whose first element has index `offset` in the tensor of shape `shape`.

    `values` is an array of NumPy or a tensor of torch. Without an offset and a shape the section is the whole tensor.
    With an offset alone the tensor is as large as its sections together, and a gap behind the last one cannot be
    noticed. `dtype` is the type that the tensor should have, where that is known from elsewhere. `origin` says in
    messages where the values come from.
    """

    rank: str
    tensor: str
    values: Any
    offset: Sequence[int] | None = None
    shape: Sequence[int] | None = None
    origin: str = ""
    dtype: str | None = None
    held: Values = field(init=False, repr=False, compare=False)
    box: Box = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        held = self.values if hasattr(self.values, "part") else InMemory.of(self.values)
        offset = (0,) * len(held.shape) if self.offset is None else tuple(self.offset)
        if len(offset) != len(held.shape) or any(type(n) is not int or n < 0 for n in offset):
            accepted = f"{len(held.shape)} integers, none negative"
            raise ArgumentError(f"{self.tensor!r} of rank {self.rank!r}: offset {offset}; accepted: {accepted}")
        if self.shape is not None and any(type(n) is not int or n < 0 for n in self.shape):
            accepted = "integers, none negative"
            raise ArgumentError(f"{self.tensor!r} of rank {self.rank!r}: shape {self.shape}; accepted: {accepted}")
        if self.offset is None and self.shape is None:
            object.__setattr__(self, "shape", held.shape)
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "box", box_of(offset, held.shape))


@dataclass(frozen=True)
class Absent:
    """A section that should be there and is not: `origin` is the file that lacks it. `box` is None where it is not
    known which elements it would hold."""

    rank: str
    tensor: str
    origin: str
    box: Box | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


def replicas(ranks: Mapping[str, Mapping[str, object]]) -> list[Section]:
    """Sections of ranks that hold whole tensors, by the name of the rank and that of the tensor."""
    return [Section(rank, name, values) for rank, state in ranks.items() for name, values in state.items()]


def renamed(sections: Iterable[Section | Absent], same: Mapping[str, str]) -> list[Section | Absent]:
    """The sections, with tensors of another name in place of those that are keys of `same`."""
    return [replace(s, tensor=same[s.tensor]) if s.tensor in same else s for s in sections]
