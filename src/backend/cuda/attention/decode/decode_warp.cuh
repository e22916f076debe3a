/* decode_warp.cuh - of attention_decode_warps.cu: sizes, and what a warp does with a stage.
 *
 * Fragments are of mma.m16n8k16 (mma.cuh), with g = lane / 4 and t = lane % 4:
 *     scores  s[i][2h + k]: key 16i + 8h + g of the stage, column 2t + k
 *     sums    o[c][2h + k]: channel 16c + 2g + h, column 2t + k
 * Of sixteen channels of a key a lane has four in a row: columns 2t, 2t + 1, 2t + 8, 2t + 9 of the left operand, whose
 * order is free as long as queries have the same. Of values ldmatrix turns pairs of channels, and a byte permute makes
 * pairs of keys of them. P, turned by movmatrix, is the right operand of values. */
#pragma once

#include "backend/cuda/attention/decode/decode_warp_shape.cuh"

namespace {

/* What lies in a stage, in registers: of keys a word has four channels of a key, of values two channels of two keys. */
template <class S> struct warp_stage {
    uint32_t keys[S::M_TILES][S::PIECES / 2][4], values[S::M_TILES][S::PIECES / 2][4];
    float key_scale[2 * S::M_TILES], value_scale[2 * S::M_TILES]; // of keys 8j + g
    float top_scale;                                              // of one value

    /* Keys last: when they are there all is. */
    __device__ void load(uint32_t stage, const warp_place &at) {
        uint32_t rows = stage + at.rows, scales = stage + S::SCALES + at.group * 4;
        top_scale = load_shared_float(stage + S::SCALES + (S::KEYS + at.lane % S::KEYS) * 4);
#pragma unroll
        for (int j = 0; j < 2 * S::M_TILES; j++) {
            key_scale[j] = load_shared_float(scales + j * 32);
            value_scale[j] = load_shared_float(scales + S::KEYS * 4 + j * 32);
        }
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int c = 0; c < S::PIECES / 2; c++)
                load_matrices_turned(values[i][c], (rows ^ (c * 32)) + S::SIDE + i * 16 * 128);
#pragma unroll
        for (int c = 0; c < S::PIECES / 2; c++)
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++)
                load_matrices(keys[i][c], (rows ^ (c * 32)) + i * 16 * 128);
    }
    /* s = K q^T. */
    __device__ void scores(const uint2 (&q)[S::PIECES], float (&s)[S::M_TILES][4]) const {
        float odd[S::M_TILES][4];
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[i][k] = odd[i][k] = 0;
#pragma unroll
        for (int c = 0; c < S::PIECES / 2; c++)
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                uint32_t a[4];
                e4m3_to_pairs(keys[i][c][0], a[0], a[2]);
                e4m3_to_pairs(keys[i][c][1], a[1], a[3]);
                multiply_add<false>(s[i], a, q[2 * c].x, q[2 * c].y);
                e4m3_to_pairs(keys[i][c][2], a[0], a[2]);
                e4m3_to_pairs(keys[i][c][3], a[1], a[3]);
                multiply_add<false>(odd[i], a, q[2 * c + 1].x, q[2 * c + 1].y);
            }
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[i][k] += odd[i][k];
    }
    /* Values and their scales that nobody sees become 0, as 0 times them must be 0. Bit r of seen: key r of the stage
     * is seen. */
    __device__ void clear_values(uint32_t seen, const warp_place &at) {
        if (!(seen >> at.lane % S::KEYS & 1))
            top_scale = 0;
#pragma unroll
        for (int j = 0; j < 2 * S::M_TILES; j++) {
            uint32_t mask = (seen >> (8 * j + 2 * at.quarter) & 1 ? 0xffffu : 0) |
                            (seen >> (8 * j + 2 * at.quarter) & 2 ? 0xffff0000u : 0);
            value_scale[j] = seen >> (8 * j + at.group) & 1 ? value_scale[j] : 0.0f;
#pragma unroll
            for (int c = 0; c < S::PIECES / 2; c++) {
                values[j / 2][c][j % 2] &= mask;
                values[j / 2][c][j % 2 + 2] &= mask;
            }
        }
    }
    /* o += V^T P^T; weights: P of eight keys each as the right operand. */
    __device__ void add_values(const uint32_t (&weights)[2 * S::M_TILES], warp_sums &o) const {
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int c = 0; c < S::PIECES; c++) {
                uint32_t a[4];
                e4m3_to_pairs(__byte_perm(values[i][c / 2][c % 2 * 2], 0, 0x3120), a[0], a[1]);
                e4m3_to_pairs(__byte_perm(values[i][c / 2][c % 2 * 2 + 1], 0, 0x3120), a[2], a[3]);
                multiply_add<false>(o.o[c], a, weights[2 * i], weights[2 * i + 1]);
            }
    }
};

/* Raises the base by the largest of x (scores less the base), and the reference to the largest scale; what was summed
 * shrinks. */
template <class S>
__device__ void warp_raise(float (&x)[2 * S::M_TILES][2], float top_scale, bool is_first, warp_sums &o) {
    float by[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float most = is_first ? -INFINITY : 0.0f;
#pragma unroll
        for (int j = 0; j < 2 * S::M_TILES; j++)
            most = fmaxf(most, x[j][k]);
        most = largest_of_keys(most);
        by[k] = is_first ? 1.0f : exp2_fast(-most);
#pragma unroll
        for (int j = 0; j < 2 * S::M_TILES; j++)
            x[j][k] -= most;
        o.base[k] += most;
        o.l[k] *= by[k];
    }
    uint32_t scale = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(top_scale, 1e-30f), 1e30f)));
    float reference = fmaxf(o.reference, __uint_as_float((scale + 0x7fffffu) & 0x7f800000u));
    float fewer = o.reference * __uint_as_float((254u << 23) - __float_as_uint(reference));
    o.reference = reference;
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o.o[c][k] *= by[k % 2] * fewer;
}

/* What a warp knows of a pair. */
struct warp_pair {
    int low, end; // keys that are seen
    float by;     // what scores are multiplied by beside the scales of keys, with log2 e
};

/* P of a stage whose first key is `key`, and the sums with it. */
template <class S>
__device__ void warp_weights(const arguments &p, int key, const warp_pair &c, const warp_place &at,
                             const float (&s)[S::M_TILES][4], bool is_first, warp_stage<S> &d, warp_sums &o,
                             uint32_t (&weights)[2 * S::M_TILES]) {
    constexpr int EIGHTS = 2 * S::M_TILES;
    constexpr float LOG2_E = 1.4426950408889634f;
    constexpr uint32_t ALL = S::KEYS == 32 ? 0xffffffffu : (1u << S::KEYS % 32) - 1;
    float x[EIGHTS][2];
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
        float by = d.key_scale[j] * c.by;
#pragma unroll
        for (int k = 0; k < 2; k++)
            x[j][k] = fmaf(s[j / 2][j % 2 * 2 + k], by, -o.base[k]);
    }
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x); x has log2 e in it
        float cap = p.a.softcap * LOG2_E, per_cap = p.per_softcap;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                x[j][k] =
                    cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast((x[j][k] + o.base[k]) * per_cap))) - o.base[k];
    }
    uint32_t seen = bits_below(c.end - key) & ~bits_below(c.low - key);
    if ((seen & ALL) != ALL) {
        d.clear_values(seen, at);
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            if (!(seen >> (8 * j + at.group) & 1))
                x[j][0] = x[j][1] = -INFINITY;
    }
    float l[2];
    for (bool raise = is_first;; raise = true) {
        if (raise)
            warp_raise<S>(x, d.top_scale, is_first, o);
        float unit = __uint_as_float((254u << 23) - __float_as_uint(o.reference)) * WARP_UNIT;
        l[0] = l[1] = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            float e0 = exp2_fast(x[j][0]), e1 = exp2_fast(x[j][1]), by = d.value_scale[j] * unit;
            l[0] += e0;
            l[1] += e1;
            weights[j] = to_pair<false>(e0 * by, e1 * by);
        }
        if (raise || !__any_sync(0xffffffffu, l[0] > MOST_P || l[1] > MOST_P || d.top_scale > o.reference))
            break;
    }
    o.l[0] += l[0];
    o.l[1] += l[1];
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
        weights[j] = turn_matrix(weights[j]);
}

} // namespace
