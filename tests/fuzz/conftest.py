"""Makes the fuzzer's modules importable, whatever pytest's import mode, and prints what it found with its seed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The seed, and how many graphs were verified and how many refused by which reason, of all processes together."""
    found: Counter[str] = Counter()
    seeds = set()
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name == "fuzzed" and report.when == "call":
                seeds.add(value["seed"])
                found.update(json.loads(value["counts"]))
    if found:
        said = ", ".join(map(str, seeds))
        terminalreporter.section(f"fuzzed graphs: {sum(found.values())}, TOKITAI_FUZZ_SEED={said}")
        for outcome, count in found.most_common():
            terminalreporter.write_line(f"{count:6} {outcome}")
