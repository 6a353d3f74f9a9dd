// The building blocks of row-wise kernels, for numbers and hashes alike: loads and stores with a tail, the balanced tree along
// a row, the tree over blocks of rows.
#pragma once
#include <omp.h>
#if TOKITAI_STRUCTURE
#include "hashes.h"
#else
#include "numbers.h"
#endif
#include "many.h"
#include "outside.h"

namespace tokitai {

INLINE int64_t thread_number() { return omp_get_thread_num(); }
// f in so many threads, which share its loops. One thread is the caller's own, without a team: making one takes as long as
// a small kernel.
template <class F> INLINE void in_threads(int32_t threads, const F& f) {
  if (threads == 1 && !omp_in_parallel()) return f();
#pragma omp parallel num_threads(threads)
  f();
}
INLINE constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

// ------------------------------------------------------------------ loads and stores of a vector or of its first lanes
// Fewer than LANES elements, without a call.
template <class P> INLINE void copy(P* to, const P* from, int64_t count) {
  for (int step = LANES / 2; step; step /= 2)
    if (count & step) {
      __builtin_memcpy(to, from, size_t(step) * sizeof(P));
      to += step, from += step;
    }
}
template <class P> INLINE auto load(const P* p, Full) { return load(p); }
template <class P> INLINE auto load(const P* p, Part part) {
  P row[LANES] = {};
#if TOKITAI_STRUCTURE
  __builtin_memset(row, 0x5A, sizeof row);  // a hash of 0 would be neutral, and hide that a tail was not padded
#endif
  copy(row, p, part.count);
  return load(row);
}
template <class P, class T> INLINE void store(P* p, T x, Full) { store(p, x); }
template <class P, class T> INLINE void store(P* p, T x, Part part) {
  P row[LANES];
  store(row, x);
  copy(p, row, part.count);
}

// Results larger than the caches are written by non-temporal stores, which save reading each line first. No bit changes.
#if TOKITAI_STRUCTURE
constexpr int64_t STREAM_BYTES = 4 << 10;  // small shapes show what is wrong with it
#else
constexpr int64_t STREAM_BYTES = 8 << 20;
#endif
template <class P> INLINE bool streams(const P* p, int64_t stride, int64_t rows, int64_t cols) {
  const auto misaligned = (uintptr_t(p) | uintptr_t(stride) * sizeof(P)) % (LANES * sizeof(P));
  return LANES > 1 && !misaligned && rows * cols * int64_t(sizeof(P)) >= STREAM_BYTES;
}
template <class P, class T> INLINE void store(P* p, T x, Full, bool streamed) { streamed ? stream(p, x) : store(p, x); }
template <class P, class T> INLINE void store(P* p, T x, Part part, bool) { store(p, x, part); }

INLINE V pad(V x, S, Full) { return x; }
INLINE V pad(V x, S neutral, Part part) {
#if LANES == 1
  return part.count ? x : neutral;
#else
  return where(lt(column_index(0), splat(int32_t(part.count))), x, splat(neutral));
#endif
}

// Every vector of columns from `begin` to `end`, in order: interleaved ones first, then single ones, then part of one.
template <class F> INLINE void each(int64_t begin, int64_t end, const F& at) {
  int64_t c = begin;
  for (; c + Four::count <= end; c += Four::count) at(c, Four{});
  for (; c + LANES <= end; c += LANES) at(c, Full{});
  if (c < end) at(c, Part{end - c});
}

// ------------------------------------------------------------------ the balanced tree along a row
// Two vectors' sums over 2D lanes each, from sums over D lanes: see half_lane for the order in which it is natural.
template <int D> INLINE V join(V a, V b) { return add(half<D, 0>(a, b), half<D, 1>(a, b)); }

// The same within one vector, at distances D, 2D ... below END.
template <int D, int END, class F> INLINE V across(V x, const F& combine) {
  if constexpr (D < END) return across<2 * D, END>(combine(half<D, 0>(x, x), half<D, 1>(x, x)), combine);
  else return x;
}

constexpr int JOINED = LANES > 1 ? LANES : 8;       // vectors that become one
constexpr int64_t BLOCK = int64_t(JOINED) * LANES;  // values in them

// The N vectors from s on: depth first, so that few of them are alive at a time.
template <int N> INLINE V joined(const Stored* s) {
  if constexpr (N == 1) return load(s);
  else return join<N / 2>(joined<N / 2>(s), joined<N / 2>(s + N / 2 * LANES));
}

// Vectors past the first `count` values become neutral, up to `end`. Lanes past them in the same vector already are.
INLINE void pad(Stored* s, int64_t count, int64_t end) {
  for (int64_t i = (count + LANES - 1) / LANES * LANES; i < end; i += LANES) store(s + i, splat(NEUTRAL_SUM));
}

// The tree over the values of N vectors: their lanes first, then the N sums.
template <int N> INLINE S top(Stored* s, int64_t count) {
  const auto sum = [](V a, V b) INLINE_LAMBDA { return add(a, b); };
  pad(s, count, N * LANES);
  return first(across<1, min(N, LANES)>(across<N, LANES>(joined<N>(s), sum), sum));
}

// The tree over `count` values, level by level; +0 for none. The array holds a multiple of BLOCK values, and is overwritten.
static __attribute__((noinline, unused)) S tree(Stored* s, int64_t count) {
  if (count == 0) return S{};
  for (; count > 4 * LANES; count = (count + JOINED - 1) / JOINED) {
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    pad(s, count, blocks * BLOCK);
    for (int64_t b = 0; b < blocks; ++b) store(s + b * LANES, joined<JOINED>(s + b * BLOCK));
  }
  return count <= LANES ? top<1>(s, count) : count <= 2 * LANES ? top<2>(s, count) : top<4>(s, count);
}

// A capacity for the sums of a row's blocks, whatever LANES is.
INLINE int64_t partial_capacity(int64_t cols) { return cols / 4 + 512; }

template <int K> struct Sums {
  V v[K];
};
template <class Lanes, class... T> INLINE Sums<sizeof...(T)> summands(Lanes, const T&... x) { return {{x...}}; }
template <class... T> INLINE auto summands(Four, const T&... x) {
  return interleaved([&](int i) INLINE_LAMBDA { return Sums<sizeof...(T)>{{at(x, i)...}}; });
}

// The N vectors of each sum from column c on, joined as they come: nothing but registers is needed, at the price of N
// copies of `at`.
template <int K, int N, class F> INLINE Sums<K> joined_at(int64_t c, const F& at) {
  if constexpr (N == 1) return at(c, Full{});
  else {
    Sums<K> a = joined_at<K, N / 2>(c, at);
    const Sums<K> b = joined_at<K, N / 2>(c + N / 2 * LANES, at);
    for (int k = 0; k < K; ++k) a.v[k] = join<N / 2>(a.v[k], b.v[k]);
    return a;
  }
}

// at(c, lanes) gives the K summands at columns c ...; total[k] is the sum along the row. Before each block soon(c) is
// called, to fetch what will be needed soon. `partial` has K times partial_capacity(cols). CHEAP summands are joined in
// registers; expensive ones, whose code should not be repeated, go through memory.
template <int K, bool CHEAP, class F, class G>
INLINE void row_sums(int64_t cols, Stored* partial, const F& at, const G& soon, S* total) {
  Stored terms[K][BLOCK];
  const auto keep = [&](int64_t i, const auto& sums, auto lanes) INLINE_LAMBDA {
    for (int64_t j = 0; j * LANES < lanes.count; ++j)
      for (int k = 0; k < K; ++k) store(terms[k] + i + j * LANES, tokitai::at(sums, int(j)).v[k]);
  };
  const int64_t capacity = partial_capacity(cols);
  int64_t c = 0;
  for (; c + BLOCK <= cols; c += BLOCK) {
    soon(c);
    if constexpr (CHEAP) {
      const Sums<K> sums = joined_at<K, JOINED>(c, at);
      for (int k = 0; k < K; ++k) store(partial + k * capacity + c / JOINED, sums.v[k]);
    } else {
      for (int64_t i = 0; i < BLOCK; i += Four::count) keep(i, at(c + i, Four{}), Four{});
      for (int k = 0; k < K; ++k) store(partial + k * capacity + c / JOINED, joined<JOINED>(terms[k]));
    }
  }
  each(c, cols, [&](int64_t i, auto lanes) INLINE_LAMBDA { keep(i - c, at(i, lanes), lanes); });
  for (int k = 0; k < K; ++k) {
    if (c == 0) {  // a row of one block
      total[k] = tree(terms[k], cols);
      continue;
    }
    if (c < cols) {
      pad(terms[k], cols - c, BLOCK);
      store(partial + k * capacity + c / JOINED, joined<JOINED>(terms[k]));
    }
    total[k] = tree(partial + k * capacity, (cols + JOINED - 1) / JOINED);
  }
}

template <class P> INLINE void prefetch(const P* p) {
  for (size_t i = 0; i < BLOCK * sizeof(P); i += 64) __builtin_prefetch(reinterpret_cast<const char*>(p) + i);
}

// The maximum of all that was taken; `joined_max` can be joined with others before it is done.
INLINE S joined_max(const Max& m) {
  return first(across<1, LANES>(lanes_of(m), [](V a, V b) INLINE_LAMBDA { return join_max(a, b); }));
}
INLINE S result(const Max& m) { return done_max(joined_max(m)); }

// ------------------------------------------------------------------ the balanced tree over blocks of rows
template <class Z, class F> INLINE auto tree_over(int64_t n, Z zero, const F& at) {
  typedef decltype(at(0)) T;
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

// ------------------------------------------------------------------ tiles of a list of tensors
constexpr int64_t TILE = 16384;
INLINE int64_t tiles_of(int64_t cols) { return (cols + TILE - 1) / TILE; }

// The tensor that a tile belongs to: the last one whose first tile is not behind it.
INLINE int64_t tensor_of(const int64_t* first_tile, int64_t count, int64_t tile) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (first_tile[middle] <= tile ? low : high) = middle;
  }
  while (first_tile[low + 1] <= tile) ++low;  // past tensors without elements
  return low;
}

}  // namespace tokitai
