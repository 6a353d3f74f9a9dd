// Attention: a block of threads takes a tile of queries and walks along the keys, or a tile of keys and walks along the
// queries. At each step it computes the scores that tile and step have in common, by the tiles of products.h, and makes
// of them what it needs. Scores are never written to memory: those of a later pass are computed again.
//
// ROWS are what a block has, COLS what it takes in a step; sums run along the walk, so their order is the definition's.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int PIECES = PLAN_PIECES;  // tiles of the inner side whose sums a walk makes at a time
static_assert(PRODUCTS == 1 && GROUPS == 1 && COLS == ACROSS * WIDE, "neighbouring lanes have all columns of a row");
static_assert(CHAIN % COLS == 0 && COLS % DEPTH == 0 && ROWS <= THREADS && COLS <= THREADS && TALL <= ACROSS, "whole steps");

template <class T> INLINE constexpr T most(T a, T b) { return a > b ? a : b; }

// Shared memory: slabs of a product; then the weights of a step, and slabs of what is weighed.
constexpr int WEIGHTS = COLS * ROWS, HALF = DEPTH * COLS, WEIGHED = WEIGHTS + 2 * HALF;
constexpr int MEMORY = 2 * SLAB > WEIGHED ? 2 * SLAB : WEIGHED;

// Where a tile of scores begins.
struct Place : Unit {
  INLINE Place(const Work& work, int64_t row, int64_t column) : Unit(work, 0) { r0 = row, c0 = column; }
};

// How many sums of chains may wait for others, and the room that those of one tile take.
INLINE int64_t levels_of(int64_t terms) {
  int64_t levels = 0;
  for (int64_t n = over(terms, CHAIN) - 1; n > 0; n >>= 1) ++levels;
  return levels;
}
INLINE int64_t room_of(int64_t terms) { return levels_of(terms) * ROWS * COLS; }

INLINE int lane_here() { return thread_index() % ACROSS; }

// ------------------------------------------------------------------ what queries see
// Each sees the keys below its limit: all of a few queries those below `least`, none of them those from `most` on.
struct Seen {
  int64_t least, most;
};
// Of N queries, whose limits lie in shared memory, beside so many keys.
template <int N> INLINE Seen seen_of(const int32_t* limits, int64_t keys) {
  int32_t low = limits[lane_here()], high = low;
  UNROLL for (int i = ACROSS; i < N; i += ACROSS) {
    low = least(low, limits[lane_here() + i]);
    high = most(high, limits[lane_here() + i]);
  }
  UNROLL for (int d = 1; d < ACROSS; d *= 2) {
    low = least(low, int32_t(exchange(uint32_t(low), d)));
    high = most(high, int32_t(exchange(uint32_t(high), d)));
  }
  return {least<int64_t>(low, keys), least<int64_t>(high, keys)};
}

// ------------------------------------------------------------------ maxima and sums along rows
INLINE void fill(S (&x)[TALL][WIDE], S with) {
  UNROLL for (int i = 0; i < TALL; ++i)
    UNROLL for (int j = 0; j < WIDE; ++j) x[i][j] = with;
}

// The maximum of each row. take(x, count): of the columns of a step the first `count` are there.
struct RowMax {
  S top[TALL];
  INLINE RowMax() {
    UNROLL for (int i = 0; i < TALL; ++i) top[i] = NEUTRAL_MAX;
  }
  INLINE void take(const S (&x)[TALL][WIDE], int count) {
    UNROLL for (int j = 0; j < WIDE; ++j)
      if (column_here(j) < count)
        UNROLL for (int i = 0; i < TALL; ++i) top[i] = join_max(top[i], leaf_max(x[i][j]));
  }
  INLINE void result(S* to) {
    UNROLL for (int i = 0; i < TALL; ++i) {
      const S x = across<Most, ACROSS>(top[i]);
      if (lane_here() == 0) to[row_at(line_here(), i)] = done_max(x);
    }
  }
};

// The balanced tree along each row: a step is one of its nodes. The tree over the steps of row i is lane i's.
struct RowSum {
  Tower<Add> tower;
  INLINE void take(const S (&x)[TALL][WIDE], int count) {
    S mine = NEUTRAL_SUM;
    UNROLL for (int i = 0; i < TALL; ++i) {
      S parts[WIDE / QUAD];
      UNROLL for (int g = 0; g < WIDE / QUAD; ++g) {
        S terms[QUAD];
        UNROLL for (int e = 0; e < QUAD; ++e)
          terms[e] = column_here(g * QUAD + e) < count ? x[i][g * QUAD + e] : NEUTRAL_SUM;
        parts[g] = across<Add, ACROSS>(fold<Add, QUAD>(terms));
      }
      const S sum = fold<Add, WIDE / QUAD>(parts);
      if (lane_here() == i) mine = sum;
    }
    tower.push(mine);
  }
  INLINE void result(S* to) {
    if (lane_here() < TALL) to[row_at(line_here(), lane_here())] = tower.result(S{});
  }
};

// ------------------------------------------------------------------ weighted sums
// Weights lie in shared memory column by column; rows have some bits changed from column to column, so that the threads
// of a warp store in different banks.
INLINE constexpr int weight_turned(int column) { return column / WIDE % (ROWS / 4) * 4; }
#if TOKITAI_STRUCTURE
INLINE E behind_weight() { return {BEHIND_LEFT}; }
#else
INLINE E behind_weight() { return NEUTRAL; }  // times +0 it is -0, which leaves every sum as it is
#endif

// Of the columns of a step the first `count` are there.
INLINE void put_weights(const S (&x)[TALL][WIDE], int count, E* weights) {
  UNROLL for (int j = 0; j < WIDE; ++j) {
    const int column = column_here(j);
    UNROLL for (int i = 0; i < TALL; i += QUAD) {
      Quad q;
      UNROLL for (int e = 0; e < QUAD; ++e) q.e[e] = column < count ? x[i + e][j] : behind_weight();
      *reinterpret_cast<Quad*>(weights + column * ROWS + (row_at(line_here(), i) ^ weight_turned(column))) = q;
    }
  }
}

// To a tile of rows x inner side, the products of a step's weights and of the lines of an operand from `k0` on, of which
// `count` are there: of the inner side from d0 on. Where only SOME are met, met(i, k) says whether row i meets line k.
template <bool SOME, class P, class F>
INLINE void weigh(
    Tile& tile, Side<P> x, int64_t d0, int64_t inner, int64_t k0, int count, const E* weights, E* slabs, const F& met) {
  Feed<COLS, false, false, P> right;
  right.start(x, d0, inner, k0);
  const bool inside = right.lines == COLS;
  const auto fetch = [&](int rest) {
    if (inside && rest >= DEPTH) right.template fetch<true>(rest);
    else right.template fetch<false>(rest);
    right.advance();
  };
  fetch(count);
  right.put(slabs);
  barrier();
  int half = 0;
  ROLLED for (int k = 0; k < count; k += DEPTH, half ^= 1) {
    const bool more = k + DEPTH < count;
    if (more) fetch(count - k - DEPTH);
    const E* const slab = slabs + half * HALF;
    ROLLED for (int n = 0; n < DEPTH; n += AT_ONCE)
      UNROLL for (int m = 0; m < AT_ONCE; ++m) {
        const int line = k + n + m;
        E a[TALL], b[WIDE];
        UNROLL for (int i = 0; i < TALL; i += QUAD) {
          const E* const from = weights + line * ROWS + (row_at(line_here(), i) ^ weight_turned(line));
          const Quad q = *reinterpret_cast<const Quad*>(from);
          UNROLL for (int e = 0; e < QUAD; ++e) a[i + e] = q.e[e];
        }
        UNROLL for (int j = 0; j < WIDE; j += QUAD) {
          const Quad q = *reinterpret_cast<const Quad*>(slab + (n + m) * COLS + column_here(j));
          UNROLL for (int e = 0; e < QUAD; ++e) b[j + e] = q.e[e];
        }
        UNROLL for (int i = 0; i < TALL; ++i) {
          if (SOME && !met(i, line)) continue;
          UNROLL for (int j = 0; j < WIDE; ++j) tile.sum[0][i][j] = chain(a[i], b[j], tile.sum[0][i][j]);
        }
      }
    if (more) right.put(slabs + (half ^ 1) * HALF);
    barrier();
  }
}

// A tile's sums in shared memory, row by row.
INLINE void spread_out(const Tile& tile, E* to) {
  UNROLL for (int i = 0; i < TALL; ++i)
    UNROLL for (int j = 0; j < WIDE; ++j) to[row_at(line_here(), i) * COLS + column_here(j)] = tile.sum[0][i][j];
}

// Ends the chain of a sum where a step ends one, or the walk: after `done` terms of `all`.
INLINE void end_chain(Tile& tile, E* waiting, int64_t done, int64_t all) {
  const bool last = done >= all;
  if (all <= CHAIN || (done % CHAIN && !last)) return;
  tile.join_chain(waiting, (done - 1) / CHAIN, last);
  if (!last) tile.fill(NEUTRAL);
}

}  // namespace tokitai
