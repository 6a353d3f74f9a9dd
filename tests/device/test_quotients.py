"""The quotients of GPU kernels (emit/gpu/quotients.h): every one that could be wrong, from every start."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tokitai.backends.cuda import nvrtc
from tokitai.backends.sim import device as sim
from tokitai.emit.gpu_text import headers
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import find_compiler

# Hard cases: a / b = (m + j / (2 Y)) ulp near a middle m between two floats, Y the significand of b, |j| at most 8. For
# the others the last step is right whatever the roundings before it: its value before rounding is off by less than
# |j| / (2 Y) ulp, since the quotient before is off by 1.5 ulp, and the reciprocal by (1/2 + 2^-22) ulp. With Y odd
# times 2^s, m is determined modulo 2^(level - s) by m Y = -j modulo 2^level, with 24 levels where a >= b, 25 where
# a < b.
TEXT = r"""
#include "rows.h"
#include "quotients.h"
using namespace tokitai;
struct Call { int64_t* wrong; int64_t first, step; };
INLINE uint32_t inverse(uint32_t y) {
  uint32_t x = y;
  for (int i = 0; i < 5; ++i) x *= 2 - y * x;
  return x;
}
INLINE int64_t differs(float a, float b) {
  bool missed = false;
  const Quick quick{&missed};
  const float q = quick.of(a, b, Checks<true, true, true>{});
  return missed || bits(q) != bits(__fdiv_rn(a, b));
}
INLINE float scaled(uint32_t significand) { return float_of(0x3F800000u | (significand & 0x7FFFFFu)); }
// wrong[t]: of every 256th significand Y of b from t on, how many quotients are wrong; then how many were tried.
KERNEL(hard, 256, 1) {
  int64_t wrong = 0, tried = 0;
  const int64_t place = block_index() * 256 + thread_index();
  for (int64_t i = call.first + place * call.step; i < (1 << 23); i += grid_size() * 256 * call.step) {
    const uint32_t y = (1u << 23) + uint32_t(i);
    int s = 0;
    while (!(y >> s & 1)) ++s;
    for (int j = -8; j <= 8 && s <= 3; ++j) {
      if (j == 0 || (j & ((1 << s) - 1))) continue;
      const uint32_t inverted = inverse(y >> s), middle = uint32_t(-(j >> s)) * inverted;
      for (int level = 24; level <= 25; ++level) {
        const uint32_t step = 1u << (level - s);
        for (uint32_t m = middle & (step - 1); m < 1u << 25; m += step) {
          const int64_t x = (int64_t(m) * y + j) >> level;
          if (m <= 1u << 24 || !(m & 1) || x < 1 << 23 || x >= 1 << 24) continue;
          wrong += differs(scaled(uint32_t(x)), scaled(y)), ++tried;
        }
      }
    }
    wrong += differs(1.0f, scaled(y)) + differs(scaled(y), 1.0f) + differs(1.9999999f, scaled(y)), tried += 3;
  }
  call.wrong[2 * place] = wrong, call.wrong[2 * place + 1] = tried;
}
// Of operands with any exponents, how many quotients are wrong and not missed, how many missed, how many neither.
KERNEL(by_one, 256, 1) {
  int64_t wrong = 0;
  for (int64_t i = thread_index(); i < (int64_t(1) << 32); i += 256 * call.step) {
    const float a = float_of(uint32_t(i));
    bool missed = false;
    const Quick quick{&missed};
    const float q = quick.of(a, 1.0f, Checks<false, false, false>{});
    wrong += a == a && (q == q ? bits(q) != bits(a) : float_of(bits(a) & 0x7FFFFFFFu) < INFINITE);
  }
  call.wrong[thread_index()] = wrong;
}
KERNEL(any_exponents, 256, 1) {
  int64_t counts[3] = {0, 0, 0};
  uint32_t state = uint32_t(thread_index()) * 2654435761u + 1u;
  for (int64_t i = 0; i < call.step; ++i) {
    uint32_t w[2];
    for (int k = 0; k < 2; ++k) {
      state = state * 1664525u + 1013904223u;
      w[k] = (state >> 9 & 0x7FFFFFu) | (state & 0x80000000u);
      state = state * 1664525u + 1013904223u;
      w[k] |= (state >> 24) << 23;
    }
    const float a = float_of(i % 64 ? w[0] : w[0] & 0x80000000u), b = float_of(i % 8 ? w[1] & 0x7FFFFFFFu : w[1]);
    bool missed = false;
    const Quick quick{&missed};
    const float q = quick.of(a, b, Checks<true, true, true>{}), want = __fdiv_rn(a, b);
    const bool same = bits(q) == bits(want) || (q != q && want != want);
    ++counts[missed ? 1 : same ? 2 : 0];
  }
  for (int k = 0; k < 3; ++k) call.wrong[3 * thread_index() + k] = counts[k];
}
"""


def source(start: int = 0, change: tuple[str, str] = ("", "")) -> Source:
    made = headers()
    made["quotients.h"] = made["quotients.h"].replace("#define TOKITAI_START 0", f"#define TOKITAI_START {start}")
    assert change[0] in made["quotients.h"]
    made["quotients.h"] = made["quotients.h"].replace(*change)
    return Source(TEXT, made, "quotients")


def on_fibers(text: Source, step: int) -> tuple[int, int]:
    """How many quotients are wrong, of how many, for every `step`-th significand of the divisor."""
    found = np.zeros((256, 2), np.int64)
    kernels = sim.load(sim.build_sim(text, find_compiler()))
    kernels.launch("hard", 1, 256, struct.pack("<3q", found.ctypes.data, 1 if step > 1 else 0, step), 0)
    wrong, tried = found.sum(0).tolist()
    return wrong, tried


@pytest.mark.slow
@pytest.mark.parametrize("start", [-1, 0, 1])
def test_no_hard_quotient_is_wrong_from_any_start_within_an_ulp(start: int) -> None:
    wrong, tried = on_fibers(source(start), 1)
    assert tried > 60e6, "some hundred million cases are a few per significand"
    # One ulp above the nearest start is more than one ulp from the exact reciprocal: one quotient is wrong from there.
    assert wrong == (1 if start == 1 else 0)


def test_some_hard_quotients_from_each_start() -> None:
    for start in (-1, 0, 1):
        wrong, tried = on_fibers(source(start), 64)
        assert wrong == 0 and tried > 1e5


@pytest.mark.parametrize("start", [-1, 0, 1])
def test_a_quotient_by_one_is_exact_whatever_the_start(start: int) -> None:
    found = np.zeros(256, np.int64)
    kernels = sim.load(sim.build_sim(source(start), find_compiler()))
    kernels.launch("by_one", 1, 256, struct.pack("<3q", found.ctypes.data, 0, 1009), 0)
    assert not found.any()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const S r = fma(start, fma(-b, start, 1.0f), start);", "const S r = start;"),
        ("const S quotient = fma(-fma(q, b, -a), r, q);", "const S quotient = q;"),
        ("const S q = mul(a, r);", "const S q = mul(a, start);\n#define r start\n"),
    ],
)
def test_a_step_less_is_found(old: str, new: str) -> None:
    wrong, tried = on_fibers(source(1, (old, new)), 64)
    assert wrong > tried // 100_000


LOOKS = [
    "if (DIVISOR) *missed |= !(b >= MIN_OPERAND && b <= MAX_OPERAND);",
    "if (SMALL) *missed |= 2 * bits(a) - 2 < 2 * bits(MIN_OPERAND) - 2;",
    "if (LARGE) *missed |= quotient != quotient;",
]


@pytest.mark.parametrize("without", ["", *LOOKS])
def test_what_is_not_missed_is_right(without: str) -> None:
    found = np.zeros((256, 3), np.int64)
    kernels = sim.load(sim.build_sim(source(0, (without, "")), find_compiler()))
    kernels.launch("any_exponents", 1, 256, struct.pack("<3q", found.ctypes.data, 0, 4096), 0)
    wrong, missed, right = found.sum(0).tolist()
    assert min(missed, right) > 1e5
    assert wrong > 100 if without else wrong == 0


@pytest.mark.gpu
def test_no_hard_quotient_is_wrong_on_a_gpu() -> None:
    """With the start that the GPU gives, the one for 2 - 2^-23 included."""
    from tokitai.backends.cuda.device import open_device

    device = open_device(0)
    module = device.load(nvrtc.build(source(), device.arch))
    blocks = 1024
    found = np.zeros((256 * blocks, 2), np.int64)
    memory = device.allocate(found.nbytes)
    module.launch("hard", blocks, 256, struct.pack("<3q", memory.address, 0, 1))
    device.synchronize()
    device.download(memory.address, found)
    wrong, tried = found.sum(0).tolist()
    assert wrong == 0 and tried > 60e6


def test_the_headers_name_this_file() -> None:
    assert Path(__file__).name in headers()["quotients.h"]
