"""The figures of products that leave out pairs of tiles."""

import json
import sys

import pytest

from bench import skipping


def test_every_modulus_and_share_is_timed_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["skipping", "600", "1"])
    skipping.main()
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {r["modulus"] for r in made} == {"2^32", "5^8"} and all(r["same"] for r in made)
    assert [r["kept"] == 1 for r in made] == [r["share"] == 0 for r in made]
    assert all(set(r["ms"]["cpu"]) == {"skipping", "all"} for r in made)
