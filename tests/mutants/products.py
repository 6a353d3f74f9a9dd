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
    "sums of chains are not joined": ("products.h", r"if \(whole && room.levels\)", "if (whole && false)"),
    "the last of the sums is lost": ("products.h", r"if \(rest & 1\) add_tile\(tile, waiting\);", ";"),
    "the last row of a panel is left out": ("products.h", r"line \+ i < count;", "line + i + 1 < count;"),
    "a panel begins with the line behind": ("products.h", r"row \+ panel \* W \+ i\)", "row + panel * (W + 1) + i)"),
    "a panel of columns is taken twice": ("products.h", r"n \* wide \+ q\)", "n * wide + q - (q > 0))"),
    "a tile ends with the matrix, not with itself": ("products.h", r"least\(MR, height - i \* MR\)", "MR"),
    "columns behind the last one are written": ("products.h", r"Part\{room_left\}", "Full{}"),
    "a row's elements are added in another order": ("accumulators.h", r"fma\(a, b.lane\[i\], c", "fma(c.lane[i], a, b"),
    "nothing is minus zero": ("accumulators.h", r"return constant\(0.0f, S\{\}\);", "return constant(-0.0f, S{});"),
}
# Of products in groups alone: who takes which part of whose result.
OF_GROUPS = {
    "the last group is left out": ("groups.h", r"g < groups; \+\+g\) tasks", "g + 1 < groups; ++g) tasks"),
    "weights of the group before": ("kernel", r"\+ task.group \* in_", "+ (task.group - (task.group > 0)) * in_"),
    "a group ends where all do": ("groups.h", r"count = offsets\[group \+ 1\] - from", "count = offsets[groups] - from"),
    "a group begins where all do": ("groups.h", r"from = offsets\[group\],", "from = offsets[0],"),
    "an empty group is passed over": ("groups.h", r"    f\(task\);", "    if (count) f(task);"),
    "rows behind the first part are left out": ("groups.h", r"/ wide \* TALL", "/ wide * 0"),
    "columns behind the first part are left out": ("groups.h", r"% wide \* WIDE", "% wide * 0"),
    "the places of the group before": ("groups.h", r"task.begin = ALONG_ROWS \? 0 : from", "task.begin = 0"),
}
# Of the two ways to pack an operand, a layout takes those that it needs.
PACKING = {
    "the last row of a panel is left out": ("NN", "NT"),
    "a panel begins with the line behind": ("NN", "TN"),
}
SHAPES = (
    Sizes(3, 5, 7), Sizes(13, 33, 300), Sizes(2, 3, 0), Sizes(2, 3, 4100), Sizes(1, 2, 8200), Sizes(2, 1, 12300),
)  # fmt: skip


def slips(layout: str) -> list[str]:
    """Those that matter for a layout."""
    return [what for what in SLIPS if layout in PACKING.get(what, (layout,))]


def slipped(text: KernelText, what: str) -> KernelText:
    """The same text with one slip in a header."""
    header, pattern, replacement = SLIPS[what]
    changed, count = re.subn(pattern, replacement, text.headers[header])
    assert count, f"{what}: {header} has nothing like it"
    return KernelText(text.text, {**text.headers, header: changed})
