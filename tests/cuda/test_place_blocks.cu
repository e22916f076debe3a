/* test_place_blocks.cu - experts' matrices of four bits as they come into blocks (weights/place_blocks.cu).
 *
 * Codes and scales drawn, as a checkpoint stores them: every number is found where blocks.h says, exactly, wherever the
 * row's scales are within 2^23 of each other, however small or large they are; numbers that are of the format come back
 * exactly when they are quantised; others are the nearest; what is lost or not a number is counted. */
#include "backend/cuda/value.h"
#include "backend/cuda/weights/blocks.h"
#include "backend/cuda/weights/place_blocks.cu"

#include "products.cuh"

#include <time.h>
#include <vector>

static const double SIZES[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
static double e2m1(uint32_t code) { return (code & 8 ? -1 : 1) * SIZES[code & 7]; }

struct matrix {
    dblocks rows;
    int64_t n_experts, in, out, n_groups;
    std::vector<uint8_t> codes, scales; // as stored
    std::vector<double> is;
};

/* spread: by how much the scales of a row differ at the most, as powers of two. */
static matrix draw(int64_t n_experts, dblocks rows, int64_t in, int middle, int spread, uint64_t &seed) {
    matrix m = {rows, n_experts, in, n_experts * rows.units * (rows.gated ? 2 : 1), in / 32};
    m.codes.resize(m.out * in / 2), m.scales.resize(m.out * m.n_groups), m.is.resize(m.out * in);
    for (uint8_t &c : m.codes)
        c = (uint8_t)hash(seed++);
    for (uint8_t &s : m.scales)
        s = (uint8_t)(middle + (int)(hash(seed++) % (unsigned)(spread + 1)));
    for (int64_t i = 0; i < m.out * in; i++) {
        uint32_t code = i % 2 ? m.codes[i / 2] >> 4 : m.codes[i / 2] & 15;
        m.is[i] = ldexp(e2m1(code), m.scales[i / in * m.n_groups + i % in / 32] - 127);
    }
    return m;
}

struct placed_matrix {
    std::vector<uint8_t> at;
    std::vector<float> scale;
    dplaced counts;
};

static void *sent(const void *from, size_t n) {
    void *at;
    MUST(cudaMalloc(&at, n));
    MUST(cudaMemcpy(at, from, n, cudaMemcpyHostToDevice));
    return at;
}

/* In two pieces, as they come from the host. */
static placed_matrix place(const matrix &m, bool as_numbers) {
    std::vector<float> numbers(m.is.begin(), m.is.end());
    void *codes = as_numbers ? sent(numbers.data(), numbers.size() * 4) : sent(m.codes.data(), m.codes.size());
    uint8_t *scales = (uint8_t *)sent(m.scales.data(), m.scales.size());
    size_t n = (size_t)blocks_bytes(ELEMENT_MXFP4, m.out, m.in, m.rows);
    placed_matrix p = {std::vector<uint8_t>(n, 0xee), std::vector<float>(m.out), {}};
    void *to = sent(p.at.data(), n);
    float *scale = (float *)sent(p.scale.data(), m.out * 4);
    dplaced *counts = (dplaced *)sent(&p.counts, sizeof p.counts);
    int64_t cut = m.out > 2 ? m.out / 3 : m.out;
    for (int64_t first : {(int64_t)0, cut}) {
        dstored x = {(char *)codes + first * m.in * (as_numbers ? 8 : 1) / 2,
                     m.in,
                     as_numbers ? ELEMENT_F32 : ELEMENT_MXFP4,
                     nullptr,
                     as_numbers ? 0 : m.n_groups,
                     32,
                     as_numbers ? nullptr : scales + first * m.n_groups};
        int64_t n_rows = first ? m.out - cut : cut;
        if (n_rows > 0 && first < m.out)
            launch_place_blocks(nullptr, &x, n_rows, {to, m.out, m.in, ELEMENT_MXFP4, scale}, m.rows, first, counts);
    }
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(p.at.data(), to, n, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(p.scale.data(), scale, m.out * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(&p.counts, counts, sizeof p.counts, cudaMemcpyDeviceToHost));
    for (void *at : {codes, (void *)scales, to, (void *)scale, (void *)counts})
        cudaFree(at);
    return p;
}

/* By the words of blocks.h and nibbles.cuh. */
static double found(const matrix &m, const placed_matrix &p, int64_t row, int64_t col) {
    static const int sign[8] = {15, 31, 7, 23, 8, 24, 0, 16}, others[8] = {9, 25, 1, 17, 12, 28, 4, 20};
    int64_t of_expert = m.out / m.n_experts, i = row % of_expert, unit = i % m.rows.units,
            tile = unit / (m.rows.gated ? 8 : 16), n_blocks = (m.in + 63) / 64;
    int64_t in_tile = m.rows.gated ? unit % 8 + i / m.rows.units * 8 : unit % 16, r = in_tile % 8, half = in_tile / 8;
    const uint8_t *block = &p.at[((row / of_expert * blocks_tiles(m.rows) + tile) * n_blocks + col / 64) * (512 + 32)];
    int64_t q = col % 64 / 16;
    uint32_t word;
    memcpy(&word, block + (4 * r + q) * 16 + half * 8 + col % 16 / 8 * 4, 4);
    uint32_t code = (word >> sign[col % 8] & 1) << 3 | (word >> others[col % 8] & 7);
    int b = block[512 + 2 * (2 * r + q / 2) + half];
    return b ? ldexp(e2m1(code), b - 29) * p.scale[row] : 0;
}

static bool is_right(const matrix &m, const placed_matrix &p, double off, const char *what) {
    int n_wrong = 0;
    unsigned long long present = 0, lost = 0;
    for (int64_t i = 0; i < m.out * m.in; i++) {
        double got = found(m, p, i / m.in, i % m.in);
        n_wrong += !(fabs(got - m.is[i]) <= off * fabs(m.is[i]));
        present += m.is[i] != 0, lost += m.is[i] != 0 && got == 0;
    }
    bool fine = !n_wrong && p.counts.n_present == present && p.counts.n_lost == lost && p.counts.n_unreal == 0 &&
                (off > 0 || p.counts.squared_error == 0);
    if (!fine)
        printf("%s: %lld of %lld x %lld, %s: %d wrong, counted %llu present for %llu, %llu lost for %llu, error %g\n",
               what, (long long)m.n_experts, (long long)m.rows.units, (long long)m.in, m.rows.gated ? "gated" : "plain",
               n_wrong, p.counts.n_present, present, p.counts.n_lost, lost, p.counts.squared_error);
    return fine;
}

/* Of numbers of no format each is as near as any code of a scale that leaves none beyond 6. */
static bool numbers_are_near(uint64_t &seed) {
    matrix m = draw(2, {24, true}, 96, 120, 0, seed);
    for (double &v : m.is)
        v = (float)((int)(hash(seed++) % 2001) - 1000) * 0.001f;
    placed_matrix p = place(m, true);
    int n_wrong = 0;
    for (int64_t g = 0; g < m.out * m.n_groups; g++) {
        double most = 0;
        for (int c = 0; c < 32; c++)
            most = fmax(most, fabs(m.is[g * 32 + c]));
        double unit = exp2(ceil(log2(most / 6) - 1e-12));
        for (int c = 0; c < 32; c++) {
            double v = m.is[g * 32 + c], least = INFINITY;
            for (double size : SIZES)
                least = fmin(least, fabs(fabs(v) - size * unit));
            n_wrong += !(fabs(found(m, p, g / m.n_groups, g % m.n_groups * 32 + c) - v) <= least * 1.0001 + 1e-9);
        }
    }
    if (n_wrong)
        printf("%d numbers are not the nearest\n", n_wrong);
    return n_wrong == 0 && p.counts.squared_error > 0;
}

/* A scale of 255 is no number. */
static bool what_is_no_number_is_counted(uint64_t &seed) {
    matrix m = draw(1, {16, false}, 64, 120, 3, seed);
    m.scales[5] = 255;
    placed_matrix p = place(m, false);
    if (p.counts.n_unreal != 32)
        printf("%llu values are no numbers, 32 are not\n", p.counts.n_unreal);
    return p.counts.n_unreal == 32;
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    int n_bad = 0;
    static const int middles[] = {0, 5, 60, 118, 150, 225};
    for (int t = 0; t < 24; t++) {
        dblocks rows = {1 + (int)(hash(seed++) % 40), t % 2 != 0};
        int64_t in = 32 * (1 + (int)(hash(seed++) % 12)), n_experts = 1 + (int)(hash(seed++) % 3);
        matrix m = draw(n_experts, rows, in, middles[t % 6], t % 5 ? t % 5 * 5 : 22, seed);
        n_bad += !is_right(m, place(m, false), 0, "as stored");
        if (middles[t % 6] > 30 && middles[t % 6] < 200) // floats hold these
            n_bad += !is_right(m, place(m, true), 0, "as numbers");
    }
    n_bad += !numbers_are_near(seed);
    n_bad += !what_is_no_number_is_counted(seed);
    printf(n_bad ? "%d CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
