"""``python -m bench.run [OP ...]``: ``tokitai bench``, with the figures of this repository's machines in bench/results.

Takes the options of ``tokitai bench``. Records are added to bench/results/cpu.jsonl, and the table bench/results/cpu.md
and the plot bench/results/cpu.svg are written anew from all of them; with ``--out FILE`` they go there alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokitai.bench import report
from tokitai.cli import run

RESULTS = Path(__file__).parent / "results"
WRITTEN = "Written by `python -m bench.run`; every run is in `cpu.jsonl`, the latest figures of each row are below.\n"


def main(words: list[str]) -> int:
    """The exit code of ``tokitai bench``."""
    if "--out" in words:
        return run(["bench", *words])
    kept = RESULTS / "cpu.jsonl"
    code = run(["bench", *words, "--out", str(kept)])
    if code == 0:
        records = report.read(kept)
        title, _, rest = report.HEAD.partition("\n\n")
        (RESULTS / "cpu.md").write_text(report.table(records, f"{title}\n\n{WRITTEN}\n{rest}"))
        last = records[-1]["environment"]
        report.plot([r for r in records if r["environment"] == last], RESULTS / "cpu.svg")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
