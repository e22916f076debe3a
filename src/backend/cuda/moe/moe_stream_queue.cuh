/* moe_stream_queue.cuh - of the kernel of moe_stream.cu: the share of a block, and the queue through which a warp takes
 * the weights of its tiles. */
#pragma once

#include "backend/cuda/moe/moe_formats.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum {
    MOST_OCTETS = 3,
    TILE_ROWS = 16,
    MOST_OF_BLOCK = 128, // tiles of tokens
    MOST_PLACES = 128    // tokens
};

struct stream_args {
    const unsigned char *w;
    const float *scale, *bias; // a row of w; NULL: 1, 0
    dmat x;                    // up: of tokens; down: of pairs
    dmoe_list list;
    const int32_t *ids; // of a step of one token, whose experts are its tiles: there is no list. Else NULL
    void *y;            // up: hidden [pairs]; down: result [pairs]
    int in, units;      // of an expert: columns; rows of y
    int n_experts, first_expert, n_shared; // of the experts, the last n_shared have every token
    bool is_part;                          // tokens are sent to other experts too, of other ranks
    int n_row_tiles, most_tiles, x_pitch, x_tokens, top_k, first_token;
    int change; // what another tile of tokens costs a block, in tiles of rows; 0: the tokens of two have room
    int act;
    float limit;
};

/* The slots of a token whose experts are here, to all lanes of a warp; ids: of up to 32, that the node before wrote,
 * NULL for those of a token that is not there. A layer that is timed has no tokens, and ids that nobody wrote. */
struct own_slots {
    uint32_t mask;      // a bit a slot
    int expert_of_lane; // of the slot that is the lane's number
    __device__ __forceinline__ own_slots(const stream_args &a, const int32_t *ids) {
        int lane = threadIdx.x % 32;
        uint32_t expert = ids && lane < a.top_k ? (uint32_t)(ids[lane] - a.first_expert) : 0;
        mask = 0xffffffffu >> (32 - a.top_k);
        if (a.is_part)
            mask &= __ballot_sync(0xffffffffu, expert < (uint32_t)a.n_experts);
        expert_of_lane = (int)min(expert, (uint32_t)a.n_experts - 1);
    }
    /* Of posted ids, where all experts are here. */
    __device__ __forceinline__ own_slots(const stream_args &a, unsigned long long posted) {
        int lane = threadIdx.x % 32, n_chosen = a.top_k - a.n_shared,
            shared = min(a.n_experts - a.n_shared + lane - n_chosen, a.n_experts - 1);
        mask = 0xffffffffu >> (32 - a.top_k);
        expert_of_lane = lane < n_chosen ? (int)(posted >> lane * 8 & 255) : shared;
    }
    __device__ __forceinline__ int n() const { return __popc(mask); }
    /* The i-th of them. */
    __device__ __forceinline__ int slot(const stream_args &a, int i) const {
        if (!a.is_part)
            return i;
        uint32_t left = mask;
        for (; i > 0; i--)
            left &= left - 1;
        return __ffs((int)left) - 1;
    }
    /* By all lanes, each of a slot. */
    __device__ __forceinline__ int expert(int slot) const { return __shfl_sync(0xffffffffu, expert_of_lane, slot); }
};

static __device__ __forceinline__ unsigned long long look_posted(const unsigned long long *at) {
    unsigned long long ids;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(ids) : "l"(at) : "memory");
    return ids;
}
static __device__ __forceinline__ unsigned long long await_posted(const unsigned long long *at) {
    unsigned long long ids = look_posted(at);
    while (ids == NOT_POSTED)
        ids = look_posted(at);
    return ids;
}

/* The block's share: tiles of rows by tiles of tokens, in the list's order, from begin to end. */
struct share {
    int begin, end;
    int first_tile, n_tiles; // of tokens
};

/* One tile of tokens for each block, where the longest share is not longer by that than by a change of tokens: those
 * wait until all warps have done with the ones before. False: there are too few blocks, or they are too unequal. */
static __device__ bool share_of_tile(uint32_t n_tiles, uint32_t n_row_tiles, uint32_t equal, int change, share &s) {
    uint32_t of_tile = n_tiles > 0 ? gridDim.x / n_tiles : 0;
    if (change == 0 || of_tile == 0 || (n_row_tiles + of_tile - 1) / of_tile > equal + change)
        return false;
    uint32_t n_longer = gridDim.x % n_tiles, with_more = n_longer * (of_tile + 1), tile, k; // some tiles have one more
    if (blockIdx.x < with_more)
        of_tile++, tile = blockIdx.x / of_tile, k = blockIdx.x % of_tile;
    else
        tile = n_longer + (blockIdx.x - with_more) / of_tile, k = (blockIdx.x - with_more) % of_tile;
    s.begin = (int)(tile * n_row_tiles + n_row_tiles * k / of_tile);
    s.end = (int)(tile * n_row_tiles + n_row_tiles * (k + 1) / of_tile);
    s.first_tile = (int)tile, s.n_tiles = s.end > s.begin;
    return true;
}

/* change: as stream_args has it. Else equal shares of neighbours. */
static __device__ share share_of_block(int n_tiles, int n_row_tiles, int change) {
    uint32_t n = (uint32_t)n_tiles * n_row_tiles, length = n / gridDim.x, n_longer = n % gridDim.x;
    share s = {};
    if (share_of_tile((uint32_t)n_tiles, (uint32_t)n_row_tiles, length, change, s))
        return s;
    s.begin = blockIdx.x * length + min(blockIdx.x, n_longer);
    s.end = s.begin + length + (blockIdx.x < n_longer);
    s.first_tile = (uint32_t)s.begin / n_row_tiles;
    s.n_tiles = s.end > s.begin ? (uint32_t)(s.end - 1) / n_row_tiles - s.first_tile + 1 : 0;
    return s;
}

/* Arguments lie in memory that nobody has read since they were written: all lines of them are asked for at once. */
static __device__ __forceinline__ void touch_arguments(const stream_args &a) {
    const int *words = reinterpret_cast<const int *>(&a);
#pragma unroll
    for (int i = 0; i < (int)(sizeof a / sizeof(int)); i += 16)
        asm volatile("" ::"r"(words[i]));
}

/* Which of the block's tiles a warp has first. Of two blocks on a multiprocessor the second, of the grid's later half,
 * begins with other warps, as both seldom have tiles for all, and a quarter of it has every fourth warp. */
template <int WARPS> static __device__ __forceinline__ int turn_of_warp(bool in_pairs) {
    int warp = threadIdx.x / 32;
    return in_pairs && blockIdx.x >= gridDim.x / 2 ? (warp + WARPS - 2) % WARPS : warp;
}

// ---- the weights ----------------------------------------------------------------------------------------------------

/* The lane's rows of a tile: r and r + 8 of sixteen, of gates and ups the gate's and the up's. -1: not there. */
template <bool UP> struct rows_of_tile {
    int unit[2];
    int row[2]; // of w
    __device__ __forceinline__ rows_of_tile(const stream_args &a, int expert, int row_tile) {
        int r = threadIdx.x % 32 / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int u = UP ? row_tile * 8 + r : row_tile * TILE_ROWS + half * 8 + r;
            unit[half] = u < a.units ? u : -1;
            row[half] = UP ? (expert * 2 + half) * a.units + u : expert * a.units + u;
        }
    }
};

/* A warp's queue of steps of rows: every lane puts in what it takes out itself. */
template <class W, bool UP, int DEPTH> struct row_queue {
    static constexpr int SLOT = W::CHUNKS * W::CHUNK_BYTES, BYTES = DEPTH * SLOT, CHUNK = W::COLUMNS * W::BYTES,
                         STEP = W::CHUNKS * CHUNK; // of a row

    const stream_args &a;
    const dmoe_tile *tiles; // of tokens, from first_tile on
    const unsigned char *slots;
    const unsigned char *from[2]; // what is put in next, of the lane's rows of a tile, which have `left` bytes more
    uint64_t policy;
    int next, end;             // the tile of rows behind that, and where those end
    int first_tile, of, of_at; // its tile of tokens, and where that one's rows begin
    int left = 0, slot = 0;

    /* Tiles first, first + the block's warps ... before end, of tiles of rows by tiles of tokens. */
    __device__ __forceinline__ row_queue(const stream_args &a, const dmoe_tile *tiles, int first_tile, int first,
                                         int end, unsigned char *queues)
        : a(a), tiles(tiles), next(first), end(end), first_tile(first_tile) {
        slots = queues + threadIdx.x / 32 * BYTES;
        policy = policy_read_once();
        of = first_tile, of_at = of * a.n_row_tiles;
        begin_tile();
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            fill(i);
    }

    /* What stands for rows that are not there nobody reads. */
    __device__ __forceinline__ void begin_tile() {
        left = 0;
        if (next >= end)
            return;
        for (; next - of_at >= a.n_row_tiles; of++)
            of_at += a.n_row_tiles;
        int expert = tiles[of - first_tile].expert, row_tile = next - of_at, r = threadIdx.x % 32 / 4;
        left = a.in * W::BYTES, next += blockDim.x / 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int u = min(UP ? row_tile * 8 + r : row_tile * TILE_ROWS + half * 8 + r, a.units - 1),
                row = UP ? (expert * 2 + half) * a.units + u : expert * a.units + u;
            from[half] = a.w + (int64_t)row * left + threadIdx.x % 4 * PIECE;
        }
    }

    __device__ __forceinline__ void fill(int slot) {
        uint32_t to = shared_address(slots) + slot * SLOT + threadIdx.x % 32 * PIECE;
        if (left >= STEP) {
#pragma unroll
            for (int i = 0; i < 2 * W::CHUNKS; i++)
                copy_later(to + i * 32 * PIECE, from[i % 2] + i / 2 * CHUNK, false, policy);
        } else if (left > 0) {
#pragma unroll
            for (int i = 0; i < 2 * W::CHUNKS; i++) {
                bool zeros = i / 2 * CHUNK + (int)threadIdx.x % 4 * PIECE >= left;
                copy_later(to + i * 32 * PIECE, zeros ? a.w : from[i % 2] + i / 2 * CHUNK, zeros, policy);
            }
        }
        close_batch();
        from[0] += STEP, from[1] += STEP, left -= STEP;
        if (left <= 0)
            begin_tile();
    }

    /* n chunks of the oldest slot, which is filled again. */
    __device__ __forceinline__ void take(typename W::chunk (&w)[W::CHUNKS], int n) {
        wait_batches<DEPTH - 1>();
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            if (j < n)
                w[j].load(slots + slot * SLOT + j * W::CHUNK_BYTES);
        fill(slot);
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
};
