/* act_rows.cuh - of elementwise.cu: GATED_ACT of unscaled products of many rows, whose e4m3 qact alone is wanted.
 *
 * C blocks share the columns of a row and go from row to row: thread i of a block holds the eights i and i + threads of
 * its columns, whose scales, which are as many bytes as four rows, lie in shared memory for all rows. The next row but
 * one is on its way while a row is computed, and what is made of a row waits in registers, as half precision, until the
 * row after it has been computed too: by then the other blocks' largest elements have come, so nobody waits for them.
 * Bytes a row of W: 4 W and W.
 *
 * Of a row with the scale u g and s are gate and up times their columns' scales, which makes
 *
 *     act(u g) u s = g s / ((1 + 2^-(slope g)) / u^2)
 *
 * of which all that depends on the row alone is computed once a row. */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/card.cuh"
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

template <int ACT, int C> __global__ void GYRE_CLUSTER(C) __launch_bounds__(THREADS, 1) gated_rows(args a) {
#if GYRE_HOPPER
    __shared__ barriers<C> met;
    extern __shared__ float4 memory[]; // [EIGHTS][gate, gate, up, up][threads]
    let_next_start();
    int threads = blockDim.x, n_warps = threads / 32, lane = threadIdx.x % 32, rank = blockIdx.x % C,
        n_bytes = C * n_warps * (int)sizeof(float);
    int pitch = gridDim.x / C, first = blockIdx.x / C, n = a.gate.width / 8;
    float4 *scales = memory + threadIdx.x;
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
    int eight[EIGHTS];
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
    wait_for_previous();
    coming next[DEPTH];
    const char *gates = static_cast<const char *>(a.gate.at);
    int64_t row_bytes = a.gate.stride * 2, to_up = static_cast<const char *>(a.up.at) - gates;
    auto fetch = [&](coming &c, int e, int t) {
        const char *at = gates + t * row_bytes + (eight[e] < n ? 16 * eight[e] : 0);
        c.gate[e] = __ldcs(reinterpret_cast<const uint4 *>(at));
        c.up[e] = __ldcs(reinterpret_cast<const uint4 *>(at + to_up));
    };
#pragma unroll
    for (int k = 0; k < DEPTH; k++)
        if (first + k * pitch < a.n_rows) {
            next[k].row_scale = load_late(a.gate.row_scale + first + k * pitch);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
                fetch(next[k], e, first + k * pitch);
        }
    asm volatile("cp.async.wait_all;" ::: "memory"); // a thread reads what it copied
    cluster_are_here();
    uint32_t share = address_at_rank(shared_address(&met.shares[0][rank * n_warps + threadIdx.x / 32]), lane % C);
    uint32_t barrier = address_at_rank(shared_address(&met.barrier[0]), lane % C);
    uint32_t held[EIGHTS][4];
    auto finish = [&](int t, int turn) {
        int s = turn % SLOTS;
        barrier_wait(shared_address(&met.barrier[s]), turn / SLOTS % 2);
        float most = 0;
#pragma unroll
        for (int w = 0; w < C * THREADS / 32; w += 32)
            if (w + lane < C * n_warps)
                most = fmaxf(most, met.shares[s][w + lane]);
        most = largest_of_warp(most);
        if (threadIdx.x == 0) {
            barrier_expect(shared_address(&met.barrier[s]), n_bytes); // of row turn + SLOTS
            if (rank == 0)
                a.qact.scale[t] = e4m3_scale(most);
        }
        float inverse = e4m3_inverse(most);
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            float2 y[4] = {floats_of_half2(held[e][0]), floats_of_half2(held[e][1]), floats_of_half2(held[e][2]),
                           floats_of_half2(held[e][3])};
            if (eight[e] < n)
                store_e4m3(a.qact, t, 8 * eight[e], make_float4(y[0].x, y[0].y, y[1].x, y[1].y) * inverse,
                           make_float4(y[2].x, y[2].y, y[3].x, y[3].y) * inverse);
        }
    };
    // A slot is written again when its sender has finished the row two before, so when all warps have sent that, so
    // when they have finished the row of the slot.
    int turn = 0;
    for (int t = first; t < a.n_rows;) {
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (t >= a.n_rows)
                break;
            row_act act = act_of<ACT>(next[k].row_scale);
            bool more = t + DEPTH * pitch < a.n_rows;
            if (more)
                next[k].row_scale = load_late(a.gate.row_scale + t + DEPTH * pitch);
            uint32_t y[EIGHTS][4];
            __half2 most = __float2half2_rn(0);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                make_eight<ACT>(act, next[k].gate[e], next[k].up[e], scales + 4 * e * threads, threads, y[e]);
                if (more)
                    fetch(next[k], e, t + DEPTH * pitch);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    most = __hmax2(most, __habs2(reinterpret_cast<__half2 &>(y[e][j])));
            }
            float mine = largest_of_warp(fmaxf(__low2float(most), __high2float(most)));
            if (lane < C)
                store_at_rank(share + turn % SLOTS * (int)sizeof met.shares[0], mine,
                              barrier + turn % SLOTS * (int)sizeof met.barrier[0]);
            if (turn > 0)
                finish(t - pitch, turn - 1);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    held[e][j] = y[e][j];
            t += pitch, turn++;
        }
    }
    if (turn > 0)
        finish(first + (turn - 1) * pitch, turn - 1);
#endif
}

inline int threads_of(int n_eights, int C) { return (n_eights + C * EIGHTS * 32 - 1) / (C * EIGHTS * 32) * 32; }

/* Blocks a row: as few as its columns have a place in, but two at least, as memcheck takes a copy within a block alone
 * (st.async) for a fault. */
inline int blocks_of(int n_eights) {
    for (int C = 2; C <= 4; C *= 2)
        if (threads_of(n_eights, C) <= THREADS)
            return C;
    return 8;
}

/* As many rows at once as there is room for, or fewer if that takes no longer. */
template <int ACT, int C> void start(cudaStream_t stream, const args &a) {
    int threads = threads_of(a.gate.width / 8, C), n_shared = EIGHTS * 4 * threads * (int)sizeof(float4);
    allow_shared(gated_rows<ACT, C>,
                 EIGHTS * 4 * THREADS * (int)sizeof(float4)); // what any width takes, as the attribute is one for all
    int at_once = clusters_at_once(gated_rows<ACT, C>, C, C, threads, n_shared, [] {});
    int each = (a.n_rows + at_once - 1) / at_once, n = (a.n_rows + each - 1) / each;
    launch_node(gated_rows<ACT, C>, C * n, threads, (size_t)n_shared, stream, a);
}

template <int ACT> void start(cudaStream_t stream, const args &a) {
    switch (blocks_of(a.gate.width / 8)) {
    case 2: start<ACT, 2>(stream, a); break;
    case 4: start<ACT, 4>(stream, a); break;
    default: start<ACT, 8>(stream, a);
    }
}

} // namespace act_rows
