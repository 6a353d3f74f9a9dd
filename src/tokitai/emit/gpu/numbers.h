// Values are f32 numbers. Every function is one IEEE 754 operation, rounded once to nearest even.
#pragma once
#include "lanes.h"

#if TOKITAI_HIP  // hip.h has them
#elif TOKITAI_SIM
#define CUDA_ASM 0
#define __fadd_rn(a, b) ((a) + (b))
#define __fsub_rn(a, b) ((a) - (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __fdiv_rn(a, b) ((a) / (b))
#define __fmaf_rn(a, b, c) __builtin_fmaf(a, b, c)
#define __fsqrt_rn(a) __builtin_sqrtf(a)
#define ROUND_EVEN(a) __builtin_rintf(a)
#else
#define CUDA_ASM 1
#define ROUND_EVEN(a) rintf(a)
#endif

namespace tokitai {

typedef float S;
typedef float Stored;  // a value in a workspace or a table of scalars
typedef bool SB;
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct f32 { float value; };

constexpr uint32_t INFINITY_BITS = 0x7F800000u, NAN_BITS = 0x7FC00000u;
constexpr float NEUTRAL_SUM = -0.0f;  // x + -0.0 is x, for every x
#define NEUTRAL_MAX float_of(0xFF800000u)

INLINE uint32_t bits(S a) { return bits_of(a); }
INLINE S constant(float x, S) { return x; }
INLINE S add(S a, S b) { return __fadd_rn(a, b); }
INLINE S sub(S a, S b) { return __fsub_rn(a, b); }
INLINE S mul(S a, S b) { return __fmul_rn(a, b); }
INLINE S div(S a, S b) { return __fdiv_rn(a, b); }
INLINE S fma(S a, S b, S c) { return __fmaf_rn(a, b, c); }
INLINE S sqrt(S a) { return __fsqrt_rn(a); }
#if CUDA_ASM
// A sign is no instruction of its own: others take operands with another sign. But -|a| is computed on bits, since NVRTC would
// turn comparisons of it into others; and two signs cancel.
struct Absolute {
  S value;
  INLINE operator S() const { return float_of(bits(value) & 0x7FFFFFFFu); }
};
struct Negated {
  S value;
  INLINE operator S() const { return -value; }
};
INLINE Absolute abs(S a) { return {a}; }
INLINE Negated neg(S a) { return {a}; }
INLINE S neg(Negated a) { return a.value; }
#else
INLINE S neg(S a) { return float_of(bits(a) ^ 0x80000000u); }
INLINE S abs(S a) { return float_of(bits(a) & 0x7FFFFFFFu); }
#endif
INLINE S round_even(S a) { return ROUND_EVEN(a); }
INLINE SB lt(S a, S b) { return a < b; }
INLINE SB le(S a, S b) { return a <= b; }
INLINE SB eq(S a, S b) { return a == b; }
INLINE SB ne(S a, S b) { return a != b; }
INLINE S where(bool c, S a, S b) { return c ? a : b; }
#if CUDA_ASM
// PTX: with .NaN the result is NaN where an operand is, and +0 is above -0 (from sm_80 on).
INLINE S maximum(S a, S b) { S r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
INLINE S minimum(S a, S b) { S r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
#else
// Equal operands have equal bits but for the zeros: `and` keeps -0 only if both are, `or` if either is.
INLINE S maximum(S a, S b) {
  if (a != a || b != b) return float_of(NAN_BITS);
  return a == b ? float_of(bits(a) & bits(b)) : (a > b ? a : b);
}
INLINE S minimum(S a, S b) {
  if (a != a || b != b) return float_of(NAN_BITS);
  return a == b ? float_of(bits(a) | bits(b)) : (a < b ? a : b);
}
#endif
INLINE S add_scaled(S c, S x, S scale) { return fma(x, scale, c); }  // where the product is exact, or nothing beside c
INLINE S at_least(S x, S low) { return where(lt(x, low), low, x); }
INLINE S at_most(S x, S high) { return where(lt(high, x), high, x); }
#if CUDA_ASM
// -|x| with another sign and |x| cost nothing as operands: -max(-|x|, low) is min(|x|, -low).
struct NegatedAbsolute {
  S value;
  INLINE operator S() const { return float_of(bits(value) | 0x80000000u); }
};
INLINE NegatedAbsolute neg(Absolute a) { return {a.value}; }
INLINE S neg(NegatedAbsolute a) { return float_of(bits(a.value) & 0x7FFFFFFFu); }
INLINE Negated at_least(NegatedAbsolute x, S low) { return {minimum(fabsf(x.value), -low)}; }
INLINE S at_most(Absolute x, S high) { return minimum(fabsf(x.value), high); }
#endif
// 1.5 * 2^23 + k holds k in its lowest bits; the shift drops the rest.
INLINE S power_of_two(S k) { return float_of((bits(add(k, 12582912.0f)) + 127u) << 23); }
// 2^(n + shift), both whole: one addition takes both to where the result's exponent is its lowest bits.
INLINE S power_of_two(S n, S shift) { return float_of((bits(add(n, 12582912.0f + shift)) + 127u) << 23); }
INLINE S exponent(S a) { return S(int32_t((bits(a) >> 23) & 255u) - 127); }
INLINE S significand(S a) { return float_of((bits(a) & 0x007FFFFFu) | 0x3F800000u); }
INLINE S to_value(int32_t a, S) { return S(a); }
INLINE S to_value(int64_t a, S) { return S(a); }
INLINE S to_value(uint32_t a, S) { return S(a); }
INLINE S leaf_max(S a) { return a; }
INLINE S join_max(S a, S b) { return maximum(a, b); }
INLINE S done_max(S a) { return a; }

// ------------------------------------------------------------------ stored formats
#if CUDA_ASM
INLINE S widen_f16(uint16_t h) { S r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
INLINE uint16_t narrow_f16(S x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return x != x ? uint16_t(0x7E00) : h;
}
INLINE uint16_t narrow_bf16(S x) {
  uint16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return x != x ? uint16_t(0x7FC0) : h;
}
#else
INLINE uint16_t narrow_f16(S x) {
  uint32_t b = bits(x), sign = (b >> 16) & 0x8000u, m = b & 0x7FFFFFFFu;
  if (m > INFINITY_BITS) return 0x7E00;
  if (m >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // from 65520 on to infinity
  if (m < 0x38800000u)  // below 2^-14: in [0.5, 1) the spacing of f32 is that of f16's subnormals, so one addition rounds
    return uint16_t(sign | (bits(add(float_of(m), 0.5f)) - 0x3F000000u));
  m += 0x0FFFu + ((m >> 13) & 1u);
  return uint16_t(sign | ((m >> 13) - (112u << 10)));
}
INLINE S widen_f16(uint16_t h) {
  uint32_t m = uint32_t(h & 0x7FFFu) << 13;
  uint32_t inf = (h & 0x7C00u) == 0x7C00u ? INFINITY_BITS : 0u;
  uint32_t u = bits(mul(float_of(m), 5192296858534827628530496329220096.0f)) | inf;  // 2^112: exact, subnormals too
  return float_of(u | uint32_t(h & 0x8000u) << 16);
}
INLINE uint16_t narrow_bf16(S x) {
  uint32_t b = bits(x);
  return x != x ? 0x7FC0 : uint16_t((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16);
}
#endif
INLINE S widen_bf16(uint16_t h) { return float_of(uint32_t(h) << 16); }
INLINE S canonical(S x) { return x != x ? float_of(NAN_BITS) : x; }

INLINE S load1(const f16* p) { return widen_f16(p->bits); }
INLINE S load1(const bf16* p) { return widen_bf16(p->bits); }
INLINE S load1(const f32* p) { return p->value; }
INLINE S load1(const Stored* p) { return *p; }
INLINE void store1(f16* p, S x) { p->bits = narrow_f16(x); }
INLINE void store1(bf16* p, S x) { p->bits = narrow_bf16(x); }
INLINE void store1(f32* p, S x) { p->value = canonical(x); }
INLINE void store1(Stored* p, S x) { *p = x; }
#if CUDA_ASM
// Conversions of pairs run four times as fast as others. Any NaN will do here: stores make it the canonical one.
INLINE S round_to_f16(S x) {
  uint32_t w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(0.0f), "f"(x));
  return widen_f16(uint16_t(w));
}
INLINE S round_to_bf16(S x) {
  uint32_t w;  // the upper half of which is the number, with zeros below
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(x), "f"(0.0f));
  return float_of(w);
}
#else
INLINE S round_to_f16(S x) { return widen_f16(narrow_f16(x)); }
INLINE S round_to_bf16(S x) { return widen_bf16(narrow_bf16(x)); }
#endif
INLINE S round_to_f32(S x) { return x; }

// One of the two neighbours: up where the lowest random bits are below what is dropped. bf16 drops 16 bits of the pattern,
// f16 13; below 2^-14, where f16 is spaced 2^-24, whole and fraction in units of that are separated.
INLINE S round_stochastic_bf16(S x, uint32_t random) {
  const uint32_t size = bits(x) & 0x7FFFFFFFu, sign = bits(x) & 0x80000000u;
  const uint32_t moved = (size + (random & 0xFFFFu)) & 0xFFFF0000u;
  return float_of((size < INFINITY_BITS ? moved : size) | sign);
}
INLINE S round_stochastic_f16(S x, uint32_t random) {
  const uint32_t size = bits(x) & 0x7FFFFFFFu, sign = bits(x) & 0x80000000u;
  if (size >= INFINITY_BITS) return x;
  if (size < 0x38800000u) {
    const S spacing = 5.9604644775390625e-8f, units = mul(float_of(size), 16777216.0f), near = round_even(units);
    const S whole = units < near ? sub(near, 1.0f) : near;
    const S chance = mul(S(int32_t(random & 0xFFFFFFu)), spacing);
    return float_of(bits(mul(chance < sub(units, whole) ? add(whole, 1.0f) : whole, spacing)) | sign);
  }
  const uint32_t moved = (size + (random & 0x1FFFu)) & 0xFFFFE000u;
  return float_of((moved < 0x47800000u ? moved : INFINITY_BITS) | sign);  // above 65504 there is only infinity
}

}  // namespace tokitai
