"""Records as lines of JSON that are only ever added to, the latest of each as a table, and ratios as a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, InputFileError, UnavailableError

Record = dict[str, Any]

HEAD = """# Times on the CPU

* **kernel** is a call with `out=` (for lists, one that was prepared), **call** the same without: it allocates its
  results, as PyTorch's does. New memory of many megabytes costs a page fault for every page that is first written:
  tokitai's comes from its cache of freed results, PyTorch's from the system.
* Times are milliseconds, *median (fastest)* of blocks that took turns in one process; a ratio is PyTorch's median over
  tokitai's, so above 1 tokitai is faster.
* GB/s counts each tensor once: inputs read, results written. **copy** is that rate over the rate of a plain copy of as
  many bytes, timed in the same turns. What several passes over a row read again is not counted.
* The results of the timed calls are held against the definition. What stands below a table in words is a rate that
  memory does not allow, or a counterpart whose results are beyond the rounding-error bound of f32.
* Gop/s counts the primitive operations of the definition, functions such as exp by their own.
* Every operator computes in f32 and rounds once, at the store, to bits that are the same on every machine; PyTorch
  promises no such thing. Its fused AdamW keeps moments in the format of the weights, tokitai's are f32: for 16-bit
  weights it moves 14 bytes an element, tokitai's 22.
"""
_NAMES = ("operator", "format", "shape", "kernel", "call", "PyTorch", "ratio kernel", "ratio call", "GB/s", "copy",
          "Gop/s", "blocks")  # fmt: skip
PLOTTED = (".png", ".svg", ".pdf")


def append(records: Sequence[Record], path: Path) -> None:
    """Add records to the file, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def read(path: Path) -> list[Record]:
    """All records of a file. Raises InputFileError."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: {error}; accepted: a file with one JSON record a line") from error


def table(records: Iterable[Record], head: str = HEAD) -> str:
    """The latest record of every operator, format, shape and environment, as Markdown."""
    latest: dict[str, dict[tuple[Any, ...], Record]] = {}
    for record in records:
        rows = latest.setdefault(_environment(record["environment"]), {})
        rows[_key(record)] = record
    parts = [head] if head else []
    for environment, rows in latest.items():
        dates = sorted({r["date"][:10] for r in rows.values()})
        loads = [r["load"] for r in rows.values()]
        busy = f"load average while timing {min(loads):.1f} to {max(loads):.1f}"
        parts.append(f"## {environment}\n\n{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; {busy}.\n")
        columns = f"| {' | '.join(_NAMES)} |"
        parts.append("\n".join([columns, "|---" * 3 + "|--:" * 9 + "|", *(_row(r) for r in rows.values())]) + "\n")
        named = ((f"{r['operator']} {r['dtype']} {label(r).partition(' ')[2]}", r) for r in rows.values())
        flags = [f"* {name}: {flag}" for name, r in named for flag in r.get("flags", ())]
        parts += ["\n".join(flags) + "\n"] if flags else []
    return "\n".join(parts)


def plot(records: Sequence[Record], path: Path) -> None:
    """Bars of every operator's speed: PyTorch's time over tokitai's where it was timed, else the fraction of a copy's.

    Raises ArgumentError for another kind of file, UnavailableError where matplotlib is missing.
    """
    check_plot(path)
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "tokitai"  # the same figures give the same file
    from matplotlib.figure import Figure

    latest = {_key(r): r for r in records}
    formats = list(dict.fromkeys(r["dtype"] for r in latest.values()))
    names = list(dict.fromkeys(label(r) for r in latest.values()))
    against = any("torch" in r["times"] for r in latest.values())
    figure = Figure(figsize=(8, 1.2 + 0.16 * len(names) * (len(formats) + 1)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(formats)
    for i, fmt in enumerate(formats):
        chosen = [r for r in latest.values() if r["dtype"] == fmt and ("torch" in r["times"]) == against]
        places = [names.index(label(r)) + (i - (len(formats) - 1) / 2) * height for r in chosen]
        start, speeds = 1 if against else 0, [speed(r) for r in chosen]  # a ratio is as far from 1 as it is good or bad
        bars = axes.barh(places, [s - start for s in speeds], height, left=start, label=fmt)
        axes.bar_label(bars, [f"{s:.2f}" for s in speeds], fontsize=6, padding=2)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.axvline(1, color="black", linewidth=0.8)
    if against:
        axes.set_xscale("log")
        axes.set_xlabel("PyTorch's time over tokitai's: right of 1 tokitai is faster")
    else:
        axes.set_xlabel("rate over the rate of a copy of as many bytes")
    axes.set_title("; ".join(dict.fromkeys(_environment(r["environment"]) for r in latest.values())), fontsize=6)
    axes.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def check_plot(path: Path, option: str = "--plot") -> None:
    """Raise ArgumentError or UnavailableError where `plot` cannot write this file; told before anything is timed."""
    if path.suffix not in PLOTTED:
        raise ArgumentError(f"{option} {path}: suffix {path.suffix!r}; accepted: {', '.join(PLOTTED)}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"{option} {path}: no folder {path.absolute().parent}; accepted: a file in one that is")
    if find_spec("matplotlib") is None:
        raise UnavailableError(f"{option}: matplotlib is not installed; install it with `pip install 'tokitai[bench]'`")


def speed(r: Record) -> float:
    """The figure that is plotted."""
    times = r["times"]
    return float(times["torch" if "torch" in times else "copy"]["median_ms"] / times["kernel"]["median_ms"])


def label(r: Record) -> str:
    """Operator and shape."""
    tensors = r.get("tensors", 1)
    shape = f"{r['rows']}x{r['cols']}" if tensors == 1 else f"{tensors} tensors, {r['cols']} elements"
    return f"{r['operator']} {shape}"


def _key(r: Record) -> tuple[Any, ...]:
    return r["operator"], r["dtype"], r["rows"], r["cols"], r.get("tensors", 1)


def _environment(e: dict[str, Any]) -> str:
    torch = f", PyTorch {e['torch']}" if e.get("torch") else ""
    return (
        f"{e['cpu']}, {e['cores']} cores, {e['threads']} threads, {e['isa']}, {e['compiler']}{torch}, "
        f"OMP_WAIT_POLICY={e['omp_wait_policy']}"
    )


def _row(r: Record) -> str:
    times = r["times"]

    def cell(name: str) -> str:
        return f"{times[name]['median_ms']:.2f} ({times[name]['min_ms']:.2f})" if name in times else ""

    def ratio(name: str) -> str:
        return f"{times['torch']['median_ms'] / times[name]['median_ms']:.2f}" if "torch" in times else ""

    seconds = times["kernel"]["median_ms"] / 1e3
    of_copy = times["copy"]["median_ms"] / times["kernel"]["median_ms"]
    computed = f"{r['operations'] / seconds / 1e9:.1f}" if "operations" in r else ""
    cells = [r["operator"], r["dtype"], label(r).partition(" ")[2], cell("kernel"), cell("call"), cell("torch")]
    cells += [ratio("kernel"), ratio("call"), f"{r['bytes'] / seconds / 1e9:.1f}", f"{of_copy:.2f}", computed]
    return f"| {' | '.join([*cells, str(len(times['kernel']['blocks']))])} |"
