/* moe_stream_queue.cuh - of the kernel of moe_stream.cu: formats of weights, the share of a block, and the queue
 * through which a warp takes the weights of its tiles. */
#pragma once

#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/blocks.h"

enum {
    STREAM_WARPS = 8,
    PIECE = 16,
    MOST_OCTETS = 4,
    TILE_ROWS = 16,
    MOST_OF_BLOCK = 128, // tiles of tokens
};

struct stream_args {
    const unsigned char *w;
    const float *scale, *bias; // a row of w; NULL: 1, 0
    dmat x;                    // up: of tokens; down: of pairs
    dmoe_list list;
    const int32_t *ids; // of a step of one token, whose experts are its tiles: there is no list. Else NULL
    void *y;            // up: hidden [pairs]; down: result [pairs]
    int in, units;      // of an expert: columns; rows of y
    int n_row_tiles, most_tiles, x_pitch, x_tokens, top_k, first_token;
    int act;
    float limit;
};

/* The block's share: tiles of rows by tiles of tokens, in the list's order, from begin to end. */
struct share {
    int begin, end;
    int first_tile, n_tiles; // of tokens
};

static __device__ share share_of_block(const stream_args &a, int n_tiles) {
    uint32_t n = (uint32_t)n_tiles * a.n_row_tiles, length = n / gridDim.x, n_longer = n % gridDim.x;
    share s = {};
    s.begin = blockIdx.x * length + min(blockIdx.x, n_longer);
    s.end = s.begin + length + (blockIdx.x < n_longer);
    s.first_tile = (uint32_t)s.begin / a.n_row_tiles;
    s.n_tiles = s.end > s.begin ? (uint32_t)(s.end - 1) / a.n_row_tiles - s.first_tile + 1 : 0;
    return s;
}

// ---- formats of W ---------------------------------------------------------------------------------------------------
// A chunk is what 16 rows have of COLUMNS columns, of which a lane takes a fourth of rows r and r + 8: `chunk` in
// registers, from a chunk in shared memory by `load`. `elements` are those of one of its two rows as the first two and
// the last two of STEPS products. A step of the stream has CHUNKS of them, and a queue has DEPTH steps. X_ASIDE: by how
// much the pitch of tokens in shared memory passes a multiple of 128 bytes, so that the lanes of a load meet no bank
// twice. IN_BLOCKS: in memory a chunk lies as it does here; else rows lie one after another.

static __device__ __forceinline__ void load_rows(const unsigned char *at, uint32_t (&w)[2][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 v = *reinterpret_cast<const uint4 *>(at + (half * 32 + threadIdx.x % 32) * PIECE);
        w[half][0] = v.x, w[half][1] = v.y, w[half][2] = v.z, w[half][3] = v.w;
    }
}

/* Pairs of float16, as T has them. */
template <class T> static __device__ __forceinline__ void pairs_as(uint32_t &low, uint32_t &high) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        float2 l = __half22float2(reinterpret_cast<__half2 &>(low)),
               h = __half22float2(reinterpret_cast<__half2 &>(high));
        low = to_pair<true>(l.x, l.y), high = to_pair<true>(h.x, h.y);
    }
}

template <class T> struct e4m3_expert {
    using product = T;
    static constexpr int BYTES = 1, COLUMNS = 64, CHUNK_BYTES = 1024, STEPS = 4, CHUNKS = 2, DEPTH = 6, X_ASIDE = 16;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = false;
    struct chunk {
        uint32_t w[2][4];
        __device__ __forceinline__ void load(const unsigned char *at) { load_rows(at, w); }
        __device__ __forceinline__ void elements(int half, int s, uint32_t &low, uint32_t &high) const {
            e4m3_to_pairs(w[half][s], low, high);
            pairs_as<T>(low, high);
        }
    };
};

template <class T> struct plain_expert {
    using product = T;
    static constexpr int BYTES = 2, COLUMNS = 32, CHUNK_BYTES = 1024, STEPS = 2, CHUNKS = 2, DEPTH = 6, X_ASIDE = 64;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = false;
    struct chunk {
        uint32_t w[2][4];
        __device__ __forceinline__ void load(const unsigned char *at) { load_rows(at, w); }
        __device__ __forceinline__ void elements(int half, int s, uint32_t &low, uint32_t &high) const {
            low = w[half][2 * s], high = w[half][2 * s + 1];
        }
    };
};

template <class T> struct mxfp4_expert {
    using product = T;
    static constexpr int COLUMNS = BLOCK_COLUMNS, CHUNK_BYTES = MXFP4_BLOCK, STEPS = 4, CHUNKS = 4, DEPTH = 5,
                         X_ASIDE = 16;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = true;
    struct chunk {
        uint32_t w[2][2], by[2]; // by: 2^(b - 15), twice
        __device__ __forceinline__ void load(const unsigned char *at) {
            uint4 v = *reinterpret_cast<const uint4 *>(at + threadIdx.x % 32 * PIECE);
            uint32_t b = *reinterpret_cast<const uint16_t *>(at + BLOCK_NIBBLES +
                                                             (threadIdx.x % 32 / 4 * 2 + threadIdx.x % 4 / 2) * 2);
            w[0][0] = v.x, w[0][1] = v.y, w[1][0] = v.z, w[1][1] = v.w;
            by[0] = (b & 255u) * 0x04000400u, by[1] = (b >> 8) * 0x04000400u;
        }
        __device__ __forceinline__ void elements(int half, int s, uint32_t &low, uint32_t &high) const {
            if (s % 2 == 0)
                e2m1_to_pairs_low(w[half][s / 2], low, high);
            else
                e2m1_to_pairs_high(w[half][s / 2], low, high);
            low = multiply_pair(low, by[half]), high = multiply_pair(high, by[half]);
            pairs_as<T>(low, high);
        }
    };
};

template <class W> static __host__ __device__ constexpr int x_chunk_bytes() { return W::COLUMNS * 2; }

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

/* A warp's queue of steps. */
template <class W, bool UP> struct expert_queue {
    static constexpr int DEPTH = W::DEPTH, SLOT = W::CHUNKS * W::CHUNK_BYTES, BYTES = DEPTH * SLOT;

    const stream_args &a;
    const dmoe_tile *tiles; // of tokens, from first_tile on
    const unsigned char *slots;
    uint64_t policy;
    int next, end;             // the tile of rows that is put in, and where those end
    int first_tile, of, of_at; // its tile of tokens, and where that one's rows begin
    tile_source<W, UP> source;
    uint32_t to, to_end;
    int put_step = 0, n_steps, take_slot = 0;

    /* Tiles first, first + STREAM_WARPS ... before end, of tiles of rows by tiles of tokens. */
    __device__ __forceinline__ expert_queue(const stream_args &a, const dmoe_tile *tiles, int first_tile, int first,
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
        if (W::IN_BLOCKS)
            __syncwarp(); // all lanes have read the slot
        if (next < end) {
            if (put_step == 0)
                begin_tile();
            source.template copy<W::CHUNKS>(a, to, put_step, policy);
            to = to + SLOT == to_end ? to_end - BYTES : to + SLOT;
            if (++put_step == n_steps) {
                put_step = 0;
                next += STREAM_WARPS;
            }
        }
        close_batch();
    }

    /* The oldest slot's; then put() may fill it again. */
    __device__ __forceinline__ void take(typename W::chunk (&w)[W::CHUNKS]) {
        wait_batches<DEPTH - 1>();
        if (W::IN_BLOCKS)
            __syncwarp(); // what other lanes copied is there
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            w[j].load(slots + take_slot * SLOT + j * W::CHUNK_BYTES);
        take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
    }
};
