/* row_join.cuh - a row that several blocks hold, and what they must know of all of it: a sum and a largest value, with one wait.
 *
 * A row belongs to a cluster of C blocks (C 1: to a block). Every warp sends its share to every block of the row, into distributed
 * shared memory, and each block waits until all shares have come: the hardware counts their bytes (mbarrier, st.async). A
 * cluster's own barrier would do, but it also waits for all that was stored to memory before, half a microsecond.
 *
 *     __shared__ row_meeting<C> meeting;         row_open(meeting);          // before the first load
 *     row_opened<C>();                                                       // before the first row_join
 *     float2 all = row_join(mine, meeting);                                  // once a meeting */
#pragma once

#include "backend/cuda/device.cuh"

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

__device__ inline uint32_t shared_address(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

/* Where block `rank` of the cluster has the same variable. */
__device__ inline uint32_t address_in_block(const void *at, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
    return there;
}

/* The barrier lets go when n_bytes have come. */
__device__ inline void barrier_expect(uint64_t *barrier, int n_bytes) {
    uint32_t at = shared_address(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(n_bytes) : "memory");
}

__device__ inline void barrier_wait(uint64_t *barrier) {
    asm volatile("{\n"
                 ".reg .pred came;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 came, [%0], 0;\n"
                 "@!came bra again;\n"
                 "}" ::"r"(shared_address(barrier))
                 : "memory");
}

/* x to `to`, 8 bytes towards what `barrier` expects; both as address_in_block gives them, of one block. */
__device__ inline void send(uint32_t to, float2 x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x.x), "f"(x.y),
                 "r"(barrier)
                 : "memory");
}

/* Two for a kernel that joins twice. */
template <int C> __device__ inline void row_open(row_meeting<C> &first, row_meeting<C> *second = nullptr) {
    if constexpr (C > 1) {
        int n_bytes = C * (int)(blockDim.x / 32 * sizeof(float2));
        if (threadIdx.x == 0) {
            barrier_expect(&first.barrier, n_bytes);
            if (second)
                barrier_expect(&second->barrier, n_bytes);
        }
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
}

/* All blocks of the row have opened. */
template <int C> __device__ inline void row_opened() {
    if constexpr (C > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
        if (lane < C)
            send(address_in_block(&meeting.shares[blockIdx.x % C * n_warps + warp], lane), mine, address_in_block(&meeting.barrier, lane));
        barrier_wait(&meeting.barrier); // for the shares of all warps of the row
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
