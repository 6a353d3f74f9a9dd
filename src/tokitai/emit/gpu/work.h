// What blocks of a product work on: tiles of the result, and in them parts of the sums, whole chains along k; and the tree
// over the sums of parts.
#pragma once
#ifdef ACCUMULATORS_FUSED
#include "matrix_unit.h"
#else
#include "accumulators.h"
#endif

namespace tokitai {

constexpr int64_t CHAIN = 4096;  // products in a chain
constexpr int PRODUCTS = PLAN_PRODUCTS, ROWS = PLAN_ROWS, COLS = PLAN_COLS;

INLINE constexpr int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

// An operand: its first element and the distance from row to row.
template <class P> struct Side {
  const P* data;
  int64_t stride;
};

// ------------------------------------------------------------------ what blocks work on
// Parts of the chains of each tile of each product of a batch; `together` chains are a part.
struct Work {
  int64_t rows, cols, inner, batch, together, down, across, chains, parts, units;
  INLINE Work(int64_t rows, int64_t cols, int64_t inner, int64_t batch, int64_t together)
      : rows(rows), cols(cols), inner(inner), batch(batch), together(together), down(over(rows, ROWS)),
        across(over(cols, COLS)), chains(over(inner, CHAIN)) {
    parts = chains > together ? over(chains, together) : 1;
    units = down * across * batch * parts;
  }
  // The workspace: sums of parts, where there are several, then those of each block that wait for others.
  INLINE int64_t sums_of_parts() const { return parts > 1 ? parts * PRODUCTS * batch * rows * cols : 0; }
  INLINE int64_t place(int64_t part, int n, int64_t item, int64_t r, int64_t c) const {
    return (((part * PRODUCTS + n) * batch + item) * rows + r) * cols + c;
  }
  INLINE int64_t waiting_of_block() const {
    int64_t levels = 0;
    for (int64_t n = least(chains, together) - 1; n > 0; n >>= 1) ++levels;
    return levels * PRODUCTS * ROWS * COLS;
  }
};
struct Unit {
  int64_t r0, c0, part, item;  // its tile's first row and column
  INLINE Unit() {}
  INLINE Unit(const Work& work, int64_t unit) {
    r0 = unit % work.down * ROWS, unit /= work.down;
    c0 = unit % work.across * COLS, unit /= work.across;
    part = unit % work.parts, item = unit / work.parts;
  }
};

// The tree over the sums of `parts` parts, at(i): as a binary counter.
template <class F> INLINE E over_parts(int64_t parts, const F& at) {
  E level[32];
  ROLLED for (int64_t n = 0; n < parts; ++n) {
    E x = at(n);
    int i = 0;
    for (int64_t rest = n; rest & 1; rest >>= 1) x = both(level[i++], x);
    if (n + 1 == parts) {
      ++i;
      for (int64_t rest = n >> i; rest; rest >>= 1, ++i)
        if (rest & 1) x = both(level[i], x);
      return x;
    }
    level[i] = x;
  }
  return nothing();
}

}  // namespace tokitai
