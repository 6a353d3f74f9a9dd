"""What judging a kernel showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class Failure:
    """One case that a kernel gets wrong: its id, what is wrong in a sentence, and where; and how large the case is."""

    case: str
    what: str
    where: str = ""
    work: int = 0


@dataclass
class Judgement:
    """What judging a kernel showed. ``same_bits``: cases in which it has the definition's bits; ``share``: the largest
    distance from the exact value as a part of its bound; ``calls``: how often it was called; ``contained``: what kept
    it from harm and what did not; ``not_shown``: inputs and scalars whose effect no case can show; ``notes``: what is
    not wrong and good to know."""

    operator: str
    kernel: str
    dtype: str
    device: str
    shape: dict[str, int] | None = None
    seed: int = 0
    verdict: Literal["verified", "refuted", "undecided"] = "undecided"
    cases: int = 0
    calls: int = 0
    same_bits: int = 0
    compared: int = 0
    judged: int = 0
    max_ulp_error: float = 0.0
    max_ulp_error_of_row: float = 0.0
    share: float = 0.0
    kinds: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)  # that were tried, as `named_sizes` orders them
    failures: list[Failure] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    contained: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)
    undecided: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 verified, 1 refuted, 3 undecided."""
        return {"verified": 0, "refuted": 1, "undecided": 3}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The documented, stable keys of ``--json``."""
        return {
            "operator": self.operator, "kernel": self.kernel, "dtype": self.dtype, "device": self.device,
            "shape": self.shape, "seed": self.seed, "verdict": self.verdict, "evidence": self.kinds,
            "shapes": self.shapes, "cases": self.cases, "calls": self.calls,
            "same_bits": self.same_bits, "elements": self.compared, "elements_judged": self.judged,
            "max_ulp_error": self.max_ulp_error, "max_ulp_error_of_row": self.max_ulp_error_of_row,
            "share_of_allowance": self.share,
            "failures": [{"case": f.case, "what": f.what, "where": f.where} for f in self.failures],
            "notes": self.notes, "not_shown": self.not_shown, "containment": self.contained,
            "undecided": self.undecided, "seconds": round(self.seconds, 3),
        }  # fmt: skip
