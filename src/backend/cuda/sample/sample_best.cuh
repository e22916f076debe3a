/* sample_best.cuh - of sample.cu: a slice of a row comes into shared memory, and the best of the row is found. */
#pragma once

#include "backend/cuda/sample/sample_cluster.cuh"

/* The block's best and whether it holds what is not finite go to every block. */
static __device__ void tell_best(const row_view &v, int slot, best mine, int bad) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0)
        v.s.warp_bests[threadIdx.x / 32] = mine;
    if (bad)
        v.s.any_bad = 1;
    __syncthreads(); // every warp's best, and any_bad
    if (threadIdx.x >= 32)
        return;
    int lane = threadIdx.x;
    mine = warp_best(lane < WARPS ? v.s.warp_bests[lane] : best{-INFINITY, INT_MAX});
    if (lane < v.n_ranks) {
        of_rank(v, lane).bests[slot][v.rank] = mine;
        of_rank(v, lane).bad[v.rank] = v.s.any_bad;
    }
}

/* After a cluster barrier; token 0 where nothing is above -infinity. */
static __device__ best best_told(const row_view &v, int slot) {
    int lane = threadIdx.x % 32;
    best b = warp_best(lane < v.n_ranks ? v.s.bests[slot][lane] : best{-INFINITY, INT_MAX});
    if (b.id == INT_MAX)
        b.id = 0;
    return b;
}

static __device__ void look_at(float x, int id, best &mine, int &bad) {
    bad |= !(x < INFINITY);
    if (x > mine.logit)
        mine = best{x, id};
}

/* Whether the slice lies as bulk copies want it. */
static __device__ bool in_bulk(const row_view &v) {
    return GYRE_HOPPER && reinterpret_cast<uintptr_t>(v.raw + v.first) % 16 == 0 && v.n % 4 == 0;
}

/* The slice in fours, the last of them filled up. */
static __device__ int n_fours(const row_view &v) { return (v.n + 3) / 4; }

/* A piece begins with one of the times that all threads take a four each. */
static __device__ int piece_begin(const row_view &v, int piece) {
    int times = (n_fours(v) + THREADS - 1) / THREADS;
    return min(times * piece / PIECES * THREADS, n_fours(v));
}

/* One thread, once the barriers are there and the logits. */
static __device__ void copy_slice(const row_view &v) {
#if GYRE_HOPPER
    for (int piece = 0; piece < PIECES; piece++) {
        int begin = piece_begin(v, piece), n_bytes = (piece_begin(v, piece + 1) - begin) * (int)sizeof(float4);
        uint32_t barrier = shared_address(&v.s.copied[piece]);
        barrier_expect(barrier, n_bytes);
        if (n_bytes > 0)
            bulk_copy(shared_address(v.x + 4 * begin), v.raw + v.first + 4 * begin, n_bytes, barrier);
    }
#endif
}

/* Of a slice that does not lie so: it is in shared memory after this. */
static __device__ void load_slice(const row_view &v) {
    for (int i = threadIdx.x; i < v.n; i += THREADS)
        v.x[i] = v.raw[v.first + i];
    if (threadIdx.x < 4 && v.n + (int)threadIdx.x < n_fours(v) * 4)
        v.x[v.n + threadIdx.x] = -INFINITY;
    __syncthreads(); // all of it is there
}

/* A piece of the slice is there, as this thread sees it. */
static __device__ void await_piece(const row_view &v, int piece) {
#if GYRE_HOPPER
    if (in_bulk(v))
        barrier_wait(shared_address(&v.s.copied[piece]), v.s.n_copied & 1);
#endif
}
static __device__ void await_slice(const row_view &v) {
    for (int piece = 0; piece < PIECES; piece++)
        await_piece(v, piece);
}

/* take(four, place of the first in the slice): this thread's fours of some; behind the end of the slice there is
 * -infinity. */
template <class F> static __device__ __forceinline__ void each_four_of(const row_view &v, int begin, int end, F take) {
    for (int i = begin + threadIdx.x; i < end; i += THREADS) {
        float4 q = reinterpret_cast<const float4 *>(v.x)[i];
        const float four[4] = {q.x, q.y, q.z, q.w};
        take(four, 4 * i);
    }
}
/* Of all, as they come. After that the thread sees the whole slice. */
template <class F> static __device__ __forceinline__ void each_four_to_come(const row_view &v, F take) {
#pragma unroll 1
    for (int piece = 0; piece < PIECES; piece++) {
        await_piece(v, piece);
        each_four_of(v, piece_begin(v, piece), piece_begin(v, piece + 1), take);
    }
}

/* The block's best of the row as it is goes to every block. */
static __device__ void look_at_slice(const row_view &v) {
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    each_four_to_come(v, [&](const float(&four)[4], int at) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            look_at(four[j], v.first + at + j, mine, bad);
    });
    tell_best(v, 0, mine, bad);
}
