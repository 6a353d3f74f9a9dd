// A stable sort of rows by the entries that they select, one digit at a time from the lowest, for kernels of `DIGITS`
// threads. A block takes a tile of rows. Lanes of a warp find out by votes which of them have the same digit, and so the
// order of their rows after those of earlier warps: no atomic operation decides where a row goes.
#pragma once

namespace tokitai {

constexpr int DIGITS = 256, DIGIT_BITS = 8;
constexpr int64_t SORT_PIECE = 1024;  // rows that a block sorts at a time
constexpr int64_t MAX_TILES = 256;   // whose counts a block adds up
constexpr int ROUNDS = int(SORT_PIECE) / DIGITS;  // rows of a thread
constexpr int SORT_CELLS = DIGITS / WARP * DIGITS;  // a count for each warp and digit
constexpr int COUNTS_AT_ONCE = 16;

INLINE int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
INLINE int64_t tile_rows(int64_t rows) { return ceil_div(ceil_div(rows, SORT_PIECE), MAX_TILES) * SORT_PIECE; }
INLINE int64_t tiles_of(int64_t rows) { return rows ? ceil_div(rows, tile_rows(rows)) : 0; }
INLINE int sort_passes(int64_t entries) {
  int passes = 1;
  while (passes < 4 && (entries - 1) >> (8 * passes)) ++passes;
  return passes;
}
INLINE int digit_of(int32_t key, int pass) { return key >> (8 * pass) & (DIGITS - 1); }

// Bit l is what lane l of the warp says.
INLINE uint64_t votes(bool mine) {
#if TOKITAI_HIP || TOKITAI_SIM
  uint64_t all = uint64_t(mine) << (thread_index() % WARP);
  for (int d = 1; d < WARP; d *= 2) all |= exchange(all, d);
  return all;
#else
  return __ballot_sync(0xFFFFFFFFu, mine);
#endif
}
INLINE int ones_in(uint64_t bits) {
#if TOKITAI_HIP || TOKITAI_SIM
  return __builtin_popcountll(bits);
#else
  return __popcll(bits);
#endif
}
// A number that no other thread gets: 0, 1, 2 ... in any order. For lists whose order decides nothing.
INLINE int32_t next_number(int32_t* counter) {
#if TOKITAI_HIP || TOKITAI_SIM
  return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
#else
  return atomicAdd(counter, 1);
#endif
}

// The index in a piece of a thread's k-th row: a warp has neighbouring rows.
INLINE int place_in_piece(int k) {
  return thread_index() / WARP * (ROUNDS * WARP) + k * WARP + thread_index() % WARP;
}

// Counts the digits of each warp's rows of a piece that begins with row `first`, in cells[warp][digit]; of this thread's
// rows come the keys, -1 past the end, and how many of the warp with the same digit stand before. Ends in a barrier.
template <class C, class F>
INLINE void rank_rows(
    int64_t first, int64_t end, int pass, const F& key_at, C* cells, int32_t (&key)[ROUNDS], int (&rank)[ROUNDS]) {
  const int lane = thread_index() % WARP;
  C* const mine = cells + thread_index() / WARP * DIGITS;
  for (int d = lane; d < DIGITS; d += WARP) mine[d] = 0;
  UNROLL for (int k = 0; k < ROUNDS; ++k) {
    const int64_t i = first + place_in_piece(k);
    key[k] = i < end ? key_at(i) : -1;
  }
  barrier();
  UNROLL for (int k = 0; k < ROUNDS; ++k) {
    const bool some = key[k] >= 0;
    const int digit = some ? digit_of(key[k], pass) : 0;
    uint64_t same = votes(some);
    UNROLL for (int b = 0; b < DIGIT_BITS; ++b) {
      const bool one = digit >> b & 1;
      const uint64_t with = votes(one);
      same &= one ? with : ~with;
    }
    const int before = ones_in(same & ((uint64_t(1) << lane) - 1));
    rank[k] = int(mine[digit]) + before;
    barrier();
    if (some && before == 0) mine[digit] += C(ones_in(same));
    barrier();
  }
}

// How many rows of a tile have each digit: counts[tile][digit].
template <class F>
INLINE void count_digits(int64_t rows, int pass, int32_t* counts, int32_t* cells, const F& key_at) {
  const int64_t begin = block_index() * tile_rows(rows), end = min(rows, begin + tile_rows(rows));
  int32_t count = 0;
  for (int64_t first = begin; first < end; first += SORT_PIECE) {
    int32_t key[ROUNDS];
    int rank[ROUNDS];
    rank_rows(first, end, pass, key_at, cells, key, rank);
    for (int w = 0; w < DIGITS / WARP; ++w) count += cells[w * DIGITS + thread_index()];
    barrier();
  }
  counts[block_index() * DIGITS + thread_index()] = count;
}

// The exclusive prefix sum over threads. `cells` has one element for each.
template <class C> INLINE C sum_before(C mine, C* cells) {
  C sum = mine;
  for (int d = 1; d < DIGITS; d *= 2) {
    cells[thread_index()] = sum;
    barrier();
    if (thread_index() >= d) sum += cells[thread_index() - d];
    barrier();
  }
  return sum - mine;
}

// Every row of a tile goes after the rows with lower digits, and after earlier ones with the same digit.
template <class C, class F, class G>
INLINE void place_rows(
    int64_t rows, int pass, const int32_t* counts, C* cells, const F& key_at, const G& row_at, int32_t* keys, C* order) {
  const int64_t tiles = tiles_of(rows), begin = block_index() * tile_rows(rows);
  const int64_t end = min(rows, begin + tile_rows(rows));
  C all = 0, index = 0;
  ROLLED for (int64_t t = 0; t < tiles; t += COUNTS_AT_ONCE) {
    int32_t count[COUNTS_AT_ONCE];
    UNROLL for (int k = 0; k < COUNTS_AT_ONCE; ++k)
      count[k] = t + k < tiles ? counts[(t + k) * DIGITS + thread_index()] : 0;
    UNROLL for (int k = 0; k < COUNTS_AT_ONCE; ++k) {
      all += count[k];
      if (t + k < block_index()) index += count[k];
    }
  }
  index += sum_before(all, cells);
  for (int64_t first = begin; first < end; first += SORT_PIECE) {
    int32_t key[ROUNDS];
    int rank[ROUNDS];
    rank_rows(first, end, pass, key_at, cells, key, rank);
    for (int w = 0; w < DIGITS / WARP; ++w) {
      C& cell = cells[w * DIGITS + thread_index()];
      const C count = cell;
      cell = index;
      index += count;
    }
    barrier();
    UNROLL for (int k = 0; k < ROUNDS; ++k) {
      if (key[k] < 0) continue;
      const C to = cells[thread_index() / WARP * DIGITS + digit_of(key[k], pass)] + rank[k];
      keys[to] = key[k];
      order[to] = C(row_at(first + place_in_piece(k)));
    }
    barrier();
  }
}

// The first of the sorted keys that is not below `entry`.
INLINE int64_t first_from(int64_t rows, const int32_t* keys, int64_t entry) {
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < entry) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace tokitai
