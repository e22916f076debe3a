/* gemm_w4_few_parts.cuh - of gemm_w4_few.cu: where a thread block works, its queues of weights and its rows of x. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/ptx/copy_later.cuh"

enum {
    W4_FEW_LEAST_WARPS = 8,
    W4_FEW_WARPS = 16,
    W4_FEW_COPIES = 8,
    W4_FEW_PIECE_BYTES = QUADS_COLUMNS * 2,
    W4_FEW_ASIDE = 16
};

static __device__ __forceinline__ void store_shared_16(uint32_t at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

struct w4_few_args : gemm_w4_args {
    const unsigned char *w, *x;
    int64_t x_pitch; // bytes
    int in;
    int log2_segments, log2_split, log2_warps, log2_pairs; // pairs of tokens
    int group_tiles, longer_groups;                        // so many groups of blocks have one tile more
    int a_copy, n_copies;
    int x_bytes; // of shared memory
    float unit;  // by which scales of rows are multiplied
};

/* Where a thread block works. Shared memory: queues | x | sums of segments | scales | biases. */
struct w4_few_place {
    int warp, lane, rank;
    int first_tile, n_tiles;      // of the blocks that share them
    int log2_mine, first_segment; // segments of this block: 2^log2_mine
    int first_piece, n_pieces;    // their columns
    int n_tasks, task, end_task;  // segments of all tiles; the warp's
    uint32_t queue, x, sums;
    float *scales, *biases;

    __device__ w4_few_place(const w4_few_args &a, unsigned char *shared) {
        warp = of_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
        rank = blockIdx.x & ((1 << a.log2_split) - 1);
        int group = blockIdx.x >> a.log2_split;
        first_tile = group * a.group_tiles + min(group, a.longer_groups);
        n_tiles = a.group_tiles + (group < a.longer_groups);
        log2_mine = a.log2_segments - a.log2_split;
        first_segment = rank << log2_mine;
        first_piece = piece_of(a, first_segment);
        n_pieces = piece_of(a, first_segment + (1 << log2_mine)) - first_piece;
        n_tasks = n_tiles << log2_mine;
        task = n_tasks * warp >> a.log2_warps;
        end_task = n_tasks * (warp + 1) >> a.log2_warps;
        int of_warp = a.a_copy * a.n_copies * a.block_bytes;
        queue = shared_address(shared) + warp * of_warp;
        unsigned char *behind = shared + (of_warp << a.log2_warps);
        x = shared_address(behind);
        behind += a.x_bytes;
        sums = shared_address(behind);
        scales = reinterpret_cast<float *>(behind + (n_owned(a) << a.log2_segments) * sum_bytes(a));
        biases = scales + n_owned(a) * QUADS_ROWS;
    }
    static __device__ int piece_of(const w4_few_args &a, int segment) {
        return a.n_pieces * segment >> a.log2_segments;
    }
    __device__ int first_of(const w4_few_args &a, int task) const { // piece of the task
        return piece_of(a, first_segment + (task & ((1 << log2_mine) - 1)));
    }
    __device__ int end_of(const w4_few_args &a, int task) const {
        return piece_of(a, first_segment + (task & ((1 << log2_mine) - 1)) + 1);
    }
    /* Tiles that this block finishes: every split-th. */
    __device__ int n_owned(const w4_few_args &a) const {
        return (n_tiles - rank + (1 << a.log2_split) - 1) >> a.log2_split;
    }
    static __device__ int sum_bytes(const w4_few_args &a) { return 8 * sizeof(float4) << a.log2_pairs; } // of a segment
};

/* A warp's queue of weights: copies of some blocks of a tile's columns, none beyond its segment. One lane asks. */
struct w4_few_queue {
    const w4_few_args &a;
    const w4_few_place &p;
    uint32_t full;
    uint64_t policy;
    const unsigned char *from; // of the piece that is asked for next
    int put_task, put_piece, put_end, put_slot = 0;
    int slot = 0, parity = 0; // that is read next

    __device__ __forceinline__ w4_few_queue(const w4_few_args &a, const w4_few_place &p, uint64_t *all_full)
        : a(a), p(p), full(shared_address(all_full + p.warp * W4_FEW_COPIES)), put_task(p.task) {
        if (p.lane < a.n_copies) {
            barrier_init(full + 8 * p.lane, 1);
            barrier_init_done();
        }
        __syncwarp(); // barriers are ready
        begin_task();
#pragma unroll 1
        for (int i = 0; i < a.n_copies; i++)
            put();
    }
    __device__ __forceinline__ void begin_task() {
        put_piece = p.first_of(a, put_task), put_end = p.end_of(a, put_task);
        int tile = p.first_tile + (put_task >> p.log2_mine);
        from = a.w + ((int64_t)tile * a.n_pieces + put_piece) * a.block_bytes;
    }
    __device__ __forceinline__ void put() {
        if (put_task >= p.end_task)
            return;
        int n = min(a.a_copy, put_end - put_piece) * a.block_bytes;
        if (p.lane == 0) {
            barrier_expect(full + 8 * put_slot, n);
            bulk_copy(p.queue + put_slot * a.a_copy * a.block_bytes, from, n, full + 8 * put_slot);
        }
        from += n, put_piece += a.a_copy;
        put_slot = put_slot + 1 == a.n_copies ? 0 : put_slot + 1;
        if (put_piece >= put_end && ++put_task < p.end_task)
            begin_task();
    }
    /* Where the oldest copy lies, once it is there. */
    __device__ __forceinline__ uint32_t take() const {
        barrier_wait(full + 8 * slot, parity);
        return p.queue + slot * a.a_copy * a.block_bytes;
    }
    /* All lanes have read it. */
    __device__ __forceinline__ void leave() {
        __syncwarp();
        put();
        slot++;
        if (slot == a.n_copies)
            slot = 0, parity ^= 1;
    }
};

/* The columns of x that the block multiplies, of each token a row that is W4_FEW_ASIDE longer: eight of them lie in
 * different banks. */
struct w4_few_x {
    const w4_few_args &a;
    const w4_few_place &p;
    int pitch;
    uint32_t mine; // where the lane's row of the matrices of a piece begins

    /* apart: an operand's columns are eight of a step and the same of the next, else 16 of one. */
    __device__ __forceinline__ w4_few_x(const w4_few_args &a, const w4_few_place &p, bool apart)
        : a(a), p(p), pitch(p.n_pieces * W4_FEW_PIECE_BYTES + W4_FEW_ASIDE) {
        int matrix = p.lane / 8, eight = apart ? matrix % 2 * 2 + matrix / 2 : matrix;
        mine = p.x + min(p.lane % 8, a.n_tokens - 1) * pitch + eight * 16; // what others sum, nobody reads
    }
    __device__ __forceinline__ void bring() const {
        uint64_t often = policy_read_often();
        int begin = p.first_piece * QUADS_COLUMNS;
#pragma unroll 1
        for (int t = 0; t < a.n_tokens; t++)
#pragma unroll 1
            for (int i = threadIdx.x; i < p.n_pieces * (QUADS_COLUMNS / 8); i += blockDim.x) {
                bool there = begin + i * 8 < a.in;
                copy_later(p.x + t * pitch + i * 16, a.x + t * a.x_pitch + (there ? (begin + i * 8) * 2 : 0), !there,
                           often);
            }
        close_batch();
        wait_batches<0>();
    }
    /* Of a piece, counted from the block's first: matrices of eight tokens by eight columns, two to an operand, m[j] of
     * columns 32j on. */
    __device__ __forceinline__ void load(int piece, uint32_t (&m)[4][4]) const {
        uint32_t at = mine + piece * W4_FEW_PIECE_BYTES;
#pragma unroll
        for (int j = 0; j < 4; j++)
            load_matrices(m[j], at + j * 64);
    }
};
