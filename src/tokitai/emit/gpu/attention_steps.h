// Attention whose products are added up by steps of a matrix unit: a block of warps has a tile of ROWS lines of its own
// side, 16 TILES lines a warp, and walks along the other side, COLS lines a step. Scores and sums are fragments of
// `mma.m16n8k16` in registers; weights become fragments of the next product where they are.
//
// Operands lie in shared memory as k_tiles of DIM elements of each line; those of the next step are on their way meanwhile.
// Where heads are WHOLE a k_tile has all of a line; else k_tiles come one after another, and sums are made one piece of DIM
// at a time.
#pragma once
#include "work.h"
#if PLAN_WARPGROUPS
#include "warpgroup.h"
#endif

namespace tokitai {

constexpr int DIM = PLAN_DIM, TILES = PLAN_TILES, WIDTH = PLAN_WIDTH;
constexpr bool WHOLE = PLAN_WHOLE;
constexpr int WARPS = ROWS / (16 * TILES), THREADS = 32 * WARPS;
constexpr int THREAD_M = 2 * TILES, THREAD_N = COLS / 4;  // of a thread's scores
constexpr int ACROSS = COLS / 8, PIECES = DIM / 8, CHUNKS = DIM / CHUNK;
// Where an element is in a K-tile. A warpgroup's unit reads boxes of 64 lines by 64 elements, whose chunks are swizzled;
// elsewhere a line has an odd number of chunks. Either way eight lines are in different banks.
constexpr bool WARPGROUPS = PLAN_WARPGROUPS;
constexpr int PITCH = (CHUNKS | 1) * CHUNK, BOX = 64 * 64, BOXES = (DIM + 63) / 64;
constexpr int OWN_K_TILE = WARPGROUPS ? ROWS / 64 * BOXES * BOX : ROWS * PITCH;
constexpr int K_TILE = WARPGROUPS ? COLS / 64 * BOXES * BOX : COLS * PITCH;
INLINE int place_of(int line, int k) {
  if (!WARPGROUPS) return line * PITCH + k;
  return (line / 64 * BOXES + k / 64) * BOX + line % 64 * 64 + ((k % 64 / CHUNK) ^ (line % 8)) * CHUNK + k % CHUNK;
}
static_assert(!WARPGROUPS || (ROWS % 64 == 0 && COLS == 64 && TILES == 1 && DIM % 64 == 0 && WHOLE), "whole boxes");
static_assert(ROWS == 16 * TILES * WARPS && COLS % 16 == 0 && DIM % 16 == 0 && CHAIN % COLS == 0, "whole fragments");
static_assert(WHOLE || CHAIN % DIM == 0, "a chain is whole k_tiles");
static_assert((COLS & (COLS - 1)) == 0, "a step is a node of a tree");
static_assert(ROWS <= THREADS && COLS <= THREADS && THREAD_M <= 4, "a thread for each line");
constexpr int RESULTS = WARPS * 16 * DIM * int(sizeof(E));  // bytes of results on their way
constexpr int more(int a, int b) { return a > b ? a : b; }

#if CUDA_ASM && !TOKITAI_STRUCTURE
#define RARE __device__ __noinline__ static
#else
#define RARE INLINE
#endif
#if TOKITAI_SIM
#define SHARED_STORAGE(name, bytes) SHARED(Words16, name##_words, (bytes) / 16); char* const name = reinterpret_cast<char*>(name##_words)
#else
#define SHARED_STORAGE(name, bytes) SHARED_AT_LAUNCH(name##_given); char* const name = aligned(name##_given)
#endif

#if !TOKITAI_SIM
INLINE char* aligned(char* p) { return WARPGROUPS ? p + (-int64_t(__cvta_generic_to_shared(p)) & 1023) : p; }
#endif
INLINE int warp_here() { return thread_index() / 32; }
INLINE int row_at(int i) { return warp_here() * 16 * TILES + i / 2 * 16 + i % 2 * 8 + thread_index() % 32 / 4; }
INLINE int column_here(int j) { return j / 2 * 8 + thread_index() % 4 * 2 + j % 2; }
INLINE int64_t levels_of(int64_t terms) {
  int64_t levels = 0;
  for (int64_t n = ceil_div(terms, CHAIN) - 1; n > 0; n >>= 1) ++levels;
  return levels;
}
template <class T> INLINE constexpr T max(T a, T b) { return a > b ? a : b; }

// 2^(n + shift) of sum = n + nearest: 1.5 * 2^23 beside n holds it in its lowest bits.
#if TOKITAI_STRUCTURE
INLINE S power_of_two(S sum, S nearest, S shift) { return power_of_two(add(sub(sum, nearest), shift)); }
#else
INLINE S power_of_two(S sum, S, S shift) { return float_of((bits(sum) + uint32_t(int32_t(shift) + 127)) << 23); }
#endif

// ------------------------------------------------------------------ operands
// What stands behind the end of a line; and a product that is not attended has such factors.
template <bool LEFT> INLINE W absent() {
#if TOKITAI_STRUCTURE
  return {LEFT ? LEFT_PADDING : RIGHT_PADDING};
#else
  return 0;
#endif
}

// Chunks of a step's k_tiles on their way into shared memory; some groups of copies may be on their way at a time.
#if CUDA_ASM && !TOKITAI_STRUCTURE
template <int MAX> struct Copies {
  template <class P> INLINE void copy(W* to, const P* from) { copy16_to_shared(to, from); }
  INLINE void close() { close_copies(); }
  template <int LATER> INLINE void wait() {
    wait_for_copies<LATER>();
    if (WARPGROUPS) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
};
#else  // they land as late as they may
template <int MAX> struct Copies {
  W held[2][MAX][CHUNK];
  W* place[2][MAX];
  int count[2] = {0, 0}, turn = 0;
  template <class P> INLINE void copy(W* to, const P* from) {
    place[turn][count[turn]] = to;
    Chunk<P> q;
#if TOKITAI_STRUCTURE
    for (int e = 0; e < CHUNK; ++e) q.e[e] = from[e];
#else
    keep<16>(&q, from);
#endif
    for (int e = 0; e < CHUNK; ++e) held[turn][count[turn]][e] = k_tile_value(q.e[e]);
    ++count[turn];
  }
  INLINE void close() { turn ^= 1; }
  INLINE void land(int group) {
    for (int i = 0; i < count[group]; ++i)
      for (int e = 0; e < CHUNK; ++e) place[group][i][e] = held[group][i][e];
    count[group] = 0;
  }
  template <int LATER> INLINE void wait() {
    land(turn);
    if (LATER == 0) land(turn ^ 1);
  }
};
#endif
constexpr int EACH = (more(ROWS, COLS) * CHUNKS + THREADS - 1) / THREADS;  // chunks of a k_tile that a thread copies

// LINES lines of an operand from `line` on, of `lines` in all, and of each DIM elements from d on, of `k_size`: some of
// them may not exist. It is a function of its own, as few tiles need it and others need its registers.
template <int LINES, bool LEFT, class C, class P>
RARE void fetch_partial(C& copies, W* k_tile, Operand<P> from, int64_t line, int64_t lines, int64_t d, int64_t k_size) {
  ROLLED for (int i = thread_index(); i < LINES * CHUNKS; i += THREADS) {
    const int l = i / CHUNKS, k = i % CHUNKS * CHUNK;
    const int64_t there = line + l < lines ? k_size - d - k : 0;
    W* const to = k_tile + place_of(l, k);
    const P* const p = from.data + (line + l) * from.stride + d + k;
    if (WIDTH == CHUNK && there >= CHUNK) copies.copy(to, p);
    else
      UNROLL for (int e = 0; e < CHUNK; ++e) to[e] = e < there ? k_tile_value(p[e]) : absent<LEFT>();
  }
}
// The same; where all of it exists, a thread's chunks are a fixed number of lines from each other.
template <int LINES, bool LEFT, class C, class P>
INLINE void fetch_k_tile(C& copies, W* k_tile, Operand<P> from, int64_t line, int64_t lines, int64_t d, int64_t k_size) {
  constexpr int DOWN = THREADS / CHUNKS, LINE = WARPGROUPS ? 64 : PITCH;
  constexpr bool REGULAR = THREADS % CHUNKS == 0 && DOWN % 8 == 0 && LINES % DOWN == 0 && LINES <= 64;
  if (REGULAR && WIDTH == CHUNK && line + LINES <= lines && d + DIM <= k_size) {
    const int l = thread_index() / CHUNKS, k = thread_index() % CHUNKS * CHUNK;
    const P* p = from.data + (line + l) * from.stride + d + k;
    W* const to = k_tile + place_of(l, k);
    UNROLL for (int n = 0; n < LINES / DOWN; ++n, p += DOWN * from.stride) copies.copy(to + n * DOWN * LINE, p);
  } else {
    fetch_partial<LINES, LEFT>(copies, k_tile, from, line, lines, d, k_size);
  }
}

// Sixteen lines by sixteen elements, four matrices of eight by eight: of lines 0 and 8, then those eight elements further
// on; SWAPPED, the other way round. TRANSPOSED, pairs are of neighbouring lines.
template <bool TRANSPOSED, bool SWAPPED> INLINE void fragments(Pair (&r)[4], const W* k_tile, int line, int k) {
  const int lane = thread_index() % 32, m = lane / 8, low = m & 1, high = m >> 1;
  const W* const mine = k_tile + place_of(line + (SWAPPED ? high : low) * 8 + lane % 8, k + (SWAPPED ? low : high) * 8);
#if CUDA_ASM && !TOKITAI_STRUCTURE
  const uint32_t place = uint32_t(__cvta_generic_to_shared(mine));
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place) : "memory");
#else  // line i of matrix m begins where lane 8 m + i says
  const auto line_of = [&](int from) {
    return reinterpret_cast<const W*>(exchange(reinterpret_cast<uint64_t>(mine), (lane ^ from) & 31));
  };
  for (int i = 0; i < 4; ++i) {
    if (TRANSPOSED) {
      const W *const even = line_of(8 * i + lane % 4 * 2), *const odd = line_of(8 * i + lane % 4 * 2 + 1);
      r[i] = pair(even[lane / 4], odd[lane / 4]);
    } else {
      const W* const line = line_of(8 * i + lane / 4) + lane % 4 * 2;
      r[i] = pair(line[0], line[1]);
    }
  }
#endif
}

// ------------------------------------------------------------------ steps
#if STEPS_BY_UNIT
#define ALL_STEPS UNROLL
#else
#define ALL_STEPS ROLLED
#endif

// Of the sixteen products of a step those that are attended: a bit each.
INLINE E any_step_of_attended(E c, const W* a, const W* b, uint32_t attended) {
  W x[UNIT_STEP], y[UNIT_STEP];
  for (int k = 0; k < UNIT_STEP; ++k) {
    const bool is = attended >> k & 1;
    x[k] = is ? a[k] : absent<true>(), y[k] = is ? b[k] : absent<false>();
  }
  return any_step(c, x, y);
}
constexpr uint32_t ALL_ATTENDED = 0xFFFFu;
// As `step_in_order`; row g meets the products `upper`, row g + 8 the products `lower`.
INLINE void step_of_attended(E (&c)[4], const Pair (&a)[4], const Pair (&b)[2], uint32_t upper, uint32_t lower) {
  const int lane = thread_index() & 31, row = lane & ~3, column = 8 * (lane & 3);
  W high_row[UNIT_STEP], low_row[UNIT_STEP], first[UNIT_STEP], second[UNIT_STEP];
  ROLLED for (int t = 0; t < 4; ++t)
    for (int half = 0; half < 2; ++half) {
      const Pair u = from_lane(a[2 * half], (lane ^ (row + t)) & 31), l = from_lane(a[2 * half + 1], (lane ^ (row + t)) & 31);
      const Pair f = from_lane(b[half], (lane ^ (column + t)) & 31), s = from_lane(b[half], (lane ^ (column + 4 + t)) & 31);
      for (int i = 0; i < 2; ++i) {
        const int k = 8 * half + 2 * t + i;
        high_row[k] = half_of(u, i), low_row[k] = half_of(l, i), first[k] = half_of(f, i), second[k] = half_of(s, i);
      }
    }
  c[0] = any_step_of_attended(c[0], high_row, first, upper), c[1] = any_step_of_attended(c[1], high_row, second, upper);
  c[2] = any_step_of_attended(c[2], low_row, first, lower), c[3] = any_step_of_attended(c[3], low_row, second, lower);
}
INLINE void step_of_all(E (&c)[4], const Pair (&a)[4], const Pair (&b)[2]) {
#if STEPS_BY_UNIT
  unit_step(c[0], c[1], c[2], c[3], a, b);
#else
  step_of_attended(c, a, b, ALL_ATTENDED, ALL_ATTENDED);
#endif
}

// Accumulators of a warp's 16 TILES rows and 8 N columns.
template <int N> struct Sums {
  E sum[TILES][N][4];

  INLINE void fill(E x) {
    UNROLL for (int m = 0; m < TILES; ++m)
      UNROLL for (int n = 0; n < N; ++n)
        UNROLL for (int e = 0; e < 4; ++e) sum[m][n][e] = x;
  }
  INLINE E at(int i, int j) const { return sum[i / 2][j / 2][i % 2 * 2 + j % 2]; }

  // f(sum, at): the accumulators of every tile of 16 x 8.
  template <class F> INLINE void each_tile(const F& f) {
    UNROLL for (int m = 0; m < TILES; ++m)
      UNROLL for (int n = 0; n < N; ++n) f(sum[m][n], m * N + n);
  }
  // f(sum, place): every accumulator, and where this thread's has its place among those of a block.
  template <class F> INLINE void each(const F& f) {
    UNROLL for (int m = 0; m < TILES; ++m)
      UNROLL for (int n = 0; n < N; ++n)
        UNROLL for (int e = 0; e < 4; ++e) f(sum[m][n][e], ((m * N + n) * 4 + e) * THREADS + thread_index());
  }
  // As in products.h: chain `n` joins those before it.
  INLINE void join_chain(E* pending, int64_t n, bool last) {
    constexpr int64_t LEVEL = int64_t(ROWS) * N * 8;
    const auto add_pending = [&](const E* from) { each([&](E& x, int place) { x = add_sums(from[place], x); }); };
    int64_t rest = n;
    ROLLED for (; rest & 1; rest >>= 1, pending += LEVEL) add_pending(pending);
    if (!last) {
      each([&](E& x, int place) { pending[place] = x; });
      return;
    }
    ROLLED for (rest >>= 1, pending += LEVEL; rest; rest >>= 1, pending += LEVEL)
      if (rest & 1) add_pending(pending);
  }
};
template <int N> INLINE int64_t pending_size(int64_t terms) { return levels_of(terms) * ROWS * N * 8; }

// The chains of a sum along a walk: `at` says how many were ended.
struct Chains {
  int64_t ended = 0;
  // Before the line `next`, or at the end of all `terms`, chains end that have no more terms.
  template <int N> INLINE void end(Sums<N>& sums, E* pending, int64_t next, int64_t terms) const {
    if (terms <= CHAIN) return;
    const int64_t count = ceil_div(terms, CHAIN), until = next >= terms ? count : next / CHAIN;
    ROLLED for (int64_t n = ended; n < until; ++n) {
      sums.join_chain(pending, n, n + 1 == count);
      if (n + 1 < count) sums.fill(NEUTRAL);
    }
  }
  INLINE void pass(int64_t next) { ended = next / CHAIN; }
};

// Whether a warp, or its warpgroup, has a line at all; `first` is the block's.
INLINE bool has_lines(int64_t first, int64_t lines) {
  return first + (WARPGROUPS ? warp_here() / 4 * 64 : warp_here() * 16 * TILES) < lines;
}

// ------------------------------------------------------------------ scores
struct Scores : Sums<ACROSS> {
  // The products of k_tiles of the block's lines and of a step's, the first `count` of which are there.
  INLINE void multiply(const W* own, const W* other, int count, int64_t left) {
#if PLAN_WARPGROUPS
    const uint32_t left_at = shared_address(own) + warp_here() / 4 * BOXES * BOX * 2, right_at = shared_address(other);
    float d[COLS / 2];  // the first step does not read it
    UNROLL for (int i = 0; i < COLS / 2; ++i) d[i] = 0.0f;
    warpgroup_begin();
    UNROLL for (int k = 0; k < DIM; k += UNIT_STEP)
      warpgroup_step<COLS, false, false>(
          d, operand_at<2 * BOX>(left_at + k / 64 * BOX * 2) + k % 64 * 2 / 16,
          operand_at<2 * BOX>(right_at + k / 64 * BOX * 2) + k % 64 * 2 / 16, k > 0);
    warpgroup_close();
    warpgroup_wait<0>();
    UNROLL for (int i = 0; i < COLS / 2; ++i) sum[0][i / 4][i % 4] = d[i];
    return;
#endif
    const int first = warp_here() * 16 * TILES;
    ALL_STEPS for (int k = 0; k < DIM; k += UNIT_STEP) {
      if (!STEPS_BY_UNIT && k >= left) break;
      Pair a[TILES][4];
      UNROLL for (int m = 0; m < TILES; ++m) fragments<false, false>(a[m], own, first + m * 16, k);
      ALL_STEPS for (int n = 0; n < ACROSS; n += 2) {
        if (!STEPS_BY_UNIT && n * 8 >= count) break;
        Pair both_tiles[4];
        fragments<false, true>(both_tiles, other, n * 8, k);
        ALL_STEPS for (int i = 0; i < 2; ++i) {
          const Pair b[2] = {both_tiles[2 * i], both_tiles[2 * i + 1]};
          ALL_STEPS for (int m = 0; m < TILES; ++m) step_of_all(sum[m][n + i], a[m], b);
        }
      }
    }
  }
  INLINE void end() {
    each([&](E& x, int) {
#if TOKITAI_STRUCTURE
      if (x.h == 0) x = empty_sum();
#endif
    });
  }
  INLINE void run(const W* own, const W* other, int count, int64_t k_size, bool idle) {
    fill(NEUTRAL);
    if (!idle) multiply(own, other, count, k_size);
    end();
  }
  // The same where lines have several k_tiles.
  template <class C, class L, class R>
  INLINE void run_pieces(
      C& copies, W* own, W* other, Operand<L> left, int64_t l0, int64_t lefts, Operand<R> right, int64_t r0, int64_t rights,
      int64_t k_size, E* pending, bool idle) {
    const int64_t chains = ceil_div(k_size, CHAIN);
    fill(NEUTRAL);
    ROLLED for (int64_t d = 0; d < k_size; d += DIM) {
      barrier();
      fetch_k_tile<ROWS, true>(copies, own, left, l0, lefts, d, k_size);
      fetch_k_tile<COLS, false>(copies, other, right, r0, rights, d, k_size);
      copies.close();
      copies.template wait<0>();
      barrier();
      if (!idle) multiply(own, other, int(min<int64_t>(COLS, rights - r0)), k_size - d);
      const int64_t next = d + DIM;
      if (chains > 1 && (next % CHAIN == 0 || next >= k_size)) {
        join_chain(pending, d / CHAIN, next >= k_size);
        if (next < k_size) fill(NEUTRAL);
      }
    }
    end();
  }
};

// ------------------------------------------------------------------ which keys queries attend to
// Each attends to the keys below its limit: all of a few queries to those below `min`, none to those from `max` on.
struct KeyLimits {
  int64_t min, max;
};
// Of N queries, whose limits a function gives, beside so many keys; in all lanes of a warp.
template <int N, class F> INLINE KeyLimits key_limits(const F& limit, int64_t keys) {
  const int lane = thread_index() % 32;
  int32_t low = limit(lane % N), high = low;
  UNROLL for (int i = 32; i < N; i += 32) {
    low = min(low, limit(lane + i));
    high = max(high, limit(lane + i));
  }
  UNROLL for (int d = 1; d < 32; d *= 2) {
    low = min(low, int32_t(exchange(uint32_t(low), d)));
    high = max(high, int32_t(exchange(uint32_t(high), d)));
  }
  return {min<int64_t>(low, keys), min<int64_t>(high, keys)};
}

// What of so many steps along the queries each sees: steps that see nothing are passed over.
constexpr int SURVEYED = 32;
struct Survey {
  int32_t min[SURVEYED], max[SURVEYED];
  // Of the steps from row r0 on.
  INLINE void make(const int32_t* limits, int64_t r0, int64_t rows) {
    barrier();
    ROLLED for (int s = warp_here(); s < SURVEYED; s += WARPS) {
      const int64_t r = r0 + s * COLS;
      if (r >= rows) break;
      const KeyLimits of_step = key_limits<COLS>([&](int i) { return limits[tokitai::min(r + i, rows - 1)]; }, 1ll << 40);
      if (thread_index() % 32 == 0) min[s] = int32_t(of_step.min), max[s] = int32_t(of_step.max);
    }
    barrier();
  }
};

// ------------------------------------------------------------------ maxima and sums along rows
INLINE void fill(S (&x)[THREAD_M][THREAD_N], S with) {
  UNROLL for (int i = 0; i < THREAD_M; ++i)
    UNROLL for (int j = 0; j < THREAD_N; ++j) x[i][j] = with;
}

// Of the columns of a step the first `count` exist; others take a value that changes nothing.
INLINE void neutralize(S (&x)[THREAD_M][THREAD_N], int count, S neutral) {
  if (count == COLS) return;
  UNROLL for (int j = 0; j < THREAD_N; ++j)
    if (column_here(j) >= count)
      UNROLL for (int i = 0; i < THREAD_M; ++i) x[i][j] = neutral;
}

// The maximum of each row.
struct RowMax {
  S top[THREAD_M];
  INLINE RowMax() {
    UNROLL for (int i = 0; i < THREAD_M; ++i) top[i] = NEUTRAL_MAX;
  }
  INLINE void take(S (&x)[THREAD_M][THREAD_N], int count) {
#if TOKITAI_STRUCTURE
    UNROLL for (int j = 0; j < THREAD_N; ++j)
      if (column_here(j) < count)
        UNROLL for (int i = 0; i < THREAD_M; ++i) top[i] = join_max(top[i], leaf_max(x[i][j]));
#else
    neutralize(x, count, NEUTRAL_MAX);
    UNROLL for (int i = 0; i < THREAD_M; ++i) {
      S best[THREAD_N / 2];  // a tree, as a chain would wait for each of its links
      UNROLL for (int j = 0; j < THREAD_N / 2; ++j) best[j] = maximum(x[i][2 * j], x[i][2 * j + 1]);
      UNROLL for (int n = THREAD_N / 4; n > 0; n /= 2)
        UNROLL for (int j = 0; j < n; ++j) best[j] = maximum(best[j], best[j + n]);
      top[i] = maximum(top[i], best[0]);
    }
#endif
  }
  // The columns from c0 up to `cols`, all of them this value.
  INLINE void take_equal(S x, int64_t c0, int64_t cols) {
#if TOKITAI_STRUCTURE
    for (int64_t c = c0 + thread_index() % 4; c < cols; c += 4)
      for (int i = 0; i < THREAD_M; ++i) top[i] = join_max(top[i], leaf_max(x));
#else
    if (c0 < cols)
      UNROLL for (int i = 0; i < THREAD_M; ++i) top[i] = maximum(top[i], x);
#endif
  }
  INLINE void result(S* to) {
    UNROLL for (int i = 0; i < THREAD_M; ++i) {
      const S x = across<Maximum, 4>(top[i]);
      if (thread_index() % 4 == 0) to[row_at(i)] = done_max(x);
    }
  }
};

// The balanced tree along each row: a step is one of its nodes. The tree over the steps of row i is lane i's.
struct RowSum {
  BinaryCounter<Add> counter;
  INLINE void take(S (&x)[THREAD_M][THREAD_N], int count) {
    neutralize(x, count, NEUTRAL_SUM);
    S of_lane = NEUTRAL_SUM;
    UNROLL for (int i = 0; i < THREAD_M; ++i) {
      S parts[ACROSS];
      UNROLL for (int n = 0; n < ACROSS; ++n) parts[n] = add(x[i][2 * n], x[i][2 * n + 1]);
      over_lanes<Add, 4, 1, ACROSS, 1>(parts);
      if (thread_index() % 4 == i) of_lane = parts[0];
    }
    counter.push(of_lane);
  }
  // The columns from c0 up to `cols`, all of them this value.
  INLINE void take_equal(S x, int64_t c0, int64_t cols) {
    S step = x;
    UNROLL for (int n = 1; n < COLS; n *= 2) step = add(step, step);
    ROLLED for (; c0 + COLS <= cols; c0 += COLS) counter.push(step);
    if (c0 >= cols) return;
    S last[THREAD_M][THREAD_N];
    fill(last, x);
    take(last, int(cols - c0));
  }
  INLINE void result(S* to) {
    UNROLL for (int i = 0; i < THREAD_M; ++i)
      if (thread_index() % 4 == i) to[row_at(i)] = counter.result(S{});
  }
};

// ------------------------------------------------------------------ weighted sums
#if TOKITAI_STRUCTURE
INLINE Pair weights_of(S a, S b) { return pair(a, b); }
#elif CUDA_ASM
INLINE Pair weights_of(S a, S b) { return LEFT_FRACTION_BITS == 10 ? pair_of_f16(a, b) : pair_of_bf16(a, b); }
#else
INLINE Pair weights_of(S a, S b) {
  return LEFT_FRACTION_BITS == 10 ? pair(narrow_f16(a), narrow_f16(b)) : pair(narrow_bf16(a), narrow_bf16(b));
}
#endif

#if PLAN_WARPGROUPS
// A step of a warpgroup's 64 rows, whose weights are in registers, and of lines whose neighbours are neighbours across k.
#define WEIGHED_STEP_64(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; " \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "r"(1))
#define WEIGHED_STEP_128(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; " \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
      "%62, %63" \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "r"(1))
template <int N> INLINE void weighed_step(float (&d)[N / 2], const Pair (&a)[4], uint64_t right) {
  if constexpr (N == 64) {
    if constexpr (LEFT_FRACTION_BITS == 10) WEIGHED_STEP_64("f16");
    else WEIGHED_STEP_64("bf16");
  } else {
    if constexpr (LEFT_FRACTION_BITS == 10) WEIGHED_STEP_128("f16");
    else WEIGHED_STEP_128("bf16");
  }
}
#endif

// Whether all of a step's lines are finite: in all lanes of a warp. One more than an exponent of ones carries.
INLINE bool finite_lines(const W* k_tile) {
#if STEPS_BY_UNIT
  constexpr uint32_t EXPONENTS = LEFT_FRACTION_BITS == 10 ? 0x7C007C00u : 0x7F807F80u;
  constexpr uint32_t ONES = LEFT_FRACTION_BITS == 10 ? 0x04000400u : 0x00800080u;
  constexpr int EACH_LANE = COLS * CHUNKS / 32, AT_ONCE = 4;
  static_assert(COLS * CHUNKS % 32 == 0 && EACH_LANE % AT_ONCE == 0, "whole rounds");
  uint32_t carried = 0;
  ROLLED for (int i = thread_index() % 32; i < COLS * CHUNKS; i += 32 * AT_ONCE)
    UNROLL for (int n = 0; n < AT_ONCE; ++n) {
      const int chunk = i + 32 * n;
      const Words16 w = *reinterpret_cast<const Words16*>(k_tile + place_of(chunk / CHUNKS, chunk % CHUNKS * CHUNK));
      UNROLL for (int e = 0; e < 4; ++e) carried |= (w.w[e] & EXPONENTS) + ONES;
    }
  UNROLL for (int d = 1; d < 32; d *= 2) carried |= exchange(carried, d);
  return (carried & 0x80008000u) == 0;
#else
  return false;
#endif
}

// To a tile of rows x DIM the products of a step's weights and lines. Where only SOME are attended, attended(i, k) says whether row i
// of the thread's meets line k; of the elements of a line the first `left` are there.
template <bool SOME, class F>
INLINE void weigh(
    Sums<PIECES>& to, const S (&x)[THREAD_M][THREAD_N], const W* k_tile, int count, int64_t left, bool idle, const F& attended) {
  if (idle) return;
#if PLAN_WARPGROUPS
  if (!SOME || finite_lines(k_tile)) {
    Pair a[COLS / UNIT_STEP][4];
    UNROLL for (int k = 0; k < COLS / UNIT_STEP; ++k)
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int half = 0; half < 2; ++half) {
          const int j = 4 * k + 2 * half;
          const bool one = !SOME || attended(i, column_here(j)), two = !SOME || attended(i, column_here(j + 1));
          a[k][2 * half + i] = weights_of(one ? x[i][j] : S{}, two ? x[i][j + 1] : S{});
        }
    float d[DIM / 2];
    UNROLL for (int i = 0; i < DIM / 2; ++i) d[i] = to.sum[0][i / 4][i % 4];
    const uint64_t right = operand_at<2 * BOX>(shared_address(k_tile));
    warpgroup_begin();
    UNROLL for (int k = 0; k < COLS / UNIT_STEP; ++k) weighed_step<DIM>(d, a[k], right + k * 2048 / 16);
    warpgroup_close();
    warpgroup_wait<0>();
    UNROLL for (int i = 0; i < DIM / 2; ++i) to.sum[0][i / 4][i % 4] = d[i];
    return;
  }
#else
  if (STEPS_BY_UNIT && (!SOME || finite_lines(k_tile))) {
    UNROLL for (int k = 0; k < COLS; k += UNIT_STEP) {
      Pair a[TILES][4];
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int half = 0; half < 2; ++half) {
          const int j = (k + 8 * half) / 4;
          const bool one = !SOME || attended(i, column_here(j)), two = !SOME || attended(i, column_here(j + 1));
          a[i / 2][2 * half + i % 2] = weights_of(one ? x[i][j] : S{}, two ? x[i][j + 1] : S{});
        }
      UNROLL for (int n = 0; n < PIECES; n += 2) {
        Pair both_tiles[4];
        fragments<true, false>(both_tiles, k_tile, k, n * 8);
        UNROLL for (int i = 0; i < 2; ++i) {
          const Pair b[2] = {both_tiles[2 * i], both_tiles[2 * i + 1]};
          UNROLL for (int m = 0; m < TILES; ++m) step_of_all(to.sum[m][n + i], a[m], b);
        }
      }
    }
    return;
  }
#endif
  // Rare, or slow anyway: what a place is in registers is found by comparing it with all, so that none is in memory.
  ROLLED for (int k = 0; k < COLS && k < count; k += UNIT_STEP)
    ROLLED for (int m = 0; m < TILES; ++m) {
      Pair a[4];
      uint32_t rows_attended[2] = {0, 0};
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int j = 0; j < THREAD_N; j += 2)
          if (i / 2 == m && j / 4 == k / 16) a[j % 4 / 2 * 2 + i % 2] = weights_of(x[i][j], x[i][j + 1]);
      ROLLED for (int e = 0; e < UNIT_STEP; ++e) {
        rows_attended[0] |= uint32_t(attended(2 * m, k + e)) << e;
        rows_attended[1] |= uint32_t(attended(2 * m + 1, k + e)) << e;
      }
      ROLLED for (int n = 0; n < PIECES && n * 8 < left; ++n) {
        Pair both_tiles[4];
        fragments<true, false>(both_tiles, k_tile, k, n / 2 * 16);
        const Pair b[2] = {both_tiles[n % 2 ? 2 : 0], both_tiles[n % 2 ? 3 : 1]};
        E c[4];
        to.each_tile([&](E (&sum)[4], int at) {
          if (at == m * PIECES + n) UNROLL for (int e = 0; e < 4; ++e) c[e] = sum[e];
        });
        step_of_attended(c, a, b, rows_attended[0], rows_attended[1]);
        to.each_tile([&](E (&sum)[4], int at) {
          if (at == m * PIECES + n) UNROLL for (int e = 0; e < 4; ++e) sum[e] = c[e];
        });
      }
    }
}

// A tile's results, at(row, d, sum) for the first `lines` rows and the first `left` elements of each, into rows of `out`: the
// sums go through shared memory, 16 rows of each warp at a time, where neighbouring threads have neighbouring chunks.
// Chunks of a row are swizzled, so that those of eight rows are in different banks.
struct alignas(16) SumsOfChunk { E e[CHUNK]; };
struct alignas(2 * sizeof(E)) SumsOfPair { E e[2]; };
constexpr int SWIZZLED = PIECES % 8 == 0 ? 7 : PIECES % 4 == 0 ? 3 : 1;
INLINE int staged(int line, int chunk) { return line * PIECES + (chunk ^ (line & SWIZZLED)); }
template <class P, class F>
INLINE void results_of(
    const Sums<PIECES>& sums, char* memory, P* out, int64_t stride, int64_t lines, int64_t left, const F& at) {
  SumsOfChunk* const staging = reinterpret_cast<SumsOfChunk*>(memory);
  const bool aligned = reinterpret_cast<uint64_t>(out) % 16 == 0 && stride * int64_t(sizeof(P)) % 16 == 0;
  ROLLED for (int m = 0; m < TILES; ++m) {
    barrier();
    UNROLL for (int y = 0; y < TILES; ++y)
      if (y == m)
        UNROLL for (int n = 0; n < PIECES; ++n)
          UNROLL for (int half = 0; half < 2; ++half) {
            E* const to = staging[staged(warp_here() * 16 + half * 8 + thread_index() % 32 / 4, n)].e;
            reinterpret_cast<SumsOfPair*>(to)[thread_index() % 4] = {sums.sum[y][n][2 * half], sums.sum[y][n][2 * half + 1]};
          }
    barrier();
    ROLLED for (int i = thread_index(); i < WARPS * 16 * PIECES; i += THREADS) {
      const int line = i / PIECES, d = i % PIECES * CHUNK, row = line / 16 * 16 * TILES + m * 16 + line % 16;
      if (row >= lines || d >= left) continue;
      const SumsOfChunk made = staging[staged(line, i % PIECES)];
      Chunk<P> q;
      UNROLL for (int e = 0; e < CHUNK; ++e) store1(&q.e[e], at(row, d + e, made.e[e]));
      P* const to = out + row * stride + d;
      if (aligned && d + CHUNK <= left) store_chunk<CHUNK, FULL>(to, q, CHUNK);
      else
        UNROLL for (int e = 0; e < CHUNK; ++e)
          if (d + e < left) to[e] = q.e[e];
    }
  }
  barrier();
}

}  // namespace tokitai
