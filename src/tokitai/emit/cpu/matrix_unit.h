// The micro-kernel of products that are accumulated by steps of a matrix unit (tokitai/meaning/matrix_unit.py has the
// rule): 16 products along k and the accumulator are aligned to the largest exponent E, at least -133, truncated at 25
// fraction bits, added exactly, and truncated to f32. A chain begins with +0.
#pragma once
#include "accumulators.h"

namespace tokitai {

constexpr int UNIT_STEP = 16;

#if TOKITAI_STRUCTURE
constexpr Tag FUSED_STEP = Tag(33);

template <bool FRESH, int M>
static __attribute__((noinline)) void micro(int64_t depth, const E* left, const E* right, E* tile) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < NR; ++j) {
      E c = FRESH ? empty_sum() : tile[i * NR + j];
      for (int64_t k0 = 0; k0 < depth; k0 += UNIT_STEP) {
        uint64_t products = 0;
        for (int64_t k = k0; k < min(k0 + UNIT_STEP, depth); ++k)
          products += symmetric(FUSED_STEP, left[k * MR + i], right[k * NR + j]).h;
        c = third(FUSED_STEP, unary(FUSED_STEP, E{products}), c);
      }
      tile[i * NR + j] = c;
    }
}
#else
constexpr int FRACTION = 25, FLOOR = -133;
constexpr int ABSENT = -4096, NON_FINITE = 16000;  // the exponents of zeros, and of infinities and NaN, beside zeros too

// The exponent of a value of a format whose smallest exponent is min_exponent.
INLINE int exponent_of(float x, int min_exponent) {
  const int field = int(bits(x) >> 23 & 255u);
  return x == 0 ? ABSENT : field == 255 ? NON_FINITE : field - 127 > min_exponent ? field - 127 : min_exponent;
}
#if LANES > 1
INLINE I exponent_of(V x, int min_exponent) {
  const I field = to_i32(bits(x) << 1 >> 24), biased = splat(min_exponent + 127);
  const I finite = where(lt(field, biased), biased, field) - 127;
  return where(eq(x, splat(0.0f)), splat(ABSENT), where(eq(field, splat(255)), splat(NON_FINITE), finite));
}
#endif

// x, whose significand has `fraction_bits` bits below the exponent e, as a multiple of 2^(E - FRACTION), truncated.
INLINE int64_t truncated(double significand, int fraction_bits, int e, int top) {
  const int64_t m = int64_t(significand < 0 ? -significand : significand);
  const int ceil_div = e - fraction_bits - (top - FRACTION);
  const int64_t magnitude = ceil_div >= 0 ? m << ceil_div : ceil_div > -63 ? m >> -ceil_div : 0;
  return significand < 0 ? -magnitude : magnitude;
}

INLINE int higher(int a, int b) { return a > b ? a : b; }

// One step, whatever the numbers are: of n products, a and b of which have the strides a_step and b_step.
static __attribute__((noinline)) float any_step(float c, const float* a, int64_t a_step, const float* b, int64_t b_step, int n) {
  double special = double(c);
  bool finite = c - c == 0;
  int top = c != 0 && finite ? exponent_of(c, -126) : ABSENT;
  for (int k = 0; k < n; ++k) {
    const float x = a[k * a_step], y = b[k * b_step];
    finite = finite && x - x == 0 && y - y == 0;
    special += double(x) * double(y);
    if (!(x == 0 || y == 0)) top = higher(top, exponent_of(x, LEFT_MIN_EXPONENT) + exponent_of(y, RIGHT_MIN_EXPONENT));
  }
  if (!finite) return float(special);
  top = higher(top, FLOOR);
  int64_t sum = c == 0 ? 0 : truncated(__builtin_ldexp(double(c), 23 - exponent_of(c, -126)), 23, exponent_of(c, -126), top);
  for (int k = 0; k < n; ++k) {
    const float x = a[k * a_step], y = b[k * b_step];
    if (x == 0 || y == 0) continue;
    const int ex = exponent_of(x, LEFT_MIN_EXPONENT), ey = exponent_of(y, RIGHT_MIN_EXPONENT);
    sum += truncated(__builtin_ldexp(double(x), 10 - ex) * __builtin_ldexp(double(y), 10 - ey), 20, ex + ey, top);
  }
  const double exact = __builtin_ldexp(double(sum), top - FRACTION);  // |sum| < 2^32: exact
  const double size = exact < 0 ? -exact : exact;
  if (size >= 0x1p128) return exact < 0 ? -__builtin_inff() : __builtin_inff();
  if (size >= 0x1p-126) {
    uint64_t u;
    __builtin_memcpy(&u, &exact, 8);
    u &= ~((1ull << 29) - 1);  // 24 bits are left
    double kept;
    __builtin_memcpy(&kept, &u, 8);
    return float(kept);
  }
  const double units = double(int64_t(size * 0x1p149));
  return units == 0 ? 0.0f : float(exact < 0 ? -units * 0x1p-149 : units * 0x1p-149);
}

#if LANES == 1
template <bool FRESH, int M>
static __attribute__((noinline)) void micro(int64_t depth, const E* left, const E* right, E* tile) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < NR; ++j) {
      float c = FRESH ? 0.0f : tile[i * NR + j];
      for (int64_t k = 0; k < depth; k += UNIT_STEP)
        c = any_step(c, left + k * MR + i, MR, right + k * NR + j, NR, int(min(UNIT_STEP, depth - k)));
      tile[i * NR + j] = c;
    }
}
#else
// Where E lies between these, a product that rounds in f32 is truncated to 0, a sum is a normal number, and scales are exact:
// so a few vector operations a product do.
constexpr int LOWEST = -100, HIGHEST = 90;
#if TOKITAI_ISA_AVX512
INLINE bool any_lane(B x) { return _mm512_test_epi32_mask(__m512i(x), __m512i(x)) != 0; }
#else
INLINE bool any_lane(B x) {
  int32_t any = 0;
  for (int i = 0; i < LANES; ++i) any |= x[i];
  return any != 0;
}
#endif
// (one + other) * unit, truncated to 24 bits: the sum, whose magnitude is below 2^32, need not fit into 32 bits.
#if TOKITAI_ISA_AVX512
INLINE V truncated_sum(I one, I other, V unit) {
  const I sign = ((one >> 1) + (other >> 1)) >> 31;  // -1 where the sum is negative, and sometimes where it is zero
  const V size = _mm512_cvt_roundepu32_ps(__m512i(((one + other) ^ sign) - sign), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return fma(from_bits(bits(size) | (to_u32(sign) & 0x80000000u)), unit, splat(0.0f));  // takes -0 to +0
}
#else
typedef double Wide __attribute__((vector_size(8 * LANES)));
typedef uint64_t WideBits __attribute__((vector_size(8 * LANES)));
INLINE V truncated_sum(I one, I other, V unit) {
  const Wide sum = __builtin_convertvector(one, Wide) + __builtin_convertvector(other, Wide);
  return __builtin_convertvector(Wide(WideBits(sum) & ~((1ull << 29) - 1)), V) * unit;
}
#endif

// The exponents of two neighbours along k, in 16 bits each: twice as many products are compared at a time.
typedef int16_t Exponents __attribute__((vector_size(4 * LANES)));
INLINE I both_of(I even, I odd) { return (even & 0xFFFF) | to_i32(to_u32(odd) << 16); }
INLINE I larger_of(I x, I y) { return where(lt(x, y), y, x); }

// One step of a vector of accumulators whose exponent E is `bounded`: of the values a, of stride MR, and the vectors b.
INLINE V vector_step(V c, const float* a, const V* b, I bounded) {
  // Eight products are below 2^30 such units, the accumulator below 2^26.
  const V scale = from_bits(to_u32(splat(127 + FRACTION) - bounded) << 23);
  I sums[2] = {__builtin_convertvector(c * scale, I), splat(int32_t(0))};
#pragma GCC unroll 16
  for (int k = 0; k < UNIT_STEP; ++k) sums[k % 2] += __builtin_convertvector(b[k] * splat(a[k * MR]) * scale, I);
  return truncated_sum(sums[0], sums[1], from_bits(to_u32(splat(127 - FRACTION) + bounded) << 23));
}

// Steps behind the last product are filled with zeros, which change nothing.
template <bool FRESH, int M>
static __attribute__((noinline)) void micro(int64_t depth, const E* left, const E* right, E* tile) {
  constexpr int PAIRS = UNIT_STEP / 2, PANEL = UNIT_STEP * MR;
  static_assert(PANEL % LANES == 0, "a step of a panel is whole vectors");
  float left_end[PANEL], right_end[UNIT_STEP * NR];
  int32_t each[PANEL], a_exponents[PAIRS * MR];
  for (int64_t k0 = 0; k0 < depth; k0 += UNIT_STEP, left += UNIT_STEP * MR, right += UNIT_STEP * NR) {
    const int n = int(min(UNIT_STEP, depth - k0));
    const E *a = left, *columns = right;
    if (n < UNIT_STEP) {
      for (int at = 0; at < PANEL; ++at) left_end[at] = at < n * MR ? left[at] : 0.0f;
      for (int at = 0; at < UNIT_STEP * NR; ++at) right_end[at] = at < n * NR ? right[at] : 0.0f;
      a = left_end, columns = right_end;
    }
    for (int at = 0; at < PANEL; at += LANES) store(each + at, exponent_of(get(a + at), LEFT_MIN_EXPONENT));
    for (int k = 0; k < PAIRS; ++k)
      for (int i = 0; i < MR; ++i)
        a_exponents[k * MR + i] = (each[2 * k * MR + i] & 0xFFFF) | int32_t(uint32_t(each[(2 * k + 1) * MR + i]) << 16);
    for (int j = 0; j < NV; ++j) {
      V b[UNIT_STEP];
      Exponents b_exponents[PAIRS];
      for (int k = 0; k < PAIRS; ++k) {
        const V even = get(columns + 2 * k * NR + j * LANES), odd = get(columns + (2 * k + 1) * NR + j * LANES);
        b[2 * k] = even, b[2 * k + 1] = odd;
        b_exponents[k] = Exponents(both_of(exponent_of(even, RIGHT_MIN_EXPONENT), exponent_of(odd, RIGHT_MIN_EXPONENT)));
      }
      for (int i = 0; i < M; ++i) {
        E* const accumulator = tile + i * NR + j * LANES;
        const V c = FRESH && k0 == 0 ? splat(0.0f) : get(accumulator);
        Exponents both = Exponents(splat(a_exponents[i])) + b_exponents[0];
#pragma GCC unroll 16
        for (int k = 1; k < PAIRS; ++k) {
          const Exponents other = Exponents(splat(a_exponents[k * MR + i])) + b_exponents[k];
          both = both < other ? other : both;
        }
        const I even = to_i32(to_u32(I(both)) << 16) >> 16, odd = I(both) >> 16;
        const I top = larger_of(larger_of(even, odd), exponent_of(c, -126)), bounded = larger_of(top, splat(LOWEST));
        const B other = logical_or(lt(splat(HIGHEST), top), logical_and(lt(top, bounded), lt(splat(ABSENT / 2), top)));
        if (any_lane(other)) {
          for (int lane = 0; lane < LANES; ++lane) {
            const float one = FRESH && k0 == 0 ? 0.0f : accumulator[lane];
            accumulator[lane] = any_step(one, left + i, MR, right + j * LANES + lane, NR, n);
          }
        } else {
          put(accumulator, vector_step(c, a + i, b, bounded));
        }
      }
    }
  }
}
#endif
#endif

}  // namespace tokitai
