"""What all kernels for GPUs have in common: chunks, limits, launches."""

from __future__ import annotations

from dataclasses import dataclass

from ..formats import FORMATS
from ..lang import TensorSpec

CHUNK = 8  # neighbouring elements that a thread takes at a time
WIDTHS = (CHUNK, 4, 2)  # elements to an access
MOST_THREADS = 1024
# Bytes that a thread may spill and load again: 4 or 12 bytes would cost a quarter or half of the warps otherwise. More
# in rows of more columns than LONGEST_JOINED, of which a multiprocessor has one or two at a time: layer norm over
# 32,768 columns ran a fifth slower on an H200 with none, and one row.
FEW_SPILLS, FEW_SPILLS_OF_LONG = 32, 256


@dataclass(frozen=True)
class Step:
    """One launch of a kernel of the source."""

    name: str
    grid: int
    block: int
    in_turn: bool = False  # fewer blocks do as well: each takes units in turn
    shared: int = 0  # bytes of shared memory that the launch gives each block
    cleared: int = 0  # bytes at the beginning of the workspace that are 0 when it begins


def registers_of(t: TensorSpec) -> int:
    """Registers that a chunk of a tensor takes."""
    return CHUNK * FORMATS[str(t.format)].bits // 32
