/* products.cuh - what the tests of products share: random numbers, and calls that must succeed. */
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
