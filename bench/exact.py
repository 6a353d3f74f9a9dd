"""``python -m bench.exact [SIZE] [REPEATS]``: exact matrix products beside FLINT's `nmod_mat_mul` (python-flint).

One JSON object a line, for moduli 2^32, a prime of 31 bits and 5^8, on one thread and on two: milliseconds, the least
of calls that take turns, by the clock (`wall`), which other programs on the machine lengthen, and as time of all
threads (`cpu`). All elements are compared. Run it with OPENBLAS_NUM_THREADS=1: rows are computed by threads of tokitai.
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

from .clocks import least

MODULI = {"2^32": 2**32, "2^31 - 1": 2**31 - 1, "5^8": 5**8}


def main() -> None:
    """Every modulus."""
    import flint

    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    rng = np.random.default_rng(0)
    for name, modulus in MODULI.items():
        a, b = rng.integers(0, modulus, (2, size, size))
        x, y = (flint.nmod_mat(size, size, m.ravel().tolist(), modulus) for m in (a, b))
        for threads in (1, 2):
            flint.ctx.threads = threads
            product = x * y
            elements = np.array([int(e) for e in product.entries()], np.int64).reshape(size, size)
            same = bool((elements == matmul_mod(a, b, modulus, threads=threads)).all())
            calls: dict[str, Callable[[], Any]] = {
                "tokitai": partial(matmul_mod, a, b, modulus, threads=threads),
                "flint": partial(x.__mul__, y),
            }
            best = {c: {n: 1e3 * s for n, s in times.items()} for c, times in least(calls, repeats).items()}
            ratio = {clock: ms["flint"] / ms["tokitai"] for clock, ms in best.items()}
            record = dict(modulus=name, size=size, threads=threads, load=os.getloadavg()[0], same=same, ms=best)
            print(json.dumps(record | {"ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
