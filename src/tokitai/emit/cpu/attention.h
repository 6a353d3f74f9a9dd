// Attention: for a panel of queries the scores of all keys, which lie key by key with the queries next to each other. So a
// row's maximum and sum run over whole vectors, and scores are at once the right operand of the product with the values.
//
// Along the keys the order of every sum is the definition's; how many queries are a panel changes no bit.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int64_t PANEL = NR;           // queries
constexpr int LINES = TOGETHER / NV;    // keys of a panel that are four vectors
constexpr int64_t GROUP = 8;            // keys whose sum is taken before it joins others
constexpr int64_t WIDTH = LINES * NR;   // elements in them
static_assert(TOGETHER % NV == 0 && GROUP % LINES == 0, "whole lines");
static_assert(CHAIN % NR == 0, "a chain of queries is whole panels");

INLINE int64_t padded(int64_t count, int64_t of) { return over(count, of) * of; }

// How many levels of sums may wait above those that are open.
INLINE int64_t levels_of(int64_t terms) {
  const int64_t chains = over(terms, CHAIN);
  int64_t levels = 0;
  for (int64_t n = chains > 1 ? chains : 0; n; n /= 2) ++levels;
  return levels;
}

// The memory of a thread, taken piece by piece.
struct Memory {
  int64_t size = 0;
  int64_t take(int64_t count) {
    const int64_t begin = size;
    size += padded(count, 16);
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
INLINE V query_vector(const PerQuery<Stored>& from, int64_t j) { return load(from.value + j); }
INLINE I query_vector(const PerQuery<int32_t>& from, int64_t j) {
  I v;
  __builtin_memcpy(&v, from.value + j, sizeof v);
  return v;
}
INLINE void spread(PerQuery<Stored>& to, int64_t j, V x) {
  for (int line = 0; line < LINES; ++line) store(to.value + line * NR + j, x);
}
template <class T> INLINE auto beside(const PerQuery<T>& from) {
  return in_turn([&](int i) INLINE_LAMBDA { return query_vector(from, i * LANES); });
}

// The index of each key beside its queries.
INLINE auto key_index(int64_t c, Four) {
  return in_turn([&](int i) INLINE_LAMBDA { return splat(int32_t(c + i / NV)); });
}

// ------------------------------------------------------------------ packing
// All of an operand's lines in panels of W, along its inner side DEPTH at a time; piece k0 begins at k0 times the lines.
template <int W, class P>
static __attribute__((noinline, unused)) void pack_lines(E* to, Side<P> from, int64_t lines, int64_t inner) {
  for (int64_t k0 = 0; k0 < inner; k0 += DEPTH)
    pack_across<W>(to + k0 * padded(lines, W), Side<P>{from.data + k0, from.stride}, lines, least(DEPTH, inner - k0));
}
// Panels of W along the inner side, for each line the W elements next to each other.
template <int W, class P>
static __attribute__((noinline, unused)) void pack_inner(E* to, Side<P> from, int64_t lines, int64_t inner) {
  constexpr int64_t SOME = PLAN_BLOCK_ROWS / W * W;
  for (int64_t c = 0; c < inner; c += SOME)
    pack_along<W>(to + c * lines, Side<P>{from.data + c, from.stride}, least(SOME, inner - c), lines);
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
// For all keys below `keys` the products with the queries of a panel. `tile` is one with the sums that wait above it.
static __attribute__((noinline, unused)) void score(
    E* panel, int64_t keys, int64_t all, int64_t inner, const E* left, const E* right, E* tile) {
  for (int64_t i = 0; i * MR < keys; ++i) {
    E* const sum = inner > CHAIN ? tile : panel + i * TILE_SIZE;
    for (int64_t k0 = 0; k0 < inner; k0 += DEPTH) {
      const int64_t depth = least(DEPTH, inner - k0), end = k0 + depth;
      const E* const a = left + k0 * padded(all, MR) + i * MR * depth;
      multiply<1, MR>(k0 % CHAIN == 0, depth, a, right + k0 * NR, sum);
      if (inner > CHAIN && (end % CHAIN == 0 || end == inner)) join_chain(sum, TILE_SIZE, k0 / CHAIN, end == inner);
    }
    if (inner == 0) clear(sum);
    if (inner > CHAIN) __builtin_memcpy(panel + i * TILE_SIZE, tile, TILE_SIZE * sizeof(E));
  }
}

// ------------------------------------------------------------------ what queries see
// Each sees the keys below its limit: all queries of a panel those below `least`, none those from `most` on.
struct Seen {
  int64_t least, most;
  const int32_t* limit;  // of each query; none where all see all
};
INLINE Seen seen_of(const PerQuery<int32_t>& limit, int64_t count) {
  Seen seen = {limit.value[0], limit.value[0], limit.value};
  for (int64_t i = 1; i < count; ++i) {
    seen.least = least(seen.least, limit.value[i]);
    seen.most = most(seen.most, limit.value[i]);
  }
  return seen;
}

// ------------------------------------------------------------------ maxima and sums of a panel's rows
// The maximum of each query.
struct RowMax {
  Max lanes[NV];
  // Of the keys beside each other the first `lines`.
  template <class T> INLINE_LAMBDA void take(const T& x, int64_t, int64_t lines) {
    if (lines == LINES)
      for (int i = 0; i < TOGETHER; ++i) tokitai::take(lanes[i % NV], leaf_max(at(x, i)));
    else
      for (int i = 0; i < lines * NV; ++i) tokitai::take(lanes[i % NV], leaf_max(at(x, i)));
  }
  void close(int64_t, int64_t) {}
  void result(int64_t, PerQuery<Stored>& to) const {
    for (int j = 0; j < NV; ++j) {
      Stored row[LANES];
      store(row, lanes_of(lanes[j]));
      for (int i = 0; i < LANES; ++i) store1(row + i, done_max(load1(row + i)));
      spread(to, j * LANES, load(row));
    }
  }
};

// The balanced tree over the keys, for each query: keys of a group are added first; then a sum waits at each level whose
// bit is set in the number of groups so far.
struct RowSum {
  Stored terms[GROUP * NR];
  Stored waiting[32][NR];
  template <class T> INLINE_LAMBDA void take(const T& x, int64_t place, int64_t) {
    for (int i = 0; i < TOGETHER; ++i) store(terms + place * NR + i * LANES, at(x, i));
  }
  // The n-th group is over, in which there were `count` keys.
  INLINE_LAMBDA void close(int64_t n, int64_t count) {
    for (int64_t i = count * NR; i < GROUP * NR; i += LANES) store(terms + i, splat(NEUTRAL_SUM));
    for (int j = 0; j < NV; ++j) {
      const auto term = [&](int i) INLINE_LAMBDA { return load(terms + i * NR + j * LANES); };
      const V low = add(add(term(0), term(1)), add(term(2), term(3)));
      const V high = add(add(term(4), term(5)), add(term(6), term(7)));
      V sum = add(low, high);
      int level = 0;
      for (int64_t k = n; k & 1; k /= 2, ++level) sum = add(load(waiting[level] + j * LANES), sum);
      store(waiting[level] + j * LANES, sum);
    }
  }
  void result(int64_t keys, PerQuery<Stored>& to) const {
    for (int64_t j = 0; j < NR; j += LANES) {
      V sum = splat(S{});
      bool any = false;
      int level = 0;
      for (int64_t k = over(keys, GROUP); k; k /= 2, ++level)
        if (k & 1) {
          sum = any ? add(load(waiting[level] + j), sum) : load(waiting[level] + j);
          any = true;
        }
      spread(to, j, sum);
    }
  }
};

// at(c, place, lines) makes the values of `lines` keys from c on, at a place in their group, as long as a query of the
// panel sees any of them; hidden(place, lines) stands for those behind. close(n, count) ends the n-th group.
template <class F, class G, class H>
INLINE void each_key(int64_t keys, const Seen& seen, const F& at, const G& hidden, const H& close) {
  for (int64_t c = 0; c < keys; c += GROUP) {
    const int64_t count = least(GROUP, keys - c);
    for (int64_t place = 0; place < count; place += LINES) {
      const int64_t lines = least(LINES, count - place);
      c + place < seen.most ? at(c + place, place, lines) : hidden(place, lines);
    }
    close(c / GROUP, count);
  }
}

// ------------------------------------------------------------------ sums over keys, weighted by a panel
// a where a query sees key c, b elsewhere.
INLINE X if_seen(int64_t c, const int32_t* limit, X a, X b) {
#if TOKITAI_STRUCTURE
  for (int i = 0; i < XLANES; ++i) a.lane[i] = c < limit[i] ? a.lane[i] : b.lane[i];
  return a;
#elif LANES == 1
  return c < *limit ? a : b;
#else
  return where(lt(splat(int32_t(c)), load(limit)), a, b);
#endif
}

// To MR x NR accumulators the products of the keys from `begin` to `end`, where a query sees them.
static __attribute__((noinline, unused)) void micro_seen(
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
        sum[i][j] = if_seen(c, limit + j * XLANES, more, sum[i][j]);
      }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) put(tile + i * NR + j * XLANES, sum[i][j]);
}

// Tiles of the inner side x queries, `size` elements in all; above them the sums that wait. `left` holds panels of MR of
// the inner side, for each of `keys` keys.
static __attribute__((noinline, unused)) void sum_over_keys(
    E* tiles, int64_t size, int64_t keys, int64_t inner, const Seen& seen, const E* left, const E* panel) {
  const int64_t count = over(inner, MR);
  for (int64_t c0 = 0; c0 < seen.most; c0 += DEPTH) {
    const int64_t end = least(c0 + DEPTH, seen.most), middle = most(c0, least(seen.least, end));
    for (int64_t i = 0; i < count; ++i) {
      E* const tile = tiles + i * TILE_SIZE;
      const E* const a = left + i * MR * keys;
      multiply<1, MR>(c0 % CHAIN == 0, middle - c0, a + c0 * MR, panel + c0 * NR, tile);
      if (middle < end) micro_seen(middle, end, a + middle * MR, panel + middle * NR, tile, seen.limit);
      if (seen.most > CHAIN && (end % CHAIN == 0 || end == seen.most))
        join_chain(tile, size, c0 / CHAIN, end == seen.most);
    }
  }
  if (seen.least > 0) return;
  for (int64_t i = 0; i < count * MR; ++i)  // the sum over nothing
    for (int64_t j = 0; j < NR; ++j)
      if (seen.most == 0 || (seen.limit && seen.limit[j] == 0)) tiles[i * NR + j] = nothing();
}

// ------------------------------------------------------------------ sums over queries, weighted by a panel
// To MR x NR accumulators the products of a panel's queries with the keys from `c` on, where a query sees them.
static __attribute__((noinline, unused)) void lines_seen(
    int64_t c, int64_t depth, const E* left, const E* right, E* tile, const int32_t* limit) {
  for (int64_t k = 0; k < depth; ++k, ++left, right += NR)
    for (int i = 0; i < MR && c + i < limit[k]; ++i)
      for (int j = 0; j < NR; j += XLANES) put(tile + i * NR + j, chain(left[i * NR], get(right + j), get(tile + i * NR + j)));
}

// To tiles of keys x the inner side, `size` elements in all, the products of a panel's `count` queries from r0 on, of
// `rows` in all. `right` holds panels of NR of the inner side, for each query.
static __attribute__((noinline, unused)) void sum_over_queries(
    E* tiles, int64_t size, int64_t r0, int64_t count, int64_t rows, int64_t keys, int64_t inner, const Seen& seen,
    const E* panel, const E* right) {
  const int64_t wide = over(inner, NR), end = r0 + count;
  const bool fresh = r0 % CHAIN == 0, whole = rows > CHAIN && (end % CHAIN == 0 || end == rows);
  for (int64_t i = 0; i * MR < keys; ++i)
    for (int64_t j = 0; j < wide; ++j) {
      E* const tile = tiles + (i * wide + j) * TILE_SIZE;
      const E *const a = panel + i * MR * NR, *const b = right + j * NR * count;
      if (i * MR + MR <= seen.least || !seen.limit) {
        multiply<NR, 1>(fresh, count, a, b, tile);
      } else {
        if (fresh) multiply<NR, 1>(true, 0, a, b, tile);
        if (i * MR < seen.most) lines_seen(i * MR, count, a, b, tile, seen.limit);
      }
      if (whole) join_chain(tile, size, r0 / CHAIN, end == rows);
    }
}

// at(c, d, lanes, sum) makes the results of key c from d of the inner side on, of N sums; keys from `seen` on no query has
// seen.
template <int N, class F>
INLINE void each_key_sum(E* const (&tiles)[N], int64_t keys, int64_t inner, int64_t seen, const F& at) {
  const int64_t wide = over(inner, NR);
  for (int64_t c = 0; c < keys; ++c)
    for (int64_t d = 0; d < inner; d += LANES) {
      V sum[N];
      for (int n = 0; n < N; ++n) {
        E* const place = tiles[n] + (c / MR * wide + d / NR) * TILE_SIZE + c % MR * NR + d % NR;
        for (int i = 0; c >= seen && i < LANES; ++i) place[i] = nothing();
        sum[n] = finished(place);
      }
      inner - d >= LANES ? at(c, d, Full{}, sum) : at(c, d, Part{inner - d}, sum);
    }
}

// at(j, sum) makes the results of the queries from j on, of one place of the inner side; they are stored query by query.
template <int N, class P, class F>
INLINE void each_query_sum(
    E* const (&tiles)[N], int64_t count, int64_t inner, P* out, int64_t stride, E* made, const F& at) {
  const int64_t pitch = padded(inner, 16);
  for (int64_t d = 0; d < inner; ++d)
    for (int64_t j = 0; j < NR; j += LANES) {
      V sum[N];
      for (int n = 0; n < N; ++n) sum[n] = finished(tiles[n] + d * NR + j);
      Stored values[LANES];
      store(values, at(j, sum));
      for (int i = 0; i < LANES; ++i) stored(made)[(j + i) * pitch + d] = values[i];
    }
  for (int64_t r = 0; r < count; ++r)
    each(0, inner, [&](int64_t d, auto lanes) INLINE_LAMBDA {
      store(out + r * stride + d, load(stored(made) + r * pitch + d, lanes), lanes);
    });
}

}  // namespace tokitai
