"""``python -m bench.gpu_report``: bench/results/gpu.md from the records in gpu*.jsonl and encoder.jsonl there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PEERS = ("torch", "liger", "torch f32, 28 bytes")


def main() -> None:
    """Write the page."""
    (RESULTS / "gpu.md").write_text(written())


def written() -> str:
    """The whole page: of each table the latest record of each row."""
    records = recorded("gpu.jsonl", "operator", "dtype", "rows", "cols")
    lines = headed("# On a GPU", records)
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
    for r in records:

        def cell(*names: str, r: dict[str, dict[str, float]] = r) -> str:
            found = [n for n in names if n in r["microseconds"]]
            return f"{r['microseconds'][found[0]]:.1f} ({r['of_copy'][found[0]]:.2f})" if found else ""

        bits = {True: "equal", False: "NOT EQUAL", None: "not in this run"}[r["equal"]]
        torch, liger = cell("torch", "torch f32, 28 bytes"), cell("liger")
        what = f"{r['operator']} | {r['dtype']} | {r['rows']}x{r['cols']}"
        lines.append(f"| {what} | {cell('tokitai')} | {torch} | {liger} | {bits} |")
    lines += [""]
    lines += ["AdamW: 808 tensors, f16 weights with f32 moments, 22 bytes an element; PyTorch's fused step in f32, 28."]
    for section in (products, groups, attention, embedding, encoder):
        lines += ["", *section()]
    return "\n".join(lines) + "\n"


def headed(title: str, records: Iterable[dict[str, Any]]) -> list[str]:
    """A heading, and on what and when the figures under it were measured."""
    latest = list(records)
    devices = sorted({f"{r['device']}, driver {r['driver']}, PyTorch {r['torch']}" for r in latest})
    return [title, "", f"{'; '.join(devices)}; {max(r['date'] for r in latest)[:10]}.", ""]


def recorded(name: str, *keys: str) -> list[dict[str, Any]]:
    """The latest record for each value of the keys."""
    records = [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]
    return list({tuple(str(r.get(k)) for k in keys): r for r in records}.values())


def products() -> list[str]:
    """The table of matrix products."""
    records = recorded("gpu_products.jsonl", "dtype", "accumulator", "rows", "cols", "inner", "layout")
    lines = headed("## Matrix products", records)
    lines += [
        "From `gpu_products.jsonl`, which `python -m bench.gpu_products` fills. Tflop/s; cuBLAS in one run with it,",
        "without TF32, on operands stored as wide as it adds up. Tiles are those of the run, not always today's. Bits:",
        "whether the first row was compared with the oracle in that run, and equal.",
        "",
        "| stored | summed in | layout | size | tokitai | cuBLAS | of cuBLAS | tiles | bits |",
        "|---|---|---|---|--:|--:|--:|---|---|",
    ]
    for r in records:
        rates, bits = r["tflops"], "equal" if r["equal"] else "NOT EQUAL"
        tiles = r["tiling"].removeprefix("tiles of ").partition(",")[0]
        lines.append(
            f"| {r['dtype']} | {r['accumulator']} | {r['layout']} | {r['rows']}x{r['cols']}x{r['inner']} "
            f"| {rates['tokitai']} | {rates['cublas']} | {r['of_cublas']:.2f} | {tiles} | {bits} |"
        )
    return lines


def groups() -> list[str]:
    """The table of grouped products, and of what brings tokens to them and back."""
    records = recorded("gpu_groups.jsonl", "product", "operator", "dtype")
    lines = headed("## Grouped products", records)
    lines += [
        "From `gpu_groups.jsonl`, which `python -m bench.gpu_groups` fills. Tflop/s of uneven groups, one of them",
        "empty, and of one dense product of the same arithmetic in the same run. Bits: whether groups were compared",
        "with their products alone and a row with the oracle in that run, and equal.",
        "",
        "| product | stored | rows | groups | outputs x inputs | tokitai | dense | of dense | others | bits |",
        "|---|---|--:|--:|---|--:|--:|--:|---|---|",
    ]
    for r in records:
        if "product" in r:
            rates, bits = r["tflops"], "equal" if r["equal"] else "NOT EQUAL"
            others = "; ".join(f"{n}: {v}" for n, v in rates.items() if n not in ("groups", "dense"))
            size = f"{r['rows']} | {r['groups']} | {r['outputs']}x{r['inputs']}"
            ours = f"{rates['groups']} | {rates['dense']} | {r['of_dense']:.2f}"
            lines.append(f"| {r['product']} | {r['dtype']} | {size} | {ours} | {others} | {bits} |")
    moved = [r for r in records if "operator" in r]
    lines += [""] + [f"`{r['operator']}` in {r['dtype']}: {r['of_copy']:.2f} of a copy's bandwidth." for r in moved]
    return lines


def attention() -> list[str]:
    """The table of attention."""
    every = recorded("gpu_attention.jsonl", "dtype", "shape", "causal", "direction", "accumulator")
    records = [r for r in every if "ms" in r]
    lines = headed("## Attention", records)
    lines += [
        "From `gpu_attention.jsonl`, which `python -m bench.gpu_attention` fills. Size: sentences x heads x tokens x",
        "dimension. Milliseconds; of the ceiling: operations a second as a part of those of cuBLAS's f32 product in",
        "that run. PyTorch multiplies 16-bit formats on tensor cores, in another order; in f32 it does not. Bits:",
        "whether a head was compared with the CPU's, and equal.",
        "",
        "| direction | format | size | mask | tokitai | PyTorch | Tflop/s | of ceiling | bits |",
        "|---|---|---|---|--:|--:|--:|--:|---|",
    ]
    for r in records:
        ms, bits = r["ms"], "equal" if r["equal"] else "NOT EQUAL"
        about = f"{r['direction']} | {r['dtype']} | {'x'.join(map(str, r['shape']))} | {'causal' * r['causal']}"
        lines.append(
            f"| {about} | {ms['tokitai']:.2f} | {ms['torch']:.2f} | {r['tflops']} | {r['of_ceiling']:.2f} | {bits} |"
        )
    return lines + attention_by_units([r for r in every if "accumulator" in r])


def attention_by_units(records: list[dict[str, Any]]) -> list[str]:
    """The table of attention by matrix units."""
    lines = ["", *headed("### By matrix units", records)]
    lines += [
        "With the accumulator `fused16` (`python -m bench.gpu_attention --units`), causal, in Tflop/s of one run,",
        "launches from the host included. Size: sentences x heads x heads of keys x tokens x dimension. Operations:",
        "two products forward and five backward; this definition takes three and nine, as no result of one is kept.",
        "Error: relative distance of one head from f64, ours and FLASH's.",
        "",
        "| direction | format | size | tokitai | FLASH | cuDNN | of FLASH | of cuDNN | error |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for r in records:
        t, size = r["tflops"], "x".join(map(str, r["shape"]))
        error = " / ".join(f"{r['error'][n]:.2e}" for n in ("tokitai", "flash")) if "error" in r else ""
        lines.append(
            f"| {r['direction']} | {r['dtype']} | {size} | {t['tokitai']} | {t['flash']} | {t['cudnn']} "
            f"| {t['tokitai'] / t['flash']:.2f} | {t['tokitai'] / t['cudnn']:.2f} | {error} |"
        )
    return lines


def embedding() -> list[str]:
    """The table of embedding."""
    records = recorded("gpu_embedding.jsonl", "dtype", "ids")
    lines = headed("## Embedding", records)
    lines += [
        "From `gpu_embedding.jsonl`, which `python -m bench.gpu_embedding` fills. Microseconds, and in brackets the",
        "fraction of a copy's bandwidth. The backward pass writes the whole gradient, in position order and without",
        "atomic sums; PyTorch's adds in an order of its own. Bits: of some entries, compared with the CPU's.",
        "",
        "| format | ids | forward | PyTorch | backward | PyTorch | ratio | bits |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for r in records:
        us, bits = r["microseconds"], "equal" if r["equal"] else "NOT EQUAL"
        forward = f"{us['forward']} ({r['of_copy']:.2f}) | {us['torch forward']} ({r['torch_of_copy']:.2f})"
        backward = f"{us['backward']} | {us['torch backward']} | {r['ratio_backward']}"
        lines.append(f"| {r['dtype']} | {r['ids']} | {forward} | {backward} | {bits} |")
    return lines


def encoder() -> list[str]:
    """The table of the sentence encoder."""
    records = recorded("encoder.jsonl", "device", "dtype", "sentences", "longest")
    lines = ["## A sentence encoder", ""]
    lines += [
        "From `encoder.jsonl`, which `python -m bench.encoder` fills. Sentences a second, beside PyTorch's operators",
        "(tensor cores in 16-bit formats). Bits: whether vectors had those of the CPU.",
        "",
        "| device | format | sentences x tokens | tokitai | PyTorch | of PyTorch | bits |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for r in records:
        rate, bits = r["sentences_a_second"], "equal" if r["equal"] else "NOT EQUAL"
        lines.append(
            f"| {r['device']} | {r['dtype']} | {r['sentences']}x{r['longest']} | {rate['tokitai']} | {rate['torch']} "
            f"| {r['of_torch']:.2f} | {bits} |"
        )
    return lines


if __name__ == "__main__":
    main()
