"""One statement for all sizes, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Obligation:
    """A statement: proved, refuted (``sizes`` where it is wrong), or undecided (``reason``)."""

    name: str
    status: str
    seconds: float
    sizes: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    questions: int = 1  # to the solver
    assumes: bool = False  # that indices in tensors are in range, as every call checks

    def as_json(self) -> dict[str, object]:
        """What is printed with ``--json``."""
        made: dict[str, object] = {"name": self.name, "status": self.status, "seconds": round(self.seconds, 3)}
        if self.sizes:
            made["sizes"] = dict(self.sizes)
        if self.assumes:
            made["assumes"] = "indices in range"
        if self.reason:
            made["reason"] = self.reason
        return made


__all__ = ["Obligation"]
