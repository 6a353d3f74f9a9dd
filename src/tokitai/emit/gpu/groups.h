// Grouped GEMM: a block finds its group in the offsets in device memory, so that a launch does not depend on them.
#pragma once
#include "work.h"

namespace tokitai {

INLINE int64_t exchange64(int64_t x, int mask) { return int64_t(exchange(uint64_t(x), mask)); }
INLINE int64_t over_warp(int64_t x) {
  ROLLED for (int d = 1; d < WARP; d *= 2) x += exchange64(x, d);
  return x;
}

// A group's range of the partitioned dimension, `count` indices from `begin` on; and the unit of its product that a block
// takes.
struct Group {
  int64_t index, begin, count, unit;

  INLINE void take(const int64_t* offsets, int64_t group) {
    index = group, begin = offsets[group], count = offsets[group + 1] - begin;
  }

  // Units are counted through all groups, `each` to a tile of rows. False where there is no unit `at`. The lanes of a warp
  // inspect WARP groups at a time; all warps find the same.
  INLINE bool find(const int64_t* offsets, int64_t groups, int64_t each, int64_t at) {
    const int lane = thread_index() % WARP;
    ROLLED for (int64_t first = 0; first < groups; first += WARP) {
      const int64_t g = first + lane;
      const int64_t own = g < groups ? ceil_div(offsets[g + 1] - offsets[g], ROWS) * each : 0;
      int64_t all = own, ahead = 0;  // of neighbours, twice as many each time, and of those ahead of this lane
      ROLLED for (int d = 1; d < WARP; d *= 2) {
        const int64_t others = exchange64(all, d);
        if (lane & d) ahead += others;
        all += others;
      }
      if (at < all) {
        const bool passed = ahead + own <= at;
        unit = at - over_warp(passed ? own : 0);
        take(offsets, first + over_warp(passed));
        return true;
      }
      at -= all;
    }
    return false;
  }
};

}  // namespace tokitai
