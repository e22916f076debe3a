/* decode_join.cuh - of attention_decode.cu: the sums of warps, and of the parts of a sequence, become results. */
#pragma once

#include "backend/cuda/attention/decode/decode_tile.cuh"
#include "backend/cuda/value.h"

namespace {

/* What a part leaves: [COLUMNS][DIM] sums, then the largest score and the sum of P of each column. */
template <class S> __device__ float *partial_of(const arguments &p, int part, int kv) {
    return p.parts.partial + ((int64_t)part * p.a.n_kv_heads + kv) * S::COLUMNS * (S::DIM + 2);
}

__device__ float weight_of(float m, float most) { return m == -INFINITY ? 0.0f : exp2_fast(m - most); }

/* factor[column]: what the sums over all keys are multiplied by; of a sequence in one piece the softmax's whole
 * denominator. */
template <class S> __device__ void join_columns(const arguments &p, const memory<S> &m, const task<S> &t, int kv) {
    int c = threadIdx.x;
    if (c >= S::COLUMNS)
        return;
    float most = -INFINITY, total = 0;
    for (int w = 0; w < KEY_WARPS; w++)
        most = fmaxf(most, m.largest[w * S::COLUMNS + c]);
    for (int w = 0; w < KEY_WARPS; w++)
        total += m.sum[w * S::COLUMNS + c] * weight_of(m.largest[w * S::COLUMNS + c], most);
    if (t.part.n_parts == 1) {
        float top = fmaxf(most, t.sink[c]);
        m.factor[c] = weight_of(most, top) / (total * weight_of(most, top) + weight_of(t.sink[c], top));
    } else {
        float *left = partial_of<S>(p, t.part.at + t.part.part_of, kv) + S::COLUMNS * S::DIM + 2 * c;
        __stcg(reinterpret_cast<float2 *>(left), float2{most, total});
    }
}

/* Bits of a size: they are ordered as sizes are, and what is not a number is above all. */
__device__ uint32_t size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

/* Returns the bits of the largest size. */
template <class S> __device__ uint32_t store_four(const arguments &p, int64_t at, float4 x, float by) {
    x = {x.x * by, x.y * by, x.z * by, x.w * by};
    if (p.out.element == ELEMENT_F32)
        *reinterpret_cast<float4 *>(static_cast<float *>(p.out.at) + at) = x;
    else if (p.out.element == ELEMENT_F16)
        *reinterpret_cast<uint2 *>(static_cast<char *>(p.out.at) + at * 2) = {to_pair<false>(x.x, x.y),
                                                                              to_pair<false>(x.z, x.w)};
    else
        *reinterpret_cast<uint2 *>(static_cast<char *>(p.out.at) + at * 2) = {to_pair<true>(x.x, x.y),
                                                                              to_pair<true>(x.z, x.w)};
    return max(max(size_bits(x.x), size_bits(x.y)), max(size_bits(x.z), size_bits(x.w)));
}

/* Whole warps, where sequences have one token each: all columns of a pair are of one row. */
template <class S> __device__ void fold_size(const arguments &p, const task<S> &t, uint32_t size) {
    if (p.out.absmax)
        fold_absmax(p.out.absmax, t.part.row, __uint_as_float(size));
}

__device__ float4 plus(float4 a, float4 b, float by) {
    return {a.x + b.x * by, a.y + b.y * by, a.z + b.z * by, a.w + b.w * by};
}

/* The sums of the KEY_WARPS, ROUND channels of each channel warp at a time. */
template <class S>
__device__ void join_warps(const arguments &p, const memory<S> &m, const task<S> &t, int kv, const place &at,
                           sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o.l[n][k] = sum_of_keys(o.l[n][k]);
            if (at.group == 0 && at.channel_warp == 0) {
                m.largest[at.key_warp * S::COLUMNS + 8 * n + 2 * at.quarter + k] = o.m[n][k];
                m.sum[at.key_warp * S::COLUMNS + 8 * n + 2 * at.quarter + k] = o.l[n][k];
            }
        }
    threads_sync(1, S::COMPUTE); // largest and sum of every warp are there
    join_columns<S>(p, m, t, kv);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float most = -INFINITY;
            for (int w = 0; w < KEY_WARPS; w++)
                most = fmaxf(most, m.largest[w * S::COLUMNS + 8 * n + 2 * at.quarter + k]);
            by[k] = weight_of(o.m[n][k], most) * (S::BYTES ? o.reference : 1.0f);
        }
        shrink<S>(o, n, by[0], by[1]);
    }
    bool whole = t.part.n_parts == 1;
    uint32_t size = 0;
    float *mine = m.merge + (at.key_warp * S::CHANNEL_WARPS + at.channel_warp) * S::COLUMNS * S::MERGE_ROW;
    float *left = whole ? nullptr : partial_of<S>(p, t.part.at + t.part.part_of, kv);
#pragma unroll
    for (int first = 0; first < S::M_TILES; first += S::ROUND / 16) {
#pragma unroll
        for (int i = 0; i < S::ROUND / 16; i++)
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    int channel = 16 * i + (S::BYTES ? 2 * at.group + k / 2 : at.group + k / 2 * 8);
                    mine[(8 * n + 2 * at.quarter + k % 2) * S::MERGE_ROW + channel] = o.o[first + i][n][k];
                }
        threads_sync(1, S::COMPUTE); // the sums of every warp are there, and the factors
        constexpr int FOURS = S::ROUND / 4;
        for (int i = threadIdx.x; i < S::CHANNEL_WARPS * t.n_columns * FOURS; i += S::COMPUTE) {
            int d = i % FOURS * 4, w = i / FOURS % S::CHANNEL_WARPS, c = i / FOURS / S::CHANNEL_WARPS;
            int channel = S::moved(w * S::CHANNELS + first * 16 + d);
            float4 x = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < KEY_WARPS; k++)
                x = plus(x,
                         *reinterpret_cast<const float4 *>(
                             m.merge + ((k * S::CHANNEL_WARPS + w) * S::COLUMNS + c) * S::MERGE_ROW + d),
                         1);
            if (whole)
                size = max(size, store_four<S>(p, t.out[c] + channel, x, m.factor[c]));
            else
                __stcg(reinterpret_cast<float4 *>(left + c * S::DIM + channel), x);
        }
        threads_sync(1, S::COMPUTE); // the sums may be written over
    }
    if (whole)
        fold_size<S>(p, t, size);
}

/* The parts of a sequence, by the block that ends last, in their order. */
template <class S, class M> __device__ void join_parts(const arguments &p, const M &m, const task<S> &t, int kv) {
    constexpr int AT_ONCE = 8; // of the parts
    int n_parts = t.part.n_parts, n_columns = t.n_columns, stride = p.a.n_kv_heads * S::COLUMNS * (S::DIM + 2);
    const float *base = partial_of<S>(p, t.part.at, kv);
    float *weight = m.merge; // [n_parts][COLUMNS]: at most 64 * 16
    if (threadIdx.x == 0) {  // behind join_warps's last barrier: what this block left is seen by who sees its arrival
        int32_t *arrived = p.parts.arrived + (int64_t)t.part.at * p.a.n_kv_heads + kv;
        int n;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(n) : "l"(arrived) : "memory");
        if (n == n_parts - 1)
            *arrived = 0;
        m.factor[0] = n == n_parts - 1 ? 1.0f : 0.0f;
    }
    threads_sync(1, S::COMPUTE); // who is last is known
    bool last = m.factor[0] != 0.0f;
    if (!last)
        return;
    for (int i = threadIdx.x; i < n_parts * S::COLUMNS; i += S::COMPUTE) {
        float2 left =
            __ldcg(reinterpret_cast<const float2 *>(base + (int64_t)(i / S::COLUMNS) * stride + S::COLUMNS * S::DIM) +
                   i % S::COLUMNS);
        weight[i] = left.x;
        weight[i + 64 * S::COLUMNS] = left.y;
    }
    threads_sync(1, S::COMPUTE); // the largest scores of all parts are there
    if ((int)threadIdx.x < n_columns) {
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
    uint32_t size = 0;
    for (int i = threadIdx.x; i < n_columns * (S::DIM / 4); i += S::COMPUTE) {
        int c = i / (S::DIM / 4), channel = i % (S::DIM / 4) * 4;
        const float *from = base + c * S::DIM + channel;
        float4 x = {0, 0, 0, 0};
        for (int first = 0; first < n_parts; first += AT_ONCE) {
            float4 left[AT_ONCE]; // all under way before one is used; behind the last part that again, which counts
                                  // nothing
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                left[k] =
                    __ldcg(reinterpret_cast<const float4 *>(from + (int64_t)min(first + k, n_parts - 1) * stride));
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                x = plus(x, left[k], first + k < n_parts ? weight[(first + k) * S::COLUMNS + c] : 0.0f);
        }
        size = max(size, store_four<S>(p, t.out[c] + channel, x, m.factor[c]));
    }
    fold_size<S>(p, t, size);
    threads_sync(1, S::COMPUTE); // weights and factors may be written over
}

} // namespace
