// The building blocks of kernels, for numbers and hashes alike: chunks of neighbouring elements, the balanced tree along a row
// and over blocks of rows.
#pragma once
#if TOKITAI_STRUCTURE
#include "hashes.h"
#else
#include "numbers.h"
#endif

namespace tokitai {

constexpr int CHUNK = 8;  // neighbouring elements that one thread takes: 16 bytes of a 16-bit format
constexpr int MAX_THREADS = 1024;

template <class T> INLINE constexpr T min(T a, T b) { return a < b ? a : b; }

// ------------------------------------------------------------------ chunks
template <class P> struct alignas(16) Chunk {
  P e[CHUNK];
};

// The padding past the end of a row. A hash of 0 would be neutral, and hide that a tail was not padded.
template <class P> INLINE P padding() { return P{}; }
#if TOKITAI_STRUCTURE
template <> INLINE f16 padding<f16>() { return {0x5A5A5A5A5A5A5A5Aull}; }
template <> INLINE bf16 padding<bf16>() { return {0x5A5A5A5A5A5A5A5Aull}; }
template <> INLINE f32 padding<f32>() { return {0x5A5A5A5A5A5A5A5Aull}; }
#endif

template <int BYTES> INLINE void load_streaming(void* to, const void* from) {
  if constexpr (BYTES == 16) *static_cast<Words16*>(to) = load16(from);
  else if constexpr (BYTES == 8) *static_cast<Words8*>(to) = load8(from);
  else if constexpr (BYTES == 4) *static_cast<Words4*>(to) = load4(from);
  else *static_cast<Words2*>(to) = load2(from);
}
template <int BYTES> INLINE void store_streaming(void* to, const void* from) {
  if constexpr (BYTES == 16) store16(to, *static_cast<const Words16*>(from));
  else if constexpr (BYTES == 8) store8(to, *static_cast<const Words8*>(from));
  else if constexpr (BYTES == 4) store4(to, *static_cast<const Words4*>(from));
  else store2(to, *static_cast<const Words2*>(from));
}

// Loads that leave what is read in the caches, where other blocks find it.
template <int BYTES> INLINE void keep(void* to, const void* from) {
#if TOKITAI_SIM
  load_streaming<BYTES>(to, from);
#elif TOKITAI_HIP
  if constexpr (BYTES == 16) *static_cast<Words16*>(to) = *static_cast<const Words16*>(from);
  else if constexpr (BYTES == 8) *static_cast<Words8*>(to) = *static_cast<const Words8*>(from);
  else if constexpr (BYTES == 4) *static_cast<Words4*>(to) = *static_cast<const Words4*>(from);
  else *static_cast<Words2*>(to) = *static_cast<const Words2*>(from);
#else
  if constexpr (BYTES == 16) *static_cast<uint4*>(to) = __ldg(static_cast<const uint4*>(from));
  else if constexpr (BYTES == 8) *static_cast<uint2*>(to) = __ldg(static_cast<const uint2*>(from));
  else if constexpr (BYTES == 4) *static_cast<uint32_t*>(to) = __ldg(static_cast<const uint32_t*>(from));
  else *static_cast<uint16_t*>(to) = __ldg(static_cast<const uint16_t*>(from));
#endif
}

// What a schedule knows of chunks: any number of elements; all or none; all.
constexpr int RAGGED = 0, EXACT = 1, FULL = 2;
template <int FIT> INLINE bool whole(int count) { return FIT == FULL || count >= CHUNK; }

// The elements p[0 ... count), of a whole chunk at most, in accesses of WIDTH elements: p is aligned for those.
// SOON: they are read again soon, so they stay in the caches.
constexpr bool REUSED = true;
template <int WIDTH, int FIT, bool CACHED = false, class P> INLINE void load_chunk(Chunk<P>& q, const P* p, int count) {
  constexpr int BYTES = min<int>(16, WIDTH * int(sizeof(P)));
  if (whole<FIT>(count)) {
    UNROLL for (int i = 0; i < CHUNK * int(sizeof(P)); i += BYTES) {
      char* const to = reinterpret_cast<char*>(&q) + i;
      const char* const from = reinterpret_cast<const char*>(p) + i;
      if constexpr (CACHED) keep<BYTES>(to, from);
      else load_streaming<BYTES>(to, from);
    }
  } else {
    UNROLL for (int e = 0; e < CHUNK; ++e) q.e[e] = FIT == RAGGED && e < count ? p[e] : padding<P>();
  }
}
template <int WIDTH, int FIT, class P> INLINE void store_chunk(P* p, const Chunk<P>& q, int count) {
  constexpr int BYTES = min<int>(16, WIDTH * int(sizeof(P)));
  if (whole<FIT>(count)) {
    UNROLL for (int i = 0; i < CHUNK * int(sizeof(P)); i += BYTES)
      store_streaming<BYTES>(reinterpret_cast<char*>(p) + i, reinterpret_cast<const char*>(&q) + i);
  } else if (FIT == RAGGED) {
    UNROLL for (int e = 0; e < CHUNK; ++e)
      if (e < count) p[e] = q.e[e];
  }
}

// A chunk of partial sums into a workspace: a whole one in words of 16 bytes, where they may lie there.
INLINE void store_partial(Stored* p, const S* x, int count) {
  if (count >= CHUNK && reinterpret_cast<uint64_t>(p) % 16 == 0) {
    constexpr int EACH = 16 / int(sizeof(Stored));
    UNROLL for (int k = 0; k < CHUNK; k += EACH) {
      Words16 w;
      UNROLL for (int e = 0; e < EACH; ++e) store1(reinterpret_cast<Stored*>(&w) + e, x[k + e]);
      *reinterpret_cast<Words16*>(p + k) = w;
    }
  } else {
    UNROLL for (int e = 0; e < CHUNK; ++e)
      if (e < count) store1(p + e, x[e]);
  }
}

// Chunks of N rows that a thread prefetches: while it computes one row, copies of others are in flight. On a GPU they lie
// in shared memory, and copies are asynchronous; elsewhere each thread has its own. T threads with V chunks each.
#if CUDA_ASM && !TOKITAI_STRUCTURE
template <class P, int T, int V, int N> struct Stage {
  static constexpr int PIECES = sizeof(Chunk<P>) / 16, BYTES = N * V * PIECES * T * 16;
  Words16* const storage;
  INLINE Stage(char* bytes) : storage(reinterpret_cast<Words16*>(bytes) + thread_index()) {}
  INLINE Words16* at(int turn, int v) const { return storage + (turn * V + v) * PIECES * T; }
  template <int WIDTH, int FIT> INLINE void fetch(int turn, int v, const P* p, int count) const {
    Words16* const to = at(turn, v);
    if (WIDTH * sizeof(P) >= 16 && whole<FIT>(count)) {
      UNROLL for (int k = 0; k < PIECES; ++k) copy16_to_shared(to + k * T, reinterpret_cast<const char*>(p) + 16 * k);
    } else {
      Chunk<P> q;
      load_chunk<WIDTH, FIT>(q, p, count);
      UNROLL for (int k = 0; k < PIECES; ++k) to[k * T] = reinterpret_cast<const Words16*>(&q)[k];
    }
  }
  INLINE Chunk<P> get(int turn, int v) const {
    Chunk<P> q;
    UNROLL for (int k = 0; k < PIECES; ++k) reinterpret_cast<Words16*>(&q)[k] = at(turn, v)[k * T];
    return q;
  }
};
#else
template <class P, int T, int V, int N> struct Stage {
  static constexpr int BYTES = 0;
  Chunk<P> own[N][V];
  Late<N * V> late;
  INLINE Stage(char*) {}
  template <int WIDTH, int FIT> INLINE void fetch(int turn, int v, const P* p, int count) {
    load_chunk<WIDTH, FIT>(own[turn][v], p, count), late.fetched(turn * V + v);
  }
  INLINE Chunk<P> get(int turn, int v) const { return late.landed(turn * V + v) ? own[turn][v] : Chunk<P>{}; }
};
#endif

// Makes the compiler rematerialize what was computed from these instead of keeping it in registers. It cannot know that
// `zero` is 0.
template <class P, int N> INLINE void rematerialize(Chunk<P> (&q)[N], uint32_t zero) {
#if CUDA_ASM && !TOKITAI_STRUCTURE
  UNROLL for (int i = 0; i < N; ++i)
    UNROLL for (int k = 0; k < int(sizeof(Chunk<P>) / 4); ++k) reinterpret_cast<uint32_t*>(&q[i])[k] += zero;
#endif
}

// Rounds a chunk of values to the stored format.
template <class P> INLINE void encode(Chunk<P>& q, const S (&x)[CHUNK]) {
  UNROLL for (int e = 0; e < CHUNK; ++e) store1(&q.e[e], x[e]);
}
// The value of an element of a chunk.
template <class P> INLINE S element(const Chunk<P>& q, int e) { return load1(&q.e[e]); }
#if !TOKITAI_STRUCTURE && CUDA_ASM
// Of a word with two bf16, in one instruction.
template <> INLINE S element<bf16>(const Chunk<bf16>& q, int e) {
  const uint32_t w = reinterpret_cast<const uint32_t*>(&q)[e / 2];
  return float_of(e % 2 ? w & 0xFFFF0000u : w << 16);
}
// Two at a time. The GPU's NaN is 0x7FFF, the largest of all patterns as signed numbers, and the only one above infinity:
// where there is a minimum of pairs, that makes it the canonical NaN. Elsewhere one comparison shows whether either is NaN.
template <uint32_t NOT_A_NUMBER, class P, class F> INLINE void encode_pairs(Chunk<P>& q, const S* x, const F& pair) {
  uint32_t* const w = reinterpret_cast<uint32_t*>(&q);
#if __CUDA_ARCH__ >= 900
  UNROLL for (int i = 0; i < CHUNK / 2; ++i)
    asm("min.s16x2 %0, %1, %2;" : "=r"(w[i]) : "r"(pair(2 * i)), "r"(NOT_A_NUMBER << 16 | NOT_A_NUMBER));
#else
  bool found = false;
  UNROLL for (int i = 0; i < CHUNK / 2; ++i) {
    w[i] = pair(2 * i);
    found |= (x[2 * i] != x[2 * i]) | (x[2 * i + 1] != x[2 * i + 1]);
  }
  if (found)
    UNROLL for (int i = 0; i < CHUNK / 2; ++i) {
      if ((w[i] & 0xFFFFu) == 0x7FFFu) w[i] = (w[i] & 0xFFFF0000u) | NOT_A_NUMBER;
      if (w[i] >> 16 == 0x7FFFu) w[i] = (w[i] & 0xFFFFu) | NOT_A_NUMBER << 16;
    }
#endif
}
INLINE uint32_t pair_of_f16(S low, S high) {
  uint32_t w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}
INLINE uint32_t pair_of_bf16(S low, S high) {
  uint32_t w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}
template <> INLINE void encode<f16>(Chunk<f16>& q, const S (&x)[CHUNK]) {
  encode_pairs<0x7E00u>(q, x, [&](int i) { return pair_of_f16(x[i], x[i + 1]); });
}
template <> INLINE void encode<bf16>(Chunk<bf16>& q, const S (&x)[CHUNK]) {
  encode_pairs<0x7FC0u>(q, x, [&](int i) { return pair_of_bf16(x[i], x[i + 1]); });
}
#endif

// a / b, b the same in all threads: by a power of two the product with its inverse is the same, and exact before it rounds.
INLINE S div_by_one(S a, S b) {
#if !TOKITAI_STRUCTURE
  const uint32_t u = bits(b);
  if ((u & 0x007FFFFFu) == 0 && u >= 0x00800000u && u <= 0x7E800000u) return mul(a, float_of(0x7F000000u - u));
#endif
  return div(a, b);
}
// A host scalar whose value a schedule knows. Its hash comes with the call.
#if TOKITAI_STRUCTURE
INLINE S known(const Stored* p, float) { return load1(p); }
#else
INLINE S known(const Stored*, float x) { return x; }
#endif

// ------------------------------------------------------------------ trees
struct Add {
  static INLINE S of(S a, S b) { return add(a, b); }
  static INLINE S neutral() { return NEUTRAL_SUM; }
};
struct Maximum {
  static INLINE S of(S a, S b) { return join_max(a, b); }
  static INLINE S neutral() { return NEUTRAL_MAX; }
};

#if TOKITAI_STRUCTURE
INLINE S exchange(S x, int mask) { return {exchange(x.h, mask)}; }
// What numbers.h has in fewer instructions than these.
INLINE S power_of_two(S n, S shift) { return power_of_two(add(n, shift)); }
INLINE S at_least(S x, S low) { return where(lt(x, low), low, x); }
INLINE S at_most(S x, S high) { return where(lt(high, x), high, x); }
INLINE S add_scaled(S c, S x, S scale) { return add(c, mul(x, scale)); }
#endif

// The tree over N values, a power of two.
template <class Op, int N> INLINE S fold(const S* x) {
  if constexpr (N == 1) return x[0];
  else return Op::of(fold<Op, N / 2>(x), fold<Op, N / 2>(x + N / 2));
}

// The tree over N neighbouring lanes, a power of two; each of them gets it.
template <class Op, int N> INLINE S across(S x) {
  UNROLL for (int d = 1; d < N; d *= 2) x = Op::of(x, exchange(x, d));
  return x;
}

constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

// How T threads divide a row: GROUP lanes of a warp, or WARPS whole ones. Thread t has V chunks, a warp those of neighbouring columns.
template <int T> struct Share {
  static constexpr int GROUP = T < WARP ? T : WARP, WARPS = T / GROUP;
};

// The K trees over L lanes and V chunks of each, from lanes D apart on: x[v * K + k] becomes x[k], in all lanes. Chunks
// share exchanges: a lane keeps half of them and passes on the other half, and they are combined once lanes are summed.
template <class Op, int L, int D, int V, int K> INLINE void over_lanes(S* x) {
  if constexpr (V > 1 && D < L) {
    constexpr int HALF = V / 2 * K;
    const bool upper = thread_index() & D;
    UNROLL for (int i = 0; i < HALF; ++i) {
      const S keep = upper ? x[i + HALF] : x[i], give = upper ? x[i] : x[i + HALF];
      x[i] = Op::of(keep, exchange(give, D));
    }
    over_lanes<Op, L, 2 * D, V / 2, K>(x);
    UNROLL for (int k = 0; k < K; ++k) x[k] = Op::of(x[k], exchange(x[k], D));
  } else {
    UNROLL for (int i = 0; i < V * K; ++i)
      UNROLL for (int d = D; d < L; d *= 2) x[i] = Op::of(x[i], exchange(x[i], d));
    UNROLL for (int w = K; w < V * K; w *= 2)
      UNROLL for (int i = 0; i < V * K; i += 2 * w)
        UNROLL for (int k = 0; k < K; ++k) x[i + k] = Op::of(x[i + k], x[i + w + k]);
  }
}

// Shared memory through which warps exchange values. Two halves alternate, so that one barrier an exchange is enough.
struct Cells {
  S* memory;
  int half, phase;
  INLINE S* next() {
    phase ^= 1;
    return memory + phase * half;
  }
};

// The K trees along a row that T threads share, each of which has V chunks' trees of every one; all threads get them.
// Half of the cells has K * WARP at least.
template <class Op, int T, int V, int K> INLINE void along_row(const S (&part)[K][V], S (&total)[K], Cells& cells) {
  constexpr int L = Share<T>::GROUP, W = Share<T>::WARPS, WARPS = power_of_two_from(W);
  S x[V * K];
  UNROLL for (int v = 0; v < V; ++v)
    UNROLL for (int k = 0; k < K; ++k) x[v * K + k] = part[k][v];
  over_lanes<Op, L, 1, V, K>(x);
  UNROLL for (int k = 0; k < K; ++k) total[k] = x[k];
  if constexpr (W > 1) {
    const int warp = thread_index() / WARP, lane = thread_index() % WARP, other = lane % WARPS;
    S* const mine = cells.next();
    if (lane == 0)
      UNROLL for (int k = 0; k < K; ++k) mine[k * WARP + warp] = total[k];
    barrier();
    UNROLL for (int k = 0; k < K; ++k)
      total[k] = across<Op, WARPS>(other < W ? mine[k * WARP + other] : Op::neutral());
  }
}

// The tree over values that come one after another, each a whole node of one level: as a binary counter.
template <class Op> struct BinaryCounter {
  S level[40];
  int64_t count = 0;
  INLINE void push(S x) {
    int i = 0;
    for (int64_t k = count; k & 1; k >>= 1, ++i) x = Op::of(level[i], x);
    level[i] = x;
    ++count;
  }
  INLINE S result(S none) const {
    if (count == 0) return none;
    int i = 0;
    while (!(count >> i & 1)) ++i;
    S x = level[i];
    for (++i; count >> i; ++i)
      if (count >> i & 1) x = Op::of(level[i], x);
    return x;
  }
};

// The tree over count values at(i), by T threads, a power of two; all get it. Each takes a run of neighbours, a whole node.
template <class Op, int T = MAX_THREADS, class F> INLINE S by_all_threads(int64_t count, const F& at, Cells& cells) {
  int64_t run = 1;
  while (run * T < count) run *= 2;
  const int64_t begin = thread_index() * run, end = min(count, begin + run);
  BinaryCounter<Op> counter;
  for (int64_t i = begin; i < end; i += CHUNK) {  // several loads at a time; run is less than CHUNK, or a multiple
    S x[CHUNK];
    UNROLL for (int k = 0; k < CHUNK; ++k) x[k] = i + k < end ? at(i + k) : Op::neutral();
    counter.push(fold<Op, CHUNK>(x));
  }
  const S part[1][1] = {{counter.result(Op::neutral())}};
  S total[1];
  along_row<Op, T, 1, 1>(part, total, cells);
  return total[0];
}

// A sum down rows of values with one element a row: a chain inside blocks of BLOCK rows, then the tree over the blocks.
template <int BLOCK, class F> INLINE S down_rows(int64_t rows, const F& at, Cells& cells) {
  const S sum = by_all_threads<Add>((rows + BLOCK - 1) / BLOCK, [&](int64_t block) {
    S x = NEUTRAL_SUM;
    for (int64_t r = block * BLOCK; r < min(rows, (block + 1) * BLOCK); ++r) x = add(x, at(r));
    return x;
  }, cells);
  return rows ? sum : S{};
}

// The tree over blocks of rows for 32 columns, by MAX_THREADS threads: 32 slices of neighbouring blocks. Threads of the
// first slice get their column's. `cells` has MAX_THREADS.
constexpr int COLUMNS = 32, SLICES = MAX_THREADS / COLUMNS;
template <class F> INLINE S over_blocks(int64_t blocks, const F& at, S* cells) {
  const int slice = thread_index() / COLUMNS;
  int64_t run = 1;
  while (run * SLICES < blocks) run *= 2;
  const int64_t begin = slice * run, end = min(blocks, begin + run);
  BinaryCounter<Add> counter;
  for (int64_t i = begin; i < end; i += CHUNK) {
    S x[CHUNK];
    UNROLL for (int k = 0; k < CHUNK; ++k) x[k] = i + k < end ? at(i + k) : NEUTRAL_SUM;
    counter.push(fold<Add, CHUNK>(x));
  }
  barrier();
  cells[thread_index()] = counter.result(NEUTRAL_SUM);
  barrier();
  if (slice) return S{};
  S x[SLICES];
  UNROLL for (int k = 0; k < SLICES; ++k) x[k] = cells[k * COLUMNS + thread_index()];
  return blocks ? fold<Add, SLICES>(x) : S{};
}

// ------------------------------------------------------------------ phases of one launch
// Blocks take turns in the order in which they begin, whatever their numbers are. Each phase has as many turns, and waits
// for all turns of the phases before: these have begun, so they end, however few blocks run at a time. Counters: turns
// that were taken, and those that have ended; both are 0 before the launch.
INLINE int64_t take_turn(uint32_t* counters, const uint32_t (&ends)[3], uint32_t* cell) {
  if (thread_index() == 0) {
    const uint32_t turn = count_up(counters), ended = counted(counters + 1);  // both loads in flight at once
    const uint32_t before = turn < ends[0] ? 0 : turn < ends[1] ? ends[0] : turn < ends[2] ? ends[1] : ends[2];
    if (ended < before) wait_for(counters + 1, before);
    *cell = turn;
  }
  barrier();
  return *cell;
}

template <int word> INLINE uint32_t element_word(int64_t index) { return uint32_t(uint64_t(index) >> (32 * word)); }

}  // namespace tokitai
