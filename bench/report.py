"""Results as lines of JSON that are only ever added to, and the latest of each as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

_HEAD = """# Times on the CPU

Written by `python -m bench.run`; every run is in `cpu.jsonl`, the latest figures of each row are below.

* **kernel** is a call of `tokitai.ops` with `out=`, **call** the same without: it allocates its results, as PyTorch's
  does. A fresh array of many megabytes costs a page fault for every page that is first written, in ours as in theirs.
* Times are milliseconds, *median (fastest)* of blocks that took turns in one process; a ratio is PyTorch's median over
  ours, so above 1 ours is faster.
* GB/s counts each tensor once: inputs read, results written. **copy** is that rate over the rate of a plain copy of as
  many bytes, timed in the same turns. What several passes over a row read again is not counted.
* Every operator computes in f32 and rounds once, at the store, to bits that are the same on every machine; PyTorch
  promises no such thing.
"""
_COLUMNS = "| operator | format | shape | kernel | call | PyTorch | ratio kernel | ratio call | GB/s | copy | blocks |"


def append(records: Sequence[dict[str, Any]], path: Path = RESULTS / "cpu.jsonl") -> None:
    """Add records to the file, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def table(path: Path = RESULTS / "cpu.jsonl") -> str:
    """The latest record of every operator, format, shape and environment, as Markdown."""
    latest: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        rows = latest.setdefault(_environment(record["environment"]), {})
        rows[record["operator"], record["dtype"], record["rows"], record["cols"]] = record
    parts = [_HEAD]
    for environment, rows in latest.items():
        dates = sorted({r["date"][:10] for r in rows.values()})
        loads = [r["load"] for r in rows.values()]
        busy = f"load average while timing {min(loads):.1f} to {max(loads):.1f}"
        parts.append(f"## {environment}\n\n{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; {busy}.\n")
        parts.append("\n".join([_COLUMNS, "|---" * 3 + "|--:" * 8 + "|", *(_row(r) for r in rows.values())]) + "\n")
    return "\n".join(parts)


def _environment(e: dict[str, Any]) -> str:
    torch = f", PyTorch {e['torch']}" if e.get("torch") else ""
    return (
        f"{e['cpu']}, {e['cores']} cores, {e['threads']} threads, {e['isa']}, {e['compiler']}{torch}, "
        f"OMP_WAIT_POLICY={e['omp_wait_policy']}"
    )


def _row(r: dict[str, Any]) -> str:
    times = r["times"]

    def cell(name: str) -> str:
        return f"{times[name]['median_ms']:.2f} ({times[name]['min_ms']:.2f})" if name in times else ""

    def ratio(name: str) -> str:
        return f"{times['torch']['median_ms'] / times[name]['median_ms']:.2f}" if "torch" in times else ""

    rate = r["bytes"] / times["kernel"]["median_ms"] / 1e6
    of_copy = times["copy"]["median_ms"] / times["kernel"]["median_ms"]
    blocks = len(times["kernel"]["blocks"])
    cells = [r["operator"], r["dtype"], f"{r['rows']}x{r['cols']}", cell("kernel"), cell("call"), cell("torch")]
    cells += [ratio("kernel"), ratio("call"), f"{rate:.1f}", f"{of_copy:.2f}", str(blocks)]
    return f"| {' | '.join(cells)} |"
