/* act_rows_parts.cuh - of act_rows.cuh: what blocks have in shared memory, and what becomes of eight columns.
 *
 * Of a row with the scale u g and s are gate and up times their columns' scales, which makes
 *
 *     act(u g) u s = g s / ((1 + 2^-(slope g)) / u^2)
 *
 * of which all that depends on the row alone is computed once a row. */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/value.h"

namespace act_rows {

enum { THREADS = 672, EIGHTS = 2, DEPTH = 2, SLOTS = 4 };

struct args {
    dmat gate, up, qact; // gate and up are columns of the same rows
    int n_rows;
};

struct row_act {
    float slope, curve, by; // by: 1 / u^2
};

template <int ACT> __device__ inline row_act act_of(float unit) {
    constexpr float LOG2E = 1.4426950408889634f, ROOT = 0.7978845608028654f; // sqrt(2 / pi)
    float by;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(unit * unit));
    return {(ACT == 0 ? -LOG2E : -2 * ROOT * LOG2E) * unit, -2 * ROOT * 0.044715f * LOG2E * unit * unit * unit, by};
}

/* silu, or gelu_tanh by tanh(v) = 2 sigmoid(2 v) - 1. NaN stays NaN. */
template <int ACT> __device__ inline float gated(const row_act &a, float gate, float up) {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;"
        : "=f"(e)
        : "f"(ACT == 0 ? gate * a.slope : gate * fmaf(a.curve, gate * gate, a.slope)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaf(e, a.by, a.by)));
    return gate * up * r;
}

__device__ inline float2 floats_of_half2(uint32_t x) { return __half22float2(reinterpret_cast<__half2 &>(x)); }
/* Infinities are the largest numbers. */
__device__ inline float2 finite_floats(uint32_t x) {
    return floats_of_half2(finite_halves(reinterpret_cast<__half2 &>(x)));
}

__device__ inline void copy_16(const void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

/* Two rows ahead, as they lie in memory. */
struct coming {
    uint4 gate[EIGHTS], up[EIGHTS];
    float row_scale;
};

/* Largest elements of the warps of all blocks of a row, a slot for each of the last rows. */
template <int C> struct barriers {
    uint64_t barrier[SLOTS];
    float shares[SLOTS][C * THREADS / 32];
};

/* Eight columns of gate and up, of which y is held. */
template <int ACT>
__device__ inline void make_eight(const row_act &act, const uint4 &gate, const uint4 &up, const float4 *scales,
                                  int threads, uint32_t (&y)[4]) {
    const uint32_t g[4] = {gate.x, gate.y, gate.z, gate.w}, u[4] = {up.x, up.y, up.z, up.w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float4 of_gate = scales[half * threads], of_up = scales[(2 + half) * threads];
        float2 g0 = finite_floats(g[2 * half]), g1 = finite_floats(g[2 * half + 1]);
        float2 u0 = finite_floats(u[2 * half]), u1 = finite_floats(u[2 * half + 1]);
        uint2 four = stored_of<ELEMENT_F16>(make_float4(
            gated<ACT>(act, g0.x * of_gate.x, u0.x * of_up.x), gated<ACT>(act, g0.y * of_gate.y, u0.y * of_up.y),
            gated<ACT>(act, g1.x * of_gate.z, u1.x * of_up.z), gated<ACT>(act, g1.y * of_gate.w, u1.y * of_up.w)));
        y[2 * half] = four.x, y[2 * half + 1] = four.y;
    }
}

__device__ inline float largest_of_warp(float x) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(x)));
} // x >= 0

__device__ __forceinline__ __half2 largest_of_eight(__half2 most, uint32_t (&y)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        most = __hmax2(most, __habs2(reinterpret_cast<__half2 &>(y[j])));
    return most;
}

/* By all threads of a block: barriers that expect what the warps of all blocks of a row tell. */
template <int C> __device__ __forceinline__ void prepare(barriers<C> &met, int n_bytes) {
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; s++)
            barrier_init(shared_address(&met.barrier[s]), 1);
        barrier_init_done();
    }
    if (WARP_ARRIVALS > 1)
        __syncthreads(); // racecheck takes what one thread does twice, as a warp and as a thread, for a race
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; s++)
            barrier_expect(shared_address(&met.barrier[s]), n_bytes);
    }
    cluster_is_here();
}

/* Which eights are the thread's, and their columns' scales on their way to where only it reads them. */
__device__ __forceinline__ void copy_scales(const args &a, float4 *scales, int threads, int rank, int n,
                                            int (&eight)[EIGHTS]) {
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        eight[e] = (rank * EIGHTS + e) * threads + threadIdx.x;
        int from = eight[e] < n ? 8 * eight[e] : 0; // beyond the end: a column again, whose elements count as 0
#pragma unroll
        for (int half = 0; half < 2; half++) {
            copy_16(scales + (4 * e + half) * threads, a.gate.col_scale + from + 4 * half);
            if (eight[e] < n)
                copy_16(scales + (4 * e + 2 + half) * threads, a.up.col_scale + from + 4 * half);
            else
                scales[(4 * e + 2 + half) * threads] = float4{};
        }
    }
}

/* When the warps of all blocks have told theirs. */
template <int C>
__device__ __forceinline__ float largest_of_row(const barriers<C> &met, int slot, int parity, int lane, int n_warps) {
    barrier_wait(shared_address(&met.barrier[slot]), parity);
    float most = 0;
#pragma unroll
    for (int w = 0; w < C * THREADS / 32; w += 32)
        if (w + lane < C * n_warps)
            most = fmaxf(most, met.shares[slot][w + lane]);
    return largest_of_warp(most);
}

__device__ __forceinline__ void hold(uint32_t (&held)[EIGHTS][4], const uint32_t (&y)[EIGHTS][4]) {
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            held[e][j] = y[e][j];
}
__device__ __forceinline__ void store_eight(const dmat &qact, int t, int column, bool there, const uint32_t (&held)[4],
                                            float inverse) {
    float2 y[4] = {floats_of_half2(held[0]), floats_of_half2(held[1]), floats_of_half2(held[2]),
                   floats_of_half2(held[3])};
    if (there)
        store_e4m3(qact, t, column, make_float4(y[0].x, y[0].y, y[1].x, y[1].y) * inverse,
                   make_float4(y[2].x, y[2].y, y[3].x, y[3].y) * inverse);
}

} // namespace act_rows
