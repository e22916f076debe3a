/* moe_stream_kernel.cuh - the kernel of moe_up and moe_down; moe_stream.cu says how it works. */
#pragma once

#include "backend/cuda/moe/moe_block_queue.cuh"
#include "backend/cuda/moe/moe_tokens.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/sigmoid.cuh"
#include "backend/cuda/value.h"

// ---- what becomes of the sums ---------------------------------------------------------------------------------------

static __device__ __noinline__ float activate_rarely(int act, float limit, float gate, float up) {
    return activate(act, limit, gate, up);
}

enum { SILU = 0, CLAMPED = 4 }; // activations (core/ops.h) that have an end of their own

/* All kernels of experts make the same bits of a gate and what it lets through. */
static __device__ __forceinline__ float activated(int act, float limit, float gate, float up) {
    constexpr float LOG2E = 1.4426950408889634f;
    if (act == SILU)
        return silu_fast(gate) * up;
    if (act == CLAMPED) {
        float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        return (u + 1.0f) * over_power(g, 1.702f * LOG2E * g);
    }
    return activate_rarely(act, limit, gate, up);
}

/* What a lane needs of its two rows to finish sums. */
template <bool UP> struct row_ends {
    float scale[2], bias[2];
    __device__ __forceinline__ row_ends(const stream_args &a, const rows_of_tile<UP> &rows) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bool there = rows.unit[half] >= 0;
            scale[half] = there && a.scale ? a.scale[rows.row[half]] : 1.0f;
            bias[half] = there && a.bias ? a.bias[rows.row[half]] : 0.0f;
        }
    }
    __device__ __forceinline__ float of(int half, float sum) const { return sum * scale[half] + bias[half]; }
};

/* Sums of eight tokens: lane 4r + q has rows r and r + 8 of tokens 2q and 2q + 1. place: of hidden's unit. */
template <class W, bool UP>
static __device__ __forceinline__ void finish(const stream_args &a, const dmoe_tile &tile, const int *pairs, int octet,
                                              const rows_of_tile<UP> &rows, const row_ends<UP> &ends,
                                              const float (&sums)[4], int place) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int token = octet * 8 + threadIdx.x % 4 * 2 + i;
        if (token >= tile.n)
            continue;
        float first = ends.of(0, sums[i]), second = ends.of(1, sums[2 + i]);
        if constexpr (UP) {
            using T = typename W::product;
            if (rows.unit[0] >= 0)
                static_cast<T *>(a.y)[(int64_t)pairs[token] * a.units + place] =
                    rounded<T>(activated(a.act, a.limit, first, second));
        } else {
            float *to = static_cast<float *>(a.y) + (int64_t)pairs[token] * a.units;
            if (rows.unit[0] >= 0)
                to[rows.unit[0]] = first;
            if (rows.unit[1] >= 0)
                to[rows.unit[1]] = second;
        }
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* A chunk times the tokens, whose columns begin at `columns`. */
template <class W, int OCTETS>
static __device__ __forceinline__ void add_chunk(typename W::chunk &w, const unsigned char *columns,
                                                 const int (&token_at)[OCTETS], float (&sums)[OCTETS][4]) {
#pragma unroll
    for (int s = 0; s < W::STEPS; s += 2) {
        uint32_t m[2][4];
        w.fragment(s, m[0]);
        w.fragment(s + 1, m[1]);
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            uint4 b = *reinterpret_cast<const uint4 *>(columns + token_at[o] + W::x_pair(s / 2));
            multiply_add<W::BF16>(sums[o], m[0], b.x, b.y);
            multiply_add<W::BF16>(sums[o], m[1], b.z, b.w);
        }
    }
}

/* The queue's next tile of rows times n tokens; x: those. Whole steps have no branch in them: what the next chunk is
 * made of is decoded while a sum waits for the one before. */
template <class W, bool UP, int OCTETS, class QUEUE>
static __device__ __forceinline__ void sum_tile(const stream_args &a, QUEUE &queue, int n, const unsigned char *x,
                                                float (&sums)[OCTETS][4]) {
    constexpr int X_CHUNK = x_chunk_bytes<W>();
    int r = threadIdx.x % 32 / 4, token_at[OCTETS];
#pragma unroll
    for (int o = 0; o < OCTETS; o++) // what a column beyond the tokens sums, nobody reads
        token_at[o] = min(o * 8 + r, n - 1) * a.x_pitch;
    const unsigned char *columns = x + W::x_at(threadIdx.x % 4);
    typename W::chunk w[W::CHUNKS];
    int n_chunks = (a.in + W::COLUMNS - 1) / W::COLUMNS;
#pragma unroll 1
    for (; n_chunks >= W::CHUNKS; n_chunks -= W::CHUNKS) {
        queue.take(w, W::CHUNKS);
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++)
            add_chunk<W, OCTETS>(w[j], columns + j * X_CHUNK, token_at, sums);
        columns += W::CHUNKS * X_CHUNK;
    }
    if (n_chunks > 0)
        queue.take(w, n_chunks);
#pragma unroll
    for (int j = 0; j < W::CHUNKS - 1; j++)
        if (j < n_chunks)
            add_chunk<W, OCTETS>(w[j], columns + j * X_CHUNK, token_at, sums);
}

/* A tile of rows by a tile of tokens. */
template <class W, bool UP, int OCTETS, class QUEUE>
static __device__ __forceinline__ void multiply(const stream_args &a, QUEUE &queue, const dmoe_tile &tile, int row_tile,
                                                const unsigned char *x, const int *pairs) {
    const rows_of_tile<UP> rows(a, tile.expert, row_tile);
    const row_ends<UP> ends(a, rows); // they come while products are made
    float sums[OCTETS][4] = {};
    sum_tile<W, UP, OCTETS>(a, queue, tile.n, x, sums);
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        finish<W, UP>(a, tile, pairs, o, rows, ends, sums[o], rows.unit[0]);
}

/* The block's tiles of tokens, from the list. A short list is read whole, without waiting for its length. */
template <bool POSTED> static __device__ share take_tiles(const stream_args &a, dmoe_tile *tiles, int n_row_tiles) {
    if (POSTED || a.ids) { // a tile a slot
        own_slots own(a, POSTED ? nullptr : a.ids);
        if (POSTED && threadIdx.x < 32) {
            own = own_slots(a, await_posted(a.list.posted));
            let_next_start();
        }
        const share s = share_of_block(own.n(), n_row_tiles, 0);
        bool there = (int)threadIdx.x < s.n_tiles; // lanes of the first warp
        int slot = there ? own.slot(a, s.first_tile + threadIdx.x) : 0, expert = own.expert(slot);
        if (there)
            tiles[threadIdx.x] = {expert, slot, 1};
        __syncthreads(); // they are there
        return s;
    }
    dmoe_tile early = {};
    int n_early = min(a.most_tiles, (int)blockDim.x);
    if ((int)threadIdx.x < n_early)
        early = a.list.tiles[threadIdx.x];
    const share s = share_of_block(*a.list.n_tiles, n_row_tiles, a.change);
    for (int i = threadIdx.x; i < s.first_tile + s.n_tiles; i += blockDim.x)
        if (i >= s.first_tile)
            tiles[i - s.first_tile] = i < n_early ? early : a.list.tiles[i];
    __syncthreads(); // they are there
    return s;
}

/* How many of the tiles from the i-th on have their tokens in shared memory together. */
static __device__ int tiles_together(const stream_args &a, const dmoe_tile *tiles, int i, int n_tiles) {
    int n = 1;
    while (i + n < n_tiles && tiles[i + n].first + tiles[i + n].n - tiles[i].first <= a.x_tokens)
        n++;
    return n;
}

/* OCTETS: of the tokens that an expert has at the most. SHAPE: queues, and how many warps: exactly, or at the most. */
template <class W, bool UP, int OCTETS, class SHAPE = stream_shape<W, OCTETS>>
static __global__ void __launch_bounds__(SHAPE::WARPS * 32, SHAPE::BLOCKS)
    moe_stream(const __grid_constant__ stream_args a) {
    using queue_type = expert_queue<W, UP, SHAPE::DEPTH>;
    const int n_warps = SHAPE::AT_MOST ? (int)blockDim.x / 32 : SHAPE::WARPS;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ dmoe_tile tiles[MOST_OF_BLOCK];
    unsigned char *x = shared + n_warps * queue_type::BYTES;
    int *pairs = reinterpret_cast<int *>(x + a.x_tokens * a.x_pitch);
    touch_arguments(a);
    // The list was there before moe_up's blocks waited, and moe_down starts behind all of those waits. Posted ids come
    // while the node that routes is still at work, and x was there before: that one started this one behind its wait.
    if (SHAPE::POSTED) {
        bring_row_early<W>(a, a.first_token, x);
    } else if (UP) {
        wait_for_previous();
        let_next_start();
    }
    const share s = take_tiles<SHAPE::POSTED>(a, tiles, a.n_row_tiles);
    int mine = s.begin + turn_of_warp<SHAPE::WARPS>(OCTETS == 1 && W::BLOCKS > 1);
    queue_type queue(a, tiles, s.first_tile, mine, s.end, shared);
    if (!UP) {
        let_next_start();
        wait_for_previous();
    }
    for (int i = 0; i < s.n_tiles;) {
        int together = SHAPE::POSTED ? s.n_tiles : tiles_together(a, tiles, i, s.n_tiles), first = tiles[i].first,
            end = tiles[i + together - 1].first + tiles[i + together - 1].n;
        if (!SHAPE::POSTED) {
            if (i > 0)
                __syncthreads(); // those before have been read
            bring_places<W, UP>(a, first, end - first, x, pairs);
            __syncthreads(); // the tokens are there
        }
        for (int k = 0; k < together; k++, i++) {
            const dmoe_tile tile = tiles[i];
            const unsigned char *tokens = SHAPE::POSTED ? x : x + (tile.first - first) * a.x_pitch;
            int tile_begin = (s.first_tile + i) * a.n_row_tiles, tile_end = min(tile_begin + a.n_row_tiles, s.end);
            int *of_tile = SHAPE::POSTED ? &tiles[i].first : pairs + (tile.first - first);
            for (; mine < tile_end; mine += n_warps) {
                int row_tile = mine - tile_begin;
                switch (OCTETS == 1 ? 1 : (tile.n + 7) / 8) {
                case 1: multiply<W, UP, 1>(a, queue, tile, row_tile, tokens, of_tile); break;
                case 2: multiply<W, UP, OCTETS == 1 ? 1 : 2>(a, queue, tile, row_tile, tokens, of_tile); break;
                default: multiply<W, UP, OCTETS>(a, queue, tile, row_tile, tokens, of_tile);
                }
            }
        }
    }
    if (SHAPE::POSTED)
        wait_for_previous(); // as every block must
}
