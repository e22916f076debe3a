/* argmax_filter_bound.cuh - what the filter knows of w.x from bytes: rounding, and the bound of what rounding does.
 * docs/numerics.md has the proof. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

namespace screen {

/* Of Hoeffding's bound 4.9; a tenth for what float32 does to steps, quotients and norms, 1e-5 of a step an element,
 * which sums to less than sqrt(K) 1e-5 of the bound, and for thresholds that are rounded to integers. */
constexpr float LAMBDA = 5.0f;
constexpr float LEAST_STEP = 1e-30f;           // so that its inverse is finite: rows and tokens of zeros
constexpr float UPWARDS = 1.0f + 1.0f / 65536; // norms are summed in float32, in trees

/* Uniform in [0, 1), the same for the same place: a counter through the finaliser of splitmix64. */
__host__ __device__ inline uint64_t mixed(uint64_t i) {
    i += 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    return i ^ i >> 31;
}
__host__ __device__ inline float uniform(uint32_t bits) { return (bits >> 8) * (1.0f / 16777216); }

/* The two streams: of w by element, of x by column alone, so that no result depends on what else is in a step. */
enum : uint64_t { GEMV_W = 0x5f0a4d1ull << 40, GEMV_X = 0x93b7c25ull << 40 };

/* x / step rounded up or down so that the mean is x / step. |x| <= 127 step. */
__host__ __device__ inline int rounded(float x, float inverse, float u) { return (int)floorf(x * inverse + u); }

/* The largest is a little below 127 steps, so that with u below 1 it stays there. */
__host__ __device__ inline float step_of(float most) {
    float step = most * (1.000002f / 127);
    return step > LEAST_STEP ? step : LEAST_STEP;
}

/* Of float32 sums of K products in any order, of scaled columns and of the arithmetic of the bound, a part of |w| |x|.
 */
__host__ __device__ inline float sum_error(int64_t k) { return (float)k * (1.0f / 16777216) + 1.0f / 262144; }

/* What a row of W is known by: its values are its bytes times step. size: |w|^2 / step, not less. */
struct row {
    float step, size;
};

/* What a token is known by, with logits in units of its step:
 *     |w.x / step - row.step * sum| <= row.step * spread + row.size * slack */
struct token {
    float step, spread, slack;
};

/* Sums of squares of a row's values in units of its step, and of its bytes. */
struct squares {
    float values, bytes;
};

__device__ inline row row_of(float step, squares s) { return row{step, step * s.values * UPWARDS}; }

/* e_ij in units of t_j, with m = step_i * m_j and m_j^2 = |x|^2 + `typical`, a usual |w|^2 / step^2; both before
 * rounding. So all of it is the row's step and size times what is the token's. Where |w| / step is twice the usual, or
 * half, the bound is a tenth wider than the least, or less (docs/numerics.md, "The choice of m"). */
__device__ inline token token_of(float step, squares x, float typical, int64_t k) {
    float m = sqrtf(fmaxf(x.values + typical, 1)), part = sum_error(k) * sqrtf(x.values) * UPWARDS;
    return token{step, (LAMBDA * (x.bytes / m + m) + part * m) / 2 * UPWARDS, (LAMBDA + part) / (2 * m) * UPWARDS};
}

/* The float at `at` becomes the larger. Neither is NaN. */
__device__ inline void raise(float *at, float v) {
    v += 0.0f; // -0 is 0
    if (v >= 0)
        atomicMax(reinterpret_cast<int *>(at), __float_as_int(v));
    else
        atomicMin(reinterpret_cast<unsigned *>(at), __float_as_uint(v));
}

/* A bound from below, lowered so far that what lies below it is less than it after SOFTCAP too, as float32 has that. */
__device__ inline float before_cap(float lower, float step, float cap) {
    if (!(cap > 0))
        return lower;
    float y = tanhf(lower * step / cap) - 2e-6f;
    return y > -1 ? fminf(lower, cap * atanhf(y) / step) : -INFINITY;
}

} // namespace screen
