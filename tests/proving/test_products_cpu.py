"""Accesses of the CPU's matrix products: proved as they are, refuted once source or header is wrong."""

from __future__ import annotations

import pytest

from tests.proving.changed import obligations, refuted


@pytest.mark.slow
def test_accesses_are_proved_to_lie_inside() -> None:
    found = obligations("linear_swiglu")
    assert {f"{name} is accessed inside" for name in ("in_x", "in_gate", "out_y", "right", "left", "tiles")} <= {*found}
    assert [o for o in found.values() if o.status != "proved"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("out_y", {"to_r = r0 + i * MR + y": "to_r = r0 + i * MR + y + 1"}),
        ("out_y", {"at(to_r, to_c, Part{cols_left}, product)": "at(to_r, to_c, Full{}, product)"}),
        ("in_x", {"count = min(stop * MR, height) - begin * MR": "count = (stop - begin) * MR"}),
        ("in_weight", {"data + (c0 + c) * stride + k0": "data + (c0 + c + 1) * stride + k0"}),
        ("right", {"(n * panels + q) * NR * depth;": "(n * panels + q + 1) * NR * depth;"}),
        ("left", {"packed + (i - begin) * MR * depth": "packed + i * MR * depth"}),
        ("tiles", {"(alone ? 0 : q * m_panels + i)": "(alone ? 0 : q * m_panels + i + 1)"}),
    ],
)
def test_wrong_indices_are_refuted(name: str, header: dict[str, str]) -> None:
    what = f"{name} is accessed inside"
    assert what in refuted(obligations("linear", headers=header, only=[what]))
