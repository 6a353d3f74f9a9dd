"""``python -m bench.products [REPEATS]``: matrix products on two threads beside NumPy's, which are OpenBLAS's.

One JSON object a line: milliseconds, the fastest of calls that take turns. OpenBLAS's threads spin for a while after a
call, and would take the processors from ours: each call waits until they sleep. Set no OPENBLAS_CORETYPE.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from tokitai import ops

THREADS = 2
SIZES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 1024))  # rows, cols, inner
KINDS = (("f16", "f32"), ("bf16", "f32"), ("f32", "f32"), ("f32", "f64"))  # stored in, accumulated in
SLEEP = 0.1


def fastest(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The smallest time of each, in milliseconds; the first call of each does not count."""
    best = dict.fromkeys(calls, float("inf"))
    for i in range(repeats + 1):
        for name, call in calls.items():
            time.sleep(SLEEP)
            begin = time.perf_counter()
            call()
            if i:
                best[name] = min(best[name], 1e3 * (time.perf_counter() - begin))
    return best


def main() -> None:
    """Every size in every kind, in all layouts."""
    from tokitai.formats import FORMATS

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    rng = np.random.default_rng(0)
    for dtype, accumulator in KINDS:
        for rows, cols, inner in SIZES:
            a = rng.standard_normal((rows, inner)).astype(FORMATS[dtype].dtype)
            b = rng.standard_normal((inner, cols)).astype(FORMATS[dtype].dtype)
            wide = [x.astype(FORMATS[accumulator].dtype) for x in (a, b)]
            given = {"NN": (a, b), "NT": (a, b.T.copy()), "TN": (a.T.copy(), b)}
            out = np.empty((rows, cols), a.dtype)
            calls: dict[str, Callable[[], object]] = {"numpy": lambda w=wide: w[0] @ w[1]}  # type: ignore[misc]
            for layout, pair in given.items():
                calls[layout] = lambda p=pair, l=layout, k=accumulator, o=out: ops.matmul(  # type: ignore[misc]
                    *p, layout=l, accumulator=k, threads=THREADS, out=o
                )
            found = fastest(calls, repeats)
            record = dict(dtype=dtype, accumulator=accumulator, rows=rows, cols=cols, inner=inner, ms=found)
            print(json.dumps(record | dict(ratio={n: found["numpy"] / found[n] for n in given})), flush=True)


if __name__ == "__main__":
    main()
