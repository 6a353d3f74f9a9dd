// Accumulation by steps of a matrix unit (tokitai/meaning/matrix_unit.py has the rule): f32 accumulators, or hashes, and
// operands of 16 bits, which tiles hold as they are stored.
#pragma once
#include "rows.h"

namespace tokitai {

constexpr int UNIT_STEP = 16;

#if TOKITAI_STRUCTURE
typedef S E;
typedef S W;  // an element of an operand's K-tile
constexpr E NEUTRAL = {0};  // stands for the +0 with which a chain begins
constexpr uint64_t LEFT_PADDING = 0x5A5A5A5A5A5A5A5Aull, RIGHT_PADDING = 0xC3C3C3C3C3C3C3C3ull;
constexpr Tag FUSED_STEP = Tag(33);
template <class P, bool LEFT> INLINE P k_padding() { return {LEFT ? LEFT_PADDING : RIGHT_PADDING}; }
INLINE E empty_sum() { return constant(0.0f, S{}); }
template <class P> INLINE W k_tile_value(P x) { return load1(&x); }
INLINE E add_sums(E a, E b) { return add(a, b); }
INLINE S result_of(E x) { return x; }
// A step without products, past the end of k, changes nothing.
INLINE E any_step(E c, const W* a, const W* b) {
  uint64_t products = 0;
  bool some = false;
  for (int k = 0; k < UNIT_STEP; ++k) {
    if (a[k].h == LEFT_PADDING && b[k].h == RIGHT_PADDING) continue;
    products += symmetric(FUSED_STEP, a[k], b[k]).h, some = true;
  }
  const E from = c.h == 0 ? empty_sum() : c;
  return some ? third(FUSED_STEP, unary(FUSED_STEP, E{products}), from) : c;
}
#else
typedef S E;
typedef uint16_t W;
constexpr E NEUTRAL = 0.0f;
template <class P, bool LEFT> INLINE P k_padding() { return P{}; }
INLINE E empty_sum() { return 0.0f; }
template <class P> INLINE W k_tile_value(P x) { return x.bits; }
INLINE E add_sums(E a, E b) { return add(a, b); }
INLINE S result_of(E x) { return x; }

constexpr int FRACTION = 25, FLOOR = -133, ABSENT = -4096;

// A value as significand * 2^(exponent - F), F being the fraction bits of its format.
struct Decoded {
  int64_t significand;
  int exponent;
  bool finite;
};
template <int FRACTION_BITS> INLINE Decoded decode(uint32_t bits, int min_exponent) {  // of 16 or 32 bits
  constexpr int SIZE = FRACTION_BITS == 23 ? 31 : 15, FIELD = SIZE - FRACTION_BITS;
  const int field = int(bits >> FRACTION_BITS & ((1u << FIELD) - 1));
  int64_t m = int64_t(bits & ((1u << FRACTION_BITS) - 1)) | int64_t(field > 0) << FRACTION_BITS;
  const int e = field + min_exponent - 1;
  return {bits >> SIZE & 1 ? -m : m, m == 0 ? ABSENT : e > min_exponent ? e : min_exponent, field != (1 << FIELD) - 1};
}
constexpr int LEFT_FRACTION_BITS = LEFT_MIN_EXPONENT == -14 ? 10 : 7, RIGHT_FRACTION_BITS = RIGHT_MIN_EXPONENT == -14 ? 10 : 7;
INLINE int64_t truncated(int64_t m, int ceil_div) {
  const int64_t size = m < 0 ? -m : m, magnitude = ceil_div >= 0 ? size << ceil_div : ceil_div > -63 ? size >> -ceil_div : 0;
  return m < 0 ? -magnitude : magnitude;
}
INLINE float narrowed(W x, int fraction_bits) {
  if (fraction_bits == 7) return float_of(uint32_t(x) << 16);
  const f16 h = {x};
  return load1(&h);
}
// One step by integers, as any processor has them.
INLINE E any_step(E c, const W* a, const W* b) {
  const Decoded start = decode<23>(bits_of(c), -126);
  int64_t products[UNIT_STEP];
  int exponents[UNIT_STEP];
  bool finite = start.finite;
  int top = start.exponent > FLOOR ? start.exponent : FLOOR;
  ROLLED for (int k = 0; k < UNIT_STEP; ++k) {
    const Decoded x = decode<LEFT_FRACTION_BITS>(a[k], LEFT_MIN_EXPONENT), y = decode<RIGHT_FRACTION_BITS>(b[k], RIGHT_MIN_EXPONENT);
    finite = finite && x.finite && y.finite;
    products[k] = x.significand * y.significand, exponents[k] = x.exponent + y.exponent;
    if (products[k] && exponents[k] > top) top = exponents[k];
  }
  if (!finite) {  // NaN or an infinity: whatever the order, and what is finite does not matter
    float special = c - c == 0 ? 0.0f : c;
    ROLLED for (int k = 0; k < UNIT_STEP; ++k) {
      const float x = narrowed(a[k], LEFT_FRACTION_BITS), y = narrowed(b[k], RIGHT_FRACTION_BITS);
      if (!(x - x == 0 && y - y == 0)) special = add(special, mul(x, y));
    }
    return special;
  }
  int64_t sum = truncated(start.significand, start.exponent - 23 - (top - FRACTION));
  ROLLED for (int k = 0; k < UNIT_STEP; ++k)
    if (products[k]) sum += truncated(products[k], exponents[k] - LEFT_FRACTION_BITS - RIGHT_FRACTION_BITS - (top - FRACTION));
  uint64_t size = uint64_t(sum < 0 ? -sum : sum);  // below 2^32
  if (size == 0) return 0.0f;
  int e = top - FRACTION, length = 0;  // of the lowest bit
  for (uint64_t rest = size; rest; rest >>= 1) ++length;
  int drop = length - 24;
  if (e + drop < -149) drop = -149 - e;  // subnormal numbers have less
  if (drop > 0) size = drop < 63 ? size >> drop : 0, e += drop;
  else size <<= -drop, e += drop;
  const uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  if (size == 0) return 0.0f;
  if (e > 104) return float_of(sign | INFINITY_BITS);
  const uint32_t magnitude = size >> 23 ? uint32_t(e + 150) << 23 | (uint32_t(size) & 0x7FFFFFu) : uint32_t(size);
  return float_of(sign | magnitude);
}
#endif

// Two neighbours along k, as a register of a matrix unit has them: the first in the low half.
#if TOKITAI_STRUCTURE
struct Pair { W e[2]; };
INLINE Pair pair(W first, W second) { return {{first, second}}; }
INLINE W half_of(Pair p, int i) { return p.e[i]; }
INLINE Pair from_lane(Pair p, int mask) { return {{{exchange(p.e[0].h, mask)}, {exchange(p.e[1].h, mask)}}}; }
#else
typedef uint32_t Pair;
INLINE Pair pair(W first, W second) { return uint32_t(first) | uint32_t(second) << 16; }
INLINE W half_of(Pair p, int i) { return W(p >> 16 * i); }
INLINE Pair from_lane(Pair p, int mask) { return exchange(p, mask); }
#endif

// c += a b, of 16 x 16 and 16 x 8: lane 4 g + t of a warp has rows g and g + 8 of a at the columns 2 t and 2 t + 1, then at
// those 8 further on; the same rows of b at column g; rows g and g + 8 of c at the columns 2 t and 2 t + 1.
INLINE void step_in_order(E& c0, E& c1, E& c2, E& c3, const Pair (&a)[4], const Pair (&b)[2]) {
  const int lane = thread_index() & 31, row = lane & ~3, column = 8 * (lane & 3);
  W upper[UNIT_STEP], lower[UNIT_STEP], first[UNIT_STEP], second[UNIT_STEP];
  ROLLED for (int t = 0; t < 4; ++t)
    for (int high = 0; high < 2; ++high) {
      const Pair u = from_lane(a[2 * high], (lane ^ (row + t)) & 31), l = from_lane(a[2 * high + 1], (lane ^ (row + t)) & 31);
      const Pair f = from_lane(b[high], (lane ^ (column + t)) & 31), s = from_lane(b[high], (lane ^ (column + 4 + t)) & 31);
      for (int i = 0; i < 2; ++i) {
        const int k = 8 * high + 2 * t + i;
        upper[k] = half_of(u, i), lower[k] = half_of(l, i), first[k] = half_of(f, i), second[k] = half_of(s, i);
      }
    }
  c0 = any_step(c0, upper, first), c1 = any_step(c1, upper, second);
  c2 = any_step(c2, lower, first), c3 = any_step(c3, lower, second);
}
// The same by a matrix unit: a test on the device shows that it is before any is used.
#if CUDA_ASM && !TOKITAI_STRUCTURE && UNIT_ATOM
#define STEPS_BY_UNIT 1
#define UNIT_MMA(TYPE) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
INLINE void unit_step(E& c0, E& c1, E& c2, E& c3, const Pair (&a)[4], const Pair (&b)[2]) {
  if (LEFT_FRACTION_BITS == 10) UNIT_MMA("f16");
  else UNIT_MMA("bf16");
}
#else
#define STEPS_BY_UNIT 0
#endif

constexpr int QUAD = 2;                     // neighbouring columns that a lane has
constexpr int PACK = 16 / int(sizeof(W));   // elements of a K-tile that are stored at a time
struct alignas(16) Pack {
  W e[PACK];
};

}  // namespace tokitai
