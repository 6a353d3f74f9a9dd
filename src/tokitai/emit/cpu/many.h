// Interleaved vectors. One vector's arithmetic is a chain of dependent operations; four independent chains, interleaved in
// program order, hide the latency. Every function of values is lifted to Many by applying it to one vector after the
// other, so the source of a kernel is written for one vector and serves both.
#pragma once

namespace tokitai {

constexpr int INTERLEAVE = 4;

template <class T> struct Many {
  T v[INTERLEAVE];
  Many() = default;
  Many(const T& x) { for (T& each : v) each = x; }
};

// The i-th of several vectors, or the one that all have in common.
template <class T> INLINE const T& at(const Many<T>& x, int i) { return x.v[i]; }
template <class T> INLINE const T& at(const T& x, int) { return x; }

template <class T> struct IsMany { static constexpr bool value = false; };
template <class T> struct IsMany<Many<T>> { static constexpr bool value = true; };
template <bool> struct If {};
template <> struct If<true> { typedef int type; };
template <class... A> using IfMany = typename If<(IsMany<A>::value || ...)>::type;

// f at each of them.
template <class F> INLINE auto interleaved(const F& f) {
  Many<decltype(f(0))> r;
  for (int i = 0; i < INTERLEAVE; ++i) r.v[i] = f(i);
  return r;
}
#define LIFT(NAME) \
  template <class... A, IfMany<A...> = 0> INLINE auto NAME(const A&... a) { \
    return interleaved([&](int i) INLINE_LAMBDA { return NAME(at(a, i)...); }); \
  }
LIFT(add) LIFT(sub) LIFT(mul) LIFT(div) LIFT(fma) LIFT(sqrt) LIFT(neg) LIFT(abs) LIFT(maximum) LIFT(minimum)
LIFT(round_even) LIFT(power_of_two) LIFT(exponent) LIFT(significand) LIFT(lt) LIFT(le) LIFT(eq) LIFT(ne)
LIFT(logical_and) LIFT(logical_or) LIFT(logical_not) LIFT(where) LIFT(to_value) LIFT(leaf_max)
LIFT(round_to_f16) LIFT(round_to_bf16) LIFT(round_to_f32)
LIFT(int_add) LIFT(int_sub) LIFT(int_mul) LIFT(int_mulhi) LIFT(int_xor) LIFT(int_and) LIFT(int_shift_right)
LIFT(to_u32) LIFT(to_i32)
template <class T, class N> INLINE auto round_stochastic_f16(Many<T> x, N random) {
  return interleaved([&](int i) INLINE_LAMBDA { return round_stochastic_f16(x.v[i], at(random, i)); });
}
template <class T, class N> INLINE auto round_stochastic_bf16(Many<T> x, N random) {
  return interleaved([&](int i) INLINE_LAMBDA { return round_stochastic_bf16(x.v[i], at(random, i)); });
}
template <class T> INLINE auto constant(float x, const Many<T>&) { return constant(x, T{}); }

// ------------------------------------------------------------------ lanes that hold elements, beside Full and Part
struct Four {
  static constexpr int64_t count = INTERLEAVE * LANES;
};
template <class P> INLINE auto load(const P* p, Four) {
  return interleaved([&](int i) INLINE_LAMBDA { return load(p + i * LANES); });
}
template <class P, class T> INLINE void store(P* p, const T& x, Four) {
  for (int i = 0; i < INTERLEAVE; ++i) store(p + i * LANES, at(x, i));
}
#if !TOKITAI_STRUCTURE && (TOKITAI_ISA_AVX512 || TOKITAI_ISA_AVX2)
// One test of all four for NaN instead of one test of each.
INLINE bool all_numbers(const Many<V>& x) {
  return __builtin_expect(all_numbers(x.v[0], x.v[1], x.v[2], x.v[3]), true);
}
template <class P> INLINE void store(P* p, const Many<V>& x, Four) {
  if (all_numbers(x))
    for (int i = 0; i < INTERLEAVE; ++i) store_number(p + i * LANES, x.v[i]);
  else
    for (int i = 0; i < INTERLEAVE; ++i) store(p + i * LANES, x.v[i]);
}
INLINE void store(Stored* p, const Many<V>& x, Four) {
  for (int i = 0; i < INTERLEAVE; ++i) store(p + i * LANES, x.v[i]);
}
template <class P> INLINE void stream(P* p, const Many<V>& x) {
  if (all_numbers(x))
    for (int i = 0; i < INTERLEAVE; ++i) stream_number(p + i * LANES, x.v[i]);
  else
    for (int i = 0; i < INTERLEAVE; ++i) stream(p + i * LANES, x.v[i]);
}
#else
template <class P> INLINE void stream(P* p, const Many<V>& x) {
  for (int i = 0; i < INTERLEAVE; ++i) stream(p + i * LANES, x.v[i]);
}
#endif
template <class P, class T> INLINE void store(P* p, const T& x, Four, bool streamed) {
  streamed ? stream(p, Many<V>(x)) : store(p, x, Four{});
}
template <class T> INLINE T pad(const T& x, S, Four) { return x; }
INLINE auto column_index(int64_t c, Four) {
  return interleaved([&](int i) INLINE_LAMBDA { return column_index(c + i * LANES); });
}
template <int word> INLINE auto element_word(int64_t index, Four) {
  return interleaved([&](int i) INLINE_LAMBDA { return element_word<word>(index + i * LANES); });
}
template <class Lanes> INLINE auto column_index(int64_t c, Lanes) { return column_index(c); }
template <int word, class Lanes> INLINE auto element_word(int64_t index, Lanes) { return element_word<word>(index); }
INLINE void take(Max& m, const Many<V>& x) {
  for (int i = 0; i < INTERLEAVE; ++i) take(m, x.v[i]);
}

}  // namespace tokitai
