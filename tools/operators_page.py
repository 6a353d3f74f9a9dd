"""The reference page of the operators, from their definitions: ``python -m tools.operators_page`` writes it anew.

With ``--check`` it writes nothing and exits 1 where the page is not what would be written.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from pathlib import Path

from tokitai.cli.describe import placed, sides
from tokitai.lang import Operator
from tokitai.ops import registry
from tokitai.torch import operators as torch_operators
from tokitai.torch.arguments import plain_signature

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "each-operator.md"
HEAD = """\
# Each operator

Every operator of `tokitai.ops`, as its definition and contract have it: written by `python -m tools.operators_page`.
`tokitai show NAME` shows definition, graph, plan and source of one, `tokitai verify NAME` verifies it. Formats in
brackets are fixed; the others are the storage format of the call. A `?` marks an input that may be left out.
"""


def page(every: Iterable[Operator]) -> str:
    """The page, with one section for each operator."""
    return "\n".join([HEAD, *(section(o) for o in every)])


def section(o: Operator) -> str:
    """One operator: what it computes, what it takes and gives, its gradient and its function for torch."""
    first = o.trace(o.contract.formats[0])
    fixed = {t.name: t.format for t in o.tensors if t.format != "storage"}
    inputs = [
        f"`{t.name}{'?' if t.optional else ''}` {sides(o, t.space)}{f' [{fixed[t.name]}]' if t.name in fixed else ''}"
        for t in placed(o)
    ]
    results = [f"`{r.name}` {sides(o, r.space)}{' in place' if r.inplace else ''}" for r in first.outputs]
    scalars = [f"`{p.name}`" if p.default is None else f"`{p.name}={p.default:g}`" for p in o.params]
    options = [f"`{p.name}` of {', '.join(f'`{v!r}`' for v in p.accepted)}" for p in o.options]
    backward = [b.name for b in registry().values() if b.backward_of is o]
    function = torch_operators.FUNCTIONS.get(o.name)
    rows = [
        ("inputs", "; ".join(inputs)),
        ("scalars and options", "; ".join([*scalars, *options])),
        ("results", "; ".join(results)),
        ("storage", f"{', '.join(o.contract.formats)}{'; lists of tensors' if o.contract.lists else ''}"),
        ("domain", o.contract.domain),
        ("gradient of", "" if o.backward_of is None else f"[`{o.backward_of.name}`](#{o.backward_of.name})"),
        ("gradient by", ", ".join(f"[`{n}`](#{n})" for n in backward)),
        ("without a gradient", ", ".join(f"`{n}`" for n in o.gradient.constant)),
        ("`tokitai.torch.operators`", "" if function is None else f"`{o.name}{called(function)}`"),
        ("under autocast", "" if function is None else f"rule `{o.gradient.autocast}`"),
    ]
    said = " ".join(inspect.cleandoc(o.__doc__ or "").split("\n\n")[0].split())
    table = [f"| {name} | {text.replace('|', '&#124;')} |" for name, text in rows if text]
    return "\n".join([f"## {o.name}", "", said, "", "| | |", "| --- | --- |", *table, ""])


def called(function: object) -> str:
    """The arguments of a function for torch, and what it returns."""
    assert callable(function)
    last = (function.__doc__ or "").splitlines()[-1].strip()
    returned = last.removeprefix("Returns ").rstrip(".") if last.startswith("Returns ") else ""
    return f"{plain_signature(inspect.signature(function))} -> {returned}"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    made = page(registry().values())
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text() != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
