// Values are f32 numbers. Every function is one IEEE 754 operation, rounded once to nearest even.
#pragma once
#include "lanes.h"

namespace tokitai {

typedef float S;
typedef float Stored;  // a value in a scratch row or a table of scalars
typedef bool SB;
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct f32 { float value; };

INLINE uint32_t bits(S a) { uint32_t u; __builtin_memcpy(&u, &a, 4); return u; }
INLINE S from_bits(uint32_t u) { S a; __builtin_memcpy(&a, &u, 4); return a; }

INLINE S constant(float x, S) { return x; }
static const float NOT_A_NUMBER = __builtin_nanf("");
static const float NEUTRAL_SUM = -0.0f;  // x + -0.0 is x, for every x
static const float NEUTRAL_MAX = -__builtin_inff();

INLINE S add(S a, S b) { return a + b; }
INLINE S sub(S a, S b) { return a - b; }
INLINE S mul(S a, S b) { return a * b; }
INLINE S div(S a, S b) { return a / b; }
INLINE S fma(S a, S b, S c) { return __builtin_fmaf(a, b, c); }
INLINE S sqrt(S a) { return __builtin_sqrtf(a); }
// On bits: GCC takes -fma(a, b, c) for fma(-a, b, -c), which has the other zero where both terms cancel.
INLINE S neg(S a) { return from_bits(bits(a) ^ 0x80000000u); }
INLINE S abs(S a) { return from_bits(bits(a) & 0x7FFFFFFFu); }
INLINE S round_even(S a) { return __builtin_rintf(a); }
INLINE SB lt(S a, S b) { return a < b; }
INLINE SB le(S a, S b) { return a <= b; }
INLINE SB eq(S a, S b) { return a == b; }
INLINE SB ne(S a, S b) { return a != b; }
INLINE S where(bool c, S a, S b) { return c ? a : b; }
// Equal operands have equal bits but for the zeros: `and` keeps -0 only if both are, `or` if either is.
INLINE S maximum(S a, S b) {
  if (a != a || b != b) return NOT_A_NUMBER;
  return a == b ? from_bits(bits(a) & bits(b)) : (a > b ? a : b);
}
INLINE S minimum(S a, S b) {
  if (a != a || b != b) return NOT_A_NUMBER;
  return a == b ? from_bits(bits(a) | bits(b)) : (a < b ? a : b);
}
// 1.5 * 2^23 + 127 + k is exact and holds 127 + k in its lowest bits; the shift drops the rest.
static const float EXPONENT_BIAS = 0x1.8p23f + 127.0f;
INLINE S power_of_two(S k) { return from_bits(bits(k + EXPONENT_BIAS) << 23); }
INLINE S exponent(S a) { return S(int32_t((bits(a) >> 23) & 255u) - 127); }
INLINE S significand(S a) { return from_bits((bits(a) & 0x007FFFFFu) | 0x3F800000u); }
INLINE S to_value(int32_t a, S) { return S(a); }
INLINE S to_value(int64_t a, S) { return S(a); }
INLINE S to_value(uint32_t a, S) { return S(a); }
INLINE S join_max(S a, S b) { return maximum(a, b); }
INLINE S done_max(S a) { return a; }

// ------------------------------------------------------------------ stored formats, one element
INLINE uint16_t narrow_f16(S x) {
  uint32_t b = bits(x), sign = (b >> 16) & 0x8000u, m = b & 0x7FFFFFFFu;
  if (m > 0x7F800000u) return 0x7E00;
  if (m >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // from 65520 on to infinity
  if (m < 0x38800000u)  // below 2^-14: in [0.5, 1) the spacing of f32 is that of f16's subnormals, so one addition rounds
    return uint16_t(sign | (bits(from_bits(m) + 0.5f) - 0x3F000000u));
  m += 0x0FFFu + ((m >> 13) & 1u);
  return uint16_t(sign | ((m >> 13) - (112u << 10)));
}
INLINE S widen_f16(uint16_t h) {
  uint32_t m = uint32_t(h & 0x7FFFu) << 13;
  uint32_t inf = (h & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
  uint32_t u = bits(from_bits(m) * 0x1p112f) | inf;  // exact, subnormals too
  return from_bits(u | uint32_t(h & 0x8000u) << 16);
}
INLINE uint16_t narrow_bf16(S x) {
  uint32_t b = bits(x);
  return x != x ? 0x7FC0 : uint16_t((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16);
}
INLINE S canonical(S x) { return x != x ? NOT_A_NUMBER : x; }

INLINE S load1(const f16* p) { return widen_f16(p->bits); }
INLINE S load1(const bf16* p) { return from_bits(uint32_t(p->bits) << 16); }
INLINE S load1(const f32* p) { return p->value; }
INLINE S load1(const Stored* p) { return *p; }
INLINE void store1(f16* p, S x) { p->bits = narrow_f16(x); }
INLINE void store1(bf16* p, S x) { p->bits = narrow_bf16(x); }
INLINE void store1(f32* p, S x) { p->value = canonical(x); }
INLINE void store1(Stored* p, S x) { *p = x; }
INLINE S round_to_f16(S x) { return widen_f16(narrow_f16(x)); }
INLINE S round_to_bf16(S x) { return from_bits(uint32_t(narrow_bf16(x)) << 16); }
INLINE S round_to_f32(S x) { return x; }

#if LANES == 1
typedef S V;
typedef SB B;
INLINE V splat(S x) { return x; }
INLINE V load(const f16* p) { return load1(p); }
INLINE V load(const bf16* p) { return load1(p); }
INLINE V load(const f32* p) { return load1(p); }
INLINE V load(const Stored* p) { return load1(p); }
template <class P> INLINE void store(P* p, V x) { store1(p, x); }
template <class P> INLINE void stream(P* p, V x) { store1(p, x); }
INLINE V larger(V a, V b) { return a > b ? a : b; }
template <int D, int SIDE> INLINE V half(V a, V b) { return SIDE ? b : a; }
INLINE S first(V a) { return a; }
#else
typedef float V __attribute__((vector_size(4 * LANES)));
typedef M B;
typedef uint16_t H __attribute__((vector_size(2 * LANES)));

INLINE U bits(V a) { return U(a); }
INLINE V from_bits(U u) { return V(u); }
INLINE V splat(S x) { return x - V{}; }  // -0 and NaN stay what they are
INLINE V constant(float x, V) { return splat(x); }
INLINE V add(V a, V b) { return a + b; }
INLINE V sub(V a, V b) { return a - b; }
INLINE V mul(V a, V b) { return a * b; }
INLINE V div(V a, V b) { return a / b; }
INLINE V neg(V a) { return from_bits(bits(a) ^ 0x80000000u); }
INLINE V abs(V a) { return from_bits(bits(a) & 0x7FFFFFFFu); }
INLINE B lt(V a, V b) { return a < b; }
INLINE B le(V a, V b) { return a <= b; }
INLINE B eq(V a, V b) { return a == b; }
INLINE B ne(V a, V b) { return a != b; }
INLINE V where(B c, V a, V b) { return c ? a : b; }
INLINE V maximum(V a, V b) {
  V m = where(eq(a, b), from_bits(bits(a) & bits(b)), where(lt(b, a), a, b));
  return where(logical_or(ne(a, a), ne(b, b)), splat(NOT_A_NUMBER), m);
}
INLINE V minimum(V a, V b) {
  V m = where(eq(a, b), from_bits(bits(a) | bits(b)), where(lt(a, b), a, b));
  return where(logical_or(ne(a, a), ne(b, b)), splat(NOT_A_NUMBER), m);
}
INLINE V power_of_two(V k) { return from_bits(bits(k + EXPONENT_BIAS) << 23); }
INLINE V exponent(V a) { return __builtin_convertvector(I((bits(a) >> 23) & 255u) - 127, V); }
INLINE V significand(V a) { return from_bits((bits(a) & 0x007FFFFFu) | 0x3F800000u); }
INLINE V to_value(I a, V) { return __builtin_convertvector(a, V); }
INLINE V to_value(U a, V) { return __builtin_convertvector(a, V); }
INLINE V join_max(V a, V b) { return maximum(a, b); }
INLINE S first(V a) { return a[0]; }
template <int D, int SIDE, int... i> INLINE V half(V a, V b, Sequence<i...>) {
  return __builtin_shufflevector(a, b, half_lane<D, SIDE>(i)...);
}
template <int D, int SIDE> INLINE V half(V a, V b) { return half<D, SIDE>(a, b, Counted<LANES>::type{}); }

// extend and truncate move 16-bit patterns to and from 32 bits; larger(a, b) is a if it is greater, else b; so b where either is NaN, and where both are zeros.
#if TOKITAI_ISA_AVX512
INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
INLINE V sqrt(V a) { return _mm512_sqrt_ps(a); }
INLINE V larger(V a, V b) { return _mm512_max_ps(a, b); }
INLINE bool all_numbers(V a, V b, V c, V d) {
  return !(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(c, d, _CMP_UNORD_Q));
}
INLINE V round_even(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE V widen(H h) { return _mm512_cvtph_ps((__m256i)h); }
INLINE H narrow(V x) { return (H)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
INLINE U extend(H h) { return (U)_mm512_cvtepu16_epi32((__m256i)h); }
INLINE H truncate(U u) { return (H)_mm512_cvtepi32_epi16((__m512i)u); }
INLINE void stream_bytes(void* p, H h) { _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)h); }
INLINE void stream_bytes(void* p, V v) { _mm512_stream_ps(static_cast<float*>(p), v); }
#elif TOKITAI_ISA_AVX2
// Register k of a vector: there is one, unless TOKITAI_LANES asks for more lanes.
static_assert(LANES % 8 == 0, "whole registers");
template <class T, class X> INLINE T part(const X& x, int k) {
  T r;
  __builtin_memcpy(&r, reinterpret_cast<const char*>(&x) + k * int(sizeof r), sizeof r);
  return r;
}
template <class X, class F> INLINE X parts(const F& f) {
  X x;
  for (int k = 0; k < LANES / 8; ++k) {
    const auto r = f(k);
    __builtin_memcpy(reinterpret_cast<char*>(&x) + k * int(sizeof r), &r, sizeof r);
  }
  return x;
}
#define REGISTER(X, EXPRESSION) return parts<X>([&](int k) INLINE_LAMBDA { return EXPRESSION; })
#define PS(v) part<__m256>(v, k)
INLINE V fma(V a, V b, V c) { REGISTER(V, _mm256_fmadd_ps(PS(a), PS(b), PS(c))); }
INLINE V sqrt(V a) { REGISTER(V, _mm256_sqrt_ps(PS(a))); }
INLINE V larger(V a, V b) { REGISTER(V, _mm256_max_ps(PS(a), PS(b))); }
INLINE bool all_numbers(V a, V b, V c, V d) {
  int none = 0;
  for (int k = 0; k < LANES / 8; ++k) {
    const __m256 first = _mm256_cmp_ps(PS(a), PS(b), _CMP_UNORD_Q), second = _mm256_cmp_ps(PS(c), PS(d), _CMP_UNORD_Q);
    none |= _mm256_movemask_ps(_mm256_or_ps(first, second));
  }
  return !none;
}
INLINE V round_even(V a) { REGISTER(V, _mm256_round_ps(PS(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
INLINE V widen(H h) { REGISTER(V, _mm256_cvtph_ps(part<__m128i>(h, k))); }
INLINE H narrow(V x) { REGISTER(H, _mm256_cvtps_ph(PS(x), _MM_FROUND_TO_NEAREST_INT)); }
INLINE U extend(H h) { REGISTER(U, _mm256_cvtepu16_epi32(part<__m128i>(h, k))); }
INLINE H truncate(U u) { REGISTER(H, _mm_packus_epi32(part<__m128i>(u, 2 * k), part<__m128i>(u, 2 * k + 1))); }
template <class X> INLINE void stream_bytes(void* p, X x) {
  for (size_t k = 0; k < sizeof x / 16; ++k) _mm_stream_si128(static_cast<__m128i*>(p) + k, part<__m128i>(x, int(k)));
}
#elif TOKITAI_ISA_NEON
INLINE V fma(V a, V b, V c) { return V(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b))); }
INLINE V sqrt(V a) { return V(vsqrtq_f32(float32x4_t(a))); }
INLINE V larger(V a, V b) { return where(lt(b, a), a, b); }
INLINE V round_even(V a) { return V(vrndnq_f32(float32x4_t(a))); }
INLINE V widen(H h) { return V(vcvt_f32_f16(float16x4_t(h))); }
INLINE H narrow(V x) { return H(vcvt_f16_f32(float32x4_t(x))); }
INLINE U extend(H h) { return __builtin_convertvector(h, U); }
INLINE H truncate(U u) { return __builtin_convertvector(u, H); }
template <class X> INLINE void stream_bytes(void* p, X x) { __builtin_memcpy(p, &x, sizeof x); }  // no such store
#endif

// ------------------------------------------------------------------ stored formats, a vector
template <class T, class P> INLINE T raw(const P* p) { T v; __builtin_memcpy(&v, p, sizeof v); return v; }
INLINE V canonical(V x) { return where(ne(x, x), splat(NOT_A_NUMBER), x); }
INLINE V widen_bf16(H h) { return from_bits(extend(h) << 16); }
INLINE V load(const f16* p) { return widen(raw<H>(p)); }
INLINE V load(const bf16* p) { return widen_bf16(raw<H>(p)); }
INLINE V load(const f32* p) { return raw<V>(p); }
INLINE V load(const Stored* p) { return raw<V>(p); }
// As it is stored: a number, and whatever there is.
INLINE H encode_number(const f16*, V x) { return narrow(x); }
INLINE H encode_number(const bf16*, V x) {
  const U b = bits(x);
  return truncate((b + 0x7FFFu + ((b >> 16) & 1u)) >> 16);
}
INLINE V encode_number(const f32*, V x) { return x; }
template <class P> INLINE auto encode(const P* p, V x) { return encode_number(p, canonical(x)); }
INLINE V encode(const Stored*, V x) { return x; }
template <class P> INLINE void store(P* p, V x) { const auto e = encode(p, x); __builtin_memcpy(p, &e, sizeof e); }
template <class P> INLINE void stream(P* p, V x) { stream_bytes(p, encode(p, x)); }
template <class P> INLINE void store_number(P* p, V x) {
  const auto e = encode_number(p, x);
  __builtin_memcpy(p, &e, sizeof e);
}
template <class P> INLINE void stream_number(P* p, V x) { stream_bytes(p, encode_number(p, x)); }
INLINE V round_to_f16(V x) { return widen(encode(static_cast<const f16*>(nullptr), x)); }
INLINE V round_to_bf16(V x) { return widen_bf16(encode(static_cast<const bf16*>(nullptr), x)); }
INLINE V round_to_f32(V x) { return x; }
#endif

// The largest element, the signs of all, and the largest magnitude as an integer, which shows a NaN. A maximum has the
// sign bit only if all have it, zeros included: so the three give what `maximum` gives step by step, for less.
struct Max {
  V top = splat(NEUTRAL_MAX);
  I signs = splat(int32_t(-1)), size = splat(int32_t(0));
};
INLINE V leaf_max(V a) { return a; }
INLINE void take(Max& m, V x) {
  const I pattern = to_i32(bits(x)), size = pattern & 0x7FFFFFFF;
  m.top = larger(x, m.top);
  m.signs &= pattern;
  m.size = where(lt(m.size, size), size, m.size);
}
INLINE V lanes_of(const Max& m) {
  const V top = from_bits((bits(m.top) & 0x7FFFFFFFu) | (to_u32(m.signs) & 0x80000000u));
  return where(lt(splat(int32_t(0x7F800000)), m.size), splat(NOT_A_NUMBER), top);
}

// One of the two neighbours: up where the lowest random bits are below what is dropped. bf16 drops 16 bits of the pattern,
// f16 13; below 2^-14, where f16 is spaced 2^-24, whole and fraction in units of that are separated.
INLINE uint32_t like(uint32_t, uint32_t c) { return c; }
#if LANES > 1
INLINE U like(U, uint32_t c) { return splat(c); }
#endif
template <class T, class N> INLINE T round_stochastic_bf16(T x, N random) {
  const N size = bits(x) & 0x7FFFFFFFu, sign = bits(x) & 0x80000000u;
  const N moved = (size + (random & 0xFFFFu)) & 0xFFFF0000u;
  return from_bits(where(lt(size, like(size, 0x7F800000u)), moved, size) | sign);
}
template <class T, class N> INLINE T round_stochastic_f16(T x, N random) {
  const N size = bits(x) & 0x7FFFFFFFu, sign = bits(x) & 0x80000000u, infinity = like(size, 0x7F800000u);
  const N moved = (size + (random & 0x1FFFu)) & 0xFFFFE000u;
  const N normal = where(lt(moved, like(size, 0x47800000u)), moved, infinity);  // above 65504 there is only infinity
  const T one = constant(1.0f, T{}), zero = constant(0.0f, T{}), spacing = constant(0x1p-24f, T{});
  const T units = mul(from_bits(size), constant(0x1p24f, T{})), near = round_even(units);
  const T whole = sub(near, where(lt(units, near), one, zero));
  const T chance = mul(to_value(to_i32(random & 0xFFFFFFu), T{}), spacing);
  const N small = bits(mul(add(whole, where(lt(chance, sub(units, whole)), one, zero)), spacing));
  const N finite = where(lt(size, like(size, 0x38800000u)), small, normal);
  return from_bits(where(lt(size, infinity), finite, size) | sign);
}

}  // namespace tokitai
