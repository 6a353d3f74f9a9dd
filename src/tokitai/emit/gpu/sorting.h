// A stable sort of rows by the entries that they choose, for kernels of `DIGITS` threads: each thread has one digit and
// goes over a tile's rows in order, so that no atomic operation is needed.
#pragma once

namespace tokitai {

constexpr int DIGITS = 256;
constexpr int64_t SORT_TILE = 1024;  // rows of a block

INLINE int sort_passes(int64_t entries) {
  int passes = 1;
  while (passes < 4 && (entries - 1) >> (8 * passes)) ++passes;
  return passes;
}
INLINE int digit_of(int64_t key, int pass) { return int(key >> (8 * pass)) % DIGITS; }

// How many rows of a tile have this thread's digit.
template <class F> INLINE void count_digits(int64_t rows, int pass, int64_t* counts, const F& key_at) {
  const int64_t tile = block_index(), end = least(rows, (tile + 1) * SORT_TILE);
  int64_t count = 0;
  for (int64_t i = tile * SORT_TILE; i < end; ++i) count += digit_of(key_at(i), pass) == thread_index();
  counts[thread_index() * ((rows + SORT_TILE - 1) / SORT_TILE) + tile] = count;
}

// Sums of all that stand before, by one block of MOST_THREADS threads with room for as many totals.
INLINE void scan_counts(int64_t n, int64_t* counts, int64_t* totals) {
  const int64_t run = (n + MOST_THREADS - 1) / MOST_THREADS;
  const int64_t begin = least(n, thread_index() * run), end = least(n, begin + run);
  int64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  totals[thread_index()] = sum;
  barrier();
  for (int d = 1; d < MOST_THREADS; d *= 2) {
    const int64_t other = thread_index() >= d ? totals[thread_index() - d] : 0;
    barrier();
    totals[thread_index()] += other;
    barrier();
  }
  int64_t before = totals[thread_index()] - sum;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

// Every row of a tile that has this thread's digit goes behind those that are placed.
template <class F, class G>
INLINE void place_rows(
    int64_t rows, int pass, const int64_t* counts, const F& key_at, const G& row_at, int64_t* keys, int64_t* order) {
  const int64_t tile = block_index(), end = least(rows, (tile + 1) * SORT_TILE);
  int64_t place = counts[thread_index() * ((rows + SORT_TILE - 1) / SORT_TILE) + tile];
  for (int64_t i = tile * SORT_TILE; i < end; ++i) {
    const int64_t key = key_at(i);
    if (digit_of(key, pass) != thread_index()) continue;
    keys[place] = key;
    order[place++] = row_at(i);
  }
}

// The first of the sorted keys that is not below `entry`.
INLINE int64_t first_from(int64_t rows, const int64_t* keys, int64_t entry) {
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < entry) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace tokitai
