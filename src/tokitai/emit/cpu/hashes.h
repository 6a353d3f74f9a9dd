// Values are 64-bit hashes: the same kernel then returns which expression it evaluated. See tokitai/meaning/structure.py,
// which holds the same mixing and the same tags, written independently.
#pragma once
#include "lanes.h"

namespace tokitai {

typedef uint64_t Stored;
struct S { uint64_t h; };
typedef S SB;  // a condition on values is a hash as well
struct f16 { uint64_t h; };
struct bf16 { uint64_t h; };
struct f32 { uint64_t h; };

enum Tag : uint64_t {
  ADD = 1, SUB, MUL, DIV, FMA, SQRT, NEG, ABS, MAXIMUM, MINIMUM, ROUND_EVEN, POWER_OF_TWO, EXPONENT, SIGNIFICAND,
  LT, LE, EQ, NE, LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, WHERE, CONVERT, ROUND_F16, ROUND_BF16, ROW_MAX, CONST, STOCHASTIC_F16,
  STOCHASTIC_BF16
};
constexpr uint64_t ODD = 0x9E3779B97F4A7C15ull;
constexpr S NEUTRAL_SUM = {0}, NEUTRAL_MAX = {0};

INLINE uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
INLINE S unary(Tag t, S a) { return {mix(a.h + t * ODD)}; }
INLINE S symmetric(Tag t, S a, S b) { return {mix(mix(a.h + t * ODD) + mix(b.h + t * ODD))}; }
INLINE S ordered(Tag t, S a, S b) { return {mix(mix(a.h + t * ODD) + mix(b.h ^ (t * ODD)) * 3)}; }
INLINE S third(Tag t, S pair, S c) { return {mix(pair.h + mix(c.h ^ (t * ODD)) * 5)}; }

INLINE S constant(float x, S) {
  return unary(CONST, S{bits_of(x)});
}
INLINE S to_value(int32_t a, S) { return unary(CONVERT, S{uint64_t(int64_t(a))}); }
INLINE S to_value(int64_t a, S) { return unary(CONVERT, S{uint64_t(a)}); }
INLINE S to_value(uint32_t a, S) { return unary(CONVERT, S{a}); }

INLINE S round_stochastic_f16(S x, uint32_t bits) { return ordered(STOCHASTIC_F16, x, to_value(bits, S{})); }
INLINE S round_stochastic_bf16(S x, uint32_t bits) { return ordered(STOCHASTIC_BF16, x, to_value(bits, S{})); }

// Padding is neutral: a sum with it is the other operand.
INLINE S add(S a, S b) { return a.h == 0 ? b : b.h == 0 ? a : symmetric(ADD, a, b); }
INLINE S sub(S a, S b) { return ordered(SUB, a, b); }
INLINE S mul(S a, S b) { return symmetric(MUL, a, b); }
INLINE S div(S a, S b) { return ordered(DIV, a, b); }
INLINE S maximum(S a, S b) { return symmetric(MAXIMUM, a, b); }
INLINE S minimum(S a, S b) { return symmetric(MINIMUM, a, b); }
INLINE SB lt(S a, S b) { return ordered(LT, a, b); }
INLINE SB le(S a, S b) { return ordered(LE, a, b); }
INLINE SB eq(S a, S b) { return symmetric(EQ, a, b); }
INLINE SB ne(S a, S b) { return symmetric(NE, a, b); }
INLINE SB logical_and(SB a, SB b) { return symmetric(LOGICAL_AND, a, b); }
INLINE SB logical_or(SB a, SB b) { return symmetric(LOGICAL_OR, a, b); }
INLINE SB logical_not(SB a) { return unary(LOGICAL_NOT, a); }
INLINE S sqrt(S a) { return unary(SQRT, a); }
INLINE S neg(S a) { return unary(NEG, a); }
INLINE S abs(S a) { return unary(ABS, a); }
INLINE S round_even(S a) { return unary(ROUND_EVEN, a); }
INLINE S power_of_two(S a) { return unary(POWER_OF_TWO, a); }
INLINE S exponent(S a) { return unary(EXPONENT, a); }
INLINE S significand(S a) { return unary(SIGNIFICAND, a); }
INLINE S round_to_f16(S a) { return unary(ROUND_F16, a); }
INLINE S round_to_bf16(S a) { return unary(ROUND_BF16, a); }
INLINE S round_to_f32(S a) { return a; }
INLINE S fma(S a, S b, S c) { return third(FMA, symmetric(FMA, a, b), c); }
INLINE S where(SB c, S a, S b) { return third(WHERE, ordered(WHERE, a, b), c); }
INLINE S where(bool c, S a, S b) { return c ? a : b; }
// A maximum's bits do not depend on the order: hashes of the leaves are added up, then mixed once.
INLINE S leaf_max(S a) { return unary(ROW_MAX, a); }
INLINE S join_max(S a, S b) { return {a.h + b.h}; }
INLINE S done_max(S a) { return {mix(a.h)}; }

INLINE S load1(const f16* p) { return {p->h}; }
INLINE S load1(const bf16* p) { return {p->h}; }
INLINE S load1(const f32* p) { return {p->h}; }
INLINE S load1(const Stored* p) { return {*p}; }
INLINE void store1(f16* p, S x) { p->h = round_to_f16(x).h; }
INLINE void store1(bf16* p, S x) { p->h = round_to_bf16(x).h; }
INLINE void store1(f32* p, S x) { p->h = x.h; }
INLINE void store1(Stored* p, S x) { *p = x.h; }

#if LANES == 1
typedef S V;
typedef SB B;
INLINE V splat(S x) { return x; }
template <class P> INLINE V load(const P* p) { return load1(p); }
template <class P> INLINE void store(P* p, V x) { store1(p, x); }
template <int D, int SIDE> INLINE V half(V a, V b) { return SIDE ? b : a; }
INLINE S first(V a) { return a; }
#else
struct V { S lane[LANES]; };
typedef V B;

template <class F> INLINE V lanewise(const F& f) {
  V r;
  for (int i = 0; i < LANES; ++i) r.lane[i] = f(i);
  return r;
}
INLINE V splat(S x) { return lanewise([&](int) { return x; }); }
INLINE V constant(float x, V) { return splat(constant(x, S{})); }
#define UNARY(NAME) INLINE V NAME(V a) { return lanewise([&](int i) { return NAME(a.lane[i]); }); }
#define BINARY(NAME) INLINE V NAME(V a, V b) { return lanewise([&](int i) { return NAME(a.lane[i], b.lane[i]); }); }
#define TERNARY(NAME) \
  INLINE V NAME(V a, V b, V c) { return lanewise([&](int i) { return NAME(a.lane[i], b.lane[i], c.lane[i]); }); }
UNARY(sqrt) UNARY(neg) UNARY(abs) UNARY(round_even) UNARY(power_of_two) UNARY(exponent) UNARY(significand)
UNARY(logical_not) UNARY(round_to_f16) UNARY(round_to_bf16) UNARY(round_to_f32) UNARY(leaf_max)
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div) BINARY(maximum) BINARY(minimum) BINARY(lt) BINARY(le) BINARY(eq)
BINARY(ne) BINARY(logical_and) BINARY(logical_or) BINARY(join_max)
TERNARY(fma) TERNARY(where)
INLINE V where(M c, V a, V b) { return lanewise([&](int i) { return c[i] ? a.lane[i] : b.lane[i]; }); }
INLINE V to_value(I a, V) { return lanewise([&](int i) { return to_value(int32_t(a[i]), S{}); }); }
INLINE V round_stochastic_f16(V x, U b) { return lanewise([&](int i) { return round_stochastic_f16(x.lane[i], b[i]); }); }
INLINE V round_stochastic_bf16(V x, U b) { return lanewise([&](int i) { return round_stochastic_bf16(x.lane[i], b[i]); }); }
INLINE V to_value(U a, V) { return lanewise([&](int i) { return to_value(uint32_t(a[i]), S{}); }); }
template <class P> INLINE V load_hashes(const P* p) { return lanewise([&](int i) { return load1(p + i); }); }
template <class P> INLINE void store_hashes(P* p, V x) { for (int i = 0; i < LANES; ++i) store1(p + i, x.lane[i]); }
INLINE V load(const f16* p) { return load_hashes(p); }
INLINE V load(const bf16* p) { return load_hashes(p); }
INLINE V load(const f32* p) { return load_hashes(p); }
INLINE V load(const Stored* p) { return load_hashes(p); }
INLINE void store(f16* p, V x) { store_hashes(p, x); }
INLINE void store(bf16* p, V x) { store_hashes(p, x); }
INLINE void store(f32* p, V x) { store_hashes(p, x); }
INLINE void store(Stored* p, V x) { store_hashes(p, x); }
template <int D, int SIDE> INLINE V half(V a, V b) {
  return lanewise([&](int i) {
    const int lane = half_lane<D, SIDE>(i);
    return lane < LANES ? a.lane[lane] : b.lane[lane - LANES];
  });
}
INLINE S first(V a) { return a.lane[0]; }
#endif

struct Max { V sum = splat(NEUTRAL_MAX); };
INLINE void take(Max& m, V x) { m.sum = join_max(m.sum, x); }
INLINE V lanes_of(const Max& m) { return m.sum; }
template <class P> INLINE void stream(P* p, V x) { store(p, x); }

}  // namespace tokitai
