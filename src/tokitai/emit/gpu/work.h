// The work of a product's blocks: tiles of the result, and split-K slices of their sums, whole chains along k; and the tree
// over the slices.
#pragma once
#ifdef ACCUMULATORS_FUSED
#include "matrix_unit.h"
#else
#include "accumulators.h"
#endif

namespace tokitai {

constexpr int64_t CHAIN = 4096;  // products in a chain
constexpr int PRODUCTS = PLAN_PRODUCTS, ROWS = PLAN_ROWS, COLS = PLAN_COLS;

INLINE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// An operand: its first element and the distance from row to row.
template <class P> struct Operand {
  const P* data;
  int64_t stride;
};

// ------------------------------------------------------------------ units of work
// Slices of the chains of each tile of each product of a batch; a slice is `chains_per_slice` chains.
struct Work {
  int64_t rows, cols, k_size, batch, chains_per_slice, down, across, chains, slices, units;
  INLINE Work(int64_t rows, int64_t cols, int64_t k_size, int64_t batch, int64_t chains_per_slice)
      : rows(rows), cols(cols), k_size(k_size), batch(batch), chains_per_slice(chains_per_slice), down(ceil_div(rows, ROWS)),
        across(ceil_div(cols, COLS)), chains(ceil_div(k_size, CHAIN)) {
    slices = chains > chains_per_slice ? ceil_div(chains, chains_per_slice) : 1;
    units = down * across * batch * slices;
  }
  // The workspace: the partials of slices, where there are several, then the pending partials of each block.
  INLINE int64_t slice_partials() const { return slices > 1 ? slices * PRODUCTS * batch * rows * cols : 0; }
  INLINE int64_t index(int64_t slice, int n, int64_t item, int64_t r, int64_t c) const {
    return (((slice * PRODUCTS + n) * batch + item) * rows + r) * cols + c;
  }
  INLINE int64_t pending_of_block() const {
    int64_t levels = 0;
    for (int64_t n = min(chains, chains_per_slice) - 1; n > 0; n >>= 1) ++levels;
    return levels * PRODUCTS * ROWS * COLS;
  }
};
struct Unit {
  int64_t r0, c0, slice, item;  // its tile's first row and column
  INLINE Unit() {}
  INLINE Unit(const Work& work, int64_t unit) {
    r0 = unit % work.down * ROWS, unit /= work.down;
    c0 = unit % work.across * COLS, unit /= work.across;
    slice = unit % work.slices, item = unit / work.slices;
  }
};

// The tree over the partials of `slices` slices, at(i): as a binary counter.
template <class F> INLINE E over_slices(int64_t slices, const F& at) {
  E level[32];
  ROLLED for (int64_t n = 0; n < slices; ++n) {
    E x = at(n);
    int i = 0;
    for (int64_t rest = n; rest & 1; rest >>= 1) x = add_sums(level[i++], x);
    if (n + 1 == slices) {
      ++i;
      for (int64_t rest = n >> i; rest; rest >>= 1, ++i)
        if (rest & 1) x = add_sums(level[i], x);
      return x;
    }
    level[i] = x;
  }
  return empty_sum();
}

}  // namespace tokitai
