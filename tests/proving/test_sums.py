"""The order of sums for every count: the counters of the headers are proved, and refuted once a loop is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest

from tokitai import emit
from tokitai.emit.counters import COUNTERS, Counter, digest, proved
from tokitai.errors import ProofError
from tokitai.proving.sums import obligations, present

LOOP = re.compile(r"for \([^;]*; \w+ & 1;[^\n]*")  # over the pending sums that a new value joins


def of(name: str) -> Counter:
    (found,) = [c for c in COUNTERS if c.id == name]
    return found


def wrong(counter: Counter, old: str, new: str) -> set[str]:
    """What is refuted of a counter whose header is changed."""
    source = present()[counter]
    assert old in source
    changed = replace(counter, push=counter.push.replace(old, new), last=counter.last.replace(old, new))
    found = obligations(20.0, {changed: source.replace(old, new)})
    return {o.name.partition(": ")[2] for o in found if o.status == "refuted"}


@pytest.mark.slow
def test_what_is_on_record_is_proved() -> None:
    recorded = [(of(name), source) for name, sources in proved().items() for source in sources.values()]
    found = [o for c, source in recorded for o in obligations(20.0, {c: source})]
    assert len(found) > 35 and [o for o in found if o.status != "proved"] == []


def test_the_record_has_what_the_headers_have() -> None:
    """Else `python -m tools.prove_sums` is to be run again."""
    missing = [c.id for c, source in present().items() if digest(source) not in proved().get(c.id, {})]
    assert missing == []
    assert all(d == digest(source) for sources in proved().values() for d, source in sources.items())


def test_every_loop_over_pending_sums_is_a_counters() -> None:
    known = {c.header: source for c, source in present().items()}
    found = {}
    for target in ("cpu", "gpu"):
        for file in (resources.files(emit) / target).iterdir():
            if loops := LOOP.findall(file.read_text()):
                found[f"{target}/{file.name}"] = loops
    assert found.keys() == known.keys()
    assert all(loop in known[header] for header, loops in found.items() for loop in loops)


def test_sums_that_change_sides_are_refuted() -> None:
    found = wrong(of("gpu/rows.h BinaryCounter"), "x = Op::of(level[i], x);", "x = Op::of(x, level[i]);")
    assert "an iteration joins neighbours to the node of the next level" in found
    assert "after the last value an iteration joins neighbours" in found


def test_a_level_that_is_left_out_is_refuted() -> None:
    found = wrong(of("gpu/rows.h BinaryCounter"), "k & 1; k >>= 1, ++i)", "k & 1; k >>= 2, ++i)")
    assert "an iteration joins neighbours to the node of the next level" in found


def test_a_loop_that_goes_on_too_long_is_refuted() -> None:
    found = wrong(of("gpu/rows.h BinaryCounter"), "int64_t k = count; k & 1;", "int64_t k = count; k;")
    assert found


def test_a_last_loop_that_misses_a_level_is_refuted() -> None:
    found = wrong(of("gpu/products.h join_chain"), "if (rest & 1) add_pending(pending);",
                  "if (rest & 3) add_pending(pending);")  # fmt: skip
    assert "after the last value an iteration joins neighbours" in found


def test_a_loop_that_is_not_there_is_named() -> None:
    with pytest.raises(ProofError, match="no loop"):
        list(obligations(1.0, {of("gpu/rows.h BinaryCounter"): ""}))
