/* row_join.cuh - a row that several blocks hold, and what they must know of all of it: a sum and a largest value, with
 * one wait.
 *
 * A row belongs to a cluster of C blocks (C 1: to a block; before Hopper nothing else is launched). Every warp sends
 * its share to every block of the row, into distributed shared memory, and each block waits until all shares have come:
 * the hardware counts their bytes (mbarrier, st.async). A cluster's own barrier would do, but it also waits for all
 * that was stored to memory before, half a microsecond.
 *
 *     __shared__ row_meeting<C> meeting;         row_open(meeting);          // before the first load
 *     row_opened<C>();                                                       // before the first row_join
 *     float2 all = row_join(mine, meeting);                                  // once a meeting */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { MAX_ROW_WARPS = 128 }; // of all blocks of a row

template <int C> struct row_meeting {
    uint64_t barrier;
    float2 shares[MAX_ROW_WARPS];
};

/* Which row, which thread of it and how many there are. */
template <int C> struct row_place {
    int row, thread, n_threads;
    __device__ row_place() {
        row = blockIdx.x / C;
        thread = blockIdx.x % C * blockDim.x + threadIdx.x;
        n_threads = C * blockDim.x;
    }
};

/* x to `to`, 8 bytes towards what `barrier` expects; both as address_at_rank gives them, of one block. */
__device__ inline void send(uint32_t to, float2 x, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "r"(barrier)
                 : "memory");
}

/* For one meeting, of this thread alone: the barrier lets go when n_bytes have come. */
__device__ inline void barrier_open(uint64_t *barrier, int n_bytes) {
    barrier_init(shared_address(barrier), 1);
    barrier_init_done();
    barrier_expect(shared_address(barrier), n_bytes);
}

/* Two for a kernel that joins twice. */
template <int C> __device__ inline void row_open(row_meeting<C> &first, row_meeting<C> *second = nullptr) {
#if GYRE_HOPPER
    if constexpr (C > 1) {
        int n_bytes = C * (int)(blockDim.x / 32 * sizeof(float2));
        if (threadIdx.x == 0) {
            barrier_open(&first.barrier, n_bytes);
            if (second)
                barrier_open(&second->barrier, n_bytes);
        }
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
#endif
}

/* All blocks of the row have opened. */
template <int C> __device__ inline void row_opened() {
#if GYRE_HOPPER
    if constexpr (C > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ inline float2 join(float2 a, float2 b) { return make_float2(a.x + b.x, fmaxf(a.y, b.y)); }

__device__ inline float2 warp_join(float2 a) {
    for (int step = 16; step > 0; step /= 2)
        a = join(a, make_float2(__shfl_xor_sync(0xffffffffu, a.x, step), __shfl_xor_sync(0xffffffffu, a.y, step)));
    return a;
}

/* Sum of x and largest of y (>= 0) over the threads of a row, known to all of them. */
template <int C> __device__ inline float2 row_join(float2 mine, row_meeting<C> &meeting) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    mine = warp_join(mine);
    if constexpr (C > 1) {
#if GYRE_HOPPER
        if (lane < C)
            send(address_at_rank(shared_address(&meeting.shares[blockIdx.x % C * n_warps + warp]), lane), mine,
                 address_at_rank(shared_address(&meeting.barrier), lane));
        // For the shares of all warps of the row. To order more of the cluster's memory than those would throw away the
        // L1.
        barrier_wait(shared_address(&meeting.barrier), 0);
#endif
    } else {
        if (lane == 0)
            meeting.shares[warp] = mine;
        __syncthreads(); // every warp's share is there
    }
    mine = make_float2(0, 0);
    for (int i = lane; i < C * n_warps; i += 32)
        mine = join(mine, meeting.shares[i]);
    return warp_join(mine);
}
