/* latent_task.cuh - of latent_decode.cu: what becomes of a chunk's sums, and the way through chunks and tasks. */
#pragma once

#include "backend/cuda/attention/latent/latent_tile.cuh"
#include "backend/cuda/ptx/device.cuh"

namespace {

/* A row of the warp's sums, of row group + 8 k, where they wait for latent_out. */
__device__ void store_sums(const arguments &p, int entry, const place &at, int k, const uint32_t (&pairs)[SUM_TILES]) {
    int64_t row = ((int64_t)entry * LATENT_HEADS + at.group + 8 * k) * LATENT_RANK + at.warp * (PANEL / 2);
    uint4 *to = reinterpret_cast<uint4 *>(static_cast<__half *>(p.parts.sums) + row) + at.quarter;
#pragma unroll
    for (int i = 0; i < SUM_TILES; i += 4)
        __stcg(to + i, latent_turned({pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]}));
}

/* What is left of a chunk: for latent_out, or joined here. entry: of a cut task, else -1. */
__device__ void end_chunk(const arguments &p, const memory &m, const place &at, int buffer, int entry,
                          const row_sums &chunk, latent_join (&join)[2], row_sums &o) {
    const float *end = m.ends(buffer);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = at.group + 8 * k;
        float total = 0, top = end[row];
        for (int w = 0; w < KEY_WARPS; w++)
            total += end[(1 + w) * LATENT_HEADS + row];
        float by = __frcp_rn(total);
        float2 joined = join[k].add(top, total);
        if (entry >= 0 && at.warp == 0 && at.quarter == 0)
            __stcg(reinterpret_cast<float2 *>(p.parts.ends) + (int64_t)entry * LATENT_HEADS + row, float2{top, total});
        uint32_t pairs[SUM_TILES];
#pragma unroll
        for (int i = 0; i < SUM_TILES; i++) {
            pairs[i] = to_pair<false>(chunk[i][2 * k] * by, chunk[i][2 * k + 1] * by);
            float2 two = latent_halves(pairs[i]);
            o[i][2 * k] = latent_joined(o[i][2 * k], two.x, joined);
            o[i][2 * k + 1] = latent_joined(o[i][2 * k + 1], two.y, joined);
        }
        if (entry >= 0)
            store_sums(p, entry, at, k, pairs);
    }
}

__device__ void end_task(const arguments &p, const chunk_walk &w, const place &at, const latent_join (&join)[2],
                         const row_sums &o) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float by = join[k].factor();
        uint32_t pairs[SUM_TILES];
#pragma unroll
        for (int i = 0; i < SUM_TILES; i++)
            pairs[i] = to_pair<false>(o[i][2 * k] * by, o[i][2 * k + 1] * by);
        store_sums(p, w.sums(), at, k, pairs);
    }
}

__device__ void compute_all(const arguments &p, const memory &m) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, buffer = 0;
    place at = {lane, warp, lane / 4, lane % 4, warp % KEY_WARPS, warp < KEY_WARPS};
    ring_at ring = {0, 0, 0};
    uint32_t q[HALF_STEPS][4];
    softmax_rows r;
    row_sums chunk, o;
    copier ahead(p), early = ahead;
    chunk_walk w = ahead.walk;
    for (int i = 0; i < N_STAGES && at.warp == COPIER; i++)
        early.ask(p, m, OLD_KEYS);
    wait_for_previous(); // for queries, and keys of this step; lists and other keys were there before that began
    let_next_start();
    for (int i = 0; i < N_STAGES && at.warp == COPIER; i++)
        ahead.ask(p, m, NEW_KEYS);
    for (; w.is(); w.next(p)) {
        load_queries(m, ring, at, q);
        threads_sync(WEIGHTS_READY, THREADS); // all have their queries, and the tile before is read
        ring.next();
        if (at.warp == COPIER)
            ahead.fill(p, m, ring.item);
        latent_join join[2];
        join[0].clear(), join[1].clear();
#pragma unroll
        for (int i = 0; i < SUM_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o[i][k] = 0;
        for (int c = w.first; c < w.end; c++) {
            int first = c * w.chunk, end = min(first + w.chunk, w.task.n_keys);
            for (int tile = first; tile < end; tile += TILE)
                take_tile(p, m, at, ahead, ring, buffer, w.task.n_keys - tile, tile == first, tile + TILE >= end, q, r,
                          chunk);
            end_chunk(p, m, at, buffer, w.is_cut() ? w.sums() + c : -1, chunk, join, o);
        }
        if (!w.is_cut())
            end_task(p, w, at, join, o);
    }
}

} // namespace
