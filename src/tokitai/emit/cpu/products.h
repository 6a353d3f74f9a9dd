// Matrix products: operands are packed into panels of MR rows or NR columns, widened to accumulators; a micro-kernel adds
// to tiles of MR x NR accumulators in the order of k; whole chains are added as the balanced tree; then results are made.
#pragma once
#ifdef ACCUMULATORS_FUSED
#include "matrix_unit.h"
#else
#include "accumulators.h"
#endif

namespace tokitai {

constexpr int64_t CHAIN = 4096;  // products in a chain
constexpr int64_t TALL = PLAN_TALL, WIDE = PLAN_WIDE, DEPTH = PLAN_DEPTH, BLOCK_ROWS = PLAN_BLOCK_ROWS;
constexpr int64_t TILE_SIZE = MR * NR;
constexpr int64_t PACKED_AT_ONCE = 128;  // columns that one thread packs at a time
static_assert(CHAIN % DEPTH == 0, "a chain is whole steps");
static_assert(MR <= PLAN_PANEL_ROWS && NR <= PLAN_PANEL_COLS, "the workspace has room for such panels");
static_assert(BLOCK_ROWS % MR == 0 && PACKED_AT_ONCE % NR == 0, "whole panels");

INLINE constexpr int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// An operand: its first element and the distance from row to row.
template <class P> struct Side {
  const P* data;
  int64_t stride;
};

// Threads that work on one product, and which of the rooms is theirs.
struct Team {
  int64_t rank, size, place;
};
static __attribute__((unused)) void meet(Team team) {
  if (team.size > 1) {
#pragma omp barrier
  }
}

// The workspace: for each team tiles of accumulators, above them sums of whole chains, and packed panels of the right
// operands; for each thread packed panels of the left one. lower/product.py has the same sizes.
class Room {
 public:
  Room(int64_t products, int64_t rows, int64_t cols, int64_t inner, int64_t batch, int64_t threads, void* workspace)
      : space(static_cast<E*>(workspace)) {
    const int64_t height = over(least(rows, TALL), MR) * MR, width = over(least(cols, WIDE), NR) * NR;
    const int64_t chains = over(inner, CHAIN);
    for (int64_t n = chains > 1 ? chains : 0; n; n /= 2) ++levels;
    level = height * width * products;
    of_team = level * (1 + levels) + DEPTH * width * products;
    lefts = space + (batch >= PLAN_SHARE * threads ? threads : 1) * of_team;
    of_thread = DEPTH * over(least(rows, BLOCK_ROWS), MR) * MR;
  }
  E* sums(Team team) const { return space + team.place * of_team; }
  E* right(Team team) const { return sums(team) + level * (1 + levels); }
  E* left() const { return lefts + thread_number() * of_thread; }
  int64_t level;       // from the sums that are open to those of chains, and from one level of these to the next
  int64_t levels = 0;  // of the tree
 private:
  E* space;
  E* lefts;
  int64_t of_team, of_thread;
};

// f(item, team) for every product of a batch: many are shared out among the threads, few are worked on by all together.
template <class F> INLINE void each_product(int64_t batch, int64_t threads, const F& f) {
  if (batch >= PLAN_SHARE * threads) {
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < batch; ++item) f(item, Team{0, 1, thread_number()});
  } else {
    for (int64_t item = 0; item < batch; ++item) f(item, Team{thread_number(), omp_get_num_threads(), 0});
  }
}

// ------------------------------------------------------------------ packing
// Elements that will be read soon: lines are too far apart for the processor to foresee them.
template <class P> INLINE void fetch(const P* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(P))) __builtin_prefetch(p + i);
}
constexpr int64_t AHEAD = 8;  // lines

// One of `parts` shares of what a panel of `count` columns from c on will be packed from. Where neighbouring columns are
// neighbours in memory, panels that begin inside of what is fetched at a time are passed over.
template <class P>
INLINE void fetch_panel(Side<P> from, bool turned, int64_t c, int64_t count, int64_t depth, int64_t part, int64_t parts) {
  if (turned)
    for (int64_t i = part; i < count; i += parts) fetch(from.data + (c + i) * from.stride, depth);
  else if (c * int64_t(sizeof(P)) % 64 == 0)
    for (int64_t i = part; i < depth; i += parts) fetch(from.data + i * from.stride + c, 1);
}

// Panels of W lines, for each k the W elements next to each other. Lines behind the last one are zeros: no result is
// made of them. Where neighbouring lines are neighbours in memory:
template <int W, class P> INLINE void pack_along(E* to, Side<P> from, int64_t count, int64_t depth) {
  Stored row[PLAN_BLOCK_ROWS + PACKED_AT_ONCE + NR + LANES] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const P* const p = from.data + k * from.stride;
    if (k + AHEAD < depth) fetch(p + AHEAD * from.stride, count);
    each(0, count, [&](int64_t i, auto lanes) INLINE_LAMBDA { store(row + i, load(p + i, lanes), lanes); });
    for (int64_t panel = 0; panel * W < count; ++panel) {
      E* const place = to + (panel * depth + k) * W;
      for (int i = 0; i < W; ++i) place[i] = widened(load1(row + panel * W + i));
    }
  }
}
// Where the elements of one line are:
template <int W, class P> INLINE void pack_across(E* to, Side<P> from, int64_t count, int64_t depth) {
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
  constexpr int FEW = most(MR / 3, 1), MANY = most(2 * MR / 3, 1);
  if (rows > MANY) micro<FRESH, MR>(depth, left, right, tile);
  else if (rows > FEW) micro<FRESH, MANY>(depth, left, right, tile);
  else micro<FRESH, FEW>(depth, left, right, tile);
}

// The sum over nothing.
static __attribute__((unused)) void clear(E* tile) {
  for (int i = 0; i < TILE_SIZE; ++i) tile[i] = nothing();
}

INLINE void add_tile(E* to, const E* left) {
  for (int i = 0; i < TILE_SIZE; i += XLANES) put(to + i, both(get(left + i), get(to + i)));
}

// The tile of chain `n` joins those before it: one sum waits at each level of the tree, `level` elements apart, whose
// bit is set in the number of chains so far. After the last chain all that wait are added, and the tile is the sum.
static __attribute__((unused)) void join_chain(E* tile, int64_t level, int64_t n, bool last) {
  E* waiting = tile + level;
  int64_t rest = n;
  for (; rest & 1; rest /= 2, waiting += level) add_tile(tile, waiting);
  if (!last) {
    for (int i = 0; i < TILE_SIZE; i += XLANES) put(waiting + i, get(tile + i));
    return;
  }
  for (rest /= 2, waiting += level; rest; rest /= 2, waiting += level)
    if (rest & 1) add_tile(tile, waiting);
}

// ------------------------------------------------------------------ products
// at(r, c, lanes, product) makes the results at row r and the columns from c on of N products of one left operand.
template <bool LEFT_TURNED, int N, class L, class R, class F>
INLINE void products(
    int64_t rows, int64_t cols, int64_t inner, Team team, const Room& room, Side<L> left, const Side<R> (&right)[N],
    const bool (&right_turned)[N], const F& at) {
  for (int64_t r0 = 0; r0 < rows; r0 += TALL)
    for (int64_t c0 = 0; c0 < cols; c0 += WIDE) {
      const int64_t height = least(TALL, rows - r0), width = least(WIDE, cols - c0);
      const int64_t tall = over(height, MR), wide = over(width, NR);  // in panels
      // Units of work: blocks of rows, cut into ranges of columns where there are too few of them.
      int64_t blocks = most(over(tall, BLOCK_ROWS / MR), least(team.size, tall));
      blocks = least(over(blocks, team.size) * team.size, tall);
      const int64_t cuts = blocks < team.size ? least(wide, over(team.size, blocks)) : 1;
      // One thread with one block of rows takes columns as soon as they are packed: they are still near.
      constexpr int64_t STRIP = PACKED_AT_ONCE / NR;
      const int64_t at_once = team.size == 1 && blocks == 1 ? STRIP : wide;
      const bool alone = N == 1 && team.size == 1 && inner <= DEPTH;  // a tile is done before the next is begun
      // What will be packed in place of a panel comes from memory while that is computed with.
      auto coming = [&](int64_t n, int64_t q, int64_t k, int64_t part, int64_t parts) INLINE_LAMBDA {
        if (q >= wide) q -= over(wide, at_once) * at_once, k += DEPTH;
        if (q < 0 || k >= inner) return;
        const int64_t stride = right[n].stride, first = right_turned[n] ? c0 * stride + k : k * stride + c0;
        const Side<R> from{right[n].data + first, stride};
        fetch_panel(from, right_turned[n], q * NR, least(NR, width - q * NR), least(DEPTH, inner - k), part, parts);
      };
      for (int64_t k0 = 0; k0 == 0 || k0 < inner; k0 += DEPTH) {
        const int64_t depth = least(DEPTH, inner - k0), end = k0 + depth;
        const bool fresh = k0 % CHAIN == 0, last = end == inner, whole = last || end % CHAIN == 0;
        for (int64_t q0 = 0; q0 < wide; q0 += at_once) {
          const int64_t panels = least(at_once, wide - q0);
          for (int64_t g = team.rank; g < over(panels, STRIP) * N; g += team.size) {
            const int64_t n = g % N, q = g / N * STRIP, c = (q0 + q) * NR, count = least(PACKED_AT_ONCE, width - c);
            E* const to = room.right(team) + (n * panels + q) * NR * depth;
            const R* const data = right[n].data;
            const int64_t stride = right[n].stride;
            if (right_turned[n]) pack_across<NR>(to, Side<R>{data + (c0 + c) * stride + k0, stride}, count, depth);
            else pack_along<NR>(to, Side<R>{data + k0 * stride + c0 + c, stride}, count, depth);
          }
          meet(team);
          for (int64_t unit = team.rank; unit < blocks * cuts; unit += team.size) {
            const int64_t block = unit % blocks, cut = unit / blocks;
            const int64_t begin = tall * block / blocks, stop = tall * (block + 1) / blocks;
            const int64_t r = r0 + begin * MR, count = least(stop * MR, height) - begin * MR;
            E* const packed = room.left();
            const Side<L> part{left.data + (LEFT_TURNED ? k0 * left.stride + r : r * left.stride + k0), left.stride};
            if (q0 == 0 && LEFT_TURNED) pack_along<MR>(packed, part, count, depth);
            else if (q0 == 0) pack_across<MR>(packed, part, count, depth);
            for (int64_t q = q0 + panels * cut / cuts; q < q0 + panels * (cut + 1) / cuts; ++q)
              for (int n = 0; n < N; ++n)
                for (int64_t i = begin; i < stop; ++i) {
                  E* const tiles = room.sums(team) + (alone ? 0 : q * tall + i) * N * TILE_SIZE;
                  E* const tile = tiles + n * TILE_SIZE;
                  const E* const a = packed + (i - begin) * MR * depth;
                  const E* const b = room.right(team) + (n * panels + q - q0) * NR * depth;
                  const int64_t lines = least(MR, height - i * MR);
                  if (team.size == 1 && block == 0) coming(n, q + at_once, k0, i, stop);
                  fresh ? micro<true>(lines, depth, a, b, tile) : micro<false>(lines, depth, a, b, tile);
                  if (inner == 0) clear(tile);
                  if (whole && room.levels) join_chain(tile, room.level, k0 / CHAIN, last);
                  if (!last || n + 1 < N) continue;
                  for (int64_t y = 0; y < lines; ++y)
                    for (int64_t x = 0; x < least(NR, width - q * NR); x += LANES) {
                      V product[N];
                      for (int m = 0; m < N; ++m) product[m] = finished(tiles + m * TILE_SIZE + y * NR + x);
                      const int64_t to_r = r0 + i * MR + y, to_c = c0 + q * NR + x, room_left = c0 + width - to_c;
                      if (room_left >= LANES) at(to_r, to_c, Full{}, product);
                      else at(to_r, to_c, Part{room_left}, product);
                    }
                }
          }
          meet(team);
        }
      }
    }
}

}  // namespace tokitai
