/* products.cuh - what the tests of products from e4m3 values share: random operands, and products in double precision. */
#pragma once

#include "backend/cuda/device.cuh"

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
static __device__ double e4m3_value(unsigned char v) {
    int e = v >> 3 & 15, m = v & 7;
    double size = e ? ldexp(8.0 + m, e - 10) : ldexp((double)m, -9);
    return v & 0x80 ? -size : size;
}

static __global__ void fill8(unsigned char *at, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned char v = (unsigned char)hash(seed * 0x100000000u + i);
        at[i] = (v & 0x7f) == 0x7f ? 0 : v;
    }
}
static __global__ void fill32(float *at, size_t n, uint64_t seed, float low, float high) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        at[i] = low + (high - low) * (hash(seed * 0x100000000u + i) >> 8) / 16777216.0f;
}

/* products[token][row] and the sum of their sizes. */
static __global__ void reference(const unsigned char *w, const unsigned char *x, int64_t x_stride, const float *w_scale,
                                 const float *x_scale, const float *bias, int out, int in, double *products, double *sizes) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, token = blockIdx.y;
    if (row >= out)
        return;
    double sum = 0, size = 0;
    for (int i = threadIdx.x; i < in; i += 32) {
        double t = e4m3_value(w[(int64_t)row * in + i]) * e4m3_value(x[token * x_stride + i]);
        sum += t, size += t * t;
    }
    for (int s = 16; s > 0; s /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, s);
        size += __shfl_xor_sync(0xffffffffu, size, s);
    }
    if (threadIdx.x == 0) {
        double scale = (double)w_scale[row] * x_scale[token];
        products[(int64_t)token * out + row] = sum * scale + (bias ? bias[row] : 0);
        sizes[(int64_t)token * out + row] = sqrt(size) * scale;
    }
}
