/* latent_tile.cuh - of latent_decode.cu: what the warps do with a tile. */
#pragma once

#include "backend/cuda/attention/latent/latent_shape.cuh"

namespace {

struct place {
    int lane, warp, group, quarter, key_warp; // group: lane / 4, quarter: lane % 4
    bool leads;                               // has the first half of the channels, and makes the softmax
};

/* Of the rows group and group + 8, in the four warps that lead. */
struct softmax_rows {
    float top[2], total[2]; // total: of this lane's keys
};

typedef float row_sums[SUM_TILES][4];

/* The queries of a task for half of the channels, out of a stage. */
__device__ void load_queries(const memory &m, const ring_at &ring, const place &at, uint32_t (&q)[HALF_STEPS][4]) {
    uint32_t from = m.stage(ring.stage) + at.lane % 16 * QUERY_ROW + (at.leads ? 0 : LATENT_WIDTH) + at.lane / 16 * 16;
    barrier_wait(m.full(ring.stage), ring.parity);
#pragma unroll
    for (int s = 0; s < HALF_STEPS; s++)
        load_matrices(q[s], from + 32 * s);
}

/* Scores of the warp's 16 keys by half of the channels: s[n] of keys 8n .. 8n + 7. */
template <int FIRST>
__device__ void half_scores(uint32_t stage, const place &at, const uint32_t (&q)[HALF_STEPS][4], float (&s)[2][4]) {
    float odd[2][4] = {};
    int key = 16 * at.key_warp + at.lane % 8 + at.lane / 16 * 8, side = at.lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < HALF_STEPS; i++) {
        uint32_t b[4];
        int piece = 2 * (FIRST + i);
        load_matrices(b, stage + piece / 8 * PANEL_TILE + piece_at(key, piece % 8 + side));
#pragma unroll
        for (int n = 0; n < 2; n++)
            multiply_add<false>(i % 2 ? odd[n] : s[n], q[i], b[2 * n], b[2 * n + 1]);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] += odd[n][k];
}

__device__ void add_other_half(const memory &m, const place &at, float (&s)[2][4]) {
    float4 *halves = m.halves(at.key_warp);
    if (!at.leads) {
        halves[at.lane] = {s[0][0], s[0][1], s[0][2], s[0][3]};
        halves[32 + at.lane] = {s[1][0], s[1][1], s[1][2], s[1][3]};
        threads_arrive(SCORES_READY + at.key_warp, 64);
        return;
    }
    threads_sync(SCORES_READY + at.key_warp, 64); // the other half's scores are there
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float4 x = halves[32 * n + at.lane];
        s[n][0] += x.x, s[n][1] += x.y, s[n][2] += x.z, s[n][3] += x.w;
    }
}

__device__ float over_quarters(float x, bool sum) {
    for (int step = 1; step < 4; step *= 2) {
        float y = __shfl_xor_sync(0xffffffffu, x, step);
        x = sum ? x + y : fmaxf(x, y);
    }
    return x;
}

/* P of a tile, by the warps that lead. left: keys of the token from this tile on. */
__device__ void weigh(const arguments &p, const memory &m, const place &at, int buffer, int left, bool begins,
                      bool ends, float (&s)[2][4], softmax_rows &r) {
    float *largest = m.largest(), *shrink = m.shrink(buffer), *end = m.ends(buffer);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] = 16 * at.key_warp + 8 * n + 2 * at.quarter + k % 2 < left ? s[n][k] * p.scale : -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top =
            over_quarters(fmaxf(fmaxf(s[0][2 * i], s[0][2 * i + 1]), fmaxf(s[1][2 * i], s[1][2 * i + 1])), false);
        if (at.quarter == 0)
            largest[at.key_warp * LATENT_HEADS + at.group + 8 * i] = top;
    }
    threads_sync(LARGEST_READY, KEY_WARPS * 32); // the largest scores of all keys of the tile are there
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = at.group + 8 * i;
        float top = begins ? -INFINITY : r.top[i], before = top;
        for (int w = 0; w < KEY_WARPS; w++)
            top = fmaxf(top, largest[w * LATENT_HEADS + row]);
        float by = begins ? 0.0f : exp2_fast(before - top), sum = 0;
        r.top[i] = top;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float x = exp2_fast(s[n][2 * i] - top), y = exp2_fast(s[n][2 * i + 1] - top);
            sum += x + y;
            store_shared(m.weights(buffer) + piece_at(row, 2 * at.key_warp + n) + 4 * at.quarter, to_pair<false>(x, y));
        }
        r.total[i] = begins ? sum : r.total[i] * by + sum;
        if (at.key_warp == 0 && at.quarter == 0)
            shrink[row] = by;
        if (ends) {
            float total = over_quarters(r.total[i], true);
            if (at.quarter == 0)
                end[(1 + at.key_warp) * LATENT_HEADS + row] = total;
            if (at.quarter == 0 && at.key_warp == 0)
                end[row] = top;
        }
    }
}

__device__ void store_shared_16(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* Zeroes the rows of the warp's panel behind the token's last key, which may be anything: 0 times it must be 0. */
__device__ void clear_rows(uint32_t panel, int first, const place &at) {
    for (int i = first * 8 + at.lane; i < TILE * 8; i += 32)
        store_shared_16(panel + 16 * i, {0, 0, 0, 0});
    fence_bulk();
    __syncwarp();
}

__device__ void add_values(const memory &m, uint32_t panel, const place &at, int buffer, bool begins, row_sums &o) {
    const float *shrink = m.shrink(buffer);
    float by[2] = {shrink[at.group], shrink[at.group + 8]};
#pragma unroll
    for (int i = 0; i < SUM_TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o[i][k] = begins ? 0.0f : o[i][k] * by[k / 2];
    int row = at.lane % 16, side = at.lane / 16;
#pragma unroll
    for (int j = 0; j < TILE / 16; j++) {
        uint32_t a[4];
        load_matrices(a, m.weights(buffer) + piece_at(row, 2 * j + side));
#pragma unroll
        for (int i = 0; i < SUM_TILES; i += 2) {
            uint32_t b[4];
            load_matrices_turned(b, panel + piece_at(16 * j + row, i + side));
            multiply_add<false>(o[i], a, b[0], b[1]);
            multiply_add<false>(o[i + 1], a, b[2], b[3]);
        }
    }
}

/* left: keys of the token from this tile on. */
__device__ void take_tile(const arguments &p, const memory &m, const place &at, copier &ahead, ring_at &ring,
                          int &buffer, int left, bool begins, bool ends, const uint32_t (&q)[HALF_STEPS][4],
                          softmax_rows &r, row_sums &o) {
    float s[2][4] = {};
    uint32_t stage = m.stage(ring.stage), panel = stage + at.warp * PANEL_TILE;
    buffer ^= 1;
    barrier_wait(m.full(ring.stage), ring.parity);
    if (at.leads)
        half_scores<0>(stage, at, q, s);
    else
        half_scores<HALF_STEPS>(stage, at, q, s);
    add_other_half(m, at, s);
    if (at.leads)
        weigh(p, m, at, buffer, left, begins, ends, s, r);
    threads_sync(WEIGHTS_READY, THREADS); // P is there, all scores are made, and the tile before is read
    if (at.warp == COPIER)
        ahead.fill(p, m, ring.item);
    if (left < TILE)
        clear_rows(panel, left, at);
    add_values(m, panel, at, buffer, begins, o);
    ring.next();
}

} // namespace
