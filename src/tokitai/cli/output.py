"""What the commands print."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from ..evidence.check import printable
from ..proving.obligation import Obligation
from ..verification import Verdict
from ..verification.recheck import Checked


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output. Numbers that JSON lacks become the strings nan, inf and -inf."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair, as names of files may hold, is an escape in Python that is one in JSON as well.
    print(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def plain(value: Any) -> Any:
    """`value` with numbers that JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def note(text: str) -> None:
    """A line on standard error, where that can be written: what is found does not depend on it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def report_error(message: str, kind: str, code: int, as_json: bool) -> int:
    """Say what is wrong, on standard error and with ``--json`` on standard output too. Returns `code`."""
    note(f"error: {message}")
    if as_json:
        with contextlib.suppress(OSError):  # perhaps that is what is wrong
            print_json({"error": message, "kind": kind})
    return code


def verdict_text(v: Verdict) -> str:
    """A verdict in one line, and below it the line that replays a failure or says what is missing."""
    line = f"{v.operator:<20} {v.dtype:<5} {v.verdict:<10}{v.cases:>4} case{'s' * (v.cases != 1)}"
    if v.evidence:
        line += f": {', '.join(v.evidence)}"
    if v.verdict == "verified" and v.max_ulp_error is not None:
        line += f"; largest error {v.max_ulp_error:.4g} ulp"
        if v.max_ulp_error_of_row is not None:
            line += f", {v.max_ulp_error_of_row:.4g} of the row's largest"
        if found := v.conditioned:
            first = found[min(found, key=lambda fmt: (fmt != v.dtype, fmt))]  # as on the page, with its mark
            line += f"; {first.error:.4g} units, bound {first.bound:.4g}{'*' * bool(first.unbounded)}"
    said = v.failure or v.not_run
    return line if said is None else f"{line}\n  {said}"


def obligation_text(o: Obligation) -> str:
    """What became of an obligation, in one line, and below it where it is wrong or why it is not decided."""
    line = f"{o.status:<10}{o.seconds:>7.2f} s  {o.name}"
    if o.assumes:
        line += " (of indices in range)"
    if o.sizes:
        line += "\n  at " + ", ".join(f"{name}={value}" for name, value in o.sizes.items())
    return f"{line}\n  {o.reason}" if o.reason else line


SIGNATURES = {
    None: "", "none": "not signed", "not checked": "signature not checked", "good": "signed by",
    "wrong": "signature wrong",
}  # fmt: skip


def checked_text(c: Checked) -> str:
    """What the check of a certificate showed, in one line, and below it what is wrong."""
    about = ""
    if c.operator is not None:
        about = f"{c.operator:<20} {c.dtype:<5} {c.device:<5} {c.verdict:<10}{c.cases:>4} case{'s' * (c.cases != 1)}, "
    state = SIGNATURES[c.signature] + (f" {c.signer[:16]}" if c.signer is not None else "")
    if c.rerun is not None:
        state += f", {c.rerun['cases']} of {c.cases} recomputed"
    if c.lacking is not None:
        state += f", {c.lacking}"
    if c.as_stated and c.signer is None:
        state += ", device and runs as stated"
    line = f"{c.outcome:<18}{about}{state}{': ' * bool(state)}{printable(c.file)}"
    return "\n  ".join([line, *c.problems])
