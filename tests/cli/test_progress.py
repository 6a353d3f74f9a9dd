"""The bar: on a terminal only, only for work that takes long, and never among results."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tokitai.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, delay: float, wait: float) -> tuple[str, str]:
    """Two verifications of a case each under a bar; what went to the results and to standard error."""
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    results = io.StringIO()
    with progress.Bar(2, results) as bar:
        for label in ("first", "second"):
            bar.start(label)
            bar.case("seeded/normal@1x1#0")
            deadline = time.monotonic() + wait
            while f"{label} (" not in stderr.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            bar.end(f"{label}: verified")
    return results.getvalue(), stderr.getvalue()


def test_a_terminal_shows_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    results, shown = work(monkeypatch, Terminal(), 0.01, wait=30.0)
    assert results == "first: verified\nsecond: verified\n"
    assert "first (1 of 2), cases: 1" in shown
    assert "second (2 of 2), cases: 1" in shown
    assert "verified" not in shown


@pytest.mark.parametrize(("stderr", "delay"), [(io.StringIO(), 0.01), (Terminal(), 60.0)], ids=["a file", "short work"])
def test_otherwise_nothing_is_shown(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, delay: float) -> None:
    assert work(monkeypatch, stderr, delay, wait=0.3) == ("first: verified\nsecond: verified\n", "")
