"""Slips in the headers of matrix products, as (header, pattern, replacement), and shapes at which they can be seen."""

from __future__ import annotations

import re

from tokitai.emit.cpp import KernelText
from tokitai.lang import Sizes

SLIPS = {
    "a chain ends one product early": ("products.h", r"k < depth; \+\+k, left", "k + 1 < depth; ++k, left"),
    "a chain begins anew with every step": ("products.h", r"fresh = k0 % CHAIN == 0", "fresh = k0 % DEPTH == 0"),
    "one chain instead of several": ("products.h", r"fresh = k0 % CHAIN == 0", "fresh = k0 == 0"),
    "a chain of another length": ("products.h", r"CHAIN = 4096", "CHAIN = 2048"),
    "sums of chains are not joined": ("products.h", r"if \(whole && buffers.levels\)", "if (whole && false)"),
    "the last of the sums is lost": ("products.h", r"if \(rest & 1\) add_tile\(tile, pending\);", ";"),
    "the last row of a panel is left out": ("products.h", r"line \+ i < count;", "line + i + 1 < count;"),
    "a panel begins with the line behind": ("products.h", r"row \+ panel \* W \+ i\)", "row + panel * (W + 1) + i)"),
    "a panel of columns is taken twice": ("products.h", r"panels \+ q - q0\)", "panels + q - q0 - (q > q0))"),
    "a strip is packed once": ("products.h", r"c = \(q0 \+ q\) \* NR", "c = q * NR"),
    "a row less than there are": ("products.h", r"rows > FEW\)", "rows > FEW + 1)"),
    "a row behind the last one is made": ("products.h", r"min\(MR, (height - i \* MR)\)", r"min(MR, \1 + 1)"),
    "columns behind the last one are written": ("products.h", r"Part\{cols_left\}", "Full{}"),
    "a row's elements are added in another order": ("accumulators.h", r"fma\(a, b.lane\[i\], c", "fma(c.lane[i], a, b"),
    "nothing is minus zero": ("accumulators.h", r"return constant\(0.0f, S\{\}\);", "return constant(-0.0f, S{});"),
}
# Of grouped products: who takes which part of whose result.
OF_GROUPS = {
    "the last task is left out": ("groups.h", r"t < tasks; \+\+t", "t < tasks - 1; ++t"),
    "a group's tasks begin one late": ("groups.h", r"while \(t >= first", "while (t > first"),
    "a group ends with the last one": ("groups.h", r"offsets\[group \+ 1\] - from", "offsets[groups] - from"),
    "a group begins where all do": ("groups.h", r"from = offsets\[group\],", "from = offsets[0],"),
    "an empty group is passed over": ("groups.h", r"    f\(task\);", "    if (count) f(task);"),
    "rows behind the first part are left out": ("groups.h", r"/ n_tiles \* max_rows", "/ n_tiles * 0"),
    "columns behind the first part are left out": ("groups.h", r"% n_tiles \* max_cols", "% n_tiles * 0"),
    "a part is a row short": ("groups.h", r"min\(max_rows, h", "min(max_rows - 1, h"),
    "each part begins where the first does": ("groups.h", r"p \+ row \* stride \+ begin", "p + begin"),
    "each group begins at the first place": ("groups.h", r"ALONG_ROWS \? 0 : from", "0"),
}
# Of the two ways to pack an operand, a layout takes those that it needs.
PACKING = {
    "the last row of a panel is left out": ("NN", "NT"),
    "a panel begins with the line behind": ("NN", "TN"),
}
# What can be seen where groups partition rows alone, or the K dimension.
SHARED = {
    "an empty group is passed over": "k",
    "each group begins at the first place": "k",
    "each part begins where the first does": "r",
}
SHAPES = (
    Sizes(3, 5, 7), Sizes(13, 33, 300), Sizes(3, 300, 7), Sizes(2, 3, 0), Sizes(2, 3, 4100), Sizes(1, 2, 8200),
    Sizes(2, 1, 12300), Sizes(5, 3, 7),
)  # fmt: skip


# With thirty groups, as a task is wider than one strip of columns only where its group has a small part of all rows;
# small enough for a run with one thread, as one thread alone takes columns strip by strip.
IN_GROUPS = (
    Sizes(5, 5, 7, 3), Sizes(13, 300, 9, 3), Sizes(310, 3, 4, 2), Sizes(60, 260, 40, 30), Sizes(2, 3, 0, 2),
    Sizes(5, 2, 4100, 3), Sizes(3, 1, 8200, 2), Sizes(7, 1, 12300, 2), Sizes(7, 3, 5, 2),
)  # fmt: skip


def slips(layout: str, ragged: str) -> list[str]:
    """Those that matter for a layout, and for groups that partition rows, r, the K dimension, k, or are not there."""
    every = {**SLIPS, **(OF_GROUPS if ragged else {})}
    return [w for w in every if layout in PACKING.get(w, (layout,)) and ragged == SHARED.get(w, ragged)]


def shapes(ragged: str) -> tuple[Sizes, ...]:
    """Shapes at which they can be seen."""
    if ragged == "k":
        long = (s for s in SHAPES if s.inner > 4096)
        return tuple(Sizes(s.inner, s[1], s[0], s.batch, "k") for s in IN_GROUPS) + tuple(
            Sizes(*s, s.inner, 1, "k") for s in long
        )
    return tuple(Sizes(*s, s.inner, s.batch, "r") for s in IN_GROUPS) if ragged else SHAPES


def slipped(text: KernelText, what: str) -> KernelText:
    """The same text with one slip in a header."""
    header, pattern, replacement = {**SLIPS, **OF_GROUPS}[what]
    changed, count = re.subn(pattern, replacement, text.headers[header])
    assert count, f"{what}: {header} has nothing like it"
    return KernelText(text.text, {**text.headers, header: changed})
