"""What a family finds out about the arrays of a call: its sizes, and the shapes that kernels read and callers see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..lang import Sizes


@dataclass(frozen=True)
class Reading:
    """How a kernel reads an array of the caller: reshaped to ``shape``, and broadcast to ``whole`` before that."""

    shape: tuple[int, ...]
    whole: tuple[int, ...]
    small: bool = False  # so small that a copy needs nobody's leave


@dataclass(frozen=True)
class Bound:
    """The arrays of a call, with all settled but where they lie."""

    sizes: Sizes
    inputs: Mapping[str, Reading]
    results: Mapping[str, tuple[int, ...]]  # the shape of each as the caller sees it


__all__ = ["Bound", "Reading"]
