// Quotients of many elements without a branch at each: the sequence that a correctly rounded division is made of, and a
// flag where its operands are outside the range that it was proved for. A chunk with the flag set is computed once more.
//
// Quick{}.of(a, b, checks) is RN(a / b) for b in [2^-62, 2^62] and |a| in [2^-62, 2^62] or 0, from any approximation of
// 1 / b within one ulp: r = RN(r + r (1 - b r)), q = RN(a r), RN(q - r (q b - a)). The last step goes wrong only where
// a / b is so near the middle of two floats that (2 a - m b) / ulp has at most 8 as a whole number, m the middle's
// significand. tests/device/test_quotients.py tries all of these, over all significands of b, and every start within an
// ulp: one fails, the start 1/2 for b = 2 - 2^-23, which GPUs do not return (ptxas makes division of the same sequence).
// A quotient by 1 is exact for every a but NaN: then r is 1 - d^2 for a start 1 + d, rounded, which is 1.
// Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", IBM J. Res. Dev. 34 (1990).
#pragma once

namespace tokitai {

// Where a quotient's operands may be, as far as is not known beforehand: the divisor out of range; the dividend below it,
// and not 0; above it. A quotient of a dividend above it is right, or NaN.
template <bool DIVISOR, bool SMALL, bool LARGE> struct Checks {};

struct Exact {
  template <class L> INLINE S of(S a, S b, L) const { return div(a, b); }
};

#if TOKITAI_STRUCTURE || TOKITAI_HIP
struct Quick : Exact {
  bool* missed;
  INLINE Quick(bool* m) : missed(m) {}
};
template <int N> INLINE bool any_nan(const S (&)[N]) { return false; }
template <class P> INLINE void encode_numbers(Chunk<P>& q, const S (&x)[CHUNK]) { encode(q, x); }
#else
#if TOKITAI_SIM
#ifndef TOKITAI_START
#define TOKITAI_START 0  // ulps by which a start differs from the nearest one
#endif
INLINE S reciprocal_start(S b) {
  const S r = 1.0f / b;
  const bool known = (bits(b) & 0x007FFFFFu) == 0x007FFFFFu || !(r > 0 && r < INFINITE);
  return known ? r : float_of(bits(r) + uint32_t(TOKITAI_START));
}
#else
INLINE S reciprocal_start(S b) {
  S r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return r;
}
#endif
struct Quick {
  bool* missed;
  template <bool DIVISOR, bool SMALL, bool LARGE> INLINE S of(S a, S b, Checks<DIVISOR, SMALL, LARGE>) const {
    constexpr S MIN_OPERAND = 2.168404344971009e-19f, MAX_OPERAND = 4.611686018427388e18f;  // 2^-62, 2^62
    const S start = reciprocal_start(b);
    const S r = fma(start, fma(-b, start, 1.0f), start);
    const S q = mul(a, r);
    const S quotient = fma(-fma(q, b, -a), r, q);
    if (DIVISOR) *missed |= !(b >= MIN_OPERAND && b <= MAX_OPERAND);
    if (SMALL) *missed |= 2 * bits(a) - 2 < 2 * bits(MIN_OPERAND) - 2;  // without the sign; 0 is no small number
    if (LARGE) *missed |= quotient != quotient;
    return quotient;
  }
};
template <int N> INLINE bool any_nan(const S (&x)[N]) {
  bool found = false;
  UNROLL for (int i = 0; i < N; i += 2) found |= (x[i] != x[i]) | (x[i + 1] != x[i + 1]);
  return found;
}
// Rounds a chunk of values, none of which is NaN, to the stored format.
template <class P> INLINE void encode_numbers(Chunk<P>& q, const S (&x)[CHUNK]) { encode(q, x); }
INLINE void encode_numbers(Chunk<f32>& q, const S (&x)[CHUNK]) {
  UNROLL for (int e = 0; e < CHUNK; ++e) q.e[e].value = x[e];
}
#if CUDA_ASM
INLINE void encode_numbers(Chunk<f16>& q, const S (&x)[CHUNK]) {
  UNROLL for (int i = 0; i < CHUNK / 2; ++i) reinterpret_cast<uint32_t*>(&q)[i] = pair_of_f16(x[2 * i], x[2 * i + 1]);
}
INLINE void encode_numbers(Chunk<bf16>& q, const S (&x)[CHUNK]) {
  UNROLL for (int i = 0; i < CHUNK / 2; ++i) reinterpret_cast<uint32_t*>(&q)[i] = pair_of_bf16(x[2 * i], x[2 * i + 1]);
}
#endif
#endif

}  // namespace tokitai
