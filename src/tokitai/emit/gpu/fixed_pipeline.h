// Products of operands in fixed point by Hopper's warpgroups: the kernel that cuts operands writes their digits as shared
// memory holds them, tile by tile; another is fed with these as pipeline.h has it, multiplies digits, and adds exactly.
#pragma once
#include "pipeline.h"
#include "digits.h"

namespace tokitai {

// ------------------------------------------------------------------ a step of the matrix unit
// As in warpgroup.h, of 64 rows, N columns, 32 products of bytes each, signed or not; `d` is the sums from FIRST on.
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+r"(d[FIRST + i]), "+r"(d[FIRST + i + 1]), "+r"(d[FIRST + i + 2]), "+r"(d[FIRST + i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)
#define INTEGER_STEP(N, SUMS, A, B, P, LEFT, RIGHT) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" P ", 0; " \
      "wgmma.mma_async.sync.aligned.m64n" N "k32.s32." LEFT "." RIGHT " {" REGISTERS_##SUMS "}, %" A ", %" B ", p; }" \
      : SUMS_##SUMS(0) : "l"(left), "l"(right), "r"(1))
#define INTEGER_STEPS(...) \
  if constexpr (LEFT_SIGNED && RIGHT_SIGNED) INTEGER_STEP(__VA_ARGS__, "s8", "s8"); \
  else if constexpr (LEFT_SIGNED) INTEGER_STEP(__VA_ARGS__, "s8", "u8"); \
  else if constexpr (RIGHT_SIGNED) INTEGER_STEP(__VA_ARGS__, "u8", "s8"); \
  else INTEGER_STEP(__VA_ARGS__, "u8", "u8")
template <int N, int FIRST, bool LEFT_SIGNED, bool RIGHT_SIGNED, int ALL>
INLINE void integer_step(Sum (&d)[ALL], uint64_t left, uint64_t right) {
  static_assert(FIRST + N / 2 <= ALL, "sums that there are");
  static_assert(N == 32 || N == 64 || N == 128 || N == 256, "columns of a step");
  if constexpr (N == 32) { INTEGER_STEPS("32", 16, "16", "17", "18"); }
  else if constexpr (N == 64) { INTEGER_STEPS("64", 32, "32", "33", "34"); }
  else if constexpr (N == 128) { INTEGER_STEPS("128", 64, "64", "65", "66"); }
  else { INTEGER_STEPS("256", 128, "128", "129", "130"); }
}

// ------------------------------------------------------------------ tiles of digits
constexpr int LINE_BYTES = K_TILE, LINE_WORDS = K_TILE_WORDS;  // of a K-tile
constexpr int LEFT_TILE = ROWS * LINE_BYTES, RIGHT_TILE = COLS * LINE_BYTES;
constexpr int DIGITS_STAGE = DIGITS * (LEFT_TILE + PRODUCTS * RIGHT_TILE);
static_assert(LINE_BYTES == 128 || LINE_BYTES == 64, "as lines are swizzled");

// Lines of eight digits' sixteens, or four, which are swizzled so that those of eight lines are in different banks.
INLINE int swizzled(int line, int byte) {
  return byte ^ (LINE_BYTES == 128 ? line % 8 : line / 2 % 4) * 16;
}
INLINE uint64_t digits_at(uint32_t address) {
  constexpr uint64_t EIGHT_LINES = 8 * LINE_BYTES, KIND = LINE_BYTES == 128 ? 1 : 2;
  return uint64_t(address >> 4 & 0x3FFFu) | uint64_t(1) << 16 | EIGHT_LINES >> 4 << 32 | KIND << 62;
}
// Neighbours in memory to shared memory, whole sixteens; `b` counts their bytes.
INLINE void copy_bytes(void* to, const void* from, uint64_t* b, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(b)) : "memory");
}

// The producer warp copies the digits of all blocks of a unit. Lines behind the last one are whatever was there: their
// sums are not stored.
INLINE void produce(
    const Work& work, const Unit& unit, const Digits& left, const Digits (&right)[PRODUCTS], Ring& ring, RingPosition& at,
    char* stages) {
  const Chains chains(work, unit);
  const int64_t end = min((chains.first + chains.count) * CHAIN, work.k_size);
  const int rows = LINE_BYTES * int(min<int64_t>(ROWS, work.rows - unit.r0));
  const int cols = LINE_BYTES * int(min<int64_t>(COLS, work.cols - unit.c0));
  ROLLED for (int64_t k = chains.first * CHAIN; k < end; k += K_TILE, at.next()) {
    wait(&ring.empty[at.stage], at.phase ^ 1);
    if (thread_index() != 0) continue;
    uint64_t* const full = &ring.full[at.stage];
    char* to = stages + at.stage * DIGITS_STAGE;
    arrive_expecting(full, DIGITS * (rows + PRODUCTS * cols));
    UNROLL for (int s = 0; s < DIGITS; ++s, to += LEFT_TILE)
      copy_bytes(to, left.tile(s, k / K_TILE) + unit.r0 * LINE_WORDS, full, rows);
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int s = 0; s < DIGITS; ++s, to += RIGHT_TILE)
        copy_bytes(to, right[n].tile(s, k / K_TILE) + unit.c0 * LINE_WORDS, full, cols);
  }
}

// ------------------------------------------------------------------ sums
constexpr int EACH = COLS / 2;  // sums of one weight, of a thread's row pair
struct IntegerAccumulators : Accumulators {
  Sum exact[PRODUCTS][HIGH][WEIGHTS * EACH];

  // The products of one block, from the ring.
  INLINE void run_block(int length, Ring& ring, RingPosition& at, char* stages) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int h = 0; h < HIGH; ++h)
        UNROLL for (int i = 0; i < WEIGHTS * EACH; ++i) exact[n][h][i] = 0;
    const int k_tiles = (length + K_TILE - 1) / K_TILE;
    int before = -1;
    ROLLED for (int i = 0; i < k_tiles; ++i, at.next()) {
      wait(&ring.full[at.stage], at.phase);
      const uint32_t stage = shared_address(stages) + at.stage * DIGITS_STAGE;
      const uint64_t left = digits_at(stage + first_block() * 64 * LINE_BYTES), right = digits_at(stage + DIGITS * LEFT_TILE);
      warpgroup_begin();
      UNROLL for (int k = 0; k < K_TILE / 32; ++k)
        UNROLL for (int n = 0; n < PRODUCTS; ++n)
          UNROLL for (int h = 0; h < HIGH; ++h)
            multiply(exact[n][h], left + (h * 64 * LINE_BYTES + k * 32) / 16, right + (n * DIGITS * RIGHT_TILE + k * 32) / 16);
      warpgroup_close();
      warpgroup_wait<1>();
      if (before >= 0 && thread_index() % 128 == 0) arrive(&ring.empty[before]);
      before = at.stage;
    }
    warpgroup_wait<0>();
    if (before >= 0 && thread_index() % 128 == 0) arrive(&ring.empty[before]);
  }
  // Each digit of 32 columns of the left operand with each of the right one.
  static INLINE void multiply(Sum (&sums)[WEIGHTS * EACH], uint64_t left, uint64_t right) {
    each_pair([&](auto pair) { multiply_slices(sums, left, right, pair); });
  }
  template <int L, int R>
  static INLINE void multiply_slices(Sum (&sums)[WEIGHTS * EACH], uint64_t left, uint64_t right, Slices<L, R>) {
    integer_step<COLS, (L + R) * EACH, L == DIGITS - 1, R == DIGITS - 1>(
        sums, left + L * LEFT_TILE / 16, right + R * RIGHT_TILE / 16);
  }

  // The sums of a block, rounded once, in units of their lines.
  INLINE void scale(const Work& work, const Unit& unit, int64_t block, const Digits& left, const Digits (&right)[PRODUCTS]) {
    const int t = thread_index() % 128;
    UNROLL for (int h = 0; h < HIGH; ++h) {
      const int64_t r0 = unit.r0 + (first_block() + h) * 64 + t / 32 * 16 + t % 32 / 4;
      Power rows[2];
      UNROLL for (int i = 0; i < 2; ++i)
        rows[i] = r0 + 8 * i < work.rows ? left.units[block * left.lines + r0 + 8 * i] : 0;
      UNROLL for (int n = 0; n < PRODUCTS; ++n)
        UNROLL for (int j = 0; j < COLS / 4; ++j) {
          const int64_t c = unit.c0 + j / 2 * 8 + t % 4 * 2 + j % 2;
          const Power col = c < work.cols ? right[n].units[block * right[n].lines + c] : 0;
          UNROLL for (int i = 0; i < 2; ++i) {
            const int at = j / 2 * 4 + 2 * i + j % 2;
            Sum weights[WEIGHTS];
            UNROLL for (int w = 0; w < WEIGHTS; ++w) weights[w] = exact[n][h][w * EACH + at];
            sum[n][h][at] = in_units(weights, rows[i] + col);
          }
        }
    }
  }
  // As `scaled` has it, of two halves of a power, neither of which is beyond f32.
  static INLINE E in_units(const Sum (&weights)[WEIGHTS], int power) {
    S sum;
    if constexpr (DIGITS == 1) sum = S(weights[0]);
    else {
      int64_t exact = 0;
      UNROLL for (int i = 0; i < WEIGHTS; ++i) exact += int64_t(weights[i]) * (int64_t(1) << 8 * i);
      sum = __ll2float_rn(exact);
    }
    const int whole = max(power, -226), half = whole >> 1;
    const auto two_to = [](int k) { return float_of(uint32_t(k + 127) << 23); };
    const E made = mul(mul(sum, two_to(half)), two_to(whole - half));
    return power > WITHOUT / 2 ? float_of(NAN_BITS) : made;
  }

  INLINE void run(
      const Work& work, const Unit& unit, const Digits& left, const Digits (&right)[PRODUCTS], E* pending, Ring& ring,
      RingPosition& at, char* stages) {
    const Chains chains(work, unit);
    if (chains.count <= 0) each([&](E& x, int) { x = empty_sum(); });
    ROLLED for (int64_t n = 0; n < chains.count; ++n) {
      run_block(int(min(CHAIN, work.k_size - (chains.first + n) * CHAIN)), ring, at, stages);
      scale(work, unit, chains.first + n, left, right);
      if (chains.count > 1) join_chain(pending, n, n + 1 == chains.count);
    }
  }
};

// ------------------------------------------------------------------ cutting
constexpr int CUT_THREADS = 256, CUT_WARPS = CUT_THREADS / WARP;

struct Scale {  // a step of a power of two may be beyond f32, so there are two
  S once, again;
  INLINE Scale(Power unit) {
    const int up = unit == WITHOUT ? 0 : -unit, first = up < 127 ? up : 127;
    once = power_of_two(S(first)), again = power_of_two(S(up - first));
  }
  // The integer, in the lowest bits. NaN, of a line without a unit, is whatever there is.
  INLINE uint32_t of(S x) const {
    constexpr S TOP = S((1 << (FIXED_BITS - 1)) - 1);
    const S y = minimum(maximum(mul(mul(x, once), again), -TOP), TOP);
    if constexpr (DIGITS < 3) return bits_of(add(y, 12582912.0f));  // 1.5 * 2^23 + q, rounded to whole numbers
    return uint32_t(int32_t(round_even(y)));
  }
};
// Four integers as a word of each digit.
INLINE void digits_of(uint32_t (&words)[DIGITS], const uint32_t (&q)[4]) {
  UNROLL for (int s = 0; s < DIGITS; ++s) {
    const uint32_t low = __byte_perm(q[0], q[1], s | (4 + s) << 4), high = __byte_perm(q[2], q[3], s | (4 + s) << 4);
    words[s] = __byte_perm(low, high, 0x5410);
  }
}

struct CutMemory {
  uint32_t largest[2 * CUT_THREADS];
  uint32_t words[DIGITS][64][33];
};
// Lines that a block cuts at a time: one that lies along k, else 128 bytes of each row.
template <bool ALONG_K, class P> constexpr int CUT_LINES = ALONG_K ? 1 : 128 / int(sizeof(P));

// One line: eight neighbours along k at a time, all in registers.
template <class P>
INLINE void cut_along(CutMemory& memory, Operand<P> from, int64_t line, int length, const Digits& to) {
  constexpr int PARTS = int(CHAIN) / (CUT_THREADS * EIGHT);
  const int t = thread_index();
  const bool whole = reinterpret_cast<uint64_t>(from.data) % 16 == 0;
  Eight<P> held[PARTS];
  UNROLL for (int p = 0; p < PARTS; ++p) {
    const int k = (p * CUT_THREADS + t) * EIGHT;
    held[p] = fetch_eight(from.data + k, min<int>(EIGHT, length - k), whole);
  }
  Largest largest;
  UNROLL for (int p = 0; p < PARTS; ++p) {
    S x[EIGHT];
    decode_eight(x, held[p]);
    UNROLL for (int e = 0; e < EIGHT; ++e) largest.take(x[e], true);
  }
  for (int lane = 1; lane < WARP; lane *= 2) largest.join(lane);
  barrier();  // what was there was read
  if (t % WARP == 0) memory.largest[t / WARP] = largest.all;
  barrier();
  UNROLL for (int w = 0; w < CUT_WARPS; ++w) largest.all = max(largest.all, memory.largest[w]);
  const Power unit = largest.unit();
  if (t == 0) to.units[line] = unit;
  const Scale scale(unit);
  UNROLL for (int p = 0; p < PARTS; ++p) {
    const int k = (p * CUT_THREADS + t) * EIGHT;
    if (k >= (length + K_TILE - 1) / K_TILE * K_TILE) continue;  // what fills a K-tile is zeros
    S x[EIGHT];
    decode_eight(x, held[p]);
    uint32_t words[2][DIGITS];
    UNROLL for (int i = 0; i < 2; ++i) {
      uint32_t q[4];
      UNROLL for (int e = 0; e < 4; ++e) q[e] = scale.of(x[4 * i + e]);
      digits_of(words[i], q);
    }
    UNROLL for (int s = 0; s < DIGITS; ++s) {
      char* const at = reinterpret_cast<char*>(to.tile(s, k / K_TILE) + line * LINE_WORDS);
      *reinterpret_cast<uint2*>(at + swizzled(int(line % 8), k % K_TILE)) = make_uint2(words[0][s], words[1][s]);
    }
  }
}

// Neighbouring lines: sixteen bytes of four rows at a time, read twice, and backwards then, when the last ones are near.
template <class P>
INLINE void cut_across(CutMemory& memory, Operand<P> from, int64_t line0, int64_t count, int length, const Digits& to) {
  constexpr int LINES = CUT_LINES<false, P>, SIDE = LINES / 8, DEEP = CUT_THREADS / 8, AHEAD = 8, CUT_K = 4 * DEEP;
  const int t = thread_index(), mine = t % 8 * SIDE, row = t / 8;
  const bool whole = count >= LINES && (reinterpret_cast<uint64_t>(from.data) | uint64_t(from.stride) * sizeof(P)) % 16 == 0;
  struct alignas(16) Side { P e[SIDE]; };
  const auto fetch = [&](int k) {
    Side held;
    const P* const p = from.data + k * from.stride + mine;
    if (whole && k < length) *reinterpret_cast<uint4*>(&held) = *reinterpret_cast<const uint4*>(p);
    else
      UNROLL for (int e = 0; e < SIDE; ++e) held.e[e] = k < length && mine + e < count ? p[e] : P{};
    return held;
  };
  Largest largest[SIDE];
  ROLLED for (int k = row; k < length; k += DEEP * AHEAD) {
    Side held[AHEAD];
    UNROLL for (int i = 0; i < AHEAD; ++i) held[i] = fetch(k + i * DEEP);
    UNROLL for (int i = 0; i < AHEAD; ++i)
      UNROLL for (int e = 0; e < SIDE; ++e) largest[e].take(load1(&held[i].e[e]), true);
  }
  barrier();
  UNROLL for (int e = 0; e < SIDE; ++e) {  // lanes 8 and 16 apart have the same lines
    largest[e].join(8), largest[e].join(16);
    if (t % WARP < 8) memory.largest[t / WARP * 64 + mine + e] = largest[e].all;
  }
  barrier();
  Power units[SIDE];
  UNROLL for (int e = 0; e < SIDE; ++e) {
    UNROLL for (int w = 0; w < CUT_WARPS; ++w) largest[e].all = max(largest[e].all, memory.largest[w * 64 + mine + e]);
    units[e] = largest[e].unit();
    if (row == 0 && mine + e < count) to.units[line0 + mine + e] = units[e];
  }
  const auto fetch_four = [&](Side (&held)[4], int k0) {
    UNROLL for (int i = 0; i < 4; ++i) held[i] = fetch(k0 + row * 4 + i);
  };
  Side next[4];
  const int last = (length - 1) / CUT_K * CUT_K;
  fetch_four(next, last);
  ROLLED for (int k0 = last; k0 >= 0; k0 -= CUT_K) {
    Side held[4];
    UNROLL for (int i = 0; i < 4; ++i) held[i] = next[i];
    if (k0 > 0) fetch_four(next, k0 - CUT_K);
    UNROLL for (int e = 0; e < SIDE; ++e) {
      const Scale scale(units[e]);
      uint32_t q[4], words[DIGITS];
      UNROLL for (int i = 0; i < 4; ++i) q[i] = scale.of(load1(&held[i].e[e]));
      digits_of(words, q);
      UNROLL for (int s = 0; s < DIGITS; ++s) memory.words[s][mine + e][row] = words[s];
    }
    barrier();
    const int word = t % WARP, k = k0 + 4 * word;
    ROLLED for (int i = t / WARP; i < LINES; i += CUT_WARPS) {
      const int64_t line = line0 + i;
      if (i >= count || k >= (length + K_TILE - 1) / K_TILE * K_TILE) continue;
      UNROLL for (int s = 0; s < DIGITS; ++s) {
        char* const at = reinterpret_cast<char*>(to.tile(s, k / K_TILE) + line * LINE_WORDS);
        *reinterpret_cast<uint32_t*>(at + swizzled(int(line % 8), k % K_TILE)) = memory.words[s][i][word];
      }
    }
    barrier();
  }
}

// The units and the integers in one block of the lines from `line` on, which has `count` with those that follow; `from` is
// where it begins.
template <bool ALONG_K, class P>
INLINE void cut(CutMemory& memory, Operand<P> from, int64_t line, int64_t count, int64_t length, const Digits& to) {
  if constexpr (ALONG_K) cut_along(memory, from, line, int(length), to);
  else cut_across(memory, from, line, count, int(length), to);
}

}  // namespace tokitai
