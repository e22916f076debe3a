/* moe_tokens.cuh - the tokens of a stream's tile, into shared memory. */
#pragma once

#include "backend/cuda/moe/moe_block_queue.cuh"
#include "backend/cuda/value.h"

/* The 16 bytes of a row from its byte i on. */
template <class W> static __device__ __forceinline__ void put_piece(uint4 v, int i, unsigned char *to) {
    if constexpr (W::NATURAL) {
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            *reinterpret_cast<uint32_t *>(to + natural_byte(i / 4 + k)) = words[k];
    } else {
        *reinterpret_cast<uint4 *>(to + i) = v;
    }
}

/* Whether rows of x are as products want them, and may be copied by 16 bytes. */
template <class W> static __device__ __forceinline__ bool rows_are_ready(const stream_args &a) {
    return a.x.element == (W::BF16 ? ELEMENT_BF16 : ELEMENT_F16) && a.x.stride % 8 == 0 &&
           (uintptr_t)a.x.at % PIECE == 0;
}

/* Zeros behind a row. */
template <class W> static __device__ __forceinline__ void end_row(const stream_args &a, unsigned char *to) {
    for (int i = a.in * 2 + threadIdx.x % 32 * PIECE; i < a.x_pitch - W::X_ASIDE; i += 32 * PIECE)
        *reinterpret_cast<uint4 *>(to + i) = make_uint4(0, 0, 0, 0);
}

/* A row of x into shared memory, by a warp, with zeros behind it. */
template <class W> static __device__ void bring_row(const stream_args &a, int64_t row, unsigned char *to) {
    using T = typename W::product;
    int lane = threadIdx.x % 32, n_bytes = a.in * 2;
    if (rows_are_ready<W>(a)) {
        const unsigned char *from = static_cast<const unsigned char *>(a.x.at) + row * a.x.stride * 2;
#pragma unroll 4
        for (int i = lane * PIECE; i < n_bytes; i += 32 * PIECE)
            put_piece<W>(*reinterpret_cast<const uint4 *>(from + i), i, to);
    } else {
#pragma unroll 4
        for (int i = lane; i < a.in; i += 32)
            *reinterpret_cast<T *>(to + (W::NATURAL ? natural_byte(i / 2) + i % 2 * 2 : i * 2)) =
                rounded<T>(load(a.x, row, i));
    }
    end_row<W>(a, to);
}

/* The same, of rows_are_ready, by copies that the caller waits for. */
template <class W>
static __device__ __forceinline__ void copy_row(const stream_args &a, int64_t row, unsigned char *to, uint64_t policy) {
    const unsigned char *from = static_cast<const unsigned char *>(a.x.at) + row * a.x.stride * 2;
    uint32_t at = shared_address(to);
#pragma unroll 4
    for (int i = threadIdx.x % 32 * PIECE; i < a.in * 2; i += 32 * PIECE)
        copy_later(at + i, from + i, false, policy);
    end_row<W>(a, to);
}

/* A row that lies as products want it, by all threads of the block: the node before may still run. */
template <class W> static __device__ void bring_row_early(const stream_args &a, int64_t row, unsigned char *to) {
    const unsigned char *from = static_cast<const unsigned char *>(a.x.at) + row * a.x.stride * 2;
    int n_bytes = a.in * 2, end = a.x_pitch - W::X_ASIDE;
#pragma unroll 2
    for (int i = threadIdx.x * PIECE; i < end; i += blockDim.x * PIECE) {
        uint4 v = i < n_bytes ? __ldcg(reinterpret_cast<const uint4 *>(from + i)) : make_uint4(0, 0, 0, 0);
        put_piece<W>(v, i, to);
    }
}

/* The pairs of the list's places first .. first + n, and their rows. All of a warp's rows are on their way together,
 * behind the first weights of its queue: both are waited for. */
template <class W, bool UP>
static __device__ void bring_places(const stream_args &a, int first, int n, unsigned char *x, int *pairs) {
    const bool copied = !W::NATURAL && rows_are_ready<W>(a);
    const uint64_t policy = policy_read_again();
    for (int i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
        int pair = a.ids ? first + i : a.list.pair[first + i];
        int64_t row = UP ? a.first_token + pair / a.top_k : pair;
        if (threadIdx.x % 32 == 0)
            pairs[i] = pair;
        if (copied)
            copy_row<W>(a, row, x + i * a.x_pitch, policy);
        else
            bring_row<W>(a, row, x + i * a.x_pitch);
    }
    close_batch();
    wait_batches<0>();
}
