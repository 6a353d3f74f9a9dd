"""The axioms of a sheaf, over drawn covers of drawn tensors.

Restriction: what is glued restricts to the sections. Locality: tensors with the same restrictions are the same tensor.
Gluing: sections that agree on overlaps have a whole; sections that do not have an obstruction, which names what a
comparison of all elements with all others finds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import reference_digest

from tokitai.glue import Glued, Obstruction, Section, boxes, check, glue

Array = np.ndarray[Any, Any]
KINDS = (np.uint8, np.float16, np.float32, np.int64)


@dataclass
class Drawn:
    whole: Array
    sections: list[Section]

    def holders(self, index: tuple[int, ...]) -> list[Section]:
        """The sections that hold an element."""
        return [s for s in self.sections if all(a <= i < b for i, (a, b) in zip(index, s.box, strict=True))]


def section(rank: int, whole: Array, box: boxes.Box) -> Section:
    part = np.array(whole[tuple(slice(*side) for side in box)])
    return Section(str(rank), "w", part, [start for start, _ in box], whole.shape)


@st.composite
def covers(draw: st.DrawFn) -> Drawn:
    """A tensor of arbitrary bits and boxes that cover it: drawn ones, and what is left of it."""
    shape = draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    kind = np.dtype(draw(st.sampled_from(KINDS)))
    size = int(np.prod(shape, dtype=int)) * kind.itemsize
    whole = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), kind).reshape(shape)
    side = [
        st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(lambda p: (min(p), max(p[1], p[0] + 1))) for n in shape
    ]
    some = draw(st.lists(st.tuples(*side), min_size=1, max_size=5))
    rest = list(boxes.uncovered(tuple((0, n) for n in shape), some))
    order = draw(st.permutations([*some, *rest]))
    return Drawn(whole, [section(rank, whole, box) for rank, box in enumerate(order)])


@pytest.fixture(autouse=True, params=[16, 2**20], ids=["small blocks", "blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "BLOCK_BYTES", request.param)


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


def glued(sections: list[Section]) -> Glued:
    result = glue(sections, threads=2)
    assert isinstance(result, Glued), str(result)
    return result


@given(covers())
@settings(max_examples=60, deadline=None)
def test_restrictions_of_a_tensor_glue_to_it(drawn: Drawn) -> None:
    result = glued(drawn.sections)
    assert (bits(result.arrays["w"]) == bits(drawn.whole)).all()
    assert check(drawn.sections) is None
    if drawn.whole.nbytes < boxes.BLOCK_BYTES:
        names = {"uint8": "U8", "float16": "F16", "float32": "F32", "int64": "I64"}
        assert result.tensors[0].dtype == names[drawn.whole.dtype.name]
    for s in drawn.sections:
        part = result.arrays["w"][tuple(slice(*side) for side in s.box)]
        assert (bits(part) == bits(s.values)).all(), "the whole does not restrict to a section"


@given(covers(), st.data())
@settings(max_examples=60, deadline=None)
def test_tensors_with_the_same_restrictions_are_the_same(drawn: Drawn, data: st.DataObject) -> None:
    """Locality, as its contrapositive: where one bit differs, a section differs, and so does the digest."""
    first = glued(drawn.sections)
    other = drawn.whole.copy().reshape(-1)
    at = data.draw(st.integers(0, other.size - 1))
    other.view(f"u{other.dtype.itemsize}")[at] ^= 1 << data.draw(st.integers(0, 8 * other.dtype.itemsize - 1))
    sections = [section(int(s.rank), other.reshape(drawn.whole.shape), s.box) for s in drawn.sections]
    second = glued(sections)
    assert second.digest != first.digest
    assert any((bits(a.values) != bits(b.values)).any() for a, b in zip(drawn.sections, sections, strict=True))
    again = glued(drawn.sections[::-1])
    assert again.digest == first.digest, "the order of sections is in the digest"


def expected(drawn: Drawn) -> tuple[dict[tuple[str, str], tuple[tuple[int, ...], int]], set[frozenset[str]]]:
    """Every disagreement with the first section that holds an element, and ranks in conflict, element by element."""
    found: dict[tuple[str, str], tuple[tuple[int, ...], int]] = {}
    conflicts = set()
    for index in itertools.product(*map(range, drawn.whole.shape)):
        holders = drawn.holders(index)
        seen = [int(bits(s.values)[tuple(i - a for i, (a, _) in zip(index, s.box, strict=True))]) for s in holders]
        for (i, x), (j, y) in itertools.combinations(enumerate(seen), 2):
            if x != y:
                conflicts.add(frozenset((holders[i].rank, holders[j].rank)))
                if i == 0:
                    key = (holders[i].rank, holders[j].rank)
                    first, count = found.get(key, (index, 0))
                    found[key] = (first, count + 1)
    return found, conflicts


@given(covers(), st.data())
@settings(max_examples=120, deadline=None)
def test_every_flipped_bit_is_an_obstruction_or_another_tensor(drawn: Drawn, data: st.DataObject) -> None:
    before = glued(drawn.sections).digest
    for _ in range(data.draw(st.integers(1, 4))):
        s = data.draw(st.sampled_from(drawn.sections))
        flat = bits(s.values).reshape(-1)
        flat[data.draw(st.integers(0, flat.size - 1))] ^= 1 << data.draw(st.integers(0, 8 * flat.itemsize - 1))
    wanted, conflicts = expected(drawn)
    result = glue(drawn.sections, threads=data.draw(st.integers(1, 2)))
    assert check(drawn.sections) == (result if wanted else None)
    if not wanted:
        whole = drawn.whole.copy()
        for s in drawn.sections:
            whole[tuple(slice(*side) for side in s.box)] = s.values
        assert isinstance(result, Glued) and (bits(result.arrays["w"]) == bits(whole)).all()
        assert (result.digest == before) == (bits(whole) == bits(drawn.whole)).all()
        return
    assert isinstance(result, Obstruction) and not result.gaps and not result.conflicts
    assert {d.ranks: (d.index, d.count) for d in result.disagreements} == wanted
    for d in result.disagreements:
        by_rank = {s.rank: s for s in drawn.sections}
        for rank, shown in zip(d.ranks, d.bits, strict=True):
            s = by_rank[rank]
            at = tuple(i - a for i, (a, _) in zip(d.index, s.box, strict=True))
            assert shown == f"0x{int(bits(s.values)[at]):0{2 * s.values.itemsize}x}"
    assert {r for c in result.classes for r in c} == {r for pair in conflicts for r in pair}
    for ranks in result.classes:
        assert not any(frozenset(pair) in conflicts for pair in itertools.combinations(ranks, 2))


@given(covers(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_gap_is_named(drawn: Drawn, data: st.DataObject) -> None:
    left = [s for s in drawn.sections if data.draw(st.booleans())]
    held = np.zeros(drawn.whole.shape, bool)
    for s in left:
        held[tuple(slice(*side) for side in s.box)] = True
    if not left or held.all():
        return
    result = glue(left)
    assert isinstance(result, Obstruction) and not result.disagreements
    (gap,) = result.gaps
    assert gap.index == tuple(np.argwhere(~held)[0]) and gap.count == (~held).sum()
    assert check(left) is None, "gaps are no matter of check"


def test_the_digest_is_the_one_that_is_defined() -> None:
    if boxes.BLOCK_BYTES != 2**20:
        return
    rng = np.random.default_rng(0)
    tensors = {
        "b": rng.standard_normal((700, 513)).astype(np.float32), "a": rng.integers(0, 9, 3_000_001).astype(np.uint8),
        "é": np.array(1.0, np.float16), "none": np.zeros((4, 0), np.int64),
    }  # fmt: skip
    parts = [Section("0", n, a) for n, a in tensors.items() if n != "b"]
    parts += [Section(str(i), "b", tensors["b"][:, i : i + 200], (0, i), (700, 513)) for i in range(0, 513, 150)]
    assert glued(parts).digest == reference_digest(tensors)
