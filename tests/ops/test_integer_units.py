"""Products in fixed point by each integer unit of a CPU: bytes by vpdpbusd, words by vpdpwssd or vpmaddwd."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.lang import FIXED_BITS, Sizes
from tokitai.meaning import bits
from tokitai.runtime.compile import kernel_on
from tokitai.toolchain.build import Isa, cpu_features, isas_here
from tokitai.verification.run import Launch, Layout

# The instruction set, and the feature as /proc/cpuinfo spells it; without one the kernel is told that there is none.
UNITS: list[tuple[Isa, str]] = [
    ("avx512", "avx512_vnni"), ("avx512", ""), ("avx2", "avx_vnni"), ("avx2", ""), ("scalar", ""), ("neon", ""),
]  # fmt: skip
SCALARS = {"alpha": 1.0, "beta": 0.0}
LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False)}
NEXT = np.nextafter(np.float32(2), np.float32(0))  # rounds up to a power of two in any number of bits, so it saturates
ROWS, COLS = 14, 37  # a panel and a few rows more, whatever the instruction set


def skip_without(isa: Isa, feature: str) -> None:
    if isa not in isas_here():
        pytest.skip(f"kernels for {isa} do not run here; this machine runs {', '.join(isas_here())}")
    if feature and feature not in cpu_features():
        pytest.skip(f"this processor has no {feature}")


def without_unit(text: str) -> str:
    return text.replace("return __builtin_cpu_supports(", "return false && __builtin_cpu_supports(")


@cache
def kernel(isa: Isa, feature: str, accumulator: str, layout: str, slip: tuple[str, str] | None = None) -> Any:
    here = 0

    def edit(text: str) -> str:
        nonlocal here
        text = text if feature else without_unit(text)
        if slip is not None:
            here += text.count(slip[0])
            text = text.replace(*slip)
        return text

    graph = ops.matmul.trace("f32", (), {"accumulator": accumulator, "layout": layout})
    made = kernel_on("cpu", ops.matmul, graph, False, None, isa, edit)
    assert slip is None or here == 1, f"{slip[0]!r} stands {here} times"
    return made


def right(kernel_of: Any, a: Any, b: Any, layout: str, threads: int = 1) -> bool:
    """Whether a kernel's product has the bits of the definition. a: rows x k; b: k x columns."""
    made = kernel_of(layout=layout)
    turned = {
        "a": np.ascontiguousarray(a.T if LAYOUTS[layout][0] else a),
        "b": np.ascontiguousarray(b.T if LAYOUTS[layout][1] else b),
    }
    sizes = Sizes(len(a), b.shape[1], len(b))
    want = bits.evaluate(made.graph, turned, sizes, SCALARS)["y"]
    got = Launch(made, sizes, turned, Layout("here", threads)).run(made.scalar_table(*sizes[:2], SCALARS))["y"]
    return bool(got.tobytes() == want.tobytes())


def operands(inner: int) -> Any:
    """Operands of all kinds: noise; the largest integers of one sign, of opposite signs, of each row's own sign; one
    element of a line alone, at each end."""
    rng = np.random.default_rng(inner)
    ones = np.ones((ROWS, inner), np.float32), np.ones((inner, COLS), np.float32)
    own = np.where(rng.random((ROWS, 1)) < 0.5, NEXT, -NEXT), np.where(rng.random((1, COLS)) < 0.5, NEXT, -NEXT)
    first, last = np.zeros((ROWS, inner), np.float32), np.zeros((ROWS, inner), np.float32)
    first[:, :1], last[:, -1:] = -NEXT, 1
    noise = rng.standard_normal((inner, COLS), np.float32)
    yield rng.standard_normal((ROWS, inner), np.float32), noise
    yield ones[0] * NEXT, ones[1] * NEXT
    yield ones[0] * -NEXT, ones[1] * NEXT
    yield ones[0] * -NEXT, ones[1] * -NEXT
    yield ones[0] * own[0].astype(np.float32), ones[1] * own[1].astype(np.float32)
    for largest in (0x7F7F / 2**15, 0x7FF7FF / 2**23, 0x79FF / 2**15):  # slices of 8, of 12 bits; what 10 would take
        yield ones[0] * np.float32(largest), ones[1] * np.float32(-largest)
    yield first, noise
    yield last, noise


# Beside multiples of what a step takes (2 and 4), of a vector, of what is packed at once (256), of a block (4096).
INNER = (1, 2, 3, 4, 5, 7, 15, 63, 64, 65, 255, 256, 257, 511, 4096, 4099, 8193)


@pytest.mark.slow
@pytest.mark.parametrize("accumulator", FIXED_BITS)
@pytest.mark.parametrize(("isa", "feature"), UNITS)
def test_every_unit_has_the_bits_of_the_definition(isa: Isa, feature: str, accumulator: str) -> None:
    skip_without(isa, feature)
    made = partial(kernel, isa, feature, accumulator)
    for inner in INNER:
        for n, (a, b) in enumerate(operands(inner)):
            for layout in LAYOUTS:
                assert right(made, a, b, layout, threads=1 + n % 2), (inner, n, layout)


# What is written, what is written wrongly: products of bytes, then of words.
BYTES = {
    "128 stays in the sum": ("= 128 * total_of(sum)", "= 0 * total_of(sum)"),
    "128 stays in the sum, transposed": ("= 128 * sums[i]", "= 0 * sums[i]"),
    "127 is taken off": ("= 128 * total_of(sum)", "= 127 * total_of(sum)"),
    "what is taken off is overwritten": ("bytes ? ceil_div(depth, 4) + 1", "bytes ? ceil_div(depth, 4)"),
    "of another line": ("a[steps * MR + i]", "a[steps * MR + (i ^ 1)]"),
    "bytes of the right are signed": ("BYTES && !LEFT ? 128 : 0", "BYTES && !LEFT ? 0 : 0"),
    "behind k": (
        ": splat(int32_t(0));\n        if (BYTES && LEFT)",
        ": splat(int32_t(1));\n        if (BYTES && LEFT)",
    ),
    "a chunk begins anew": ("NARROW && !fresh ?", "NARROW && false ?"),
    "the last step is lost": ("k < steps; ++k, a += MR", "k < steps - 1; ++k, a += MR"),
}
WORDS = {
    "a slice too wide for a sum of 256": (
        "constexpr int SLICE_BITS = FIXED_BITS == 24 ? 12 : 8",
        "constexpr int SLICE_BITS = 10",
    ),
    "behind k": (
        ": splat(int32_t(0));\n        if (BYTES && LEFT)",
        ": splat(int32_t(1));\n        if (BYTES && LEFT)",
    ),
    "a product is lost": ("(32 / EACH * n)", "(16 * (n & 0))"),
    "the last step is lost": ("k < steps; ++k, a += MR", "k < steps - 1; ++k, a += MR"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BYTES)
def test_slips_in_products_of_bytes_show(what: str) -> None:
    isa, feature = UNITS[0] if UNITS[0][1] in cpu_features() and "avx512" in isas_here() else UNITS[2]
    skip_without(isa, feature)
    assert shown(partial(kernel, isa, feature, "fixed8", slip=BYTES[what]))


@pytest.mark.slow
@pytest.mark.parametrize("what", WORDS)
@pytest.mark.parametrize(("isa", "feature"), [("avx512", "avx512_vnni"), ("avx2", "")])
def test_slips_in_products_of_words_show(what: str, isa: Isa, feature: str) -> None:
    skip_without(isa, feature)
    assert shown(partial(kernel, isa, feature, "fixed16", slip=WORDS[what]))


def shown(made: Any) -> bool:
    return not all(right(made, a, b, layout) for n in (7, 300) for a, b in operands(n) for layout in LAYOUTS)
