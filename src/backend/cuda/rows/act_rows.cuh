/* act_rows.cuh - of elementwise.cu: GATED_ACT of unscaled products of many rows, whose e4m3 qact alone is wanted.
 *
 * C blocks share the columns of a row and go from row to row: thread i of a block holds the eights i and i + threads of
 * its columns, whose scales, which are as many bytes as four rows, lie in shared memory for all rows. The next row but
 * one is on its way while a row is computed, and what is made of a row waits in registers, as half precision, until the
 * row after it has been computed too: by then the other blocks' largest elements have come, so nobody waits for them. A
 * slot of those is written again when its sender has finished the row two before, so when all warps have sent that, so
 * when they have finished the row of the slot. Bytes a row of W: 4 W and W. */
#pragma once

#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/rows/act_rows_parts.cuh"

namespace act_rows {

template <int ACT, int C> __global__ void GYRE_CLUSTER(C) __launch_bounds__(THREADS, 1) gated_rows(args a) {
#if GYRE_HOPPER
    __shared__ barriers<C> met;
    extern __shared__ float4 memory[]; // [EIGHTS][gate, gate, up, up][threads]
    let_next_start();
    int threads = blockDim.x, n_warps = threads / 32, lane = threadIdx.x % 32, rank = blockIdx.x % C,
        n_bytes = C * n_warps * (int)sizeof(float);
    int pitch = gridDim.x / C, first = blockIdx.x / C, n = a.gate.width / 8;
    float4 *scales = memory + threadIdx.x;
    prepare(met, n_bytes);
    int eight[EIGHTS];
    copy_scales(a, scales, threads, rank, n, eight);
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
        float most = largest_of_row(met, s, turn / SLOTS % 2, lane, n_warps);
        if (threadIdx.x == 0) {
            barrier_expect(shared_address(&met.barrier[s]), n_bytes); // of row turn + SLOTS
            if (rank == 0)
                a.qact.scale[t] = e4m3_scale(most);
        }
        float inverse = e4m3_inverse(most);
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
            store_eight(a.qact, t, 8 * eight[e], eight[e] < n, held[e], inverse);
    };
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
                most = largest_of_eight(most, y[e]);
            }
            float mine = largest_of_warp(fmaxf(__low2float(most), __high2float(most)));
            if (lane < C)
                store_at_rank(share + turn % SLOTS * (int)sizeof met.shares[0], mine,
                              barrier + turn % SLOTS * (int)sizeof met.barrier[0]);
            if (turn > 0)
                finish(t - pitch, turn - 1);
            hold(held, y);
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
