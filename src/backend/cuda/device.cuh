/* device.cuh - what the plain kernels share: elements of either type as floats, reductions, places in the cache. */
#pragma once

#include "backend/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline float load(const void *at, int64_t i, element e) {
    if (e == ELEMENT_F32)
        return static_cast<const float *>(at)[i];
    return e == ELEMENT_F16 ? __half2float(static_cast<const __half *>(at)[i])
                            : __bfloat162float(static_cast<const __nv_bfloat16 *>(at)[i]);
}

/* Half precision ends at 65504: what is larger becomes that, as an infinity would spoil every row that it is summed into. */
__device__ inline __half to_half(float x) { return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)); }

__device__ inline void store(void *at, int64_t i, element e, float x) {
    if (e == ELEMENT_F32)
        static_cast<float *>(at)[i] = x;
    else if (e == ELEMENT_F16)
        static_cast<__half *>(at)[i] = to_half(x);
    else
        static_cast<__nv_bfloat16 *>(at)[i] = __float2bfloat16_rn(x);
}

__device__ inline float load(const dmat &m, int64_t row, int col) { return load(m.at, row * m.stride + col, m.element); }
__device__ inline void store(const dmat &m, int64_t row, int col, float x) { store(m.at, row * m.stride + col, m.element, x); }
__device__ inline float load(const dweight &w, int64_t i) { return load(w.at, i, w.element); }

__device__ inline float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Sum over the block, known to every thread. `shared` holds 32 floats; all threads call it, and may use shared again at once. */
__device__ inline float block_sum(float x, float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads(); // every warp's sum is there
    x = warp_sum(lane < n_warps ? shared[lane] : 0.0f);
    __syncthreads(); // everybody has read them
    return x;
}

__device__ inline float block_max(float x, float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
    x = warp_max(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = warp_max(lane < n_warps ? shared[lane] : -INFINITY);
    __syncthreads();
    return x;
}

__device__ inline int step_tokens(const device_plan &p) { return p.counts[0]; }
__device__ inline int step_seqs(const device_plan &p) { return p.counts[1]; }
__device__ inline int step_rows(const device_plan &p) { return p.counts[2]; }

/* The first element of the block that holds a position of a sequence. */
__device__ inline int64_t block_start(const device_plan &p, const dcache &c, int block_size, int seq, int position) {
    int block = p.block_table[c.group][(int64_t)seq * p.table_width[c.group] + position / block_size];
    return block * c.block_elements;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

/* core/ops.h activation, in its order. */
__device__ inline float activate(int act, float limit, float gate, float up) {
    switch (act) {
    case 0: return silu(gate) * up;
    case 1: return 0.5f * gate * (1.0f + tanhf(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate))) * up;
    case 2: return 0.5f * gate * (1.0f + erff(gate * 0.7071067811865476f)) * up;
    case 3: return sigmoid(gate) * up;
    default: {
        float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        return (u + 1.0f) * g * sigmoid(1.702f * g);
    }
    }
}
