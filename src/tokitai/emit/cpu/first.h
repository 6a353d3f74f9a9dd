// The first column of a row in which a condition holds: the minimum of the columns where it does, as numbers. In hashes an
// order-free mix of the conditions with their columns. Included after rows.h, on every target.
#pragma once

namespace tokitai {

#if TOKITAI_STRUCTURE
constexpr Tag ROW_FIRST = Tag(30);
constexpr S NEUTRAL_FIRST = {0};
INLINE S leaf_first(SB condition, S column) { return ordered(ROW_FIRST, condition, column); }
INLINE S join_first(S a, S b) { return join_max(a, b); }
INLINE S done_first(S a, int64_t) { return done_max(a); }
#if LANES > 1
BINARY(leaf_first) BINARY(join_first)
#endif
#else
#define NEUTRAL_FIRST INFINITE
INLINE S leaf_first(SB condition, S column) { return condition ? column : S(NEUTRAL_FIRST); }
INLINE S join_first(S a, S b) { return b < a ? b : a; }
INLINE S done_first(S a, int64_t columns) { return a < S(NEUTRAL_FIRST) ? a : S(columns); }
#if LANES > 1
INLINE V leaf_first(B condition, V column) { return where(condition, column, splat(NEUTRAL_FIRST)); }
INLINE V join_first(V a, V b) { return where(lt(b, a), b, a); }
#endif
#endif

#if !defined(LIFT)  // as trees on a GPU take it: there are no vectors
struct FirstIndex {
  static INLINE S of(S a, S b) { return join_first(a, b); }
  static INLINE S neutral() { return NEUTRAL_FIRST; }
};
#else
template <class C, class Lanes> INLINE void take_first(V& kept, const C& condition, int64_t c, Lanes lanes) {
  kept = join_first(kept, pad(leaf_first(condition, to_value(column_index(c), V{})), NEUTRAL_FIRST, lanes));
}
template <class C> INLINE void take_first(V& kept, const C& condition, int64_t c, Four) {
  for (int i = 0; i < INTERLEAVE; ++i) take_first(kept, at(condition, i), c + i * LANES, Full{});
}
#endif

}  // namespace tokitai
