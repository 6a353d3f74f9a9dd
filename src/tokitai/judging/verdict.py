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
    kinds: tuple[str, ...] = ()  # of its wrong elements: accuracy, infinity and NaN, subnormals; or call

    def as_json(self) -> dict[str, Any]:
        """Its keys in ``--json``."""
        return {"case": self.case, "what": self.what, "where": self.where, "kinds": list(self.kinds)}


@dataclass
class Cause:
    """Why elements of one result are wrong.

    ``of``: which elements, of ordinary or of special values; ``models``: the arithmetic models that explain them
    together, none where none does; ``explained``: the share of ``cases`` that they explain, ``same_bits``: the share of
    ``wrong`` elements whose bits they have; ``out_of_time``: whether models were left untried; ``also``: other models
    that explain as much.
    """

    result: str
    of: str
    models: tuple[str, ...] = ()
    said: str = ""
    explained: float = 0.0
    same_bits: float = 0.0
    wrong: int = 0
    cases: int = 0
    out_of_time: bool = False
    also: tuple[tuple[str, ...], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its keys in ``--json``."""
        return {
            "result": self.result, "of": self.of, "models": list(self.models), "said": self.said or None,
            "explained": self.explained, "same_bits": self.same_bits, "wrong": self.wrong, "cases": self.cases,
            "also": [list(a) for a in self.also], "out_of_time": self.out_of_time,
        }  # fmt: skip

    def __str__(self) -> str:
        whose = f"{self.wrong} wrong element{'s' * (self.wrong != 1)} of {self.result}, {self.of}"
        if not self.models:
            return f"{whose}: no model explains them" + (" (the time to explain ended first)" * self.out_of_time)
        how = f"explains {self.explained:.0%} of {self.cases} case{'s' * (self.cases != 1)}"
        how += f", has the bits of {self.same_bits:.0%} of them" * (self.same_bits > 0)
        also = f"; as well: {' or '.join(', '.join(a) for a in self.also[:3])}" if self.also else ""
        return f"{whose}: {', '.join(self.models)} ({self.said}); {how}{also}"


@dataclass
class Special:
    """Elements that have to do with special values: how many were judged, and how many are wrong in how many cases."""

    judged: int = 0
    wrong: int = 0
    cases: int = 0


@dataclass
class Judgement:
    """What judging a kernel showed. ``same_bits``: cases in which it has the definition's bits; ``share``: the largest
    distance from the exact value as a part of its bound; ``calls``: how often it was called; ``contained``: what kept
    it from harm and what did not; ``not_shown``: inputs and scalars whose effect no case can show; ``notes``: what is
    not wrong and good to know; ``causes``: what explains wrong elements; ``accepted``: models that were declared to be
    meant; ``special``: special values apart; ``asked``: results of cases that were tried on null candidates, ``told``:
    those that all of them fail; ``null_candidates``: how many each passes."""

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
    accepted: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    special: dict[str, Special] = field(default_factory=dict)
    asked: int = 0
    told: int = 0
    null_candidates: dict[str, int] = field(default_factory=dict)

    @property
    def accuracy(self) -> Literal["verified", "refuted", "undecided"]:
        """The verdict on elements of ordinary values alone, and on calls."""
        if any(set(f.kinds) & {"accuracy", "call"} for f in self.failures):
            return "refuted"
        return "undecided" if self.undecided or not self.judged else "verified"

    @property
    def special_alone(self) -> bool:
        """Whether special values are wrong, and every element of ordinary values is right."""
        return self.verdict == "refuted" and self.accuracy == "verified"

    @property
    def exit_code(self) -> int:
        """0 verified, 1 refuted, 3 undecided."""
        return {"verified": 0, "refuted": 1, "undecided": 3}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The documented, stable keys of ``--json``."""
        return {
            "operator": self.operator, "kernel": self.kernel, "dtype": self.dtype, "device": self.device,
            "shape": self.shape, "seed": self.seed, "verdict": self.verdict, "accuracy": self.accuracy,
            "special_values": {n: {"judged": s.judged, "wrong": s.wrong, "cases": s.cases}
                               for n, s in self.special.items()},
            "accepted": self.accepted, "evidence": self.kinds,
            "shapes": self.shapes, "cases": self.cases, "calls": self.calls,
            "same_bits": self.same_bits, "elements": self.compared, "elements_judged": self.judged,
            "max_ulp_error": self.max_ulp_error, "max_ulp_error_of_row": self.max_ulp_error_of_row,
            "share_of_allowance": self.share,
            "failures": [f.as_json() for f in self.failures],
            "causes": [c.as_json() for c in self.causes],
            "adequacy": {"results": self.asked, "told": self.told, "passed_by": self.null_candidates},
            "notes": self.notes, "not_shown": self.not_shown, "containment": self.contained,
            "undecided": self.undecided, "seconds": round(self.seconds, 3),
        }  # fmt: skip
