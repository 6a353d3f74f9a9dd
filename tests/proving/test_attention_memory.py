"""Room in the workspace of the CPU's attention: proved as it is, refuted once plan or source is wrong."""

from __future__ import annotations

import pytest

from tests.proving.changed import obligations, refuted
from tokitai.errors import ProofError
from tokitai.families.attention import plan as attention_plan
from tokitai.proving.attention_memory import ROOM

PANEL = "memory.take(round_up(cols, MR) * NR + WIDTH)"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention_backward"])
def test_there_is_room_for_the_pieces_of_each_thread(name: str) -> None:
    assert {what: o.status for what, o in obligations(name).items()} == {ROOM: "proved"}


@pytest.mark.slow
def test_a_piece_for_two_panels_is_refuted() -> None:
    assert ROOM in refuted(obligations("attention", {PANEL: PANEL.replace("* NR", "* 4 * NR")}))


@pytest.mark.slow
def test_pending_partials_that_a_plan_forgets_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is more than one chain of keys alone."""
    monkeypatch.setattr(attention_plan, "_levels", lambda terms: 0)
    assert refuted(obligations("attention"))[ROOM]["cols"] > 4096


def test_a_memory_that_is_taken_in_another_way_is_not_read() -> None:
    with pytest.raises(ProofError, match=r"take is not found.*accepted"):
        obligations("attention", headers={"size += round_up(count, 16)": "size += round_up(count, 8)"})
