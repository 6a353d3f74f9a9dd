// Matrix products: operands are packed into panels of MR rows or NR columns, widened to accumulators; a micro-kernel adds
// to tiles of MR x NR accumulators in the order of k; whole chains are added as the balanced tree; results are computed last.
#pragma once
#ifdef ACCUMULATORS_FUSED
#include "matrix_unit.h"
#else
#include "accumulators.h"
#endif

namespace tokitai {

constexpr int64_t CHAIN = 4096;  // products in a chain
constexpr int64_t BLOCK_M = PLAN_BLOCK_M, BLOCK_N = PLAN_BLOCK_N, DEPTH = PLAN_DEPTH, BLOCK_ROWS = PLAN_BLOCK_ROWS;
constexpr int64_t TILE_SIZE = MR * NR;
constexpr int64_t PACKED_AT_ONCE = 128;  // columns that one thread packs at a time
static_assert(CHAIN % DEPTH == 0, "a chain is whole steps");
static_assert(MR <= PLAN_PANEL_ROWS && NR <= PLAN_PANEL_COLS, "such panels fit into the workspace");
static_assert(BLOCK_ROWS % MR == 0 && PACKED_AT_ONCE % NR == 0, "whole panels");

INLINE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE constexpr int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// An operand: its first element and the distance from row to row.
template <class P> struct Operand {
  const P* data;
  int64_t stride;
};

// Threads that compute one product, and the index of the team's buffers.
struct Team {
  int64_t rank, size, slot;
};
static __attribute__((unused)) void team_barrier(Team team) {
  if (team.size > 1) {
#pragma omp barrier
  }
}

// How many teams share a batch: threads that compute whole products, or all of them as one.
INLINE int64_t teams_of(int64_t batch, int64_t threads) { return batch >= PLAN_SHARE * threads ? threads : 1; }

// Who is free takes what comes next. In a structure build each thread has its turn: so the memory of each is written.
#if TOKITAI_STRUCTURE
#define WHO_IS_FREE schedule(static, 1)
#else
#define WHO_IS_FREE schedule(dynamic)
#endif

// The workspace: for each team tiles of accumulators, above them pending sums of whole chains, and packed panels of the right
// operands; for each thread packed panels of the left one. families/matmul/plan.py takes at least as much.
class Buffers {
 public:
  Buffers(int64_t products, int64_t rows, int64_t cols, int64_t k_size, int64_t batch, int64_t threads, void* workspace)
      : space(static_cast<E*>(workspace)) {
    const int64_t height = ceil_div(min(rows, BLOCK_M), MR) * MR, width = ceil_div(min(cols, BLOCK_N), NR) * NR;
    const int64_t chains = ceil_div(k_size, CHAIN);
    for (int64_t n = chains > 1 ? chains : 0; n; n /= 2) ++levels;
    level = height * width * products;
    of_team = level * (1 + levels) + DEPTH * width * products;
    lefts = space + teams_of(batch, threads) * of_team;
    of_thread = DEPTH * ceil_div(min(rows, BLOCK_ROWS), MR) * MR;
  }
  E* sums(Team team) const { return space + team.slot * of_team; }
  E* right(Team team) const { return sums(team) + level * (1 + levels); }
  E* left() const { return lefts + thread_number() * of_thread; }
  int64_t level;       // from the sums that are open to those of chains, and from one level of these to the next
  int64_t levels = 0;  // of the tree
 private:
  E* space;
  E* lefts;
  int64_t of_team, of_thread;
};

// f(item, team) for every product of a batch: many are partitioned among the threads, few are computed one by one by all threads.
template <class F> INLINE void each_product(int64_t batch, int64_t threads, const F& f) {
  if (teams_of(batch, threads) == threads) {
#pragma omp for WHO_IS_FREE
    for (int64_t item = 0; item < batch; ++item) f(item, Team{0, 1, thread_number()});
  } else {
    for (int64_t item = 0; item < batch; ++item) f(item, Team{thread_number(), omp_get_num_threads(), 0});
  }
}

// ------------------------------------------------------------------ packing
// Prefetches elements: the stride between lines is too large for the hardware prefetcher.
template <class P> INLINE void fetch(const P* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(P))) __builtin_prefetch(p + i);
}
constexpr int64_t AHEAD = 8;  // lines

// Prefetches one of `parts` shares of what a panel of `count` columns from c on will be packed from. Where neighbouring columns are
// neighbours in memory, panels that begin inside a cache line are skipped.
template <class P>
INLINE void fetch_panel(Operand<P> from, bool transposed, int64_t c, int64_t count, int64_t depth, int64_t part, int64_t parts) {
  if (transposed)
    for (int64_t i = part; i < count; i += parts) fetch(from.data + (c + i) * from.stride, depth);
  else if (c * int64_t(sizeof(P)) % 64 == 0)
    for (int64_t i = part; i < depth; i += parts) fetch(from.data + i * from.stride + c, 1);
}

// Panels of W lines, for each k the W elements next to each other. Lines past the last one are zeros: no result
// depends on them. Where neighbouring lines are neighbours in memory:
template <int W, class P> INLINE void pack_along(E* to, Operand<P> from, int64_t count, int64_t depth) {
  Stored row[PLAN_BLOCK_ROWS + PACKED_AT_ONCE + NR + LANES] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const P* const p = from.data + k * from.stride;
    if (k + AHEAD < depth) fetch(p + AHEAD * from.stride, count);
    each(0, count, [&](int64_t i, auto lanes) INLINE_LAMBDA { store(row + i, load(p + i, lanes), lanes); });
    for (int64_t panel = 0; panel * W < count; ++panel) {
      E* const slot = to + (panel * depth + k) * W;
      for (int i = 0; i < W; ++i) slot[i] = widened(load1(row + panel * W + i));
    }
  }
}
// Where the elements of one line are:
template <int W, class P> INLINE void pack_across(E* to, Operand<P> from, int64_t count, int64_t depth) {
  Stored lines[W][DEPTH + LANES + 8] = {};
  for (int64_t line = 0; line < count; line += W, to += W * depth) {
    for (int i = 0; i < W; ++i) {
      const bool there = line + i < count;
      const P* const p = from.data + (there ? line + i : 0) * from.stride;
      if (line + i + W < count) fetch(p + W * from.stride, depth);
      each(0, depth, [&](int64_t k, auto lanes) INLINE_LAMBDA { store(lines[i] + k, load(p + k, lanes), lanes); });
    }
    for (int64_t k = 0; k < depth; ++k)
      for (int i = 0; i < W; ++i) to[k * W + i] = widened(load1(lines[i] + k));
  }
}

// ------------------------------------------------------------------ the micro-kernel
#ifndef ACCUMULATORS_FUSED
// Adds `depth` products to each of M x NR accumulators, in the order of k; FRESH ones begin a chain.
template <bool FRESH, int M>
static __attribute__((noinline)) void micro(int64_t depth, const E* left, const E* right, E* tile) {
  X sum[M][NV];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = FRESH ? repeat(NEUTRAL) : get(tile + i * NR + j * XLANES);
  for (int64_t k = 0; k < depth; ++k, left += MR, right += NR) {
    X b[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) b[j] = get(right + j * XLANES);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) sum[i][j] = chain(left[i], b[j], sum[i][j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) put(tile + i * NR + j * XLANES, sum[i][j]);
}
#endif

// The same for the first `rows` of MR rows at least.
template <bool FRESH> INLINE void micro(int64_t rows, int64_t depth, const E* left, const E* right, E* tile) {
  constexpr int FEW = max(MR / 3, 1), MANY = max(2 * MR / 3, 1);
  if (rows > MANY) micro<FRESH, MR>(depth, left, right, tile);
  else if (rows > FEW) micro<FRESH, MANY>(depth, left, right, tile);
  else micro<FRESH, FEW>(depth, left, right, tile);
}

// The empty sum.
static __attribute__((unused)) void clear(E* tile) {
  for (int i = 0; i < TILE_SIZE; ++i) tile[i] = empty_sum();
}

INLINE void add_tile(E* to, const E* left) {
  for (int i = 0; i < TILE_SIZE; i += XLANES) put(to + i, add_sums(get(left + i), get(to + i)));
}

// The tile of chain `n` joins those before it: one partial is pending at each level of the tree, `level` elements apart,
// whose bit is set in the number of chains so far. After the last chain all pending partials are added.
static __attribute__((unused)) void join_chain(E* tile, int64_t level, int64_t n, bool last) {
  E* pending = tile + level;
  int64_t rest = n;
  for (; rest & 1; rest /= 2, pending += level) add_tile(tile, pending);
  if (!last) {
    for (int i = 0; i < TILE_SIZE; i += XLANES) put(pending + i, get(tile + i));
    return;
  }
  for (rest /= 2, pending += level; rest; rest /= 2, pending += level)
    if (rest & 1) add_tile(tile, pending);
}

// ------------------------------------------------------------------ products
// at(r, c, lanes, product) makes the results at row r and the columns from c on of N products of one left operand.
template <bool LEFT_TRANSPOSED, int N, class L, class R, class F>
INLINE void products(
    int64_t rows, int64_t cols, int64_t k_size, Team team, const Buffers& buffers, Operand<L> left, const Operand<R> (&right)[N],
    const bool (&right_transposed)[N], const F& at) {
  for (int64_t r0 = 0; r0 < rows; r0 += BLOCK_M)
    for (int64_t c0 = 0; c0 < cols; c0 += BLOCK_N) {
      const int64_t height = min(BLOCK_M, rows - r0), width = min(BLOCK_N, cols - c0);
      const int64_t m_panels = ceil_div(height, MR), n_panels = ceil_div(width, NR);  // in panels
      // Units of work: blocks of rows, cut into ranges of columns where there are too few of them.
      int64_t blocks = max(ceil_div(m_panels, BLOCK_ROWS / MR), min(team.size, m_panels));
      blocks = min(ceil_div(blocks, team.size) * team.size, m_panels);
      const int64_t cuts = blocks < team.size ? min(n_panels, ceil_div(team.size, blocks)) : 1;
      // One thread with one block of rows uses columns as soon as they are packed: they are still in the cache.
      constexpr int64_t STRIP = PACKED_AT_ONCE / NR;
      const int64_t at_once = team.size == 1 && blocks == 1 ? STRIP : n_panels;
      const bool alone = N == 1 && team.size == 1 && k_size <= DEPTH;  // a tile is done before the next is begun
      // What will be packed into a panel's memory next is prefetched while the panel is in use.
      auto coming = [&](int64_t n, int64_t q, int64_t k, int64_t part, int64_t parts) INLINE_LAMBDA {
        if (q >= n_panels) q -= ceil_div(n_panels, at_once) * at_once, k += DEPTH;
        if (q < 0 || k >= k_size) return;
        const int64_t stride = right[n].stride, first = right_transposed[n] ? c0 * stride + k : k * stride + c0;
        const Operand<R> from{right[n].data + first, stride};
        fetch_panel(from, right_transposed[n], q * NR, min(NR, width - q * NR), min(DEPTH, k_size - k), part, parts);
      };
      for (int64_t k0 = 0; k0 == 0 || k0 < k_size; k0 += DEPTH) {
        const int64_t depth = min(DEPTH, k_size - k0), end = k0 + depth;
        const bool fresh = k0 % CHAIN == 0, last = end == k_size, whole = last || end % CHAIN == 0;
        for (int64_t q0 = 0; q0 < n_panels; q0 += at_once) {
          const int64_t panels = min(at_once, n_panels - q0);
          for (int64_t g = team.rank; g < ceil_div(panels, STRIP) * N; g += team.size) {
            const int64_t n = g % N, q = g / N * STRIP, c = (q0 + q) * NR, count = min(PACKED_AT_ONCE, width - c);
            E* const to = buffers.right(team) + (n * panels + q) * NR * depth;
            const R* const data = right[n].data;
            const int64_t stride = right[n].stride;
            if (right_transposed[n]) pack_across<NR>(to, Operand<R>{data + (c0 + c) * stride + k0, stride}, count, depth);
            else pack_along<NR>(to, Operand<R>{data + k0 * stride + c0 + c, stride}, count, depth);
          }
          team_barrier(team);
          for (int64_t unit = team.rank; unit < blocks * cuts; unit += team.size) {
            const int64_t block = unit % blocks, cut = unit / blocks;
            const int64_t begin = m_panels * block / blocks, stop = m_panels * (block + 1) / blocks;
            const int64_t r = r0 + begin * MR, count = min(stop * MR, height) - begin * MR;
            E* const packed = buffers.left();
            const Operand<L> part{left.data + (LEFT_TRANSPOSED ? k0 * left.stride + r : r * left.stride + k0), left.stride};
            if (q0 == 0 && LEFT_TRANSPOSED) pack_along<MR>(packed, part, count, depth);
            else if (q0 == 0) pack_across<MR>(packed, part, count, depth);
            for (int64_t q = q0 + panels * cut / cuts; q < q0 + panels * (cut + 1) / cuts; ++q)
              for (int n = 0; n < N; ++n)
                for (int64_t i = begin; i < stop; ++i) {
                  E* const tiles = buffers.sums(team) + (alone ? 0 : q * m_panels + i) * N * TILE_SIZE;
                  E* const tile = tiles + n * TILE_SIZE;
                  const E* const a = packed + (i - begin) * MR * depth;
                  const E* const b = buffers.right(team) + (n * panels + q - q0) * NR * depth;
                  const int64_t lines = min(MR, height - i * MR);
                  if (team.size == 1 && block == 0) coming(n, q + at_once, k0, i, stop);
                  fresh ? micro<true>(lines, depth, a, b, tile) : micro<false>(lines, depth, a, b, tile);
                  if (k_size == 0) clear(tile);
                  if (whole && buffers.levels) join_chain(tile, buffers.level, k0 / CHAIN, last);
                  if (!last || n + 1 < N) continue;
                  for (int64_t y = 0; y < lines; ++y)
                    for (int64_t x = 0; x < min(NR, width - q * NR); x += LANES) {
                      V product[N];
                      for (int m = 0; m < N; ++m) product[m] = result_of(tiles + m * TILE_SIZE + y * NR + x);
                      const int64_t to_r = r0 + i * MR + y, to_c = c0 + q * NR + x, cols_left = c0 + width - to_c;
                      if (cols_left >= LANES) at(to_r, to_c, Full{}, product);
                      else at(to_r, to_c, Part{cols_left}, product);
                    }
                }
          }
          team_barrier(team);
        }
      }
    }
}

}  // namespace tokitai
