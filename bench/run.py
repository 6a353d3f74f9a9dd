"""``python -m bench.run [OP ...] [--against torch]``: time operators, add the figures to bench/results, print them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

# Two OpenMP runtimes share the processors, PyTorch's and ours: threads that wait for work must not keep them busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from tokitai import ops
from tokitai.device import cpu
from tokitai.formats import FORMATS
from tokitai.kernel import compile

from . import report, shapes
from .peers import check, peer
from .timing import Copy, alternate


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="OP", help=f"of {', '.join(shapes.OPERATORS)} (default: all)")
    parser.add_argument("--against", choices=["torch"], help="time PyTorch's counterpart in turns with ours")
    parser.add_argument("--dtype", nargs="*", default=shapes.FORMATS, choices=shapes.FORMATS)
    parser.add_argument("--shape", nargs="*", default=shapes.SHAPES, type=_shape, metavar="ROWSxCOLS")
    parser.add_argument("--threads", type=int, default=cpu.default_threads())
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True, help="add to bench/results")
    options = parser.parse_args(argv)
    unknown = set(options.operators) - set(shapes.OPERATORS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: accepted: {', '.join(shapes.OPERATORS)}")
    records = []
    for operator in options.operators or shapes.OPERATORS:
        for dtype in options.dtype:
            for rows, cols in shapes.OWN_SHAPES.get(operator, options.shape):
                record = measure(operator, dtype, rows, cols, options.threads, options.blocks, options.against)
                records.append(record)
                times = {name: t["median_ms"] for name, t in record["times"].items()}
                print(f"{operator} {dtype} {rows}x{cols}: median ms {times}", file=sys.stderr, flush=True)
                if options.keep:
                    report.append([record])
    if options.json:
        print(json.dumps({"results": records}))
    if options.keep:
        text = report.table()
        (report.RESULTS / "cpu.md").write_text(text)
        if not options.json:
            print(text)
    return 0


def _shape(text: str) -> tuple[int, int]:
    rows, cols = text.split("x")
    return int(rows), int(cols)


def measure(
    operator: str, dtype: str, rows: int, cols: int, threads: int, blocks: int, against: str | None
) -> dict[str, Any]:
    """One record: an operator with and without ``out=``, its counterpart, a copy of as many bytes."""
    torch.set_num_threads(threads)
    op = ops.get(operator)
    kernel = compile(op, "cpu", dtype)
    other = peer(operator, dtype, rows, cols)
    names = tuple(o.name for o in kernel.graph.outputs)
    size = {"rc": (rows, cols), "r": (rows,), "c": (cols,), "s": ()}
    out = tuple(cpu.aligned_empty(size[o.space], FORMATS[o.format].dtype) for o in kernel.graph.outputs)
    out_or_one = out if len(out) > 1 else out[0]

    def with_out() -> object:
        return op(*other.tensors, out=out_or_one, threads=threads, **other.scalars)

    with_out()
    check(other, names, out)
    moved = sum(a.nbytes for a in (*other.tensors, *out))
    calls: dict[str, Callable[[], object]] = {
        "kernel": with_out,
        "call": lambda: op(*other.tensors, threads=threads, **other.scalars),
        "copy": Copy(moved, threads),
    }
    if against:
        calls["torch"] = other.call
    load = os.getloadavg()[0]
    times = alternate(calls, blocks)
    check(other, names, out)
    about = cpu.describe()
    environment = {
        **{key: about[key] for key in ("cpu", "machine", "cores", "os", "libc")},
        "threads": threads,
        "isa": kernel.artifact.isa,
        "compiler": kernel.artifact.compiler.title,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": str(torch.__version__) if against else None,
        "omp_wait_policy": os.environ["OMP_WAIT_POLICY"].lower(),
    }
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(max(load, os.getloadavg()[0]), 2),
        "operator": operator,
        "dtype": dtype,
        "rows": rows,
        "cols": cols,
        "bytes": moved,
        "kernel": kernel.fingerprint,
        "build_seconds": round(kernel.artifact.seconds, 2),
        "times": {name: t.as_json() for name, t in times.items()},
        "environment": environment,
    }


if __name__ == "__main__":
    raise SystemExit(main())
