// Operations on single integers, the same on every target. The file that includes this one defines INLINE.
#pragma once

namespace tokitai {

INLINE int32_t int_add(int32_t a, int32_t b) { return a + b; }
INLINE int32_t int_sub(int32_t a, int32_t b) { return a - b; }
INLINE int32_t int_mul(int32_t a, int32_t b) { return a * b; }
INLINE int64_t int_add(int64_t a, int64_t b) { return a + b; }
INLINE int64_t int_sub(int64_t a, int64_t b) { return a - b; }
INLINE int64_t int_mul(int64_t a, int64_t b) { return a * b; }
INLINE uint32_t int_add(uint32_t a, uint32_t b) { return a + b; }
INLINE uint32_t int_sub(uint32_t a, uint32_t b) { return a - b; }
INLINE uint32_t int_mul(uint32_t a, uint32_t b) { return a * b; }
INLINE uint32_t int_mulhi(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }
INLINE uint32_t int_xor(uint32_t a, uint32_t b) { return a ^ b; }
INLINE uint32_t int_and(uint32_t a, uint32_t b) { return a & b; }
INLINE uint32_t int_shift_right(uint32_t a, uint32_t n) { return a >> n; }
#define COMPARE_INTEGERS(T)                                   \
  INLINE bool lt(T a, T b) { return a < b; }                  \
  INLINE bool le(T a, T b) { return a <= b; }                 \
  INLINE bool eq(T a, T b) { return a == b; }                 \
  INLINE bool ne(T a, T b) { return a != b; }                 \
  INLINE T where(bool c, T a, T b) { return c ? a : b; }      \
  INLINE int32_t to_i32(T a) { return int32_t(a); }           \
  INLINE int64_t to_i64(T a) { return int64_t(a); }           \
  INLINE uint32_t to_u32(T a) { return uint32_t(a); }         \
  INLINE T load1(const T* p) { return *p; }                   \
  INLINE void store1(T* p, T x) { *p = x; }
COMPARE_INTEGERS(int32_t)
COMPARE_INTEGERS(int64_t)
COMPARE_INTEGERS(uint32_t)
INLINE bool logical_and(bool a, bool b) { return a && b; }
INLINE bool logical_or(bool a, bool b) { return a || b; }
INLINE bool logical_not(bool a) { return !a; }

}  // namespace tokitai
