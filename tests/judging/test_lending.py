"""Layouts of lent memory: every element has a place of its own, and every byte that is written elsewhere is seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tokitai.judging.lending import EXPANDED, LAYOUTS, Memory, Placement, extent_of

SHAPES = ((1, 1), (3, 5), (5, 1), (1, 7), (4,), (1,), (0, 3), (3, 0), (2, 3, 4))


@pytest.mark.parametrize("kind", [None, *LAYOUTS])
@pytest.mark.parametrize("shape", SHAPES)
def test_elements_do_not_meet_and_lie_inside(shape: tuple[int, ...], kind: str | None) -> None:
    for size, gap in itertools.product((2, 4, 8), (1, 3, 16)):
        extent = extent_of(shape, size, kind, gap)
        places = [
            extent.first + sum(i * s for i, s in zip(at, extent.strides, strict=True))
            for at in itertools.product(*map(range, shape))
        ]
        assert all(0 <= p <= extent.nbytes - size for p in places)
        assert kind in EXPANDED or len({*places}) == len(places)
        apart = np.diff(np.sort(np.unique(places)))
        assert (apart >= size).all()


@pytest.mark.parametrize("kind", ["rows apart", "transposed", "every second column", "rows reversed"])
def test_every_byte_that_is_written_is_seen(kind: str) -> None:
    tensors = [("x", "f32", (3, 5)), ("limit", "i32", (3,))]
    values = {"x": np.arange(15, dtype=np.float32).reshape(3, 5), "limit": np.arange(3, dtype=np.int32)}
    memory = Memory(tensors, Placement({"x": kind, "limit": kind}, 1, 5))
    room = np.zeros(memory.nbytes, np.uint8)
    memory.fill(room, values)
    assert memory.changed([]) is None and (memory.after("x") == values["x"]).all()
    elements = np.zeros(memory.nbytes, np.uint8)
    memory.tensors[0].view(elements)[...] = np.frombuffer(b"\xff" * 4, np.float32)[0]
    for at in range(memory.nbytes):
        room[at] ^= 1
        said = memory.changed([])
        assert said is not None and said.startswith("changed its input x") == bool(elements[at])
        assert (memory.changed(["x"]) is None) == bool(elements[at])
        room[at] ^= 1
    assert memory.changed([]) is None
