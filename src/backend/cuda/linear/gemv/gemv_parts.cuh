/* gemv_parts.cuh - of gemv_kernel.cuh: its arguments, the formats of W, and which rows and columns a block and a warp
 * have. */
#pragma once

#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

enum { MAX_WARPS = 8, CHUNK_BYTES = 64, PIECE = 16, X_SLOTS = 4, X_BY_THREADS = 4, MAX_CLUSTER = 8 };

/* What a product ends with, and what that needs. */
enum gemv_end { END_PLAIN, END_GATED };
static __host__ __device__ constexpr bool in_pairs(gemv_end e) { return e == END_GATED; }

template <gemv_end E> struct end_args {};
template <> struct end_args<END_GATED> {
    int act;
    float limit;
};

template <gemv_end E> struct gemv_args {
    const unsigned char *w, *x;
    int64_t x_pitch;   // bytes
    int in, out_units; // columns of x, units of all blocks
    int n_tokens;
    int row_warps, log2_column_warps;

    // Shares, divided by the host: units of groups, of the row warps of one, of a pass; chunks of the blocks of a
    // group.
    int group_units, longer_groups; // so many groups have one more
    int rank_chunks, longer_ranks;
    int sub_units, pass_units, n_passes; // of the longest group

    // x is taken in parts of part_steps steps, the columns of a slot each; with more parts than slots they come again
    // in every pass.
    int part_steps, n_parts, n_slots, x_pitch_there; // pitch: bytes from token to token in a slot
    bool x_by_threads;                               // one part of one token, copied by plain loads

    int scale_room, bias_room, warp_sums_room; // floats in shared memory
    const float *scale, *bias;
    void *y;
    int64_t y_stride; // elements
    element y_element;

    end_args<E> end;
};

// ---- one instruction each -------------------------------------------------------------------------------------------

/* All threads of so many warps. The number is part of the instruction: one from a register would take all 16 barriers
 * of a block. */
template <int ID> static __device__ void wait_at(int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(n_threads) : "memory");
}
static __device__ void named_barrier(int id, int n_threads) {
    switch (id) {
    case 0: wait_at<1>(n_threads); break;
    case 1: wait_at<2>(n_threads); break;
    case 2: wait_at<3>(n_threads); break;
    case 3: wait_at<4>(n_threads); break;
    case 4: wait_at<5>(n_threads); break;
    case 5: wait_at<6>(n_threads); break;
    case 6: wait_at<7>(n_threads); break;
    default: wait_at<8>(n_threads);
    }
}

// ---- formats of W ---------------------------------------------------------------------------------------------------
// A lane's 16 bytes of a row as STEPS steps of the tensor core: lo and hi are a step's first two elements and its last
// two. X_ASIDE: by how much the pitch of tokens of x passes a multiple of 128 bytes, which keeps the lanes of a load in
// different banks: those of a token lie 32 bytes apart for e4m3, so that the next token goes between them, else side by
// side.

struct e4m3_weights {
    using product = __half;
    static constexpr int BYTES = 1, STEPS = 4, X_ASIDE = 16;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        e4m3_to_pairs(w[s], lo, hi);
    }
};

template <class T> struct plain_weights {
    using product = T;
    static constexpr int BYTES = 2, STEPS = 2, X_ASIDE = 64;
    static __device__ void step(const uint32_t (&w)[4], int s, uint32_t &lo, uint32_t &hi) {
        lo = w[2 * s];
        hi = w[2 * s + 1];
    }
};

// ---- shares ---------------------------------------------------------------------------------------------------------

struct span {
    int begin, end;
};
static __device__ span share(int i, int length, int n_longer) {
    int begin = i * length + min(i, n_longer);
    return {begin, begin + length + (i < n_longer)};
}

/* Where a thread stands, and what its block and its warp compute. */
template <gemv_end E, bool CLUSTERED> struct station {
    int lane, r, q, warp, n_warps, column_warps, row_warp, column_warp;
    int rank, n_ranks;    // of the cluster's blocks
    span group, columns;  // units, and chunks, of the block
    int n_units, n_steps; // of the group; chunks of the warp: 0 is possible

    __device__ __forceinline__ station(const gemv_args<E> &a) {
        lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
        warp = threadIdx.x / 32, n_warps = blockDim.x / 32, column_warps = 1 << a.log2_column_warps;
        row_warp = warp >> a.log2_column_warps, column_warp = warp & (column_warps - 1);
        rank = CLUSTERED ? cluster_rank() : 0, n_ranks = CLUSTERED ? cluster_size() : 1;
        group = share(CLUSTERED ? cluster_id() : blockIdx.x, a.group_units, a.longer_groups);
        columns = share(rank, a.rank_chunks, a.longer_ranks);
        n_units = group.end - group.begin;
        n_steps = (columns.end - columns.begin - column_warp + column_warps - 1) >> a.log2_column_warps;
    }

    /* The units of a row warp's pass. */
    __device__ __forceinline__ span units_of_pass(const gemv_args<E> &a, int row_warp, int pass) const {
        int of_warp = group.begin + row_warp * a.sub_units, begin = of_warp + pass * a.pass_units;
        return {begin, min(min(begin + a.pass_units, of_warp + a.sub_units), group.end)};
    }
};

/* The row of W of a unit, or of pairs the second one. */
template <gemv_end E> static __device__ int row_of(const gemv_args<E> &a, int unit, bool second) {
    return second ? unit + a.out_units : unit;
}

/* Where a unit's row lies in the tiles of a pass: of pairs the upper half of each tile holds the first rows, the lower
 * one the second. */
static __device__ int tile_row(int unit_in_pass, bool pairs, bool second) {
    return pairs ? unit_in_pass / 8 * 16 + unit_in_pass % 8 + (second ? 8 : 0) : unit_in_pass;
}

/* Shared memory: queues | x | scales and biases of the group, first rows and then second ones | sums of warps | sums of
 * the block. */
struct places {
    unsigned char *queues, *x;
    float *scales, *biases, *warp_sums, *block_sums;

    template <gemv_end E>
    __device__ __forceinline__ places(const gemv_args<E> &a, unsigned char *shared, int queue_bytes) {
        queues = shared;
        x = shared + queue_bytes;
        scales = reinterpret_cast<float *>(x + a.n_slots * a.n_tokens * a.x_pitch_there);
        biases = scales + a.scale_room;
        warp_sums = biases + a.bias_room;
        block_sums = warp_sums + a.warp_sums_room;
    }
};
