// Matrix products: blocks of threads walk along k through K-tiles of the operands in shared memory, widened to
// accumulators; a thread adds to a tile of accumulators in the order of k; whole chains are added as the balanced tree;
// then results are computed, neighbouring columns by neighbouring threads.
#pragma once
#include "work.h"

namespace tokitai {

constexpr int THREAD_M = PLAN_THREAD_M, THREAD_N = PLAN_THREAD_N;
constexpr int WIDTH = PLAN_WIDTH, THREADS = ROWS / THREAD_M * (COLS / THREAD_N);
#ifdef PLAN_GROUPED  // where many tiles end early, warps below the last row leave the others their time
constexpr bool ENDS_EARLY = true;
#else
constexpr bool ENDS_EARLY = false;
#endif
constexpr int DEPTH = PLAN_DEPTH * 4 / int(sizeof(E));  // products along k in a K-tile
constexpr int K_TILE_SIZE = DEPTH * (ROWS + PRODUCTS * COLS);  // elements in the K-tiles of all operands
#if TOKITAI_HIP && defined(ACCUMULATORS_FUSED)
constexpr int UNROLL_K = UNIT_STEP;
#elif TOKITAI_HIP  // clang reads whole K-tiles into registers otherwise
constexpr int UNROLL_K = 2;
#else
constexpr int UNROLL_K = min<int>(PLAN_UNROLL_K, DEPTH);
#endif
constexpr int LINE = ROWS / THREAD_M;                       // rows of a tile whose results are computed at a time
static_assert(CHAIN % DEPTH == 0, "a chain is whole K-tiles");
static_assert(PRODUCTS * LINE * COLS * sizeof(E) <= 2 * K_TILE_SIZE * sizeof(W), "sums of rows fit where K-tiles were");

// ------------------------------------------------------------------ operands
// Copies K-tiles of one operand into shared memory through registers: LINES rows or columns of a tile. Where the elements
// of a line are neighbours in memory (ALONG_K), lines are swizzled from V products to the next, so that the threads of a
// warp store in different banks.
template <int LINES, bool ALONG_K, bool LEFT, class P> struct Loader {
  static constexpr int EACH = LINES * DEPTH / THREADS, V = min<int>(EACH, 16 / int(sizeof(P))), PIECES = EACH / V;
  static constexpr int PER_LINE = (ALONG_K ? DEPTH : LINES) / V, SWIZZLE_STEP = 32 * V / DEPTH;
  static constexpr int BYTES = min<int>(16, min(V, WIDTH) * int(sizeof(P)));
  static_assert(PIECES * V == EACH && V % PACK == 0 && (!ALONG_K || SWIZZLE_STEP % PACK == 0), "whole pieces");
  struct alignas(16) Piece {
    P e[V];
  };
  Piece held[PIECES];
  const P* at[PIECES];
  int64_t step;
  int lines;

  static INLINE int line_of(int i) {
    const int index = thread_index() + i * THREADS;
    return ALONG_K ? index / PER_LINE : index % PER_LINE * V;
  }
  static INLINE int k_of(int i) {
    const int index = thread_index() + i * THREADS;
    return ALONG_K ? index % PER_LINE * V : index / PER_LINE;
  }
#ifdef ACCUMULATORS_FUSED  // where pairs of products along k are read, of four pairs at a time
  static INLINE constexpr int swizzle(int k) { return k / 2 % 4 * 8; }
#elif MATRIX_UNITS  // where four products along k are read at a time
  static INLINE constexpr int swizzle(int k) { return k % 4 * 4; }
#else
  static INLINE constexpr int swizzle(int k) { return ALONG_K ? k / V * SWIZZLE_STEP : 0; }
#endif

  INLINE void start(Operand<P> from, int64_t line0, int64_t count, int64_t k0) {
    step = ALONG_K ? DEPTH : DEPTH * from.stride, lines = int(min<int64_t>(count - line0, LINES));
    UNROLL for (int i = 0; i < PIECES; ++i) {
      const int64_t line = line0 + line_of(i), k = k0 + k_of(i);
      at[i] = from.data + (ALONG_K ? line * from.stride + k : k * from.stride + line);
    }
  }

  // The next K-tile, of which so many products are left; a WHOLE one lies inside the operand.
  template <bool WHOLE> INLINE void fetch(int left) {
    UNROLL for (int i = 0; i < PIECES; ++i) {
      const int line = line_of(i), k = k_of(i);
      const int there = ALONG_K ? (line < lines ? left - k : 0) : (k < left ? lines - line : 0);
      char* const to = reinterpret_cast<char*>(&held[i]);
      if (WHOLE || there >= V) {
        UNROLL for (int b = 0; b < V * int(sizeof(P)); b += BYTES)
          keep<BYTES>(to + b, reinterpret_cast<const char*>(at[i]) + b);
      } else {
        UNROLL for (int e = 0; e < V; ++e) {
          held[i].e[e] = k_padding<P, LEFT>();
          if (e < there) keep<int(sizeof(P))>(to + e * sizeof(P), at[i] + e);
        }
      }
    }
  }
  INLINE void advance() {
    UNROLL for (int i = 0; i < PIECES; ++i) at[i] += step;
  }

  INLINE void put(W* k_tile) const {
    UNROLL for (int i = 0; i < PIECES; ++i) {
      const int line = line_of(i), k = k_of(i);
      if constexpr (ALONG_K) {
        UNROLL for (int e = 0; e < V; ++e)
          k_tile[(k + e) * LINES + (line ^ swizzle(k + e))] = k_tile_value(held[i].e[e]);
      } else {
        UNROLL for (int e = 0; e < V; e += PACK) {
          Pack q;
          UNROLL for (int j = 0; j < PACK; ++j) q.e[j] = k_tile_value(held[i].e[e + j]);
          *reinterpret_cast<Pack*>(k_tile + k * LINES + ((line + e) ^ swizzle(k))) = q;
        }
      }
    }
  }
};

// ------------------------------------------------------------------ tiles
// 32 threads are ACROSS side by side and DOWN below each other; each has rows and columns QUAD at a time.
constexpr int ACROSS = PLAN_LANES, DOWN = 32 / ACROSS, GROUPS = COLS / (ACROSS * THREAD_N);
static_assert(THREADS % 32 == 0 && COLS % (ACROSS * THREAD_N) == 0 && ROWS % (DOWN * THREAD_M) == 0, "whole groups");
static_assert(THREAD_M % QUAD == 0 && THREAD_N % QUAD == 0, "whole quads");
#ifdef ACCUMULATORS_FUSED
constexpr int STEP = UNIT_STEP, BELOW = 1;
static_assert(ACROSS == 4 && THREAD_M % 2 == 0 && UNROLL_K % STEP == 0, "as matrix units have it");
#elif MATRIX_UNITS
constexpr int STEP = 4, BELOW = 1;  // products along k at a time, rows of a thread that are neighbours
static_assert(ACROSS == 4 && QUAD == 2 && THREAD_M % 2 == 0 && UNROLL_K % STEP == 0, "as matrix units have it");
#else
constexpr int STEP = 1, BELOW = QUAD;
#endif

// Row i of those at `line` of LINE, of a tile; column j of a thread's.
INLINE int row_at(int line, int i) {
  return line / DOWN * DOWN * THREAD_M + i / BELOW * DOWN * BELOW + line % DOWN * BELOW + i % BELOW;
}
INLINE int line_here() { return thread_index() / 32 / GROUPS * DOWN + thread_index() % 32 / ACROSS; }
INLINE int column_here(int j) {
  const int first = thread_index() / 32 % GROUPS * ACROSS * THREAD_N + thread_index() % ACROSS * QUAD;
  return first + j / QUAD * ACROSS * QUAD + j % QUAD;
}

struct Tile {
  E sum[PRODUCTS][THREAD_M][THREAD_N];

  INLINE void fill(E x) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int j = 0; j < THREAD_N; ++j) sum[n][i][j] = x;
  }

  // One K-tile: in the order of k.
  template <class Left, class Right> INLINE void multiply(const W* k_tile) {
    ROLLED for (int k = 0; k < DEPTH; k += UNROLL_K)
      UNROLL for (int i = 0; i < UNROLL_K; i += STEP) step<Left, Right>(k_tile, k + i);
  }

#if defined(ACCUMULATORS_FUSED) && !STEPS_BY_UNIT
  // Each accumulator's step by itself, where no unit takes it.
  template <class Left, class Right> INLINE void step(const W* k_tile, int k0) {
    W a[STEP], b[STEP];
    ROLLED for (int i = 0; i < THREAD_M; ++i) {
      for (int k = 0; k < STEP; ++k)
        a[k] = k_tile[(k0 + k) * ROWS + (row_at(line_here(), i) ^ Left::swizzle(k0 + k))];
      ROLLED for (int n = 0; n < PRODUCTS; ++n)
        ROLLED for (int j = 0; j < THREAD_N; ++j) {
          const W* const from = k_tile + DEPTH * (ROWS + n * COLS);
          for (int k = 0; k < STEP; ++k)
            b[k] = from[(k0 + k) * COLS + (column_here(j) ^ Right::swizzle(k0 + k))];
          sum[n][i][j] = any_step(sum[n][i][j], a, b);
        }
    }
  }
#elif defined(ACCUMULATORS_FUSED)
  template <class Left, class Right> INLINE void step(const W* k_tile, int k0) {
    const int g = thread_index() % 32 / 4, k = k0 + thread_index() % 4 * 2, first = column_here(0) - thread_index() % 4 * 2;
    Pair a[THREAD_M / 2][4], b[PRODUCTS][THREAD_N / 2][2];
    UNROLL for (int high = 0; high < 2; ++high) {  // k and k + 1, then 8 further on
      const int at = k + 8 * high;
      UNROLL for (int i = 0; i < THREAD_M; ++i) {
        const W* const from = k_tile + at * ROWS + (row_at(line_here(), i) ^ Left::swizzle(at));
        a[i / 2][2 * high + i % 2] = pair(from[0], from[ROWS]);
      }
      UNROLL for (int n = 0; n < PRODUCTS; ++n)
        UNROLL for (int j = 0; j < THREAD_N / 2; ++j) {
          const W* const from = k_tile + DEPTH * (ROWS + n * COLS) + at * COLS + ((first + j * 8 + g) ^ Right::swizzle(at));
          b[n][j][high] = pair(from[0], from[COLS]);
        }
    }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; i += 2)
        UNROLL for (int j = 0; j < THREAD_N; j += 2)
          unit_step(
              sum[n][i][j], sum[n][i][j + 1], sum[n][i + 1][j], sum[n][i + 1][j + 1], a[i / 2], b[n][j / 2]);
  }
#elif MATRIX_UNITS
  template <class Left, class Right> INLINE void step(const E* k_tile, int k0) {
    const int g = thread_index() % 32 / 4, k = k0 + thread_index() % 4, first = column_here(0) - thread_index() % 4 * 2;
    E a[THREAD_M], b[PRODUCTS][THREAD_N / 2];
    UNROLL for (int i = 0; i < THREAD_M; ++i) a[i] = k_tile[k * ROWS + (row_at(line_here(), i) ^ Left::swizzle(k))];
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int j = 0; j < THREAD_N / 2; ++j)
        b[n][j] = k_tile[DEPTH * (ROWS + n * COLS) + k * COLS + ((first + j * 8 + g) ^ Right::swizzle(k))];
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; i += 2)
        UNROLL for (int j = 0; j < THREAD_N; j += 2)
          multiply_add(
              sum[n][i][j], sum[n][i][j + 1], sum[n][i + 1][j], sum[n][i + 1][j + 1], a[i], a[i + 1], b[n][j / 2]);
  }
#else
  template <class Left, class Right> INLINE void step(const E* k_tile, int k) {
    E a[THREAD_M], b[PRODUCTS][THREAD_N];
    UNROLL for (int i = 0; i < THREAD_M; i += QUAD) {
      const Quad q = *reinterpret_cast<const Quad*>(k_tile + k * ROWS + (row_at(line_here(), i) ^ Left::swizzle(k)));
      UNROLL for (int e = 0; e < QUAD; ++e) a[i + e] = q.e[e];
    }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int j = 0; j < THREAD_N; j += QUAD) {
        const E* const from = k_tile + DEPTH * (ROWS + n * COLS) + k * COLS;
        const Quad q = *reinterpret_cast<const Quad*>(from + (column_here(j) ^ Right::swizzle(k)));
        UNROLL for (int e = 0; e < QUAD; ++e) b[n][j + e] = q.e[e];
      }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int j = 0; j < THREAD_N; ++j) sum[n][i][j] = chain(a[i], b[n][j], sum[n][i][j]);
  }
#endif

  // One chain: `length` products from k0 on. While one K-tile is multiplied the next one is fetched.
  template <class Left, class Right, class L, class R>
  INLINE void run_chain(
      const Work& work, const Unit& unit, Operand<L> left_operand, const Operand<R> (&right_operands)[PRODUCTS], int64_t k0,
      int length, W* k_tiles) {
    Left left;
    Right right[PRODUCTS];
    left.start(left_operand, unit.r0, work.rows, k0);
    UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].start(right_operands[n], unit.c0, work.cols, k0);
    const bool inside = left.lines == ROWS && right[0].lines == COLS;
    const bool idle = ENDS_EARLY && thread_index() / 32 / GROUPS * DOWN * THREAD_M >= left.lines;
    const auto fetch = [&](int rest) {
      if (inside && rest >= DEPTH) {
        left.template fetch<true>(rest);
        UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].template fetch<true>(rest);
      } else {
        left.template fetch<false>(rest);
        UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].template fetch<false>(rest);
      }
      left.advance();
      UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].advance();
    };
    const auto put = [&](W* k_tile) {
      left.put(k_tile);
      UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].put(k_tile + DEPTH * (ROWS + n * COLS));
    };
    fill(NEUTRAL);
    fetch(length);
    put(k_tiles);
    barrier();
    int half = 0;
    ROLLED for (int k = 0; k < length; k += DEPTH, half ^= 1) {
      const bool more = k + DEPTH < length;
      if (more) fetch(length - k - DEPTH);
      if (!idle) multiply<Left, Right>(k_tiles + half * K_TILE_SIZE);
      if (more) put(k_tiles + (half ^ 1) * K_TILE_SIZE);
      barrier();
    }
  }

  // f(sum, index): every accumulator, and the index of this thread's among those of a block.
  template <class F> INLINE void each(const F& f) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int j = 0; j < THREAD_N; ++j)
          f(sum[n][i][j], ((n * THREAD_M + i) * THREAD_N + j) * THREADS + thread_index());
  }

  // Chain `n` of a slice joins those before it: one partial is pending at each level of the tree whose bit is set in the
  // number of chains so far. After the last chain all pending partials are added, and the tile is the sum.
  INLINE void join_chain(E* pending, int64_t n, bool last) {
    constexpr int64_t LEVEL = int64_t(PRODUCTS) * ROWS * COLS;
    const auto add_pending = [&](const E* from) { each([&](E& x, int index) { x = add_sums(from[index], x); }); };
    int64_t rest = n;
    ROLLED for (; rest & 1; rest >>= 1, pending += LEVEL) add_pending(pending);
    if (!last) {
      each([&](E& x, int index) { pending[index] = x; });
      return;
    }
    ROLLED for (rest >>= 1, pending += LEVEL; rest; rest >>= 1, pending += LEVEL)
      if (rest & 1) add_pending(pending);
  }

  // The chains of a unit's slice, as one sum. `pending` holds the pending partials of this block.
  template <class Left, class Right, class L, class R>
  INLINE void run(
      const Work& work, const Unit& unit, Operand<L> left, const Operand<R> (&right)[PRODUCTS], E* pending, W* k_tiles) {
    const int64_t first = unit.slice * work.chains_per_slice, count = min(work.chains_per_slice, work.chains - first);
    if (count == 0) fill(empty_sum());
    ROLLED for (int64_t n = 0; n < count; ++n) {
      const int64_t k0 = (first + n) * CHAIN;
      run_chain<Left, Right>(work, unit, left, right, k0, int(min(CHAIN, work.k_size - k0)), k_tiles);
      if (count > 1) join_chain(pending, n, n + 1 == count);
    }
  }

  // at(r, c, sums) for every element of the result that the tile has: the sums of LINE rows at a time go through shared
  // memory, so that neighbouring threads have neighbouring columns.
  template <class F> INLINE void results(const Work& work, const Unit& unit, W* memory, const F& at) {
    E* const k_tiles = reinterpret_cast<E*>(memory);
    ROLLED for (int i = 0; i < THREAD_M; ++i) {
      UNROLL for (int n = 0; n < PRODUCTS; ++n)
        UNROLL for (int y = 0; y < THREAD_M; ++y)
          if (y == i)
            UNROLL for (int j = 0; j < THREAD_N; ++j)
              k_tiles[(n * LINE + line_here()) * COLS + column_here(j)] = sum[n][y][j];
      barrier();
      ROLLED for (int e = thread_index(); e < LINE * COLS; e += THREADS) {
        const int64_t r = unit.r0 + row_at(e / COLS, i), c = unit.c0 + e % COLS;
        if (r >= work.rows || c >= work.cols) continue;
        E sums[PRODUCTS];
        UNROLL for (int n = 0; n < PRODUCTS; ++n) sums[n] = k_tiles[n * LINE * COLS + e];
        at(r, c, sums);
      }
      barrier();
    }
  }
};

}  // namespace tokitai
