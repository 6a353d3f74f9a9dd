// Tries a float function at all 2^32 inputs against a double reference and prints one JSON object.
//
// The error is |result - reference| in units of the last place that f32 has at the reference: 2^(e-23), never below
// 2^-149. An infinite result counts as 2^128. What no such number can express is counted apart as a mismatch:
// NaN where the reference is a number or the reverse (the reference is NaN outside the stated domain), and a zero or
// an infinity of the wrong sign.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace prove {

constexpr int SIZE = 1024;  // inputs of a block; one sign and one binade where the stride is 1

struct Worst {
    double error = -1;
    uint32_t input = 0;
    float result = 0;
    double reference = 0;
};

struct Tally {
    std::vector<Worst> worst = std::vector<Worst>(512);  // by sign and exponent of the input
    uint64_t mismatches = 0, tried = 0, correctly_rounded = 0;
    uint32_t first_mismatch = 0;
};

template <class To, class From>
inline To as(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline double clamped(double v) { return v > 0x1p128 ? 0x1p128 : v < -0x1p128 ? -0x1p128 : v; }

inline double error_in_ulp(float result, double reference) {
    const double want = clamped(reference);
    double size = as<double>(as<uint64_t>(want) & 0x7ff0000000000000u);  // the power of two at or below |want|
    size = size < 0x1p-126 ? 0x1p-126 : size > 0x1p127 ? 0x1p127 : size;
    const double per_ulp = as<double>(0x7fe0000000000000u - as<uint64_t>(size)) * 0x1p23;  // 2^23 / size, exactly
    return std::fabs(clamped((double)result) - want) * per_ulp;
}

inline bool mismatch(float y, double want) {
    if (std::isnan(y) || std::isnan(want)) return std::isnan(y) != std::isnan(want);
    const bool telling = y == 0 || want == 0 || std::isinf(y) || std::isinf(want);
    return telling && std::signbit(y) != std::signbit(want);
}

template <class Block, class Reference>
void try_block(Tally& t, uint64_t start, uint32_t stride, float limit, Block block, Reference reference) {
    float x[SIZE], y[SIZE];
    double want[SIZE], error[SIZE];
    for (int i = 0; i < SIZE; ++i) x[i] = as<float>((uint32_t)((start + i) * stride));
    block(x, y);
    for (int i = 0; i < SIZE; ++i) want[i] = std::fabs(x[i]) > limit ? NAN : reference((double)x[i]);
    // In 64-bit integers, so that the loop vectorises; their sign bits say that something was found.
    const double best = t.worst[(uint32_t)(start * stride) >> 23].error;
    const int64_t best_rank = best < 0 ? -1 : as<int64_t>(best);
    int64_t rounded = 0, larger = 0, suspect = 0;
    for (int i = 0; i < SIZE; ++i) {
        error[i] = error_in_ulp(y[i], want[i]);  // NaN where either is
        const int64_t rank = error[i] == error[i] ? as<int64_t>(error[i]) : -1;  // errors order as their bits do
        larger |= best_rank - rank;
        suspect |= rank | (as<int64_t>((double)y[i]) ^ as<int64_t>(want[i]));  // a NaN, or signs that differ
        rounded += error[i] <= 0.5;
    }
    t.tried += SIZE, t.correctly_rounded += rounded;
    if (stride != 1 || larger < 0)
        for (int i = 0; i < SIZE; ++i) {
            const uint32_t bits = as<uint32_t>(x[i]);
            Worst& w = t.worst[bits >> 23];
            if (error[i] > w.error) w = Worst{error[i], bits, y[i], want[i]};
        }
    for (int i = 0; suspect < 0 && i < SIZE; ++i)
        if (mismatch(y[i], want[i]) && t.mismatches++ == 0) t.first_mismatch = as<uint32_t>(x[i]);
}

template <class Block, class Reference>
int run(const char* name, float limit, uint32_t stride, Block block, Reference reference) {
    const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
    std::vector<Tally> tallies(workers);
    std::atomic<uint64_t> next{0};
    const uint64_t count = (1ull << 32) / stride / SIZE * SIZE;  // whole blocks
    std::vector<std::thread> threads;
    for (Tally& t : tallies)
        threads.emplace_back([&, tally = &t] {
            for (uint64_t start; (start = next.fetch_add(SIZE)) < count;)
                try_block(*tally, start, stride, limit, block, reference);
        });
    for (auto& t : threads) t.join();
    Tally all;
    for (const Tally& t : tallies) {
        if (t.mismatches && (!all.mismatches || t.first_mismatch < all.first_mismatch)) all.first_mismatch = t.first_mismatch;
        all.mismatches += t.mismatches, all.tried += t.tried, all.correctly_rounded += t.correctly_rounded;
        for (int b = 0; b < 512; ++b) {  // of equal errors the smaller input: the report does not depend on timing
            const Worst &w = t.worst[b], &best = all.worst[b];
            if (w.error > best.error || (w.error == best.error && w.input < best.input)) all.worst[b] = w;
        }
    }
    std::printf("{\"name\": \"%s\", \"tried\": %llu, \"correctly_rounded\": %llu, \"mismatches\": %llu, ", name,
                (unsigned long long)all.tried, (unsigned long long)all.correctly_rounded,
                (unsigned long long)all.mismatches);
    std::printf("\"first_mismatch\": \"%08x\", \"worst\": [", all.first_mismatch);
    const char* separator = "";
    for (const Worst& w : all.worst) {
        if (w.error < 0) continue;
        std::printf("%s[%.6f, \"%08x\", \"%08x\", \"%a\"]", separator, w.error, w.input, as<uint32_t>(w.result), w.reference);
        separator = ", ";
    }
    std::printf("]}\n");
    return 0;
}

}  // namespace prove
