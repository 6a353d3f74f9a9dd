"""Boxes against sets of indices, and blocks against row-major order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai.glue.boxes import BLOCK_BYTES, Blocks, Box, extents, meet, uncovered, volume, within

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def boxes_of(draw: st.DrawFn) -> tuple[Box, list[Box]]:
    shape = draw(SHAPES)
    whole = tuple((0, n) for n in shape)
    side = [st.tuples(st.integers(0, n), st.integers(0, n)).map(lambda p: (min(p), max(p))) for n in shape]
    return whole, draw(st.lists(st.tuples(*side), max_size=6))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(*side) for side in box)))


@given(boxes_of())
@settings(max_examples=300, deadline=None)
def test_what_is_not_covered(case: tuple[Box, list[Box]]) -> None:
    whole, boxes = case
    held = set().union(*map(elements, boxes)) if boxes else set()
    gaps = list(uncovered(whole, boxes))
    assert sum(map(volume, gaps)) == len(elements(whole) - held)
    assert set().union(*map(elements, gaps)) == elements(whole) - held
    if gaps:
        assert tuple(start for start, _ in gaps[0]) == min(elements(whole) - held)


@given(boxes_of())
@settings(max_examples=200, deadline=None)
def test_meet_and_within(case: tuple[Box, list[Box]]) -> None:
    for a, b in itertools.combinations(case[1], 2):
        common = elements(a) & elements(b)
        found = meet(a, b)
        assert (elements(found) if found is not None else set()) == common
        if volume(a):
            assert within(a, b) == (elements(a) <= elements(b))


@pytest.mark.parametrize(
    ("shape", "item_bytes"),
    [
        ((), 4), ((0,), 4), ((3, 0, 2), 4), ((5,), 1), ((BLOCK_BYTES + 3,), 1), ((7, BLOCK_BYTES // 4), 2),
        ((3, BLOCK_BYTES + 1), 1), ((2, 3, BLOCK_BYTES // 16), 8), ((1000, 1000), 4), ((2, 2, 300, 900), 4),
    ],
)  # fmt: skip
def test_blocks_are_contiguous_pieces_in_order(shape: tuple[int, ...], item_bytes: int) -> None:
    blocks, at = Blocks.of(shape, item_bytes), 0
    for number, index in enumerate(blocks.all()):
        box = blocks.box(index)
        assert blocks.number(index) == number
        assert 0 < volume(box) * item_bytes <= BLOCK_BYTES
        first = np.ravel_multi_index([start for start, _ in box], shape) if shape else 0
        last = np.ravel_multi_index([stop - 1 for _, stop in box], shape) if shape else 0
        assert (first, last) == (at, at + volume(box) - 1), "not contiguous, or out of order"
        at += volume(box)
    assert at == np.prod(shape, dtype=int)


@given(boxes_of(), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_blocks_that_boxes_touch(case: tuple[Box, list[Box]], rows: int) -> None:
    whole, boxes = case
    for axis in range(max(1, len(whole))):
        blocks = Blocks(extents(whole), axis, rows)
        touched = [at for at in blocks.all() if any(volume(b) and meet(blocks.box(at), b) is not None for b in boxes)]
        assert blocks.touching(boxes) == touched
