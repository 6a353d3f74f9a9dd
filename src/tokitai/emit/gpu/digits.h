// Integers of operands in fixed point (tokitai/meaning/fixed_point.py has the rule), line by line along k, cut into digits
// of eight bits: where they lie, the units of lines, and what sums of products of digits are.
#pragma once
#include "work.h"

namespace tokitai {

constexpr int FIXED_BITS = PLAN_FIXED_BITS;

#if TOKITAI_STRUCTURE
typedef S Bytes;     // an element
typedef S Power;  // of a line in a block: the hash of all its elements
typedef S Sum;
constexpr Tag FIXED = Tag(33 + FIXED_BITS / 8), FIXED_UNIT = Tag(37);
constexpr int DIGITS = 1, PER_WORD = 1, K_TILE_WORDS = 4;
#else
typedef uint32_t Bytes;    // four neighbours along k, the first one lowest
typedef int32_t Power;   // the exponent of a line's unit
typedef int32_t Sum;
constexpr Power WITHOUT = 1 << 20;
// An integer is DIGITS of eight bits, the highest signed, the others not. In a block of 4096 the sums of products of slices
// that count alike stay below 2^31: two signed ones below 2^26, a signed and another one 2^27, two others 2^28, and no
// more than three of these are added: of 24 bits 4096 (2 * 255 * 128 + 255^2) < 2^30.
constexpr int DIGITS = FIXED_BITS / 8, PER_WORD = 4, K_TILE_WORDS = PLAN_DEPTH / 4;
static_assert(CHAIN == 4096, "sums fit");
#endif
constexpr int WEIGHTS = 2 * DIGITS - 1;                 // sums for each element, by what they count
constexpr int K_TILE = K_TILE_WORDS * PER_WORD;           // products along k at a time

// ------------------------------------------------------------------ where integers lie
// Those of one product's operand, from its first line and its first block on: for each slice lines of `pitch` words, or,
// IN_TILES, for each K-tile that part of each line; for each block the units of all `lines`.
#ifdef PLAN_DIGITS_IN_TILES
constexpr bool IN_TILES = true;
#else
constexpr bool IN_TILES = false;
#endif
struct Digits {
  Bytes* words;
  Power* units;
  int64_t pitch, apart, lines;
  INLINE Bytes* at(int slice, int64_t line, int64_t word) const { return words + slice * apart + line * pitch + word; }
  INLINE Bytes* tile(int slice, int64_t k_tile) const { return words + slice * apart + k_tile * lines * K_TILE_WORDS; }
};

// The beginning of the workspace: of each operand its items' integers, then their units. Where groups share k, each
// begins with a K-tile and a block of its own. families/matmul/tiling.py has the same size.
struct Buffers {
  int64_t pitch, blocks, lines[1 + PRODUCTS], items[1 + PRODUCTS];
  Bytes* words;
  INLINE Buffers(void* workspace, int64_t k_size, int64_t groups) : words(static_cast<Bytes*>(workspace)) {
    pitch = (ceil_div(k_size, K_TILE) + groups) * K_TILE_WORDS, blocks = ceil_div(k_size, CHAIN) + groups;
  }
  INLINE int64_t words_of(int n) const { return items[n] * DIGITS * lines[n] * pitch; }
  INLINE Digits digits(int n, int64_t item, int64_t line, int64_t group, int64_t begin) const {
    Bytes* at = words;
    for (int i = 0; i < n; ++i) at += words_of(i);
    const int64_t k_tile = begin / K_TILE + group;
    at += item * DIGITS * lines[n] * pitch;
    at += (IN_TILES ? k_tile * lines[n] + line : line * (pitch / K_TILE_WORDS) + k_tile) * K_TILE_WORDS;
    Bytes* all = words;
    for (int i = 0; i <= PRODUCTS; ++i) all += words_of(i);
    Power* units = reinterpret_cast<Power*>(all);
    for (int i = 0; i < n; ++i) units += items[i] * blocks * lines[i];
    units += (item * blocks + begin / CHAIN + group) * lines[n] + line;
    return {at, units, pitch, lines[n] * pitch, lines[n]};
  }
  INLINE E* rest() const {
    Bytes* all = words;
    int64_t units = 0;
    for (int i = 0; i <= PRODUCTS; ++i) all += words_of(i), units += items[i] * blocks * lines[i];
    return reinterpret_cast<E*>(all) + ceil_div(units, 4) * 4;
  }
};

// f(item, line, block) for every strip of lines of every block of every item.
template <int LINES, class F> INLINE void each_strip(int64_t items, int64_t lines, int64_t k_size, const F& f) {
  const int64_t strips = ceil_div(lines, LINES), blocks = ceil_div(k_size, CHAIN);
  ROLLED for (int64_t at = block_index(); at < items * strips * blocks; at += grid_size())
    f(at / blocks / strips, at / blocks % strips * LINES, at % blocks);
}

// ------------------------------------------------------------------ units of lines, and sums in them
#if TOKITAI_STRUCTURE
struct Largest {
  Power all = {0};
  INLINE void take(S x, bool there) { if (there) all.h += unary(FIXED_UNIT, x).h; }
  INLINE void join(int lane) { all.h += exchange(all.h, lane); }
  INLINE Power unit() const { return all; }
};
INLINE E scaled(const Sum (&sums)[WEIGHTS], Power row, Power col) {
  return ordered(FIXED, sums[0], symmetric(FIXED_UNIT, row, col));
}
#else
struct Largest {
  uint32_t all = 0;
  INLINE void take(S x, bool) {  // magnitudes in their order, above them NaN
    const uint32_t size = bits_of(x) & 0x7FFFFFFFu;
    all = size > all ? size : all;
  }
  INLINE void join(int lane) {
    const uint32_t other = exchange(all, lane);
    all = other > all ? other : all;
  }
  INLINE Power unit() const {
    if (all >= INFINITY_BITS) return WITHOUT;
    const int field = int((all >> 23 ? all : bits_of(float(int32_t(all)))) >> 23);
    return (all == 0 ? 0 : field - (all >> 23 ? 127 : 276)) - (FIXED_BITS - 2);
  }
};
#if TOKITAI_HIP || TOKITAI_SIM
#define __ll2float_rn(x) float(x)
#endif
INLINE E scaled(const Sum (&sums)[WEIGHTS], Power row, Power col) {
  if (row == WITHOUT || col == WITHOUT) return float_of(NAN_BITS);
  int64_t exact = 0;
  UNROLL for (int i = 0; i < WEIGHTS; ++i) exact += int64_t(sums[i]) * (int64_t(1) << 8 * i);
  // A whole number below 2^58 times 2^power, which takes two steps beyond what f32 has; only the last one rounds.
  int power = row + col;
  power = power < -226 ? -226 : power;
  const int first = power < -126 ? -100 : power > 127 ? 127 : power;
  return mul(mul(__ll2float_rn(exact), power_of_two(S(first))), power_of_two(S(power - first)));
}
#endif
// f(left slice, right slice) for each pair, as template arguments of an object.
template <int L, int R> struct Slices {};
template <class F> INLINE void each_pair(const F& f) {
  f(Slices<0, 0>{});
  if constexpr (DIGITS > 1) f(Slices<0, 1>{}), f(Slices<1, 0>{}), f(Slices<1, 1>{});
  if constexpr (DIGITS > 2) f(Slices<0, 2>{}), f(Slices<2, 0>{}), f(Slices<1, 2>{}), f(Slices<2, 1>{}), f(Slices<2, 2>{});
}

}  // namespace tokitai
