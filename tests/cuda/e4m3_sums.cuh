/* e4m3_sums.cuh - sums of e4m3 products as sm_90's tensor core has them, bit for bit: of what it loses nothing is left
 * to be allowed for.
 *
 * wgmma of e4m3 adds 33 numbers at a time: the sum so far and 32 products, whose exponents are the sums of their
 * elements' (-6 of subnormal ones), whatever the fractions come to. E is the largest exponent of those that are not
 * zero. Each is cut, towards zero, to a multiple of 2^(E - 13); these are added exactly; and of that a float32 sum gets
 * the first 14 bits, cut again, one of float16 what it rounds to, to nearest.
 *
 * No document says so: it is what H200s gave in every sum that was looked at (docs/lab/cuda_proof.md, "what sums of
 * e4m3 lose"), and how the machine of
 * tests/ptx computes them. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

namespace e4m3_sums {

enum { FRACTION = 13, AT_ONCE = 32, PIECE = 128, NONE = -1000 }; // NONE: the exponent of zero
enum { WARPS = 8, EACH = 4, ROWS = WARPS * EACH, TOKENS = 32 };  // of a block: a lane has a token, and some rows of w

/* How columns are summed: their pieces of 128 are shared out among n chains, in order, and sums of chains are added in
 * that order, in their format. */
struct chains {
    int n;
    bool halves;
};

/* 32 elements: their values, and exponents in bytes, 64 more than a float32's of 2^-120 times the size; 0: zero. 16
 * bytes more for the banks. */
struct decoded {
    float4 values[AT_ONCE / 4];
    uint4 exponents[AT_ONCE / 16], unused;
};
static __device__ void decode(decoded &to, int i, uint32_t four) {
    const uint32_t ONES = 0x01010101;
    uint32_t sizes = four & 0x7f * ONES, exponents = sizes >> 3 & 0xf * ONES;
    uint32_t is_there = (sizes + 0x7f * ONES) >> 7 & ONES, is_normal = (exponents + 0x7f * ONES) >> 7 & ONES;
    reinterpret_cast<uint32_t *>(to.exponents)[i] = is_there << 6 | exponents | (is_there ^ is_normal);
    for (int k = 0; k < 4; k++)
        reinterpret_cast<float *>(to.values)[4 * i + k] =
            __int_as_float((int)(four << (24 - 8 * k)) >> 4 & (int)0x87f00000u) * 0x1p120f;
}

static __device__ int exponent_of(float sum) { return sum == 0 ? NONE : (int)(__float_as_uint(sum) >> 23 & 255) - 127; }
static __device__ float power(int exponent) { return __int_as_float((127 + exponent) << 23); }

/* The largest exponent of a product, of any that is not zero. */
static __device__ uint32_t larger_pairs(uint32_t most, uint32_t bytes) {
    return __vmaxu2(most, __vmaxu2(bytes & 0x00ff00ffu, bytes >> 8 & 0x00ff00ffu));
}
static __device__ int exponent_of(const decoded &w, const decoded &x) {
    uint32_t most = 0;
    for (int i = 0; i < AT_ONCE / 16; i++) {
        uint4 a = w.exponents[i], b = x.exponents[i];
        most = larger_pairs(larger_pairs(larger_pairs(larger_pairs(most, a.x + b.x), a.y + b.y), a.z + b.z), a.w + b.w);
    }
    int largest = max(most & 0xffff, most >> 16);
    return largest < 128 ? NONE : largest - 128 - 14;
}

/* The sum so far and 32 terms. */
static __device__ float add(float sum, const decoded &w, const decoded &x, bool halves) {
    int e = max(exponent_of(sum), exponent_of(w, x));
    if (e == NONE)
        return sum;
    float scale = power(FRACTION - e), unit = power(e - FRACTION);
    int units = __float2int_rz(sum * scale);
    for (int i = 0; i < AT_ONCE / 4; i++) {
        float4 a = w.values[i], b = x.values[i];
        units += __float2int_rz(a.x * b.x * scale) + __float2int_rz(a.y * b.y * scale) + // products have 8 bits
                 __float2int_rz(a.z * b.z * scale) + __float2int_rz(a.w * b.w * scale);
    }
    if (halves)
        return __half2float(__float2half_rn((float)units * unit));
    return __uint_as_float(__float_as_uint((float)units) & ~0u << (23 - FRACTION)) * unit;
}

/* Four elements of a row, or zeros behind its end. */
static __device__ uint32_t four_of(const uint8_t *row, int at, int end) {
    return row && at < end ? *reinterpret_cast<const uint32_t *>(row + at) : 0;
}

/* Columns [begin, end) of the block's rows, of which the thread has one of w and one of x to decode. */
static __device__ void add_chain(float (&sums)[EACH], const uint8_t *w, const uint8_t *x, int begin, int end,
                                 bool halves) {
    __shared__ decoded of_w[ROWS], of_x[TOKENS];
    int thread = threadIdx.y * 32 + threadIdx.x, i = thread % 8;
    for (int k = begin; k < end; k += AT_ONCE) {
        __syncthreads(); // all are done with those before
        decode(of_w[thread / 8], i, four_of(w, k + 4 * i, end));
        decode(of_x[thread / 8], i, four_of(x, k + 4 * i, end));
        __syncthreads(); // they are there
        for (int r = 0; r < EACH; r++)
            sums[r] = add(sums[r], of_w[threadIdx.y + WARPS * r], of_x[threadIdx.x], halves);
    }
}

/* sums[token][row] of x w^T, of `in` columns, a multiple of 16. Blocks of (32, WARPS) threads, a grid of rows of w by
 * tokens. */
static __global__ void sum_up(const uint8_t *w, const uint8_t *x, int64_t x_stride, int out, int in, int n, chains c,
                              float *to) {
    int thread = threadIdx.y * 32 + threadIdx.x, row = blockIdx.x * ROWS + thread / 8,
        token = blockIdx.y * TOKENS + thread / 8;
    const uint8_t *of_w = row < out ? w + (int64_t)row * in : nullptr,
                  *of_x = token < n ? x + token * x_stride : nullptr;
    int n_pieces = (in + PIECE - 1) / PIECE, first = blockIdx.x * ROWS + threadIdx.y;
    float sums[EACH] = {};
    for (int i = 0; i < c.n; i++) {
        float more[EACH] = {};
        add_chain(more, of_w, of_x, n_pieces * i / c.n * PIECE, min(in, n_pieces * (i + 1) / c.n * PIECE), c.halves);
        for (int r = 0; r < EACH; r++)
            sums[r] = c.halves ? __half2float(__float2half_rn(sums[r] + more[r])) : sums[r] + more[r];
    }
    token = blockIdx.y * TOKENS + threadIdx.x;
    for (int r = 0; r < EACH; r++)
        if (token < n && first + WARPS * r < out)
            to[(int64_t)token * out + first + WARPS * r] = sums[r];
}

} // namespace e4m3_sums
