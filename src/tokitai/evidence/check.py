"""Check a certificate without trusting, or even having, the package that wrote it.

This file needs the standard library and `schema.json` beside it, nothing else:

    python check.py CERTIFICATE...

It says whether a certificate is well-formed: whether its parts agree, the verdict with the cases, equality with the
digests, the subjects with the kernels.
It does not say that any of it is true: oracle, claims and contract are recomputed by `tokitai check --rerun`; that the
runs took place is the signer's word.
A certificate is a statement, or a DSSE envelope that holds one. Signatures are read here and checked in `sign`, since
that takes a library.
"""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

SCHEMA = Path(__file__).with_name("schema.json")
PAYLOAD_TYPE = "application/vnd.in-toto+json"
LARGEST = 1 << 26  # bytes of a file: a hundred times the largest certificate so far
MOST = 50  # problems that are reported of one certificate
MOST_CASES = 50_000  # of one certificate; the largest so far has 300
MOST_KINDS = 32  # of cases; there are seven so far
LARGEST_BOUND = 1e6  # units, of errors against the condition of their elements: a larger bound says nothing
LEAST_BIN, MOST_BIN = -10, 20  # powers of two of the histogram of these errors
# Flags that let a compiler give other results than IEEE 754 asks for. Whoever states them contradicts every claim.
INEXACT = re.compile(
    r"-Ofast|-f(fast-math|(unsafe|finite)-math.*|(associative|reciprocal)-math|no-signed-zeros|cx-limited-range|approx-func"
    r"|fp-(contract=(?!off)|model=(?!strict)).*|gpu-flush-denormals.*|denormal-fp-math=(?!ieee).*|no-hip-fp32-correct.*)"
    r"|-m(fpmath=387|daz-ftz|recip.*)|-{1,2}(use_fast_math|(fmad|ftz)=true|prec-(div|sqrt)=false)"
)

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


class Signature(NamedTuple):
    """One signature of an envelope. `keyid` says whose it is, without proof; empty where the envelope does not say."""

    keyid: str
    value: bytes


class Certificate(NamedTuple):
    """A file's statement as JSON text, and the signatures of the envelope round it; None where there is no envelope."""

    payload: bytes
    signatures: tuple[Signature, ...] | None


def check(path: str | Path) -> list[str]:
    """What is wrong with the certificate in this file, one sentence each; empty where nothing is.

    Never raises: a file that cannot be read, or is not JSON, is a problem as well. Signatures are not checked.
    """
    return _checked(path)[0]


def read(path: str | Path) -> Certificate:
    """The statement and the signatures that a file holds. Raises OSError, and ValueError where it is neither kind."""
    with open_regular(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB")
    return opened(data)


def opened(data: bytes) -> Certificate:
    """The same of the bytes of a file. Raises ValueError."""
    found = parse(data)
    if isinstance(found, dict) and found.keys() & {"payload", "payloadType", "signatures"}:
        if both := sorted(found.keys() & {"_type", "subject", "predicateType", "predicate"}):
            raise ValueError(f"an envelope with the statement's key {both[0]!r}: two readings (accepted: one of them)")
        return _envelope(found)
    return Certificate(data, None)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises OSError, and ValueError for a pipe or a device, which might never end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("no regular file (accepted: a file that can be read to its end)")
    return file


def parse(payload: bytes) -> Any:
    """JSON text as values. Raises ValueError, also for what two readers could understand in two ways."""
    try:
        return json.loads(
            payload.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite,
            parse_int=_whole,
        )  # fmt: skip
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read as JSON: {error}") from error
    except RecursionError:
        raise ValueError("cannot be read as JSON: nested too deeply") from None


def problems(statement: object) -> list[str]:
    """What is wrong with a parsed statement. Its content is checked only where its structure is right."""
    return _first(_departures(statement)) or _first(_meaning(statement))


def well_formed(statement: object) -> bool:
    """Whether a parsed statement has the structure of the schema, whatever it says."""
    return not any(_departures(statement))


def printable(text: str) -> str:
    """Text with escapes in place of what could steer a terminal, or not be written at all."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _checked(path: str | Path) -> tuple[list[str], Certificate | None]:
    try:
        certificate = read(path)
        return problems(parse(certificate.payload)), certificate
    except OSError as error:
        return [printable(f"cannot be read: {error.strerror or error}")], None
    except ValueError as error:
        return [printable(str(error))], None


def _departures(statement: object) -> Iterator[str]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    yield from _structure(statement, schema, schema, "statement")


def _first(found: Iterable[str]) -> list[str]:
    """The first problems: a file can be made to have millions."""
    told = [printable(problem) for problem in itertools.islice(found, MOST + 1)]
    return [*told[:MOST], "and more"] if len(told) > MOST else told


# ---------------------------------------------------------------------- reading
def _envelope(envelope: Mapping[str, Any]) -> Certificate:
    """What an envelope holds. Raises ValueError. Other fields are ignored, as DSSE demands."""
    for name, kind in (("payload", str), ("payloadType", str), ("signatures", list)):
        if not isinstance(envelope.get(name), kind):
            raise ValueError(f"an envelope whose {name!r} is {_short(envelope.get(name))}")
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(f"an envelope of payloadType {_short(envelope['payloadType'])} (accepted: {PAYLOAD_TYPE})")
    if not envelope["signatures"]:
        raise ValueError("an envelope without a signature")
    signatures = []
    for one in envelope["signatures"]:
        keyid = one.get("keyid") if isinstance(one, dict) else None
        if not isinstance(one, dict) or not isinstance(one.get("sig"), str) or not isinstance(keyid, str | None):
            raise ValueError(f"an envelope with the signature {_short(one)} (accepted: sig and keyid, strings)")
        signatures.append(Signature(keyid or "", _bytes(one["sig"], "sig")))
    return Certificate(_bytes(envelope["payload"], "payload"), tuple(signatures))


def _bytes(text: str, name: str) -> bytes:
    """Bytes from base64, in either alphabet. Raises ValueError where another text would give the same bytes."""
    for altchars in (b"+/", b"-_"):
        try:
            value = base64.b64decode(text, altchars, validate=True)
        except ValueError:
            continue
        if base64.b64encode(value, altchars).decode("ascii") == text:
            return value
    raise ValueError(f"an envelope whose {name!r} is not base64: {_short(text)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. With a key given twice, two readers could each see another certificate."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON (accepted: the strings nan, inf and -inf)")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text if len(text) < 20 else text[:17] + '...'} is too large")
    return value


def _whole(text: str) -> int:
    _finite(text)  # compared with others as a float
    return int(text)


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
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value that is nested deeply"
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
    if not cases and not _findings(predicate):
        yield "there is no case: nothing was compared"
    kinds = {case["kind"] for case in cases}
    if len(cases) > MOST_CASES or len(kinds) > MOST_KINDS:
        yield f"{len(cases)} cases of {len(kinds)} kinds (accepted: at most {MOST_CASES} of {MOST_KINDS} kinds)"
        return
    for index, case in enumerate(cases):
        yield from (f"case {index} ({case['kind']}, {case['name']}): {what}" for what in _case(case, contract))
    for build, structure in (("structure", True), ("numeric", False)):
        ran = any((case["kind"] == "structure") is structure for case in cases)
        if ran and not any(kernel["structure"] is structure for kernel in predicate["kernels"]):
            yield f"there are {build} cases, but no {build} kernel"
    if len({"sums" in kernel for kernel in predicate["kernels"]}) > 1:
        yield "some kernels say where their sources join pending sums, and some do not (accepted: all or none)"
    yield from _machine_code(predicate)
    yield from _verdict(predicate)
    yield from _error(predicate)
    inexact = (flag for flag in predicate["flags"] if INEXACT.fullmatch(flag))
    yield from (f"the flag {_short(flag)} lets results differ from IEEE 754" for flag in inexact)
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


def _machine_code(predicate: Any) -> Iterator[str]:
    """Where what was read is not of the kernels, or says that it was read and was not."""
    if "machine_code" not in predicate:
        return
    read = {code["binary"] for code in predicate["machine_code"]}
    there = {kernel["digest"] for kernel in predicate["kernels"] if not kernel["structure"]}
    yield from (f"{digest}, whose machine code was read, is no numeric kernel" for digest in sorted(read - there))
    yield from (f"nothing is said of the machine code of {digest}" for digest in sorted(there - read))
    for code in predicate["machine_code"]:
        said = bool(code["listing"] or code["counts"] or code["findings"])
        if said is (code["missing"] is not None):
            yield f"machine code of {code['binary']}: what was read, or why nothing was (accepted: one of them)"


def _findings(predicate: Any) -> int:
    return sum(len(code["findings"]) for code in predicate.get("machine_code", ()))


def _verdict(predicate: Any) -> Iterator[str]:
    verdict, cases = predicate["verdict"], predicate["cases"]
    wrong = [case["name"] for case in cases if not case["equal"]]
    if wrong and verdict != "refuted":
        yield f"the verdict is {verdict}, but {len(wrong)} of {len(cases)} cases are not equal, first {wrong[0]!r}"
    found = _findings(predicate)
    if found and verdict != "refuted":
        yield f"the verdict is {verdict}, but machine code has {found} findings"
    if verdict == "refuted" and not wrong and not found:
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
    if error.get("condition") is not None:
        if stated is None:
            yield "no error was measured, but against its condition"
        for fmt, said in error["condition"].items():
            yield from (f"of results in {fmt}, {problem}" for problem in _condition(said))


def _condition(said: Any) -> Iterator[str]:
    """Where figures of errors against the condition of their elements contradict each other."""
    counts, error, bound = said["histogram"], said["max_error"], said["bound"]
    if len(counts) != MOST_BIN - LEAST_BIN + 1 or sum(counts) != said["elements"]:
        yield f"a histogram of {len(counts)} bins with {sum(counts)} errors, of {said['elements']} elements"
    elif any(counts):
        top = max(i for i, count in enumerate(counts, LEAST_BIN) if count)
        of_error = round(math.log2(error)) if error > 0 else LEAST_BIN
        if top != min(max(of_error, LEAST_BIN), MOST_BIN):
            yield f"the largest error against its condition is {error}, but in the histogram 2^{top}"
    if not error <= bound <= LARGEST_BOUND:
        yield f"the largest error against its condition is {error}, the bound on it {bound} (accepted: up to 1e6)"
    if not said["probabilistic_bound"] <= bound:
        yield f"the probabilistic bound {said['probabilistic_bound']} exceeds the certain one {bound}"
    if (said["unbounded"] > 0) != bool(said["why"]):
        yield f"{said['unbounded']} elements are said to have no bound, with {len(said['why'])} reasons"


def main(names: list[str]) -> int:
    """Check these files and print what is wrong. Returns the exit code: 0 nothing, 1 something, 2 without a file."""
    if not names:
        print("usage: python check.py CERTIFICATE...", file=sys.stderr)
        return 2
    wrong = False
    for name in names:
        found, certificate = _checked(name)
        wrong = wrong or bool(found)
        if certificate is not None and certificate.signatures is not None:
            found = [*found, "signed; the signature is not checked"]
        for problem in found:
            print(f"{printable(name)}: {problem}")
    if not wrong:
        print("well-formed")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
