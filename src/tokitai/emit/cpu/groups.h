// Grouped GEMM: tiles of all groups' results are tasks, which are scheduled dynamically.
#pragma once
#include "products.h"

namespace tokitai {

constexpr int64_t TASKS_PER_THREAD = 8;  // at least, unless tasks become small
constexpr int64_t FEW_COLS = 128;

// A tile of the product of one group: of its result the rows from `row` on and the columns from `col` on, and where along
// k it begins. Rows are counted through all groups where rows are partitioned into groups, in the group elsewhere.
struct Task {
  int64_t group, row, col, begin, rows, cols, k_size;
  Team team() const { return {0, 1, thread_number()}; }
  template <class P> Operand<P> left(const P* p, int64_t stride, bool transposed) const {
    return {transposed ? p + begin * stride + row : p + row * stride + begin, stride};
  }
  template <class P> Operand<P> right(const P* p, int64_t stride, bool transposed) const {
    return {transposed ? p + col * stride + begin : p + begin * stride + col, stride};
  }
};

// f(task) for all tiles of all groups' results, by whichever thread is free.
template <bool ALONG_ROWS, class F>
INLINE void each_task(
    int64_t rows, int64_t cols, int64_t k_size, int64_t groups, const int64_t* offsets, int64_t threads, const F& f) {
  int64_t longest = 0;
  for (int64_t g = 0; g < groups; ++g) longest = max(longest, offsets[g + 1] - offsets[g]);
  int64_t tile_m = min(BLOCK_M, ALONG_ROWS ? longest : rows), tile_n = min(BLOCK_N, cols);  // of a task
  const double work = double(rows) * double(cols) * double(k_size) / double(TASKS_PER_THREAD * threads);
  while (double(tile_m) * double(tile_n) * double(ALONG_ROWS ? k_size : longest) > work &&
         (tile_m > BLOCK_ROWS || tile_n > FEW_COLS)) {
    if (tile_n > FEW_COLS && (tile_n > tile_m || tile_m <= BLOCK_ROWS)) tile_n = ceil_div(tile_n / 2, NR) * NR;
    else tile_m = ceil_div(tile_m / 2, MR) * MR;
  }
  // An extent in parts as even as panels allow.
  auto even = [](int64_t side, int64_t parts, int64_t panel) { return ceil_div(ceil_div(side, parts), panel) * panel; };
  const int64_t n_tiles = ceil_div(cols, tile_n), max_cols = even(cols, n_tiles, NR);
  auto m_tiles = [&](int64_t g) { return ceil_div(ALONG_ROWS ? offsets[g + 1] - offsets[g] : rows, tile_m); };
  int64_t tasks = 0;
  for (int64_t g = 0; g < groups; ++g) tasks += tile_m ? m_tiles(g) * n_tiles : 0;
  int64_t group = 0, first = 0;  // of the last task; the next one mostly, but not always, lies behind it
#pragma omp for WHO_IS_FREE
  for (int64_t t = 0; t < tasks; ++t) {
    if (t < first) group = first = 0;
    while (t >= first + m_tiles(group) * n_tiles) first += m_tiles(group++) * n_tiles;
    const int64_t from = offsets[group], count = offsets[group + 1] - from;
    const int64_t height = ALONG_ROWS ? count : rows, max_rows = even(height, m_tiles(group), MR);
    const int64_t r = (t - first) / n_tiles * max_rows, c = (t - first) % n_tiles * max_cols;
    Task task;
    task.group = group, task.col = c, task.cols = min(max_cols, cols - c);
    task.row = ALONG_ROWS ? from + r : r, task.rows = min(max_rows, height - r);
    task.begin = ALONG_ROWS ? 0 : from, task.k_size = ALONG_ROWS ? k_size : count;
    f(task);
  }
}

}  // namespace tokitai
