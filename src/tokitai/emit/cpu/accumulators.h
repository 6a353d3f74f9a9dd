// The accumulators of a matrix product: vectors X of accumulators E, which are f32 or f64 numbers, or hashes.
#pragma once
#include "rows.h"

namespace tokitai {

constexpr int XLANES = ACCUMULATORS_F64 && LANES > 1 ? LANES / 2 : LANES;

// The micro-kernel keeps MR x NV vectors of accumulators in registers, and reads NV vectors and one element at a time.
#if LANES == 16
constexpr int MR = 12, NV = 2;
#elif LANES == 8
constexpr int MR = 6, NV = 2;
#elif LANES == 4
constexpr int MR = 8, NV = 2;
#else
constexpr int MR = 4, NV = 2;
#endif
constexpr int NR = NV * XLANES;
static_assert(NR % LANES == 0, "a row of accumulators is whole vectors of results");

// A chain begins with NEUTRAL, so that its first step is the product, rounded.
#if TOKITAI_STRUCTURE
typedef S E;
struct X { S lane[XLANES]; };
constexpr E NEUTRAL = {0};
INLINE E empty_sum() { return constant(0.0f, S{}); }
constexpr Tag WIDEN_F64 = Tag(31), ROUND_F32 = Tag(32);
INLINE E widened(S x) { return ACCUMULATORS_F64 ? unary(WIDEN_F64, x) : x; }
INLINE X repeat(E x) {
  X r;
  for (int i = 0; i < XLANES; ++i) r.lane[i] = x;
  return r;
}
INLINE X chain(E a, X b, X c) {
  for (int i = 0; i < XLANES; ++i) c.lane[i] = c.lane[i].h == 0 ? mul(a, b.lane[i]) : fma(a, b.lane[i], c.lane[i]);
  return c;
}
INLINE X add_sums(X a, X b) {
  for (int i = 0; i < XLANES; ++i) a.lane[i] = add(a.lane[i], b.lane[i]);
  return a;
}
INLINE V result_of(const E* p) {
  Stored row[LANES];
  for (int i = 0; i < LANES; ++i) store1(row + i, ACCUMULATORS_F64 ? unary(ROUND_F32, p[i]) : p[i]);
  return load(row);
}
#elif ACCUMULATORS_F64
typedef double E;
constexpr E NEUTRAL = -0.0;
INLINE E empty_sum() { return 0.0; }
INLINE E widened(S x) { return x; }
#if LANES == 1
typedef double X;
INLINE X repeat(E x) { return x; }
INLINE X chain(E a, X b, X c) { return __builtin_fma(a, b, c); }
INLINE V result_of(const E* p) { return V(*p); }
#else
typedef double X __attribute__((vector_size(8 * XLANES)));
typedef double Wide __attribute__((vector_size(8 * LANES)));
INLINE X repeat(E x) { return x - X{}; }
#if TOKITAI_ISA_AVX512
INLINE X chain(E a, X b, X c) { return _mm512_fmadd_pd(repeat(a), b, c); }
#elif TOKITAI_ISA_AVX2
INLINE X chain(E a, X b, X c) {
  REGISTER(X, _mm256_fmadd_pd(_mm256_set1_pd(a), part<__m256d>(b, k), part<__m256d>(c, k)));
}
#elif TOKITAI_ISA_NEON
INLINE X chain(E a, X b, X c) { return X(vfmaq_f64(float64x2_t(c), float64x2_t(repeat(a)), float64x2_t(b))); }
#endif
INLINE V result_of(const E* p) {
  Wide w;
  __builtin_memcpy(&w, p, sizeof w);
  return __builtin_convertvector(w, V);
}
#endif
INLINE X add_sums(X a, X b) { return a + b; }
#else
typedef S E;
typedef V X;
constexpr E NEUTRAL = -0.0f;
INLINE E empty_sum() { return 0.0f; }
INLINE E widened(S x) { return x; }
INLINE X repeat(E x) { return splat(x); }
INLINE X chain(E a, X b, X c) { return fma(splat(a), b, c); }
INLINE X add_sums(X a, X b) { return add(a, b); }
INLINE V result_of(const E* p) { return load(p); }
#endif
INLINE X get(const E* p) { X x; __builtin_memcpy(&x, p, sizeof x); return x; }
INLINE void put(E* p, X x) { __builtin_memcpy(p, &x, sizeof x); }

}  // namespace tokitai
