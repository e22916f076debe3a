/* moe_stream_kernel.cuh - the kernel of moe_up and moe_down; moe_stream.cu says how it works. */
#pragma once

#include "backend/cuda/moe/moe_block_queue.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

// ---- the tokens -----------------------------------------------------------------------------------------------------

template <class T> static __device__ __forceinline__ T rounded(float x) {
    if constexpr (std::is_same_v<T, __half>)
        return to_half(x);
    else
        return __float2bfloat16_rn(x);
}

/* Where a pair of columns of a NATURAL format lies in a token. */
static __device__ __forceinline__ int natural_byte(int pair) {
    return pair / 16 * 64 + pair % 4 * PIECE + pair / 8 % 2 * 8 + pair / 4 % 2 * 4;
}

/* A row of x into shared memory, by a warp, with zeros behind it. */
template <class W> static __device__ void bring_row(const stream_args &a, int64_t row, unsigned char *to) {
    using T = typename W::product;
    int lane = threadIdx.x % 32, n_bytes = a.in * 2, end = a.x_pitch - W::X_ASIDE;
    const element e = W::BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    if (a.x.element == e && a.x.stride % 8 == 0 && (uintptr_t)a.x.at % PIECE == 0) {
        const unsigned char *from = static_cast<const unsigned char *>(a.x.at) + row * a.x.stride * 2;
#pragma unroll 4
        for (int i = lane * PIECE; i < n_bytes; i += 32 * PIECE) {
            uint4 v = *reinterpret_cast<const uint4 *>(from + i);
            if constexpr (W::NATURAL) {
                uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int k = 0; k < 4; k++)
                    *reinterpret_cast<uint32_t *>(to + natural_byte(i / 4 + k)) = words[k];
            } else {
                *reinterpret_cast<uint4 *>(to + i) = v;
            }
        }
    } else {
#pragma unroll 4
        for (int i = lane; i < a.in; i += 32)
            *reinterpret_cast<T *>(to + (W::NATURAL ? natural_byte(i / 2) + i % 2 * 2 : i * 2)) =
                rounded<T>(load(a.x, row, i));
    }
    for (int i = n_bytes + lane * PIECE; i < end; i += 32 * PIECE)
        *reinterpret_cast<uint4 *>(to + i) = make_uint4(0, 0, 0, 0);
}

/* The pairs of the list's places first .. first + n, and their rows. */
template <class W, bool UP>
static __device__ void bring_places(const stream_args &a, int first, int n, unsigned char *x, int *pairs) {
    for (int i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
        int pair = a.ids ? first + i : a.list.pair[first + i];
        if (threadIdx.x % 32 == 0)
            pairs[i] = pair;
        bring_row<W>(a, UP ? a.first_token + pair / a.top_k : pair, x + i * a.x_pitch);
    }
}

// ---- what becomes of the sums ---------------------------------------------------------------------------------------

static __device__ __noinline__ float activate_rarely(int act, float limit, float gate, float up) {
    return activate(act, limit, gate, up);
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
                    rounded<T>(a.act == 0 ? silu(first) * second : activate_rarely(a.act, a.limit, first, second));
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

/* The queue's next tile of rows times n tokens; x: those. */
template <class W, bool UP, int OCTETS, class QUEUE>
static __device__ __forceinline__ void sum_tile(const stream_args &a, QUEUE &queue, int n, const unsigned char *x,
                                                float (&sums)[OCTETS][4]) {
    constexpr int X_CHUNK = x_chunk_bytes<W>();
    int r = threadIdx.x % 32 / 4, token_at[OCTETS];
#pragma unroll
    for (int o = 0; o < OCTETS; o++) // what a column beyond the tokens sums, nobody reads
        token_at[o] = min(o * 8 + r, n - 1) * a.x_pitch;
    const unsigned char *columns = x + W::x_at(threadIdx.x % 4);
#pragma unroll 1
    for (int step = 0; step < queue.n_steps; step++) {
        typename W::chunk w[W::CHUNKS];
        int n_chunks = W::IN_BLOCKS ? (a.in + W::COLUMNS - 1) / W::COLUMNS - step * W::CHUNKS : W::CHUNKS;
        queue.take(w, n_chunks);
#pragma unroll
        for (int j = 0; j < W::CHUNKS; j++) {
            if (j >= n_chunks)
                break;
#pragma unroll
            for (int s = 0; s < W::STEPS; s += 2) {
                uint32_t m[2][4];
                w[j].fragment(s, m[0]);
                w[j].fragment(s + 1, m[1]);
#pragma unroll
                for (int o = 0; o < OCTETS; o++) {
                    uint4 b = *reinterpret_cast<const uint4 *>(columns + token_at[o] + j * X_CHUNK + W::x_pair(s / 2));
                    multiply_add<W::BF16>(sums[o], m[0], b.x, b.y);
                    multiply_add<W::BF16>(sums[o], m[1], b.z, b.w);
                }
            }
        }
        columns += W::CHUNKS * X_CHUNK;
        queue.put();
    }
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
static __device__ share take_tiles(const stream_args &a, dmoe_tile *tiles, int n_row_tiles) {
    if (a.ids) { // a tile a slot
        const share s = share_of_block(a.top_k, n_row_tiles);
        int slot = s.first_tile + (int)threadIdx.x;
        if ((int)threadIdx.x < s.n_tiles)
            tiles[threadIdx.x] = {expert_of(a, a.ids[slot]), slot, 1};
        __syncthreads(); // they are there
        return s;
    }
    dmoe_tile early = {};
    int n_early = min(a.most_tiles, (int)blockDim.x);
    if ((int)threadIdx.x < n_early)
        early = a.list.tiles[threadIdx.x];
    const share s = share_of_block(*a.list.n_tiles, n_row_tiles);
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

/* OCTETS: of the tokens that an expert has at the most. */
template <class W, bool UP, int OCTETS>
static __global__ void __launch_bounds__(stream_shape<W, OCTETS>::WARPS * 32,
                                         OCTETS == 1 ? 1 + W::BLOCKS : 16 / W::MANY_WARPS)
    moe_stream(const __grid_constant__ stream_args a) {
    using shape = stream_shape<W, OCTETS>;
    using queue_type = expert_queue<W, UP, shape::DEPTH>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ dmoe_tile tiles[MOST_OF_BLOCK];
    unsigned char *x = shared + shape::WARPS * queue_type::BYTES;
    int *pairs = reinterpret_cast<int *>(x + a.x_tokens * a.x_pitch);
    // The list was there before moe_up's blocks waited, and moe_down starts behind all of those waits.
    if (UP) {
        wait_for_previous();
        let_next_start();
    }
    const share s = take_tiles(a, tiles, a.n_row_tiles);
    int mine = s.begin + threadIdx.x / 32;
    queue_type queue(a, tiles, s.first_tile, mine, s.end, shared);
    if (!UP) {
        let_next_start();
        wait_for_previous();
    }
    for (int i = 0; i < s.n_tiles;) {
        int together = tiles_together(a, tiles, i, s.n_tiles), first = tiles[i].first,
            end = tiles[i + together - 1].first + tiles[i + together - 1].n;
        if (i > 0)
            __syncthreads(); // those before have been read
        bring_places<W, UP>(a, first, end - first, x, pairs);
        __syncthreads(); // the tokens are there
        for (int k = 0; k < together; k++, i++) {
            const dmoe_tile tile = tiles[i];
            const unsigned char *tokens = x + (tile.first - first) * a.x_pitch;
            int tile_begin = (s.first_tile + i) * a.n_row_tiles, tile_end = min(tile_begin + a.n_row_tiles, s.end);
            for (; mine < tile_end; mine += shape::WARPS) {
                int row_tile = mine - tile_begin, *of_tile = pairs + (tile.first - first);
                switch (OCTETS == 1 ? 1 : (tile.n + 7) / 8) {
                case 1: multiply<W, UP, 1>(a, queue, tile, row_tile, tokens, of_tile); break;
                case 2: multiply<W, UP, OCTETS == 1 ? 1 : 2>(a, queue, tile, row_tile, tokens, of_tile); break;
                case 3: multiply<W, UP, OCTETS == 1 ? 1 : 3>(a, queue, tile, row_tile, tokens, of_tile); break;
                default: multiply<W, UP, OCTETS>(a, queue, tile, row_tile, tokens, of_tile);
                }
            }
        }
    }
}
