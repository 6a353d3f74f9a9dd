"""Mutants that do what the right program does, and why: no verification can refute them."""

from __future__ import annotations

import re

from tests.mutants.program import Mutant

SAME_CODE = "the compiler makes the same machine code of it as of the right program"
REASONS: dict[str, tuple[str, ...]] = {
    "it says what is fetched into a cache beforehand, and nothing is read from there but what would be read anyway": (
        r".*: .*\bprefetch\(.*", r".*: .*_next = .*",
    ),
    "it decides whether stores pass the caches by, which changes no bit": (r".*: const bool \w+_streams = .*",),
}  # fmt: skip


def why_equivalent(device: str, mutant: Mutant) -> str | None:
    """The reason; None where the mutant is a wrong program."""
    return next((why for why, some in REASONS.items() if any(re.fullmatch(p, str(mutant)) for p in some)), None)
