"""Wrong programs made from a right one: each whole number that is used is one more or one less, each call left out.

A program is what a plan prints: its numbers are bounds, masks, strides, places in memory and the order of sums, its
calls are stores, barriers and passes over the data. They are found by their declarations, whatever they are called. All
mutants of a program stand in one source, and a variable that is set at run time says which is alive: so they are
compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|0x[\w.+-]+|[0-9][\w.]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
    r"|::|->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w]",
    re.S,
)
TYPES = {"int64_t", "int", "int32_t", "size_t", "uint32_t", "uint64_t"}
WRITTEN = {"=", "<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "++", "--"}
WORDS = {"return", "if", "for", "while", "else", "do", "switch", "case", "constexpr", "static_assert", "using"}
SITES = 1 << 13  # of one program, at most
# What leaves an array is run as it stands: GCC else ends a loop where an array does.
PRELUDE = f"""#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-aggressive-loop-optimizations")
#endif
extern "C" __attribute__((visibility("default"))) volatile int tokitai_mutant;
volatile int tokitai_mutant = -1;
extern "C" __attribute__((visibility("default"))) unsigned char tokitai_reached[{SITES}];
unsigned char tokitai_reached[{SITES}];
#define REACHED(site) (tokitai_reached[site] = 1)
#define MUTATED(site) (REACHED(site), (tokitai_mutant == 2 * (site)) - (tokitai_mutant == 2 * (site) + 1))
#define KEPT(site) (REACHED(site), tokitai_mutant != 2 * (site))
"""


@dataclass(frozen=True)
class Mutant:
    """One change: its number, what it is, the line in which it is, and where in the source."""

    number: int
    what: str
    line: str
    at: int = 0

    def __str__(self) -> str:
        return f"{self.what}: {self.line}"


@dataclass(frozen=True)
class Token:
    text: str
    start: int
    end: int


def _tokens(source: str) -> list[Token]:
    """The tokens of a source without comments and lines of the preprocessor."""
    hidden = [m.span() for m in re.finditer(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", source, re.M)]
    blank = list(source)
    for a, b in hidden:
        blank[a:b] = " " * (b - a)
    return [Token(m[0], *m.span()) for m in TOKEN.finditer("".join(blank)) if not m[0].startswith(("//", "/*"))]


def _declared(tokens: list[Token]) -> tuple[set[str], set[int]]:
    """Names of whole numbers that have a value from the beginning, and where names are declared."""
    names, places, vague = set(), set(), set()
    for i, t in enumerate(tokens[:-2]):
        if t.text not in TYPES or tokens[i + 1].text in ("*", "&", "(", ">", ")", ",", "::"):
            continue
        if (i and tokens[i - 1].text == "constexpr") or (i > 1 and tokens[i - 2].text == "constexpr"):
            continue
        j, depth, fresh = i + 1, 0, True
        while j < len(tokens):
            text = tokens[j].text
            if depth == 0 and text in (";", ")", ":", "{"):
                break
            if fresh and text in ("const", "*"):
                j += 1
                continue
            if fresh and re.fullmatch(r"[A-Za-z_]\w*", text) and text not in TYPES:
                places.add(j)
                after = tokens[j + 1].text
                (names if after in ("=", ")", ",") or (after == ":" and tokens[i - 1].text == "(") else vague).add(text)
                if after == "," and tokens[j + 2].text in ("const", "auto", *TYPES, "S", "V", "Stored"):
                    break  # the parameters of a function
                if after == "," and tokens[i - 1].text not in ("(", ","):
                    vague.add(text)
                fresh = False
            depth += text in ("(", "[", "{")
            depth -= text in (")", "]", "}")
            fresh = fresh or (depth == 0 and text == ",")
            j += 1
    return names - vague - _of_other_types(tokens), places


def _of_other_types(tokens: list[Token]) -> set[str]:
    """Names that are something else somewhere: which scope a name is of is not looked at."""
    word = re.compile(r"[A-Za-z_]\w*")
    found = set()
    for i, t in enumerate(tokens):  # the parameters of templates
        if t.text == "template":
            end = next((j for j in range(i, len(tokens)) if tokens[j].text == ">"), i)
            found |= {x.text for x in tokens[i:end] if word.fullmatch(x.text)} - TYPES
    for i, t in enumerate(tokens[3:], start=3):  # Operand<L> left
        if tokens[i - 1].text == ">" and tokens[i - 3].text == "<" and word.fullmatch(t.text):
            found.add(t.text)
    found |= {t.text for t, after in pairwise(tokens) if after.text == "["}  # arrays
    return found | {
        t.text
        for before, t, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if word.fullmatch(t.text) and word.fullmatch(before.text) and before.text not in {*TYPES, *WORDS, "const"}
        and after.text in ("=", ",", ")", ";", ":", "[", "{")
    }  # fmt: skip


def _loops_of_threads(source: str, tokens: list[Token]) -> set[int]:
    """Where the variable of a loop stands that OpenMP partitions: its form is prescribed."""
    found = set()
    for m in re.finditer(r"^[ \t]*#pragma omp for[^\n]*\n\s*for\s*\(\s*(?:const )?\w+ (\w+)", source, re.M):
        header = source.index("(", m.end() - len(m[1]) - 12)
        end = source.index("{", header)
        found |= {i for i, t in enumerate(tokens) if header <= t.start < end and t.text == m[1]}
    return found


def _constant(tokens: list[Token]) -> set[int]:
    """Tokens of what is computed by the compiler."""
    found: set[int] = set()
    for i, t in enumerate(tokens):
        if t.text != "constexpr":
            continue
        j, depth = i, 0
        while j < len(tokens):
            found.add(j)
            depth += tokens[j].text in ("(", "{", "[")
            depth -= tokens[j].text in (")", "}", "]")
            if (depth == 0 and tokens[j].text in (";", "}")) or (tokens[i - 1].text == "if" and depth < 0):
                break
            j += 1
    return found


def _chosen(tokens: list[Token]) -> set[int]:
    """Tokens of a choice that is written to: (this ? one : other) = value."""
    found: set[int] = set()
    for i in range(len(tokens) - 1):
        if tokens[i].text == ")" and tokens[i + 1].text == "=":
            j = i
            while j >= 0 and tokens[j].text not in ("?", ";", "{"):
                j -= 1
            found |= set(range(j, i)) if tokens[j].text == "?" else set()
    return found


def _numbers(source: str, tokens: list[Token]) -> Iterator[Token]:
    names, places = _declared(tokens)
    barred = places | _loops_of_threads(source, tokens) | _constant(tokens) | _chosen(tokens)
    for i, t in enumerate(tokens[1:-1], start=1):
        if t.text not in names or i in barred:
            continue
        before, after = tokens[i - 1].text, tokens[i + 1].text
        if before in (".", "->", "::", "++", "--", "&", "~", "*", *TYPES, "auto") and before != "*":
            continue
        if before == "*" and tokens[i - 2].text in ("0", *TYPES):  # nothing, or the declaration of a pointer
            continue
        if after in WRITTEN or after in ("(", "::", "{") or (before == ")" and tokens[i - 2].text == "void"):
            continue
        yield t


def _statements(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    """Calls that stand alone, from the first letter to the semicolon."""
    barred = _constant(tokens)
    for i, t in enumerate(tokens[1:-2], start=1):
        if tokens[i - 1].text not in (";", "{", "}") or i in barred or t.text in WORDS | TYPES:
            continue
        if not re.fullmatch(r"[a-z_]\w*", t.text):
            continue
        j = i + 1
        if tokens[j].text == "<":
            while j < len(tokens) and tokens[j].text not in (">", ";", "{"):
                j += 1
            j += 1
        if j >= len(tokens) or tokens[j].text != "(":
            continue
        depth = 0
        while j < len(tokens):
            depth += tokens[j].text in ("(", "{", "[")
            depth -= tokens[j].text in (")", "}", "]")
            j += 1
            if depth == 0:
                break
        if j < len(tokens) and tokens[j].text == ";":
            yield t.start, tokens[j].end


def schemata(source: str, site: int = 0) -> tuple[str, list[Mutant]]:
    """The source with all its mutants in it, numbered from a site on, and what they are. `PRELUDE` goes before it."""
    edits, mutants = _edits(source, site)
    assert max((m.number for m in mutants), default=0) < 2 * SITES, f"more than {SITES} sites"
    return _edited(source, edits), mutants


def alone(source: str, number: int) -> str:
    """The source as the mutant of this number is, and nothing else."""
    for start, end, text in _edits(source, 0)[0]:
        if f"MUTATED({number // 2})" in text:
            return _edited(source, [(start, end, text.replace(f"MUTATED({number // 2})", f"{1 - number % 2 * 2}"))])
        if text == f"if (KEPT({number // 2})) ":
            return _edited(source, [(start, end, "if (false) ")])
    raise AssertionError(f"no mutant {number}")


def _edited(source: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, text in sorted(edits, key=lambda e: (e[0], e[1]), reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _edits(source: str, site: int) -> tuple[list[tuple[int, int, str]], list[Mutant]]:
    """From where to where there is another text, and the mutants that this makes."""
    tokens = _tokens(source)
    edits: list[tuple[int, int, str]] = []
    mutants = []

    def line(at: int) -> str:
        return source[source.rfind("\n", 0, at) + 1 : source.find("\n", at)].strip()

    for t in _numbers(source, tokens):
        edits.append((t.start, t.end, f"({t.text} + MUTATED({site}))"))
        mutants.append(Mutant(2 * site, f"{t.text} + 1", line(t.start), t.start))
        mutants.append(Mutant(2 * site + 1, f"{t.text} - 1", line(t.start), t.start))
        site += 1
    for start, _ in _statements(tokens):
        edits.append((start, start, f"if (KEPT({site})) "))
        mutants.append(Mutant(2 * site, "left out", line(start), start))
        site += 1
    return edits, mutants
