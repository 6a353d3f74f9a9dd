"""What holds for all tests: a test marked `gpu` is skipped, with its reason, on a machine without an NVIDIA GPU; what
tests say that draw their cases stands at the end."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests import module_skips


def pytest_configure(config: pytest.Config) -> None:
    """Have modules that are skipped as a whole named at the end."""
    module_skips.pytest_configure(config)


def reason_without_gpu() -> str | None:
    """Why tests marked `gpu` cannot run here, or None where they can."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no NVIDIA GPU: nvidia-smi is not installed"
    found = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, check=False)
    if found.returncode or not found.stdout.strip():
        return f"no NVIDIA GPU: nvidia-smi lists {found.stdout.strip() or found.stderr.strip() or 'none'}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say why. Refuse names that differ from process to process."""
    # a set of strings prints in an order that each process draws anew: two workers would not agree on the tests
    unstable = [item.nodeid for item in items if "frozenset({" in item.nodeid or " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError(f"{len(unstable)} names of tests differ from process to process: {unstable[0]}")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = reason_without_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Has a line printed at the end of the run, also where tests run in several processes: seeds, and how many were
    drawn."""
    return lambda line: record_property("said", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests say, under their names."""
    called = [r for several in terminalreporter.stats.values() for r in several if getattr(r, "when", "") == "call"]
    said = [(r.nodeid, line) for r in called for name, line in r.user_properties if name == "said"]
    if said:
        terminalreporter.section("what was drawn")
    for test, line in said:
        terminalreporter.write_line(f"{test}: {line}")
