"""``make prove``: discharge the obligations of every operator and write the page of what came of it.

Each operator is proved with all its optional tensors, its default options and the first format of its contract: other
formats change the sizes of elements, which no statement depends on, as indices count elements.

With ``--operator NAME`` or ``--target T`` the other rows stay as they are. With ``--sample SECONDS`` rows of the page
are drawn that took about so long, and proved again: nothing may be refuted that the page does not name. That is a part
of ``make verify``.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tokitai.lang import Operator
from tokitai.ops import registry
from tokitai.proving.prove import LAUNCHES, SECONDS, TARGETS, Proof, covers, prove
from tokitai.proving.sums import obligations as sums

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


def proofs(operators: Iterable[Operator], seconds: float, targets: Sequence[str] = TARGETS) -> Iterator[Proof]:
    """Of each operator on each target for which statements are made."""
    for operator in operators:
        for target in targets:
            if covers(operator, target):
                yield prove(operator, operator.contract.formats[0], target, seconds=seconds)


def lines_of(found: Iterable[Proof]) -> tuple[list[str], list[str]]:
    """The rows of the table, and what is not proved."""
    rows, left = [], []
    for p in found:
        rows.append(row(p))
        for o in p.obligations:
            if o.status != "proved":
                sizes = ", ".join(f"{name}={value}" for name, value in o.sizes.items())
                left.append(f"- {o.name}: {o.status}, {o.reason}{' at ' * bool(sizes)}{sizes}")
    return rows, left


def kept(text: str, made: Collection[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """The same of a page that was written before, of all operators and targets but these."""
    before = text.partition("## Not stated")[0]
    rows = re.findall(r"^(\| `(\w+)` \| \w+ \| (\w+) \|.*)$", before, re.MULTILINE)
    left = re.findall(r"^(- (\w+) \(\w+, (\w+).*)$", before, re.MULTILINE)
    first, second = ([line for line, *what in lines if tuple(what) not in made] for lines in (rows, left))
    return first, second


def order_of_sums(seconds: float = SECONDS) -> list[str]:
    """What ``tokitai prove --sums`` comes to, without seconds."""
    found = [f"| `{o.name.partition(':')[0]}` | {o.name.partition(': ')[2]} | {o.status} |" for o in sums(seconds)]
    return ["| counter | for every count below 2^33 | |", "| --- | --- | --- |", *found]


def page(rows: Sequence[str], left: Sequence[str]) -> str:
    """The whole page."""
    cells = [[float(c) for c in line.split("|")[4:8]] for line in rows]
    total = [sum(column) for column in zip(*cells, strict=True)] or [0.0] * 4
    order = {o: i for i, o in enumerate(registry())}
    lines = sorted(rows, key=lambda line: (order[line.split("`")[1]], TARGETS.index(line.split("|")[3].strip())))
    lines.append(f"| all | | | {total[0]:.0f} | {total[1]:.0f} | {total[2]:.0f} | {total[3]:.0f} |")
    lines += ["", "## The order of sums", "", *order_of_sums()]
    lines += ["", "## Not proved", "", *(sorted(left) or ["Nothing."]), "", "## Not stated", ""]
    for target in TARGETS:
        names = [f"`{o.name}`" for o in registry().values() if not covers(o, target)]
        lines.append(f"- {target}: no statements for the kernels of {', '.join(names) or 'no operator'}.")
    if LAUNCHES:
        lines.append(f"- cuda, hip: of the row-wise {', '.join(f'`{n}`' for n in LAUNCHES)}, launches alone.")
    return HEAD + "\n".join(lines) + "\n"


# ------------------------------------------------------------------ a sample
def drawn(text: str, seconds: float, seed: int, targets: Sequence[str]) -> list[tuple[str, str]]:
    """Operators and targets of rows of a page, drawn from a seed, that took so many seconds together at most."""
    found = re.findall(r"^\| `(\w+)` \| \w+ \| (\w+) \|.* ([\d.]+) \|$", text, re.MULTILINE)
    rows = [(name, target, float(took)) for name, target, took in found if target in targets]
    chosen = []
    for name, target, took in random.Random(seed).sample(rows, len(rows)):
        if took <= seconds:
            chosen.append((name, target))
            seconds -= took
    return chosen


def sample(text: str, chosen: Iterable[tuple[str, str]], seconds: float) -> list[str]:
    """Prove these again, and print a line for each, and what is not proved that the page does not name. Returns the
    names of what is refuted of it."""
    named = re.findall(r"^- (.*): (?:refuted|undecided), ", text, re.MULTILINE)
    wrong = []
    for name, target in chosen:
        (proof,) = proofs([registry()[name]], seconds, [target])
        others = [o for o in proof.obligations if o.status != "proved" and o.name not in named]
        proved = sum(o.status == "proved" for o in proof.obligations)
        print(f"{name:<26}{target:<7}{proved} of {len(proof.obligations)} statements proved for all sizes", flush=True)
        for o in others:
            print(f"  {o.name}: {o.status}, {o.reason} {dict(o.sizes) or ''}".rstrip(), file=sys.stderr)
        wrong += [o.name for o in others if o.status == "refuted"]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one question to the solver")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only these; other rows stay as they are")
    parser.add_argument("--operator", action="append", choices=[*registry()], help="the same of operators")
    parser.add_argument("--sample", type=float, help="prove rows again that took so many seconds together")
    parser.add_argument("--seed", type=int, help="of the sample; drawn by default")
    arguments = parser.parse_args()
    targets = arguments.target or list(TARGETS)
    if arguments.sample is not None:
        seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
        chosen = drawn(PAGE.read_text(), arguments.sample, seed, targets)
        print(f"A sample of {PAGE.relative_to(PAGE.parents[2])}, drawn with --seed {seed}:", flush=True)
        return int(not chosen or bool(sample(PAGE.read_text(), chosen, arguments.seconds)))
    found = []
    names = arguments.operator or list(registry())
    for proof in proofs([registry()[name] for name in names], arguments.seconds, targets):
        found.append(proof)
        print(row(proof), flush=True)
    made = {(name, target) for name in names for target in targets}
    (rows, left), (old, old_left) = lines_of(found), kept(PAGE.read_text(), made)
    PAGE.write_text(page([*rows, *old], [*left, *old_left]))
    print(f"{PAGE}: {sum(len(p.obligations) for p in found)} obligations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
