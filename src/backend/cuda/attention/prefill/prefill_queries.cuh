/* prefill_queries.cuh - of prefill_rows.cuh: queries as they come, and brought to shared memory as one element. */
#pragma once

#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/prefill_shape.cuh"
#include "backend/cuda/value.h"

namespace {

template <element Q> struct eight_queries { // eight queries as they come
    uint4 half;
    __device__ void load(const dmat &q, int64_t at) {
        half = *reinterpret_cast<const uint4 *>(static_cast<const char *>(q.at) + at * 2);
    }
    __device__ float2 pair(int i) const {
        uint32_t x = i == 0 ? half.x : i == 1 ? half.y : i == 2 ? half.z : half.w;
        return Q == ELEMENT_F16 ? __half22float2(*reinterpret_cast<__half2 *>(&x))
                                : __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&x));
    }
};
template <> struct eight_queries<ELEMENT_F32> {
    float4 low, high;
    __device__ void load(const dmat &q, int64_t at) {
        const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(q.at) + at);
        low = from[0];
        high = from[1];
    }
    __device__ float2 pair(int i) const {
        return i == 0   ? float2{low.x, low.y}
               : i == 1 ? float2{low.z, low.w}
               : i == 2 ? float2{high.x, high.y}
                        : float2{high.z, high.w};
    }
};

/* A row of the tile: which of the step's tokens, and head. */
struct row_place {
    int64_t token;
    int head;
};
__device__ row_place place_of_row(const arguments &p, const dpart &part, int kv, int row) {
    int per_kv = p.a.n_heads / p.a.n_kv_heads, first = part.first_column / per_kv;
    int rest = row - first * per_kv; // less than ROWS + per_kv: what a float divides exactly
    int token = first + (int)(((float)rest + 0.5f) * __frcp_rn((float)per_kv));
    return {part.row + token, kv * per_kv + row - token * per_kv};
}

/* Where the queries of a row of the tile begin; rows behind the last are copies of it. */
template <class S> __device__ int64_t query_row(const arguments &p, const dpart &part, int kv, int r) {
    row_place at = place_of_row(p, part, kv, min(part.first_column + r, part.columns - 1));
    return at.token * p.q.stride + (int64_t)at.head * S::DIM;
}

/* 16 bytes, by a thread that waits for all it has asked for. */
__device__ void copy_piece(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ void await_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Both computing warpgroups bring the rows, of 16 bits; UNROLL loads a thread are under way at a time. */
template <class S, element Q>
__device__ void load_rows(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    if constexpr (Q == (S::BF16 ? ELEMENT_BF16 : ELEMENT_F16)) { // as they are
        const char *q = static_cast<const char *>(p.q.at);
#pragma unroll 2
        for (int i = threadIdx.x; i < S::ROWS * (S::DIM / 8); i += COMPUTE) {
            int r = i / (S::DIM / 8), c = i % (S::DIM / 8);
            copy_piece(m.query + c / 8 * S::QUERY_PANEL + r * 128 + ((c % 8) ^ (r & 7)) * 16,
                       q + (query_row<S>(p, part, kv, r) + moved<S>(p, 8 * c)) * 2);
        }
        await_pieces();
        return;
    }
    constexpr int UNROLL = Q != ELEMENT_F32 && S::ROWS * S::DIM >= 8 * 8 * COMPUTE ? 8 : 4, PIECES = S::DIM / 8;
    for (int first = threadIdx.x; first < S::ROWS * PIECES; first += UNROLL * COMPUTE) {
        eight_queries<Q> eight[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = first + u * COMPUTE;
            eight[u].load(p.q, query_row<S>(p, part, kv, i / PIECES) + moved<S>(p, 8 * (i % PIECES)));
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = first + u * COMPUTE, r = i / PIECES, c = i % PIECES;
            uint32_t y[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 x = eight[u].pair(k);
                y[k] = to_pair<S::BF16>(x.x, x.y);
            }
            *reinterpret_cast<uint4 *>(m.at(m.query) + c / 8 * S::QUERY_PANEL + r * 128 +
                                       ((c % 8) ^ (r & 7)) * 16) = {y[0], y[1], y[2], y[3]};
        }
    }
    static_assert(S::ROWS * PIECES % (UNROLL * COMPUTE) == 0, "no thread is left over");
}

} // namespace
