/* decode_bytes_end.cuh - of attention_decode_bytes.cu: how a pair ends. Blocks of a cluster leave their sums to the
 * first, which stores results, or what join_parts makes them of. */
#pragma once

#include "backend/cuda/attention/decode/decode_bytes.cuh"
#include "backend/cuda/value.h"

namespace {

/* The first block of a cluster gets what the others summed, [SHARE - 1][LEFT][128]; thread by thread, as all stand
 * alike. i: how many pairs were joined before. */
template <class S> __device__ void leave_to_first(const byte_memory<S> &m, int rank, int i, const byte_sums<S> &o) {
    if (i > 0)
        barrier_wait(m.merge_empty, (i - 1) & 1); // the first has read what was left before
    uint32_t joined = address_at_rank(m.joined, 0);
    uint32_t there = address_at_rank(shared_address(m.merge + (rank - 1) * S::LEFT * 128 + threadIdx.x), 0);
    store_at_rank(there, o.reference, joined);
#pragma unroll
    for (int n = 0, j = 1; n < S::N_TILES; n++) {
#pragma unroll
        for (int k = 0; k < 2; k++, j += 2) {
            store_at_rank(there + j * 512, o.m[n][k], joined);
            store_at_rank(there + (j + 1) * 512, o.l[n][k], joined);
        }
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++, j++)
                store_at_rank(there + j * 512, o.o[i][n][k], joined);
    }
}

template <class S> __device__ void join_blocks(const byte_memory<S> &m, int i, byte_sums<S> &o) {
    int thread = threadIdx.x;
    if (thread == 0)
        barrier_expect(m.joined, (S::SHARE - 1) * S::LEFT * 512);
    barrier_wait(m.joined, i & 1); // what the others summed is there
    for (int n = 0; n < S::N_TILES; n++) {
        int j0 = 1 + n * (4 + 4 * S::M_TILES);
        float by[S::SHARE][2];
        for (int k = 0; k < 2; k++) {
            float most = o.m[n][k], l = 0;
            for (int g = 1; g < S::SHARE; g++)
                most = fmaxf(most, m.merge[((g - 1) * S::LEFT + j0 + 2 * k) * 128 + thread]);
            for (int g = 0; g < S::SHARE; g++) {
                const float *left = m.merge + (g - 1) * S::LEFT * 128 + thread;
                float w = weight_of(g ? left[(j0 + 2 * k) * 128] : o.m[n][k], most);
                l += w * (g ? left[(j0 + 2 * k + 1) * 128] : o.l[n][k]);
                by[g][k] = w * (g ? *left : o.reference);
            }
            o.m[n][k] = most;
            o.l[n][k] = l;
        }
        for (int i = 0; i < S::M_TILES; i++)
            for (int k = 0; k < 4; k++) {
                float x = o.o[i][n][k] * by[0][k % 2];
                for (int g = 1; g < S::SHARE; g++)
                    x += m.merge[((g - 1) * S::LEFT + j0 + 4 + 4 * i + k) * 128 + thread] * by[g][k % 2];
                o.o[i][n][k] = x;
            }
    }
    o.reference = 1;
}

/* This thread's channels of its columns, times `by`, and the bits of their largest size. */
template <class S, class STORE>
__device__ uint32_t store_columns(const task<S> &t, const byte_place &at, const byte_sums<S> &o,
                                  const float (&by)[S::N_TILES][2], int pair_bytes, STORE store) {
    uint32_t size = 0;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * at.quarter + k;
            bool there = c < t.n_columns;
            int64_t to = (t.out[c] / 2 + 8 * at.warp + at.group) * pair_bytes;
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                float2 x = {o.o[i][n][k] * by[n][k], o.o[i][n][k + 2] * by[n][k]};
                size = there ? max(size, max(size_bits(x.x), size_bits(x.y))) : size;
                if (there)
                    store(to + S::moved(64 * i) / 2 * pair_bytes, x);
            }
        }
    return size;
}

/* The result of a pair in one piece. total: sums of P of this thread's columns. */
template <class S>
__device__ void store_pair(const arguments &p, const task<S> &t, const byte_place &at,
                           const float (&total)[S::N_TILES][2], const byte_sums<S> &o) {
    float by[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float2 sink = *reinterpret_cast<const float2 *>(t.sink + 8 * n + 2 * at.quarter);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float from = k ? sink.y : sink.x, top = fmaxf(o.m[n][k], from), w = weight_of(o.m[n][k], top);
            by[n][k] = o.reference * (1 / P_UNIT) * __fdividef(w, total[n][k] * w + weight_of(from, top));
        }
    }
    char *out = static_cast<char *>(p.out.at);
    uint32_t size;
    if (p.out.element == ELEMENT_F32)
        size =
            store_columns<S>(t, at, o, by, 8, [=](int64_t to, float2 x) { *reinterpret_cast<float2 *>(out + to) = x; });
    else if (p.out.element == ELEMENT_F16)
        size = store_columns<S>(t, at, o, by, 4, [=](int64_t to, float2 x) {
            *reinterpret_cast<uint32_t *>(out + to) = to_pair<false>(x.x, x.y);
        });
    else
        size = store_columns<S>(t, at, o, by, 4, [=](int64_t to, float2 x) {
            *reinterpret_cast<uint32_t *>(out + to) = to_pair<true>(x.x, x.y);
        });
    fold_size<S>(p, t, size);
}

/* What a part of several leaves. */
template <class S>
__device__ void leave_part(const arguments &p, const task<S> &t, int kv, const byte_place &at,
                           const float (&total)[S::N_TILES][2], const byte_sums<S> &o) {
    float *left = partial_of<S>(p, t.part.at + t.part.part_of, kv), by = o.reference * (1 / P_UNIT);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * at.quarter + k;
            if (c >= t.n_columns)
                continue;
            if (at.warp == 0 && at.group == 0)
                __stcg(reinterpret_cast<float2 *>(left + S::COLUMNS * S::DIM + 2 * c), float2{o.m[n][k], total[n][k]});
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++)
                __stcg(reinterpret_cast<float2 *>(left + c * S::DIM + S::moved(64 * i) + 16 * at.warp + 2 * at.group),
                       float2{o.o[i][n][k] * by, o.o[i][n][k + 2] * by});
        }
}

/* By the first block. */
template <class S>
__device__ void finish_pair(const arguments &p, const byte_memory<S> &m, const task<S> &t, int kv, const byte_place &at,
                            byte_sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o.l[n][k] = sum_of_keys(o.l[n][k]);
            if (at.group == 0)
                m.sum[4 * (8 * n + 2 * at.quarter + k) + at.warp] = o.l[n][k];
        }
    threads_sync(1, S::COMPUTE); // every warp's sums are there
    float total[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 of = *reinterpret_cast<const float4 *>(m.sum + 4 * (8 * n + 2 * at.quarter + k));
            total[n][k] = of.x + of.y + (of.z + of.w);
        }
    if (t.part.n_parts == 1)
        store_pair<S>(p, t, at, total, o);
    else
        leave_part<S>(p, t, kv, at, total, o);
}

} // namespace
