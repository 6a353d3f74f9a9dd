// Matrix products: blocks of threads walk along k through slabs of the operands in shared memory, widened to accumulators;
// a thread adds to a tile of accumulators in the order of k; whole chains are added as the balanced tree; then results
// are made, neighbouring columns by neighbouring threads.
#pragma once
#include "work.h"

namespace tokitai {

constexpr int TALL = PLAN_TALL, WIDE = PLAN_WIDE;
constexpr int WIDTH = PLAN_WIDTH, THREADS = ROWS / TALL * (COLS / WIDE);
#ifdef PLAN_GROUPED  // where many tiles end early, warps below the last row leave the others their time
constexpr bool ENDS_EARLY = true;
#else
constexpr bool ENDS_EARLY = false;
#endif
constexpr int DEPTH = PLAN_DEPTH * 4 / int(sizeof(E));  // products along k in a slab
constexpr int SLAB = DEPTH * (ROWS + PRODUCTS * COLS);  // accumulators in the slabs of all operands
#if TOKITAI_HIP && defined(ACCUMULATORS_FUSED)
constexpr int AT_ONCE = UNIT_STEP;
#elif TOKITAI_HIP  // clang reads whole slabs into registers otherwise
constexpr int AT_ONCE = 2;
#else
constexpr int AT_ONCE = least<int>(PLAN_UNROLLED, DEPTH);
#endif
constexpr int LINE = ROWS / TALL;                       // rows of a tile whose results are made at a time
static_assert(CHAIN % DEPTH == 0, "a chain is whole slabs");
static_assert(PRODUCTS * LINE * COLS * sizeof(E) <= 2 * SLAB * sizeof(W), "sums of rows fit where slabs were");

// ------------------------------------------------------------------ operands
// A slab of one operand on its way into shared memory: LINES rows or columns of a tile. Where the elements of a line are
// neighbours in memory (ALONG_K), lines are stored with their lowest bits changed from V products to the next, so that
// the threads of a warp store in different banks.
template <int LINES, bool ALONG_K, bool LEFT, class P> struct Feed {
  static constexpr int EACH = LINES * DEPTH / THREADS, V = least<int>(EACH, 16 / int(sizeof(P))), PIECES = EACH / V;
  static constexpr int PER_LINE = (ALONG_K ? DEPTH : LINES) / V, TURN = 32 * V / DEPTH;
  static constexpr int BYTES = least<int>(16, least(V, WIDTH) * int(sizeof(P)));
  static_assert(PIECES * V == EACH && V % PACK == 0 && (!ALONG_K || TURN % PACK == 0), "whole pieces");
  struct alignas(16) Piece {
    P e[V];
  };
  Piece held[PIECES];
  const P* at[PIECES];
  int64_t step;
  int lines;

  static INLINE int line_of(int i) {
    const int place = thread_index() + i * THREADS;
    return ALONG_K ? place / PER_LINE : place % PER_LINE * V;
  }
  static INLINE int k_of(int i) {
    const int place = thread_index() + i * THREADS;
    return ALONG_K ? place % PER_LINE * V : place / PER_LINE;
  }
#ifdef ACCUMULATORS_FUSED  // where pairs of products along k are read, of four pairs at a time
  static INLINE constexpr int turned(int k) { return k / 2 % 4 * 8; }
#elif MATRIX_UNITS  // where four products along k are read at a time
  static INLINE constexpr int turned(int k) { return k % 4 * 4; }
#else
  static INLINE constexpr int turned(int k) { return ALONG_K ? k / V * TURN : 0; }
#endif

  INLINE void start(Side<P> from, int64_t line0, int64_t count, int64_t k0) {
    step = ALONG_K ? DEPTH : DEPTH * from.stride, lines = int(least<int64_t>(count - line0, LINES));
    UNROLL for (int i = 0; i < PIECES; ++i) {
      const int64_t line = line0 + line_of(i), k = k0 + k_of(i);
      at[i] = from.data + (ALONG_K ? line * from.stride + k : k * from.stride + line);
    }
  }

  // The next slab, of which so many products are left; a WHOLE one lies inside the operand.
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
          held[i].e[e] = behind<P, LEFT>();
          if (e < there) keep<int(sizeof(P))>(to + e * sizeof(P), at[i] + e);
        }
      }
    }
  }
  INLINE void advance() {
    UNROLL for (int i = 0; i < PIECES; ++i) at[i] += step;
  }

  INLINE void put(W* slab) const {
    UNROLL for (int i = 0; i < PIECES; ++i) {
      const int line = line_of(i), k = k_of(i);
      if constexpr (ALONG_K) {
        UNROLL for (int e = 0; e < V; ++e)
          slab[(k + e) * LINES + (line ^ turned(k + e))] = slab_value(held[i].e[e]);
      } else {
        UNROLL for (int e = 0; e < V; e += PACK) {
          Pack q;
          UNROLL for (int j = 0; j < PACK; ++j) q.e[j] = slab_value(held[i].e[e + j]);
          *reinterpret_cast<Pack*>(slab + k * LINES + ((line + e) ^ turned(k))) = q;
        }
      }
    }
  }
};

// ------------------------------------------------------------------ tiles
// 32 threads are ACROSS side by side and DOWN below each other; each has rows and columns QUAD at a time.
constexpr int ACROSS = PLAN_LANES, DOWN = 32 / ACROSS, GROUPS = COLS / (ACROSS * WIDE);
static_assert(THREADS % 32 == 0 && COLS % (ACROSS * WIDE) == 0 && ROWS % (DOWN * TALL) == 0, "whole groups");
static_assert(TALL % QUAD == 0 && WIDE % QUAD == 0, "whole quads");
#ifdef ACCUMULATORS_FUSED
constexpr int STEP = UNIT_STEP, BELOW = 1;
static_assert(ACROSS == 4 && TALL % 2 == 0 && AT_ONCE % STEP == 0, "as matrix units have it");
#elif MATRIX_UNITS
constexpr int STEP = 4, BELOW = 1;  // products along k at a time, rows of a thread that are neighbours
static_assert(ACROSS == 4 && QUAD == 2 && TALL % 2 == 0 && AT_ONCE % STEP == 0, "as matrix units have it");
#else
constexpr int STEP = 1, BELOW = QUAD;
#endif

// Row i of those at `line` of LINE, of a tile; column j of a thread's.
INLINE int row_at(int line, int i) {
  return line / DOWN * DOWN * TALL + i / BELOW * DOWN * BELOW + line % DOWN * BELOW + i % BELOW;
}
INLINE int line_here() { return thread_index() / 32 / GROUPS * DOWN + thread_index() % 32 / ACROSS; }
INLINE int column_here(int j) {
  const int first = thread_index() / 32 % GROUPS * ACROSS * WIDE + thread_index() % ACROSS * QUAD;
  return first + j / QUAD * ACROSS * QUAD + j % QUAD;
}

struct Tile {
  E sum[PRODUCTS][TALL][WIDE];

  INLINE void fill(E x) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < TALL; ++i)
        UNROLL for (int j = 0; j < WIDE; ++j) sum[n][i][j] = x;
  }

  // One slab: in the order of k.
  template <class Left, class Right> INLINE void multiply(const W* slab) {
    ROLLED for (int k = 0; k < DEPTH; k += AT_ONCE)
      UNROLL for (int i = 0; i < AT_ONCE; i += STEP) step<Left, Right>(slab, k + i);
  }

#if defined(ACCUMULATORS_FUSED) && !STEPS_BY_UNIT
  // Each accumulator's step by itself, where no unit takes it.
  template <class Left, class Right> INLINE void step(const W* slab, int k0) {
    W a[STEP], b[STEP];
    ROLLED for (int i = 0; i < TALL; ++i) {
      for (int k = 0; k < STEP; ++k)
        a[k] = slab[(k0 + k) * ROWS + (row_at(line_here(), i) ^ Left::turned(k0 + k))];
      ROLLED for (int n = 0; n < PRODUCTS; ++n)
        ROLLED for (int j = 0; j < WIDE; ++j) {
          const W* const from = slab + DEPTH * (ROWS + n * COLS);
          for (int k = 0; k < STEP; ++k)
            b[k] = from[(k0 + k) * COLS + (column_here(j) ^ Right::turned(k0 + k))];
          sum[n][i][j] = any_step(sum[n][i][j], a, b);
        }
    }
  }
#elif defined(ACCUMULATORS_FUSED)
  template <class Left, class Right> INLINE void step(const W* slab, int k0) {
    const int g = thread_index() % 32 / 4, k = k0 + thread_index() % 4 * 2, first = column_here(0) - thread_index() % 4 * 2;
    Pair a[TALL / 2][4], b[PRODUCTS][WIDE / 2][2];
    UNROLL for (int high = 0; high < 2; ++high) {  // k and k + 1, then 8 further on
      const int at = k + 8 * high;
      UNROLL for (int i = 0; i < TALL; ++i) {
        const W* const from = slab + at * ROWS + (row_at(line_here(), i) ^ Left::turned(at));
        a[i / 2][2 * high + i % 2] = pair(from[0], from[ROWS]);
      }
      UNROLL for (int n = 0; n < PRODUCTS; ++n)
        UNROLL for (int j = 0; j < WIDE / 2; ++j) {
          const W* const from = slab + DEPTH * (ROWS + n * COLS) + at * COLS + ((first + j * 8 + g) ^ Right::turned(at));
          b[n][j][high] = pair(from[0], from[COLS]);
        }
    }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < TALL; i += 2)
        UNROLL for (int j = 0; j < WIDE; j += 2)
          unit_step(
              sum[n][i][j], sum[n][i][j + 1], sum[n][i + 1][j], sum[n][i + 1][j + 1], a[i / 2], b[n][j / 2]);
  }
#elif MATRIX_UNITS
  template <class Left, class Right> INLINE void step(const E* slab, int k0) {
    const int g = thread_index() % 32 / 4, k = k0 + thread_index() % 4, first = column_here(0) - thread_index() % 4 * 2;
    E a[TALL], b[PRODUCTS][WIDE / 2];
    UNROLL for (int i = 0; i < TALL; ++i) a[i] = slab[k * ROWS + (row_at(line_here(), i) ^ Left::turned(k))];
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int j = 0; j < WIDE / 2; ++j)
        b[n][j] = slab[DEPTH * (ROWS + n * COLS) + k * COLS + ((first + j * 8 + g) ^ Right::turned(k))];
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < TALL; i += 2)
        UNROLL for (int j = 0; j < WIDE; j += 2)
          multiply_add(
              sum[n][i][j], sum[n][i][j + 1], sum[n][i + 1][j], sum[n][i + 1][j + 1], a[i], a[i + 1], b[n][j / 2]);
  }
#else
  template <class Left, class Right> INLINE void step(const E* slab, int k) {
    E a[TALL], b[PRODUCTS][WIDE];
    UNROLL for (int i = 0; i < TALL; i += QUAD) {
      const Quad q = *reinterpret_cast<const Quad*>(slab + k * ROWS + (row_at(line_here(), i) ^ Left::turned(k)));
      UNROLL for (int e = 0; e < QUAD; ++e) a[i + e] = q.e[e];
    }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int j = 0; j < WIDE; j += QUAD) {
        const E* const from = slab + DEPTH * (ROWS + n * COLS) + k * COLS;
        const Quad q = *reinterpret_cast<const Quad*>(from + (column_here(j) ^ Right::turned(k)));
        UNROLL for (int e = 0; e < QUAD; ++e) b[n][j + e] = q.e[e];
      }
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < TALL; ++i)
        UNROLL for (int j = 0; j < WIDE; ++j) sum[n][i][j] = chain(a[i], b[n][j], sum[n][i][j]);
  }
#endif

  // One chain: `length` products from k0 on. While a slab is worked on the next one is fetched.
  template <class Left, class Right, class L, class R>
  INLINE void run_chain(
      const Work& work, const Unit& unit, Side<L> left_side, const Side<R> (&right_sides)[PRODUCTS], int64_t k0,
      int length, W* slabs) {
    Left left;
    Right right[PRODUCTS];
    left.start(left_side, unit.r0, work.rows, k0);
    UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].start(right_sides[n], unit.c0, work.cols, k0);
    const bool inside = left.lines == ROWS && right[0].lines == COLS;
    const bool idle = ENDS_EARLY && thread_index() / 32 / GROUPS * DOWN * TALL >= left.lines;
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
    const auto put = [&](W* slab) {
      left.put(slab);
      UNROLL for (int n = 0; n < PRODUCTS; ++n) right[n].put(slab + DEPTH * (ROWS + n * COLS));
    };
    fill(NEUTRAL);
    fetch(length);
    put(slabs);
    barrier();
    int half = 0;
    ROLLED for (int k = 0; k < length; k += DEPTH, half ^= 1) {
      const bool more = k + DEPTH < length;
      if (more) fetch(length - k - DEPTH);
      if (!idle) multiply<Left, Right>(slabs + half * SLAB);
      if (more) put(slabs + (half ^ 1) * SLAB);
      barrier();
    }
  }

  // f(sum, place): every accumulator, and where this thread's has its place among those of a block.
  template <class F> INLINE void each(const F& f) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < TALL; ++i)
        UNROLL for (int j = 0; j < WIDE; ++j)
          f(sum[n][i][j], ((n * TALL + i) * WIDE + j) * THREADS + thread_index());
  }

  // Chain `n` of a part joins those before it: one sum waits at each level of the tree whose bit is set in the number
  // of chains so far. After the last chain all that wait are added, and the tile is the sum.
  INLINE void join_chain(E* waiting, int64_t n, bool last) {
    constexpr int64_t LEVEL = int64_t(PRODUCTS) * ROWS * COLS;
    const auto add_waiting = [&](const E* from) { each([&](E& x, int place) { x = both(from[place], x); }); };
    int64_t rest = n;
    ROLLED for (; rest & 1; rest >>= 1, waiting += LEVEL) add_waiting(waiting);
    if (!last) {
      each([&](E& x, int place) { waiting[place] = x; });
      return;
    }
    ROLLED for (rest >>= 1, waiting += LEVEL; rest; rest >>= 1, waiting += LEVEL)
      if (rest & 1) add_waiting(waiting);
  }

  // The chains of a unit's part, as one sum. `waiting` has room for those sums of this block that wait.
  template <class Left, class Right, class L, class R>
  INLINE void run(
      const Work& work, const Unit& unit, Side<L> left, const Side<R> (&right)[PRODUCTS], E* waiting, W* slabs) {
    const int64_t first = unit.part * work.together, count = least(work.together, work.chains - first);
    if (count == 0) fill(nothing());
    ROLLED for (int64_t n = 0; n < count; ++n) {
      const int64_t k0 = (first + n) * CHAIN;
      run_chain<Left, Right>(work, unit, left, right, k0, int(least(CHAIN, work.inner - k0)), slabs);
      if (count > 1) join_chain(waiting, n, n + 1 == count);
    }
  }

  // at(r, c, sums) for every element of the result that the tile has: the sums of LINE rows at a time go through shared
  // memory, so that neighbouring threads have neighbouring columns.
  template <class F> INLINE void results(const Work& work, const Unit& unit, W* memory, const F& at) {
    E* const slabs = reinterpret_cast<E*>(memory);
    ROLLED for (int i = 0; i < TALL; ++i) {
      UNROLL for (int n = 0; n < PRODUCTS; ++n)
        UNROLL for (int y = 0; y < TALL; ++y)
          if (y == i)
            UNROLL for (int j = 0; j < WIDE; ++j)
              slabs[(n * LINE + line_here()) * COLS + column_here(j)] = sum[n][y][j];
      barrier();
      ROLLED for (int e = thread_index(); e < LINE * COLS; e += THREADS) {
        const int64_t r = unit.r0 + row_at(e / COLS, i), c = unit.c0 + e % COLS;
        if (r >= work.rows || c >= work.cols) continue;
        E sums[PRODUCTS];
        UNROLL for (int n = 0; n < PRODUCTS; ++n) sums[n] = slabs[n * LINE * COLS + e];
        at(r, c, sums);
      }
      barrier();
    }
  }
};

}  // namespace tokitai
