"""Statements in few bytes, and back without a change: digests in a table, cases in columns, what follows left out.

Nearly all of a certificate is SHA-256 digests, which no compressor can shorten. In the compact form a string that
begins with ``#`` stands for one:

* ``#`` is the next one of the table, ``#N`` the one that is N behind the one used before (N may be negative);
* ``#=rc`` is that of the next rows x cols random inputs of a structure run, which follow from its seed. The letters of
  a size are multiplied: ``r`` rows, ``c`` cols, ``k`` inner, ``b`` batch, ``t`` entries of a table; or it is a number.

Oracle digests that are those of the outputs are null, and so are subjects that are the kernels' files.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

MOST_DRAWN = 1 << 22  # random inputs of a tensor whose digest is left out
MOST_IN_ALL = 1 << 27  # of a certificate: a second
SIZES = ("rc", "c", "r", "tc", "kcb", "rkb", "rcb", "kc", "rk", "rb", "cb", "kb", "k", "b")
ENTRIES = (*map(str, range(70)), "16384", "16385", "40000")  # of tensors in lists
LONGEST = 1000
TELLING = 64  # so many numbers and more tell how the size of a tensor is made
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"#(-?[0-9]{0,9})")
_ENTRY = re.compile(r"\[([0-9]{1,6})\]$")


class Table:
    """The digests of a whole archive in the order of their first use, as bytes. One certificate's new ones begin with
    the number ``begin``."""

    def __init__(self, digests: bytes | bytearray = b"") -> None:
        self.digests = bytearray(digests)
        self._numbers: dict[str, int] = {}
        self.begin(len(self))

    def __len__(self) -> int:
        return len(self.digests) // 32

    def copy(self) -> Table:
        """One that goes on from the same place by itself."""
        made = Table(self.digests)
        made._numbers = dict(self._numbers)
        made._next, made._last = self._next, self._last
        return made

    def begin(self, number: int) -> int:
        """Begin a certificate whose first new digest has this number."""
        self._next, self._last = number, number - 1
        return number

    def written(self, digest: str) -> str:
        """What stands for a digest, which is added where it is new."""
        number = self._numbers.setdefault(digest, len(self))
        behind, self._last = number - self._last - 1, number
        if number < len(self):
            return f"#{behind}"
        self.digests += bytes.fromhex(digest)
        return "#"

    def read(self, behind: str) -> str:
        """The digest for which ``#`` and this number stand. Raises ValueError where there is none."""
        number = self._last + 1 + int(behind) if behind else self._next
        if not 0 <= number < len(self):
            raise ValueError(f"a digest with the number {number} (accepted: below {len(self)})")
        self._next, self._last = self._next + (not behind), number
        return self.digests[32 * number : 32 * number + 32].hex()


def shortened(statement: Mapping[str, Any], table: Table) -> Any:
    """The compact form of a statement; its new digests go into the table.

    Raises KeyError, TypeError, ValueError or AttributeError for what has not the structure of a certificate.
    """
    predicate = dict(statement["predicate"])
    short = {**statement, "predicate": predicate}
    if short["subject"] == _subjects(predicate):
        short["subject"] = None
    cases = predicate["cases"]
    draws = _Draws(predicate["operator"]["graph_digest"])
    largest_first = sorted(range(len(cases)), key=lambda i: -cases[i]["rows"] * cases[i]["cols"])
    made = {i: draws.shortened(cases[i]) for i in largest_first}
    predicate["cases"] = _columns([made[i] for i in range(len(cases))])
    predicate["kernels"] = _columns(predicate["kernels"])
    return _mapped(short, lambda text: table.written(text) if _DIGEST.fullmatch(text) else text)


def expanded(short: Any, table: Table) -> Any:
    """The statement of a compact form. Raises KeyError, TypeError, ValueError or AttributeError where it is none."""

    def digest(text: str) -> str:
        found = _TOKEN.fullmatch(text)
        return text if found is None else table.read(found[1])

    statement = _mapped(short, digest)
    predicate = statement["predicate"]
    draws = _Draws(predicate["operator"]["graph_digest"])
    predicate["kernels"] = _rows(predicate["kernels"])
    predicate["cases"] = [draws.expanded(case) for case in _rows(predicate["cases"])]
    if statement["subject"] is None:
        statement["subject"] = _subjects(predicate)
    return statement


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each string, but for keys, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _columns(rows: list[dict[str, Any]]) -> Any:
    """Objects that have the same keys as one object of lists; others as they are."""
    if not rows or any(list(row) != list(rows[0]) for row in rows):
        return rows
    return {name: [row[name] for row in rows] for name in rows[0]}


def _rows(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return value
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def _subjects(predicate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The subjects of a statement about these kernels, named as `statement.build_statement` does. Raises ValueError
    where the names are so long that many of them would fill the memory."""
    stem = f"{predicate['operator']['name']}.{predicate['dtype']}.{predicate['target']}"
    if len(stem) > LONGEST:
        raise ValueError(f"an operator's name, dtype and target of {len(stem)} characters (accepted: {LONGEST})")
    files = {f"{stem}.{k['digest'][:12]}.so": k["digest"] for k in predicate["kernels"]}
    files |= {f"{stem}.{k['source_digest'][:12]}.source": k["source_digest"] for k in predicate["kernels"]}
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()]


class _Draws:
    """The cases of one definition, with and without the digests that its structure runs draw."""

    def __init__(self, graph_digest: str) -> None:
        self._graph_digest, self._drawn_so_far = graph_digest, 0
        self._sizes: dict[str, str] = {}  # by tensor, where a case has told it

    def shortened(self, case: Mapping[str, Any]) -> dict[str, Any]:
        short = dict(case)
        if case["oracle_digests"] == case["output_digests"]:
            short["oracle_digests"] = None
        if case["kind"] == "structure":
            short["input_digests"] = dict(self._left_out(case))
        return short

    def expanded(self, short: Mapping[str, Any]) -> dict[str, Any]:
        case = dict(short)
        if case["oracle_digests"] is None:
            case["oracle_digests"] = dict(case["output_digests"])
        if case["kind"] == "structure":
            case["input_digests"] = dict(self._drawn(case))
        return case

    def _left_out(self, case: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        streams = _Streams(self._graph_digest, case["seed"])
        for name, digest in case["input_digests"].items():
            stream = streams.of(name)
            sizes = ENTRIES if _ENTRY.search(name) else SIZES
            if name in self._sizes:
                sizes = (self._sizes[name],)
            fits = (s for s in sizes if _count(s, case) <= MOST_DRAWN and stream.is_next(_count(s, case), digest))
            size = next(fits, None)
            if size is not None and _count(size, case) >= TELLING:
                alike = [s for s in sizes if _count(s, case) == _count(size, case)]
                self._sizes |= {name: size} if len(alike) == 1 and sizes is SIZES else {}
            yield name, digest if size is None else f"#={size}"

    def _drawn(self, case: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        streams = _Streams(self._graph_digest, case["seed"])
        for name, text in case["input_digests"].items():
            if text.startswith("#="):
                count = _count(text[2:], case)
                self._drawn_so_far += count
                if not 0 <= count <= MOST_DRAWN or self._drawn_so_far > MOST_IN_ALL:
                    raise ValueError(
                        f"{count} random inputs of one tensor, {self._drawn_so_far} so far "
                        f"(accepted: {MOST_DRAWN} of one, {MOST_IN_ALL} of all)"
                    )
                text = streams.of(name).digest(count)
            yield name, text


class _Streams:
    """The random inputs of one case: a stream for each entry of a list, and one for all tensors that are in none."""

    def __init__(self, graph_digest: str, seed: int) -> None:
        self._graph_digest, self._seed = graph_digest, seed
        self._streams: dict[int, _Stream] = {}

    def of(self, name: str) -> _Stream:
        entry = _ENTRY.search(name)
        number = int(entry[1]) if entry else 0
        if number not in self._streams:
            self._streams[number] = _Stream(self._graph_digest, self._seed + number)
        return self._streams[number]


class _Stream:
    """The numbers of `tokitai.meaning.structure.hashes`: those of PCG64, which NumPy promises to keep as it is. A hash
    is drawn again where the number is 0, which has a probability of 2**-64: such a digest would not be left out."""

    def __init__(self, graph_digest: str, seed: int) -> None:
        word = int.from_bytes(hashlib.sha256(graph_digest.encode()).digest()[:8], "little")
        self._generator = np.random.PCG64([seed, word])

    def digest(self, count: int) -> str:
        """SHA-256 of the next numbers as little-endian words."""
        return hashlib.sha256(self._generator.random_raw(count).astype("<u8", copy=False).data).hexdigest()

    def is_next(self, count: int, digest: str) -> bool:
        """Whether this is the digest of so many numbers, which are then passed."""
        state = self._generator.state
        if self.digest(count) == digest:
            return True
        self._generator.state = state
        return False


def _count(size: str, case: Mapping[str, Any]) -> int:
    """How many numbers a size is in a case."""
    if len(size) > 8:
        raise ValueError(f"a size of {len(size)} letters (accepted: at most 8)")
    if size.isdecimal():
        return int(size)
    rows, cols, inner, batch = case["rows"], case["cols"], case["inner"] or 1, case["batch"] or 1
    sides = {"r": rows, "c": cols, "k": inner, "b": batch, "t": rows // 3 + 2}
    return math.prod(sides[side] for side in size)
