// Tries a float function at all 2^32 inputs against a double reference and prints one JSON object.
//
// The error is |result - reference| in units of the last place that f32 has at the reference: 2^(e-23), never below
// 2^-149. An infinite result counts as 2^128. What no such number can express is counted apart as a mismatch:
// NaN where the reference is a number or the reverse, a zero of the wrong sign, a result outside the stated domain
// that is not NaN.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace prove {

struct Worst {
    double error = -1;
    uint32_t input = 0;
    float result = 0;
    double reference = 0;
};

struct Tally {
    Worst worst[512];  // by sign and exponent of the input
    uint64_t mismatches = 0, tried = 0, correctly_rounded = 0;
    uint32_t first_mismatch = 0;
};

inline double ulp_of(double reference) {
    uint64_t bits;
    std::memcpy(&bits, &reference, 8);
    int64_t e = (int64_t)(bits >> 52 & 0x7ff) - 1023;
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    bits = (uint64_t)(e - 23 + 1023) << 52;
    double ulp;
    std::memcpy(&ulp, &bits, 8);
    return ulp;
}

inline double error_in_ulp(float result, double reference) {
    reference = std::fmin(std::fmax(reference, -0x1p128), 0x1p128);
    const double value = std::isinf(result) ? std::copysign(0x1p128, (double)result) : (double)result;
    return std::fabs(value - reference) / ulp_of(reference);
}

template <class Reference>
void judge(Tally& t, uint32_t bits, float x, float y, bool inside, Reference reference) {
    const double want = inside ? reference((double)x) : NAN;
    ++t.tried;
    bool bad = std::isnan(want) != std::isnan(y);
    if (!bad && !std::isnan(want)) {
        const bool opposite = std::signbit(y) != std::signbit(want);
        bad = opposite && (y == 0 || want == 0 || std::isinf(y) || std::isinf(want));
        const double error = error_in_ulp(y, want);
        t.correctly_rounded += error <= 0.5;
        Worst& w = t.worst[bits >> 23];
        if (error > w.error) w = Worst{error, bits, y, want};
    }
    if (bad && t.mismatches++ == 0) t.first_mismatch = bits;
}

template <class Block, class Reference>
int run(const char* name, float limit, uint32_t stride, Block block, Reference reference) {
    constexpr uint32_t SIZE = 1024;
    const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
    std::vector<Tally> tallies(workers);
    std::atomic<uint64_t> next{0};
    const uint64_t count = (1ull << 32) / stride;
    auto work = [&](unsigned id) {
        Tally& t = tallies[id];
        float x[SIZE], y[SIZE];
        for (;;) {
            const uint64_t start = next.fetch_add(SIZE);
            if (start >= count) return;
            const uint32_t n = (uint32_t)(count - start < SIZE ? count - start : SIZE);
            for (uint32_t i = 0; i < SIZE; ++i) {
                const uint32_t bits = (uint32_t)((start + (i < n ? i : 0)) * stride);
                std::memcpy(&x[i], &bits, 4);
            }
            block(x, y);
            for (uint32_t i = 0; i < n; ++i)
                judge(t, (uint32_t)((start + i) * stride), x[i], y[i], !(std::fabs(x[i]) > limit), reference);
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < workers; ++i) threads.emplace_back(work, i);
    for (auto& t : threads) t.join();
    uint64_t mismatches = 0, tried = 0, rounded = 0;
    uint32_t first = 0;
    std::vector<Worst> worst(512);
    for (const Tally& t : tallies) {
        if (t.mismatches && (!mismatches || t.first_mismatch < first)) first = t.first_mismatch;
        mismatches += t.mismatches, tried += t.tried, rounded += t.correctly_rounded;
        for (int b = 0; b < 512; ++b)  // equal errors: the smaller input, so that the report does not depend on timing
            if (t.worst[b].error > worst[b].error ||
                (t.worst[b].error == worst[b].error && t.worst[b].input < worst[b].input))
                worst[b] = t.worst[b];
    }
    std::printf("{\"name\": \"%s\", \"tried\": %llu, \"correctly_rounded\": %llu, \"mismatches\": %llu, ", name,
                (unsigned long long)tried, (unsigned long long)rounded, (unsigned long long)mismatches);
    std::printf("\"first_mismatch\": \"%08x\", \"worst\": [", first);
    const char* separator = "";
    for (const Worst& w : worst) {
        if (w.error < 0) continue;
        std::printf("%s[%.6f, \"%08x\", \"%a\", \"%a\"]", separator, w.error, w.input, (double)w.result, w.reference);
        separator = ", ";
    }
    std::printf("]}\n");
    return 0;
}

}  // namespace prove
