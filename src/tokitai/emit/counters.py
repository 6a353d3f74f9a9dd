"""Where the headers join pending sums, which of these places a kernel's source reaches, and which were proved.

A sum over blocks is the balanced tree over them. Where values come one after another, a binary counter keeps one
pending sum for each bit that is set in the number of values so far. `proving.sums` proves of these loops that the
result is the tree for every count. ``proved_sums.json`` has the source of what was proved, by its SHA-256;
`tools.prove_sums` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from .cpp import KernelText


@dataclass(frozen=True)
class Counter:
    """A place where a header joins pending sums: the loop of a new value, and that after the last."""

    header: str  # the folder of its target, and its name
    name: str
    definitions: tuple[str, ...]  # how the definitions begin that hold the loops, and what these call to add
    push: str  # the start of its loop, as it stands
    number: str  # the variable that is shifted
    level: str  # the one that counts levels
    sum: str  # the sum that grows
    last: str  # the start of the loop after the last value
    count: str = ""  # in that loop the number of all values, where nothing is shifted
    any: str = ""  # what says in that loop whether there is a sum yet, where it begins with none

    @property
    def id(self) -> str:
        """How certificates and the record name it."""
        return f"{self.header} {self.name}"

    def source(self, header: str) -> str | None:
        """Its definitions in the source of a header; None where one is not there."""
        begins = [header.find(d) for d in self.definitions]
        return None if min(begins) < 0 else "\n".join(header[at : _end(header, at)] for at in begins)


_JOIN = "INLINE void join_chain(E* pending, int64_t n, bool last) {"
_PUSH = "for (; rest & 1; rest >>= 1, pending += LEVEL)"
_LAST = "for (rest >>= 1, pending += LEVEL; rest;"

COUNTERS = (
    Counter("cpu/rows.h", "tree_over", ("template <class Z, class F> INLINE auto tree_over(",),
            "for (int64_t k = i; k & 1; k >>= 1, ++level)", "k", "level", "sum",
            "for (int64_t k = n; k; k >>= 1, ++level)", any="any"),
    Counter("cpu/products.h", "join_chain",
            ("INLINE void add_tile(", "static __attribute__((unused)) void join_chain("),
            "for (; rest & 1; rest /= 2, pending += level)", "rest", "pending", "tile",
            "for (rest /= 2, pending += level; rest;"),
    Counter("cpu/attention.h", "RowSum", ("struct RowSum {",),
            "for (int64_t k = n; k & 1; k /= 2, ++level)", "k", "level", "sum",
            "for (int64_t k = ceil_div(keys, GROUP); k; k /= 2, ++level)", any="any"),
    Counter("gpu/rows.h", "BinaryCounter", ("struct Add {", "template <class Op> struct BinaryCounter {"),
            "for (int64_t k = count; k & 1; k >>= 1, ++i)", "k", "i", "x", "for (++i; count >> i; ++i)", count="count"),
    Counter("gpu/work.h", "over_slices", ("template <class F> INLINE E over_slices(",),
            "for (int64_t rest = n; rest & 1; rest >>= 1)", "rest", "i", "x", "for (int64_t rest = n >> i; rest;"),
    *(Counter(f"gpu/{name}.h", "join_chain", (_JOIN,), _PUSH, "rest", "pending", "tile", _LAST)
      for name in ("products", "pipeline", "attention_steps")),
    Counter("gpu/fixed_point.h", "join", (_JOIN.replace("join_chain", "join"),), _PUSH, "rest", "pending", "tile",
            _LAST),
)  # fmt: skip


def sums_of(text: KernelText) -> dict[str, str]:
    """The places that a kernel's source reaches, with the SHA-256 of their definitions."""
    headers = _included(text)
    reached, found = _reached(text.text, headers.values()), {}
    for c in COUNTERS:
        source = c.source(headers.get(c.header.partition("/")[2], ""))
        if source is not None and any(c.definitions[-1] in part for part in reached):
            found[c.id] = digest(source)
    return found


def digest(source: str) -> str:
    """SHA-256 of a source."""
    return hashlib.sha256(source.encode()).hexdigest()


@cache
def proved() -> Mapping[str, Mapping[str, str]]:
    """What was proved for every count: of each place the definitions by their digest, also those of earlier versions,
    which certificates name."""
    return dict(json.loads((resources.files(__package__) / "proved_sums.json").read_text()))


def _end(text: str, at: int) -> int:
    """Where the braces close that open first from there on."""
    depth = 0
    for mark in re.compile("[{}]").finditer(text, at):
        depth += 1 if mark[0] == "{" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def _included(text: KernelText) -> dict[str, str]:
    """The headers that a source includes, or that one of these includes."""
    found, left = dict[str, str](), [text.text]
    while left:
        new = {n: text.headers[n] for n in _INCLUDE.findall(left.pop()) if n in text.headers and n not in found}
        found |= new
        left += new.values()
    return found


def _reached(source: str, headers: Iterable[str]) -> list[str]:
    """The definitions of headers that a source names, or that one of these names. What has no name counts as named."""
    parts = [part for header in headers for part in _parts(header)]
    names, reached = set(_WORD.findall(source)), list[str]()
    while found := [(name, part) for name, part in parts if name is None or name in names]:
        parts = [p for p in parts if p not in found]
        reached += [part for _, part in found]
        names.update(*(_WORD.findall(part) for _, part in found))
    return reached


_WORD, _INCLUDE = re.compile(r"[A-Za-z_]\w*"), re.compile(r'#include "([^"]+)"')
_TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<[^<>]*>)*>|__attribute__\s*\(\([^()]*(?:\([^()]*\))?[^()]*\)\)")
_NAMESPACE = re.compile(r"^namespace \w+ \{|^\}\s*// namespace.*", re.MULTILINE)
_STRUCT, _FUNCTION = (
    re.compile(r"\s*struct (?:alignas\(\w+\) )?(\w+)"),
    re.compile(r"[^=(]*?(\w+)\s*(?:<[^()]*>)?\s*\("),
)


@cache
def _parts(header: str) -> list[tuple[str | None, str]]:
    """The definitions of a header in its namespace, with their names; None of what has none, such as macros."""
    code = re.sub(r"//.*", "", _NAMESPACE.sub("", header))
    macros = "\n".join(re.findall(r"^#\s*define (?:.*\\\n)*.*", code, re.MULTILINE))
    return [(None, macros), *_definitions(re.sub(r"^#(?:.*\\\n)*.*", "", code, flags=re.MULTILINE))]


def _definitions(code: str) -> Iterator[tuple[str | None, str]]:
    begin = depth = 0
    for mark in re.finditer("[{};]", code):
        depth += {"{": 1, "}": -1, ";": 0}[mark[0]]
        if depth == 0:
            part = code[begin : mark.end()]
            begin = mark.end()
            head = _TEMPLATE.sub("", part.partition("{")[0])
            named = _STRUCT.match(head) or _FUNCTION.match(head)
            yield (None if named is None else named[1]), part
    if depth:  # what this cannot read is all reached
        yield None, code


__all__ = ["COUNTERS", "Counter", "digest", "proved", "sums_of"]
