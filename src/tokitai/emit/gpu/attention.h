// Attention: a block of threads takes a tile of queries and walks along the keys, or a tile of keys and walks along the
// queries. At each step it computes the scores that tile and step have in common, by the tiles of products.h, and makes
// of them what it needs. Scores are never written to memory: those of a later pass are computed again.
//
// ROWS are what a block has, COLS what it takes in a step; sums run along the walk, so their order is the definition's.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int PIECES = PLAN_PIECES;  // tiles of the K dimension that a walk sums at a time
static_assert(PRODUCTS == 1 && GROUPS == 1 && COLS == ACROSS * THREAD_N, "neighbouring lanes have all columns of a row");
static_assert(CHAIN % COLS == 0 && COLS % DEPTH == 0 && ROWS <= THREADS && COLS <= THREADS && THREAD_M <= ACROSS, "whole steps");

template <class T> INLINE constexpr T max(T a, T b) { return a > b ? a : b; }

// Shared memory: K-tiles of a product; then the weights of a step, and K-tiles of the weighted operand.
constexpr int WEIGHTS = COLS * ROWS, HALF = DEPTH * COLS, WEIGHED = WEIGHTS + 2 * HALF;
constexpr int MEMORY = 2 * K_TILE_SIZE > WEIGHED ? 2 * K_TILE_SIZE : WEIGHED;

// Where a tile of scores begins.
struct ScoreTile : Unit {
  INLINE ScoreTile(const Work& work, int64_t row, int64_t column) : Unit(work, 0) { r0 = row, c0 = column; }
};

// How many levels of pending partials there may be, and how many elements those of one tile take.
INLINE int64_t levels_of(int64_t terms) {
  int64_t levels = 0;
  for (int64_t n = ceil_div(terms, CHAIN) - 1; n > 0; n >>= 1) ++levels;
  return levels;
}
INLINE int64_t pending_size(int64_t terms) { return levels_of(terms) * ROWS * COLS; }

INLINE int lane_here() { return thread_index() % ACROSS; }

// ------------------------------------------------------------------ which keys queries attend to
// Each attends to the keys below its limit: all of a few queries to those below `min`, none to those from `max` on.
struct KeyLimits {
  int64_t min, max;
};
// Of N queries, whose limits lie in shared memory, with so many keys.
template <int N> INLINE KeyLimits key_limits(const int32_t* limits, int64_t keys) {
  int32_t low = limits[lane_here()], high = low;
  UNROLL for (int i = ACROSS; i < N; i += ACROSS) {
    low = min(low, limits[lane_here() + i]);
    high = max(high, limits[lane_here() + i]);
  }
  UNROLL for (int d = 1; d < ACROSS; d *= 2) {
    low = min(low, int32_t(exchange(uint32_t(low), d)));
    high = max(high, int32_t(exchange(uint32_t(high), d)));
  }
  return {min<int64_t>(low, keys), min<int64_t>(high, keys)};
}

// ------------------------------------------------------------------ maxima and sums along rows
INLINE void fill(S (&x)[THREAD_M][THREAD_N], S with) {
  UNROLL for (int i = 0; i < THREAD_M; ++i)
    UNROLL for (int j = 0; j < THREAD_N; ++j) x[i][j] = with;
}

// The maximum of each row. take(x, count): of the columns of a step the first `count` exist.
struct RowMax {
  S top[THREAD_M];
  INLINE RowMax() {
    UNROLL for (int i = 0; i < THREAD_M; ++i) top[i] = NEUTRAL_MAX;
  }
  INLINE void take(const S (&x)[THREAD_M][THREAD_N], int count) {
    UNROLL for (int j = 0; j < THREAD_N; ++j)
      if (column_here(j) < count)
        UNROLL for (int i = 0; i < THREAD_M; ++i) top[i] = join_max(top[i], leaf_max(x[i][j]));
  }
  INLINE void result(S* to) {
    UNROLL for (int i = 0; i < THREAD_M; ++i) {
      const S x = across<Maximum, ACROSS>(top[i]);
      if (lane_here() == 0) to[row_at(line_here(), i)] = done_max(x);
    }
  }
};

// The balanced tree along each row: a step is one of its nodes. Lane i holds the tree over the steps of row i.
struct RowSum {
  BinaryCounter<Add> counter;
  INLINE void take(const S (&x)[THREAD_M][THREAD_N], int count) {
    S mine = NEUTRAL_SUM;
    UNROLL for (int i = 0; i < THREAD_M; ++i) {
      S parts[THREAD_N / QUAD];
      UNROLL for (int g = 0; g < THREAD_N / QUAD; ++g) {
        S terms[QUAD];
        UNROLL for (int e = 0; e < QUAD; ++e)
          terms[e] = column_here(g * QUAD + e) < count ? x[i][g * QUAD + e] : NEUTRAL_SUM;
        parts[g] = across<Add, ACROSS>(fold<Add, QUAD>(terms));
      }
      const S sum = fold<Add, THREAD_N / QUAD>(parts);
      if (lane_here() == i) mine = sum;
    }
    counter.push(mine);
  }
  INLINE void result(S* to) {
    if (lane_here() < THREAD_M) to[row_at(line_here(), lane_here())] = counter.result(S{});
  }
};

// ------------------------------------------------------------------ weighted sums
// Weights lie in shared memory column by column; rows are swizzled from column to column, so that the threads of
// a warp store in different banks.
INLINE constexpr int weight_swizzle(int column) { return column / THREAD_N % (ROWS / 4) * 4; }
#if TOKITAI_STRUCTURE
INLINE E weight_padding() { return {LEFT_PADDING}; }
#else
INLINE E weight_padding() { return NEUTRAL; }  // times +0 it is -0, which leaves every sum as it is
#endif

// Of the columns of a step the first `count` exist.
INLINE void put_weights(const S (&x)[THREAD_M][THREAD_N], int count, E* weights) {
  UNROLL for (int j = 0; j < THREAD_N; ++j) {
    const int column = column_here(j);
    UNROLL for (int i = 0; i < THREAD_M; i += QUAD) {
      Quad q;
      UNROLL for (int e = 0; e < QUAD; ++e) q.e[e] = column < count ? x[i + e][j] : weight_padding();
      *reinterpret_cast<Quad*>(weights + column * ROWS + (row_at(line_here(), i) ^ weight_swizzle(column))) = q;
    }
  }
}

// Adds to a tile of rows x K dimension the products of a step's weights and of the lines of an operand from `k0` on, of
// which `count` exist: of the K dimension from d0 on. With SOME, attended(i, k) says whether row i attends to line k.
template <bool SOME, class P, class F>
INLINE void weigh(
    Tile& tile, Operand<P> x, int64_t d0, int64_t k_size, int64_t k0, int count, const E* weights, E* k_tiles, const F& attended) {
  Loader<COLS, false, false, P> right;
  right.start(x, d0, k_size, k0);
  const bool inside = right.lines == COLS;
  const auto fetch = [&](int rest) {
    if (inside && rest >= DEPTH) right.template fetch<true>(rest);
    else right.template fetch<false>(rest);
    right.advance();
  };
  fetch(count);
  right.put(k_tiles);
  barrier();
  int half = 0;
  ROLLED for (int k = 0; k < count; k += DEPTH, half ^= 1) {
    const bool more = k + DEPTH < count;
    if (more) fetch(count - k - DEPTH);
    const E* const k_tile = k_tiles + half * HALF;
    ROLLED for (int n = 0; n < DEPTH; n += UNROLL_K)
      UNROLL for (int m = 0; m < UNROLL_K; ++m) {
        const int line = k + n + m;
        E a[THREAD_M], b[THREAD_N];
        UNROLL for (int i = 0; i < THREAD_M; i += QUAD) {
          const E* const from = weights + line * ROWS + (row_at(line_here(), i) ^ weight_swizzle(line));
          const Quad q = *reinterpret_cast<const Quad*>(from);
          UNROLL for (int e = 0; e < QUAD; ++e) a[i + e] = q.e[e];
        }
        UNROLL for (int j = 0; j < THREAD_N; j += QUAD) {
          const Quad q = *reinterpret_cast<const Quad*>(k_tile + (n + m) * COLS + column_here(j));
          UNROLL for (int e = 0; e < QUAD; ++e) b[j + e] = q.e[e];
        }
        UNROLL for (int i = 0; i < THREAD_M; ++i) {
          if (SOME && !attended(i, line)) continue;
          UNROLL for (int j = 0; j < THREAD_N; ++j) tile.sum[0][i][j] = chain(a[i], b[j], tile.sum[0][i][j]);
        }
      }
    if (more) right.put(k_tiles + (half ^ 1) * HALF);
    barrier();
  }
}

// A tile's sums in shared memory, row by row.
INLINE void store_tile(const Tile& tile, E* to) {
  UNROLL for (int i = 0; i < THREAD_M; ++i)
    UNROLL for (int j = 0; j < THREAD_N; ++j) to[row_at(line_here(), i) * COLS + column_here(j)] = tile.sum[0][i][j];
}

// Ends the chain of a sum where a step ends one, or the walk: after `done` terms of `all`.
INLINE void end_chain(Tile& tile, E* pending, int64_t done, int64_t all) {
  const bool last = done >= all;
  if (all <= CHAIN || (done % CHAIN && !last)) return;
  tile.join_chain(pending, (done - 1) / CHAIN, last);
  if (!last) tile.fill(NEUTRAL);
}

}  // namespace tokitai
