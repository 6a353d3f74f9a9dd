// Attention: for a panel of queries the scores of all keys, which lie key by key with the queries next to each other. So a
// row's maximum and sum run over whole vectors, and scores are at once the right operand of the product with the values.
//
// Along the keys the order of every sum is the definition's; how many queries are a panel changes no bit.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int64_t PANEL = NR;           // queries
constexpr int LINES = INTERLEAVE / NV;    // keys of a panel that are four vectors
constexpr int64_t GROUP = 8;            // keys whose sum is taken before it joins others
constexpr int64_t WIDTH = LINES * NR;   // elements in them
static_assert(INTERLEAVE % NV == 0 && GROUP % LINES == 0, "whole lines");
static_assert(CHAIN % NR == 0, "a chain of queries is whole panels");

INLINE int64_t round_up(int64_t count, int64_t of) { return ceil_div(count, of) * of; }

// How many levels of pending partials there may be above the open sums.
INLINE int64_t levels_of(int64_t terms) {
  const int64_t chains = ceil_div(terms, CHAIN);
  int64_t levels = 0;
  for (int64_t n = chains > 1 ? chains : 0; n; n /= 2) ++levels;
  return levels;
}

// The memory of a thread, taken piece by piece.
struct Memory {
  int64_t size = 0;
  Guards guards = {};
  int64_t take(int64_t count) {
    const int64_t begin = size;
    size += round_up(count, 16);
    size += guards.behind(size);
    return begin;
  }
};
// Elements that values are loaded from and stored to one vector at a time.
INLINE Stored* stored(E* p) { return reinterpret_cast<Stored*>(p); }

// One value for each query of a panel, LINES times over, so that it lies beside LINES keys.
template <class T> struct PerQuery {
  T value[WIDTH];
  template <class P> void read(const P* from, int64_t count) {
    for (int64_t i = 0; i < WIDTH; ++i) store1(value + i, load1(i % NR < count ? from + i % NR : from));
  }
};
INLINE V query_vector(const PerQuery<Stored>& from, int64_t j) { return load(vector_at(from.value, j)); }
INLINE I query_vector(const PerQuery<int32_t>& from, int64_t j) {
  I v;
  __builtin_memcpy(&v, vector_at(from.value, j), sizeof v);
  return v;
}
INLINE void replicate(PerQuery<Stored>& to, int64_t j, V x) {
  for (int line = 0; line < LINES; ++line) store(vector_at(to.value, line * NR + j), x);
}
template <class T> INLINE auto beside(const PerQuery<T>& from) {
  return interleaved([&](int i) INLINE_LAMBDA { return query_vector(from, i * LANES); });
}

// The index of each key beside its queries.
INLINE auto key_index(int64_t c, Four) {
  return interleaved([&](int i) INLINE_LAMBDA { return splat(int32_t(c + i / NV)); });
}

// ------------------------------------------------------------------ packing
// All of an operand's lines in panels of W, along its K dimension DEPTH at a time; piece k0 begins at k0 times the lines.
template <int W, class P>
static __attribute__((noinline, unused)) void pack_lines(E* to, Operand<P> from, int64_t lines, int64_t k_size) {
  for (int64_t k0 = 0; k0 < k_size; k0 += DEPTH)
    pack_across<W>(to + k0 * round_up(lines, W), Operand<P>{from.data + k0, from.stride}, lines, min(DEPTH, k_size - k0));
}
// Panels of W along the K dimension, for each line the W elements next to each other.
template <int W, class P>
static __attribute__((noinline, unused)) void pack_k(E* to, Operand<P> from, int64_t lines, int64_t k_size) {
  constexpr int64_t SOME = PLAN_BLOCK_ROWS / W * W;
  for (int64_t c = 0; c < k_size; c += SOME)
    pack_along<W>(to + c * lines, Operand<P>{from.data + c, from.stride}, min(SOME, k_size - c), lines);
}

// ------------------------------------------------------------------ the micro-kernel
// As `micro`, of a left operand whose line i has its k-th element at left[i * ACROSS + k * ALONG].
template <bool FRESH, int64_t ACROSS, int64_t ALONG>
static __attribute__((noinline)) void multiply(int64_t depth, const E* left, const E* right, E* tile) {
  X sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = FRESH ? repeat(NEUTRAL) : get(tile + i * NR + j * XLANES);
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k, left += ALONG, right += NR) {
    X b[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) b[j] = get(right + j * XLANES);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) sum[i][j] = chain(left[i * ACROSS], b[j], sum[i][j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) put(tile + i * NR + j * XLANES, sum[i][j]);
}
template <int64_t ACROSS, int64_t ALONG>
INLINE void multiply(bool fresh, int64_t depth, const E* left, const E* right, E* tile) {
  fresh ? multiply<true, ACROSS, ALONG>(depth, left, right, tile)
        : multiply<false, ACROSS, ALONG>(depth, left, right, tile);
}

// ------------------------------------------------------------------ scores
// For all keys below `keys` the products with the queries of a panel. `tile` is one tile with its pending
// partials above it.
static __attribute__((noinline, unused)) void score(
    E* panel, int64_t keys, int64_t all, int64_t k_size, const E* left, const E* right, E* tile) {
  for (int64_t i = 0; i * MR < keys; ++i) {
    E* const sum = k_size > CHAIN ? tile : panel + i * TILE_SIZE;
    for (int64_t k0 = 0; k0 < k_size; k0 += DEPTH) {
      const int64_t depth = min(DEPTH, k_size - k0), end = k0 + depth;
      const E* const a = left + k0 * round_up(all, MR) + i * MR * depth;
      multiply<1, MR>(k0 % CHAIN == 0, depth, a, right + k0 * NR, sum);
      if (k_size > CHAIN && (end % CHAIN == 0 || end == k_size)) join_chain(sum, TILE_SIZE, k0 / CHAIN, end == k_size);
    }
    if (k_size == 0) clear(sum);
    if (k_size > CHAIN) __builtin_memcpy(panel + i * TILE_SIZE, tile, TILE_SIZE * sizeof(E));
  }
}

// ------------------------------------------------------------------ which keys queries attend to
// Each attends to the keys below its limit: all queries of a panel to those below `min`, none to those from `max` on.
struct KeyLimits {
  int64_t min, max;
  const int32_t* limit;  // of each query; null where all attend to all keys
};
INLINE KeyLimits key_limits(const PerQuery<int32_t>& limit, int64_t count) {
  KeyLimits limits = {limit.value[0], limit.value[0], limit.value};
  for (int64_t i = 1; i < count; ++i) {
    limits.min = min(limits.min, limit.value[i]);
    limits.max = max(limits.max, limit.value[i]);
  }
  return limits;
}

// ------------------------------------------------------------------ maxima and sums of a panel's rows
// The maximum of each query.
struct RowMax {
  Max lanes[NV];
  // Of the keys beside each other the first `lines`.
  template <class T> INLINE_LAMBDA void take(const T& x, int64_t, int64_t lines) {
    if (lines == LINES)
      for (int i = 0; i < INTERLEAVE; ++i) tokitai::take(lanes[i % NV], leaf_max(at(x, i)));
    else
      for (int i = 0; i < lines * NV; ++i) tokitai::take(lanes[i % NV], leaf_max(at(x, i)));
  }
  void close(int64_t, int64_t) {}
  void result(int64_t, PerQuery<Stored>& to) const {
    for (int j = 0; j < NV; ++j) {
      Stored row[LANES];
      store(row, lanes_of(lanes[j]));
      for (int i = 0; i < LANES; ++i) store1(row + i, done_max(load1(row + i)));
      replicate(to, j * LANES, load(row));
    }
  }
};

// The balanced tree over the keys, for each query: keys of a group are added first; then one partial is pending at each
// level whose bit is set in the number of groups so far.
struct RowSum {
  Stored terms[GROUP * NR];
  Stored pending[32][NR];
  template <class T> INLINE_LAMBDA void take(const T& x, int64_t index, int64_t) {
    for (int i = 0; i < INTERLEAVE; ++i) store(vector_at(terms, index * NR + i * LANES), at(x, i));
  }
  // The n-th group is over, in which there were `count` keys.
  INLINE_LAMBDA void close(int64_t n, int64_t count) {
    for (int64_t i = count * NR; i < GROUP * NR; i += LANES) store(vector_at(terms, i), splat(NEUTRAL_SUM));
    for (int j = 0; j < NV; ++j) {
      const auto term = [&](int i) INLINE_LAMBDA { return load(vector_at(terms, i * NR + j * LANES)); };
      const V low = add(add(term(0), term(1)), add(term(2), term(3)));
      const V high = add(add(term(4), term(5)), add(term(6), term(7)));
      V sum = add(low, high);
      int level = 0;
      for (int64_t k = n; k & 1; k /= 2, ++level) sum = add(load(vector_at(pending[level], j * LANES)), sum);
      store(vector_at(pending[level], j * LANES), sum);
    }
  }
  void result(int64_t keys, PerQuery<Stored>& to) const {
    for (int64_t j = 0; j < NR; j += LANES) {
      V sum = splat(S{});
      bool any = false;
      int level = 0;
      for (int64_t k = ceil_div(keys, GROUP); k; k /= 2, ++level)
        if (k & 1) {
          const V there = load(vector_at(pending[level], j));
          sum = any ? add(there, sum) : there;
          any = true;
        }
      replicate(to, j, sum);
    }
  }
};

// at(c, index, lines) computes the values of `lines` keys from c on, at an index in their group, as long as a query of the
// panel attends to any of them; hidden(index, lines) stands for the keys after those. close(n, count) ends the n-th group.
template <class F, class G, class H>
INLINE void each_key(int64_t keys, const KeyLimits& limits, const F& at, const G& hidden, const H& close) {
  for (int64_t c = 0; c < keys; c += GROUP) {
    const int64_t count = min(GROUP, keys - c);
    for (int64_t index = 0; index < count; index += LINES) {
      const int64_t lines = min(LINES, count - index);
      c + index < limits.max ? at(c + index, index, lines) : hidden(index, lines);
    }
    close(c / GROUP, count);
  }
}

// ------------------------------------------------------------------ sums over keys, weighted by a panel
// a where a query attends to key c, b elsewhere.
INLINE X if_attended(int64_t c, const int32_t* limit, X a, X b) {
#if TOKITAI_STRUCTURE
  for (int i = 0; i < XLANES; ++i) a.lane[i] = c < limit[i] ? a.lane[i] : b.lane[i];
  return a;
#elif LANES == 1
  return c < *limit ? a : b;
#else
  return where(lt(splat(int32_t(c)), load(limit)), a, b);
#endif
}

// Adds to MR x NR accumulators the products of the keys from `begin` to `end`, where a query attends to them.
static __attribute__((noinline, unused)) void micro_attended(
    int64_t begin, int64_t end, const E* left, const E* right, E* tile, const int32_t* limit) {
  X sum[MR][NV];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) sum[i][j] = get(tile + i * NR + j * XLANES);
  for (int64_t c = begin; c < end; ++c, left += MR, right += NR)
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        const X more = chain(left[i], get(right + j * XLANES), sum[i][j]);
        sum[i][j] = if_attended(c, limit + j * XLANES, more, sum[i][j]);
      }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) put(tile + i * NR + j * XLANES, sum[i][j]);
}

// Tiles of the K dimension x queries, `size` elements in all; above them the pending partials. `left` holds panels of MR
// of the K dimension, for each of `keys` keys.
static __attribute__((noinline, unused)) void sum_over_keys(
    E* tiles, int64_t size, int64_t keys, int64_t k_size, const KeyLimits& limits, const E* left, const E* panel) {
  const int64_t count = ceil_div(k_size, MR);
  for (int64_t c0 = 0; c0 < limits.max; c0 += DEPTH) {
    const int64_t end = min(c0 + DEPTH, limits.max), middle = max(c0, min(limits.min, end));
    for (int64_t i = 0; i < count; ++i) {
      E* const tile = tiles + i * TILE_SIZE;
      const E* const a = left + i * MR * keys;
      multiply<1, MR>(c0 % CHAIN == 0, middle - c0, a + c0 * MR, panel + c0 * NR, tile);
      if (middle < end) micro_attended(middle, end, a + middle * MR, panel + middle * NR, tile, limits.limit);
      if (limits.max > CHAIN && (end % CHAIN == 0 || end == limits.max))
        join_chain(tile, size, c0 / CHAIN, end == limits.max);
    }
  }
  if (limits.min > 0) return;
  for (int64_t i = 0; i < count * MR; ++i)  // the empty sum
    for (int64_t j = 0; j < NR; ++j)
      if (limits.max == 0 || (limits.limit && limits.limit[j] == 0)) tiles[i * NR + j] = empty_sum();
}

// ------------------------------------------------------------------ sums over queries, weighted by a panel
// Adds to MR x NR accumulators the products of a panel's queries with the keys from `c` on, where a query attends.
static __attribute__((noinline, unused)) void lines_attended(
    int64_t c, int64_t depth, const E* left, const E* right, E* tile, const int32_t* limit) {
  for (int64_t k = 0; k < depth; ++k, ++left, right += NR)
    for (int i = 0; i < MR && c + i < limit[k]; ++i)
      for (int j = 0; j < NR; j += XLANES) put(tile + i * NR + j, chain(left[i * NR], get(right + j), get(tile + i * NR + j)));
}

// Adds to tiles of keys x the K dimension, `size` elements in all, the products of a panel's `count` queries from r0 on,
// of `rows` in all. `right` holds panels of NR of the K dimension, for each query.
static __attribute__((noinline, unused)) void sum_over_queries(
    E* tiles, int64_t size, int64_t r0, int64_t count, int64_t rows, int64_t keys, int64_t k_size, const KeyLimits& limits,
    const E* panel, const E* right) {
  const int64_t n_panels = ceil_div(k_size, NR), end = r0 + count;
  const bool fresh = r0 % CHAIN == 0, whole = rows > CHAIN && (end % CHAIN == 0 || end == rows);
  for (int64_t i = 0; i * MR < keys; ++i)
    for (int64_t j = 0; j < n_panels; ++j) {
      E* const tile = tiles + (i * n_panels + j) * TILE_SIZE;
      const E *const a = panel + i * MR * NR, *const b = right + j * NR * count;
      if (i * MR + MR <= limits.min || !limits.limit) {
        multiply<NR, 1>(fresh, count, a, b, tile);
      } else {
        if (fresh) multiply<NR, 1>(true, 0, a, b, tile);
        if (i * MR < limits.max) lines_attended(i * MR, count, a, b, tile, limits.limit);
      }
      if (whole) join_chain(tile, size, r0 / CHAIN, end == rows);
    }
}

// at(c, d, lanes, sum) computes the results of key c from d of the K dimension on, of N sums; to keys from `limits` on no
// query attends.
template <int N, class F>
INLINE void each_key_sum(E* const (&tiles)[N], int64_t keys, int64_t k_size, int64_t limits, const F& at) {
  const int64_t n_panels = ceil_div(k_size, NR);
  for (int64_t c = 0; c < keys; ++c)
    for (int64_t d = 0; d < k_size; d += LANES) {
      V sum[N];
      for (int n = 0; n < N; ++n) {
        E* const index = tiles[n] + (c / MR * n_panels + d / NR) * TILE_SIZE + c % MR * NR + d % NR;
        for (int i = 0; c >= limits && i < LANES; ++i) index[i] = empty_sum();
        sum[n] = result_of(index);
      }
      k_size - d >= LANES ? at(c, d, Full{}, sum) : at(c, d, Part{k_size - d}, sum);
    }
}

// at(j, sum) computes the results of the queries from j on, at one index of the K dimension; they are stored query by query.
template <int N, class P, class F>
INLINE void each_query_sum(
    E* const (&tiles)[N], int64_t count, int64_t k_size, P* out, int64_t stride, E* output, const F& at) {
  const int64_t pitch = round_up(k_size, 16);
  for (int64_t d = 0; d < k_size; ++d)
    for (int64_t j = 0; j < NR; j += LANES) {
      V sum[N];
      for (int n = 0; n < N; ++n) sum[n] = result_of(tiles[n] + d * NR + j);
      Stored values[LANES];
      store(values, at(j, sum));
      for (int i = 0; i < LANES; ++i) stored(output)[(j + i) * pitch + d] = values[i];
    }
  for (int64_t r = 0; r < count; ++r)
    each(0, k_size, [&](int64_t d, auto lanes) INLINE_LAMBDA {
      store(out + r * stride + d, load(stored(output) + r * pitch + d, lanes), lanes);
    });
}

}  // namespace tokitai
