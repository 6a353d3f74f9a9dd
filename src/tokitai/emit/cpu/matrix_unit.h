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
constexpr float ABSENT = -4096.0f, NON_FINITE = 65536.0f;  // the exponents of zeros, and of infinities and NaN, beside zeros too

// The exponent of a value of a format whose smallest exponent is min_exponent.
INLINE float exponent_of(float x, int min_exponent) {
  const int field = int(bits(x) >> 23 & 255u);
  return x == 0 ? ABSENT : field == 255 ? NON_FINITE : float(field - 127 > min_exponent ? field - 127 : min_exponent);
}
#if LANES > 1
INLINE V exponent_of(V x, int min_exponent) {
  const V field = exponent(x), smallest = splat(float(min_exponent));
  const V finite = where(lt(field, smallest), smallest, field);
  return where(eq(x, splat(0.0f)), splat(ABSENT), where(eq(field, splat(128.0f)), splat(NON_FINITE), finite));
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
  int top = c != 0 && finite ? int(exponent_of(c, -126)) : int(ABSENT);
  for (int k = 0; k < n; ++k) {
    const float x = a[k * a_step], y = b[k * b_step];
    finite = finite && x - x == 0 && y - y == 0;
    special += double(x) * double(y);
    if (!(x == 0 || y == 0)) top = higher(top, int(exponent_of(x, LEFT_MIN_EXPONENT) + exponent_of(y, RIGHT_MIN_EXPONENT)));
  }
  if (!finite) return float(special);
  top = higher(top, FLOOR);
  int64_t sum = c == 0 ? 0 : truncated(__builtin_ldexp(double(c), 23 - int(exponent_of(c, -126))), 23, int(exponent_of(c, -126)), top);
  for (int k = 0; k < n; ++k) {
    const float x = a[k * a_step], y = b[k * b_step];
    if (x == 0 || y == 0) continue;
    const int ex = int(exponent_of(x, LEFT_MIN_EXPONENT)), ey = int(exponent_of(y, RIGHT_MIN_EXPONENT));
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
constexpr float LOWEST = -100.0f, HIGHEST = 90.0f;
#if TOKITAI_ISA_AVX512
INLINE bool any_lane(B x) { return _mm512_test_epi32_mask(__m512i(x), __m512i(x)) != 0; }
#else
INLINE bool any_lane(B x) {
  int32_t any = 0;
  for (int i = 0; i < LANES; ++i) any |= x[i];
  return any != 0;
}
#endif
typedef double Wide __attribute__((vector_size(8 * LANES)));
typedef uint64_t WideBits __attribute__((vector_size(8 * LANES)));

// One step of a vector of accumulators whose exponent E is `bounded`: of the values a, of stride MR, and the vectors b.
INLINE V vector_step(V c, const float* a, const V* b, V bounded) {
  // Eight products are below 2^30 such units, the accumulator below 2^26.
  const V scale = power_of_two(splat(float(FRACTION)) - bounded);
  I sums[2] = {__builtin_convertvector(c * scale, I), splat(int32_t(0))};
#pragma GCC unroll 16
  for (int k = 0; k < UNIT_STEP; ++k) sums[k % 2] += __builtin_convertvector(b[k] * splat(a[k * MR]) * scale, I);
  const Wide sum = __builtin_convertvector(sums[0], Wide) + __builtin_convertvector(sums[1], Wide);
  const Wide kept = Wide(WideBits(sum) & ~((1ull << 29) - 1));  // 24 bits are left
  return __builtin_convertvector(kept, V) * power_of_two(bounded - splat(float(FRACTION)));
}

// Steps behind the last product are filled with zeros, which change nothing.
template <bool FRESH, int M>
static __attribute__((noinline)) void micro(int64_t depth, const E* left, const E* right, E* tile) {
  float a[UNIT_STEP * MR], a_exponent[UNIT_STEP * MR];
  for (int64_t k0 = 0; k0 < depth; k0 += UNIT_STEP, left += UNIT_STEP * MR, right += UNIT_STEP * NR) {
    const int n = int(min(UNIT_STEP, depth - k0));
    for (int at = 0; at < UNIT_STEP * MR; ++at) {
      a[at] = at < n * MR ? left[at] : 0.0f;
      a_exponent[at] = exponent_of(a[at], LEFT_MIN_EXPONENT);
    }
    for (int j = 0; j < NV; ++j) {
      V b[UNIT_STEP], b_exponent[UNIT_STEP];
      for (int k = 0; k < UNIT_STEP; ++k) {
        b[k] = k < n ? get(right + k * NR + j * LANES) : splat(0.0f);
        b_exponent[k] = exponent_of(b[k], RIGHT_MIN_EXPONENT);
      }
      for (int i = 0; i < M; ++i) {
        E* const accumulator = tile + i * NR + j * LANES;
        const V c = FRESH && k0 == 0 ? splat(0.0f) : get(accumulator);
        V tops[2] = {exponent_of(c, -126), splat(ABSENT)};
#pragma GCC unroll 16
        for (int k = 0; k < UNIT_STEP; ++k)
          tops[k % 2] = larger(tops[k % 2], b_exponent[k] + splat(a_exponent[k * MR + i]));
        const V top = larger(tops[0], tops[1]), bounded = larger(top, splat(LOWEST));
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
