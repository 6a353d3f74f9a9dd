// Products in groups: parts of all groups' results are tasks, which threads take in turn.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int64_t PARTS = 8;  // of the work of each thread there are so many tasks at least, unless they become small
constexpr int64_t FEW_COLS = 128;

// A part of the product of one group: of its result the rows from `row` on and the columns from `col` on, and where
// along k it begins. Rows are counted through all groups where they share them out, in the group elsewhere.
struct Task {
  int64_t group, row, col, begin, rows, cols, inner;
  Team team() const { return {0, 1, thread_number()}; }
  template <class P> Side<P> left(const P* p, int64_t stride, bool turned) const {
    return {turned ? p + begin * stride + row : p + row * stride + begin, stride};
  }
  template <class P> Side<P> right(const P* p, int64_t stride, bool turned) const {
    return {turned ? p + col * stride + begin : p + begin * stride + col, stride};
  }
};

// f(task) for all parts of all groups' results, by whichever thread is free.
template <bool ALONG_ROWS, class F>
INLINE void each_task(
    int64_t rows, int64_t cols, int64_t inner, int64_t groups, const int64_t* offsets, int64_t threads, const F& f) {
  int64_t longest = 0;
  for (int64_t g = 0; g < groups; ++g) longest = most(longest, offsets[g + 1] - offsets[g]);
  int64_t high = least(TALL, ALONG_ROWS ? longest : rows), broad = least(WIDE, cols);  // of a task
  const double work = double(rows) * double(cols) * double(inner) / double(PARTS * threads);
  while (double(high) * double(broad) * double(ALONG_ROWS ? inner : longest) > work &&
         (high > BLOCK_ROWS || broad > FEW_COLS)) {
    if (broad > FEW_COLS && (broad > high || high <= BLOCK_ROWS)) broad = over(broad / 2, NR) * NR;
    else high = over(high / 2, MR) * MR;
  }
  // A side in parts as even as panels allow.
  auto even = [](int64_t side, int64_t parts, int64_t panel) { return over(over(side, parts), panel) * panel; };
  const int64_t wide = over(cols, broad), most_cols = even(cols, wide, NR);
  auto tall = [&](int64_t g) { return over(ALONG_ROWS ? offsets[g + 1] - offsets[g] : rows, high); };
  int64_t tasks = 0;
  for (int64_t g = 0; g < groups; ++g) tasks += high ? tall(g) * wide : 0;
  int64_t group = 0, first = 0;  // of the last task; the next one mostly, but not always, lies behind it
#pragma omp for schedule(dynamic)
  for (int64_t t = 0; t < tasks; ++t) {
    if (t < first) group = first = 0;
    while (t >= first + tall(group) * wide) first += tall(group++) * wide;
    const int64_t from = offsets[group], count = offsets[group + 1] - from;
    const int64_t height = ALONG_ROWS ? count : rows, most_rows = even(height, tall(group), MR);
    const int64_t r = (t - first) / wide * most_rows, c = (t - first) % wide * most_cols;
    Task task;
    task.group = group, task.col = c, task.cols = least(most_cols, cols - c);
    task.row = ALONG_ROWS ? from + r : r, task.rows = least(most_rows, height - r);
    task.begin = ALONG_ROWS ? 0 : from, task.inner = ALONG_ROWS ? inner : count;
    f(task);
  }
}

}  // namespace tokitai
