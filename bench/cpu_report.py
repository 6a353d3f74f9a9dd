"""``python -m bench.cpu_report``: bench/results/cpu_products.md from the records of products, embedding and attention.

They are the lines that `python -m bench.products`, `python -m bench.embedding` and `python -m bench.attention` print,
kept as cpu_products.jsonl, cpu_embedding.jsonl and cpu_attention.jsonl in bench/results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
HEAD = """\
# Products, embedding and attention on the CPU

Two threads; milliseconds, the fastest of calls that took turns in one process; a ratio is the peer's time over ours, so
above 1 ours is faster.
"""


def records(name: str) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (RESULTS / f"cpu_{name}.jsonl").read_text().splitlines()]


def table(title: str, about: str, columns: str, rows: Iterable[Iterable[object]]) -> str:
    """A section with a table; numbers have two decimals."""
    names = [c.strip() for c in columns.split("|")]
    lines = [f"## {title}\n\n{about}\n", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row) + " |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The whole page."""
    every = records("products")
    single, groups = ([r for r in every if ("groups" in r) == grouped] for grouped in (False, True))
    products = [
        [
            r["dtype"], r["accumulator"], f"{r['rows']}x{r['cols']}x{r['inner']}", r["ms"]["numpy"],
            *(f"{r['ms'][layout]:.2f} ({r['ratio'][layout]:.2f})" for layout in ("NN", "NT", "TN")),
        ]
        for r in single
    ]  # fmt: skip
    shared = [
        [r["dtype"], f"{r['rows']}x{r['cols']}x{r['inner']}", r["groups"], *map(float, r["ratio"].values())]
        for r in groups
    ]
    ids = [
        [r["dtype"], r["ids"]]
        + [x for n in ("forward", "backward") for x in (r["ms"][n], r["ms"][f"torch {n}"], r["ratio"][n])]
        for r in records("embedding")
    ]
    heads = [
        [
            r["direction"], r["dtype"], f"{r['heads']}x{r['tokens']}x{r['dim']}", "causal" * r["causal"],
            r["ms"]["tokitai"], r["ms"]["torch"], r["ratio"],
        ]
        for r in records("attention")
    ]  # fmt: skip
    return "\n".join([
        HEAD,
        table(
            "Matrix products", "Beside NumPy's (OpenBLAS), on operands as wide as the accumulator; ratios in brackets.",
            "stored | summed in | rows x cols x inner | NumPy | NN | NT | TN", products,
        ),
        table(
            "Grouped products", "Uneven groups beside one product of as many rows: its time over theirs.",
            "stored | rows x cols x inner | groups | forward | to the input | to the weight", shared,
        ),
        table(
            "Embedding", "32,768 ids into 50,304 entries of 1,024 columns, beside PyTorch's.",
            "format | ids | forward | PyTorch | ratio | backward | PyTorch | ratio", ids,
        ),
        table(
            "Attention", "Beside PyTorch's `scaled_dot_product_attention`.",
            "direction | format | heads x tokens x dimension | mask | tokitai | PyTorch | ratio", heads,
        ),
    ])  # fmt: skip


def main() -> None:
    """Write the page."""
    (RESULTS / "cpu_products.md").write_text(written())


if __name__ == "__main__":
    main()
