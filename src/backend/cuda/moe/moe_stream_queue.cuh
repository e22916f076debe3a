/* moe_stream_queue.cuh - of the kernel of moe_stream.cu: formats of weights, the share of a block, and the queue
 * through which a warp takes the weights of its tiles. */
#pragma once

#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

enum {
    STREAM_WARPS = 8,
    CHUNK = 64,       // bytes of a row that meet 16 bytes a lane
    STEP = 2 * CHUNK, // of each row at a time
    PIECE = 16,
    MOST_OCTETS = 4,
    TILE_ROWS = 16,
    MOST_OF_BLOCK = 128, // tiles of tokens
};

// ---- formats of W ---------------------------------------------------------------------------------------------------
// A lane's 16 bytes of a row as STEPS products' first two elements and last two. X_ASIDE: by how much the pitch of
// tokens in shared memory passes a multiple of 128 bytes, so that the lanes of a load meet no bank twice.

template <class T> struct e4m3_expert {
    using product = T;
    static constexpr int BYTES = 1, STEPS = 4, X_ASIDE = 16;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>;
    static __device__ __forceinline__ void elements(const uint32_t (&w)[4], int s, uint32_t &low, uint32_t &high) {
        e4m3_to_pairs(w[s], low, high);
        if constexpr (BF16) {
            float2 l = __half22float2(reinterpret_cast<__half2 &>(low)),
                   h = __half22float2(reinterpret_cast<__half2 &>(high));
            low = to_pair<true>(l.x, l.y), high = to_pair<true>(h.x, h.y);
        }
    }
};

template <class T> struct plain_expert {
    using product = T;
    static constexpr int BYTES = 2, STEPS = 2, X_ASIDE = 64;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>;
    static __device__ __forceinline__ void elements(const uint32_t (&w)[4], int s, uint32_t &low, uint32_t &high) {
        low = w[2 * s], high = w[2 * s + 1];
    }
};

struct stream_args {
    const unsigned char *w;
    const float *scale, *bias; // a row of w; NULL: 1, 0
    dmat x;                    // up: of tokens; down: of the list's places
    dmoe_list list;
    void *y;       // up: hidden; down: result
    int in, units; // of an expert: columns; rows of y
    int n_row_tiles, most_tiles, x_pitch, x_tokens, top_k, first_token;
    int act;
    float limit;
};

template <class W> static __host__ __device__ constexpr int x_step_bytes() { return STEP / W::BYTES * 2; }

/* The block's share: tiles of rows by tiles of tokens, in the list's order, from begin to end. */
struct share {
    int begin, end;
    int first_tile, n_tiles; // of tokens
};

static __device__ share share_of_block(const stream_args &a) {
    uint32_t n = (uint32_t)*a.list.n_tiles * a.n_row_tiles, length = n / gridDim.x, n_longer = n % gridDim.x;
    share s = {};
    s.begin = blockIdx.x * length + min(blockIdx.x, n_longer);
    s.end = s.begin + length + (blockIdx.x < n_longer);
    s.first_tile = (uint32_t)s.begin / a.n_row_tiles;
    s.n_tiles = s.end > s.begin ? (uint32_t)(s.end - 1) / a.n_row_tiles - s.first_tile + 1 : 0;
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

/* A warp's queue of steps; every lane puts in what it takes out itself. */
template <class W, int DEPTH, bool UP> struct expert_queue {
    static constexpr int HALVES = STEP / CHUNK, SLOT = HALVES * 2 * 32 * PIECE, BYTES = DEPTH * SLOT;

    const stream_args &a;
    const share &s;
    const dmoe_tile *tiles; // of the block's
    const unsigned char *slots;
    uint64_t policy;
    int next;      // the tile of rows that is put in
    int of, of_at; // its tile of tokens, and where that one's rows begin
    const unsigned char *from[2];
    uint32_t to, to_end;
    int row_bytes, put_byte = 0, n_steps, take_slot = 0;
    bool there[2];

    __device__ __forceinline__ expert_queue(const stream_args &a, const share &s, const dmoe_tile *tiles,
                                            unsigned char *queues)
        : a(a), s(s), tiles(tiles) {
        int warp = threadIdx.x / 32;
        slots = queues + warp * BYTES;
        policy = policy_read_once();
        next = s.begin + warp;
        of = s.first_tile, of_at = of * a.n_row_tiles;
        row_bytes = a.in * W::BYTES;
        n_steps = (row_bytes + STEP - 1) / STEP;
        to = shared_address(slots) + threadIdx.x % 32 * PIECE;
        to_end = to + BYTES;
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++)
            put();
    }

    __device__ __forceinline__ void begin_tile() {
        for (; next - of_at >= a.n_row_tiles; of++)
            of_at += a.n_row_tiles;
        rows_of_tile<UP> rows(a, tiles[of - s.first_tile].expert, next - of_at);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            there[half] = rows.unit[half] >= 0;
            from[half] = a.w + (there[half] ? (int64_t)rows.row[half] * row_bytes : 0) + threadIdx.x % 4 * PIECE;
        }
    }

    __device__ __forceinline__ void put() {
        if (next < s.end) {
            if (put_byte == 0)
                begin_tile();
            int lane_byte = put_byte + threadIdx.x % 4 * PIECE;
#pragma unroll
            for (int j = 0; j < HALVES; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    bool zeros = !there[half] || lane_byte + j * CHUNK >= row_bytes;
                    copy_later(to + (j * 2 + half) * 32 * PIECE, zeros ? a.w : from[half] + put_byte + j * CHUNK, zeros,
                               policy);
                }
            to = to + SLOT == to_end ? to_end - BYTES : to + SLOT;
            put_byte += STEP;
            if (put_byte >= row_bytes) {
                put_byte = 0;
                next += STREAM_WARPS;
            }
        }
        close_batch();
    }

    /* The oldest slot's; then put() may fill it again. */
    __device__ __forceinline__ void take(uint32_t (&w)[HALVES][2][4]) {
        wait_batches<DEPTH - 1>();
#pragma unroll
        for (int j = 0; j < HALVES; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 v = *reinterpret_cast<const uint4 *>(slots + take_slot * SLOT + (j * 2 + half) * 32 * PIECE +
                                                           threadIdx.x % 32 * PIECE);
                w[j][half][0] = v.x, w[j][half][1] = v.y, w[j][half][2] = v.z, w[j][half][3] = v.w;
            }
        take_slot = take_slot + 1 == DEPTH ? 0 : take_slot + 1;
    }
};
