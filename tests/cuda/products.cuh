/* products.cuh - what the tests of products share: random numbers, and calls that must succeed. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

#include <cuda_fp8.h>
#include <math.h>
#include <stdio.h>

#define MUST(call)                                                                \
    do {                                                                          \
        cudaError_t code_ = (call);                                               \
        if (code_ != cudaSuccess) {                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            fflush(stdout);                                                       \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static __device__ __host__ uint32_t hash(uint64_t i) {
    i += 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(i >> 32);
}
/* Exponent and mantissa as a float's, which counts exponents from -127 and not from -7. */
static __device__ __host__ double e4m3_value(unsigned char v) {
    union {
        uint32_t bits;
        float size;
    } as = {(v & 0x7fu) << 20};
    return (v & 0x80 ? -1.0 : 1.0) * (as.size * 0x1p120f);
}

enum { TWIN_POISON = 0xee };
/* Whether a static qact tells the octet that these elements are of (launch_quantise_rest). */
static __device__ bool is_told(const uint8_t *elements) {
    bool some = false, all = true;
    for (int i = 0; i < 8; i++) {
        double size = fabs(e4m3_value(elements[i]));
        some = some || size >= 0.125;
        all = all && size < 256; // 0x7f, which is no number, counts as 480
    }
    return some && all;
}

static __global__ void fill8(unsigned char *at, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned char v = (unsigned char)hash(seed * 0x100000000u + i);
        at[i] = (v & 0x7f) == 0x7f ? 0 : v;
    }
}
/* Sizes of a value's row, and then of a row of w [rows, in], a block each, as value.h promises. */
static __global__ void lower_values(unsigned char *at, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (e4m3_value(at[i] & 0x7f) > E4M3_FULL)
            at[i] -= 4 << 3; // of the exponent: 448 becomes 28
}
static __global__ void lower_weights(unsigned char *w, int in, float norm) {
    __shared__ float shared[32];
    w += (size_t)blockIdx.x * in;
    float squares = 0;
    for (int i = threadIdx.x; i < in; i += blockDim.x)
        squares += (float)(e4m3_value(w[i]) * e4m3_value(w[i]));
    int s = max(0, (int)ceilf(log2f(sqrtf(block_sum(squares, shared)) / norm * 1.0001f)));
    for (int i = threadIdx.x; i < in; i += blockDim.x)
        w[i] = __nv_cvt_float_to_fp8((float)ldexp(e4m3_value(w[i]), -s), __NV_SATFINITE, __NV_E4M3);
}
/* Rows of one size each, with signs of their own, alike in x [rows, stride] and w but for a row's own sign: their sums
 * are as large as any. */
static __global__ void fill_alike(unsigned char *at, int in, int64_t stride, unsigned char code, uint64_t seed) {
    for (int i = threadIdx.x; i < in; i += blockDim.x)
        at[blockIdx.x * stride + i] =
            code ^ ((hash(seed * 0x100000000u + i) ^ hash(seed + 7919 * (uint64_t)blockIdx.x) >> 1) & 1) << 7;
}
static __global__ void fill32(float *at, size_t n, uint64_t seed, float low, float high) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        at[i] = low + (high - low) * (hash(seed * 0x100000000u + i) >> 8) / 16777216.0f;
}
