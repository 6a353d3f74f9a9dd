// How many lanes a vector has, and the names shared by numbers and hashes.
//
// A kernel's source uses S (one value), V (a vector of LANES values), I and U (integers beside V), M (conditions on
// integers) and B (conditions on values). `numbers.h` makes values f32; `hashes.h` makes them 64-bit hashes.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define INFINITE __builtin_inff()

#if defined(TOKITAI_LANES)  // more lanes than the machine has, to run what wider machines run
#define LANES TOKITAI_LANES
#elif TOKITAI_ISA_AVX512
#define LANES 16
#elif TOKITAI_ISA_AVX2
#define LANES 8
#elif TOKITAI_ISA_NEON
#define LANES 4
#elif TOKITAI_ISA_SCALAR
#define LANES 1
#else
#error "one of TOKITAI_ISA_AVX512, _AVX2, _NEON, _SCALAR must be defined"
#endif

// Hashes use no vector instruction. For numbers, GCC takes a second to read <immintrin.h>, as much of it is about instructions
// that are not used here: the headers that it includes are included instead.
#if TOKITAI_STRUCTURE || TOKITAI_ISA_SCALAR
#elif TOKITAI_ISA_NEON
#include <arm_neon.h>
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9 && __GNUC__ <= 15
#define _IMMINTRIN_H_INCLUDED
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>
#if TOKITAI_ISA_AVX512
#include <avx512fintrin.h>
#endif
#else
#include <immintrin.h>
#endif

#define NOINLINE_LAMBDA __attribute__((noinline))
#if TOKITAI_STRUCTURE  // speed matters little there, and calls compile ten times faster
#define INLINE static inline __attribute__((unused))
#define INLINE_LAMBDA
#else
#define INLINE static inline __attribute__((always_inline, unused))
#define INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace tokitai {

INLINE uint32_t bits_of(float a) {
  uint32_t u;
  __builtin_memcpy(&u, &a, 4);
  return u;
}

// Lanes that hold elements: all of a vector, or the first n of the last one of a row.
struct Full {
  static constexpr bool full = true;
  static constexpr int64_t count = LANES;
};
struct Part {
  static constexpr bool full = false;
  int64_t count;
};

// Where lane i of half<D, SIDE>(a, b) comes from, for lanes numbered through a and b. The sum of both halves has
// partners at distance D added; after D = 1, 2, ... LANES / 2 over LANES vectors, lane i has the sum of vector i.
// Four lanes are one x86 or NEON register's shuffle: even and odd ones. Beyond, lanes with the bit D are b's.
template <int D, int SIDE> constexpr int half_lane(int i) {
  if (D <= 2) return i / 4 * 4 + i % 2 * 2 + SIDE + (i % 4 < 2 ? 0 : LANES);
  return (i & D ? LANES : 0) + (i ^ (SIDE * D));
}

// 0, 1 ... n - 1 as template arguments.
template <int... i> struct Sequence {};
template <int n, int... i> struct Counted : Counted<n - 1, n - 1, i...> {};
template <int... i> struct Counted<0, i...> { typedef Sequence<i...> type; };

#if LANES > 1
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef I M;  // all bits set where true
INLINE I splat(int32_t x) { return x - I{}; }
INLINE U splat(uint32_t x) { return x - U{}; }
INLINE M splat(bool x) { return splat(x ? -1 : 0); }
INLINE I int_add(I a, I b) { return a + b; }
INLINE I int_sub(I a, I b) { return a - b; }
INLINE I int_mul(I a, I b) { return a * b; }
INLINE U int_add(U a, U b) { return a + b; }
INLINE U int_sub(U a, U b) { return a - b; }
INLINE U int_mul(U a, U b) { return a * b; }
INLINE U int_xor(U a, U b) { return a ^ b; }
INLINE U int_and(U a, U b) { return a & b; }
INLINE U int_shift_right(U a, U n) { return a >> n; }
INLINE U int_mulhi(U a, U b) {
  U high;
  for (int i = 0; i < LANES; ++i) high[i] = uint32_t((uint64_t(a[i]) * b[i]) >> 32);
  return high;
}
INLINE M lt(I a, I b) { return a < b; }
INLINE M le(I a, I b) { return a <= b; }
INLINE M eq(I a, I b) { return a == b; }
INLINE M ne(I a, I b) { return a != b; }
INLINE M lt(U a, U b) { return M(a < b); }
INLINE M le(U a, U b) { return M(a <= b); }
INLINE M eq(U a, U b) { return M(a == b); }
INLINE M ne(U a, U b) { return M(a != b); }
INLINE M logical_and(M a, M b) { return a & b; }
INLINE M logical_or(M a, M b) { return a | b; }
INLINE M logical_not(M a) { return ~a; }
INLINE I where(M c, I a, I b) { return c ? a : b; }
INLINE U where(M c, U a, U b) { return c ? a : b; }
INLINE I load(const int32_t* p) { I v; __builtin_memcpy(&v, p, sizeof v); return v; }
INLINE U load(const uint32_t* p) { U v; __builtin_memcpy(&v, p, sizeof v); return v; }
INLINE void store(int32_t* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
INLINE void store(uint32_t* p, U x) { __builtin_memcpy(p, &x, sizeof x); }
INLINE U to_u32(I a) { return U(a); }
INLINE I to_i32(U a) { return I(a); }
// 0, 1, 2 ... from column c on.
INLINE I column_index(int64_t c) {
  I index;
  for (int i = 0; i < LANES; ++i) index[i] = int32_t(c) + i;
  return index;
}
// 32 bits of the indices from `index` on, lower or upper.
template <int word> INLINE U element_word(int64_t index) {
  const U low = U(column_index(0)) + uint32_t(index);
  if constexpr (word == 0) return low;
  else return splat(uint32_t(index >> 32)) + where(lt(low, splat(uint32_t(index))), splat(1u), splat(0u));
}
#else
typedef int32_t I;
typedef uint32_t U;
typedef bool M;
INLINE I column_index(int64_t c) { return int32_t(c); }
INLINE I splat(int32_t x) { return x; }
INLINE U splat(uint32_t x) { return x; }
INLINE M splat(bool x) { return x; }
template <int word> INLINE U element_word(int64_t index) { return uint32_t(index >> (32 * word)); }
#endif

}  // namespace tokitai
#include "integers.h"
namespace tokitai {

// Non-temporal stores are in memory before the call ends.
#if defined(__x86_64__)
INLINE void finish_stores() { __builtin_ia32_sfence(); }
#else
INLINE void finish_stores() {}
#endif

// The default IEEE 754 mode for the life of this object, whatever a library has switched on; then the caller's again.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1F80); }  // nearest, no flush to zero, exceptions masked
  ~FloatMode() { __builtin_ia32_ldmxcsr(saved); }
 private:
  unsigned saved;
#elif defined(__aarch64__)
  FloatMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
  }
  ~FloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved)); }
 private:
  uint64_t saved;
#else
#error "the floating-point mode of this processor cannot be set"
#endif
};

}  // namespace tokitai
