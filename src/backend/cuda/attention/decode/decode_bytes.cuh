/* decode_bytes.cuh - of attention_decode_bytes.cu: what the warpgroup does with a tile, or two at once. Before it:
 *
 *     decode_bytes_shape.cuh     sizes, shared memory
 *     decode_bytes_queries.cuh   queries as terms of e4m3
 *     decode_bytes_weights.cuh   values, scores, weights */
#pragma once

#include "backend/cuda/attention/decode/decode_bytes_weights.cuh"

namespace {

/* What a thread knows of a pair. */
template <class S> struct byte_pair {
    int low, end, inside_from, inside_to;
    float by[S::N_TILES][2]; // of its columns: what scores are multiplied by
};

/* d = K q^T of a stage, once it is full, under way. */
template <class S>
__device__ void start_scores(const byte_memory<S> &m, const ring_place &r, float (&d)[S::QUERY_ROWS / 2]) {
    uint32_t keys = byte_rows_low(m.ring + r.stage * S::STAGE), queries = byte_rows_low(m.query);
    products_begin();
#pragma unroll
    for (int k = 0; k < S::DIM / 32; k++) {
        int panel = k * 32 / S::PANEL, step = k % (S::PANEL / 32) * 2;
        int side = S::SHARED_KV && panel == 0 ? S::ROW * TILE : panel * TILE * S::PANEL;
        e4m3_product<S::QUERY_ROWS>::multiply(
            d, byte_rows_at<S::PANEL>(keys + (side / 16 + step)),
            byte_rows_at<S::PANEL>(queries + (panel * S::QUERY_ROWS * S::PANEL / 16 + step)), k > 0);
    }
    products_commit();
}

/* Values nobody sees become 0, and scores of keys that a column does not see -inf. by: scales of this thread's two rows
 * of values. */
template <class S>
__device__ void hide_unseen(const task<S> &t, const byte_pair<S> &c, int tile, const byte_place &at,
                            uint32_t (&v)[S::M_TILES][2][4], float (&by)[2], float (&s)[S::N_TILES][4]) {
    if (tile >= c.inside_from && tile + TILE <= c.inside_to)
        return; // most tiles: all columns see all keys
    clear_values<S>(tile, c.low, c.end, at, v);
    int key = tile + 16 * at.warp + at.group;
    bool seen[2]; // by any column
#pragma unroll
    for (int k = 0; k < 2; k++) {
        seen[k] = key + 8 * k >= c.low && key + 8 * k < c.end;
        by[k] = seen[k] ? by[k] : 0.0f;
    }
    if (c.low == c.inside_from && c.end == c.inside_to) { // all columns see the same
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = seen[k / 2] ? s[n][k] : -INFINITY;
    } else {
        hide<S>(t, key, at, s);
    }
}

/* P of N tiles in the right operand, and the sums with it; behind a barrier, so that it is there. raise: nothing was
 * seen yet, so that the largest scores are to be found first. They are too where a score passes what P can hold, which
 * the barrier tells all. */
template <class S, int N>
__device__ void place_tiles(const byte_memory<S> &m, uint32_t weights, const float (&s)[N][S::N_TILES][4],
                            const float (&by)[N][2], const byte_place &at, bool raise, byte_sums<S> &o) {
    float l[S::N_TILES][2], tops[S::N_TILES][2], top_scale = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        top_scale = fmaxf(top_scale, fmaxf(by[j][0], by[j][1]));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                tops[n][k] = fmaxf(fmaxf(s[j][n][k], s[j][n][k + 2]), j ? tops[n][k] : -INFINITY);
    }
    auto place = [&] {
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            l[n][0] = o.l[n][0], l[n][1] = o.l[n][1];
#pragma unroll
        for (int j = 0; j < N; j++)
            place_weights<S>(weights + j * S::P, s[j], o, by[j][0] * o.per_reference, by[j][1] * o.per_reference, at,
                             l);
        fence_bulk();
    };
    if (!raise) { // most tiles: nothing passes
        bool passed = passes<S>(tops, top_scale, o);
        place();
        raise = threads_any(1, S::COMPUTE, passed); // P is there
    }
    if (raise) {
        raise_largest<S>(m, tops, top_scale, at, o);
        place();
        threads_sync(1, S::COMPUTE); // P is there
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        o.l[n][0] = l[n][0], o.l[n][1] = l[n][1];
}

/* o += V^T P^T of N tiles. meanwhile() starts other products while the first of these are under way, or commits none.
 */
template <class S, int N, class MEANWHILE>
__device__ void add_values(uint32_t weights, const uint32_t (&v)[N][S::M_TILES][2][4], byte_sums<S> &o,
                           MEANWHILE meanwhile) {
    uint32_t right = byte_rows_low(weights);
#pragma unroll
    for (int i0 = 0; i0 < S::M_TILES; i0 += S::AT_ONCE) {
        float acc[N][S::AT_ONCE][S::P_ROWS / 2] = {};
        products_begin();
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < S::AT_ONCE; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    e4m3_product<S::P_ROWS>::multiply(acc[j][i], v[j][i0 + i][h],
                                                      byte_rows_at<TILE>(right + (j * S::P / 16 + 2 * h)), h);
        products_commit();
        if (i0 == 0 && S::AHEAD) {
            meanwhile();
            products_wait<1>();
        } else {
            products_wait<0>();
        }
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < S::AT_ONCE; i++) {
                registers_settle(acc[j][i]);
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        static_assert(S::P_TERMS == 2, "two terms");
                        o.o[i0 + i][n][k] += acc[j][i][4 * n + k] + acc[j][i][4 * (S::N_TILES + n) + k] * 0.0625f;
                    }
            }
    }
}

/* N tiles of the pair, SHARE apart, which follow one another in the ring. d: their scores, which AHEAD are under way
 * already; meanwhile: see above. generation: 0 and 1 in turn, of P. */
template <class S, int N, class MEANWHILE>
__device__ void take_tiles(const arguments &p, const byte_memory<S> &m, const task<S> &t, int tile,
                           const byte_pair<S> &c, const byte_place &at, ring_place &r, int generation, bool raise,
                           byte_sums<S> &o, float (&d)[N][S::QUERY_ROWS / 2], MEANWHILE meanwhile) {
    float s[N][S::N_TILES][4], key_scale[N][2], by[N][2];
    uint32_t v[N][S::M_TILES][2][4];
    ring_place keys[N], values[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        keys[j] = r;
        if (!S::SHARED_KV)
            r.next(S::N_STAGES);
        values[j] = r;
        r.next(S::N_STAGES);
    }
    auto take_scales = [&](const ring_place &from, float(&to)[2]) {
        const float *scale = reinterpret_cast<const float *>(m.stages + from.stage * S::STAGE + at.scales);
        to[0] = scale[0], to[1] = scale[8];
    };
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (!S::AHEAD) {
            barrier_wait(m.full + keys[j].stage * 8, keys[j].parity);
            start_scores<S>(m, keys[j], d[j]);
        }
        take_scales(keys[j], key_scale[j]);
    }
    // Values come to registers while the products of the keys run.
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (!S::SHARED_KV)
            barrier_wait(m.full + values[j].stage * 8, values[j].parity);
        load_values<S>(m.ring + values[j].stage * S::STAGE, at, v[j]);
        take_scales(values[j], by[j]);
    }
    __syncwarp(); // all lanes have read
#pragma unroll
    for (int j = 0; j < N && !S::SHARED_KV; j++)
        barrier_arrive_warp(m.empty + values[j].stage * 8, at.lane);
    products_wait<0>();
#pragma unroll
    for (int j = 0; j < N; j++) {
        registers_settle(d[j]);
        barrier_arrive_warp(m.empty + keys[j].stage * 8, at.lane);
        finish_scores<S>(p, d[j], c.by, key_scale[j][0], key_scale[j][1], s[j]);
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        hide_unseen<S>(t, c, tile + j * S::SHARE * TILE, at, v[j], by[j], s[j]);
    uint32_t weights = m.weights + generation * S::TILES * S::P;
    place_tiles<S, N>(m, weights, s, by, at, raise, o);
    add_values<S, N>(weights, v, o, meanwhile);
}

} // namespace
