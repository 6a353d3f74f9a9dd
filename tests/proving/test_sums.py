"""The order of sums for every count: the counters of the headers are proved, and refuted once a loop is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokitai.errors import ProofError
from tokitai.proving.sums import Counter, counters, obligations


def of(header: str, name: str) -> Counter:
    (found,) = [c for c in counters() if (c.header, c.name) == (header, name)]
    return found


def wrong(counter: Counter, old: str, new: str) -> set[str]:
    """What is refuted of a counter whose header is changed."""
    assert old in counter.text
    changed = replace(
        counter, text=counter.text.replace(old, new), push=counter.push.replace(old, new),
        last=counter.last.replace(old, new),
    )  # fmt: skip
    return {o.name.partition(": ")[2] for o in obligations(20.0, [changed]) if o.status == "refuted"}


def test_a_counter_is_proved() -> None:
    found = list(obligations(20.0, [of("gpu/rows.h", "BinaryCounter::push")]))
    assert len(found) == 3 and all(o.status == "proved" for o in found)


@pytest.mark.slow
def test_every_counter_is_proved() -> None:
    found = list(obligations(20.0))
    assert len(found) > 20 and [o for o in found if o.status != "proved"] == []


def test_sums_that_change_sides_are_refuted() -> None:
    found = wrong(of("gpu/rows.h", "BinaryCounter::push"), "x = Op::of(level[i], x);", "x = Op::of(x, level[i]);")
    assert "an iteration joins neighbours to the node of the next level" in found


def test_a_level_that_is_left_out_is_refuted() -> None:
    counter = of("gpu/rows.h", "BinaryCounter::push")
    found = wrong(counter, "k & 1; k >>= 1, ++i)", "k & 1; k >>= 2, ++i)")
    assert "an iteration joins neighbours to the node of the next level" in found


def test_a_loop_that_goes_on_too_long_is_refuted() -> None:
    found = wrong(of("gpu/rows.h", "BinaryCounter::push"), "int64_t k = count; k & 1;", "int64_t k = count; k;")
    assert found


def test_a_last_loop_that_misses_a_level_is_refuted() -> None:
    chain = of("gpu/products.h", "join_chain")
    found = wrong(chain, "if (rest & 1) add_pending(pending);", "if (rest & 3) add_pending(pending);")
    assert "after the last value an iteration joins neighbours" in found


def test_a_loop_that_is_not_there_is_named() -> None:
    with pytest.raises(ProofError, match="no loop"):
        list(obligations(1.0, [replace(of("gpu/rows.h", "BinaryCounter::push"), text="")]))
