/* gemm_w4_few_sums.cuh - of gemm_w4_few.cu: a warp's products, and what becomes of sums. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4_few_parts.cuh"
#include "backend/cuda/linear/w4/quads_gguf.cuh"

/* A warp's sums of a segment of a tile by eight tokens. Two of each, by turns, so that neither waits for the other. */
template <quad_kind KIND, int GROUP> struct w4_few_products {
    static constexpr bool APART = false;
    static constexpr float UNIT = 1;
    float of[2][4];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < 4; i++)
            of[0][i] = of[1][i] = 0;
    }
    /* block: of W, in shared memory. */
    __device__ __forceinline__ void add(const w4_few_args &a, const w4_few_x &x, uint32_t block, int lane, int piece) {
        quads_words<KIND> words;
        words.load(block + lane * 16);
        quads_fragments<KIND, GROUP, false> scales;
        scales.load(block, lane, a.has_zeros);
        uint32_t m[4][4];
        x.load(piece, m);
#pragma unroll
        for (int step = 0; step < QUADS_STEPS; step++) {
            uint32_t f[4];
            scales.fragment(step, words.of, f);
            multiply_add<false>(of[step % 2], f, m[step / 2][step % 2 * 2], m[step / 2][step % 2 * 2 + 1]);
        }
    }
    __device__ __forceinline__ float4 sums() const {
        return make_float4(of[0][0] + of[1][0], of[0][1] + of[1][1], of[0][2] + of[1][2], of[0][3] + of[1][3]);
    }
};

/* Codes as they are, the least bits of a half: q 2^-24, or q 2^-20, which are sums of their own; of a group's sums
 * z times those of x are taken off, which are products with ones. */
template <int GROUP> struct w4_few_products<QUADS_INT4, GROUP> {
    static constexpr bool APART = true;
    static constexpr float UNIT = 0x1p24f;
    static constexpr int GROUPS = QUADS_COLUMNS / GROUP;
    float of[4];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < 4; i++)
            of[i] = 0;
    }
    static __device__ __forceinline__ void fragments(uint32_t w0, uint32_t w1, uint32_t mask, uint32_t (&f)[4]) {
        f[0] = w0 & mask, f[1] = w0 >> 8 & mask, f[2] = w1 & mask, f[3] = w1 >> 8 & mask;
    }
    static __device__ __forceinline__ float zero_of(uint32_t zeros, int byte) { // as a float's least bits
        return 0x1p-1f - __uint_as_float(__byte_perm(zeros, 0x3f000000u, 0x7440 + byte));
    }
    __device__ __forceinline__ void add(const w4_few_args &a, const w4_few_x &x, uint32_t block, int lane, int piece) {
        quads_words<QUADS_INT4> words;
        words.load(block + lane * 16);
        quads_fragments<QUADS_INT4, GROUP> scales; // of which the numbers are wanted alone
        scales.load(block, lane, a.has_zeros);
        uint32_t m[4][4];
        x.load(piece, m);
#pragma unroll
        for (int c = 0; c < GROUPS; c++) {
            const uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
            float low[4] = {}, high[4] = {}, low_x[4] = {}, high_x[4] = {};
#pragma unroll
            for (int j = c * (4 / GROUPS); j < (c + 1) * (4 / GROUPS); j++) {
                uint32_t f[4];
                fragments(words.of[2 * j], words.of[2 * j + 1], 0x000f000fu, f);
                multiply_add<false>(low, f, m[j][0], m[j][1]);
                multiply_add<false>(low_x, ones, m[j][0], m[j][1]);
                fragments(words.of[2 * j], words.of[2 * j + 1], 0x00f000f0u, f);
                multiply_add<false>(high, f, m[j][2], m[j][3]);
                multiply_add<false>(high_x, ones, m[j][2], m[j][3]);
            }
            float2 by = __half22float2(reinterpret_cast<__half2 &>(scales.scales[c]));
            uint32_t zeros = scales.zeros[c / 2];
            float z[2] = {zero_of(zeros, c % 2 * 2), zero_of(zeros, c % 2 * 2 + 1)};
            float of_x[2] = {low_x[0] + high_x[0], low_x[1] + high_x[1]};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = fmaf(z[i / 2], of_x[i % 2], fmaf(high[i], 0x1p-4f, low[i]));
                of[i] = fmaf(v, i < 2 ? by.x : by.y, of[i]);
            }
        }
    }
    __device__ __forceinline__ float4 sums() const { return make_float4(of[0], of[1], of[2], of[3]); }
};

/* A segment's sums go to the block that finishes the tile, at a place of their own. */
static __device__ __forceinline__ void w4_few_leave(const w4_few_args &a, const w4_few_place &p, int task,
                                                    uint32_t all_sums, float4 v) {
    int tile = task >> p.log2_mine, segment = p.first_segment + (task & ((1 << p.log2_mine) - 1));
    int split = 1 << a.log2_split, g = p.lane / 4, pair = p.lane % 4;
    uint32_t at = p.sums + (((tile >> a.log2_split) << a.log2_segments) + segment) * p.sum_bytes(a) +
                  ((g << a.log2_pairs) + pair) * (int)sizeof(float4);
    if (pair >> a.log2_pairs)
        return;
    if (split == 1)
        store_shared_16(at, v);
    else {
        int to = tile & (split - 1);
        store_at_rank(address_at_rank(at, to), v, address_at_rank(all_sums, to));
    }
}

/* Sums of segments are added in the order of columns, whoever made them. A thread has a unit of a token. */
static __device__ __forceinline__ void w4_few_finish(const w4_few_args &a, const w4_few_place &p) {
    int log2_units = a.gated ? 3 : 4, log2_items = log2_units + 1 + a.log2_pairs; // of a tile
    int segment_bytes = p.sum_bytes(a);
#pragma unroll 1
    for (int i = threadIdx.x; i < p.n_owned(a) << log2_items; i += blockDim.x) {
        int owned = i >> log2_items, token = (i & ((1 << log2_items) - 1)) >> log2_units,
            r = i & ((1 << log2_units) - 1);
        int unit = ((p.first_tile + (owned << a.log2_split) + p.rank) << log2_units) + r;
        if (token >= a.n_tokens || unit >= a.n_units)
            continue;
        uint32_t at = p.sums + (owned << a.log2_segments) * segment_bytes +
                      ((r % 8 << a.log2_pairs) + token / 2) * (int)sizeof(float4) + r / 8 * 8 + token % 2 * 4;
        float sum = 0, sum_8 = 0; // sum_8: of an up
#pragma unroll 4
        for (int s = 0; s < 1 << a.log2_segments; s++, at += segment_bytes) {
            sum += __uint_as_float(load_shared(at));
            if (a.gated)
                sum_8 += __uint_as_float(load_shared(at + 8));
        }
        const float *scales = p.scales + owned * QUADS_ROWS + r, *biases = p.biases + owned * QUADS_ROWS + r;
        float y = fmaf(sum, scales[0], a.bias ? biases[0] : 0.0f);
        if (a.gated)
            y = w4_gated(a.ending, y, fmaf(sum_8, scales[8], a.bias ? biases[8] : 0.0f));
        store(a.y, token * a.y_stride + unit, a.y_element, y);
    }
}

/* Of the rows of tiles that the block finishes. */
static __device__ __forceinline__ void w4_few_bring_scales(const w4_few_args &a, const w4_few_place &p) {
#pragma unroll 1
    for (int i = threadIdx.x; i < p.n_owned(a) * QUADS_ROWS; i += blockDim.x) {
        int tile = p.first_tile + (i / QUADS_ROWS << a.log2_split) + p.rank, r = i % QUADS_ROWS;
        int unit = a.gated ? tile * 8 + r % 8 : tile * 16 + r, row = a.gated && r >= 8 ? unit + a.n_units : unit;
        p.scales[i] = unit < a.n_units ? a.scale[row] * a.unit : 0;
        if (a.bias)
            p.biases[i] = unit < a.n_units ? a.bias[row] : 0;
    }
}
