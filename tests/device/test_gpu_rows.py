"""Shortcuts of row kernels on GPUs (emit/gpu/rows.h), each beside what it stands for."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from tokitai.backends.sim import device as sim
from tokitai.emit.gpu_text import headers
from tokitai.families.rowwise.plan import RowPlan
from tokitai.families.rowwise.schedule import REGISTERS, held, schedule_rows, stage_bytes, widened_again
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import gpu_plan
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import find_compiler

TEXT = r"""
#include "rows.h"
using namespace tokitai;
struct Call { const uint32_t* a; const uint32_t* b; uint32_t* quotients; uint32_t* divided; int64_t n; };
KERNEL(quotients, 64, 1) {
  for (int64_t i = thread_index(); i < call.n; i += 64) {
    const float a = float_of(call.a[i]), b = float_of(call.b[i]);
    call.quotients[i] = bits(div_by_one(a, b));
    call.divided[i] = bits(div(a, b));
  }
}
"""


def test_a_quotient_by_a_power_of_two_is_the_product_with_its_inverse() -> None:
    rng = np.random.default_rng(0)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    others = np.array([0.0, -0.0, -1.0, -4.0, 3.0, np.inf, np.nan, 1000.0, 2.0**24 - 1], np.float32)
    b = np.tile(np.concatenate([powers, others, rng.integers(1, 2**20, 200).astype(np.float32)]), 40)
    a = rng.integers(0, 2**32, b.size, np.uint32)  # numbers of any size, subnormal ones, infinities, NaN
    a[:286] = np.resize(np.array([0.0, -0.0, np.inf, 2.0**-126], np.float32).view(np.uint32), 286)
    a[286:572] = rng.integers(0, 2**23, 286, np.uint32)
    quotients, divided = np.empty_like(a), np.empty_like(a)
    loaded = sim.load(sim.build_sim(Source(TEXT, headers(), "quotients"), find_compiler()))
    place = [x.ctypes.data for x in (a, b.view(np.uint32), quotients, divided)]
    loaded.launch("quotients", 1, 64, struct.pack("<5q", *place, a.size), 0)
    nan = np.isnan(quotients.view(np.float32))
    assert (nan == np.isnan(divided.view(np.float32))).all()
    assert (quotients[~nan] == divided[~nan]).all()
    with np.errstate(all="ignore"):
        assert (a.view(np.float32) / b).astype(np.float32)[~nan].tobytes() == divided[~nan].tobytes()


@pytest.mark.parametrize(("dtype", "own"), [(np.float16, 0x7E00), (ml_dtypes.bfloat16, 0x7FC0)])
def test_the_smaller_of_two_patterns_makes_a_gpus_nan_canonical_and_leaves_numbers(dtype: type, own: int) -> None:
    """What min.s16x2 does with each half of a word: 0x7FFF is the only NaN that conversions of a GPU give."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    numbers = patterns[~np.isnan(patterns.view(dtype).astype(np.float32))]
    smaller = np.minimum(numbers.view(np.int16), np.int16(own)).view(np.uint16)
    assert (smaller == numbers).all()
    assert np.minimum(np.int16(0x7FFF), np.int16(own)) == own


COLS = (1, 17, 256, 257, 300, 512, 1000, 1024, 1025, 2048, 4096, 6000, 8192, 8193, 12288, 16384, 32768, 32769)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_schedules_ask_for_no_more_than_a_multiprocessor_has(dtype: str) -> None:
    seen = set()
    for op in registry().values():
        plan = gpu_plan(op.trace(dtype), "cuda") if dtype in op.contract.formats else None
        if not isinstance(plan, RowPlan):
            continue
        for cols in COLS:
            s = schedule_rows(plan, cols, 8)
            assert not s.kept or s.sliced or s.threads * s.chunks * 8 >= cols, (op.name, cols)
            assert s.threads <= 32 or s.rows == 1, (op.name, cols)  # warps of one row alone meet in shared memory
            assert s.block_threads * s.per_sm <= 2048 and s.per_sm <= 32, (op.name, cols)
            assert stage_bytes(plan, s) * s.per_sm <= 227 << 10, (op.name, cols)
            if widened_again(plan, s):
                assert held(plan, s) and REGISTERS // (s.block_threads * s.per_sm) <= 128
            seen.add((held(plan, s), s.staged, widened_again(plan, s)))
    assert {(True, False, False), (False, True, False)} <= seen
    assert dtype == "f32" or {(True, True, True), (True, False, True)} <= seen
