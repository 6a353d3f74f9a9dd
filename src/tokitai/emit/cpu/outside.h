// Structure builds say which access leaves an array of the kernel's own. What lies there are other variables, and a wrong
// store may change nothing that is read: no result and no guard zone shows it.
#pragma once
#include "lanes.h"
#if TOKITAI_STRUCTURE
#include <stdio.h>

namespace tokitai {

static char outside[256];  // the first access that leaves its array; the kernel goes on

static __attribute__((noinline, unused)) void leaves(const char* file, uint32_t line, const char* what, const char* type) {
  char none = 0;
  if (__atomic_compare_exchange_n(outside, &none, '?', false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    snprintf(outside, sizeof outside, "%s:%u: %s%s", file, line, what, type);
}

// As the compilers lay out what they say of an access to an array whose size they know.
struct Access {
  const char* file;
  uint32_t line, column;
  const char* type;  // two numbers of 16 bits, then its name
};
INLINE void leaves(const void* access, const char* what) {
  const Access& at = *static_cast<const Access*>(access);
  leaves(at.file, at.line, what, at.type + 4);
}

}  // namespace tokitai

extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_out_of_bounds(void* access, void*) {
  tokitai::leaves(access, "an index lies outside an array of type ");
}
extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void* access, void*) {
  tokitai::leaves(access, "an access reaches outside an object, for ");
}
extern "C" __attribute__((visibility("default"))) char* tokitai_outside() { return tokitai::outside; }
#endif

namespace tokitai {

// The vector from element i on of an array of the kernel's own. Structure builds report one that does not lie in it.
template <class T, int N>
INLINE T* vector_at(T (&array)[N], int64_t i, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
#if TOKITAI_STRUCTURE
  if (i < 0 || i + LANES > N) leaves(file, uint32_t(line), "a vector lies outside its array", "");
#endif
  (void)file, (void)line;
  return array + i;
}

// A zone behind each piece of a thread's memory, from given elements on. Structure builds report what is stored there.
struct Guards {
#if TOKITAI_STRUCTURE
  static constexpr int64_t SIZE = 16;  // elements, which are in the slack of a plan's workspace
  int64_t begins[32], count = 0;
  int64_t behind(int64_t piece) {
    begins[count++] = piece;
    return SIZE;
  }
  template <class E> void set(E* memory) const {
    for (int64_t i = 0; i < count; ++i) __builtin_memset(static_cast<void*>(memory + begins[i]), 0xA5, SIZE * sizeof(E));
  }
  template <class E>
  void check(const E* memory, const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    for (int64_t i = 0; i < count; ++i) {
      const auto zone = reinterpret_cast<const unsigned char*>(memory + begins[i]);
      for (size_t byte = 0; byte < SIZE * sizeof(E); ++byte)
        if (zone[byte] != 0xA5) return leaves(file, uint32_t(line), "a store behind a piece of a thread's memory", "");
    }
  }
#else
  int64_t behind(int64_t) { return 0; }
  template <class E> void set(E*) const {}
  template <class E> void check(const E*) const {}
#endif
};

}  // namespace tokitai
