"""Emitted sources and launches are what was recorded: moving code changes none of them by a byte."""

from __future__ import annotations

import pytest

from tests.snapshot import emitted
from tests.snapshot.definitions import OWN
from tests.snapshot.emitted import TARGETS, differences, read, written
from tokitai.ops import registry
from tokitai.verification.variant import variants


def recorded() -> dict[str, str]:
    return read(emitted.RECORDED.read_text())


def refuse(lines: list[str]) -> None:
    """Fail where there are differences, and name the first of them."""
    assert not lines, "\n".join([
        f"{len(lines)} digests differ; where that is meant: python -m tests.snapshot.emitted --write", *lines[:50]
    ])  # fmt: skip


def test_a_few_operators_emit_what_was_recorded() -> None:
    found = emitted.quick().digests
    assert {key.split()[0] for key in found} == {*emitted.QUICK, "header", "flags"}
    refuse(differences(recorded(), found, every=False))


@pytest.mark.slow
def test_every_operator_emits_what_was_recorded() -> None:
    refuse(differences(recorded(), emitted.everything().digests))


def test_every_operator_is_recorded_for_every_target() -> None:
    keys = recorded().keys()
    rows = {key.rsplit(" ", 2)[0] for key in keys}
    wanted = {f"{o.name} {dtype} {v}{built}" for o in (*registry().values(), *OWN) for dtype in o.contract.formats
              for v in variants(o, dtype) for built in ("", " structure")}  # fmt: skip
    assert wanted == {row for row in rows if row.split()[0] not in ("header", "flags", "device-check")}
    assert {f"{row} {target} {what}" for row in wanted for target in TARGETS for what in ("source", "launch")} <= keys


def test_keys_that_differ_are_named() -> None:
    before = {"softmax f16 plain cpu source": "01234567", "header rows.h cpu source": "abcdef01"}
    after = {"softmax f16 plain cpu source": "76543210", "softmax f16 plain cpu launch": "00000000"}
    assert differences(before, after) == [
        "changed: softmax f16 plain cpu source", "new: softmax f16 plain cpu launch", "gone: header rows.h cpu source",
    ]  # fmt: skip
    assert read(written(before)) == before and read(written(after)) == after
