"""``python -m bench.gpu_report``: bench/results/gpu.md from the records in gpu.jsonl and gpu_products.jsonl there."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PEERS = ("torch", "liger", "torch f32, 28 bytes")


def main() -> None:
    """Write the table: the latest record of each operator, format and shape."""
    records = [json.loads(line) for line in (RESULTS / "gpu.jsonl").read_text().splitlines()]
    latest = {(r["operator"], r["dtype"], r["rows"], r["cols"]): r for r in records}
    devices = sorted({f"{r['device']}, driver {r['driver']}, PyTorch {r['torch']}" for r in latest.values()})
    lines = ["# On a card", "", f"{'; '.join(devices)}; {max(r['date'] for r in latest.values())[:10]}.", ""]
    lines += [
        "Written by `python -m bench.gpu_report` from `gpu.jsonl`, which `python -m bench.gpu` fills: CUDA graphs over",
        "rotating buffers larger than the L2 cache, medians. Microseconds, and in brackets the fraction of a streaming",
        f"copy's bandwidth in the same run ({records[-1]['copy_gb_s']} GB/s; every input read once, every result "
        "written",
        "once). Bits: whether the first rows were compared with the oracle in that run, and equal.",
        "",
        "| operator | format | shape | tokitai | PyTorch | Liger | bits |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for (operator, dtype, rows, cols), r in latest.items():

        def cell(*names: str, r: dict[str, dict[str, float]] = r) -> str:
            found = [n for n in names if n in r["microseconds"]]
            return f"{r['microseconds'][found[0]]:.1f} ({r['of_copy'][found[0]]:.2f})" if found else ""

        bits = {True: "equal", False: "NOT EQUAL", None: "not in this run"}[r["equal"]]
        torch, liger = cell("torch", "torch f32, 28 bytes"), cell("liger")
        lines.append(f"| {operator} | {dtype} | {rows}x{cols} | {cell('tokitai')} | {torch} | {liger} | {bits} |")
    lines += [""]
    lines += ["AdamW: 808 tensors, f16 weights with f32 moments, 22 bytes an element; PyTorch's fused step in f32, 28."]
    lines += ["", *products()]
    (RESULTS / "gpu.md").write_text("\n".join(lines) + "\n")


def products() -> list[str]:
    """The table of matrix products."""
    records = [json.loads(line) for line in (RESULTS / "gpu_products.jsonl").read_text().splitlines()]
    latest = {tuple(r[k] for k in ("dtype", "accumulator", "rows", "cols", "inner", "layout")): r for r in records}
    devices = sorted({f"{r['device']}, driver {r['driver']}, PyTorch {r['torch']}" for r in latest.values()})
    lines = ["## Matrix products", "", f"{'; '.join(devices)}; {max(r['date'] for r in latest.values())[:10]}.", ""]
    lines += [
        "From `gpu_products.jsonl`, which `python -m bench.gpu_products` fills. Tflop/s; cuBLAS in one run with it,",
        "without TF32, on operands stored as wide as it adds up. Tiles are those of the run, not always today's. Bits:",
        "whether the first row was compared with the oracle in that run, and equal.",
        "",
        "| stored | summed in | layout | size | tokitai | cuBLAS | of cuBLAS | tiles | bits |",
        "|---|---|---|---|--:|--:|--:|---|---|",
    ]
    for (dtype, accumulator, rows, cols, inner, layout), r in latest.items():
        rates, bits = r["tflops"], "equal" if r["equal"] else "NOT EQUAL"
        tiles = r["tiling"].removeprefix("tiles of ").partition(",")[0]
        lines.append(
            f"| {dtype} | {accumulator} | {layout} | {rows}x{cols}x{inner} | {rates['tokitai']} | {rates['cublas']} "
            f"| {r['of_cublas']:.2f} | {tiles} | {bits} |"
        )
    return lines


if __name__ == "__main__":
    main()
