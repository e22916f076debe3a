/* decode_prep.cuh - of attention_decode_bytes.cu: QKV_PREP on the way, in a step where no sequence has more than one
 * token.
 *
 * Queries come to shared memory as the product before left them. Half a warp takes a row, a query head or the new
 * token's key or value: scales and bias of unscaled products, norm, rotation; its lane l holds channels 64 j + 4 l .. +
 * 3, so that the other channel of a pair is always its own. The warpgroup does the queries, and splits them into terms.
 * The telling warp makes the new token's key and value, where the part ends with it, and gives them to the cache and to
 * the warpgroup, which puts them into the part's last tile when it gets there. So the copying warp brings older keys
 * alone and waits for no node.
 *
 * A pair takes 0.8 to 0.9 us longer so, where the node took 1.6 to 4.4: it pays while each pair has a block of its own.
 * Two further warps that make queries, key and value a pair ahead were tried: 60 us for 51 at 512 x 272, as theirs is a
 * chain of 6 us a pair. */
#pragma once

#include "backend/cuda/attention/decode/decode_prep_rows.cuh"

namespace {

// ---- queries ----------------------------------------------------------------------------------------------------

template <class S> struct query_weights {
    static constexpr int FOURS = S::DIM / 64;
    row_weights<S> rows[S::N_TILES];
    float4 norm[FOURS];

    __device__ void load(const dprep &q, int kv, const byte_place &at) {
        int per_kv = q.a.n_heads / q.a.n_kv_heads, first = 2 * at.warp + at.lane / 16, l = at.lane % 16;
        if (q.q_norm.at)
            load_fours(static_cast<const float *>(q.q_norm.at), l, norm);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            rows[n].load(q.x, (kv * per_kv + min(8 * n + first, per_kv - 1)) * S::DIM, l);
    }
};

/* As place_queries, of what the product left. */
template <class S>
__device__ void prepare_queries(const arguments &p, const byte_memory<S> &m, const prep_memory<S> &pm, int i,
                                const query_weights<S> &w, int n_columns, const byte_place &at) {
    constexpr int FOURS = S::DIM / 64;
    const dprep &q = p.prep;
    int pitch = S::DIM * (q.x.element == ELEMENT_F32 ? 4 : 2) + 32, l = at.lane % 16;
    row_angles<S> angles;
    if (q.cos_sin)
        angles.load(pm.angles, l);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        int column = 8 * n + 2 * at.warp + at.lane / 16;
        float4 x[FOURS];
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            x[j] = four_of_query(m.queries + min(column, n_columns - 1) * pitch, q.x.element, 64 * j + 4 * l);
        w.rows[n].apply(q.x, pm.fresh[i % 2].factor, x);
        if (q.q_norm.at) {
            float by = norm_of_half<S>(x, q.a.eps);
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[j] = x[j] * ((w.norm[j] + (q.a.plus_one ? 1.0f : 0.0f)) * by);
        }
        if (q.cos_sin)
            angles.turn(x);
        int exponent = min(max((int)(largest_of_half(x) >> 23), 30), 230);
        float by = column < n_columns ? __uint_as_float((uint32_t)(261 - exponent) << 23) : 0.0f;
        if (l == 0)
            m.query_factor[column] = __uint_as_float((uint32_t)(exponent - 7) << 23);
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int channel = 64 * j + 4 * l;
            float4 rest = x[j] * by;
#pragma unroll
            for (int term = 0; term < S::QUERY_TERMS; term++) {
                int row = term * S::COLUMNS + column;
                store_shared(m.query + (channel / S::PANEL) * S::QUERY_ROWS * S::PANEL + row * S::PANEL +
                                 kv_swizzled(S::PANEL, row, channel % S::PANEL),
                             take_term(rest));
            }
        }
    }
    fence_bulk();
    threads_sync(1, S::COMPUTE); // the queries are there
}

/* Puts the new token's key and value into the last tile of its part, which comes next. */
template <class S>
__device__ void place_newest(const byte_memory<S> &m, const prep_memory<S> &pm, const task<S> &t, int i, int tile,
                             ring_place r) {
    const fresh_rows<S> &fresh = pm.fresh[i % 2];
    int keys = r.stage, row = t.part.position - tile;
    barrier_wait(m.full + r.stage * 8, r.parity);
    r.next(S::N_STAGES);
    barrier_wait(m.full + r.stage * 8, r.parity); // what was copied is there
    barrier_wait(pm.fresh_full + i % 2 * 8, i / 2 & 1);
    for (int at = threadIdx.x; at < S::DIM / 2; at += S::COMPUTE) {
        int side = at / (S::DIM / 4), word = at % (S::DIM / 4), byte = 4 * word;
        char *stage = m.stages + (side ? r.stage : keys) * S::STAGE;
        *reinterpret_cast<uint32_t *>(stage + (byte / S::PANEL * TILE + row) * S::PANEL +
                                      kv_swizzled(S::PANEL, row, byte % S::PANEL)) =
            reinterpret_cast<const uint32_t *>(fresh.row[side])[word];
        if (word == 0)
            reinterpret_cast<float *>(stage + S::SIDE)[row] = fresh.scale[side];
    }
    fence_bulk();
    threads_sync(1, S::COMPUTE); // the new token is there
}

// ---- the new token's key and value ------------------------------------------------------------------------------

/* Half a warp's: the first makes the key, the other the value. */
template <class S> struct newest_row {
    static constexpr int FOURS = S::DIM / 64;
    row_weights<S> weights;
    float4 norm[FOURS]; // of keys
    row_angles<S> angles;
    float4 x[FOURS];
    bool is_v;
    int l;

    __device__ int column(const dqkv &a, int kv) const {
        return (a.n_heads + kv + (is_v && !a.v_from_k ? a.n_kv_heads : 0)) * S::DIM;
    }

    __device__ void load_weights(const dprep &q, int kv) {
        weights.load(q.x, column(q.a, kv), l);
        if (q.k_norm.at)
            load_fours(static_cast<const float *>(q.k_norm.at), l, norm);
    }
    __device__ void load(const dprep &q, int t, int kv) {
        int64_t at = t * q.x.stride + column(q.a, kv);
        const char *row = static_cast<const char *>(q.x.at) + at * (q.x.element == ELEMENT_F32 ? 4 : 2);
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            x[j] = four_of_query(row, q.x.element, 64 * j + 4 * l);
        if (q.cos_sin)
            angles.load(q.cos_sin + (int64_t)t * S::DIM, l);
    }
    __device__ void make(const dprep &q, float factor) {
        weights.apply(q.x, factor, x);
        if (q.k_norm.at || q.a.v_norm) {
            float by = norm_of_half<S>(x, q.a.eps);
            bool weighted = !is_v && q.k_norm.at;
#pragma unroll
            for (int j = 0; j < FOURS; j++) {
                float4 weight = weighted ? (norm[j] + (q.a.plus_one ? 1.0f : 0.0f)) : float4{1, 1, 1, 1};
                x[j] = weighted || (is_v && q.a.v_norm) ? x[j] * (weight * by) : x[j];
            }
        }
        if (q.cos_sin && !is_v)
            angles.turn(x);
    }
    /* To the warpgroup first, then to the cache, as kv.cuh says. block: that the token is in. */
    __device__ void write(const arguments &p, int block, int position, int kv, fresh_rows<S> &fresh,
                          uint32_t full) const {
        uint32_t most = largest_of_half(x), words[FOURS];
        float scale = most == 0 ? 1.0f : __uint_as_float(most) * (1 / 448.0f), by = __fdividef(1.0f, scale);
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            words[j] = __nv_fp8x4_e4m3(x[j] * by).__x;
            *reinterpret_cast<uint32_t *>(fresh.row[is_v] + 64 * j + 4 * l) = words[j];
        }
        if (l == 0)
            fresh.scale[is_v] = scale;
        __syncwarp();
        barrier_arrive_warp(full, threadIdx.x % 32);
        int slot = position & (p.n_slots - 1), head = (is_v ? p.a.n_kv_heads : 0) + kv;
        char *at = static_cast<char *>(p.cache.at) + block * p.cache.block_elements;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int channel = 64 * j + 4 * l, panel = head * S::N_PANELS + channel / S::PANEL;
            *reinterpret_cast<uint32_t *>(at + ((int64_t)panel * p.n_slots + slot) * S::PANEL +
                                          kv_swizzled(S::PANEL, slot, channel % S::PANEL)) = words[j];
        }
        if (l == 0)
            reinterpret_cast<float *>(at + (int64_t)p.a.n_kv_heads * p.n_slots * 2 * S::ROW)[head * p.n_slots + slot] =
                scale;
    }
};

/* A warp, as tell_all; and it makes the keys and values of the new tokens. */
template <class S>
__device__ void tell_prepared(const arguments &p, const byte_memory<S> &m, const prep_memory<S> &pm) {
    const dprep &q = p.prep;
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, per_kv = p.a.n_heads / n_kv,
        size = q.x.element == ELEMENT_F32 ? 4 : 2;
    int rank = S::SHARE > 1 ? cluster_rank() : 0, known = -1, shift = __ffs(p.n_slots) - 1;
    bool waited = false;
    newest_row<S> newest;
    newest.is_v = lane >= 16;
    newest.l = lane % 16;
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x / S::SHARE, i = 0; item < n; item += gridDim.x / S::SHARE, i++) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, n_columns = min(S::COLUMNS, part.columns),
            last = (part.end - part.first + TILE - 1) / TILE - 1, block = 0;
        bool mine = has_newest(part) && last % S::SHARE == rank;
        fresh_rows<S> &fresh = pm.fresh[i % 2];
        const float *angles = q.cos_sin + (int64_t)part.row * S::DIM;
        if (mine)
            block = __ldcg(p.table + (int64_t)part.seq * p.table_width + (part.position >> shift));
        if (kv != known)
            newest.load_weights(q, kv);
        known = kv;
        if (!waited && q.cos_sin && lane < S::DIM / 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(angles + lane * 32));
        barrier_wait(m.task_empty + i % 2 * 8, (i / 2 & 1) ^ 1);
        describe<S>(p, part, kv, m.tasks[i % 2]);
        if (!waited) // lists and tables are of earlier nodes, rows are of the last
            wait_for_previous();
        waited = true;
        float factor = q.x.row_scale ? load_late(q.x.row_scale + part.row) : 1.0f;
        if (mine)
            newest.load(q, part.row, kv);
        barrier_wait(m.queries_empty, (i & 1) ^ 1);
        if (lane == 0)
            barrier_expect_more(m.queries_full, n_columns * S::DIM * size + (q.cos_sin ? S::DIM * 4 : 0));
        __syncwarp();
        if (lane < n_columns) {
            int64_t from = part.row * q.x.stride + (int64_t)(kv * per_kv + lane) * S::DIM;
            bulk_copy(shared_address(m.queries) + lane * (S::DIM * size + 32),
                      static_cast<const char *>(q.x.at) + from * size, S::DIM * size, m.queries_full);
        }
        if (q.cos_sin && lane == 31)
            bulk_copy(shared_address(pm.angles), angles, S::DIM * 4, m.queries_full);
        if (lane == 0)
            fresh.factor = factor;
        __syncwarp();
        barrier_arrive_warp(m.queries_full, lane); // the task is told with it
        if (mine) {
            newest.make(q, factor);
            newest.write(p, block, part.position, kv, fresh, pm.fresh_full + i % 2 * 8);
        } else {
            barrier_arrive_warp(pm.fresh_full + i % 2 * 8, lane);
        }
    }
    if (!waited)
        wait_for_previous();
}

} // namespace
