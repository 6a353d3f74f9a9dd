"""Whether the FP64 matrix units of a card add up as products in f64 are defined: a test on the card itself.

A product of 16 x 4 and 4 x 8 that is added to accumulators must have the bits of four fused multiply-adds, one after
another in the order of k. Hopper's units have; what another card's do is for this test to say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .emit.gpu_text import headers
from .toolchain import nvrtc
from .toolchain.build import Source

ARCHITECTURES = ("sm_90", "sm_100")  # that have such units, and enough of them
BLOCKS, STEPS = 2048, 64

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


def source() -> Source:
    """The text of the test."""
    return Source(TEXT.replace("STEPS", str(STEPS)), headers(of_products=True), "try_out")


def adds_in_order(device: Any) -> bool:
    """Whether every one of half a million sums on this card has the bits of its chain."""
    if device.arch not in ARCHITECTURES:
        return False
    module = device.load(nvrtc.build(source(), device.arch))
    wrong = np.full(32 * BLOCKS, -1, np.int32)
    memory = device.allocate(wrong.nbytes)
    device.upload(wrong, memory.address)
    module.launch("try_out", BLOCKS, 32, np.int64(memory.address).tobytes(), 0)
    device.synchronize()
    device.download(memory.address, wrong)
    return not wrong.any()
