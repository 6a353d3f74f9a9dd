"""``python -m bench.gpu_blocks``: column sums in blocks of 16, 32 and 64 rows, timed on a GPU.

The block is part of the definition of the bits (`lang.graph.COL_SUM_BLOCK`): this is the measurement behind it.
"""

from __future__ import annotations

import json

from . import gpu
from .gpu_run import opened


def main() -> None:
    """Print one JSON object a shape: microseconds by rows in a block."""
    target = opened()
    copy = gpu.copy_bandwidth(target)
    for name in ("layer_norm_backward", "rms_norm_backward"):
        for rows, cols in gpu.NORMS[:3]:
            found = {}
            for block in (16, 32, 64):
                record = gpu.measure(target, name, "f16", rows, cols, copy, others=False, block=block)
                found[block] = record["microseconds"]["tokitai"]
            print(json.dumps({"operator": name, "rows": rows, "cols": cols, "microseconds": found}), flush=True)


if __name__ == "__main__":
    main()
