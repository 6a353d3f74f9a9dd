"""What the programs that measure on a GPU share: the GPU, and where their records are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tokitai.backends import backend_of
from tokitai.backends.cuda.target import CudaTarget


def opened() -> CudaTarget:
    """The first GPU, on which PyTorch multiplies f32 in f32."""
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    torch.zeros(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    return target


def about(target: CudaTarget) -> dict[str, Any]:
    """Where and with what it was measured."""
    d = target.describe()
    return {"device": d["name"], "driver": d["driver"], "nvrtc": d["nvrtc"], "torch": str(torch.__version__)}


def keep(record: Mapping[str, Any], target: CudaTarget, file: Path) -> None:
    """Add a record to a file, with the date and the place."""
    dated = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **record, **about(target)}
    with file.open("a") as kept:
        kept.write(json.dumps(dated) + "\n")


def page(
    title: str, said: str, head: str, file: Path, names: Sequence[str], row: Callable[[Mapping[str, Any]], str]
) -> str:
    """The newest records of each of these ``names`` as a table under a title and the place."""
    records = [json.loads(line) for line in file.open()]
    newest = {tuple(r[n] for n in names): r for r in records}
    (where,) = {(r["device"], r["driver"], r["torch"]) for r in newest.values()}
    place = f"{where[0]}, driver {where[1]}, PyTorch {where[2]}; {max(r['date'] for r in records)[:10]}."
    return "\n".join([f"# {title}\n\n{place}\n\n{said}\n", head, *map(row, newest.values())]) + "\n"
