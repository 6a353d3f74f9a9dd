"""What a family's plans may choose for a launch on a GPU: each choice is planned for all sizes for which it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..families import Plan
from ..lower.gpu import Step

SHARED_BYTES = {"cuda": 227 << 10, "hip": 0}  # that a launch may ask for, for each block
MEMORY = 2**39  # elements of a tensor at most: 1 TiB in 16 bits, more than any GPU has
SIDE = 2**31  # of a side that no contract limits, such as the K dimension


@dataclass(frozen=True)
class Planned:
    """What a call plans: its launches, and the bytes of its workspace."""

    steps: Sequence[Step]
    workspace: Any
    used: Sequence[Any] = ()  # bytes of the workspace that a kernel may use, by its source
    extra: Sequence[tuple[str, Any]] = ()  # what else must hold, and its name


@dataclass(frozen=True)
class Choice:
    """A kernel's choice, the sizes for which it is made, and the plan that follows."""

    name: str
    knows: Sequence[Any]
    plan: Callable[[], Planned]
    key: Any = None  # of plans that are the same for several operators


def family_of(plan: Plan) -> str:
    """The name of a plan's family."""
    return repr(plan.family).removeprefix("<family ").removesuffix(">")


__all__ = ["MEMORY", "SHARED_BYTES", "SIDE", "Choice", "Planned", "family_of"]
