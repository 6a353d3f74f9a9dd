// One step along k of a warpgroup's matrix unit: 64 rows, N columns, 16 products each. Of `d`, thread 32 w + 4 g + t of the
// warpgroup has at [4 j + 2 h + i] row 16 w + g + 8 h and column 8 j + 2 t + i. `left` and `right` describe operands in
// shared memory; ACROSS, those whose neighbours in memory are neighbours across k. Without `accumulate`, d begins with +0.
#pragma once
#include "matrix_unit.h"

namespace tokitai {

#define WARPGROUP_STEP_64(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, p, 1, 1, %35, %36; }" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
        "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
        "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), \
        "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
      : "l"(left), "l"(right), "r"(accumulate), "n"(LEFT_ACROSS), "n"(RIGHT_ACROSS))
#define WARPGROUP_STEP_128(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
      "}, %64, %65, p, 1, 1, %67, %68; }" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
        "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
        "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), \
        "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), \
        "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
      : "l"(left), "l"(right), "r"(accumulate), "n"(LEFT_ACROSS), "n"(RIGHT_ACROSS))
#define WARPGROUP_STEP_256(TYPE) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; " \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, " \
      "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
      "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
      "%124, %125, %126, %127" \
      "}, %128, %129, p, 1, 1, %131, %132; }" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
        "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
        "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), \
        "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), \
        "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), \
        "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
        "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), \
        "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), \
        "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), \
        "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), \
        "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), \
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), \
        "+f"(d[127]) \
      : "l"(left), "l"(right), "r"(accumulate), "n"(LEFT_ACROSS), "n"(RIGHT_ACROSS))

template <int N, bool LEFT_ACROSS, bool RIGHT_ACROSS>
INLINE void warpgroup_step(float (&d)[N / 2], uint64_t left, uint64_t right, int accumulate) {
  static_assert(N == 64 || N == 128 || N == 256, "as many columns");
  if constexpr (N == 64) {
    if constexpr (LEFT_FRACTION_BITS == 10) WARPGROUP_STEP_64("f16");
    else WARPGROUP_STEP_64("bf16");
  } else if constexpr (N == 128) {
    if constexpr (LEFT_FRACTION_BITS == 10) WARPGROUP_STEP_128("f16");
    else WARPGROUP_STEP_128("bf16");
  } else {
    if constexpr (LEFT_FRACTION_BITS == 10) WARPGROUP_STEP_256("f16");
    else WARPGROUP_STEP_256("bf16");
  }
}
INLINE void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void warpgroup_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until the last LATER groups of steps are the only ones in flight.
template <int LATER> INLINE void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory"); }

INLINE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Where an operand lies in shared memory: lines of 128 bytes, swizzled, eight of which are 1,024 bytes. ACROSS k, lines are
// 64 elements of one k, and the next 64 elements begin BLOCK bytes further on; else a line is 64 elements along k.
template <int BLOCK> INLINE uint64_t operand_at(uint32_t address) {
  return uint64_t(address >> 4 & 0x3FFFu) | uint64_t(BLOCK >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// ------------------------------------------------------------------ barriers in shared memory
INLINE void barrier_begin(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(count) : "memory");
}
INLINE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
INLINE void arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory");
}
INLINE void arrive_expecting(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)), "r"(bytes) : "memory");
}
INLINE void wait(uint64_t* b, int phase) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE: }"
      :: "r"(shared_address(b)), "r"(phase) : "memory");
}

// ------------------------------------------------------------------ the Tensor Memory Accelerator
struct alignas(64) TensorMap {
  uint64_t words[16];
};
// A box of a tensor of three sides, the innermost first, to shared memory; `b` counts its bytes. What is outside is zeros.
INLINE void copy_box(void* to, const TensorMap* map, uint64_t* b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      :: "r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}

}  // namespace tokitai
