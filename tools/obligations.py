"""``make prove``: discharge the obligations of every operator and write the page of what came of it.

Each operator is proved with all its optional tensors, its default options and the first format of its contract: other
formats change the sizes of elements, which no statement depends on, as indices count elements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokitai.lang import Operator
from tokitai.ops import registry
from tokitai.proving.prove import SECONDS, TARGETS, Proof, covers, prove

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "obligations.md"
HEAD = """# Obligations for all sizes

What [`tokitai prove`](cli.md#tokitai-prove-op-filepyname) states of kernels and launch plans, and what became of it: a
row for each operator and target, with all optional tensors and default options. How such statements are made, and what
they leave out, is [explained elsewhere](../explanation/proofs-for-all-sizes.md). Written by `make prove`.

| operator | family | target | proved | refuted | undecided | seconds |
| --- | --- | --- | ---: | ---: | ---: | ---: |
"""


def row(proof: Proof) -> str:
    """A line of the table."""
    found = [o.status for o in proof.obligations]
    counts = " | ".join(str(found.count(status)) for status in ("proved", "refuted", "undecided"))
    seconds = sum(o.seconds for o in proof.obligations)
    return f"| `{proof.operator}` | {proof.family} | {proof.target} | {counts} | {seconds:.1f} |"


def proofs(operators: Iterable[Operator], seconds: float) -> Iterator[Proof]:
    """Of each operator on each target for which statements are made."""
    for operator in operators:
        for target in TARGETS:
            if covers(operator, target):
                yield prove(operator, operator.contract.formats[0], target, seconds=seconds)


def page(found: list[Proof]) -> str:
    """The whole page."""
    every = [o for p in found for o in p.obligations]
    counts = {status: sum(o.status == status for o in every) for status in ("proved", "refuted", "undecided")}
    total = " | ".join(f"{n}" for n in counts.values())
    lines = [row(p) for p in found]
    lines.append(f"| all | | | {total} | {sum(o.seconds for o in every):.0f} |")
    undecided = [o for o in every if o.status != "proved"]
    lines += ["", "## Not proved", ""]
    lines += [f"- {o.name}: {o.status}, {o.reason}" for o in undecided] or ["Nothing."]
    lines += ["", "## Not stated", ""]
    missing: dict[str, list[str]] = {}
    for operator in registry().values():
        for target in TARGETS:
            if not covers(operator, target):
                missing.setdefault(target, []).append(f"`{operator.name}`")
    lines += [f"- {target}: no statements for the kernels of {', '.join(names)}." for target, names in missing.items()]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one question to the solver")
    arguments = parser.parse_args()
    found = []
    for proof in proofs(registry().values(), arguments.seconds):
        found.append(proof)
        print(row(proof), flush=True)
    PAGE.write_text(page(found))
    print(f"{PAGE}: {sum(len(p.obligations) for p in found)} obligations")


if __name__ == "__main__":
    main()
