"""``python -m bench.products [REPEATS]``: matrix products on two threads beside NumPy's, which are OpenBLAS's, and by
other accumulators beside our chain in f32; then products of 64 uneven groups beside one product of the same arithmetic,
`python -m bench.products REPEATS groups` alone.

One JSON object a line: milliseconds, the fastest of calls that take turns. OpenBLAS's threads spin for a while after a
call, and would take the processors from ours: each call waits until they sleep. Set no OPENBLAS_CORETYPE.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from tokitai import ops
from tokitai.lang import FIXED_BITS

THREADS = 2
SIZES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 1024))  # rows, cols, inner
KINDS = (  # stored in, accumulated in
    ("f16", "f32"), ("bf16", "f32"), ("f32", "f32"), ("f32", "f64"), ("bf16", "fused16"),
    *(("bf16", name) for name in FIXED_BITS),
)  # fmt: skip
GROUPED, GROUPS = ((4096, 1024, 1024), (16384, 1024, 1024)), 64
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


def uneven(rows: int, groups: int, rng: np.random.Generator) -> np.ndarray:
    """Where groups begin that partition rows: their sizes vary from none to four times the mean and more."""
    share = rng.random(groups) ** 2 * (rng.random(groups) > 0.1)
    return np.concatenate([[0], np.rint(np.cumsum(share) / share.sum() * rows).astype(np.int64)])


def in_groups(repeats: int) -> None:
    """Grouped products and their gradients, each beside one product of as many rows, columns and inner places."""
    from tokitai.formats import FORMATS

    rng = np.random.default_rng(0)
    for dtype, (rows, cols, inner) in ((d, s) for d in ("f16", "bf16", "f32") for s in GROUPED):
        offsets, kind = uneven(rows, GROUPS, rng), FORMATS[dtype].dtype
        x, dy = (rng.standard_normal((rows, n), np.float32).astype(kind) for n in (inner, cols))
        w = (rng.standard_normal((GROUPS, cols, inner), np.float32) / inner**0.5).astype(kind)
        y, dx, dw = np.empty((rows, cols), kind), np.empty((rows, inner), kind), np.empty((GROUPS, cols, inner), kind)
        calls: dict[str, tuple[Callable[..., object], tuple[object, ...], np.ndarray]] = {
            "one, forward": (ops.linear, (x, w[0]), y),
            "groups, forward": (ops.grouped_linear, (x, w, offsets), y),
            "one, to the input": (ops.linear_backward_input, (dy, w[0]), dx),
            "groups, to the input": (ops.grouped_linear_backward_input, (dy, w, offsets), dx),
            "one, to the weight": (ops.linear_backward_weight, (dy, x), dw[0]),
            "groups, to the weight": (ops.grouped_linear_backward_weight, (dy, x, offsets), dw),
        }
        found = fastest({n: partial(f, *a, out=o, threads=THREADS) for n, (f, a, o) in calls.items()}, repeats)
        record = dict(dtype=dtype, groups=GROUPS, rows=rows, cols=cols, inner=inner, ms=found)
        ways = ("forward", "to the input", "to the weight")
        ratio = {n: found[f"one, {n}"] / found[f"groups, {n}"] for n in ways}
        print(json.dumps(record | dict(ratio=ratio)), flush=True)


def main() -> None:
    """Every size in every kind, in all layouts; and groups."""
    from tokitai.formats import FORMATS

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    if sys.argv[2:] == ["groups"]:
        in_groups(repeats)
        return
    rng = np.random.default_rng(0)
    for dtype, accumulator in KINDS:
        for rows, cols, inner in SIZES:
            a = rng.standard_normal((rows, inner)).astype(FORMATS[dtype].dtype)
            b = rng.standard_normal((inner, cols)).astype(FORMATS[dtype].dtype)
            wide = [x.astype(np.float64 if accumulator == "f64" else np.float32) for x in (a, b)]
            given = {"NN": (a, b), "NT": (a, b.T.copy()), "TN": (a.T.copy(), b)}
            out = np.empty((rows, cols), a.dtype)
            calls: dict[str, Callable[[], object]] = {"numpy": lambda w=wide: w[0] @ w[1]}  # type: ignore[misc]
            for layout, pair in given.items():
                calls[layout] = lambda p=pair, l=layout, k=accumulator, o=out: ops.matmul(  # type: ignore[misc]
                    *p, layout=l, accumulator=k, threads=THREADS, out=o
                )
            chain = partial(ops.matmul, *given["NT"], layout="NT", threads=THREADS, out=out)
            found = fastest(calls | {"chain in f32, NT": chain}, repeats)
            record = dict(dtype=dtype, accumulator=accumulator, rows=rows, cols=cols, inner=inner, ms=found)
            print(json.dumps(record | dict(ratio={n: found["numpy"] / found[n] for n in given})), flush=True)

    in_groups(repeats)


if __name__ == "__main__":
    main()
