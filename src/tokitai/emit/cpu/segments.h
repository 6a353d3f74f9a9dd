// Rows in the order of the entries that they select: segments, and the blocks of 32 rows of long ones. The file that is
// included before this one defines INLINE. See lower/scatter.py for windows.
#pragma once

namespace tokitai {

constexpr int64_t CHAIN = 32;  // rows in one chain
INLINE int64_t windows_of(int64_t rows) { return (rows + CHAIN - 1) / CHAIN; }

// The long segment, if any, that begins in a window: it reaches beyond the last row there. entry_at(i) is the entry of
// the i-th sorted row. Gives its first row, or -1.
template <class P, class F>
INLINE int64_t long_segment(int64_t window, int64_t rows, const P* starts, const F& entry_at, int64_t& entry) {
  const int64_t last = window * CHAIN + CHAIN - 1;
  if (last >= rows) return -1;
  entry = entry_at(last);
  const int64_t start = starts[entry];
  return start >= window * CHAIN && starts[entry + 1] - start > CHAIN ? start : -1;
}

// The slot of the sum of a long segment's block: two to a window.
INLINE int64_t slot_of(int64_t start, int64_t block) {
  return 2 * (start / CHAIN + block) + (block == 0 && start % CHAIN != 0);
}

// The block of a long segment whose sum has slot `slot`: its rows [begin, end), or none.
template <class P, class F>
INLINE bool long_block(
    int64_t slot, int64_t rows, const P* starts, const F& entry_at, int64_t& begin, int64_t& end) {
  const int64_t first = slot / 2 * CHAIN;
  if (slot % 2) {
    int64_t entry;
    begin = long_segment(slot / 2, rows, starts, entry_at, entry);
    end = begin + CHAIN;
    return begin > first;
  }
  const int64_t entry = entry_at(first), start = starts[entry], stop = starts[entry + 1];
  begin = start + (first - start + CHAIN - 1) / CHAIN * CHAIN;
  end = begin + CHAIN < stop ? begin + CHAIN : stop;
  return stop - start > CHAIN && begin < stop;
}

// The stable order of rows by entry, by counting: the rows of entry e are order[starts[e] ... starts[e + 1]). `starts`
// has entries + 2 elements.
template <class F>
INLINE void sort_by_entry(int64_t rows, int64_t entries, const F& entry_of, int64_t* starts, int64_t* order) {
  for (int64_t e = 0; e < entries + 2; ++e) starts[e] = 0;
  for (int64_t r = 0; r < rows; ++r) ++starts[entry_of(r) + 2];
  for (int64_t e = 0; e < entries; ++e) starts[e + 2] += starts[e + 1];
  for (int64_t r = 0; r < rows; ++r) order[starts[entry_of(r) + 1]++] = r;
}

}  // namespace tokitai
