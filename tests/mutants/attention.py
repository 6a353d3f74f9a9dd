"""Slips in the header of attention, as (pattern, replacement), and shapes at which they can be seen."""

from __future__ import annotations

import re

from tokitai.emit.cpp import KernelText
from tokitai.lang import Sizes

SLIPS = {
    "a tile of scores ends with the first piece": (r"multiply<1, MR>\(k0 % CHAIN == 0", "multiply<1, MR>(true"),
    "sums of chains of scores are not joined": (r"if \(k_size > CHAIN && \(end", "if (false && (end"),
    "every query sees what the first one sees": (r"value\[i\]\);\n    limits.max", "value[0]);\n    limits.max"),
    "one key more is seen": (r"a.lane\[i\] = c < limit\[i\]", "a.lane[i] = c <= limit[i]"),
    "one key more is seen by sums over queries": (r"c \+ i < limit\[k\]; \+\+i", "c + i <= limit[k]; ++i"),
    "a maximum takes what is behind the last key": (r"if \(lines == LINES\)", "if (true)"),
    "a group's last keys are not padded": (
        r"for \(int64_t i = count \* NR; i < GROUP",
        "for (int64_t i = GROUP * NR; i < GROUP",
    ),
    "a group's keys are added in another order": (
        r"add\(term\(0\), term\(1\)\), add\(term\(2\), term\(3\)\)",
        "add(term(0), term(2)), add(term(1), term(3))",
    ),
    "groups are added as they come": (
        r"for \(int64_t k = n; k & 1; k /= 2, \+\+level\)",
        "for (int64_t k = n; k; k = 0)",
    ),
    "the keys behind the last one that is seen are left out": (r": hidden\(index, lines\)", ": void()"),
    "nothing is what the chain began with": (r"tiles\[i \* NR \+ j\] = empty_sum\(\)", "(void)j"),
    "a chain of keys begins anew with every piece": (r"multiply<1, MR>\(c0 % CHAIN == 0", "multiply<1, MR>(true"),
    "sums of chains of keys are not joined": (r"if \(limits.max > CHAIN && \(end", "if (false && (end"),
    "a chain of queries begins anew with every panel": ("fresh = r0 % CHAIN == 0", "fresh = r0 % NR == 0"),
    "sums of chains of queries are not joined": ("whole = rows > CHAIN &&", "whole = rows > CHAIN && false &&"),
    "the line behind is weighed": (r"chain\(left\[i \* ACROSS\], b\[j\]", "chain(left[(i + 1) % MR * ACROSS], b[j]"),
    "keys that no query sees are stored as they are": (
        r"for \(int i = 0; c >= limits && i",
        "for (int i = 0; false && i",
    ),
    "results lie one row off": (r"store\(out \+ r \* stride", "store(out + (r - (r > 0)) * stride"),
}
# What only sums over keys need, or only those over queries.
FORWARD = {"a maximum takes what is behind the last key"}
BACKWARD = {
    "one key more is seen by sums over queries", "a chain of queries begins anew with every panel",
    "sums of chains of queries are not joined",
    "keys that no query sees are stored as they are",
}  # fmt: skip
SHAPES = (
    Sizes(3, 5, 7), Sizes(5, 13, 300), Sizes(70, 11, 3), Sizes(4, 9, 2), Sizes(2, 4100, 2), Sizes(4101, 3, 2),
    Sizes(2, 3, 4098), Sizes(3, 0, 2),
)  # fmt: skip


def slips(backward: bool) -> list[str]:
    """Those that matter for a pass."""
    return [what for what in SLIPS if what not in (FORWARD if backward else BACKWARD)]


def slipped(text: KernelText, what: str) -> KernelText:
    """The same text with one slip in the header."""
    pattern, replacement = SLIPS[what]
    changed, count = re.subn(pattern, replacement, text.headers["attention.h"])
    assert count, f"{what}: the header has nothing like it"
    return KernelText(text.text, {**text.headers, "attention.h": changed})
