/* rows_of_sizes.cuh - rows whose largest size a static scale fits or not: within the window, at its ends and a little beyond, zero, tiny, not finite. */
#pragma once

#include "products.cuh"

#include <string.h>

/* How a row's largest size stands to the static scale. */
static __device__ float size_of_row(uint32_t bits, float static_scale) {
    switch (bits % 12) {
    case 0: return 0;
    case 1: return STATIC_LEAST * static_scale;
    case 2: return STATIC_MOST * static_scale;
    case 3: return STATIC_LEAST * static_scale * 0.99f;
    case 4: return STATIC_MOST * static_scale * 1.01f;
    case 5: return 1e-6f;
    case 6: return 60000;
    case 7: return INFINITY;
    case 8: return NAN;
    default: return static_scale * STATIC_LEAST * powf((float)STATIC_MOST / STATIC_LEAST, (bits / 12 % 1000 + 0.5f) / 1001); // within
    }
}

/* And their largest sizes, into x.most, which is zero before. */
static __global__ void fill_rows(dmat x, uint64_t seed, float static_scale, bool all_within) {
    int row = blockIdx.x;
    uint32_t bits = hash(seed + row), at = hash(seed * 31 + row) % x.width;
    float size = size_of_row(all_within ? bits / 12 * 12 + 9 : bits, static_scale);
    for (int col = threadIdx.x; col < x.width; col += blockDim.x) {
        float share = (hash(seed * 77 + row * 5000ull + col) >> 8) / 16777216.0f * 2 - 1;
        float v = col == (int)at ? size : isfinite(size) ? size * share * share * share : share;
        store(x, row, col, v);
        atomicMax(x.most + row, __float_as_uint(fabsf(load(x, row, col))));
    }
}

static __host__ __device__ bool is_within(uint32_t most, float static_scale) {
    float size;
    memcpy(&size, &most, sizeof size);
    return size == 0 || (size >= STATIC_LEAST * static_scale && size <= STATIC_MOST * static_scale);
}
