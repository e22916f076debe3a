/* moe_order.cuh - the order in which moe_wide.cuh reads columns of tokens. */
#pragma once

#include "backend/cuda/moe/moe_stream_kernel.cuh"

enum { PANEL_COLUMNS = 64 };

/* Where a column lies in its panel, for weights with so many columns a chunk. */
static __device__ __forceinline__ int column_place(int columns, int col) {
    int of_lane = columns / 4, chunk = col / columns, q = col % columns / of_lane, at = col % of_lane;
    return (chunk * (columns / 16) + at / 4) * 16 + at / 2 % 2 * 8 + q * 2 + at % 2;
}

/* Rows of x, of any element, as moe_wide reads tokens: 8 columns of a panel's order a thread. */
template <class T> static __global__ void moe_order(device_plan plan, dmat x, int first, int n, int columns, T *to) {
    let_next_start();
    wait_for_previous();
    int eighths = x.width / 8, i = blockIdx.x * blockDim.x + threadIdx.x, t = i / eighths, at = i % eighths;
    if (t >= min(step_tokens(plan) - first, n))
        return;
    int panel = at / 8 * PANEL_COLUMNS, step = at % 8 / 2, b = at % 2, of_chunk = columns / 16;
    __align__(16) T out[8];
#pragma unroll
    for (int q = 0; q < 4; q++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int col = step / of_chunk * columns + q * (columns / 4) + step % of_chunk * 4 + b * 2 + k;
            out[q * 2 + k] = rounded<T>(load(x, first + t, panel + col));
        }
    reinterpret_cast<uint4 *>(to + (int64_t)t * x.width)[at] = *reinterpret_cast<const uint4 *>(out);
}
