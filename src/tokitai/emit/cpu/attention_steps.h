// Attention whose products are added up by steps of a matrix unit: what attention.h has for chains of fused multiply-adds.
// A step takes 16 keys or queries, counted from the beginning of a chain; a masked pair is no product of it.
#pragma once
#include "attention.h"

namespace tokitai {

// Lines whose products are added up at a time: steps may be longer than panels, whose weights are held back until then.
constexpr int64_t HELD = NR < UNIT_STEP ? UNIT_STEP : NR;
static_assert(HELD % UNIT_STEP == 0 && HELD % NR == 0 && DEPTH % UNIT_STEP == 0, "whole steps");

#if TOKITAI_STRUCTURE
constexpr E BEGUN = {0};  // a chain without products so far
INLINE E begun(E c) { return c.h == 0 ? empty_sum() : c; }
#else
constexpr E BEGUN = 0.0f;
#endif

// One step of an accumulator: of the products k of n for which attended(k) holds.
template <class F>
INLINE void step_of_attended(E& c, const E* a, int64_t a_step, const E* b, int64_t b_step, int n, const F& attended) {
#if TOKITAI_STRUCTURE
  uint64_t products = 0;
  bool some = false;
  for (int k = 0; k < n; ++k)
    if (attended(k)) products += symmetric(FUSED_STEP, a[k * a_step], b[k * b_step]).h, some = true;
  if (some) c = third(FUSED_STEP, unary(FUSED_STEP, E{products}), begun(c));
#else
  float x[UNIT_STEP], y[UNIT_STEP];
  int count = 0;
  for (int k = 0; k < n; ++k)
    if (attended(k)) x[count] = a[k * a_step], y[count] = b[k * b_step], ++count;
  if (count) c = any_step(c, x, 1, y, 1, count);
#endif
}

// To MR x NR accumulators `depth` products of packed operands: all of them are attended.
static __attribute__((noinline, unused)) void add_steps(int64_t depth, const E* left, const E* right, E* tile) {
#if TOKITAI_STRUCTURE
  for (int64_t k = 0; k < depth; k += UNIT_STEP)
    for (int i = 0; i < MR; ++i)
      for (int j = 0; j < NR; ++j)
        step_of_attended(tile[i * NR + j], left + k * MR + i, MR, right + k * NR + j, NR, int(min(UNIT_STEP, depth - k)),
                    [](int) { return true; });
#else
  if (depth > 0) micro<false, MR>(depth, left, right, tile);
#endif
}

INLINE bool all_finite(const E* x, int64_t count) {
#if TOKITAI_STRUCTURE
  return false;
#else
  float zero = 0;
  for (int64_t i = 0; i < count; ++i) zero += x[i] * 0.0f;
  return zero == 0;
#endif
}

// The same of one step, where attended(k, i, j) says of which products k accumulators consist. Weights that are not attended are 0:
// that is as good, as long as what they meet is finite.
template <class F>
static __attribute__((noinline)) void add_step_of_attended(int n, const E* left, const E* right, E* tile, const F& attended) {
  if (all_finite(left, n * MR) && all_finite(right, n * NR)) {
    add_steps(n, left, right, tile);
    return;
  }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NR; ++j)
      step_of_attended(tile[i * NR + j], left + i, MR, right + j, NR, n, [&](int k) { return attended(k, i, j); });
}

INLINE void begin_tile(E* tile) {
  for (int64_t i = 0; i < TILE_SIZE; ++i) tile[i] = BEGUN;
}
// Sums over nothing.
INLINE void finish_tiles(E* tiles, int64_t count) {
#if TOKITAI_STRUCTURE
  for (int64_t i = 0; i < count * TILE_SIZE; ++i) tiles[i] = begun(tiles[i]);
#endif
}

// ------------------------------------------------------------------ scores
// As `score`.
static __attribute__((noinline, unused)) void score_steps(
    E* panel, int64_t keys, int64_t all, int64_t k_size, const E* left, const E* right, E* tile) {
  for (int64_t i = 0; i * MR < keys; ++i) {
    E* const sum = k_size > CHAIN ? tile : panel + i * TILE_SIZE;
    begin_tile(sum);
    for (int64_t k0 = 0; k0 < k_size; k0 += DEPTH) {
      const int64_t depth = min(DEPTH, k_size - k0), end = k0 + depth;
      if (k0 % CHAIN == 0) begin_tile(sum);
      add_steps(depth, left + k0 * round_up(all, MR) + i * MR * depth, right + k0 * NR, sum);
      if (k_size > CHAIN && (end % CHAIN == 0 || end == k_size)) join_chain(sum, TILE_SIZE, k0 / CHAIN, end == k_size);
    }
    finish_tiles(sum, 1);
    if (k_size > CHAIN) __builtin_memcpy(panel + i * TILE_SIZE, tile, TILE_SIZE * sizeof(E));
  }
}

// ------------------------------------------------------------------ sums over keys, weighted by a panel
// As `sum_over_keys`.
static __attribute__((noinline, unused)) void sum_steps_over_keys(
    E* tiles, int64_t size, int64_t keys, int64_t k_size, const KeyLimits& limits, const E* left, const E* panel) {
  const int64_t count = ceil_div(k_size, MR);
  for (int64_t i = 0; i < count; ++i) begin_tile(tiles + i * TILE_SIZE);
  for (int64_t c0 = 0; c0 < limits.max; c0 += DEPTH) {
    const int64_t end = min(c0 + DEPTH, limits.max);
    const int64_t middle = limits.min < end ? max(c0, limits.min) / UNIT_STEP * UNIT_STEP : end;
    for (int64_t i = 0; i < count; ++i) {
      E* const tile = tiles + i * TILE_SIZE;
      const E* const a = left + i * MR * keys;
      if (c0 % CHAIN == 0) begin_tile(tile);
      add_steps(middle - c0, a + c0 * MR, panel + c0 * NR, tile);
      for (int64_t c = middle; c < end; c += UNIT_STEP) {
        const int n = int(min(UNIT_STEP, end - c));
        E some[UNIT_STEP * NR];
        for (int k = 0; k < n; ++k)
          for (int j = 0; j < NR; j += XLANES)
            put(some + k * NR + j, if_attended(c + k, limits.limit + j, get(panel + (c + k) * NR + j), repeat(BEGUN)));
        add_step_of_attended(n, a + c * MR, some, tile, [&](int k, int, int j) { return c + k < limits.limit[j]; });
      }
      if (limits.max > CHAIN && (end % CHAIN == 0 || end == limits.max))
        join_chain(tile, size, c0 / CHAIN, end == limits.max);
    }
  }
  finish_tiles(tiles, count);
}

// ------------------------------------------------------------------ sums over queries, weighted by a panel
// What is held back of the panels of one step: weights of all keys, key by key, and limits.
struct HeldBack {
  E* weights;
  E* lines;
  int32_t limit[HELD];
};

// As `sum_over_queries`, of panels in order; `held` has what is held back of them.
static __attribute__((noinline, unused)) void sum_steps_over_queries(
    E* tiles, int64_t size, int64_t r0, int64_t count, int64_t rows, int64_t keys, int64_t k_size, const KeyLimits& limits,
    const E* panel, const E* right, HeldBack& held) {
  const int64_t wide = ceil_div(k_size, NR), begin = r0 / HELD * HELD, at = r0 - begin, end = r0 + count, depth = end - begin;
  for (int64_t k = 0; k < count; ++k) held.limit[at + k] = limits.limit ? limits.limit[k] : int32_t(keys);
  for (int64_t c = 0; c < limits.max; ++c)
    for (int64_t k = 0; k < count; ++k) held.weights[c * HELD + at + k] = panel[c * NR + k];
  for (int64_t j = 0; j < wide; ++j)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t d = 0; d < NR; ++d) held.lines[(j * HELD + at + k) * NR + d] = right[(j * count + k) * NR + d];
  if (end % HELD && end < rows) return;
  const bool fresh = begin % CHAIN == 0, whole = rows > CHAIN && (end % CHAIN == 0 || end == rows);
  for (int64_t i = 0; i * MR < keys; ++i) {
    E packed[HELD * MR];
    int64_t low = keys, high = 0;
    for (int64_t k = 0; k < depth; ++k) {
      low = min(low, int64_t(held.limit[k])), high = max(high, int64_t(held.limit[k]));
      for (int64_t y = 0; y < MR; ++y)
        packed[k * MR + y] = i * MR + y < held.limit[k] ? held.weights[(i * MR + y) * HELD + k] : BEGUN;
    }
    for (int64_t j = 0; j < wide; ++j) {
      E* const tile = tiles + (i * wide + j) * TILE_SIZE;
      const E* const lines = held.lines + j * HELD * NR;
      if (fresh) begin_tile(tile);
      if (min(i * MR + MR, keys) <= low) add_steps(depth, packed, lines, tile);
      else if (i * MR < high)
        for (int64_t k0 = 0; k0 < depth; k0 += UNIT_STEP)
          add_step_of_attended(int(min(UNIT_STEP, depth - k0)), packed + k0 * MR, lines + k0 * NR, tile,
                          [&](int k, int y, int) { return i * MR + y < held.limit[k0 + k]; });
      if (whole) join_chain(tile, size, begin / CHAIN, end == rows);
    }
  }
}

}  // namespace tokitai
