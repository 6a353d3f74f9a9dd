"""``python -m bench.glue [GB] [REPEATS]``: gluing a checkpoint of 8 shards beside reading it.

One JSON object a line, for shards along rows (FSDP), along columns (tensor parallelism), and two whole replicas, whose
bytes are all read twice. All lies in the page cache. `read` reads the same files by read(2), by as many threads, in
pieces of 1 MiB into memory that is used again; `load` reads them into new memory, as a program does that needs the
tensors. Rates are GB/s of the files' bytes, from the least times of calls that take turns: `wall`, which other programs
on the machine lengthen, and `cpu`, the time of all threads together.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tokitai.glue import Glued, glue, read

from .clocks import least

THREADS, SHARDS, PIECE = 2, 8, 2**20
ROWS, COLUMNS = 8192, 8192  # of a tensor of two-byte elements: 128 MiB

Array = np.ndarray[Any, Any]


def shards(kind: str, tensors: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Array]]]:
    """The files of a checkpoint: name, placements, arrays."""
    rng = np.random.default_rng(0)
    for rank in range(2 if kind == "replicas" else SHARDS):
        arrays, placed = {}, {}
        for t in range(tensors):
            if kind == "replicas":
                shape, offset = (ROWS, COLUMNS), [0, 0]
                rng = np.random.default_rng(t)
            elif kind == "rows":
                shape, offset = (ROWS // SHARDS, COLUMNS), [rank * (ROWS // SHARDS), 0]
            else:
                shape, offset = (ROWS, COLUMNS // SHARDS), [0, rank * (COLUMNS // SHARDS)]
            arrays[f"layers.{t}.weight"] = rng.integers(0, 2**16, shape, np.uint16)
            placed[f"layers.{t}.weight"] = {"offset": offset, "shape": [ROWS, COLUMNS]}
        yield f"rank{rank}.safetensors", {"rank": str(rank), "sections": placed}, arrays


def write(folder: Path, kind: str, tensors: int) -> list[Path]:
    """A checkpoint on disk."""
    paths = []
    for name, placed, arrays in shards(kind, tensors):
        save_file(arrays, folder / name, metadata={"tokitai.sections": json.dumps(placed)})
        paths.append(folder / name)
    return paths


def pieces(paths: list[Path]) -> Iterator[tuple[Path, int]]:
    for path in paths:
        yield from ((path, start) for start in range(0, path.stat().st_size, PIECE))


def read_all(paths: list[Path], fresh: bool) -> None:
    """Every byte of the files."""

    def some(work: list[tuple[Path, int]]) -> None:
        buffer = bytearray(PIECE)
        for path, start in work:
            file = os.open(path, os.O_RDONLY)
            os.preadv(file, [bytearray(PIECE) if fresh else buffer], start)
            os.close(file)

    def load(part: list[Path]) -> None:
        for path in part:
            np.fromfile(path, np.uint8)

    with ThreadPoolExecutor(THREADS) as pool:
        if fresh:
            list(pool.map(load, [paths[i::THREADS] for i in range(THREADS)]))
        else:
            work = list(pieces(paths))
            list(pool.map(some, [work[i::THREADS] for i in range(THREADS)]))


def main() -> None:
    """All three kinds."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    for kind in ("rows", "columns", "replicas"):
        tensors = max(1, round(gigabytes * 2**30 / (ROWS * COLUMNS * 2) / (2 if kind == "replicas" else 1)))
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            paths = write(Path(folder), kind, tensors)
            size = sum(path.stat().st_size for path in paths)

            def glued(folder: str = folder) -> None:
                result = glue(read(folder).sections, arrays=False, threads=THREADS)
                assert isinstance(result, Glued)

            def plain(paths: list[Path] = paths) -> None:
                read_all(paths, fresh=False)

            def loaded(paths: list[Path] = paths) -> None:
                read_all(paths, fresh=True)

            calls: dict[str, Callable[[], None]] = {"glue": glued, "read": plain, "load": loaded}
            record: dict[str, Any] = dict(kind=kind, bytes=size, threads=THREADS, load=os.getloadavg()[0])
            for clock, times in least(calls, repeats).items():
                rates = {name: size / seconds / 1e9 for name, seconds in times.items()}
                share = {f"of_{name}": rates["glue"] / rates[name] for name in ("read", "load")}
                record[clock] = rates | share
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
