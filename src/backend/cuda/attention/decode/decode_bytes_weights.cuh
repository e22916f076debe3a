/* decode_bytes_weights.cuh - of attention_decode_bytes.cu: values of a tile as the left operand; its scores, which are
 * scaled, held to the largest so far, made weights and placed. */
#pragma once

#include "backend/cuda/attention/decode/decode_bytes_queries.cuh"

namespace {

/* The left operand of a tile's values: of every 64 channels this warp's 16, by two times 32 keys. Row g is channel 2g,
 * row g + 8 channel 2g + 1; of 16 keys, column 4t .. 4t + 3 are keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <class S> __device__ void load_values(uint32_t stage, const byte_place &at, uint32_t (&v)[S::M_TILES][2][4]) {
#pragma unroll
    for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t words[4];
            // Piece 4 i + warp of row 32 h + lane; a panel of 128 bytes has eight, and the swizzle is an exclusive or.
            load_matrices_turned(words, ((stage + at.values) ^ (i % 2 * 64)) + i / 2 * TILE * 128 + h * 32 * S::PANEL);
            v[i][h][0] = __byte_perm(words[0], words[1], 0x6420);
            v[i][h][1] = __byte_perm(words[0], words[1], 0x7531);
            v[i][h][2] = __byte_perm(words[2], words[3], 0x6420);
            v[i][h][3] = __byte_perm(words[2], words[3], 0x7531);
        }
}

/* Zeroes values of keys that nobody sees, which may be anything: 0 times it must be 0. */
template <class S>
__device__ void clear_values(int tile, int low, int end, const byte_place &at, uint32_t (&v)[S::M_TILES][2][4]) {
    int first = tile + 2 * at.quarter; // key of bit 0
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t seen = bits_below(end - first - 32 * h) & ~bits_below(low - first - 32 * h);
#pragma unroll
        for (int half = 0; half < 2;
             half++) {     // 16 keys; of them this lane's are bits 0, 1, 8 and 9, which become the signs of bytes
            uint32_t mask; // __byte_perm knows no signs
            asm("prmt.b32 %0, %1, %2, 0xd9c8;" : "=r"(mask) : "r"(seen >> 16 * half << 7), "r"(seen >> 16 * half << 6));
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                v[i][h][2 * half] &= mask;
                v[i][h][2 * half + 1] &= mask;
            }
        }
    }
}

/* s = K q^T of this thread's keys and columns, times the scales of keys and queries, scale and log2 e, through the
 * softcap. */
template <class S>
__device__ void finish_scores(const arguments &p, const float (&d)[S::QUERY_ROWS / 2], const float (&by)[S::N_TILES][2],
                              float key0, float key1, float (&s)[S::N_TILES][4]) {
    constexpr float LOG2_E = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x =
                d[4 * n + k] + 0.0625f * (d[4 * (S::N_TILES + n) + k] + 0.0625f * d[4 * (2 * S::N_TILES + n) + k]);
            s[n][k] = x * ((k < 2 ? key0 : key1) * by[n][k % 2]);
        }
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x); s has log2 e in it
        float cap = p.a.softcap * LOG2_E, per_cap = p.per_softcap;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(s[n][k] * per_cap)));
    }
}

/* P of this thread's keys and columns, times by0 and by1 of its keys, as terms in the right operand; l: the sums with
 * it. */
template <class S>
__device__ void place_weights(uint32_t to, const float (&s)[S::N_TILES][4], const byte_sums<S> &o, float by0, float by1,
                              const byte_place &at, float (&l)[S::N_TILES][2]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = exp2_fast(s[n][k] - o.base[n][k % 2]);
        l[n][0] += x[0] + x[2];
        l[n][1] += x[1] + x[3];
        __half2 first = __floats2half2_rn(x[0] * by0, x[1] * by0), second = __floats2half2_rn(x[2] * by1, x[3] * by1);
#pragma unroll
        for (int term = 0; term < S::P_TERMS; term++) { // two lanes swap: four keys of one column each
            uint32_t mine = take_term(first, second), other = __shfl_xor_sync(0xffffffffu, mine, 4);
            store_shared(to + at.weights + (term * S::COLUMNS + 8 * n) * TILE, __byte_perm(mine, other, at.odd));
        }
    }
}

/* Raises m to the largest score yet and the reference to the largest scale of values, over the group; what was summed
 * shrinks. */
template <class S>
__device__ void raise_largest(const byte_memory<S> &m, const float (&tops)[S::N_TILES][2], float top_scale,
                              const byte_place &at, byte_sums<S> &o) {
    uint32_t scale = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(top_scale, 1e-30f), 1e30f)));
    float *largest = m.largest;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float most = largest_of_keys(tops[n][k]);
            if (at.group == 0)
                largest[4 * (8 * n + 2 * at.quarter + k) + at.warp] = most;
        }
    if (at.lane == 0)
        largest[4 * S::COLUMNS + at.warp] = __uint_as_float(scale);
    threads_sync(1, S::COMPUTE); // every warp's largest are there
    float4 scales = *reinterpret_cast<const float4 *>(largest + 4 * S::COLUMNS);
    float highest = fmaxf(fmaxf(scales.x, scales.y), fmaxf(scales.z, scales.w));
    float reference = fmaxf(o.reference, __uint_as_float((__float_as_uint(highest) + 0x7fffffu) & 0x7f800000u));
    float per = __uint_as_float((254u << 23) - __float_as_uint(reference)), fewer = o.reference * per;
    o.reference = reference;
    o.per_reference = per * P_UNIT;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 of = *reinterpret_cast<const float4 *>(largest + 4 * (8 * n + 2 * at.quarter + k));
            float most = fmaxf(fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w)), o.m[n][k]);
            by[k] = most == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - most);
            o.m[n][k] = most;
            o.base[n][k] = most == -INFINITY ? 0.0f : most;
            o.l[n][k] *= by[k];
        }
        o.shrink(n, by[0] * fewer, by[1] * fewer);
    }
}

/* Whether a score passes what P can hold, or a scale of values the reference. */
template <class S> __device__ bool passes(const float (&tops)[S::N_TILES][2], float top_scale, const byte_sums<S> &o) {
    bool passed = top_scale > o.reference;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            passed = passed || tops[n][k] > o.m[n][k] + P_SLACK;
    return passed;
}

} // namespace
