// Products by warpgroups, for Hopper. A producer warp fills a ring of stages in shared memory by TMA copies; two consumer
// warpgroups multiply. Blocks are persistent: they take one tile after another from the same ring. Either both warpgroups
// share a tile, or they alternate: each has tiles of its own, and one stores results while the other multiplies.
#pragma once
#include "warpgroup.h"
#include "work.h"

namespace tokitai {

constexpr int CONSUMERS = 2, STAGES = PLAN_STAGES, TILE_K = 64;  // 64 elements along k are 128 bytes
constexpr bool ALTERNATE = PLAN_ALTERNATE;
constexpr int SHARERS = ALTERNATE ? 1 : CONSUMERS, HIGH = ROWS / (64 * SHARERS);  // of a tile; each has HIGH times 64 rows
constexpr int LEFT_BYTES = ROWS * TILE_K * 2, RIGHT_BYTES = COLS * TILE_K * 2;
constexpr int STAGE_BYTES = LEFT_BYTES + PRODUCTS * RIGHT_BYTES, BOX_BYTES = 64 * TILE_K * 2;
constexpr int EIGHT = 8, STAGED = 64, BAND = STAGED / PRODUCTS, STAGING_SIZE = 64 * STAGED;  // of results in shared memory
static_assert(BAND % EIGHT == 0 && COLS % BAND == 0, "whole octets");
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(ROWS == 64 * SHARERS * HIGH && CHAIN % TILE_K == 0 && TILE_K % UNIT_STEP == 0, "whole K-tiles");

// The tile of a unit. Neighbouring blocks take neighbouring tiles, of GROUP_M rows of tiles, so that they share operands in
// L2.
constexpr uint32_t GROUP_M = 16;
INLINE Unit placed(const Work& work, int64_t at) {  // units are fewer than 2^31: divisions of 64 bits take long
  const uint32_t down = uint32_t(work.down), across = uint32_t(work.across), tiles = down * across;
  const uint32_t tile = uint32_t(at) % tiles, above = tile / (GROUP_M * across) * GROUP_M, inside = tile - above * across;
  const uint32_t high = min<uint32_t>(down - above, GROUP_M), rest = uint32_t(at) / tiles, slices = uint32_t(work.slices);
  Unit unit;
  unit.r0 = int64_t(above + inside % high) * ROWS, unit.c0 = int64_t(inside / high) * COLS;
  unit.slice = rest % slices, unit.item = rest / slices;
  return unit;
}

struct Ring {
  uint64_t full[STAGES], empty[STAGES], turn[CONSUMERS];
  INLINE void begin() {
    for (int i = 0; i < STAGES; ++i) barrier_begin(&full[i], 1), barrier_begin(&empty[i], SHARERS);
    for (int i = 0; i < CONSUMERS; ++i) barrier_begin(&turn[i], 1);
    fence_barrier_init();
  }
};
// Where in the ring a warp is; the phase of a stage alternates.
struct RingPosition {
  int stage = 0, phase = 0;
  INLINE void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  INLINE void skip(int count) {
    phase ^= (stage + count) / STAGES & 1, stage = (stage + count) % STAGES;
  }
};
// Warpgroups that alternate: which units are this one's, and since when the stages of its next unit are. Before the other
// warpgroup has waited for all stages of its unit, phases of the ring would be mistaken for those of a turn earlier.
struct Turns {
  int unit = 0, mine = 0;
  INLINE int group() const { return thread_index() / 128 - 1; }
  INLINE bool take() { return unit++ % CONSUMERS == group(); }
  INLINE void begin(Ring& ring) { wait(&ring.turn[group()], (mine++ + (group() == 0)) & 1); }
  INLINE void pass_on(Ring& ring) {
    if (thread_index() % 128 == 0) arrive(&ring.turn[1 - group()]);
  }
};
struct Chains {  // of a unit's slice
  int64_t first, count;
  INLINE Chains(const Work& work, const Unit& unit)
      : first(unit.slice * work.chains_per_slice), count(min(work.chains_per_slice, work.chains - unit.slice * work.chains_per_slice)) {}
};

// An operand in memory: where neighbours are neighbours along k a box has all lines of a tile, else 64 of them.
template <bool ACROSS, int LINES> INLINE void copy_k_tile(char* to, const TensorMap* map, uint64_t* b, int line, int k, int item) {
  if (!ACROSS) copy_box(to, map, b, k, line, item);
  else
    UNROLL for (int i = 0; i < LINES / 64; ++i) copy_box(to + i * BOX_BYTES, map, b, line + 64 * i, k, item);
}

// Where in an operand's tensor map a unit's product begins.
struct Origin {
  int64_t line, k, item;
};

// The producer warp copies the operands of all chains of a unit.
template <bool LEFT_ACROSS, bool RIGHT_ACROSS>
INLINE void produce(
    const Work& work, const Unit& unit, const TensorMap* maps, Origin left, Origin right, Ring& ring, RingPosition& at, char* stages) {
  const Chains chains(work, unit);
  const int64_t end = min((chains.first + chains.count) * CHAIN, work.k_size);
  ROLLED for (int64_t k = chains.first * CHAIN; k < end; k += TILE_K, at.next()) {
    wait(&ring.empty[at.stage], at.phase ^ 1);
    if (thread_index() != 0) continue;
    uint64_t* const full = &ring.full[at.stage];
    char* const stage = stages + at.stage * STAGE_BYTES;
    arrive_expecting(full, STAGE_BYTES);
    copy_k_tile<LEFT_ACROSS, ROWS>(stage, maps, full, int(left.line + unit.r0), int(left.k + k), int(left.item));
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      copy_k_tile<RIGHT_ACROSS, COLS>(
          stage + LEFT_BYTES + n * RIGHT_BYTES, maps + 1 + n, full, int(right.line + unit.c0), int(right.k + k),
          int(right.item));
  }
}

// What a stage holds past the end of a group's k belongs to the next group: it is overwritten with zeros.
INLINE void clear_behind(char* stage, int valid) {
  constexpr int BOXES = STAGE_BYTES / BOX_BYTES, LINE_WORDS = 128 / 16;
  const Words16 zeros = {};
  ROLLED for (int i = valid * LINE_WORDS + thread_index() - 128; i < TILE_K * LINE_WORDS; i += 128 * CONSUMERS)
    ROLLED for (int box = 0; box < BOXES; ++box) *reinterpret_cast<Words16*>(stage + box * BOX_BYTES + i * 16) = zeros;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, %0;" :: "n"(128 * CONSUMERS) : "memory");
}

struct Accumulators {
  float sum[PRODUCTS][HIGH][COLS / 2];
  Turns turns;

  // The first of this warpgroup's blocks of 64 rows in a tile.
  static INLINE int first_block() { return ALTERNATE ? 0 : (thread_index() / 128 - 1) * HIGH; }

  // One chain of `length` products, from the ring.
  template <bool LEFT_ACROSS, bool RIGHT_ACROSS>
  INLINE void run_chain(int length, Ring& ring, RingPosition& at, char* stages) {
    const int k_tiles = (length + TILE_K - 1) / TILE_K;
    int before = -1;
    if (ALTERNATE) turns.begin(ring);
    ROLLED for (int i = 0; i < k_tiles; ++i, at.next()) {
      wait(&ring.full[at.stage], at.phase);
#ifdef PLAN_GROUPS_ALONG_K
      if (length - i * TILE_K < TILE_K) clear_behind(stages + at.stage * STAGE_BYTES, length - i * TILE_K);
#endif
      const uint32_t stage = shared_address(stages) + at.stage * STAGE_BYTES;
      const uint64_t left = operand_at<BOX_BYTES>(stage + first_block() * BOX_BYTES);
      const uint64_t right = operand_at<BOX_BYTES>(stage + LEFT_BYTES);
      warpgroup_begin();
      UNROLL for (int k = 0; k < TILE_K / UNIT_STEP; ++k) {
        // 16 elements along k are 32 bytes of each line, or 16 lines of 128 bytes.
        const uint64_t left_k = left + k * (LEFT_ACROSS ? 2048 : 32) / 16;
        UNROLL for (int n = 0; n < PRODUCTS; ++n)
          UNROLL for (int h = 0; h < HIGH; ++h)
            warpgroup_step<COLS, LEFT_ACROSS, RIGHT_ACROSS>(
                sum[n][h], left_k + h * BOX_BYTES / 16, right + (n * RIGHT_BYTES + k * (RIGHT_ACROSS ? 2048 : 32)) / 16,
                i > 0 || k > 0);
      }
      warpgroup_close();
      warpgroup_wait<1>();
      if (before >= 0 && thread_index() % 128 == 0) arrive(&ring.empty[before]);
      before = at.stage;
    }
    if (ALTERNATE) turns.pass_on(ring);
    warpgroup_wait<0>();
    if (before >= 0 && thread_index() % 128 == 0) arrive(&ring.empty[before]);
  }

  // f(sum, index): every accumulator, and the index of this thread's among those of a block.
  template <class F> INLINE void each(const F& f) {
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int h = 0; h < HIGH; ++h)
        UNROLL for (int i = 0; i < COLS / 2; ++i)
          f(sum[n][h][i], ((n * HIGH + h) * (COLS / 2) + i) * (128 * CONSUMERS) + thread_index() - 128);
  }

  // As in products.h: chain `n` of a slice joins those before it.
  INLINE void join_chain(E* pending, int64_t n, bool last) {
    constexpr int64_t LEVEL = int64_t(PRODUCTS) * ROWS * COLS;
    const auto add_pending = [&](const E* from) { each([&](E& x, int index) { x = add_sums(from[index], x); }); };
    int64_t rest = n;
    ROLLED for (; rest & 1; rest >>= 1, pending += LEVEL) add_pending(pending);
    if (!last) {
      each([&](E& x, int index) { pending[index] = x; });
      return;
    }
    ROLLED for (rest >>= 1, pending += LEVEL; rest; rest >>= 1, pending += LEVEL)
      if (rest & 1) add_pending(pending);
  }

  template <bool LEFT_ACROSS, bool RIGHT_ACROSS>
  INLINE void run(const Work& work, const Unit& unit, E* pending, Ring& ring, RingPosition& at, char* stages) {
    const Chains chains(work, unit);
    if (chains.count <= 0) each([&](E& x, int) { x = empty_sum(); });
    ROLLED for (int64_t n = 0; n < chains.count; ++n) {
      const int length = int(min(CHAIN, work.k_size - (chains.first + n) * CHAIN));
      run_chain<LEFT_ACROSS, RIGHT_ACROSS>(length, ring, at, stages);
      if (!ALTERNATE && chains.count > 1) join_chain(pending, n, n + 1 == chains.count);
    }
  }

  // at(r, c, sums, count, operands) for the elements of a tile, `count` of EIGHT neighbours in a row at a time. The
  // accumulators go through shared memory, BAND columns of each product at a time, so that the code for elements is there
  // once, and neighbouring threads have neighbouring columns. fetch(r, c, count) gives the operands of the next ones, which
  // are on their way while these are computed. `staging` is this warpgroup's.
  template <class G, class F>
  INLINE void results(const Work& work, const Unit& unit, float* staging, const G& fetch, const F& at) {
    constexpr int BANDS = COLS / BAND, OCTETS = 64 * (BAND / EIGHT);
    const int group = thread_index() / 128 - 1, t = thread_index() % 128;
    ROLLED for (int pass = 0; pass < HIGH * BANDS; ++pass) {
      const int64_t r0 = unit.r0 + (first_block() + pass / BANDS) * 64, c0 = unit.c0 + pass % BANDS * BAND;
      const auto row_of = [&](int e) { return r0 + e / (BAND / EIGHT); };
      const auto col_of = [&](int e) { return c0 + e % (BAND / EIGHT) * EIGHT; };
      const auto count_of = [&](int e) {
        const int64_t left = work.cols - col_of(e);
        return row_of(e) < work.rows && left > 0 ? int(min<int64_t>(EIGHT, left)) : 0;
      };
      auto next = fetch(row_of(t), col_of(t), count_of(t));
      UNROLL for (int q = 0; q < HIGH * BANDS; ++q)
        if (q == pass) put(staging, q / BANDS, q % BANDS);
      warpgroup_barrier(group);
      ROLLED for (int e = t; e < OCTETS; e += 128) {
        const int row = e / (BAND / EIGHT), octet = e % (BAND / EIGHT), count = count_of(e);
        const auto operands = next;
        if (e + 128 < OCTETS) next = fetch(row_of(e + 128), col_of(e + 128), count_of(e + 128));
        if (count == 0) continue;
        E sums[PRODUCTS][EIGHT];
        UNROLL for (int n = 0; n < PRODUCTS; ++n) {
          const int index = (n * (BAND / EIGHT) + octet) ^ (row & 7);
          const float4* const from = reinterpret_cast<const float4*>(staging + row * STAGED + index * EIGHT);
          UNROLL for (int i = 0; i < 2; ++i) {
            const float4 x = from[i];
            sums[n][4 * i] = x.x, sums[n][4 * i + 1] = x.y, sums[n][4 * i + 2] = x.z, sums[n][4 * i + 3] = x.w;
          }
        }
        at(row_of(e), col_of(e), sums, count, operands);
      }
      warpgroup_barrier(group);
    }
  }
  // Octets of a row are swizzled, so that eight rows are in different banks.
  INLINE void put(float* staging, int high, int band) {
    const int t = thread_index() % 128, row = t / 32 * 16 + t % 32 / 4;
    UNROLL for (int n = 0; n < PRODUCTS; ++n)
      UNROLL for (int j = 0; j < BAND / EIGHT; ++j)
        UNROLL for (int h = 0; h < 2; ++h) {
          const int at = (row + 8 * h) * STAGED + ((n * (BAND / EIGHT) + j) ^ (row & 7)) * EIGHT + t % 4 * 2;
          const int i = 4 * (band * (BAND / EIGHT) + j) + 2 * h;
          *reinterpret_cast<float2*>(staging + at) = make_float2(sum[n][high][i], sum[n][high][i + 1]);
        }
  }
  static INLINE void warpgroup_barrier(int group) { asm volatile("bar.sync %0, 128;" :: "r"(2 + group) : "memory"); }
};

// ------------------------------------------------------------------ eight neighbours in a row
// Whether eight neighbours can be read or written at once, 16 bytes at a time: of every row, at columns that eight divides.
template <class P> INLINE bool in_eights(const P* p, int64_t stride) {
  return reinterpret_cast<uint64_t>(p) % 16 == 0 && stride * sizeof(P) % 16 == 0;
}
template <class P> struct alignas(16) Eight {
  P e[EIGHT];
};
template <class P> INLINE Eight<P> fetch_eight(const P* p, int count, bool whole) {
  Eight<P> held;
  if (whole && count == EIGHT)
    UNROLL for (int i = 0; i < int(sizeof held) / 16; ++i)
      reinterpret_cast<uint4*>(&held)[i] = reinterpret_cast<const uint4*>(p)[i];
  else
    UNROLL for (int i = 0; i < EIGHT; ++i) held.e[i] = i < count ? p[i] : P{};
  return held;
}
template <class P> INLINE void decode_eight(S (&x)[EIGHT], const Eight<P>& held) {
  UNROLL for (int i = 0; i < EIGHT; ++i) x[i] = load1(&held.e[i]);
}
// One of eight values in registers, which have no index.
INLINE S one_of(const S (&x)[EIGHT], int index) {
  S found = x[0];
  UNROLL for (int i = 1; i < EIGHT; ++i) found = i == index ? x[i] : found;
  return found;
}
INLINE uint32_t narrow_pair(const f16*, S a, S b) {
  uint32_t w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
INLINE uint32_t narrow_pair(const bf16*, S a, S b) {
  uint32_t w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
template <class P> INLINE void write_eight(P* p, const S (&x)[EIGHT]) {
  uint32_t w[4];
  UNROLL for (int i = 0; i < 4; ++i) w[i] = narrow_pair(p, x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<uint4*>(p) = make_uint4(w[0], w[1], w[2], w[3]);
}
INLINE void write_eight(f32* p, const S (&x)[EIGHT]) {
  UNROLL for (int i = 0; i < 2; ++i)
    reinterpret_cast<float4*>(p)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
// Conversions of pairs have a NaN of their own; where there is one, elements are stored one by one, with the format's.
template <class P> INLINE void store_eight(P* p, const S (&x)[EIGHT], int count, bool whole) {
  bool none = false;
  UNROLL for (int i = 0; i < EIGHT; ++i) none |= x[i] != x[i];
  if (whole && count == EIGHT && !none) write_eight(p, x);
  else
    UNROLL for (int i = 0; i < EIGHT; ++i)
      if (i < count) store1(p + i, x[i]);
}

}  // namespace tokitai
