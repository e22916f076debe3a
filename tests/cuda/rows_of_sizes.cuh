/* rows_of_sizes.cuh - rows whose largest size a static scale fits or not: within the window, at its ends and a little
 * beyond, zero, tiny, not finite; and what launch_quantise_rest should make of them (value.h). */
#pragma once

#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"
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
    default:
        return static_scale * STATIC_LEAST *
               powf((float)STATIC_MOST / STATIC_LEAST, (bits / 12 % 1000 + 0.5f) / 1001); // within
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
        atomicMax(x.absmax + row, __float_as_uint(fabsf(load(x, row, col))));
    }
}

static __host__ __device__ bool is_within(uint32_t most, float static_scale) {
    float size;
    memcpy(&size, &most, sizeof size);
    return size == 0 || (size >= STATIC_LEAST * static_scale && size <= STATIC_MOST * static_scale);
}

// ---- qacts by a static scale ----------------------------------------------------------------------------------------

/* The least power of two for which that is E4M3_FULL at most; as for 1e-30 of what is smaller or no number. */
static __device__ float scale_beside(uint32_t most) {
    float size = __uint_as_float(most), scale = 0x1p-126f;
    if (isinf(size))
        return size;
    while ((double)scale * E4M3_FULL < (double)fmaxf(size, 1e-30f))
        scale *= 2;
    return scale;
}

/* What a maker leaves for launch_quantise_rest: elements by the static scale, no scales, and of the value no octet that
 * they tell. requantised: what is to become of it; kept, poison in place of the elements of rows that are left as they
 * are. A block a row. */
static __global__ void write_qacts(dmat value, dmat qact, dmat requantised, uint8_t kept) {
    int row = blockIdx.x;
    bool within = is_within(value.absmax[row], qact.static_scale);
    float scale = within ? qact.static_scale : scale_beside(value.absmax[row]);
    uint8_t *elements = static_cast<uint8_t *>(qact.at) + row * qact.stride,
            *to = static_cast<uint8_t *>(requantised.at) + row * requantised.stride;
    for (int octet = threadIdx.x; octet < qact.width / 8; octet += blockDim.x) {
        float v[8];
        for (int i = 0; i < 8; i++) {
            v[i] = load(value, row, octet * 8 + i);
            elements[octet * 8 + i] = __nv_cvt_float_to_fp8(v[i] / qact.static_scale, __NV_SATFINITE, __NV_E4M3);
        }
        bool told = is_told(elements + octet * 8);
        for (int i = 0; i < 8; i++) {
            uint8_t &element = elements[octet * 8 + i];
            float known = told ? (float)e4m3_value(element) * qact.static_scale : v[i];
            to[octet * 8 + i] = within ? element : __nv_cvt_float_to_fp8(known / scale, __NV_SATFINITE, __NV_E4M3);
            if (within && kept)
                element = to[octet * 8 + i] = kept;
            if (told)
                store(value, row, octet * 8 + i, NAN);
        }
    }
    if (threadIdx.x == 0) {
        qact.scale[row] = -1;
        requantised.scale[row] = scale;
    }
}
