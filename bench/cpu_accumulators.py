"""``python -m bench.cpu_accumulators``: products by each accumulator on the CPU, beside f32 and OpenBLAS.

Calls take turns in one process; the least of each by the clock (`wall`), which other programs on the machine lengthen,
and as time of all threads (`cpu`). Ours have as many threads as OPENBLAS_NUM_THREADS says (default: 1); TOKITAI_ISA
chooses the instruction set. A corner of each product is first held, to the bit, against its definition: where one
differs nothing is timed. Figures are added to bench/results/cpu_accumulators.jsonl, or to --out; --page writes what
that file holds as a table.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokitai import ops
from tokitai.formats import FORMATS
from tokitai.lang import FIXED_BITS, Sizes
from tokitai.meaning import bits
from tokitai.toolchain.build import cpu_features, native_isa

from .clocks import least
from .judge_third_party import device_name

RESULTS = Path(__file__).parent / "results" / "cpu_accumulators.jsonl"
SIZES = ((1024, 1024, 1024), (512, 4096, 1024))  # rows, cols, inner
ACCUMULATORS = ("f32", *FIXED_BITS, "fused16")
VNNI = {"avx512": "avx512_vnni", "avx2": "avx_vnni"}
CORNER = 8
REST = 0.1  # OpenBLAS's threads spin for a while after a call, and would take the processors from ours


def differ(made: Any, a: Any, b: Any, accumulator: str) -> int:
    """How many elements of a corner of the product are not those of the definition."""
    graph = ops.matmul.trace("bf16", (), {"accumulator": accumulator, "layout": "NT"})
    given, sizes = {"a": a[:CORNER], "b": b[-CORNER:]}, Sizes(CORNER, CORNER, a.shape[1])
    want = bits.evaluate(graph, given, sizes, {"alpha": 1.0, "beta": 0.0})["y"]
    return int((made[:CORNER, -CORNER:].view(np.uint16) != want.view(np.uint16)).sum())


def page(records: list[dict[str, Any]]) -> str:
    """The newest figures of each product as a table."""
    newest = {(r["isa"], r["what"], r["threads"]): r for r in records}
    ((device, cores),) = {(r["device"], r["cores"]) for r in newest.values()}
    low, high = (f(r["load"] for r in newest.values()) for f in (min, max))
    head = (
        "# Accumulators on the CPU\n\n"
        f"{device}, {cores} cores; {max(r['date'] for r in records)[:10]}.\n\n"
        "Written by `python -m bench.cpu_accumulators --page`. bf16 operands, layout NT, beside our chain in f32 and\n"
        "NumPy's product of the same operands in f32 (OpenBLAS), in turns in one process. Gflop/s are those of one\n"
        "core: work over the time of all threads together. Ratios are the peer's time over ours, of all threads\n"
        "together and, behind it, by the clock. Other programs shared the machine, which lengthens what it says\n"
        f"most: its load was {low:.0f} to {high:.0f}.\n\n"
        "| instructions | product | threads | accumulator | Gflop/s a core | of `f32` | of OpenBLAS |\n"
        "|---|---|--:|---|--:|--:|--:|\n"
    )
    rows = []
    for (isa, what, threads), r in sorted(newest.items(), key=lambda item: (item[0][0] != "avx512", item[0][1:])):
        for name in ACCUMULATORS:
            ours = {clock: ms[name] for clock, ms in r["ms"].items()}
            of_chain, of_blas = (
                ", ".join(f"{r['ms'][clock][peer] / ours[clock]:.2f}" for clock in ("cpu", "wall"))
                for peer in ("f32", "OpenBLAS")
            )
            rate = r["work"] / ours["cpu"] / 1e6
            used = f"{isa}, {VNNI[isa]}" if r["vnni"] else isa
            rows.append(f"| {used} | {what} | {threads} | `{name}` | {rate:.0f} | {of_chain} | {of_blas} |")
    return head + "\n".join(rows) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_accumulators", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        RESULTS.with_suffix(".md").write_text(page([json.loads(line) for line in options.out.open()]))
        return
    threads, isa, rng = int(os.environ.get("OPENBLAS_NUM_THREADS", "1")), native_isa(), np.random.default_rng(0)
    for m, n, k in SIZES:
        a, b = (rng.standard_normal((lines, k), np.float32).astype(FORMATS["bf16"].dtype) for lines in (m, n))
        out, wide = np.empty((m, n), a.dtype), (a.astype(np.float32), b.astype(np.float32).T)
        calls: dict[str, Any] = {"OpenBLAS": partial(np.matmul, *wide, out=np.empty((m, n), np.float32))}
        for name in ACCUMULATORS:
            calls[name] = partial(ops.matmul, a, b, layout="NT", accumulator=name, threads=threads, out=out)
        wrong = {x: count for x in ACCUMULATORS if (count := differ(calls[x](), a, b, x))}
        if wrong:
            raise SystemExit(f"{m} x {n} x {k}: elements of a corner that are not the definition's: {wrong}")
        load = os.getloadavg()[0]
        best = {c: {x: 1e3 * s for x, s in times.items()} for c, times in least(calls, options.repeats, REST).items()}
        record = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device_name("cpu"), "isa": isa,
            "vnni": VNNI.get(isa) in cpu_features(), "what": f"{m} x {n} x {k}", "work": 2 * m * n * k,
            "threads": threads, "cores": os.cpu_count(), "load": load, "ms": best,
        }  # fmt: skip
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
