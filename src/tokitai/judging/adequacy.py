"""Whether cases tell a kernel from null candidates, which compute nothing.

A case that zeros pass, or the input as it came, shows nothing about a kernel that passes it. So each result of a case
is held against answers that no kernel should get away with, within the same bounds: which of them pass is counted, and
a result that no case tells from one of them is not judged to be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

from ..verification.cases import Array
from . import special
from .reference import Expected

LARGEST = 1 << 12  # elements of a result that is asked
SMALLER = {32: ml_dtypes.bfloat16, 16: ml_dtypes.float8_e4m3fn}  # by the bits of the format


class Adequacy:
    """Which null candidates pass, of the results of the cases that were ``asked``; ``told``: of how many of these all
    of them fail."""

    def __init__(self, forgiven: Collection[int] = ()) -> None:
        self.forgiven = forgiven
        self.asked = self.told = 0
        self.passed: Counter[str] = Counter()
        self._passed: dict[str, set[str]] = {}  # by result: what passed every case

    def ask(
        self, wanted: Sequence[Expected], inputs: Mapping[str, Array],
        earlier: Mapping[tuple[str, tuple[int, ...]], Collection[Array]],
    ) -> None:  # fmt: skip
        """Hold the null candidates of each result. ``earlier``: answers of earlier calls, by result and size."""
        for e in wanted:
            name = e.output.name
            if not 0 < e.defined.size <= LARGEST or not (e.kinds == special.ORDINARY).any():
                continue
            stale = earlier.get((name, e.defined.shape), ())
            passed = {said for said, answer in _nulls(e, inputs, stale) if self._passes(e, answer)}
            self.asked += 1
            self.passed.update(passed)
            self.told += not passed
            self._passed[name] = self._passed.get(name, passed) & passed

    def _passes(self, e: Expected, answer: Array) -> bool:
        """Whether no element of ordinary values is wrong: a NaN that is missed tells nothing of accuracy."""
        return not e.alone(answer, self.forgiven).wrong_of.get(special.ORDINARY)

    def untold(self) -> dict[str, list[str]]:
        """The results that no case tells from some null candidates, and from which."""
        return {name: sorted(passed) for name, passed in self._passed.items() if passed}


def _nulls(e: Expected, inputs: Mapping[str, Array], stale: Collection[Array]) -> Iterator[tuple[str, Array]]:
    defined = e.defined
    yield "zeros", np.zeros_like(defined)
    yield "ones", np.ones_like(defined)
    if defined.size > 1:
        yield "one value", np.full_like(defined, defined.reshape(-1)[defined.size // 2])
        yield "its own elements, each in the place of the next", np.roll(defined.reshape(-1), 1).reshape(defined.shape)
    for name, x in inputs.items():
        if x.dtype == defined.dtype and x.size == defined.size:
            yield f"the input {name}", x.reshape(defined.shape)
    for answer in stale:
        yield "an earlier answer", answer
    if e.fmt.is_float and e.limit is not None:
        with np.errstate(all="ignore"):
            smaller = defined.astype(SMALLER[e.fmt.bits]).astype(defined.dtype)
        if not np.array_equal(smaller, defined, equal_nan=True):  # not of small whole numbers
            yield "itself, rounded to a smaller format", smaller
