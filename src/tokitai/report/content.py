"""What a page shows of certificates: states, counts, shapes, the sentences at its top."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from .read import Certificate

State = Literal["verified", "refuted", "undecided", "invalid"]
STATES: tuple[State, ...] = ("refuted", "invalid", "undecided", "verified")  # the worst first
CODES: Mapping[State, int] = {"verified": 0, "refuted": 1, "invalid": 1, "undecided": 3}
MOST_KINDS = 32  # of cases, over all certificates of a page
MOST = 50  # cases that differ, that are reported of one certificate

KINDS = {
    "structure": "run over hashes of expressions in place of numbers: at these shapes the kernel evaluates exactly the "
    "defined expression, for all values of float inputs, but for a chance below 2^-50",
    "exhaustive": "all 65,536 values of a 16-bit format",
    "hard": "inputs that have broken kernels before",
    "seeded": "inputs drawn from a seed",
    "list": "lists of tensors in one call, empty ones among them",
    "yours": "tensors that the user gave, those of a real model, say",
}


@dataclass(frozen=True)
class Kind:
    """The cases of one kind: how many, how many differ, elements compared, the largest error in ulp or None, and how
    many shapes."""

    name: str
    cases: int
    differing: int
    compared: int
    error: float | None
    shapes: int


@dataclass(frozen=True)
class Entry:
    """One certificate as the page shows it. Without a `predicate` there is nothing to show but what is wrong."""

    anchor: str
    path: str
    state: State
    problems: tuple[str, ...]
    signature: str
    predicate: Mapping[str, Any] | None = None
    kinds: tuple[Kind, ...] = ()
    shapes: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    differing: tuple[str, ...] = ()

    @property
    def p(self) -> Mapping[str, Any]:
        """The predicate, of an entry that has one."""
        assert self.predicate is not None
        return self.predicate

    @property
    def operator(self) -> str:
        return str(self.p["operator"]["name"])

    @property
    def dtype(self) -> str:
        return str(self.p["dtype"])

    @cached_property
    def device(self) -> str:
        """The target, and what the device calls itself."""
        about = self.p["device"]
        name = next((about[key] for key in ("name", "cpu", "machine") if isinstance(about.get(key), str)), None)
        return str(self.p["target"]) if name is None else f"{self.p['target']}: {name}"

    @property
    def compiler(self) -> str:
        """The kind, and the first line of the version."""
        found = self.p["compiler"]
        version = (found["version"].splitlines() or [""])[0]
        return version if found["kind"] in version else f"{found['kind']} {version}"

    @property
    def cases(self) -> int:
        return sum(k.cases for k in self.kinds)

    @property
    def compared(self) -> int:
        """Elements, those of structure runs among them."""
        return sum(k.compared for k in self.kinds)

    @property
    def ulp_error(self) -> float | None:
        """The largest error in ulp."""
        return ulps(self.p["error"]["max_ulp_error"])

    @property
    def condition(self) -> Mapping[str, Mapping[str, Any]]:
        """Errors against the condition of their elements, by the format of the results: that of the certificate first;
        empty where they were not measured so."""
        found: Mapping[str, Mapping[str, Any]] = self.p["error"].get("condition") or {}
        return {fmt: found[fmt] for fmt in sorted(found, key=lambda fmt: (fmt != self.dtype, fmt))}

    @property
    def _first(self) -> Mapping[str, Any]:
        return next(iter(self.condition.values()), {})

    @property
    def error(self) -> float | None:
        """The largest error against its condition, of results in the certificate's format if there are any."""
        return self._first.get("max_error")

    @property
    def bound(self) -> float | None:
        """The proven bound on it."""
        return self._first.get("bound")

    @property
    def probabilistic(self) -> float | None:
        """The probabilistic bound on it."""
        return self._first.get("probabilistic_bound")

    @property
    def beyond(self) -> bool:
        """Whether the error is larger than its bound."""
        return self.error is not None and self.bound is not None and not self.error <= self.bound

    @property
    def unbounded(self) -> list[str]:
        """Elements without a bound of at most 1e6, and why, in a sentence for each format."""
        return [
            f"{plural(said['unbounded'], 'element')} in {fmt} without a bound below 1e6: {'; '.join(said['why'])}."
            for fmt, said in self.condition.items()
            if said["unbounded"]
        ]

    @property
    def again(self) -> str:
        """The command that verifies an operator of the package once more."""
        words = (self.operator, "--dtype", self.dtype, "--device", str(self.p["target"]))
        return "tokitai verify " + " ".join(map(shlex.quote, words))

    @property
    def recomputed(self) -> str:
        """The command that computes inputs and oracle of some of its cases once more, without the device."""
        return f"tokitai check {shlex.quote(self.path)} --rerun"

    def of_kind(self, name: str) -> Kind | None:
        """The cases of one kind, where there are any."""
        return next((k for k in self.kinds if k.name == name), None)


@dataclass(frozen=True)
class Content:
    """All entries, in the order of operator, format, target, and file."""

    entries: tuple[Entry, ...]

    def in_state(self, *states: State) -> list[Entry]:
        """The entries in one of these states, one state after the other."""
        return [e for state in states for e in self.entries if e.state == state]

    @property
    def state(self) -> State:
        """The worst state of all."""
        return next(s for s in STATES if self.in_state(s))

    @property
    def exit_code(self) -> int:
        return CODES[self.state]

    @property
    def counts(self) -> dict[State, int]:
        """How many entries are in each state; every state is there."""
        return {state: len(self.in_state(state)) for state in reversed(STATES)}

    @cached_property
    def readable(self) -> list[Entry]:
        """Those of which there is something to show."""
        return [e for e in self.entries if e.predicate is not None]

    @cached_property
    def valid(self) -> list[Entry]:
        """Those that do not contradict themselves, whatever their verdict."""
        return [e for e in self.readable if e.state != "invalid"]

    @cached_property
    def by_operator(self) -> dict[str, list[Entry]]:
        """The readable entries of each operator."""
        found: dict[str, list[Entry]] = {}
        for e in self.readable:
            found.setdefault(e.operator, []).append(e)
        return found

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of all cases, those that this package knows first."""
        found = {k.name for e in self.readable for k in e.kinds}
        return _in_order(found)

    def total(self, kind: str) -> tuple[int, int, int]:
        """Of the verified entries: the cases of one kind, elements compared in them, entries that have some."""
        found = [k for e in self.in_state("verified") if (k := e.of_kind(kind)) is not None]
        return sum(k.cases for k in found), sum(k.compared for k in found), len(found)

    def facts(self) -> list[tuple[str, list[str]]]:
        """Where and with what: each fact with its values and the number of valid certificates that have it."""
        rows = {
            "device": (e.device for e in self.valid),
            "compiler": (e.compiler for e in self.valid),
            "instruction set": (e.p["isa"] for e in self.valid),
            "verified with": (f"{e.p['tool']['name']} {e.p['tool']['version']}, Python {e.p['tool']['python']}, NumPy "
                              f"{e.p['tool']['numpy']}, numerics {e.p['operator']['numerics_version']}"
                              for e in self.valid),
            "signatures": (e.signature for e in self.valid),
        }  # fmt: skip
        found = [(name, counted(values, len(self.valid))) for name, values in rows.items()]
        dates = sorted(e.p["created"] for e in self.valid)
        return [*found, ("dates", [" to ".join(dict.fromkeys((dates[0], dates[-1])))])] if dates else []

    def non_claims(self) -> list[str]:
        """What valid certificates do not claim, each sentence once."""
        return counted((line for e in self.valid for line in dict.fromkeys(e.p["non_claims"])), len(self.valid))

    @cached_property
    def unbounded(self) -> list[str]:
        """Of each readable entry, elements without a bound, and why."""
        return [f"{e.operator} {e.dtype} on {e.p['target']}: {line}" for e in self.readable for line in e.unbounded]

    def headline(self) -> tuple[str, str]:
        """The verdict in a word or two, and in a sentence."""
        good, total = len(self.in_state("verified")), len(self.entries)
        if good == total:
            formats = ", ".join(sorted({e.dtype for e in self.valid}))
            return "Verified", (
                f"In every case of {plural(total, 'certificate')}, every result of "
                f"{plural(len(self.by_operator), 'operator')} in {formats} had the bits of its definition."
            )
        said = {
            "refuted": "a result differs from the definition",
            "invalid": "the certificate cannot be read or contradicts itself, and counts for nothing",
            "undecided": "no case differs, and something that was planned could not be run",
        }
        parts = [f"{len(found)} {s}: {said[s]}" for s in STATES if s in said and (found := self.in_state(s))]
        word = "Undecided" if self.state == "undecided" else "Not verified"
        return word, f"Of {plural(total, 'certificate')} {good} verified; " + "; ".join(parts) + "."


def gather(certificates: Iterable[Certificate]) -> Content:
    """What is shown of certificates. One that cannot be shown becomes invalid: it is nested too deeply, or has kinds of
    cases beyond those that a page has room for."""
    read = _of_few_kinds(sorted(certificates, key=_order))
    return Content(tuple(_entry(c, f"certificate-{number}") for number, c in enumerate(read, start=1)))


def _of_few_kinds(certificates: Iterable[Certificate]) -> Iterator[Certificate]:
    """The certificates; each after the first that would have too many kinds of cases shown without its parts."""
    shown: set[str] = set(KINDS)
    for c in certificates:
        kinds = shown if c.predicate is None else shown | {case["kind"] for case in c.predicate["cases"]}
        if len(kinds) > MOST_KINDS:
            problem = f"its kinds of cases make them {len(kinds)} (accepted on one page: at most {MOST_KINDS})"
            yield replace(c, problems=(*c.problems, problem), predicate=None)
            continue
        shown = kinds
        yield c


def _in_order(kinds: set[str]) -> list[str]:
    """Kinds of cases, those that this package knows first."""
    return [k for k in KINDS if k in kinds] + sorted(kinds - KINDS.keys())


def _order(c: Certificate) -> tuple[bool | str, ...]:
    p = c.predicate
    return (True, c.path) if p is None else (False, p["operator"]["name"], p["dtype"], p["target"], c.path)


def _entry(c: Certificate, anchor: str) -> Entry:
    p, problems = c.predicate, c.problems
    if p is not None:
        try:
            json.dumps([p["device"], p["plan"]])
        except RecursionError:
            p, problems = None, (*problems, "nested too deeply")
    if p is None:
        return Entry(anchor, c.path, "invalid", problems, c.signature)
    cases: Sequence[Mapping[str, Any]] = p["cases"]
    names = _in_order({case["kind"] for case in cases})
    kinds = tuple(_kind(name, [case for case in cases if case["kind"] == name]) for name in names)
    shapes = {
        name: frozenset(_shape(case) for case in cases if case["kind"] == name and case["equal"]) for name in names
    }
    wrong = [_identity(case) for case in cases if not case["equal"]]
    if len(wrong) > MOST:
        wrong = [*wrong[:MOST], f"and {len(wrong) - MOST:,} more"]
    state: State = "invalid" if problems else p["verdict"]
    return Entry(anchor, c.path, state, problems, c.signature, p, kinds, shapes, tuple(wrong))


def _kind(name: str, cases: Sequence[Mapping[str, Any]]) -> Kind:
    errors = [e for case in cases if (e := ulps(case["max_ulp_error"])) is not None]
    return Kind(
        name, len(cases), sum(not case["equal"] for case in cases), sum(int(case["compared"]) for case in cases),
        max(errors, default=None), len({_shape(case) for case in cases}),
    )  # fmt: skip


def _shape(case: Mapping[str, Any]) -> tuple[int, int]:
    return int(case["rows"]), int(case["cols"])


def _identity(case: Mapping[str, Any]) -> str:
    """A case as failures name it."""
    sides = [case["rows"], case["cols"], *([case["inner"]] if case.get("inner") is not None else [])]
    seed = "" if case["seed"] is None else f"#{case['seed']}"
    return f"{case['kind']}/{case['name']}@{'x'.join(map(str, sides))}{seed}"


def ulps(value: float | str | None) -> float | None:
    """An error as a number; certificates write infinity as a string."""
    return None if value is None else float(value)


def shown(value: float | None) -> str:
    """An error or a bound in four digits; nothing where it was not measured."""
    if value is None:
        return "–"
    return "inf" if math.isinf(value) else f"{value:.4g}"


def plural(number: int, word: str) -> str:
    """``1 certificate``, ``2 certificates``."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def counted(values: Iterable[object], of: int) -> list[str]:
    """Each value once, with how often it occurs where that is not always; the most frequent first."""
    found = Counter(map(str, values))
    rows = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [text if number == of else f"{text} ({number:,} of {of:,})" for text, number in rows]


def printable(text: str) -> str:
    """Text with escapes in place of what could steer a terminal, turn a line round, or not be written at all."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
