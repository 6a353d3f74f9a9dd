// Loads and stores of whole numbers with columns, where a vector holds one of them: ahead of what is written for any
// number of lanes. Only kernels that have such tensors include it.
#pragma once
#include "lanes.h"

#if LANES == 1
namespace tokitai {

INLINE int32_t load(const int32_t* p) { return *p; }
INLINE uint32_t load(const uint32_t* p) { return *p; }
INLINE void store(int32_t* p, int32_t x) { *p = x; }
INLINE void store(uint32_t* p, uint32_t x) { *p = x; }

}  // namespace tokitai
#endif
