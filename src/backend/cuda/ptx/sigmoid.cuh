/* sigmoid.cuh - a gate times its own sigmoid, without a branch: at the end of a tile there are many in a row. */
#pragma once

#include "backend/cuda/ptx/mma.cuh"

/* x / (1 + 2^-k), within 1e-5 of its size. */
static __device__ __forceinline__ float over_power(float x, float k) {
    float part;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1.0f + exp2_fast(-k)));
    return x * part;
}

/* x / (1 + e^-x). */
static __device__ __forceinline__ float silu_fast(float x) { return over_power(x, 1.4426950408889634f * x); }
