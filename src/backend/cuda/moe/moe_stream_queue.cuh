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
    MOST_OCTETS = 4,
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
    int n_experts;
    int n_row_tiles, most_tiles, x_pitch, x_tokens, top_k, first_token;
    int act;
    float limit;
};

/* The expert of an id that the node before wrote. A layer that is timed has no tokens, and ids that nobody wrote. */
static __device__ __forceinline__ int expert_of(const stream_args &a, int32_t id) {
    return min((uint32_t)id, (uint32_t)a.n_experts - 1);
}

/* The block's share: tiles of rows by tiles of tokens, in the list's order, from begin to end. */
struct share {
    int begin, end;
    int first_tile, n_tiles; // of tokens
};

static __device__ share share_of_block(int n_tiles, int n_row_tiles) {
    uint32_t n = (uint32_t)n_tiles * n_row_tiles, length = n / gridDim.x, n_longer = n % gridDim.x;
    share s = {};
    s.begin = blockIdx.x * length + min(blockIdx.x, n_longer);
    s.end = s.begin + length + (blockIdx.x < n_longer);
    s.first_tile = (uint32_t)s.begin / n_row_tiles;
    s.n_tiles = s.end > s.begin ? (uint32_t)(s.end - 1) / n_row_tiles - s.first_tile + 1 : 0;
    return s;
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

/* A tile of W, of which a warp copies steps of CHUNKS chunks: of rows each lane what it will itself read. `to`: the
 * step in shared memory. */
template <class W, bool UP, bool IN_BLOCKS = W::IN_BLOCKS> struct tile_source {
    const unsigned char *from[2];
    int row_bytes;
    bool there[2];
    __device__ __forceinline__ void begin(const stream_args &a, int expert, int row_tile) {
        const rows_of_tile<UP> rows(a, expert, row_tile);
        row_bytes = a.in * W::BYTES;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            there[half] = rows.unit[half] >= 0;
            from[half] = a.w + (there[half] ? (int64_t)rows.row[half] * row_bytes : 0) + threadIdx.x % 4 * PIECE;
        }
    }
    template <int CHUNKS>
    __device__ __forceinline__ void copy(const stream_args &a, uint32_t to, int step, uint64_t policy) const {
        constexpr int CHUNK = W::COLUMNS * W::BYTES;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = (step * CHUNKS + j) * CHUNK;
                bool zeros = !there[half] || at + (int)threadIdx.x % 4 * PIECE >= row_bytes;
                copy_later(to + ((j * 2 + half) * 32 + threadIdx.x % 32) * PIECE, zeros ? a.w : from[half] + at, zeros,
                           policy);
            }
    }
};

template <class W, bool UP> struct tile_source<W, UP, true> {
    const unsigned char *from;
    int n_chunks;
    __device__ __forceinline__ void begin(const stream_args &a, int expert, int row_tile) {
        n_chunks = (a.in + W::COLUMNS - 1) / W::COLUMNS;
        from = a.w + ((int64_t)expert * a.n_row_tiles + row_tile) * n_chunks * W::CHUNK_BYTES;
    }
    template <int CHUNKS>
    __device__ __forceinline__ void copy(const stream_args &a, uint32_t to, int step, uint64_t policy) const {
        constexpr int PIECES = CHUNKS * W::CHUNK_BYTES / PIECE;
        int at = step * CHUNKS * W::CHUNK_BYTES, end = n_chunks * W::CHUNK_BYTES;
#pragma unroll
        for (int i = 0; i < PIECES; i += 32) {
            int byte = (i + threadIdx.x % 32) * PIECE;
            bool zeros = at + byte >= end;
            if (i + 32 <= PIECES || i + (int)threadIdx.x % 32 < PIECES)
                copy_later(to + byte, zeros ? a.w : from + at + byte, zeros, policy);
        }
    }
};

/* A warp's queue of steps of rows: every lane puts in what it takes out itself. */
template <class W, bool UP, int DEPTH> struct row_queue {
    static constexpr int SLOT = W::CHUNKS * W::CHUNK_BYTES, BYTES = DEPTH * SLOT;

    const stream_args &a;
    const dmoe_tile *tiles; // of tokens, from first_tile on
    const unsigned char *slots;
    uint64_t policy;
    int next, end;             // the tile of rows that is put in, and where those end
    int first_tile, of, of_at; // its tile of tokens, and where that one's rows begin
    tile_source<W, UP> source;
    uint32_t to, to_end;
    int put_step = 0, n_steps, take_slot = 0;

    /* Tiles first, first + the block's warps ... before end, of tiles of rows by tiles of tokens. */
    __device__ __forceinline__ row_queue(const stream_args &a, const dmoe_tile *tiles, int first_tile, int first,
                                         int end, unsigned char *queues)
        : a(a), tiles(tiles), next(first), end(end), first_tile(first_tile) {
        slots = queues + threadIdx.x / 32 * BYTES;
        policy = policy_read_once();
        of = first_tile, of_at = of * a.n_row_tiles;
        n_steps = (a.in + W::COLUMNS * W::CHUNKS - 1) / (W::COLUMNS * W::CHUNKS);
        to = shared_address(slots);
        to_end = to + BYTES;
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            put();
    }

    __device__ __forceinline__ void begin_tile() {
        for (; next - of_at >= a.n_row_tiles; of++)
            of_at += a.n_row_tiles;
        source.begin(a, tiles[of - first_tile].expert, next - of_at);
    }

    __device__ __forceinline__ void put() {
        if (next < end) {
            if (put_step == 0)
                begin_tile();
            source.template copy<W::CHUNKS>(a, to, put_step, policy);
            to = to + SLOT == to_end ? to_end - BYTES : to + SLOT;
            if (++put_step == n_steps) {
                put_step = 0;
                next += blockDim.x / 32;
            }
        }
        close_batch();
    }

    /* The oldest slot's; then put() may fill it again. */
    __device__ __forceinline__ void take(typename W::chunk (&w)[W::CHUNKS], int) {
        wait_batches<DEPTH - 1>();
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            w[j].load(slots + take_slot * SLOT + j * W::CHUNK_BYTES);
        take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
    }
};
