"""Check a certificate without trusting, or even having, the package that wrote it.

This file needs the standard library and `schema.json` beside it, nothing else:

    python check.py CERTIFICATE...

It says whether a certificate is well-formed and whether its parts agree: the verdict with the cases, equality with the
digests, the subjects with the kernels. It does not say that the runs took place; recomputing the oracle does that.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_name("schema.json")

_NOTES = {"$schema", "$id", "$defs", "title", "description"}
_TYPES: dict[str, Any] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: _TYPES["number"](value) and value == math.floor(value),
}


def check(path: str | Path) -> list[str]:
    """What is wrong with the certificate in this file, one sentence each; empty where nothing is.

    Never raises: a file that cannot be read, or is not JSON, is a problem as well.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        statement = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)
    except (OSError, ValueError, RecursionError) as error:
        return [f"{path}: cannot be read as JSON: {error}"]
    return problems(statement)


def problems(statement: object) -> list[str]:
    """What is wrong with a parsed statement. Its meaning is looked at only where its structure is right."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return list(_structure(statement, schema, schema, "statement")) or list(_meaning(statement))


def well_formed(statement: object) -> bool:
    """Whether a parsed statement has the structure of the schema, whatever it says."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return not any(_structure(statement, schema, schema, "statement"))


# ---------------------------------------------------------------------- reading
def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. With a key given twice, two readers could each see another certificate."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON (accepted: the strings nan, inf and -inf)")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is too large")
    return value


# ---------------------------------------------------------------------- structure
def _structure(value: object, schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    """Where a value departs from a schema: the part of JSON Schema 2020-12 that `schema.json` uses.

    Raises NotImplementedError for any other keyword, so that none is passed over.
    """
    for keyword, wanted in schema.items():
        if keyword in _NOTES:
            continue
        if keyword == "$ref":
            yield from _structure(value, root["$defs"][wanted.removeprefix("#/$defs/")], root, at)
        elif keyword == "type":
            if not _TYPES[wanted](value):
                yield f"{at}: {_short(value)} is not of type {wanted}"
        elif keyword == "const":
            if value != wanted:
                yield f"{at}: {_short(value)} (accepted: {wanted!r})"
        elif keyword == "enum":
            if value not in wanted:
                yield f"{at}: {_short(value)} (accepted: {', '.join(map(repr, wanted))})"
        elif keyword == "anyOf":
            tries = [list(_structure(value, option, root, at)) for option in wanted]
            if all(tries):
                yield "; or ".join(found[0] for found in tries)
        elif keyword in _KEYWORDS:
            yield from _KEYWORDS[keyword](value, wanted, schema, root, at)
        else:
            raise NotImplementedError(f"the JSON Schema keyword {keyword!r}")


def _required(value: object, wanted: list[str], *rest: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{rest[-1]}: {name!r} is missing" for name in wanted if name not in value)


def _properties(value: object, wanted: Mapping[str, Any], _schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, schema in wanted.items():
            if name in value:
                yield from _structure(value[name], schema, root, f"{at}.{name}")


def _additional(value: object, wanted: Any, schema: Mapping[str, Any], root: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in value.keys() - schema.get("properties", {}).keys():
            if wanted is False:
                yield f"{at}: {name!r} is not accepted"
            else:
                yield from _structure(value[name], wanted, root, f"{at}.{name}")


def _items(value: object, wanted: Mapping[str, Any], _schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _structure(item, wanted, root, f"{at}[{index}]")


def _pattern(value: object, wanted: str, *rest: Any) -> Iterator[str]:
    # fullmatch, since `$` alone would let a line break at the end through
    if isinstance(value, str) and not re.fullmatch(wanted, value):
        yield f"{rest[-1]}: {_short(value)} does not match {wanted}"


def _minimum(value: object, wanted: float, *rest: Any) -> Iterator[str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not value >= wanted:
        yield f"{rest[-1]}: {value} is below {wanted}"


def _at_least(kind: type) -> Any:
    def test(value: object, wanted: int, *rest: Any) -> Iterator[str]:
        if isinstance(value, kind) and len(value) < wanted:  # type: ignore[arg-type]
            yield f"{rest[-1]}: {len(value)} entries, at least {wanted} wanted"  # type: ignore[arg-type]

    return test


_KEYWORDS: dict[str, Any] = {
    "required": _required, "properties": _properties, "additionalProperties": _additional, "items": _items,
    "pattern": _pattern, "minimum": _minimum, "minItems": _at_least(list), "minProperties": _at_least(dict),
    "minLength": _at_least(str),
}  # fmt: skip


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------- meaning
def _meaning(statement: Any) -> Iterator[str]:
    """Where the parts of a well-formed statement contradict each other."""
    predicate = statement["predicate"]
    yield from _subjects(statement["subject"], predicate["kernels"])
    contract = predicate["operator"]["contract"]
    if predicate["dtype"] not in contract["formats"]:
        yield f"dtype {predicate['dtype']!r} is not in the contract ({', '.join(contract['formats'])})"
    cases = predicate["cases"]
    if not cases:
        yield "there is no case: nothing was compared"
    for index, case in enumerate(cases):
        yield from (f"case {index} ({case['kind']}, {case['name']}): {what}" for what in _case(case, contract))
    for build, structure in (("structure", True), ("numeric", False)):
        ran = any((case["kind"] == "structure") is structure for case in cases)
        if ran and not any(kernel["structure"] is structure for kernel in predicate["kernels"]):
            yield f"there are {build} cases, but no {build} kernel"
    yield from _verdict(predicate)
    yield from _error(predicate)
    try:
        datetime.datetime.strptime(predicate["created"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        yield f"created {predicate['created']!r} is no date"


def _subjects(subjects: Any, kernels: Any) -> Iterator[str]:
    names = [subject["name"] for subject in subjects]
    if len(set(names)) < len(names):
        yield "two subjects have one name"
    named = {subject["digest"]["sha256"] for subject in subjects}
    used = {kernel[key] for kernel in kernels for key in ("digest", "source_digest")}
    yield from (f"the subject {digest} is no kernel's binary or source" for digest in sorted(named - used))
    yield from (f"{digest}, a kernel's binary or source, is not a subject" for digest in sorted(used - named))


def _case(case: Any, contract: Any) -> Iterator[str]:
    for size in ("rows", "cols"):
        if case[size] > contract[f"max_{size}"]:
            yield f"{size}={case[size]} is more than the contract's {contract[f'max_{size}']}"
    if case["equal"]:
        if not case["oracle_digests"]:
            yield "equal, but no oracle digest says to what"
        if case["output_digests"] != case["oracle_digests"]:
            yield "equal, but the digests of the outputs are not those of the oracle"
        if case["compared"] == 0 and case["rows"] and case["cols"]:
            yield "equal, but no element was compared"


def _verdict(predicate: Any) -> Iterator[str]:
    verdict, cases = predicate["verdict"], predicate["cases"]
    wrong = [case["name"] for case in cases if not case["equal"]]
    if wrong and verdict != "refuted":
        yield f"the verdict is {verdict}, but {len(wrong)} of {len(cases)} cases are not equal, first {wrong[0]!r}"
    if verdict == "refuted" and not wrong:
        yield "the verdict is refuted, but no case differs"
    if verdict == "verified" and cases and not any(case["compared"] for case in cases):
        yield "the verdict is verified, but no element was compared"
    if (predicate["failure"] is not None) != (verdict == "refuted"):
        yield f"the verdict is {verdict}, and failure is {_short(predicate['failure'])}: refuted comes with a failure"


def _error(predicate: Any) -> Iterator[str]:
    error = predicate["error"]
    measured = [float(case["max_ulp_error"]) for case in predicate["cases"] if case["max_ulp_error"] is not None]
    stated = None if error["max_ulp_error"] is None else float(error["max_ulp_error"])
    if stated != max(measured, default=None):
        yield f"the largest error is stated as {stated}, but over the cases it is {max(measured, default=None)}"
    if stated is None and error["at"] is not None:
        yield "no error was measured, but it is said where"
    if stated is not None and error["bound"] is not None and not stated <= error["bound"]:
        yield f"the largest error {stated} exceeds the proven bound {error['bound']}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python check.py CERTIFICATE...")
    _found = [f"{name}: {problem}" for name in sys.argv[1:] for problem in check(name)]
    print("\n".join(_found) or "no problems")
    sys.exit(1 if _found else 0)
