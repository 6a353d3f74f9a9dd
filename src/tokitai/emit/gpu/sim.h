// A GPU's threads on the CPU: every thread of a block is a fiber, blocks run one after another.
//
// Slow and strict. Threads run in an order that the caller picks; shared memory is poisoned before each block; a barrier
// that some threads never reach, an exchange that lanes of a warp miss, or an access whose address is not a multiple of
// its size, ends the launch with a message.
#pragma once
#include <fenv.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TOKITAI_WARP
#define TOKITAI_WARP 32
#endif

#define INLINE inline __attribute__((unused))
#define UNROLL
#define ROLLED
#define SHARED(type, name, count)                        \
  static tokitai::sim::Shared<sizeof(type) * (count)> name##_block; \
  type* const name = reinterpret_cast<type*>(name##_block.bytes)
#define SHARED_AT_LAUNCH(name) char* const name = nullptr  // nothing needs it here
#define KERNEL(name, threads, blocks)                                                                         \
  static void name(const Call& call);                                                                         \
  extern "C" __attribute__((visibility("default"))) int32_t tokitai_sim_##name(                               \
      int64_t grid, int32_t block, const void* call, uint64_t order) {                                        \
    return sim::launch(#name, grid, block, threads, order, call,                                              \
                       [](const void* c) { name(*static_cast<const Call*>(c)); });                            \
  }                                                                                                           \
  static void name(const Call& call)

namespace tokitai {

constexpr int WARP = TOKITAI_WARP;

namespace sim {

constexpr int MAX_BLOCK = 1024;
constexpr size_t STACK = 1 << 17, SLACK = 1 << 16;  // below the stack: what is written there harms nothing else
constexpr uint64_t CANARY = 0xC0FFEE5AFEC0DE00ull;
enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE, MISALIGNED, WAITING };
static const char* const STATES[] = {"ready", "at a barrier", "at an exchange", "ended", "stopped", "waiting for a later block"};

struct Fiber {
  void* stack_pointer;
  char* stack;
  State state;
  uint64_t slot[2];  // what it gives to the other lanes; two exchanges take turns
  int turn;
  int64_t closed, landed;  // groups of copies
};
static Fiber fibers[MAX_BLOCK];
static void* scheduler;
static int current, block_threads;
static size_t access_bytes;  // of the misaligned access
static int64_t block_number, blocks_in_grid;
static void (*body)(const void*);
static const void* argument;
static char message[256];
static char* stacks;  // memory for all stacks, which the host passes to one library after another

struct SharedBlock {  // of all shared memory of this translation unit
  char* bytes;
  size_t size;
  SharedBlock* next;
};
static SharedBlock* shared_blocks;
template <size_t N> struct Shared {
  alignas(16) char bytes[N];
  SharedBlock block;
  Shared() : block{bytes, N, shared_blocks} {
    shared_blocks = &block;
    memset(bytes, 0xA5, N);
  }
};

// Saves the callee-saved registers, and continues where `to` was left.
extern "C" void tokitai_switch(void** from, void* to) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
__asm__(
    ".text\n.hidden tokitai_switch\n.globl tokitai_switch\n.type tokitai_switch, @function\ntokitai_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size tokitai_switch, . - tokitai_switch\n");
constexpr int SAVED = 6;  // words below the return address
#elif defined(__aarch64__)
__asm__(
    ".text\n.hidden tokitai_switch\n.globl tokitai_switch\n.type tokitai_switch, %function\ntokitai_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n"
    ".size tokitai_switch, . - tokitai_switch\n");
#else
#error "fibers are written for x86-64 and aarch64"
#endif

INLINE void leave(State state) {
  Fiber& me = fibers[current];
  me.state = state;
  tokitai_switch(&me.stack_pointer, scheduler);
}

static void begin() {
  body(argument);
  leave(DONE);
}

INLINE void prepare(Fiber& f) {
  f.stack = stacks + (&f - fibers) * (SLACK + STACK) + SLACK;
  memcpy(f.stack, &CANARY, sizeof CANARY);
  void** top = reinterpret_cast<void**>(f.stack + STACK);
  const auto entry = reinterpret_cast<void*>(&begin);
#if defined(__x86_64__)
  *--top = nullptr;  // where `begin` would return to: it never does
  *--top = entry;
  for (int i = 0; i < SAVED; ++i) *--top = nullptr;
#else
  top -= 20;
  memset(static_cast<void*>(top), 0, 160);
  top[11] = entry;  // x30
#endif
  f.stack_pointer = top;
  f.state = READY;
  f.turn = 0;
  f.closed = f.landed = 0;
}

// One of the orders in which threads run: 0 and 1 forward, 2 backward, others shuffled.
INLINE void arrange(int* order, int n, uint64_t seed) {
  for (int i = 0; i < n; ++i) order[i] = seed == 2 ? n - 1 - i : i;
  if (seed <= 2) return;
  for (int i = n - 1; i > 0; --i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const int k = int((seed >> 33) % uint64_t(i + 1)), was = order[i];
    order[i] = order[k], order[k] = was;
  }
}

// Lets the threads w ... w + WARP continue where all have reached an exchange. False where they have not.
INLINE bool release_warp(int w, int n) {
  if (w + WARP > n) return false;
  for (int t = w; t < w + WARP; ++t)
    if (fibers[t].state != AT_EXCHANGE) return false;
  for (int t = w; t < w + WARP; ++t) fibers[t].state = READY;
  return true;
}

// Lets threads continue whose whole warp or block has arrived. False where none can.
INLINE bool release(int n) {
  bool any = false;
  for (int w = 0; w < n; w += WARP) any |= release_warp(w, n);
  if (any) return true;
  for (int t = 0; t < n; ++t)
    if (fibers[t].state != AT_BARRIER) return false;
  for (int t = 0; t < n; ++t) fibers[t].state = READY;
  return true;
}

// One thread up to where it waits. False where it did what it may not.
static bool run_thread(const char* name, int t) {
  if (fibers[t].state != READY) return true;
  current = t;
  tokitai_switch(&scheduler, fibers[t].stack_pointer);
  if (fibers[t].state == MISALIGNED) {
    snprintf(message, sizeof message,
             "kernel %s, block %lld: thread %d accesses %zu bytes at an address that is no multiple of %zu", name,
             static_cast<long long>(block_number), t, access_bytes, access_bytes);
    return false;
  }
  uint64_t canary;
  memcpy(&canary, fibers[t].stack, sizeof canary);
  if (canary == CANARY) return true;
  snprintf(message, sizeof message, "kernel %s: thread %d needs more than %zu bytes of stack", name, t, STACK);
  return false;
}

// Threads take turns; where warps run `ahead`, each continues alone from exchange to exchange, up to a barrier.
static bool run_block(const char* name, int n, const int* order, const int* lanes, bool ahead) {
  for (const SharedBlock* r = shared_blocks; r; r = r->next) memset(r->bytes, 0xA5, r->size);
  for (int t = 0; t < n; ++t) prepare(fibers[t]);
  for (;;) {
    int done = 0;
    for (int i = 0; i < n; ++i) {
      if (!run_thread(name, order[i])) return false;
      const int w = order[i] / WARP * WARP;
      while (ahead && release_warp(w, n))
        for (int k = 0; k < WARP; ++k)
          if (!run_thread(name, w + lanes[k])) return false;
    }
    for (int t = 0; t < n; ++t) done += fibers[t].state == DONE;
    if (done == n) return true;
    if (!release(n)) {
      int a = 0, b = 0;
      while (fibers[a].state == DONE) ++a;
      while (b < n - 1 && fibers[b].state == fibers[a].state) ++b;
      snprintf(message, sizeof message, "kernel %s, block %lld: thread %d is %s for ever, thread %d %s", name,
               static_cast<long long>(block_number), a, STATES[fibers[a].state], b, STATES[fibers[b].state]);
      return false;
    }
  }
}

static int32_t launch(const char* name, int64_t grid, int32_t block, int max_threads, uint64_t seed, const void* call,
                      void (*kernel)(const void*)) {
  if (block < 1 || block > max_threads || max_threads > MAX_BLOCK || grid < 1) {
    snprintf(message, sizeof message, "kernel %s: grid %lld, block %d; accepted: blocks of 1 to %d", name,
             static_cast<long long>(grid), block, max_threads);
    return 2;
  }
  static int order[MAX_BLOCK], lanes[WARP];
  arrange(order, block, seed);
  arrange(lanes, WARP, seed);
  body = kernel, argument = call, block_threads = block, blocks_in_grid = grid;
  fenv_t caller;
  fegetenv(&caller);
  fesetenv(FE_DFL_ENV);
  bool well = true;
  for (block_number = 0; well && block_number < grid; ++block_number)
    well = run_block(name, block, order, lanes, seed >= 2);
  fesetenv(&caller);
  return well ? 0 : 1;
}

#define TOKITAI_EXPORT extern "C" __attribute__((visibility("default"), used)) inline
TOKITAI_EXPORT const char* tokitai_sim_message() { return message; }
TOKITAI_EXPORT size_t tokitai_sim_stack_bytes() { return MAX_BLOCK * (SLACK + STACK); }
TOKITAI_EXPORT void tokitai_sim_use_stacks(void* block) { stacks = static_cast<char*>(block); }

}  // namespace sim

// What lane `from` of the warp gave.
INLINE uint64_t gather(uint64_t x, int from) {
  const int t = sim::current;
  const int turn = sim::fibers[t].turn ^= 1;
  sim::fibers[t].slot[turn] = x;
  sim::leave(sim::AT_EXCHANGE);
  return sim::fibers[t / WARP * WARP + from].slot[turn];
}
INLINE uint32_t bits_of(float a) {
  uint32_t u;
  memcpy(&u, &a, 4);
  return u;
}
INLINE float float_of(uint32_t u) {
  float a;
  memcpy(&a, &u, 4);
  return a;
}
// Blocks run one after another: what a block waits for has happened, or never will.
INLINE void wait_for_blocks() { sim::leave(sim::WAITING); }
// The address must be a multiple of the size, as on a GPU.
INLINE void check_address(const void* p, size_t bytes) {
  if (uintptr_t(p) % bytes == 0) return;
  sim::access_bytes = bytes;
  sim::leave(sim::MISALIGNED);  // for ever
}

#if TOKITAI_HIP  // what clang has built in for AMD GPUs: hip.h makes the names of it
}  // namespace tokitai
INLINE uint32_t __builtin_amdgcn_workitem_id_x() { return uint32_t(tokitai::sim::current); }
INLINE uint32_t __builtin_amdgcn_workgroup_id_x() { return uint32_t(tokitai::sim::block_number); }
INLINE uint32_t __builtin_amdgcn_workgroup_size_x() { return uint32_t(tokitai::sim::block_threads); }
INLINE uint32_t __builtin_amdgcn_grid_size_x() {
  return uint32_t(tokitai::sim::blocks_in_grid * tokitai::sim::block_threads);
}
INLINE void __builtin_amdgcn_s_barrier() { tokitai::sim::leave(tokitai::sim::AT_BARRIER); }
INLINE int __builtin_amdgcn_ds_bpermute(int place, int x) {  // four bytes a lane
  return int(tokitai::gather(uint32_t(x), (place >> 2) & (tokitai::WARP - 1)));
}
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_nontemporal_load(p) (tokitai::check_address(p, sizeof *(p)), *(p))
#define __builtin_nontemporal_store(x, p) (tokitai::check_address(p, sizeof *(p)), void(*(p) = (x)))
#else
INLINE int thread_index() { return sim::current; }
INLINE int block_size() { return sim::block_threads; }
INLINE int64_t block_index() { return sim::block_number; }
INLINE int64_t grid_size() { return sim::blocks_in_grid; }
// Copies land as late as they may: when they are waited for.
INLINE void close_copies() { ++sim::fibers[sim::current].closed; }
template <int LATER> INLINE void wait_for_copies() {
  sim::Fiber& me = sim::fibers[sim::current];
  if (me.closed - LATER > me.landed) me.landed = me.closed - LATER;
}
template <int N> struct Late {  // in which group each of N copies is
  int64_t group[N];
  INLINE void fetched(int i) { group[i] = sim::fibers[sim::current].closed; }
  INLINE bool landed(int i) const { return group[i] < sim::fibers[sim::current].landed; }
};
INLINE void barrier() { sim::leave(sim::AT_BARRIER); }
INLINE uint32_t count_up(uint32_t* p) { return (*p)++; }
INLINE void count_done(uint32_t* p) { ++*p; }
INLINE uint32_t counted(const uint32_t* p) { return *p; }
INLINE void wait_for(const uint32_t* p, uint32_t count) {
  while (*p < count) wait_for_blocks();
}
INLINE uint64_t exchange(uint64_t x, int mask) { return gather(x, (sim::current % WARP) ^ mask); }
INLINE uint32_t exchange(uint32_t x, int mask) { return uint32_t(exchange(uint64_t(x), mask)); }
INLINE float exchange(float x, int mask) { return float_of(exchange(bits_of(x), mask)); }

struct alignas(16) Words16 { uint32_t w[4]; } __attribute__((may_alias));
struct alignas(8) Words8 { uint32_t w[2]; } __attribute__((may_alias));
typedef uint32_t Words4 __attribute__((may_alias));
typedef uint16_t Words2 __attribute__((may_alias));
template <class W> INLINE W load_words(const void* p) {
  check_address(p, sizeof(W));
  return *static_cast<const W*>(p);
}
template <class W> INLINE void store_words(void* p, W x) {
  check_address(p, sizeof(W));
  *static_cast<W*>(p) = x;
}
INLINE Words16 load16(const void* p) { return load_words<Words16>(p); }
INLINE Words8 load8(const void* p) { return load_words<Words8>(p); }
INLINE Words4 load4(const void* p) { return load_words<Words4>(p); }
INLINE Words2 load2(const void* p) { return load_words<Words2>(p); }
INLINE void store16(void* p, Words16 x) { store_words(p, x); }
INLINE void store8(void* p, Words8 x) { store_words(p, x); }
INLINE void store4(void* p, uint32_t x) { store_words<Words4>(p, x); }
INLINE void store2(void* p, uint16_t x) { store_words<Words2>(p, x); }

}  // namespace tokitai
#endif
