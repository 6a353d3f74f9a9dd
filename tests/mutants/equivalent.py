"""Mutants that do what the right program does, and why: no verification can refute them."""

from __future__ import annotations

import re

from tests.mutants.program import Mutant

SAME_CODE = "the compiler makes the same machine code of it as of the right program"
REASONS: dict[str, tuple[str, ...]] = {
    "it says what is fetched into a cache beforehand, and nothing is read from there but what would be read anyway": (
        r".*: .*\bprefetch\(.*", r".*: .*_next = .*",
    ),
    "it decides whether stores pass the caches by, which changes no bit": (r".*: const bool \w+_streams = .*",),
    "it orders stores that pass the caches by before later ones of this thread; threads that meet wait for both": (
        r"left out: finish_stores\(\);",
    ),
    "one block or row more is empty: its bounds are those of the last row": (
        r"rows \+ 1: const int64_t blocks = \(rows \+ 0\) / 1;",
        r"blocks \+ 1: for \(int64_t block = 0; block < blocks; .*",
        r"rows \+ 1: const int64_t end = least\(rows, \(block \+ 1\) \* 1\);",
    ),
    "a row is computed twice, to the same bits": (
        r"block \+ 1: const int64_t end = least\(rows, \(block \+ 1\) \* 1\);",
    ),
    "a thread's room is larger than it needs, by more than one number": (
        r"cols [+-] 1: Stored\* const (scratch|partial) = .*",
        r"(rows|cols|inner|batch|threads) \+ 1: const Room room\(.*",
    ),
    "the search goes on one by one from where it begins, behind the same first tile": (
        r"count [+-] 1: const int64_t tensor = tensor_of\(first_tile, count, tile\);",
    ),
    "it reads one element behind an input, on which no result depends: what certificates say they do not look for": (
        r"cols \+ 1: each\(0, cols, .* store\(wide_(\w+) \+ c, load\(in_\1 \+ c, lanes\), lanes\); \}\);",
    ),
    "one piece of columns, or one window of rows, more is empty": (
        r"(cols \+|c0 -) 1: for \(int64_t c0 = 0; c0 < cols; c0 \+= \d+\) \{",
        r"(rows \+|window -) 1: for \(int64_t window = 0; window < windows_of\(rows\); \+\+window\) \{",
    ),
    "it is noted for totals, which a kernel where it survives has none of": (
        r"(tiles|i) [+-] 1: if \(tiles\) filled\[fill\+\+\] = i;",
        r"(count \+|i -) 1: for \(int64_t i = 0; i < count; \+\+i\) \{",
    ),
    "how many threads share the work changes no bit": (r"threads [+-] 1: each_(product|task)\b.*",),
    "where it survives nothing is on its way: a row behind the last one of a block is not fetched": (
        r"left out: wait_for_copies<0>\(\);",
    ),
    "what is read ahead behind the last row is not used": (
        r"(rows|r|row) [+-] 1: load_chunk<WIDTH, FIT>\((next|ahead)_\w+(\[d\])?\[v\], .*least\(.*, rows - 1\).*",
    ),
}  # fmt: skip


def why_equivalent(device: str, mutant: Mutant) -> str | None:
    """The reason; None where the mutant is a wrong program."""
    return next((why for why, some in REASONS.items() if any(re.fullmatch(p, str(mutant)) for p in some)), None)
