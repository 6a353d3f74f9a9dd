// The threads of a GPU kernel, under one set of names on every target: CUDA here, HIP and the CPU's fibers in files of
// their own.
#pragma once

#if TOKITAI_HIP
#include "hip.h"
#elif TOKITAI_SIM
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
#define INLINE __device__ inline
#define UNROLL _Pragma("unroll 1")
#else
#define INLINE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#endif
#define ROLLED _Pragma("unroll 1")
#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_AT_LAUNCH(name) extern __shared__ Words16 name##_words[]; char* const name = reinterpret_cast<char*>(name##_words)
#define KERNEL(name, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Call call)

namespace tokitai {

constexpr int WARP = 32;

INLINE int thread_index() {
  const int t = int(threadIdx.x);
  __builtin_assume(t >= 0);  // quotients of it need no test of the sign
  return t;
}
INLINE int block_size() { return int(blockDim.x); }
INLINE int64_t block_index() { return blockIdx.x; }
INLINE int64_t grid_size() { return gridDim.x; }
INLINE void barrier() { __syncthreads(); }

// Counters that blocks share (see Turns in rows.h). What a thread wrote before it counts is visible to those that waited.
INLINE uint32_t count_up(uint32_t* p) { return atomicAdd(p, 1u); }
INLINE void count_done(uint32_t* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory"); }
INLINE uint32_t counted(const uint32_t* p) {
  uint32_t now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(p) : "memory");
  return now;
}
INLINE void wait_for(const uint32_t* p, uint32_t count) {
  while (counted(p) < count) __nanosleep(100);
}

INLINE uint32_t exchange(uint32_t x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
INLINE uint64_t exchange(uint64_t x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
INLINE float exchange(float x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }

INLINE uint32_t bits_of(float a) { return __float_as_uint(a); }
INLINE float float_of(uint32_t u) { return __uint_as_float(u); }

// Streaming accesses: what a kernel reads and writes is used once, and need not displace other data in L2.
struct alignas(16) Words16 { uint32_t w[4]; };
struct alignas(8) Words8 { uint32_t w[2]; };
typedef uint32_t Words4;
typedef uint16_t Words2;
INLINE Words16 load16(const void* p) {
  const uint4 v = __ldcs(static_cast<const uint4*>(p));
  return {{v.x, v.y, v.z, v.w}};
}
INLINE void store16(void* p, Words16 x) {
  __stcs(static_cast<uint4*>(p), make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]));
}
// Asynchronous copies, past registers, in committed groups; a thread may read what it copied once it has waited until
// groups LATER than that are the only ones in flight.
INLINE void copy16_to_shared(void* to, const void* from) {
  const auto place = uint32_t(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from) : "memory");
}
INLINE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> INLINE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory"); }
template <int N> struct Late {  // copies through registers complete at once
  INLINE void fetched(int) {}
  INLINE bool landed(int) const { return true; }
};
INLINE Words8 load8(const void* p) {
  const uint2 v = __ldcs(static_cast<const uint2*>(p));
  return {{v.x, v.y}};
}
INLINE void store8(void* p, Words8 x) { __stcs(static_cast<uint2*>(p), make_uint2(x.w[0], x.w[1])); }
INLINE uint32_t load4(const void* p) { return __ldcs(static_cast<const uint32_t*>(p)); }
INLINE void store4(void* p, uint32_t x) { __stcs(static_cast<uint32_t*>(p), x); }
INLINE uint16_t load2(const void* p) { return __ldcs(static_cast<const uint16_t*>(p)); }
INLINE void store2(void* p, uint16_t x) { __stcs(static_cast<uint16_t*>(p), x); }

}  // namespace tokitai
#endif
