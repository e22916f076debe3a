/* placing.cuh - what kernels that place weights share: numbers as stored, and a count of what became of them. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/weights/place.h"

#include <cuda_fp8.h>

static __device__ float from_e4m3(uint8_t code) {
    __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
    return __half2float(__half(half));
}

static __device__ float stored(const dstored &x, int64_t row, int64_t col) {
    int64_t i = row * x.in + col;
    float v = x.element == ELEMENT_E4M3 ? from_e4m3(static_cast<const uint8_t *>(x.at)[i]) : load(x.at, i, x.element);
    return x.scale ? v * x.scale[row * x.n_scales + (x.n_scales > 1 ? col / x.scale_cols : 0)] : v;
}

/* What a thread has seen of a matrix. */
struct seen {
    int beyond, lost, present, unreal;
    float squared_error, squared;
};

static __device__ void look(seen *s, float is, float becomes, bool beyond) {
    s->unreal += isnan(is);
    s->beyond += beyond;
    s->present += is != 0.0f;
    s->lost += is != 0.0f && becomes == 0.0f;
    s->squared_error += (is - becomes) * (is - becomes);
    s->squared += is * is;
}

static __device__ void publish(const seen &s, dplaced *counts, float *shared) {
    if (!counts)
        return;
    float error = block_sum(s.squared_error, shared), squared = block_sum(s.squared, shared);
    float beyond = block_sum((float)s.beyond, shared),
          lost = block_sum((float)s.lost, shared); // exact: fewer than 2^24 a block
    float present = block_sum((float)s.present, shared), unreal = block_sum((float)s.unreal, shared);
    if (threadIdx.x != 0)
        return;
    if (unreal > 0)
        atomicAdd(&counts->n_unreal, (unsigned long long)unreal);
    if (beyond > 0)
        atomicAdd(&counts->n_beyond, (unsigned long long)beyond);
    if (lost > 0)
        atomicAdd(&counts->n_lost, (unsigned long long)lost);
    atomicAdd(&counts->n_present, (unsigned long long)present);
    atomicAdd(&counts->squared_error, (double)error);
    atomicAdd(&counts->squared, (double)squared);
}
