"""Candidates: third-party kernels that the judge must refuse, for the right reason, and such that it must accept.

A file of candidates is loaded in two ways: by the tests, for the list, and by the judge's process, for the function.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A kernel: what kind of fault it has, which operator it claims to be, and what the judge has to say of it (None:
    it has to be accepted). ``how``: further arguments of the judge."""

    name: str
    kind: str
    op: str
    says: str | None
    how: dict[str, Any] = field(default_factory=dict)


LISTED: list[tuple[str, Candidate]] = []  # the file's module, and the candidate


def wrong(kind: str, op: str, says: str, **how: Any) -> Callable[[Any], Any]:
    """A kernel that must be refused."""
    return _listed(kind, op, says, how)


def right(kind: str, op: str, **how: Any) -> Callable[[Any], Any]:
    """A kernel that must be accepted."""
    return _listed(kind, op, None, how)


def _listed(kind: str, op: str, says: str | None, how: dict[str, Any]) -> Callable[[Any], Any]:
    def listed(function: Any) -> Any:
        LISTED.append((function.__module__, Candidate(function.__name__, kind, op, says, how)))
        return function

    return listed
