"""Candidates of every kind of fault that was accepted once, and right ones that were refused: each with its reason.

``python -m tests.judging.test_candidates`` judges them all and prints both lists.
"""

from __future__ import annotations

import importlib
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tokitai
from tokitai.judging import Judgement
from tokitai.ops import get
from tokitai.verification.verdict import Variant

FOLDER = Path(__file__).parent / "candidates"
FILES = ("calls", "hostile", "layouts", "others", "precision", "scalars", "sizes", "with_torch", "zeros")


def listed() -> dict[str, Any]:
    """Every candidate by file and name."""
    sys.path.append(str(FOLDER))
    try:
        for name in FILES:
            if name != "with_torch" or find_spec("torch"):
                importlib.import_module(name)
        found = importlib.import_module("listed").LISTED
    finally:
        sys.path.remove(str(FOLDER))
    return {f"{module}:{candidate.name}": candidate for module, candidate in found}


EVERY = listed()


def judged(which: str, seed: int = 0) -> Judgement:
    """Judge one, up to its first wrong case."""
    candidate = EVERY[which]
    how = dict(candidate.how)
    operator = get(candidate.op)
    without = how.pop("without", ())
    given = frozenset(t.name for t in operator.tensors if t.optional and t.name not in without)
    file = FOLDER / f"{which.partition(':')[0]}.py"
    return tokitai.judge(
        (file, candidate.name), operator, variant=Variant(given), seed=seed, seconds=60, first=True,
        explain_seconds=0, **how,
    )  # fmt: skip


def reason(made: Judgement) -> str:
    """Why it was refused."""
    return "\n".join(f"{f.case}: {f.what} {f.where}" for f in made.failures) or str(made.undecided)


def verdict(which: str, seed: int = 0) -> tuple[bool, str]:
    """Whether the judge says what it should, and what it says."""
    made, says = judged(which, seed), EVERY[which].says
    if says is None:
        return made.verdict == "verified", "verified" if made.verdict == "verified" else reason(made)
    return made.verdict == "refuted" and says in reason(made), reason(made)


@pytest.mark.slow
@pytest.mark.parametrize("which", [pytest.param(w, id=f"{'right' if c.says is None else 'wrong'}-{w}")
                                   for w, c in EVERY.items()])  # fmt: skip
def test_a_candidate(which: str) -> None:
    as_it_should, said = verdict(which)
    assert as_it_should, said


def test_there_are_as_many_as_were_promised() -> None:
    wrong = [c for c in EVERY.values() if c.says is not None]
    assert len(wrong) >= 100 and len(EVERY) - len(wrong) >= 25
    assert len({c.kind for c in wrong}) >= 50


def main() -> int:
    """Judge all, and print the lists of those that were refused, with the reason, and accepted."""
    lists: dict[str, list[str]] = {"refused": [], "accepted": [], "NOT AS IT SHOULD BE": []}
    wanted = sys.argv[1:]
    for which, candidate in EVERY.items():
        if wanted and not any(w in which for w in wanted):
            continue
        started = time.perf_counter()
        as_it_should, said = verdict(which)
        line = f"{candidate.kind} | {candidate.op} | {which} | {said.splitlines()[0][:150]}"
        where = "NOT AS IT SHOULD BE" if not as_it_should else "accepted" if candidate.says is None else "refused"
        lists[where].append(line)
        print(f"{time.perf_counter() - started:6.1f} s  {where}: {line}", file=sys.stderr, flush=True)
    for title, lines in lists.items():
        print(f"\n{title}: {len(lines)}")
        print("\n".join(f"  {line}" for line in sorted(lines)))
    return bool(lists["NOT AS IT SHOULD BE"])


if __name__ == "__main__":
    raise SystemExit(main())
