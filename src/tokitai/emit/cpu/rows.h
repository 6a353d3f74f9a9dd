// What a row-wise kernel is made of, for numbers and hashes alike: loads and stores with a tail, the balanced tree along
// a row, the tree over blocks of rows.
#pragma once
#include <omp.h>
#if TOKITAI_STRUCTURE
#include "hashes.h"
#else
#include "numbers.h"
#endif

namespace tokitai {

// ------------------------------------------------------------------ loads and stores of a vector or of its first lanes
template <class P> INLINE auto load(const P* p, Full) { return load(p); }
template <class P, class T> INLINE void store(P* p, T x, Full) { store(p, x); }
template <class P> INLINE auto load(const P* p, Part part) {
  P row[LANES];
  __builtin_memset(row, 0, sizeof row);
  __builtin_memcpy(row, p, size_t(part.count) * sizeof(P));
  return load(row);
}
template <class P, class T> INLINE void store(P* p, T x, Part part) {
  P row[LANES];
  store(row, x);
  __builtin_memcpy(p, row, size_t(part.count) * sizeof(P));
}

INLINE V pad(V x, S, Full) { return x; }
INLINE V pad(V x, S neutral, Part part) {
#if LANES == 1
  return part.count ? x : neutral;
#else
  return where(lt(column_index(0), splat(int32_t(part.count))), x, splat(neutral));
#endif
}

// The lanes of a vector by a balanced tree or, for maxima, in any order.
template <class F> INLINE S across(V x, const F& combine) {
  Stored lane[LANES];
  store(lane, x);
  for (int n = LANES / 2; n >= 1; n /= 2)
    for (int i = 0; i < n; ++i) store1(lane + i, combine(load1(lane + 2 * i), load1(lane + 2 * i + 1)));
  return load1(lane);
}

// ------------------------------------------------------------------ the balanced tree along a row
// The tree over the column index, K sums at once. Adding neighbours of two vectors gives one vector of the next level;
// a counter in binary keeps at most one vector of each level. Padding is neutral, so a lone node passes through.
template <int K> struct Sums {
  V v[K];
};

template <int K> INLINE Sums<K> join(const Sums<K>& a, const Sums<K>& b) {
  Sums<K> sum;
  for (int k = 0; k < K; ++k) sum.v[k] = add(even(a.v[k], b.v[k]), odd(a.v[k], b.v[k]));
  return sum;
}

// N neighbouring vectors, depth first: few of them are alive at a time.
template <int N, class F> INLINE auto block(const F& at, int64_t c) {
  if constexpr (N == 1) {
    return at(c, Full{});
  } else {
    auto left = block<N / 2>(at, c);
    auto right = block<N / 2>(at, c + N / 2 * LANES);
    return join(left, right);
  }
}

template <int K> class Tree {
 public:
  // A vector of 2^level neighbours' sums; the count is a multiple of 2^level.
  INLINE void put(Tree& t, Sums<K> sum, int level) {
    int64_t n = t.count >> level;
    t.count += int64_t(1) << level;
    for (; n & 1; n >>= 1, ++level) sum = join(t.stack[level], sum);
    t.stack[level] = sum;
  }
  INLINE void finish(Tree& t, S* total) {
    Sums<K> neutral, sum;
    for (int k = 0; k < K; ++k) sum.v[k] = neutral.v[k] = splat(NEUTRAL_SUM);
    bool any = false;
    int level = 0;
    for (int64_t n = t.count; n; n >>= 1, ++level) {
      if (n & 1) {
        sum = any ? join(t.stack[level], sum) : t.stack[level];
        any = true;
      } else if (any) {
        sum = join(sum, neutral);
      }
    }
    for (int k = 0; k < K; ++k) total[k] = any ? across(sum.v[k], [](S a, S b) { return add(a, b); }) : S{};
  }

 private:
  int64_t count = 0;
  Sums<K> stack[48];
};

constexpr int UNROLL = 8, UNROLL_LEVEL = 3;

// at(c, lanes) gives the K summands at columns c ...; total[k] is the sum along the row, +0 for an empty one.
template <int K, class F> INLINE void row_sums(int64_t cols, const F& at, S* total) {
  Tree<K> tree;
  int64_t c = 0;
  for (; c + UNROLL * LANES <= cols; c += UNROLL * LANES) Tree<K>::put(tree, block<UNROLL>(at, c), UNROLL_LEVEL);
  for (; c + LANES <= cols; c += LANES) Tree<K>::put(tree, at(c, Full{}), 0);
  if (c < cols) Tree<K>::put(tree, at(c, Part{cols - c}), 0);
  Tree<K>::finish(tree, total);
}

// Every vector of columns from `begin` to `end`, in order.
template <class F> INLINE void each(int64_t begin, int64_t end, const F& at) {
  int64_t c = begin;
  for (; c + LANES <= end; c += LANES) at(c, Full{});
  if (c < end) at(c, Part{end - c});
}

// ------------------------------------------------------------------ the balanced tree over blocks of rows
template <class T, class F> INLINE T tree_over(int64_t n, T zero, const F& at) {
  T stack[64];
  for (int64_t i = 0; i < n; ++i) {
    T sum = at(i);
    int level = 0;
    for (int64_t k = i; k & 1; k >>= 1, ++level) sum = add(stack[level], sum);
    stack[level] = sum;
  }
  T sum = zero;
  bool any = false;
  int level = 0;
  for (int64_t k = n; k; k >>= 1, ++level)
    if (k & 1) {
      sum = any ? add(stack[level], sum) : stack[level];
      any = true;
    }
  return sum;
}

// Rows of a group: all of them, known to the compiler, or those that are left.
template <int N> struct Count {
  static constexpr int64_t count = N;
};
struct Some {
  int64_t count;
};

INLINE int64_t thread_number() { return omp_get_thread_num(); }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace tokitai
