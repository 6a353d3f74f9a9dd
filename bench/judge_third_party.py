"""Judge kernels that a user would call instead, and write what was found: ``python -m bench.judge_third_party``.

Adds a record a line to ``bench/results/judged.jsonl``, and writes ``bench/results/judged.md`` from the latest of each
device.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokitai
from tokitai.ops import get
from tokitai.verification.verdict import Variant

RESULTS = Path(__file__).parent / "results"
KERNELS = Path(__file__).parent / "third_party.py"
FORMATS = ("f16", "bf16", "f32")
SEED = 0  # so that a later run has the same cases
INTRODUCTION = """# Third-party kernels, judged

Written by `python -m bench.judge_third_party`; every record is in `judged.jsonl`, the latest of each device below.
[What judging means](../../docs/how-to/judge-a-kernel.md): an element is wrong where it is further from the exact value
than the rounding-error bound of a kernel that computes in f32, sums in whatever order and rounds once. The inputs are
hard on purpose; many of them never occur in training. Records of before 2026-11-30 are of fewer cases: one call was
judged, scalars were the same in all, and no causes were looked for.

* **verdict** is that on all elements, and after a comma that on elements of ordinary values where it is another: beside
  infinities, NaN, signed zeros and subnormals.
* **wrong** counts cases with a wrong element, **bits** those in which the kernel has the bits of tokitai's definition.
* **share** is the largest distance from the exact value as a part of its rounding-error bound.
* **cause**: the arithmetic models that explain the most wrong elements of ordinary values, and what part of the cases.
* **smallest wrong case**: the element with the largest error in it.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Judge all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="of PyTorch's tensors: cpu, cuda or cuda:N")
    parser.add_argument("--only", nargs="*", help="kernels of third_party.py")
    parser.add_argument("--workers", type=int, default=2, help="how many are judged at a time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of judged.jsonl and judged.md")
    options = parser.parse_args(words)
    from .third_party import JUDGED

    on_a_gpu = options.device != "cpu"
    names = options.only or [n for n in JUDGED if on_a_gpu or n.startswith("torch_")]
    about = {"device": device_name(options.device), "versions": versions(), "date": str(datetime.date.today())}

    def one(job: tuple[str, str]) -> dict[str, Any]:
        return {**judged(*job, options.device), **about}

    with ThreadPoolExecutor(options.workers) as pool:  # each judges in a process of its own
        records = list(pool.map(one, [(n, f) for n in names for f in FORMATS]))
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "judged.jsonl"
    with kept.open("a") as file:
        file.writelines(json.dumps(r) + "\n" for r in records)
    every = [json.loads(line) for line in kept.read_text().splitlines()]
    (options.out / "judged.md").write_text(page(every))
    print(page(records))
    return 0


def judged(name: str, dtype: str, device: str) -> dict[str, Any]:
    """One kernel in one format, as a record."""
    from .third_party import JUDGED

    op, results, without = JUDGED[name]
    operator = get(op)
    given = frozenset(t.name for t in operator.tensors if t.optional and t.name not in without)
    made = tokitai.judge(
        (KERNELS, name), operator, dtype=dtype, device=device, results=results and results.split(","),
        variant=Variant(given), seed=SEED, seconds=120,
    )  # fmt: skip
    found = made.as_json()
    first = found.pop("failures")[:1]
    numbers = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}
    return {**numbers, "wrong": len(made.failures), "first": first}


def versions() -> dict[str, str]:
    """Of those whose kernels are judged."""
    found = {}
    for name in ("torch", "triton", "liger_kernel"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_name(device: str) -> str:
    """The GPU's name, or that of the processor."""
    if device == "cpu":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine())
    number = device.partition(":")[2] or "0"
    asked = ["nvidia-smi", "-i", number, "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables, the latest record of each row, a table for each device."""
    latest = {(r["device"], r["kernel"], r["dtype"]): r for r in records}
    text = INTRODUCTION
    for device in dict.fromkeys(key[0] for key in latest):
        rows = [r for key, r in latest.items() if key[0] == device]
        known = ", ".join(f"{name} {v}" for name, v in rows[-1]["versions"].items())
        text += f"\n## {device}\n\n{rows[-1]['date']}; {known}.\n\n"
        text += "| kernel | format | verdict | wrong | of cases | bits | share | cause | smallest wrong case |\n"
        text += "|---|---|---|--:|--:|--:|--:|---|---|\n"
        for r in rows:
            share = f"{float(r['share_of_allowance']):.3g}"
            first = "".join(f"`{f['case']}`: {f['what']}" for f in r["first"]) or r["undecided"] or ""
            said = " ".join(first.split())[:300].replace("|", "/")
            verdict = ", ".join(dict.fromkeys([r["verdict"], r.get("accuracy", r["verdict"])]))
            text += (
                f"| {r['kernel']} | {r['dtype']} | {verdict} | {r['wrong']} | {r['cases']} | {r['same_bits']} "
                f"| {share} | {cause_of(r)} | {said} |\n"
            )
    return text


def cause_of(record: Mapping[str, Any]) -> str:
    """What explains the most wrong elements of ordinary values, or that nothing does; of special ones where only these
    are wrong."""
    if "causes" not in record or not record["causes"]:
        return ""
    first = next((c for c in record["causes"] if c["of"] == "ordinary values"), record["causes"][0])
    if not first["models"]:
        return "none found in time" if first["out_of_time"] else "none found"
    return f"{', '.join(first['models'])} ({first['said']}): {first['explained']:.0%} of {first['cases']}"


if __name__ == "__main__":
    raise SystemExit(main())
