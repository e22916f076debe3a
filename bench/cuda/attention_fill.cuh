/* attention_fill.cuh - of attention.cu: memory of the device, and what queries and caches are filled with. */
#pragma once

#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/value.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void try_(cudaError_t code, const char *what) {
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(2);
}
#define TRY_CUDA(call) try_((call), #call)

template <class T> static T *device(size_t n) {
    T *p;
    TRY_CUDA(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)));
    return p;
}
template <class T> static T *to_device(const std::vector<T> &v) {
    T *p = device<T>(v.size());
    TRY_CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static __device__ float random_float(uint64_t i, uint32_t seed) { // about normal
    float sum = 0;
    uint64_t x = i * 0x9E3779B97F4A7C15ull + seed;
    for (int k = 0; k < 4; k++) {
        x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
        x ^= x >> 29;
        sum += (float)(uint32_t)(x >> 16) * 0x1p-32f - 0.5f;
    }
    return sum * 1.7f;
}

static __global__ void fill_queries(dmat q, int64_t n, uint32_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        store(q.at, i, q.element, random_float(i, seed));
}

/* Keys and values of positions [from, to) of each sequence; a block a slot of a sequence and head. */
static __global__ void fill_cache(device_plan plan, dcache cache, int n_heads, int dim, int turned, int n_slots,
                                  const int *from, const int *to, uint32_t seed) {
    __shared__ float shared[32];
    int s = blockIdx.y, h = blockIdx.z;
    kv_shape shape = {n_heads, turned ? turned : dim, dim, n_slots, cache.element, turned > 0};
    for (int j = from[s] + blockIdx.x; j < to[s]; j += gridDim.x) {
        char *block = kv_block(plan, cache, n_slots, s, j);
        for (int side = 0; side < 2; side++) {
            uint64_t row = (((uint64_t)s * 1000003 + j) * n_heads + h) * 2 + side;
            float x[8], most = 0, size = 0.5f + random_float(turned ? row | 1 : row, seed + 1) * 0.2f;
            for (int i = threadIdx.x, k = 0; i < dim; i += blockDim.x, k++)
                most = fmaxf(most, fabsf(x[k] = size * random_float(row * 1024 + i, seed)));
            most = turned ? 3.4f * fabsf(size) : block_max(most, shared); // of shared keys both sides have one scale
            float scale = kv_has_scales(cache.element) ? kv_scale(cache.element, most) : 1.0f;
            for (int i = threadIdx.x, k = 0; i < dim; i += blockDim.x, k++)
                if (side || !turned || kv_moved(i, dim, turned) < turned)
                    kv_store(block + (side ? shape.value(h, j % n_slots, i) : shape.key(h, j % n_slots, i)),
                             cache.element, x[k] / scale);
            if (threadIdx.x == 0 && kv_has_scales(cache.element))
                *(float *)(block + shape.scale(side, h, j % n_slots)) = scale;
        }
    }
}
