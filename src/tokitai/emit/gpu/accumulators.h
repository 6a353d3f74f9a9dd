// The accumulators E of a matrix product, which are f32 or f64 numbers, or hashes; and how operands, each element of which
// a tile uses many times, are read.
#pragma once
#include "rows.h"

#if TOKITAI_HIP || TOKITAI_SIM
#define __fma_rn(a, b, c) __builtin_fma(a, b, c)
#define __dadd_rn(a, b) ((a) + (b))
#define __double2float_rn(a) float(a)
#endif

namespace tokitai {

// A chain begins with NEUTRAL, so that its first step is the product, rounded. Padding past the end of k makes a product of
// -0, which leaves every sum as it is; hashes recognize a pair of paddings, and no other.
#if TOKITAI_STRUCTURE
typedef S E;
constexpr E NEUTRAL = {0};
constexpr uint64_t LEFT_PADDING = 0x5A5A5A5A5A5A5A5Aull, RIGHT_PADDING = 0xC3C3C3C3C3C3C3C3ull;
constexpr Tag WIDEN_F64 = Tag(31), ROUND_F32 = Tag(32);
template <class P, bool LEFT> INLINE P k_padding() { return {LEFT ? LEFT_PADDING : RIGHT_PADDING}; }
INLINE E empty_sum() { return constant(0.0f, S{}); }
INLINE E widened(S x) {
  return ACCUMULATORS_F64 && x.h != LEFT_PADDING && x.h != RIGHT_PADDING ? unary(WIDEN_F64, x) : x;
}
INLINE E chain(E a, E b, E c) {
  if (a.h == LEFT_PADDING && b.h == RIGHT_PADDING) return c;
  return c.h == 0 ? mul(a, b) : fma(a, b, c);
}
INLINE E add_sums(E a, E b) { return add(a, b); }
INLINE S result_of(E x) { return ACCUMULATORS_F64 ? unary(ROUND_F32, x) : x; }
#else
template <class P> struct Zeros;
template <> struct Zeros<f16> { static INLINE f16 minus() { return {0x8000}; } };
template <> struct Zeros<bf16> { static INLINE bf16 minus() { return {0x8000}; } };
template <> struct Zeros<f32> { static INLINE f32 minus() { return {-0.0f}; } };
template <class P, bool LEFT> INLINE P k_padding() { return LEFT ? Zeros<P>::minus() : P{}; }
#if ACCUMULATORS_F64
typedef double E;
constexpr E NEUTRAL = -0.0;
INLINE E empty_sum() { return 0.0; }
INLINE E widened(S x) { return x; }
INLINE E chain(E a, E b, E c) { return __fma_rn(a, b, c); }
INLINE E add_sums(E a, E b) { return __dadd_rn(a, b); }
INLINE S result_of(E x) { return __double2float_rn(x); }
#else
typedef S E;
constexpr E NEUTRAL = -0.0f;
INLINE E empty_sum() { return 0.0f; }
INLINE E widened(S x) { return x; }
INLINE E chain(E a, E b, E c) { return fma(a, b, c); }
INLINE E add_sums(E a, E b) { return add(a, b); }
INLINE S result_of(E x) { return x; }
#endif
#endif

#if MATRIX_UNITS
union Word {
  E value;
  uint64_t bits;
};
INLINE uint64_t word_of(E x) { Word w; w.value = x; return w.bits; }
INLINE E of_word(uint64_t u) { Word w; w.bits = u; return w.value; }
INLINE E from_lane(E x, int lane) { return of_word(exchange(word_of(x), (thread_index() ^ lane) & 31)); }
// c += a b, of 16 x 4 and 4 x 8, along k in order: lane 4 g + t of a warp has rows g and g + 8 of a at column t, row t of b
// at column g, and rows g and g + 8 of c at the columns 2 t and 2 t + 1.
INLINE void multiply_in_order(E& c0, E& c1, E& c2, E& c3, E a0, E a1, E b) {
  const int lane = thread_index() & 31, row = lane & ~3, column = 8 * (lane & 3);
  ROLLED for (int k = 0; k < 4; ++k) {
    const E upper = from_lane(a0, row + k), lower = from_lane(a1, row + k);
    const E first = from_lane(b, column + k), second = from_lane(b, column + 4 + k);
    c0 = chain(upper, first, c0), c1 = chain(upper, second, c1);
    c2 = chain(lower, first, c2), c3 = chain(lower, second, c3);
  }
}
// The same by an FP64 matrix unit: a test on the device shows that it is before any is used.
#if CUDA_ASM && !TOKITAI_STRUCTURE
INLINE void multiply_add(E& c0, E& c1, E& c2, E& c3, E a0, E a1, E b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3) : "d"(a0), "d"(a1), "d"(b));
}
#else
INLINE void multiply_add(E& c0, E& c1, E& c2, E& c3, E a0, E a1, E b) { multiply_in_order(c0, c1, c2, c3, a0, a1, b); }
#endif
#endif

typedef E W;  // the elements of an operand's K-tile
template <class P> INLINE W k_tile_value(P x) { return widened(load1(&x)); }

// Neighbouring accumulators that one access to shared memory reads.
constexpr int QUAD = 16 / int(sizeof(E));
struct alignas(16) Quad {
  E e[QUAD];
};
constexpr int PACK = QUAD;
typedef Quad Pack;

}  // namespace tokitai
