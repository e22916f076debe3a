/* norm_row.cuh - ADD_NORM of the one row of a step, in the node that reads it: every block adds, sums up and norms all
 * of the row for itself, which takes no longer than it takes to bring the normed one, and writes a share of r.
 *
 *     const row_normed<FOURS> row(a);                                // before the wait: the norm's weights
 *     row.bring(a, shares, share, n_shares);                         // after it
 *     row.each(a, [&](int col, float4 y) { ... });                   // columns col .. col + 3
 *
 * Thread i has the fours i, i + blockDim.x, ... of the row. */
#pragma once

#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/rows/norm_row.h"
#include "backend/cuda/value.h"

struct norm_row_args {
    const float *x, *d, *w; // [width]; d NULL: 0, w NULL: 1
    float *r;
    int width;
    float eps, plus, one_of_width;
};

static inline norm_row_args norm_row_args_of(const struct dnorm_row *n) {
    return {static_cast<const float *>(n->x.at),
            static_cast<const float *>(n->d.at),
            static_cast<const float *>(n->w.at),
            static_cast<float *>(n->r.at),
            n->x.width,
            n->eps,
            n->w.at && n->plus_one ? 1.0f : 0.0f,
            1.0f / (float)n->x.width};
}

template <int FOURS> struct row_normed {
    float4 v[FOURS], w[FOURS];

    __device__ __forceinline__ row_normed(const norm_row_args &a) {
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            int col = 4 * (threadIdx.x + k * blockDim.x);
            v[k] = w[k] = float4{};
            if (col < a.width)
                w[k] = a.w ? *reinterpret_cast<const float4 *>(a.w + col) + a.plus : make_float4(1, 1, 1, 1);
        }
    }

    /* shares: floats [32], shared. r is written by the blocks together, each a share. */
    __device__ __forceinline__ void bring(const norm_row_args &a, float *shares, int share, int n_shares) {
        float4 d[FOURS];
        float sum = 0;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            int col = 4 * (threadIdx.x + k * blockDim.x);
            bool there = col < a.width;
            v[k] = there ? *reinterpret_cast<const float4 *>(a.x + col) : float4{};
            d[k] = there && a.d ? *reinterpret_cast<const float4 *>(a.d + col) : float4{};
        }
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            int i = threadIdx.x + k * blockDim.x;
            v[k] = v[k] + d[k];
            sum += dot(v[k], v[k]);
            if (4 * i < a.width && i % n_shares == share)
                *reinterpret_cast<float4 *>(a.r + 4 * i) = v[k];
            v[k] = v[k] * w[k];
        }
        int lane = threadIdx.x % 32;
        sum = warp_sum(sum);
        if (lane == 0)
            shares[threadIdx.x / 32] = sum;
        __syncthreads(); // every warp's is there
        sum = warp_sum(lane < (int)blockDim.x / 32 ? shares[lane] : 0.0f);
        float factor = rsqrtf(sum * a.one_of_width + a.eps);
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            v[k] = v[k] * factor;
    }

    template <class F> __device__ __forceinline__ void each(const norm_row_args &a, F take) const {
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            int col = 4 * (threadIdx.x + k * blockDim.x);
            if (col < a.width)
                take(col, v[k]);
        }
    }
};
