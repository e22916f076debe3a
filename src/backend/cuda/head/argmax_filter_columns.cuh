/* argmax_filter_columns.cuh - of argmax_filter.cu: columns of W and x that are scaled before they become bytes, so that
 * outlying channels cost little.
 *
 * One element of x_j that is A times the others makes its step A times as large, and the bound, t_j sqrt(s_i^2 |p_j|^2
 * + |w_i|^2), nearly so. But w.x is the sum of (w_k c_k) (x_k / c_k) for any c, and the bound (docs/numerics.md) holds
 * of these. With a_k = c_k W_k and b_k = X_k / c_k, sizes of columns, the bound is about
 *
 *     sqrt(max(a)^2 |b|^2 + max(b)^2 |a|^2) >= sqrt(2 max(a) max(b) |a| |b|) >= sqrt(2 max(M) sum(M)),      M_k = a_k
 *                                                                                                           b_k = W_k
 *                                                                                                           X_k
 *
 * whatever c is, and is that where a = b: c_k = sqrt(X_k / W_k), as in SmoothQuant (Xiao et al., 2022). A channel of A
 * = 12 in 500 then costs 1.5 times the bound of none, in deviations of a logit, where it was 3.1 times, and one of A =
 * 200, which is most of each logit, less than none.
 *
 * W_k is the largest size in the column. X_k is learned: c is 1 until steps were left too often. Then the first WATCHED
 * of the steps that are paused leave the largest size of x in each column, the host is asked, and puts `balance` and a
 * second copying before some later step (launch_filter_again). Where the bound would be narrower by less than a tenth
 * nothing happens, and the pause goes on. Tokens are the same whatever c is. */
#pragma once

#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/argmax_filter_bound.cuh"
#include "backend/cuda/value.h"

namespace screen {

enum {
    WATCHED = 16, // steps: of one row each that is enough for what the bound wants
    PAUSE = 256,
    COLUMN_THREADS = 256,
    COLUMN_BLOCKS = 64, // of rows of W, each
    BALANCE_THREADS = 1024,
};
constexpr float WORTH = 0.9f;              // of the bound, at most, for a copy to be made again
constexpr float LEAST_SIZE = 1.0f / 1024;  // of a column, as a part of the mean
constexpr float LEAST_SCALE = 1.0f / 4096; // the largest is 1, so that nothing in W becomes infinite
constexpr float REMEMBERED = 0.5f;         // of what was seen before

/* Behind the rows in dfilter.copy. */
struct columns {
    float *scale;           // of W
    __nv_bfloat16 *inverse; // of x: 1 / scale, which float32 has but for 2^-24
    float *most_w, *most_x; // largest sizes: of W, of x as it was seen
    int32_t *is_new;        // scale is another than that of the copy
};

/* Eight elements of 16 bits. */
template <bool BF16> __device__ void eight_of(const void *at, float (&v)[8]) {
    uint4 four = *static_cast<const uint4 *>(at);
    const uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (BF16) {
            v[2 * i] = __uint_as_float(pairs[i] << 16), v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        } else {
            float2 f = __half22float2(reinterpret_cast<const __half2 &>(pairs[i]));
            v[2 * i] = f.x, v[2 * i + 1] = f.y;
        }
    }
}

/* Eight columns' scales. */
__device__ inline void eight_scales(const float *at, float (&v)[8]) {
    float4 low = *reinterpret_cast<const float4 *>(at), high = *reinterpret_cast<const float4 *>(at + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
__device__ inline void eight_scales(const __nv_bfloat16 *at, float (&v)[8]) { eight_of<true>(at, v); }

/* The column's size becomes the larger; it is 0 or more. */
__device__ inline void raise_column(float *at, float size) {
    if (size > *reinterpret_cast<volatile float *>(at) && size < INFINITY)
        atomicMax(reinterpret_cast<int *>(at), __float_as_int(size));
}

/* A block's row of x. */
template <bool BF16> __device__ void watch_columns(const char *at, int n, const columns &c) {
    for (int k = threadIdx.x * 8; k < n; k += blockDim.x * 8) {
        float v[8];
        eight_of<BF16>(at + 2 * (int64_t)k, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            raise_column(c.most_x + k + i, fabsf(v[i]));
    }
}

/* In pinned memory; NULL: nobody reads them. */
struct host_words {
    int32_t *asked;
    dcounts *counts;
};

/* One step less is not to be screened; when enough of them were watched the host is asked for better scales. */
__device__ inline void count_pause(dfilter_state *state, const host_words &host) {
    if (--state->paused == PAUSE - WATCHED && host.asked)
        *host.asked = 1;
    if (host.counts)
        atomicAdd(&host.counts->paused, 1ull);
}

// ---- between steps --------------------------------------------------------------------------------------------------

/* Nothing is known of x. */
static __global__ void begin_columns(columns c, int n) {
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
        c.scale[k] = 1, c.inverse[k] = __float2bfloat16_rn(1);
        c.most_w[k] = c.most_x[k] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *c.is_new = 1;
}

/* most_w: a warp has 256 columns of every so manieth row, eight a lane. */
template <bool BF16>
__global__ void __launch_bounds__(COLUMN_THREADS) measure_columns(const char *w, int64_t out, int in, columns c) {
    int k = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
    if (k >= in)
        return;
    float most[8] = {};
#pragma unroll 4
    for (int64_t i = blockIdx.y * (COLUMN_THREADS / 32) + threadIdx.x / 32; i < out;
         i += gridDim.y * (COLUMN_THREADS / 32)) {
        float v[8];
        eight_of<BF16>(w + (i * in + k) * 2, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            most[j] = fmaxf(most[j], fabsf(v[j]));
    }
    for (int j = 0; j < 8; j++)
        raise_column(c.most_w + k + j, most[j]);
}

/* What a bound is made of, for some scale. */
struct balance_of {
    float most_a, most_b, a, b; // the largest; sums of squares
    __device__ void add(float of_a, float of_b) {
        most_a = fmaxf(most_a, of_a), most_b = fmaxf(most_b, of_b);
        a += of_a * of_a, b += of_b * of_b;
    }
    __device__ float bound(float *shared) const {
        float all_a = block_sum(a, shared), all_b = block_sum(b, shared), m_a = block_max(most_a, shared),
              m_b = block_max(most_b, shared);
        return sqrtf(m_a * m_a * all_b + m_b * m_b * all_a);
    }
};

/* One block: scale of what is known of W and x, if that is worth a copy; then steps are tried again. */
static __global__ void __launch_bounds__(BALANCE_THREADS) balance(columns c, int n, dfilter_state *state) {
    __shared__ float shared[32];
    float sum_w = 0, sum_x = 0, most = 0;
    for (int k = threadIdx.x; k < n; k += BALANCE_THREADS)
        sum_w += c.most_w[k], sum_x += c.most_x[k];
    float least_w = block_sum(sum_w, shared) / (float)n * LEAST_SIZE,
          least_x = block_sum(sum_x, shared) / (float)n * LEAST_SIZE;
    auto w_of = [&](int k) { return fmaxf(c.most_w[k], least_w); };
    auto x_of = [&](int k) { return fmaxf(c.most_x[k], least_x); };
    auto even = [&](int k) { return sqrtf(x_of(k)) / sqrtf(w_of(k)); };
    for (int k = threadIdx.x; k < n; k += BALANCE_THREADS)
        most = fmaxf(most, even(k));
    most = block_max(most, shared);
    auto scale = [&](int k) { return fmaxf(even(k) / most, LEAST_SCALE); };
    balance_of now = {}, then = {};
    for (int k = threadIdx.x; k < n; k += BALANCE_THREADS) {
        now.add(c.scale[k] * w_of(k), x_of(k) / c.scale[k]);
        then.add(scale(k) * w_of(k), x_of(k) / scale(k));
    }
    bool is_worth =
        then.bound(shared) < WORTH * now.bound(shared); // not where nothing is known, or too much to be a number
    for (int k = threadIdx.x; k < n; k += BALANCE_THREADS) {
        if (is_worth) {
            c.inverse[k] = __float2bfloat16_rn(1 / scale(k));
            c.scale[k] = 1 / __bfloat162float(c.inverse[k]);
        }
        c.most_x[k] *= REMEMBERED;
    }
    if (threadIdx.x != 0)
        return;
    *c.is_new = is_worth;
    if (is_worth)
        state->paused = 0, state->recent = 0, state->n_again++;
}

} // namespace screen
