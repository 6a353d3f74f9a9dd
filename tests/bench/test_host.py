"""The timing of warm calls in host memory: what is timed runs, and is a replay."""

from __future__ import annotations

import pytest

from bench import host
from tokitai.runtime import call as calls


def test_what_is_timed_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = calls.call_checked
    monkeypatch.setattr(
        calls, "call_checked", lambda operator, *rest: (checked.append(operator.name), real(operator, *rest))[1]
    )
    table = host.calls()
    for call, _ in table.values():
        call()
    checked.clear()
    for call, _ in table.values():
        call()
    assert set(checked) == {"adamw"}, "lists are checked each time"
