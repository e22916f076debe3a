/* gemm_w4_ends.cuh - of gemm_w4.cu: how sums of column warps and blocks are joined, and what they become. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4_ring.cuh"

static __device__ __noinline__ float w4_activate_rarely(int act, float limit, float gate, float up) {
    return activate(act, limit, gate, up);
}
/* As gemm_fp8_small_m_ending.cuh has them, within 1e-5. */
static __device__ __forceinline__ float w4_gated(const dending &e, float gate, float up) {
    if (e.act > 1)
        return w4_activate_rarely(e.act, e.limit, gate, up);
    float k = e.act == 0 ? gate : 2 * 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return __fdividef(gate, 1.0f + __expf(-k)) * up;
}

/* What the lane's sums of a tile by eight tokens become. scales: of the tile's 16 rows; biases behind them. */
static __device__ __forceinline__ void w4_finish(const gemm_w4_args &a, const w4_place &p, int tile, int eight,
                                                 float4 c, const float *scales, const float *biases) {
    int g = p.lane / 4, token = eight * 8 + p.lane % 4 * 2;
    float s0 = scales[g], s1 = scales[g + 8], b0 = biases ? biases[g] : 0, b1 = biases ? biases[g + 8] : 0;
    float v[2][2] = {{fmaf(c.x, s0, b0), fmaf(c.z, s1, b1)}, {fmaf(c.y, s0, b0), fmaf(c.w, s1, b1)}};
    int unit = tile * (a.gated ? 8 : 16) + g;
    if (tile >= a.n_tiles)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (token + i >= p.n_tokens)
            return;
        int64_t to = (int64_t)(p.first_token + token + i) * a.y_stride + unit;
        if (a.gated) {
            if (unit < a.n_units)
                store(a.y, to, a.y_element, w4_gated(a.ending, v[i][0], v[i][1]));
            continue;
        }
        if (unit < a.n_units)
            store(a.y, to, a.y_element, v[i][0]);
        if (unit + 8 < a.n_units)
            store(a.y, to + 8, a.y_element, v[i][1]);
    }
}

/* Sums of column warps and of the blocks of a cluster come to one of these blocks, each at a place of its own, and are
 * added there in the order of columns: so results are the same every time. Items are tiles by eight tokens
 * each, dealt out among the blocks by turns. No block ends before all that is sent to it has come. */
template <int EIGHTS>
static __device__ __forceinline__ void w4_join(const gemm_w4_args &a, const w4_place &p, float4 *received, int n_warps,
                                               const w4_sums<EIGHTS> &sums, const float *scales, const float *biases) {
    int column_warp = p.warp / a.row_warps, row_warp = p.warp % a.row_warps;
    int n_ranks = a.split * a.column_warps, mine = p.rank * a.column_warps + column_warp;
    int n_items = p.tiles * EIGHTS, owned = (n_items - p.rank + a.split - 1) / a.split;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
        int item = row_warp * EIGHTS + j, to = item % a.split;
        float4 *at = received + (item / a.split * n_ranks + mine) * 32 + p.lane;
        float4 v = make_float4(sums[j][0], sums[j][1], sums[j][2], sums[j][3]);
        if (a.split == 1)
            *at = v;
        else
            store_at_rank(address_at_rank(shared_address(at), to), v, address_at_rank(p.all_sums, to));
    }
    if (a.split == 1)
        threads_sync(1, n_warps * 32); // the sums of all warps are there
    else
        barrier_wait(p.all_sums, 0);
#pragma unroll 1
    for (int i = p.warp; i < owned; i += n_warps) {
        int item = i * a.split + p.rank, tile = item / EIGHTS;
        const float4 *at = received + i * n_ranks * 32 + p.lane;
        float4 sum = at[0];
        for (int k = 1; k < n_ranks; k++) {
            float4 v = at[k * 32];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        w4_finish(a, p, p.first_tile + tile, item % EIGHTS, sum, scales + tile * 16,
                  biases ? biases + tile * 16 : nullptr);
    }
}

/* Scales and biases of the rows of all the block's tiles, in the order of tiles; by the warps that multiply. */
static __device__ void w4_bring_scales(const gemm_w4_args &a, const w4_place &p, float *scales, float *biases) {
    int of_pass = p.tiles * 16;
    for (int i = threadIdx.x; i < p.n_passes * of_pass; i += blockDim.x - 32) {
        int tile = p.first_tile + i / of_pass * p.tile_step + i % of_pass / 16, r = i % 16;
        int unit = a.gated ? tile * 8 + r % 8 : tile * 16 + r, row = a.gated && r >= 8 ? unit + a.n_units : unit;
        bool there = tile < a.n_tiles && unit < a.n_units;
        scales[i] = there ? a.scale[row] : 0;
        if (a.bias)
            biases[i] = there ? a.bias[row] : 0;
    }
}
