"""Whether the matrix units of a GPU add up as products are defined: a test on the device itself.

In f64 a product of 16 x 4 and 4 x 8 that is added to accumulators must have the bits of four fused multiply-adds, one
after another in the order of k. Of 16-bit operands a product of 16 x 16 and 16 x 8 must have the bits of a step of
``fused16``. Hopper's units have both; what another GPU's do is for these tests to say. Of 8-bit integers a product of
16 x 32 and 32 x 8 must have the exact sums, signed or not, and so must those of Hopper's warpgroups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...emit.gpu_text import gpu_own, headers, warpgroup_headers
from ...formats import FORMATS
from ...toolchain.build import Source
from . import nvrtc

ARCHITECTURES = ("sm_90", "sm_100")  # that have such units, and enough of them
FUSED_ARCHITECTURES = ("sm_90",)  # whose model is `meaning.matrix_unit`
INTEGER_ARCHITECTURE = 80  # the first that multiplies 16 x 32 by 32 x 8
BLOCKS, STEPS, FUSED_STEPS, WARPGROUP_BLOCKS = 2048, 64, 16, 528

# Operands of random bits with exponents close together, or up to 200 apart; zeros of both signs among them.
TEXT = r"""
#define ACCUMULATORS_F64 1
#define MATRIX_UNITS 1
#include "accumulators.h"

namespace tokitai {

struct Call { int32_t* wrong; };

INLINE double drawn(uint64_t& state, int span) {
  state += 0x9E3779B97F4A7C15ull;
  uint64_t x = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  const uint64_t sign = x & 0x8000000000000000ull;
  const uint64_t exponent = uint64_t(1023 - span + int(uint32_t(x >> 52) % uint32_t(2 * span + 1)));
  return of_word(x % 61 == 0 ? sign : sign | exponent << 52 | (x * 0xD6E8FEB86659FD93ull) >> 12);
}

KERNEL(try_out, 32, 1) {
  const int spans[4] = {0, 8, 40, 200};
  const int span = spans[block_index() % 4];
  uint64_t state = uint64_t(block_index() * 32 + thread_index()) << 32;
  double units[4], chains[4];
  for (int i = 0; i < 4; ++i) units[i] = chains[i] = NEUTRAL;
  int wrong = 0;
  ROLLED for (int k = 0; k < STEPS; ++k) {
    const double a0 = drawn(state, span), a1 = drawn(state, span), b = drawn(state, span);
    multiply_add(units[0], units[1], units[2], units[3], a0, a1, b);
    multiply_in_order(chains[0], chains[1], chains[2], chains[3], a0, a1, b);
    for (int i = 0; i < 4; ++i) wrong += word_of(units[i]) != word_of(chains[i]);
  }
  call.wrong[block_index() * 32 + thread_index()] = wrong;
}

}  // namespace tokitai
"""


# SplitMix64 (Steele, Lea and Flood, 2014).
WORDS_DRAWN = r"""
INLINE uint64_t drawn(uint64_t& state) {
  state += 0x9E3779B97F4A7C15ull;
  uint64_t x = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
"""

DRAWN = (
    WORDS_DRAWN
    + r"""
// An operand whose exponent field lies within `span` of `middle`, subnormals and zeros included, no infinity or NaN.
INLINE uint32_t operand(uint64_t& state, int middle, int span) {
  constexpr int FRACTION_BITS = LEFT_FRACTION_BITS, LARGEST = (1 << (15 - FRACTION_BITS)) - 2;
  const uint64_t x = drawn(state);
  int field = middle - span + int(uint32_t(x >> 40) % uint32_t(2 * span + 1));
  field = field < 0 ? 0 : field > LARGEST ? LARGEST : field;
  const uint32_t sign = uint32_t(x & 0x8000u);
  const uint32_t fraction = uint32_t(x >> 24) & ((1u << FRACTION_BITS) - 1);
  return x >> 16 & 15 ? sign | uint32_t(field) << FRACTION_BITS | fraction : sign;
}
INLINE uint32_t both_of(uint64_t& state, int middle, int span) {
  const uint32_t low = operand(state, middle, span);
  return low | operand(state, middle, span) << 16;
}

// Where operands lie in each of 16 regimes: how far apart, round which exponent field.
INLINE int span_of(int regime) {
  constexpr int LARGEST = (1 << (15 - LEFT_FRACTION_BITS)) - 2, spans[4] = {1, 4, LARGEST / 4, LARGEST};
  return spans[regime % 4];
}
INLINE int middle_of(int regime) {
  constexpr int LARGEST = (1 << (15 - LEFT_FRACTION_BITS)) - 2;
  constexpr int middles[4] = {LARGEST / 2, 1, LARGEST / 4, LARGEST * 5 / 8};
  return middles[regime / 4];
}
"""
)

# Operands of random bits in every regime: exponents close together, far apart, near the smallest and the largest, at
# random; zeros among them, operands that cancel, and accumulators of any size.
FUSED = r"""
#define ACCUMULATORS_FUSED 1
#define MATRIX_UNITS 1
#define UNIT_ATOM 1
#define LEFT_MIN_EXPONENT SMALLEST
#define RIGHT_MIN_EXPONENT SMALLEST
#include "matrix_unit.h"

namespace tokitai {

struct Call { int32_t* wrong; };

DRAWN
KERNEL(try_out, 32, 1) {
  const int middle = middle_of(int(block_index() % 16)), span = span_of(int(block_index() % 16));
  uint64_t state = uint64_t(block_index() * 32 + thread_index()) << 32;
  int wrong = 0;
  float units[4], steps[4];
  ROLLED for (int round = 0; round < STEPS; ++round) {
    if (round % 8 == 0)
      for (int i = 0; i < 4; ++i) {  // from zero, or from any number that leaves room
        const uint32_t x = uint32_t(drawn(state));
        units[i] = steps[i] = round % 16 || (x >> 23 & 255u) > 190u ? 0.0f : float_of(x);
      }
    Pair a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = both_of(state, middle, span);
    for (int i = 0; i < 2; ++i) b[i] = both_of(state, middle, span);
    if (round % 4 == 3) {  // what comes last cancels what came first, nearly
      a[2] = a[0] ^ 0x80008000u, a[3] = a[1] ^ 0x80008000u;
      b[1] = b[0] ^ (thread_index() % 4 == 0 ? 1u : 0u);
    }
    unit_step(units[0], units[1], units[2], units[3], a, b);
    step_in_order(steps[0], steps[1], steps[2], steps[3], a, b);
    for (int i = 0; i < 4; ++i) {
      const bool none = units[i] != units[i] && steps[i] != steps[i];
      wrong += !none && bits_of(units[i]) != bits_of(steps[i]);
    }
  }
  call.wrong[block_index() * 32 + thread_index()] = wrong;
}

}  // namespace tokitai
"""


# Tiles of 64 x 64, whose operands lie in shared memory as the copy engine puts them there, four steps along k.
WARPGROUP = r"""
#define ACCUMULATORS_FUSED 1
#define MATRIX_UNITS 1
#define UNIT_ATOM 1
#define LEFT_MIN_EXPONENT SMALLEST
#define RIGHT_MIN_EXPONENT SMALLEST
#include "warpgroup.h"

namespace tokitai {

struct Call { int32_t* wrong; };

DRAWN
INLINE W* element(char* tile, int line, int k) {
  return reinterpret_cast<W*>(tile + line * 128 + (k / 8 ^ line % 8) * 16 + k % 8 * 2);
}

KERNEL(try_out, 128, 1) {
  SHARED_AT_LAUNCH(memory);
  char* const left = memory + (-int64_t(shared_address(memory)) & 1023);
  char* const right = left + 8192;
  const int t = thread_index(), regime = int(block_index() % 16);
  uint64_t state = uint64_t(block_index() * 128 + t) << 32;
  for (int i = 0; i < 64; ++i) {
    char* const tile = i < 32 ? left : right;
    *element(tile, t / 2, t % 2 * 32 + i % 32) = W(operand(state, middle_of(regime), span_of(regime)));
  }
  if (block_index() % 3 == 0)  // what comes last cancels what came first, nearly
    for (int k = 32; k < 64; k += 2) {
      char* const tile = t % 2 ? left : right;
      *element(tile, t / 2, k) = *element(tile, t / 2, k - 32) ^ (t % 2 << 15);
    }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  barrier();
  float d[32];
  warpgroup_begin();
  UNROLL for (int k = 0; k < 4; ++k)
    warpgroup_step<64, false, false>(
        d, operand_at<16>(shared_address(left)) + 2 * k, operand_at<16>(shared_address(right)) + 2 * k, k > 0);
  warpgroup_close();
  warpgroup_wait<0>();
  int wrong = 0;
  UNROLL for (int i = 0; i < 32; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
    float c = 0.0f;
    for (int k0 = 0; k0 < 64; k0 += 16) {
      W a[16], b[16];
      for (int k = 0; k < 16; ++k) a[k] = *element(left, row, k0 + k), b[k] = *element(right, column, k0 + k);
      c = any_step(c, a, b);
    }
    const bool none = c != c && d[i] != d[i];
    wrong += !none && bits_of(c) != bits_of(d[i]);
  }
  call.wrong[block_index() * 128 + t] = wrong;
}

}  // namespace tokitai
"""


# Bytes in every regime: any, the largest and the smallest alone, small ones.
BYTES_DRAWN = (
    WORDS_DRAWN
    + r"""INLINE Bytes four(uint64_t& state, int regime) {
  const uint32_t x = uint32_t(drawn(state) >> 16);
  if (regime == 1) return (x & 0x01010101u) * 255u;
  if (regime == 2) return (x & 0x01010101u) * 127u + 0x01010101u * (x >> 31);
  return regime == 3 ? x & 0x03030303u : x;
}
"""
)

# Operands of random bytes in every regime: any, the largest and the smallest alone, small ones; each signed and not.
# Sums begin anywhere, and wrap in no step.
INTEGERS = r"""
#define ACCUMULATORS_F64 0
#define MATRIX_UNITS 0
#define UNIT_ATOM 1
#define PLAN_FIXED_BITS 16
#define PLAN_PRODUCTS 1
#define PLAN_ROWS 32
#define PLAN_COLS 32
#define PLAN_THREAD_M 4
#define PLAN_THREAD_N 4
#define PLAN_DEPTH 32
#include "fixed_point.h"

namespace tokitai {

struct Call { int32_t* wrong; };

BYTES_DRAWN
// Digits of one operand and the other, one of a warp's tile after another.
template <int L, int R> INLINE int tried(const Bytes (&a)[4], const Bytes (&b)[2], const int32_t (&c)[4]) {
  const int g = thread_index() / 4, t = thread_index() % 4;
  Sum units[4], sums[4];
  for (int i = 0; i < 4; ++i) units[i] = sums[i] = c[i];
  multiply_add<L == 1, R == 1>(units[0], units[1], units[2], units[3], a, b);
  for (int high = 0; high < 2; ++high)
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * g + k, column = 4 * (2 * t + i % 2) + k;
        const Bytes x = Bytes(__shfl_sync(0xFFFFFFFFu, a[2 * high + i / 2], row));
        const Bytes y = Bytes(__shfl_sync(0xFFFFFFFFu, b[high], column));
        add_products<L, R>(sums[i], x, y);
      }
  int wrong = 0;
  for (int i = 0; i < 4; ++i) wrong += units[i] != sums[i];
  return wrong;
}

KERNEL(try_out, 32, 1) {
  uint64_t state = uint64_t(block_index() * 32 + thread_index()) << 32;
  int wrong = 0;
  ROLLED for (int round = 0; round < STEPS; ++round) {
    const int regime = int(block_index() + round) % 4;
    Bytes a[4], b[2];
    int32_t c[4];
    for (int i = 0; i < 4; ++i) a[i] = four(state, regime), c[i] = int32_t(drawn(state) >> 34);
    for (int i = 0; i < 2; ++i) b[i] = four(state, regime);
    wrong += tried<0, 0>(a, b, c) + tried<0, 1>(a, b, c) + tried<1, 0>(a, b, c) + tried<1, 1>(a, b, c);
  }
  call.wrong[block_index() * 32 + thread_index()] = wrong;
}

}  // namespace tokitai
"""

# Tiles of 64 x 64, whose bytes lie in shared memory as digits of operands do, 128 along k.
INTEGER_WARPGROUP = r"""
#define ACCUMULATORS_FUSED 1
#define MATRIX_UNITS 0
#define UNIT_ATOM 1
#define LEFT_MIN_EXPONENT -126
#define RIGHT_MIN_EXPONENT -126
#define PLAN_FIXED_BITS 16
#define PLAN_PRODUCTS 1
#define PLAN_ROWS 128
#define PLAN_COLS 64
#define PLAN_STAGES 2
#define PLAN_ALTERNATE 0
#define PLAN_DEPTH 128
#define PLAN_DIGITS_IN_TILES 1
#include "fixed_pipeline.h"

namespace tokitai {

struct Call { int32_t* wrong; };

BYTES_DRAWN
template <int L, int R> INLINE int tried(const char* left, const char* right) {
  Sum d[32], start[32];
  uint64_t state = uint64_t(thread_index());
  UNROLL for (int i = 0; i < 32; ++i) d[i] = start[i] = int32_t(drawn(state) >> 34);
  const uint64_t a = digits_at(shared_address(left)), b = digits_at(shared_address(right));
  warpgroup_begin();
  UNROLL for (int k = 0; k < 4; ++k) integer_step<64, 0, L == 1, R == 1>(d, a + 2 * k, b + 2 * k);
  warpgroup_close();
  warpgroup_wait<0>();
  int wrong = 0;
  const int t = thread_index();
  UNROLL for (int i = 0; i < 32; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
    Sum sum = start[i];
    ROLLED for (int k = 0; k < 128; ++k) {
      const uint8_t x = left[row * 128 + swizzled(row, k)], y = right[column * 128 + swizzled(column, k)];
      sum += (L ? int(int8_t(x)) : int(x)) * (R ? int(int8_t(y)) : int(y));
    }
    wrong += sum != d[i];
  }
  return wrong;
}

KERNEL(try_out, 128, 1) {
  SHARED_AT_LAUNCH(memory);
  char* const left = memory + (-int64_t(shared_address(memory)) & 1023);
  char* const right = left + 8192;
  const int t = thread_index();
  uint64_t state = uint64_t(block_index() * 128 + t) << 32;
  for (int i = t; i < 4096; i += 128) reinterpret_cast<uint32_t*>(left)[i] = four(state, int(block_index() % 4));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  barrier();
  call.wrong[block_index() * 128 + t] =
      tried<0, 0>(left, right) + tried<0, 1>(left, right) + tried<1, 0>(left, right) + tried<1, 1>(left, right);
}

}  // namespace tokitai
"""


def integer_source() -> Source:
    """The test of products of 8-bit integers."""
    text = INTEGERS.replace("< STEPS", f"< {FUSED_STEPS}").replace("BYTES_DRAWN\n", BYTES_DRAWN)
    return Source(text, headers(of_products=True) | gpu_own("digits.h", "fixed_point.h"), "try_out")


def multiplies_integers(device: Any) -> bool:
    """Whether every one of sixteen million sums, a quarter of each pair of signed and other integers, is exact."""
    if int(device.arch.removeprefix("sm_")) < INTEGER_ARCHITECTURE:
        return False
    return _none_wrong(device, integer_source())


def integer_warpgroup_source() -> Source:
    """The same of a warpgroup's products."""
    text = INTEGER_WARPGROUP.replace("BYTES_DRAWN\n", BYTES_DRAWN)
    more = warpgroup_headers() | gpu_own("digits.h", "fixed_pipeline.h")
    return Source(text, headers(of_products=True) | more, "try_out")


def warpgroups_multiply_integers(device: Any) -> bool:
    """Whether every one of eight million sums of a warpgroup's products of 8-bit integers is exact."""
    if device.arch not in FUSED_ARCHITECTURES:
        return False
    return _none_wrong(device, integer_warpgroup_source(), f"{device.arch}a", 128, WARPGROUP_BLOCKS, 17 << 10)


def fused_source(smallest: int) -> Source:
    """The test of a warp's steps of 16-bit operands whose smallest normal exponent is this."""
    return _source(FUSED.replace("< STEPS", f"< {FUSED_STEPS}"), smallest)


def warpgroup_source(smallest: int) -> Source:
    """The same of a warpgroup's steps."""
    made = _source(WARPGROUP, smallest)
    return Source(made.text, {**made.headers, **warpgroup_headers()}, made.stem)


def _source(text: str, smallest: int) -> Source:
    text = text.replace("DRAWN\n", DRAWN).replace(" SMALLEST\n", f" {smallest}\n")
    return Source(text, headers(of_products=True), "try_out")


def takes_fused_steps(device: Any) -> bool:
    """Whether every one of eight million steps, half of f16 and half of bf16, has the bits of ``fused16``."""
    if device.arch not in FUSED_ARCHITECTURES:
        return False
    return all(_none_wrong(device, fused_source(FORMATS[f].emin)) for f in ("f16", "bf16"))


def warpgroups_take_fused_steps(device: Any) -> bool:
    """The same of four million results of the warpgroups' instructions, each of four steps."""
    sources = (warpgroup_source(FORMATS[f].emin) for f in ("f16", "bf16"))
    return all(_none_wrong(device, s, f"{device.arch}a", 128, WARPGROUP_BLOCKS, 17 << 10) for s in sources)


def source() -> Source:
    """The source of the test."""
    return Source(TEXT.replace("STEPS", str(STEPS)), headers(of_products=True), "try_out")


def adds_in_order(device: Any) -> bool:
    """Whether every one of half a million sums on this GPU has the bits of its chain."""
    if device.arch not in ARCHITECTURES:
        return False
    return _none_wrong(device, source())


def _none_wrong(
    device: Any, test: Source, arch: str | None = None, threads: int = 32, blocks: int = BLOCKS, shared: int = 0
) -> bool:
    """Whether no thread of a test counts a wrong result."""
    module = device.load(nvrtc.build(test, arch or device.arch))
    wrong = np.full(threads * blocks, -1, np.int32)
    memory = device.allocate(wrong.nbytes)
    device.upload(wrong, memory.address)
    module.launch("try_out", blocks, threads, np.int64(memory.address).tobytes(), 0, shared=shared)
    device.synchronize()
    device.download(memory.address, wrong)
    return not wrong.any()
