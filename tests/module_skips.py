"""A module of tests that is skipped as a whole is named at the end of a run, and fails it in continuous integration.

One skipped test says what a machine lacks. A module without one test that ran may be a package that was forgotten, so
where the environment variable `CI` is set, such a module fails the run, unless all its tests are marked `gpu`, or
`MAY_BE_SKIPPED` names it with a reason.
"""

from __future__ import annotations

import os

import pytest

GPU = "gpu"  # the marker of tests that need one: where all that is skipped in a module carries it, nothing is forgotten
MAY_BE_SKIPPED = {
    "tests/device/test_large_cuda.py": "needs an NVIDIA GPU to be collected",
    "tests/device/test_tables_cuda.py": "needs an NVIDIA GPU to be collected",
    "tests/judging/test_judge_on_a_gpu.py": "needs an NVIDIA GPU to be collected",
}


class ModuleSkips:
    """Collects the outcome of every test by its module, in the process that reports."""

    def __init__(self, allowed: dict[str, str], fatal: bool) -> None:
        self.allowed = allowed
        self.fatal = fatal
        self.ran: set[str] = set()
        self.skipped: dict[str, str] = {}  # the module, and the reason of its last skip

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself while it is imported has no tests that could say so."""
        if report.skipped:
            self.note(report.nodeid, report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that is expected to fail, and does, has run."""
        module = report.nodeid.partition("::")[0]
        if report.skipped and not hasattr(report, "wasxfail"):
            if GPU not in report.keywords:
                self.note(module, report.longrepr)
        elif report.when == "call":
            self.ran.add(module)

    def note(self, module: str, reason: object) -> None:
        """Record a skip and its reason, which pytest gives as the last of a triple."""
        self.skipped[module] = str(reason[-1] if isinstance(reason, tuple) else reason)

    def unexpected(self) -> dict[str, str]:
        """The modules that were skipped as a whole and are not allowed to be, with a reason each."""
        return {m: why for m, why in self.skipped.items() if m not in self.ran and m not in self.allowed}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that would otherwise pass."""
        if self.fatal and self.unexpected() and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name them."""
        found = self.unexpected()
        if found:
            terminalreporter.section("modules of which every test was skipped")
        for module, why in sorted(found.items()):
            terminalreporter.write_line(f"{module}: {why}")
        if found and self.fatal:
            terminalreporter.write_line(f"this fails in continuous integration; accepted: {sorted(self.allowed)}")


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that reports sees all outcomes."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ModuleSkips(MAY_BE_SKIPPED, bool(os.environ.get("CI"))), "module_skips")
