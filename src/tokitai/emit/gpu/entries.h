// How sums over entries whose rows are sorted are partitioned among the threads of a GPU: units of work, short segments, trees over
// the blocks of long ones. See lower/gpu_scatter.py.
#pragma once

namespace tokitai {

constexpr int64_t WINDOW = 16;  // sorted rows; a unit has the short segments that begin there
constexpr int64_t ENTRIES = 32;  // neighbouring entries; a unit has those that no row selected
constexpr int AHEAD = 4;  // rows, or entries, that a thread fetches at a time
constexpr int BREADTH = 4, BROAD = BREADTH * COLUMNS;  // columns of a thread, and of a block, that adds up blocks

// One unit's work on one chunk of columns. Threads of a block share a unit as far as there are columns for them; rows
// that are longer have several units.
struct Unit {
  int64_t number;
  int c0;
};
template <int THREADS> INLINE Unit unit_of(int cols) {
  int shift = 0;  // 2^shift threads share a unit
  while (CHUNK << shift < cols && 1 << shift < THREADS) ++shift;
  const int64_t across = ceil_div(cols, CHUNK << shift), index = (block_index() * THREADS + thread_index()) >> shift;
  const int c0 = (thread_index() & ((1 << shift) - 1)) * CHUNK;
  return {index / across, int(index % across) * (CHUNK << shift) + c0};
}

// The sorted rows [begin, end) of the short segments that begin in a window.
template <class P>
INLINE void short_segments(int64_t window, int64_t rows, const P* starts, const int32_t* keys, P& begin, P& end) {
  const int64_t first = window * WINDOW, last = min(rows, first + WINDOW) - 1;
  const int64_t low = keys[first], high = keys[last];
  begin = starts[low] == first ? P(first) : starts[low + 1];
  const P start = starts[high], stop = starts[high + 1];
  end = stop - start > CHAIN ? start : stop;
}

// The tree over blocks for BROAD columns from c0 on, by MAX_THREADS threads: 32 slices of neighbouring blocks. The first
// BROAD threads get their column's. part(block, c) is where sums of BREADTH columns lie; `cells` has BREADTH elements
// for each thread.
struct alignas(16) Broad { Stored e[BREADTH]; };
template <class F> INLINE S over_broad_blocks(int64_t blocks, int columns, const F& part, S* cells) {
  const int slice = thread_index() / COLUMNS, c = thread_index() % COLUMNS * BREADTH;
  int64_t run = 1;
  while (run * SLICES < blocks) run *= 2;
  const int64_t begin = slice * run, end = c < columns ? min(blocks, begin + run) : begin;
  BinaryCounter<Add> counter[BREADTH];
  for (int64_t i = begin; i < end; i += CHUNK) {
    Broad x[CHUNK];
    UNROLL for (int k = 0; k < CHUNK; ++k) x[k] = *reinterpret_cast<const Broad*>(part(min(i + k, end - 1), c));
    UNROLL for (int e = 0; e < BREADTH; ++e) {
      S y[CHUNK];
      UNROLL for (int k = 0; k < CHUNK; ++k) y[k] = i + k < end ? load1(&x[k].e[e]) : NEUTRAL_SUM;
      counter[e].push(fold<Add, CHUNK>(y));
    }
  }
  barrier();
  UNROLL for (int e = 0; e < BREADTH; ++e)
    cells[slice * BROAD + c + e] = counter[e].result(NEUTRAL_SUM);
  barrier();
  if (thread_index() >= BROAD) return S{};
  S x[SLICES];
  UNROLL for (int k = 0; k < SLICES; ++k) x[k] = cells[k * BROAD + thread_index()];
  return fold<Add, SLICES>(x);
}

}  // namespace tokitai
