"""Room for the buffers of the CPU's products: proved as it is, refuted once plan or header is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proving.changed import obligations, refuted
from tokitai.families.matmul import plan as products
from tokitai.families.matmul.plan import ProductPlan
from tokitai.lang import Sizes
from tokitai.proving.buffers import ROOM, Buffers

LEVELS = "of_team = level * (1 + levels)"


@pytest.mark.parametrize("name", ["linear", "linear_swiglu", "grouped_linear", "grouped_linear_backward_weight"])
def test_there_is_room(name: str) -> None:
    assert obligations(name, walk=Buffers)[ROOM].status == "proved"


def test_a_level_more_than_the_plan_has_room_for_is_refuted() -> None:
    assert ROOM in refuted(obligations("linear", headers={LEVELS: "of_team = level * (2 + levels)"}, walk=Buffers))


def test_panels_that_are_larger_than_the_plan_says_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PANEL_ROWS", 2)
    sizes = refuted(obligations("linear", walk=Buffers))[ROOM]
    assert sizes["rows"] % 6  # lines of a panel in vectors of 8


def test_levels_that_lack_at_one_number_of_chains_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ProductPlan.bytes_for

    def fewer(self: ProductPlan, sizes: Sizes, *rest: Any) -> int:
        if -(-sizes.inner // 4096) == 2**17:
            sizes = Sizes(sizes[0], sizes[1], sizes.inner - 4096, sizes.batch)
        return asked(self, sizes, *rest)

    monkeypatch.setattr(ProductPlan, "bytes_for", fewer)
    sizes = refuted(obligations("linear", walk=Buffers))[ROOM]
    assert -(-sizes["inner"] // 4096) == 2**17
