/* decode_tile.cuh - of attention_decode.cu: what a computing warp does with a tile, 16 of its keys and their values:
 * the scores (decode_scores.cuh) become weights, and values are added by them. */
#pragma once

#include "backend/cuda/attention/decode/decode_scores.cuh"

namespace {

/* Over the eight lanes that hold the other keys of the same columns. */
__device__ float largest_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ float sum_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <class S> __device__ void shrink(sums<S> &o, int n, float by0, float by1) {
#pragma unroll
    for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o.o[i][n][k] *= k % 2 ? by1 : by0;
}

/* Raises m where a score passed it by more than 8, and what was summed shrinks. */
template <class S> __device__ void raise(sums<S> &o, const float (&s)[S::N_TILES][4]) {
    constexpr float SLACK = 8;
    bool passed = false;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        passed = passed || fmaxf(s[n][0], s[n][2]) > o.m[n][0] + SLACK || fmaxf(s[n][1], s[n][3]) > o.m[n][1] + SLACK;
    if (!__any_sync(0xffffffffu, passed))
        return;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float m = fmaxf(o.m[n][k], largest_of_keys(fmaxf(s[n][k], s[n][k + 2])));
            by[k] = m == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - m);
            o.m[n][k] = m;
            o.l[n][k] *= by[k];
        }
        shrink<S>(o, n, by[0], by[1]);
    }
}

/* P of two keys and this lane's columns into s. */
template <class S> __device__ void exponentials(sums<S> &o, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float m = o.m[n][k % 2];
            s[n][k] = exp2_fast(s[n][k] - (m == -INFINITY ? 0.0f : m));
            o.l[n][k % 2] += s[n][k];
        }
}

/* P times the scales of the values' rows, divided by the largest scale yet. */
template <class S> __device__ void scale_values(sums<S> &o, float scale0, float scale1, float (&s)[S::N_TILES][4]) {
    float most = fmaxf(scale0, scale1);
    if (__any_sync(0xffffffffu, most > o.reference)) {
        most = fmaxf(o.reference, largest_of_keys(most));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            shrink<S>(o, n, __fdividef(o.reference, most), __fdividef(o.reference, most));
        o.reference = most;
        o.per_reference = 1.0f / most;
    }
    float by0 = scale0 * o.per_reference, by1 = scale1 * o.per_reference;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] *= k < 2 ? by0 : by1;
}

/* o += V^T P^T of the warp's 16 keys and its channels. P in bfloat16 would be off by 1.6e-3, so it is the sum of two:
 * what that costs hides behind the loads of values. */
template <class S>
__device__ void add_values(uint32_t stage, const place &at, const float (&s)[S::N_TILES][4], sums<S> &o) {
    uint2 b[S::N_TILES], rest[S::BF16 ? S::N_TILES : 1];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        b[n] = {to_pair<S::BF16>(s[n][0], s[n][1]), to_pair<S::BF16>(s[n][2], s[n][3])};
        if constexpr (S::BF16)
            rest[n] = {turn_matrix(rest_of_pair(s[n][0], s[n][1], b[n].x)),
                       turn_matrix(rest_of_pair(s[n][2], s[n][3], b[n].y))};
        b[n] = {turn_matrix(b[n].x), turn_matrix(b[n].y)};
    }
    int first = at.channel_warp * S::CHANNELS / (S::BYTES ? 16 : 8); // piece
    if constexpr (S::BYTES) {
        int row = 16 * at.key_warp + at.lane % 16,
            half = at.lane / 16; // keys 0-7 and 8-15 of a piece, then of the next
#pragma unroll
        for (int i = 0; i < S::M_TILES; i += 2) {
            uint32_t words[4];
            load_matrices_turned(words, piece<S>(stage, row, first + i + half));
#pragma unroll
            for (int j = 0; j < 2;
                 j++) { // rows g and g + 8 of the left operand are channels 2g and 2g + 1 of the piece
                uint32_t a[4];
                int8_to_pairs(__byte_perm(words[2 * j], 0, 0x3120), a[0], a[1]);
                int8_to_pairs(__byte_perm(words[2 * j + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    multiply_add<false>(o.o[i + j][n], a, b[n].x, b[n].y);
            }
        }
    } else {
        int row = 16 * at.key_warp + at.lane % 8 + at.lane / 16 * 8, half = at.lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++) {
            uint32_t a[4];
            load_matrices_turned(a, piece<S>(stage, row, first + 2 * i + half));
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++) {
                if constexpr (S::BF16)
                    multiply_add<true>(o.o[i][n], a, rest[n].x, rest[n].y);
                multiply_add<S::BF16>(o.o[i][n], a, b[n].x, b[n].y);
            }
        }
    }
}

/* Zeroes rows of values that nobody sees, which may be anything: 0 times it must be 0. A warp clears what it reads
 * itself. */
template <class S>
__device__ void clear_rows(const memory<S> &m, int stage, int tile, int low, int end, const place &at) {
    constexpr int PIECES = S::CHANNELS * (S::BYTES ? 1 : 2) / 16;
    char *base = m.stages + stage * S::STAGE;
    for (int r = 0; r < 16; r++) {
        int row = 16 * at.key_warp + r, key = tile + row;
        if (key >= low && key < end)
            continue;
        for (int c = at.lane; c < PIECES; c += 32)
            *reinterpret_cast<uint4 *>(base + piece<S>(0, row, at.channel_warp * PIECES + c)) = {0, 0, 0, 0};
    }
    fence_bulk();
    __syncwarp();
}

template <class S>
__device__ void take_tile(const arguments &p, const memory<S> &m, const task<S> &t, int tile, const queries<S> &q,
                          const place &at, ring_place &r, sums<S> &o) {
    int key = tile + 16 * at.key_warp, end = t.part.end;
    bool inside = tile >= t.inside_from && tile + TILE <= t.inside_to, seen = key < end && key + 16 > t.low;
    float s[S::N_TILES][4], key_scale[2] = {p.a.scale, p.a.scale};
    barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if constexpr (S::BYTES) {
            const float *scale =
                reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::SIDE) + 16 * at.key_warp;
            key_scale[0] *= scale[at.group];
            key_scale[1] *= scale[at.group + 8];
        }
        scores<S>(m, m.ring + r.stage * S::STAGE, q, at, s);
    }
    if constexpr (S::SHARED_KV) {
        if (tile < t.low || tile + TILE > end)
            threads_sync(1, S::COMPUTE); // all have read the keys, of which some are cleared as values
    } else {
        __syncwarp();
        barrier_arrive_warp(m.empty + r.stage * 8, at.lane);
        r.next(S::N_STAGES);
    }
    if (seen) {
        scale_scores<S>(p, key_scale[0], key_scale[1], s);
        if (!inside)
            hide<S>(t, key + at.group, at, s);
        raise<S>(o, s);
        exponentials<S>(o, s);
    }
    if (!S::SHARED_KV)
        barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if (key < t.low || key + 16 > end)
            clear_rows<S>(m, r.stage, tile, t.low, end, at);
        if constexpr (S::BYTES) {
            const float *scale =
                reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::SIDE) + 16 * at.key_warp;
            int j = key + at.group;
            scale_values<S>(o, j >= t.low && j < end ? scale[at.group] : 0.0f,
                            j + 8 >= t.low && j + 8 < end ? scale[at.group + 8] : 0.0f, s);
        }
        add_values<S>(m.ring + r.stage * S::STAGE, at, s, o);
    }
    __syncwarp();
    barrier_arrive_warp(m.empty + r.stage * 8, at.lane);
    r.next(S::N_STAGES);
}

} // namespace
