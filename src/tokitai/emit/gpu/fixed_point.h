// Products of operands in fixed point: one kernel finds the units of lines and writes their integers; another multiplies
// slices, and adds exactly. The integers are those of digits.h.
#pragma once
#include "digits.h"

namespace tokitai {

constexpr int THREAD_M = PLAN_THREAD_M, THREAD_N = PLAN_THREAD_N;
constexpr int THREADS = ROWS / THREAD_M * (COLS / THREAD_N);
constexpr int STRIP = 32, CUT_THREADS = 256;  // lines and threads of what a block cuts at a time
template <bool ALONG_K, class P> constexpr int CUT_LINES = STRIP;
constexpr int CUT_K = PER_WORD == 1 ? 64 : 128, PITCH = K_TILE_WORDS + (PER_WORD == 1 ? 2 : 4);
constexpr int LINES = DIGITS * (ROWS + PRODUCTS * COLS);  // of a K-tile
constexpr int PIECE = 16 / int(sizeof(Bytes)), LINE_PIECES = K_TILE_WORDS / PIECE, LINE = ROWS / THREAD_M;
struct alignas(16) Piece { Bytes e[PIECE]; };
constexpr int TILE_WORDS = LINES * PITCH, SHARED_BYTES = 48 << 10, FIT = SHARED_BYTES / (TILE_WORDS * int(sizeof(Bytes)));
constexpr int STAGES = FIT < 2 ? 2 : FIT < 4 ? FIT : 4;  // K-tiles in shared memory
constexpr int MEMORY = STAGES * TILE_WORDS / PIECE;      // pieces of shared memory
static_assert(CHAIN % K_TILE == 0 && CUT_K % K_TILE == 0 && PITCH % PIECE == 0, "whole k_tiles and pieces");
static_assert(PRODUCTS * LINE * COLS * sizeof(E) <= MEMORY * sizeof(Piece), "sums of rows fit where k_tiles were");

// ------------------------------------------------------------------ cutting
#if TOKITAI_STRUCTURE
INLINE void write_words(const Digits& to, int64_t line, int64_t word, const S* from, Power) { *to.at(0, line, word) = *from; }
#else
// Four neighbours along k of a line with this unit, as integers, one word for each slice. A step of a power of two may be
// beyond f32, so there are two.
INLINE void write_words(const Digits& to, int64_t line, int64_t word, const S* from, Power unit) {
  const int up = unit == WITHOUT ? 0 : -unit, first = up < 127 ? up : 127;
  const S once = power_of_two(S(first)), again = power_of_two(S(up - first));
  constexpr S TOP = S((1 << (FIXED_BITS - 1)) - 1);
  uint32_t words[DIGITS] = {};
  UNROLL for (int i = 0; i < 4; ++i) {
    const S x = round_even(mul(mul(from[i], once), again));
    const int32_t q = int32_t(x > -TOP ? x < TOP ? x : TOP : -TOP);  // NaN, of a line without a unit, is whatever is finite
    UNROLL for (int s = 0; s < DIGITS; ++s) words[s] |= (uint32_t(q) >> 8 * s & 255u) << 8 * i;
  }
  UNROLL for (int s = 0; s < DIGITS; ++s) *to.at(s, line, word) = words[s];
}
#endif

struct CutMemory { S e[STRIP][CUT_K + 1]; };

// Elements of `count` lines at most, from k on: of the lines and of the `length` of k what is there, and zeros.
template <bool ALONG_K, class P>
INLINE void load_lines(CutMemory& memory, Operand<P> from, int64_t count, int64_t k0, int64_t length) {
  constexpr int EACH = STRIP * CUT_K / CUT_THREADS;
  S x[EACH];  // all on their way at once
  const auto line_of = [](int i) { return ALONG_K ? i / CUT_K : i % STRIP; };
  const auto k_of = [](int i) { return ALONG_K ? i % CUT_K : i / STRIP; };
  UNROLL for (int e = 0; e < EACH; ++e) {
    const int i = thread_index() + e * CUT_THREADS, line = line_of(i);
    const int64_t k = k0 + k_of(i);
    x[e] = S{};
    if (line < count && k < length) x[e] = load1(from.data + (ALONG_K ? line * from.stride + k : k * from.stride + line));
  }
  barrier();
  UNROLL for (int e = 0; e < EACH; ++e) {
    const int i = thread_index() + e * CUT_THREADS;
    memory.e[line_of(i)][k_of(i)] = x[e];
  }
  barrier();
}
// The units and the integers in one block of the lines from `line0` on, which has `count` with those that follow; `from` is
// where it begins.
template <bool ALONG_K, class P>
INLINE void cut(CutMemory& memory, Operand<P> from, int64_t line0, int64_t count, int64_t length, const Digits& to) {
  const int line = thread_index() / 8, part = thread_index() % 8;
  Largest largest;
  ROLLED for (int64_t k0 = 0; k0 < length; k0 += CUT_K) {
    load_lines<ALONG_K>(memory, from, count, k0, length);
    for (int k = part; k < CUT_K; k += 8) largest.take(memory.e[line][k], k0 + k < length);
  }
  for (int lane = 1; lane < 8; lane *= 2) largest.join(lane);
  const Power unit = largest.unit();
  if (part == 0 && line < count) to.units[line0 + line] = unit;
  const int64_t end = ceil_div(length, K_TILE) * K_TILE;  // what fills a K-tile is zeros
  ROLLED for (int64_t k0 = 0; k0 < length; k0 += CUT_K) {
    load_lines<ALONG_K>(memory, from, count, k0, length);
    for (int k = part * PER_WORD; k < CUT_K; k += 8 * PER_WORD)
      if (line < count && k0 + k < end) write_words(to, line0 + line, (k0 + k) / PER_WORD, &memory.e[line][k], unit);
  }
}

// ------------------------------------------------------------------ products of slices
#if TOKITAI_STRUCTURE
// A pair of zeros fills a K-tile; a hash is none.
template <int L, int R> INLINE void add_products(Sum& sum, Bytes a, Bytes b) {
  if (a.h || b.h) sum.h += symmetric(FIXED, a, b).h;
}
#else
template <bool SIGNED> INLINE int32_t byte_of(Bytes x, int i) {
  return SIGNED ? int32_t(int8_t(x >> 8 * i & 255u)) : int32_t(x >> 8 * i & 255u);
}
// Of the slices L and R.
template <int L, int R> INLINE void add_products(Sum& sum, Bytes a, Bytes b) {
  UNROLL for (int i = 0; i < 4; ++i) sum += byte_of<L == DIGITS - 1>(a, i) * byte_of<R == DIGITS - 1>(b, i);
}
#endif

// c += a b, of 16 x 32 and 32 x 8, by a unit for integers: lane 4 g + t of a warp has of a the rows g and g + 8, from 4 t
// on four neighbours along k, then those 16 further on; the same of b at column g; of c the rows g and g + 8 at the
// columns 2 t and 2 t + 1. A test on the device shows that it adds exactly before any is used.
#if CUDA_ASM && !TOKITAI_STRUCTURE && UNIT_ATOM
#define PRODUCTS_BY_UNIT 1
#define INTEGER_MMA(LEFT, RIGHT) \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." LEFT "." RIGHT ".s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
      : "+r"(c0), "+r"(c1), "+r"(c2), "+r"(c3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <bool LEFT_SIGNED, bool RIGHT_SIGNED>
INLINE void multiply_add(Sum& c0, Sum& c1, Sum& c2, Sum& c3, const Bytes (&a)[4], const Bytes (&b)[2]) {
  if constexpr (LEFT_SIGNED && RIGHT_SIGNED) INTEGER_MMA("s8", "s8");
  else if constexpr (LEFT_SIGNED) INTEGER_MMA("s8", "u8");
  else if constexpr (RIGHT_SIGNED) INTEGER_MMA("u8", "s8");
  else INTEGER_MMA("u8", "u8");
}
// Of rows of 16 bytes: eight in each of four (two) matrices, whose addresses lanes give in order; a lane gets the four bytes
// that it has in such an operand.
INLINE uint32_t shared_place(const Bytes* p) { return uint32_t(__cvta_generic_to_shared(p)); }
INLINE void load_rows(Bytes (&a)[4], const Bytes* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(shared_place(p)) : "memory");
}
INLINE void load_rows(Bytes (&b)[2], const Bytes* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(b[0]), "=r"(b[1]) : "r"(shared_place(p)) : "memory");
}
#else
#define PRODUCTS_BY_UNIT 0
#endif

// Copies into shared memory, past registers where the device has such.
#if CUDA_ASM
INLINE void copy_piece(Bytes* to, const Piece* from) { copy16_to_shared(to, from); }
INLINE void close_pieces() { close_copies(); }
INLINE void pieces_landed() { wait_for_copies<STAGES - 2>(); }
#else
INLINE void copy_piece(Bytes* to, const Piece* from) { *reinterpret_cast<Piece*>(to) = *from; }
INLINE void close_pieces() {}
INLINE void pieces_landed() {}
#endif

// 32 threads are 4 side by side and 8 below each other; each has two neighbouring columns at a time.
constexpr int GROUPS = COLS / (4 * THREAD_N);
static_assert(THREADS % 32 == 0 && COLS % (4 * THREAD_N) == 0 && ROWS % (8 * THREAD_M) == 0, "whole groups");
static_assert(THREAD_M % 2 == 0 && THREAD_N % 2 == 0, "as matrix units have it");
INLINE int row_at(int line, int i) { return line / 8 * 8 * THREAD_M + i * 8 + line % 8; }
INLINE int line_here() { return thread_index() / 32 / GROUPS * 8 + thread_index() % 32 / 4; }
INLINE int column_here(int j) {
  return thread_index() / 32 % GROUPS * 4 * THREAD_N + thread_index() % 4 * 2 + j / 2 * 8 + j % 2;
}

struct Tile {
  E sum[PRODUCTS][THREAD_M][THREAD_N];
  Sum exact[PRODUCTS][THREAD_M][THREAD_N][WEIGHTS];

  // f(n, i, j): the places of this thread's results.
  template <class F> INLINE void each(const F& f) const {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int i = 0; i < THREAD_M; ++i)
        UNROLL for (int j = 0; j < THREAD_N; ++j) f(n, i, j);
  }
  static INLINE const Bytes* left_line(const Bytes* k_tile, int slice, int line) { return k_tile + (slice * ROWS + line) * PITCH; }
  static INLINE const Bytes* right_line(const Bytes* k_tile, int n, int slice, int line) {
    return k_tile + (DIGITS * ROWS + (n * DIGITS + slice) * COLS + line) * PITCH;
  }

#if PRODUCTS_BY_UNIT
  INLINE void multiply(const Bytes* k_tile) {
    const int lane = thread_index() % 32, row = thread_index() / 32 / GROUPS * 8 * THREAD_M + lane % 16;
    const int column = thread_index() / 32 % GROUPS * 4 * THREAD_N + lane % 8;
    UNROLL for (int k = 0; k < K_TILE_WORDS; k += 8) {
      Bytes a[DIGITS][THREAD_M / 2][4], b[DIGITS][THREAD_N / 2][2];
      UNROLL for (int s = 0; s < DIGITS; ++s)
        UNROLL for (int i = 0; i < THREAD_M / 2; ++i)
          load_rows(a[s][i], left_line(k_tile, s, row + i * 16) + k + lane / 16 * 4);
      UNROLL for (int n = 0; n < PRODUCTS; ++n) {
        UNROLL for (int s = 0; s < DIGITS; ++s)
          UNROLL for (int j = 0; j < THREAD_N / 2; ++j)
            load_rows(b[s][j], right_line(k_tile, n, s, column + j * 8) + k + lane / 8 % 2 * 4);
        each_pair([&](auto pair) { multiply_slices(n, a, b, pair); });
      }
    }
  }
  template <int L, int R>
  INLINE void multiply_slices(
      int n, const Bytes (&a)[DIGITS][THREAD_M / 2][4], const Bytes (&b)[DIGITS][THREAD_N / 2][2], Slices<L, R>) {
    UNROLL for (int i = 0; i < THREAD_M; i += 2)
      UNROLL for (int j = 0; j < THREAD_N; j += 2)
        multiply_add<L == DIGITS - 1, R == DIGITS - 1>(
            exact[n][i][j][L + R], exact[n][i][j + 1][L + R], exact[n][i + 1][j][L + R], exact[n][i + 1][j + 1][L + R],
            a[L][i / 2], b[R][j / 2]);
  }
#else
  // Each element's products by themselves, where no unit adds them.
  INLINE void multiply(const Bytes* k_tile) {
    ROLLED for (int n = 0; n < PRODUCTS; ++n)
      ROLLED for (int i = 0; i < THREAD_M; ++i)
        ROLLED for (int j = 0; j < THREAD_N; ++j)
          each_pair([&](auto pair) { add_slices(k_tile, n, i, j, pair); });
  }
  template <int L, int R> INLINE void add_slices(const Bytes* k_tile, int n, int i, int j, Slices<L, R>) {
    const Bytes* const a = left_line(k_tile, L, row_at(line_here(), i));
    const Bytes* const b = right_line(k_tile, n, R, column_here(j));
    for (int k = 0; k < K_TILE_WORDS; ++k) add_products<L, R>(exact[n][i][j][L + R], a[k], b[k]);
  }
#endif

  // One block of `length` products; while a K-tile is worked on the next ones are fetched.
  INLINE void run_block(
      const Work& work, const Unit& unit, const Digits& left, const Digits (&right)[PRODUCTS], int64_t block, int length,
      Bytes* k_tiles) {
    constexpr int PIECES = (LINES * LINE_PIECES + THREADS - 1) / THREADS;
    const Piece* from[PIECES];  // of a K-tile's lines: those of each digit of the left operand, then of each of the right ones
    UNROLL for (int p = 0; p < PIECES; ++p) {
      const int place = thread_index() + p * THREADS, line = place / LINE_PIECES;
      const int64_t word = block * (CHAIN / PER_WORD) + place % LINE_PIECES * PIECE;
      from[p] = nullptr;
      if (line < DIGITS * ROWS) {
        const int64_t r = unit.r0 + line % ROWS;
        if (r < work.rows) from[p] = reinterpret_cast<const Piece*>(left.at(line / ROWS, r, word));
      } else if (line < LINES) {
        const int rest = line - DIGITS * ROWS;
        const int64_t c = unit.c0 + rest % COLS;
        UNROLL for (int n = 0; n < PRODUCTS; ++n)
          if (rest / COLS / DIGITS == n && c < work.cols)
            from[p] = reinterpret_cast<const Piece*>(right[n].at(rest / COLS % DIGITS, c, word));
      }
    }
    // Lines behind the last one stay zeros.
    const auto place_of = [](int p) {
      const int place = thread_index() + p * THREADS;
      return place / LINE_PIECES * PITCH + place % LINE_PIECES * PIECE;
    };
    UNROLL for (int p = 0; p < PIECES; ++p)
      if (!from[p] && thread_index() + p * THREADS < LINES * LINE_PIECES)
        for (int s = 0; s < STAGES; ++s) *reinterpret_cast<Piece*>(k_tiles + s * TILE_WORDS + place_of(p)) = Piece{};
    const auto fetch = [&](Bytes* k_tile) {
      UNROLL for (int p = 0; p < PIECES; ++p)
        if (from[p]) copy_piece(k_tile + place_of(p), from[p]), from[p] += LINE_PIECES;
    };
    each([&](int n, int i, int j) {
      UNROLL for (int weight = 0; weight < WEIGHTS; ++weight) exact[n][i][j][weight] = Sum{};
    });
    const int count = (length + K_TILE - 1) / K_TILE;
    UNROLL for (int t = 0; t < STAGES - 1; ++t) {
      if (t < count) fetch(k_tiles + t * TILE_WORDS);
      close_pieces();
    }
    ROLLED for (int t = 0; t < count; ++t) {
      pieces_landed();
      barrier();
      const int next = t + STAGES - 1;
      if (next < count) fetch(k_tiles + next % STAGES * TILE_WORDS);
      close_pieces();
      multiply(k_tiles + t % STAGES * TILE_WORDS);
    }
    barrier();
    each([&](int n, int i, int j) {
      const int64_t r = unit.r0 + row_at(line_here(), i), c = unit.c0 + column_here(j);
      if (r < work.rows && c < work.cols)
        sum[n][i][j] = scaled(exact[n][i][j], left.units[block * left.lines + r], right[n].units[block * right[n].lines + c]);
    });
  }

  // Block `n` of a part joins those before it: one sum waits at each level of the tree whose bit is set in the number of
  // blocks so far. After the last one all that wait are added, and the tile is the sum.
  INLINE void join(E* pending, int64_t n, bool last) {
    constexpr int64_t LEVEL = int64_t(PRODUCTS) * ROWS * COLS;
    const auto place = [](int n, int i, int j) { return ((n * THREAD_M + i) * THREAD_N + j) * THREADS + thread_index(); };
    const auto add_pending = [&](const E* from) {
      each([&](int n, int i, int j) { sum[n][i][j] = add_sums(from[place(n, i, j)], sum[n][i][j]); });
    };
    int64_t rest = n;
    ROLLED for (; rest & 1; rest >>= 1, pending += LEVEL) add_pending(pending);
    if (!last) {
      each([&](int n, int i, int j) { pending[place(n, i, j)] = sum[n][i][j]; });
      return;
    }
    ROLLED for (rest >>= 1, pending += LEVEL; rest; rest >>= 1, pending += LEVEL)
      if (rest & 1) add_pending(pending);
  }

  // The blocks of a unit's slice, as one sum. `pending` holds those sums of this block that are pending.
  INLINE void run(
      const Work& work, const Unit& unit, const Digits& left, const Digits (&right)[PRODUCTS], E* pending, Bytes* k_tiles) {
    const int64_t first = unit.slice * work.chains_per_slice, count = min(work.chains_per_slice, work.chains - first);
    if (count == 0) each([&](int n, int i, int j) { sum[n][i][j] = empty_sum(); });
    ROLLED for (int64_t n = 0; n < count; ++n) {
      run_block(work, unit, left, right, first + n, int(min(CHAIN, work.k_size - (first + n) * CHAIN)), k_tiles);
      if (count > 1) join(pending, n, n + 1 == count);
    }
  }

  // at(r, c, sums) for every element of the result that the tile has: the sums of LINE rows at a time go through shared
  // memory, so that neighbouring threads have neighbouring columns.
  template <class F> INLINE void results(const Work& work, const Unit& unit, Bytes* memory, const F& at) {
    E* const rows = reinterpret_cast<E*>(memory);
    ROLLED for (int i = 0; i < THREAD_M; ++i) {
      each([&](int n, int y, int j) {
        if (y == i) rows[(n * LINE + line_here()) * COLS + column_here(j)] = sum[n][y][j];
      });
      barrier();
      ROLLED for (int e = thread_index(); e < LINE * COLS; e += THREADS) {
        const int64_t r = unit.r0 + row_at(e / COLS, i), c = unit.c0 + e % COLS;
        if (r >= work.rows || c >= work.cols) continue;
        E sums[PRODUCTS];
        UNROLL for (int n = 0; n < PRODUCTS; ++n) sums[n] = rows[n * LINE * COLS + e];
        at(r, c, sums);
      }
      barrier();
    }
  }
};

}  // namespace tokitai
