"""``python -m bench.skipping [SIZE] [REPEATS]``: products modulo p^n that leave out pairs of tiles, beside all of them.

One JSON object a line, for moduli 2^32 and 5^8 and tiles whose valuations are mixed: a share of the tiles of both
factors has half of the digits or more. Milliseconds, the least of calls that take turns, by the clock (`wall`) and as
time of all threads (`cpu`); `kept` is the share of the pairs of tiles that was multiplied, which no ratio can be below.
All elements are compared. Run it with OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tokitai.exact import matmul_mod
from tokitai.padic.skipping import TILE, matmul_skipping

from .clocks import least

SHARES = (0.0, 0.5, 0.75, 0.9)


def factor(rng: Any, size: int, prime: int, precision: int, share: float) -> Any:
    """Residues; a share of the tiles has a valuation from half of the digits on."""
    tiles = -(-size // TILE)
    high = rng.integers((precision + 1) // 2, precision + 1, (tiles, tiles))
    power = np.array([prime**v for v in range(precision + 1)], np.int64)[high * (rng.random((tiles, tiles)) < share)]
    each = np.repeat(np.repeat(power, TILE, 0), TILE, 1)[:size, :size]
    return rng.integers(0, prime**precision, (size, size)) // each * each


def main() -> None:
    """Every modulus and share."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    for prime, precision in ((2, 32), (5, 8)):
        for share in SHARES:
            rng = np.random.default_rng(0)
            a, b = (factor(rng, size, prime, precision, share) for _ in range(2))
            product, skipped = matmul_skipping(a, b, prime, precision)
            same = bool((product == matmul_mod(a, b, prime**precision)).all())
            calls: dict[str, Callable[[], Any]] = {
                "skipping": partial(matmul_skipping, a, b, prime, precision),
                "all": partial(matmul_mod, a, b, prime**precision),
            }
            best = {c: {n: 1e3 * s for n, s in times.items()} for c, times in least(calls, repeats).items()}
            ratio = {clock: ms["all"] / ms["skipping"] for clock, ms in best.items()}
            record = dict(
                modulus=f"{prime}^{precision}", size=size, share=share, kept=1 - skipped.count / skipped.pairs
            )
            print(json.dumps(record | dict(load=os.getloadavg()[0], same=same, ms=best, ratio=ratio)), flush=True)


if __name__ == "__main__":
    main()
