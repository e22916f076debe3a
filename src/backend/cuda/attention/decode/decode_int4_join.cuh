/* decode_int4_join.cuh - of attention_decode_int4.cu: the sums of warps, and of the parts of a sequence, become
 * results, which are rotated back here, once. A warp takes a column. */
#pragma once

#include "backend/cuda/attention/decode/decode_int4_tile.cuh"

namespace {

/* A lane's share of a row of DIM channels, as heads.cuh has it: pieces of V, 32 V channels apart. */
template <class S> struct row_int4 {
    static constexpr int P = S::DIM / 32, V = P < 4 ? P : 4;
    float x[P];

    __device__ void add(const float *from, float by) {
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] += from[channel<V>(i)] * by;
    }
    /* Rotated back and stored; returns the bits of the largest size. */
    __device__ uint32_t store(const arguments &p, int64_t at, float by) {
        uint32_t size = 0;
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] *= by;
        int4_rotate_back<V, P>(S::DIM, S::ROTATION, x);
#pragma unroll
        for (int i = 0; i < P; i++) {
            ::store(p.out.at, at + channel<V>(i), p.out.element, x[i]);
            size = max(size, size_bits(x[i]));
        }
        return size;
    }
};

/* The sums of the KEY_WARPS. */
template <class S>
__device__ void join_warps_int4(const arguments &p, const memory<S> &m, const task<S> &t, int kv, int warp,
                                const place_int4 &at, sums_int4<S> &o) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        o.l[k] = sum_of_keys(o.l[k]);
        if (at.group == 0) {
            m.largest[warp * S::COLUMNS + 2 * at.quarter + k] = o.m[k];
            m.sum[warp * S::COLUMNS + 2 * at.quarter + k] = o.l[k];
        }
    }
    threads_sync(1, S::COMPUTE); // largest and sum of every warp are there
    join_columns<S>(p, m, t, kv);
    float *mine = m.merge + warp * S::COLUMNS * S::MERGE_ROW;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int column = 2 * at.quarter + k;
        float most = -INFINITY;
        for (int w = 0; w < KEY_WARPS; w++)
            most = fmaxf(most, m.largest[w * S::COLUMNS + column]);
        float by = weight_of(o.m[k], most) * o.scale();
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int channel = KV_INT4_GROUP * g + 16 * half + 2 * at.group;
                *reinterpret_cast<float2 *>(mine + column * S::MERGE_ROW + channel) = {o.o[g][0][2 * half + k] * by,
                                                                                       o.o[g][1][2 * half + k] * by};
            }
    }
    threads_sync(1, S::COMPUTE); // the sums of every warp are there, and the factors
    bool whole = t.part.n_parts == 1;
    float *left = whole ? nullptr : partial_of<S>(p, t.part.at + t.part.part_of, kv);
    uint32_t size = 0;
    for (int c = warp; c < t.n_columns; c += KEY_WARPS) {
        row_int4<S> row = {};
#pragma unroll
        for (int w = 0; w < KEY_WARPS; w++)
            row.add(m.merge + (w * S::COLUMNS + c) * S::MERGE_ROW, 1);
        if (whole)
            size = max(size, row.store(p, t.out[c], m.factor[c]));
        else
#pragma unroll
            for (int i = 0; i < row.P; i++)
                __stcg(left + c * S::DIM + channel<row_int4<S>::V>(i), row.x[i]);
    }
    if (whole)
        fold_size<S>(p, t, size);
    threads_sync(1, S::COMPUTE); // the sums may be written over, and what is left for others is there
}

/* The parts' weights, [n_parts][COLUMNS], and a factor for each column. */
template <class S>
__device__ void weigh_parts(const memory<S> &m, const task<S> &t, const float *base, int stride, float *weight) {
    int n_parts = t.part.n_parts;
    for (int i = threadIdx.x; i < n_parts * S::COLUMNS; i += S::COMPUTE) {
        const float *from = base + (int64_t)(i / S::COLUMNS) * stride + S::COLUMNS * S::DIM;
        float2 left = __ldcg(reinterpret_cast<const float2 *>(from) + i % S::COLUMNS);
        weight[i] = left.x;
        weight[i + 64 * S::COLUMNS] = left.y;
    }
    threads_sync(1, S::COMPUTE); // the largest scores of all parts are there
    if ((int)threadIdx.x < t.n_columns) {
        int c = threadIdx.x;
        float most = t.sink[c], total;
        for (int i = 0; i < n_parts; i++)
            most = fmaxf(most, weight[i * S::COLUMNS + c]);
        total = weight_of(t.sink[c], most);
        for (int i = 0; i < n_parts; i++) {
            float w = weight_of(weight[i * S::COLUMNS + c], most);
            total += w * weight[(64 + i) * S::COLUMNS + c];
            weight[i * S::COLUMNS + c] = w;
        }
        m.factor[c] = 1.0f / total;
    }
    threads_sync(1, S::COMPUTE); // the parts' weights are there
}

/* Whether this block is the last of the sequence's parts; they count themselves. */
template <class S> __device__ bool comes_last(const arguments &p, const memory<S> &m, const task<S> &t, int kv) {
    if (threadIdx.x ==
        0) { // behind join_warps_int4's last barrier: what this block left is seen by who sees its arrival
        int32_t *arrived = p.parts.arrived + (int64_t)t.part.at * p.a.n_kv_heads + kv;
        int n;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(n) : "l"(arrived) : "memory");
        if (n == t.part.n_parts - 1)
            *arrived = 0;
        m.factor[0] = n == t.part.n_parts - 1 ? 1.0f : 0.0f;
    }
    threads_sync(1, S::COMPUTE); // who is last is known
    bool last = m.factor[0] != 0.0f;
    threads_sync(1, S::COMPUTE); // and the factor may be written over
    return last;
}

/* The parts of a sequence, by the block that ends last, in their order. */
template <class S>
__device__ void join_parts_int4(const arguments &p, const memory<S> &m, const task<S> &t, int kv, int warp) {
    int stride = p.a.n_kv_heads * S::COLUMNS * (S::DIM + 2);
    const float *base = partial_of<S>(p, t.part.at, kv);
    float *weight = m.merge; // and sums behind them: at most 2 * 64 * 16
    if (!comes_last<S>(p, m, t, kv))
        return;
    weigh_parts<S>(m, t, base, stride, weight);
    uint32_t size = 0;
    for (int c = warp; c < t.n_columns; c += KEY_WARPS) {
        row_int4<S> row = {};
        for (int i = 0; i < t.part.n_parts; i++) {
            float by = weight[i * S::COLUMNS + c];
#pragma unroll
            for (int k = 0; k < row.P; k++)
                row.x[k] += by * __ldcg(base + (int64_t)i * stride + c * S::DIM + channel<row_int4<S>::V>(k));
        }
        size = max(size, row.store(p, t.out[c], m.factor[c]));
    }
    fold_size<S>(p, t, size);
    threads_sync(1, S::COMPUTE); // weights and factors may be written over
}

} // namespace
