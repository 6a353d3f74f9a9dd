// The names of threads.h on AMD GPUs, by clang's builtins: neither headers nor libraries of ROCm are needed. On the CPU's
// fibers sim.h has these builtins, so that what stands here is run there too.
#pragma once

#if TOKITAI_SIM
#include "sim.h"
#else

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#if TOKITAI_STRUCTURE  // speed matters little there, and calls and loops compile much faster
#define INLINE __attribute__((device)) inline
#define UNROLL _Pragma("unroll 1")
#else
#define INLINE __attribute__((device, always_inline)) inline
#define UNROLL _Pragma("unroll")
#endif
#define ROLLED _Pragma("unroll 1")
#define SHARED(type, name, count) __attribute__((shared)) type name[count]
// The call is read where the launch put it: a copy, of which only parts are used, would lie in scratch memory.
#define SHARED_AT_LAUNCH(name) char* const name = nullptr  // nothing needs it here
#define KERNEL(name, threads, blocks)                                                                           \
  INLINE void name##_of(const Call& call);                                                                      \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name(const Call) {     \
    name##_of(*(const Call*)__builtin_amdgcn_kernarg_segment_ptr());                                            \
  }                                                                                                             \
  INLINE void name##_of(const Call& call)

namespace tokitai {

constexpr int WARP = __AMDGCN_WAVEFRONT_SIZE__;

INLINE uint32_t bits_of(float a) { return __builtin_bit_cast(uint32_t, a); }
INLINE float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }
INLINE void wait_for_blocks() {}  // others run asynchronously

}  // namespace tokitai
#endif

#define CUDA_ASM 0
#define __fadd_rn(a, b) ((a) + (b))
#define __fsub_rn(a, b) ((a) - (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __fdiv_rn(a, b) ((a) / (b))
#define __fmaf_rn(a, b, c) __builtin_fmaf(a, b, c)
#define __fsqrt_rn(a) __builtin_sqrtf(a)
#define ROUND_EVEN(a) __builtin_rintf(a)

namespace tokitai {

INLINE int thread_index() { return int(__builtin_amdgcn_workitem_id_x()); }
INLINE int block_size() { return int(__builtin_amdgcn_workgroup_size_x()); }
INLINE int64_t block_index() { return __builtin_amdgcn_workgroup_id_x(); }
INLINE int64_t grid_size() { return __builtin_amdgcn_grid_size_x() / uint32_t(block_size()); }
INLINE void close_copies() {}
template <int LATER> INLINE void wait_for_copies() {}
template <int N> struct Late {  // copies through registers complete at once
  INLINE void fetched(int) {}
  INLINE bool landed(int) const { return true; }
};
INLINE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Counters that blocks share, as in threads.h.
#if TOKITAI_SIM
INLINE uint32_t count_up(uint32_t* p) { return (*p)++; }
INLINE void count_done(uint32_t* p) { ++*p; }
INLINE uint32_t counted(const uint32_t* p) { return *p; }
#else
INLINE uint32_t count_up(uint32_t* p) { return __hip_atomic_fetch_add(p, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
INLINE void count_done(uint32_t* p) { __hip_atomic_fetch_add(p, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT); }
INLINE uint32_t counted(const uint32_t* p) { return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT); }
#endif
INLINE void wait_for(const uint32_t* p, uint32_t count) {
  while (counted(p) < count) wait_for_blocks();
}

// Lanes are addressed by bytes. All threads of a kernel are lanes of whole warps, in order.
INLINE uint32_t exchange(uint32_t x, int mask) {
  return uint32_t(__builtin_amdgcn_ds_bpermute(((thread_index() ^ mask) & (WARP - 1)) << 2, int(x)));
}
INLINE uint64_t exchange(uint64_t x, int mask) {
  return uint64_t(exchange(uint32_t(x >> 32), mask)) << 32 | exchange(uint32_t(x), mask);
}
INLINE float exchange(float x, int mask) { return float_of(exchange(bits_of(x), mask)); }

// Streaming accesses, as in threads.h.
typedef uint32_t Vector4 __attribute__((vector_size(16), may_alias));
typedef uint32_t Vector2 __attribute__((vector_size(8), may_alias));
struct alignas(16) Words16 { Vector4 v; } __attribute__((may_alias));
struct alignas(8) Words8 { Vector2 v; } __attribute__((may_alias));
typedef uint32_t Words4 __attribute__((may_alias));
typedef uint16_t Words2 __attribute__((may_alias));
INLINE Words16 load16(const void* p) { return {__builtin_nontemporal_load(static_cast<const Vector4*>(p))}; }
INLINE Words8 load8(const void* p) { return {__builtin_nontemporal_load(static_cast<const Vector2*>(p))}; }
INLINE uint32_t load4(const void* p) { return __builtin_nontemporal_load(static_cast<const Words4*>(p)); }
INLINE uint16_t load2(const void* p) { return __builtin_nontemporal_load(static_cast<const Words2*>(p)); }
INLINE void store16(void* p, Words16 x) { __builtin_nontemporal_store(x.v, static_cast<Vector4*>(p)); }
INLINE void store8(void* p, Words8 x) { __builtin_nontemporal_store(x.v, static_cast<Vector2*>(p)); }
INLINE void store4(void* p, uint32_t x) { __builtin_nontemporal_store(x, static_cast<Words4*>(p)); }
INLINE void store2(void* p, uint16_t x) { __builtin_nontemporal_store(x, static_cast<Words2*>(p)); }

}  // namespace tokitai
