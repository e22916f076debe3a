/* latent.cuh - what the kernels of latent.h share: where a latent row lies, chunks, and how chunks are joined. */
#pragma once

#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/attention/latent/latent.h"
#include "backend/cuda/ptx/mma.cuh"

/* Keys of a chunk of a token that sees so many. */
__device__ inline int latent_chunk(int n_keys) {
    int keys = LATENT_LEAST_CHUNK;
    while (keys * LATENT_CHUNKS < n_keys)
        keys *= 2;
    return keys;
}
__device__ inline int latent_n_chunks(int n_keys) {
    int keys = latent_chunk(n_keys);
    return (n_keys + keys - 1) / keys;
}

/* The chunk of the line at which block b begins; and the first block that begins at chunk `at` or behind it. */
__device__ inline int latent_first_chunk(int b, int n_blocks, int total) {
    return (int)((int64_t)b * total / n_blocks);
}
__device__ inline int latent_first_block(int at, int n_blocks, int total) {
    return (int)(((int64_t)at * n_blocks + total - 1) / total);
}

/* A row of a task while its chunks are joined: what is summed is o / total. */
struct latent_join {
    float top, total;

    __device__ void clear() { top = -INFINITY, total = 0; }
    /* What sums so far, and those of a chunk of this largest score and this sum of P, are multiplied by. */
    __device__ float2 add(float m, float l) {
        float larger = fmaxf(top, m), old = exp2_fast(top - larger), by = __fmul_rn(l, exp2_fast(m - larger));
        old = top == -INFINITY ? 0.0f : old;
        top = larger;
        total = __fmaf_rn(total, old, by);
        return {old, by};
    }
    __device__ float factor() const { return __frcp_rn(total); }
};
__device__ inline float latent_joined(float o, float chunk, float2 by) {
    return __fmaf_rn(by.y, chunk, __fmul_rn(o, by.x));
}

/* Of four words of each lane of a quad word i becomes lane i's, in the order of the lanes: what a quad has of four
 * tiles of sums is a tile's 16 bytes in each lane. */
__device__ inline uint4 latent_turned(const uint32_t (&w)[4]) {
    int t = threadIdx.x % 4;
    bool odd = t & 1, high = t & 2;
    uint32_t u = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1),
             v = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
    uint2 p = odd ? uint2{u, w[1]} : uint2{w[0], u}, q = odd ? uint2{v, w[3]} : uint2{w[2], v};
    uint2 sent = high ? p : q;
    u = __shfl_xor_sync(0xffffffffu, sent.x, 2), v = __shfl_xor_sync(0xffffffffu, sent.y, 2);
    return high ? uint4{u, v, q.x, q.y} : uint4{p.x, p.y, u, v};
}

__device__ inline float2 latent_halves(uint32_t pair) { return __half22float2(reinterpret_cast<__half2 &>(pair)); }
