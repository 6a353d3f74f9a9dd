// Products of operands in fixed point (tokitai/meaning/fixed_point.py has the rule): a pass over each block of 4096 along k
// finds the units of its lines; operands are packed as integers, cut into slices; a micro-kernel adds products of slices
// exactly; at the end of a block sums become f32 numbers, which the tree adds.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int FIXED_BITS = PLAN_FIXED_BITS;

#if TOKITAI_STRUCTURE
constexpr Tag FIXED8 = Tag(34), FIXED16 = Tag(35), FIXED24 = Tag(36), FIXED_UNIT = Tag(37);
constexpr Tag FIXED = FIXED_BITS == 8 ? FIXED8 : FIXED_BITS == 16 ? FIXED16 : FIXED24;
typedef E Exact;
typedef E Packed;
typedef S Unit;  // the hash of all elements of a line in a block
constexpr int LEFT_SLICES = 1, RIGHT_SLICES = 1;
INLINE constexpr int64_t packed_lines(int, int64_t depth, bool) { return depth; }
#else
// Sums of 24 and 16 bits take 64: 4096 (2^23 - 1)^2 < 2^58, 4096 (2^15 - 1)^2 < 2^42; of 8 bits 4096 127^2 < 2^26.
#if PLAN_FIXED_BITS == 8
typedef int32_t Exact;
#else
typedef int64_t Exact;
#endif
typedef int32_t Packed;  // two neighbours along k, of 16 bits each, or four bytes
typedef int32_t Unit;    // the exponent of a line's unit
constexpr Unit WITHOUT = 1 << 20;
// An integer is SLICES of SLICE_BITS, the lowest first, signed all of them. In DEPTH products a sum of products of slices
// stays below 2^31: of 8 bits 256 127^2, of 16 bits 256 (2^15 - 1) 2^7 < 2^30, of 24 bits 256 2^11 2^11 = 2^30.
constexpr int LEFT_SLICES = FIXED_BITS == 24 ? 2 : 1, RIGHT_SLICES = FIXED_BITS == 8 ? 1 : 2;
constexpr int SLICE_BITS = FIXED_BITS == 24 ? 12 : 8;
static_assert(DEPTH <= 256, "sums of products of slices fit");
// Bytes, where the processor multiplies them. 16 bits are no faster as bytes: four such products instead of two of words.
// Its instruction takes signed bytes of the left and unsigned ones of the right operand, so there is 128 added to integers
// of the right, and behind each panel of the left 128 times the sum of each line, which is what a sum has too much. On the
// way it stays below 2^27: 4096 127^2 of the block so far, 256 127 128 too much, and 256 127 255 added.
INLINE constexpr bool in_bytes(bool unit) { return unit && FIXED_BITS == 8; }
INLINE constexpr int64_t packed_lines(int slices, int64_t depth, bool bytes) {
  return bytes ? ceil_div(depth, 4) + 1 : slices * ceil_div(depth, 2);
}
#endif
constexpr int64_t WORDS = sizeof(Exact) / sizeof(E);
static_assert(LEFT_SLICES * sizeof(Packed) <= 2 * sizeof(Exact) && RIGHT_SLICES * sizeof(Packed) <= 2 * sizeof(Exact), "packed");

// The workspace: as `Buffers`, with units of lines. families/matmul/plan.py has the same sizes.
class FixedBuffers {
 public:
  FixedBuffers(int64_t products, int64_t rows, int64_t cols, int64_t k_size, int64_t batch, int64_t threads, void* workspace)
      : space(static_cast<E*>(workspace)) {
    height = ceil_div(min(rows, BLOCK_M), MR) * MR, width = ceil_div(min(cols, BLOCK_N), NR) * NR;
    const int64_t chains = ceil_div(k_size, CHAIN);
    for (int64_t n = chains > 1 ? chains : 0; n; n /= 2) ++levels;
    level = height * width * products * WORDS;
    of_right = DEPTH * width * products * WORDS;
    of_team = level * (1 + levels) + of_right + height + width * products;
    lefts = space + teams_of(batch, threads) * of_team;
    of_thread = DEPTH * ceil_div(min(rows, BLOCK_ROWS), MR) * MR * WORDS;
  }
  E* sums(Team team) const { return space + team.slot * of_team; }
  Packed* right(Team team) const { return reinterpret_cast<Packed*>(sums(team) + level * (1 + levels)); }
  Packed* left() const { return reinterpret_cast<Packed*>(lefts + thread_number() * of_thread); }
  Unit* row_units(Team team) const { return reinterpret_cast<Unit*>(sums(team) + level * (1 + levels) + of_right); }
  Unit* col_units(Team team, int64_t n) const { return row_units(team) + height + n * width; }
  int64_t level;       // from the sums that are open to those of blocks, and from one level of these to the next
  int64_t levels = 0;  // of the tree
 private:
  E* space;
  E* lefts;
  int64_t height, width, of_right, of_team, of_thread;
};

// f(c, lanes) for whole vectors, then for what is left.
template <class F> INLINE void vectors(int64_t count, const F& f) {
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) f(c, Full{});
  if (c < count) f(c, Part{count - c});
}

// ------------------------------------------------------------------ units and integers
#if TOKITAI_STRUCTURE
// The units of `count` lines, of `length` elements along k, and of those up to `end` that fill a panel.
template <class P> void find_units(Unit* to, Operand<P> from, bool across, int64_t count, int64_t end, int64_t length) {
  for (int64_t i = 0; i < end; ++i) {
    to[i] = {0};
    for (int64_t k = 0; i < count && k < length; ++k)
      to[i].h += unary(FIXED_UNIT, load1(from.data + (across ? i * from.stride + k : k * from.stride + i))).h;
  }
}
INLINE constexpr bool in_bytes(bool) { return false; }
template <int W, int SLICES, bool LEFT, class P>
void pack(bool, Packed* to, Operand<P> from, bool across, int64_t count, int64_t depth, const Unit*) {
  if (across) pack_across<W>(to, from, count, depth);
  else pack_along<W>(to, from, count, depth);
}
INLINE bool has_unit() { return false; }
template <bool UNIT, int M> void exact_products(int64_t depth, const Packed* left, const Packed* right, Exact* tile, bool fresh) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < NR; ++j) {
      if (fresh) tile[i * NR + j] = {0};
      for (int64_t k = 0; k < depth; ++k)
        tile[i * NR + j].h += symmetric(FIXED, left[k * MR + i], right[k * NR + j]).h;
    }
}
INLINE void scale(E* tile, const Unit* rows, const Unit* cols) {
  for (int at = 0; at < TILE_SIZE; ++at)
    tile[at] = ordered(FIXED, tile[at], symmetric(FIXED_UNIT, rows[at / NR], cols[at % NR]));
}
#else
INLINE I sizes_of(V x) { return to_i32(bits(x)) & 0x7FFFFFFF; }  // magnitudes in their order, above them NaN
INLINE Unit unit_of(int32_t largest) {
  if (largest >= 0x7F800000) return WITHOUT;
  const int e = largest >> 23 ? (largest >> 23) - 127 : largest ? -118 - __builtin_clz(uint32_t(largest)) : 0;
  return e - (FIXED_BITS - 2);
}
#if LANES > 1
INLINE int32_t total_of(I x) {
  int32_t total = 0;
  for (int i = 0; i < LANES; ++i) total += x[i];
  return total;
}
#else
INLINE int32_t total_of(I x) { return x; }
#endif
template <class T> INLINE T got(const void* p) { T x; __builtin_memcpy(&x, p, sizeof x); return x; }
template <class T> INLINE void put_integers(void* p, T x) { __builtin_memcpy(p, &x, sizeof x); }

template <class P>
static __attribute__((noinline)) void find_units(
    Unit* to, Operand<P> from, bool across, int64_t count, int64_t end, int64_t length) {
  int32_t largest[PACKED_AT_ONCE + PLAN_BLOCK_ROWS + NR + LANES] = {};
  if (across) {
    for (int64_t i = 0; i < count; ++i) {
      I top = splat(int32_t(0));
      const P* const p = from.data + i * from.stride;
      vectors(length, [&](int64_t k, auto lanes) INLINE_LAMBDA {
        const I size = sizes_of(load(p + k, lanes));
        top = where(lt(top, size), size, top);
      });
      int32_t each[LANES];
      put_integers(each, top);
      for (int j = 0; j < LANES; ++j) largest[i] = each[j] > largest[i] ? each[j] : largest[i];
    }
  } else {
    for (int64_t k = 0; k < length; ++k) {
      const P* const p = from.data + k * from.stride;
      if (k + AHEAD < length) fetch(p + AHEAD * from.stride, count);
      vectors(count, [&](int64_t i, auto lanes) INLINE_LAMBDA {
        const I size = sizes_of(load(p + i, lanes)), top = got<I>(largest + i);
        put_integers(largest + i, where(lt(top, size), size, top));
      });
    }
  }
  for (int64_t i = 0; i < end; ++i) to[i] = unit_of(largest[i]);
}

// What takes a line's elements to its units: a power of two in two steps, as one may be beyond f32; elements of a line
// without a unit become whatever is finite.
struct Steps {
  float first, second;
};
INLINE Steps steps_of(Unit u) {
  const int up = u == WITHOUT ? 0 : -u, first = up < 127 ? up : 127;
  return {power_of_two(float(first)), power_of_two(float(up - first))};
}
INLINE I integer(V x, V first, V second) {
  constexpr float TOP = float((1 << (FIXED_BITS - 1)) - 1);
  const V high = larger(round_even(mul(mul(x, first), second)), splat(-TOP));
  const V whole = neg(larger(neg(high), splat(-TOP)));
#if LANES > 1
  return __builtin_convertvector(whole, I);
#else
  return I(whole);
#endif
}
template <int SLICES> INLINE I slice(I q, int s) {
  if (SLICES == 1) return q;
  const int32_t half = 1 << (SLICE_BITS - 1), mask = (1 << SLICE_BITS) - 1;
  const I low = ((q + half) & mask) - half;
  return s ? (q - low) >> SLICE_BITS : low;
}
#if LANES > 1
template <class T> INLINE auto shortened(I q) {
  typedef T Short __attribute__((vector_size(sizeof(T) * LANES)));
  return __builtin_convertvector(q, Short);
}
#else
template <class T> INLINE T shortened(I q) { return T(q); }
#endif

// Panels of W lines, of each slice after another: for each two (four, as bytes) neighbours along k those of W lines. Lines
// behind the last one are zeros, and so is what lies behind k.
template <class T, int W, int SLICES, bool LEFT, class P>
static __attribute__((noinline)) void pack(
    Packed* to, Operand<P> from, bool across, int64_t count, int64_t depth, const Unit* units) {
  constexpr bool BYTES = sizeof(T) == 1;
  constexpr int64_t EACH = sizeof *to / sizeof(T);
  constexpr int32_t ADDED = BYTES && !LEFT ? 128 : 0;
  const int64_t steps = ceil_div(depth, EACH), panel_size = packed_lines(SLICES, depth, BYTES) * W;
  if (across) {
    T lines[SLICES][W][DEPTH + LANES + 8] = {};
    for (int64_t line = 0; line < count; line += W, to += panel_size) {
      for (int i = 0; i < W; ++i) {
        I sum = splat(int32_t(0));
        if (line + i < count) {
          const P* const p = from.data + (line + i) * from.stride;
          const Steps up = steps_of(units[line + i]);
          if (line + i + W < count) fetch(p + W * from.stride, depth);
          vectors(depth, [&](int64_t k, auto lanes) INLINE_LAMBDA {
            const I q = integer(load(p + k, lanes), splat(up.first), splat(up.second));
            if (BYTES && LEFT) sum = int_add(sum, q);
            for (int s = 0; s < SLICES; ++s)
              put_integers(lines[s][i] + k, shortened<T>(int_add(slice<SLICES>(q, s), splat(ADDED))));
          });
        } else {
          for (int s = 0; s < SLICES; ++s) __builtin_memset(lines[s][i], 0, sizeof lines[s][i]);
        }
        if (BYTES && LEFT) to[steps * W + i] = 128 * total_of(sum);
      }
      for (int s = 0; s < SLICES; ++s)
        for (int64_t k = 0; k < steps; ++k) {
          Packed* next = to + (s * steps + k) * W;
          for (const auto& each : lines[s]) __builtin_memcpy(next++, each + EACH * k, sizeof *to);
        }
    }
    return;
  }
  constexpr int64_t CAPACITY = PLAN_BLOCK_ROWS + PACKED_AT_ONCE + NR + LANES;
  float first[CAPACITY] = {}, second[CAPACITY] = {};
  Packed row[SLICES][CAPACITY] = {}, sums[CAPACITY] = {};
  for (int64_t i = 0; i < count; ++i) first[i] = steps_of(units[i]).first, second[i] = steps_of(units[i]).second;
  for (int64_t k = 0; k < steps; ++k) {
    const P* const p = from.data + EACH * k * from.stride;
    for (int64_t ahead = AHEAD; ahead < AHEAD + EACH; ++ahead)
      if (EACH * k + ahead < depth) fetch(p + ahead * from.stride, count);
    vectors(count, [&](int64_t i, auto lanes) INLINE_LAMBDA {
      const V up = load(first + i), more = load(second + i);
      U made[SLICES] = {};
      I sum = got<I>(sums + i);
      for (int64_t n = 0; n < EACH; ++n) {
        const I q = EACH * k + n < depth ? integer(load(p + n * from.stride + i, lanes), up, more) : splat(int32_t(0));
        if (BYTES && LEFT) sum = int_add(sum, q);
        for (int s = 0; s < SLICES; ++s) {
          const U part_of = to_u32(int_add(slice<SLICES>(q, s), splat(ADDED))) & (BYTES ? 0xFFu : 0xFFFFu);
          made[s] = made[s] | part_of << (32 / EACH * n);
        }
      }
      for (int s = 0; s < SLICES; ++s) put_integers(row[s] + i, made[s]);
      if (BYTES && LEFT) put_integers(sums + i, sum);
    });
    for (int s = 0; s < SLICES; ++s)
      for (int64_t panel = 0; panel * W < count; ++panel)
        __builtin_memcpy(to + panel * panel_size + (s * steps + k) * W, row[s] + panel * W, W * sizeof *to);
  }
  if (BYTES && LEFT)
    for (int64_t i = 0; i < ceil_div(count, W) * W; ++i) to[i / W * panel_size + steps * W + i % W] = 128 * sums[i];
}
template <int W, int SLICES, bool LEFT, class P>
INLINE void pack(bool bytes, Packed* to, Operand<P> from, bool across, int64_t count, int64_t depth, const Unit* units) {
#if PLAN_FIXED_BITS == 8
  if (bytes) return pack<int8_t, W, SLICES, LEFT>(to, from, across, count, depth, units);
#endif
  pack<int16_t, W, SLICES, LEFT>(to, from, across, count, depth, units);
}

// ------------------------------------------------------------------ the micro-kernel
// sum + the products of each lane, of two words or four bytes. UNIT: the processor has an instruction for all of it.
template <bool UNIT> INLINE I dot(I sum, const Packed* a, I b) {
#if TOKITAI_ISA_AVX512
  if constexpr (in_bytes(UNIT)) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  } else if constexpr (UNIT) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  }
  I both;
  asm("vpmaddwd %2, %1, %0" : "=v"(both) : "v"(b), "v"(splat(*a)));
  return sum + both;
#elif TOKITAI_ISA_AVX2
  const I many = splat(*a);
  return parts<I>([&](int k) INLINE_LAMBDA {
    const __m256i row = part<__m256i>(many, k), column = part<__m256i>(b, k);
    __m256i made = part<__m256i>(sum, k);
    if constexpr (in_bytes(UNIT)) asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(made) : "x"(column), "x"(row));
    else if constexpr (UNIT) asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(made) : "x"(column), "x"(row));
    else made = _mm256_add_epi32(made, _mm256_madd_epi16(row, column));
    return made;
  });
#else
  return sum + int32_t(int16_t(*a)) * (to_i32(to_u32(b) << 16) >> 16) + (*a >> 16) * (b >> 16);
#endif
}
#if TOKITAI_ISA_AVX512
INLINE bool has_unit() { return __builtin_cpu_supports("avx512vnni"); }
#elif TOKITAI_ISA_AVX2 && (__GNUC__ >= 12 || __clang_major__ >= 19)  // older ones know no such feature
INLINE bool has_unit() { return __builtin_cpu_supports("avxvnni"); }
#else
INLINE bool has_unit() { return false; }
#endif

// Adds the products of all pairs of slices to M x NR exact sums, or begins them.
template <bool UNIT, int M>
static __attribute__((noinline)) void exact_products(
    int64_t depth, const Packed* left, const Packed* right, Exact* tile, bool fresh) {
  constexpr bool BYTES = in_bytes(UNIT), NARROW = sizeof(Exact) == sizeof(int32_t);
  const int64_t steps = ceil_div(depth, BYTES ? 4 : 2);
  for (int s = 0; s < LEFT_SLICES * RIGHT_SLICES; ++s) {
    const Packed* a = left + s / RIGHT_SLICES * steps * MR;
    const Packed* b = right + s % RIGHT_SLICES * steps * NR;
    I sum[M][NV];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        sum[i][j] = NARROW && !fresh ? got<I>(tile + i * NR + j * LANES) : splat(int32_t(0));
        if (BYTES) sum[i][j] = int_sub(sum[i][j], splat(a[steps * MR + i]));
      }
    for (int64_t k = 0; k < steps; ++k, a += MR, b += NR) {
      I columns[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) columns[j] = got<I>(b + j * LANES);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) sum[i][j] = dot<UNIT>(sum[i][j], a + i, columns[j]);
    }
    int32_t made[M * NR];
    void* const to = NARROW ? static_cast<void*>(tile) : made;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) put_integers(static_cast<int32_t*>(to) + i * NR + j * LANES, sum[i][j]);
    if (NARROW) continue;
    const int shift = SLICE_BITS * (s / RIGHT_SLICES + s % RIGHT_SLICES);
    if (fresh && s == 0)
      for (int at = 0; at < M * NR; ++at) tile[at] = made[at];
    else
      for (int at = 0; at < M * NR; ++at) tile[at] += Exact(uint64_t(int64_t(made[at])) << shift);
  }
}

// Sums of a whole block in f32, in the place of the exact ones.
static __attribute__((noinline, unused)) void scale(E* tile, const Unit* rows, const Unit* cols) {
  for (int i = 0; i < MR; ++i) {
    Exact exact[NR];
    E made[NR];
    __builtin_memcpy(exact, tile + i * NR * WORDS, sizeof exact);
    for (int j = 0; j < NR; ++j) {
      // A whole number below 2^58 times 2^power, which takes two steps beyond what f32 has; only the last one rounds.
      const bool without = rows[i] == WITHOUT || cols[j] == WITHOUT;
      const int sum = without ? 0 : rows[i] + cols[j], power = sum < -226 ? -226 : sum;
      const int first = power < -126 ? -100 : power > 127 ? 127 : power;
      const float scaled = float(exact[j]) * power_of_two(float(first)) * power_of_two(float(power - first));
      made[j] = without ? NOT_A_NUMBER : scaled;
    }
    __builtin_memcpy(tile + i * NR, made, sizeof made);
  }
}
#endif

// The same for the first `rows` of MR rows at least.
INLINE void exact_products(bool unit, int64_t rows, int64_t depth, const Packed* a, const Packed* b, Exact* tile, bool fresh) {
  constexpr int FEW = max(MR / 3, 1);
#if TOKITAI_ISA_AVX512 || TOKITAI_ISA_AVX2
  if (unit && rows > FEW) return exact_products<true, MR>(depth, a, b, tile, fresh);
  if (unit) return exact_products<true, FEW>(depth, a, b, tile, fresh);
#endif
  rows > FEW ? exact_products<false, MR>(depth, a, b, tile, fresh) : exact_products<false, FEW>(depth, a, b, tile, fresh);
}

// ------------------------------------------------------------------ products
// at(r, c, lanes, product) makes the results at row r and the columns from c on of N products of one left operand.
template <bool LEFT_TRANSPOSED, int N, class L, class R, class F>
INLINE void products(
    int64_t rows, int64_t cols, int64_t k_size, Team team, const FixedBuffers& buffers, Operand<L> left, const Operand<R> (&right)[N],
    const bool (&right_transposed)[N], const F& at) {
  constexpr int64_t STRIP = PACKED_AT_ONCE / NR, LINES = BLOCK_ROWS / MR;
  const bool has = has_unit(), bytes = in_bytes(has);
  for (int64_t r0 = 0; r0 < rows; r0 += BLOCK_M)
    for (int64_t c0 = 0; c0 < cols; c0 += BLOCK_N) {
      const int64_t height = min(BLOCK_M, rows - r0), width = min(BLOCK_N, cols - c0);
      const int64_t m_panels = ceil_div(height, MR), n_panels = ceil_div(width, NR);  // in panels
      // Units of work: blocks of rows, cut into ranges of columns where there are too few of them.
      int64_t blocks = max(ceil_div(m_panels, LINES), min(team.size, m_panels));
      blocks = min(ceil_div(blocks, team.size) * team.size, m_panels);
      const int64_t cuts = blocks < team.size ? min(n_panels, ceil_div(team.size, blocks)) : 1;
      for (int64_t k0 = 0; k0 == 0 || k0 < k_size; k0 += DEPTH) {
        const int64_t depth = min(DEPTH, k_size - k0), end = k0 + depth;
        const bool fresh = k0 % CHAIN == 0, last = end == k_size, whole = last || end % CHAIN == 0;
        const auto left_from = [&](int64_t r) INLINE_LAMBDA {
          return Operand<L>{left.data + (LEFT_TRANSPOSED ? k0 * left.stride + r0 + r : (r0 + r) * left.stride + k0), left.stride};
        };
        const auto right_from = [&](int64_t n, int64_t c) INLINE_LAMBDA {
          const int64_t stride = right[n].stride;
          return Operand<R>{right[n].data + (right_transposed[n] ? (c0 + c) * stride + k0 : k0 * stride + c0 + c), stride};
        };
        if (fresh && k_size) {
          const int64_t length = min(CHAIN, k_size - k0);
          for (int64_t g = team.rank; g < ceil_div(m_panels, LINES); g += team.size) {
            const int64_t r = g * LINES * MR, lines = min(LINES * MR, height - r);
            find_units(buffers.row_units(team) + r, left_from(r), !LEFT_TRANSPOSED, lines, ceil_div(lines, MR) * MR, length);
          }
          for (int64_t g = team.rank; g < ceil_div(n_panels, STRIP) * N; g += team.size) {
            const int64_t n = g % N, c = g / N * PACKED_AT_ONCE, lines = min(PACKED_AT_ONCE, width - c);
            Unit* const to = buffers.col_units(team, n) + c;
            find_units(to, right_from(n, c), right_transposed[n], lines, ceil_div(lines, NR) * NR, length);
          }
          team_barrier(team);
        }
        const int64_t left_panel = packed_lines(LEFT_SLICES, depth, bytes) * MR;
        const int64_t right_panel = packed_lines(RIGHT_SLICES, depth, bytes) * NR;
        for (int64_t g = team.rank; g < ceil_div(n_panels, STRIP) * N; g += team.size) {
          const int64_t n = g % N, q = g / N * STRIP, c = q * NR, count = min(PACKED_AT_ONCE, width - c);
          Packed* const to = buffers.right(team) + (n * n_panels + q) * right_panel;
          const Unit* const units = buffers.col_units(team, n) + c;
          pack<NR, RIGHT_SLICES, false>(bytes, to, right_from(n, c), right_transposed[n], count, depth, units);
        }
        team_barrier(team);
        for (int64_t unit = team.rank; unit < blocks * cuts; unit += team.size) {
          const int64_t block = unit % blocks, cut = unit / blocks;
          const int64_t begin = m_panels * block / blocks, stop = m_panels * (block + 1) / blocks;
          const int64_t r = begin * MR, count = min(stop * MR, height) - r;
          Packed* const packed = buffers.left();
          pack<MR, LEFT_SLICES, true>(bytes, packed, left_from(r), !LEFT_TRANSPOSED, count, depth, buffers.row_units(team) + r);
          for (int64_t q = n_panels * cut / cuts; q < n_panels * (cut + 1) / cuts; ++q)
            for (int n = 0; n < N; ++n)
              for (int64_t i = begin; i < stop; ++i) {
                E* const tiles = buffers.sums(team) + (q * m_panels + i) * N * TILE_SIZE * WORDS;
                E* const tile = tiles + n * TILE_SIZE * WORDS;
                const Packed* const a = packed + (i - begin) * left_panel;
                const Packed* const b = buffers.right(team) + (n * n_panels + q) * right_panel;
                const int64_t lines = min(MR, height - i * MR);
                exact_products(has, lines, depth, a, b, reinterpret_cast<Exact*>(tile), fresh);
                if (!whole) continue;
                if (k_size) scale(tile, buffers.row_units(team) + i * MR, buffers.col_units(team, n) + q * NR);
                else clear(tile);
                if (buffers.levels) join_chain(tile, buffers.level, k0 / CHAIN, last);
                if (!last || n + 1 < N) continue;
                for (int64_t y = 0; y < lines; ++y)
                  for (int64_t x = 0; x < min(NR, width - q * NR); x += LANES) {
                    V product[N];
                    for (int m = 0; m < N; ++m) product[m] = result_of(tiles + m * TILE_SIZE * WORDS + y * NR + x);
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

}  // namespace tokitai
