"""The public names of the package are exactly those listed in public_names.txt: a change to them is a decision."""

from __future__ import annotations

from pathlib import Path

import tokitai

LISTED = (Path(__file__).parent / "public_names.txt").read_text().split()


def test_public_names_are_pinned() -> None:
    assert sorted(tokitai.__all__) == LISTED
    assert LISTED, "public_names.txt lists nothing"


def test_public_names_exist() -> None:
    assert [name for name in LISTED if not hasattr(tokitai, name)] == []
