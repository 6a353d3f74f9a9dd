"""A certificate for people, in Markdown. The same statement always gives the same page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

VERDICTS = {
    "verified": "**Verified**: every case is equal to the definition, bit for bit.",
    "refuted": "**Refuted**: at least one case differs from the definition.",
    "undecided": "**Undecided**: no case differs, and something that was planned could not be run.",
}


def _cols(case: Mapping[str, Any]) -> str:
    """The columns; of a product also what it sums over, and how many products there are."""
    text = str(case["cols"])
    if case.get("inner") is not None:
        text += f", inner {case['inner']}"
        text += f", batch of {case['batch']}" if case["batch"] != 1 else ""
    return text


def render(statement: Mapping[str, Any]) -> str:
    """The Markdown text of a statement that `check` finds no problem with."""
    p = statement["predicate"]
    operator, error, tool = p["operator"], p["error"], p["tool"]
    parts = [
        f"# {operator['name']}, {p['dtype']}, on {p['target']}",
        VERDICTS[p["verdict"]],
        *([f"To see it again:\n\n    {p['failure']}"] if p["failure"] else []),
        "## Claims\n\n" + _list(p["claims"]),
        "## Not claimed\n\n" + _list(p["non_claims"]),
        "## What was compared\n\n" + _compared(p["cases"]) + "\n\n" + _error(error),
        _table(
            ["kind", "case", "rows", "cols", "seed", "scalars", "threads", "elements", "equal", "largest error (ulp)"],
            ([
                c["kind"], c["name"], c["rows"], _cols(c), c["seed"],
                ", ".join(f"{name}={_value(value)}" for name, value in sorted(c["scalars"].items())),
                c["threads"], f"{c['compared']:,}", "yes" if c["equal"] else "**no**", _ulps(c["max_ulp_error"]),
            ] for c in p["cases"]),
        ),
        "## What was proved\n\n" + _proofs(p["proofs"]),
        "## Where\n\n" + _table(["device", ""], sorted(p["device"].items())),
        _table(
            ["build", ""],
            [
                ("compiler", p["compiler"]["version"].splitlines()[0]),
                ("compiler's digest", p["compiler"]["digest"]),
                ("instruction set", p["isa"]),
                ("flags", " ".join(p["flags"])),
                ("definition", operator["graph_digest"]),
                ("numerics version", operator["numerics_version"]),
                *([("worker process", p["isolation"])] if p.get("isolation") else []),
            ],
        ),
        _table(
            ["kernel", "fingerprint", "binary", "source"],
            (["structure" if k["structure"] else "numeric", k["fingerprint"], k["digest"], k["source_digest"]]
             for k in p["kernels"]),
        ),
        "## Contract\n\n" + _contract(operator["contract"]),
        f"Made by {tool['name']} {tool['version']} (Python {tool['python']}, NumPy {tool['numpy']}) "
        f"at {p['created']} in {p['seconds']:.1f} s.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _compared(cases: list[dict[str, Any]]) -> str:
    elements, equal = sum(c["compared"] for c in cases), sum(c["equal"] for c in cases)
    return f"{elements:,} elements in {len(cases):,} cases, of which {equal:,} are equal."


def _error(error: Mapping[str, Any]) -> str:
    if error["max_ulp_error"] is None:
        return "The error against the exact value was not measured."
    condition = error.get("condition")
    bound = "no bound is proved" if error["bound"] is None else f"proven bound {_ulps(error['bound'])} ulp"
    where = f":\n\n    {error['at']}" if error["at"] else "."
    said = f"Largest error against the exact value: {_ulps(error['max_ulp_error'])} ulp"
    return f"{said}{where}\n\n{_condition(condition)}" if condition else f"{said} ({bound}){where}"


def _condition(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors in roundings of the magnitudes that are added, of results in each format."""
    rows = _table(
        ["results in", "elements", "largest error", "of the row's largest", "proven bound", "probabilistic bound"],
        (
            [fmt, f"{e['elements']:,}", *(_ulps(e[name]) for name in ("max_error", "max_error_of_row", "bound",
                                                                     "probabilistic_bound"))]
            for fmt, e in found.items()
        ),
    )  # fmt: skip
    left = [
        f"{e['unbounded']:,} elements in {fmt} without a bound below 1e6: {'; '.join(e['why'])}."
        for fmt, e in found.items()
        if e["unbounded"]
    ]
    head = "In roundings of the magnitudes that an element's evaluation adds:"
    return "\n\n".join([head, rows, *([_list(left)] if left else [])])


def _proofs(proofs: list[dict[str, Any]]) -> str:
    if not proofs:
        return "Nothing: the cases above are all there is."
    return _list(f"{proof['status']}: {proof['statement']} ({proof['how']})" for proof in proofs)


def _contract(contract: Mapping[str, Any]) -> str:
    formats = ", ".join(contract["formats"])
    return (
        f"Formats {formats}; up to {contract['max_rows']:,} rows and {contract['max_cols']:,} columns; "
        f"domain: {contract['domain']}."
    )


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _table(head: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(_value(item)) for item in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _ulps(value: float | str | None) -> str:
    """An error to six digits, which is more than it is used for; the certificate has all of them."""
    return f"{value:.6g}" if isinstance(value, int | float) else _value(value)


def _value(value: Any) -> str:
    """A value as it stands in a table: lists joined, nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value)
