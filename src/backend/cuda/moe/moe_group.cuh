/* moe_group.cuh - the same products as moe_stream_kernel.cuh's, to the bit, by a warpgroup's products (wgmma), of
 * weights in blocks and of up to 24 tokens an expert.
 *
 * mma.sync wants the tokens in registers of every warp, and waits for each sum before the next: of few tokens that, and
 * not memory, is what a stream takes. Here a warp makes the left operand of 64 columns, four products, in registers
 * while those before are multiplied, and tokens are read where they lie.
 *
 * A unit is 64 rows of W, a tile of 16 for each warp of a warpgroup. Units go to blocks in equal shares of neighbours
 * and to a block's warpgroups by turns; each warp has a queue of its own (moe_stream_queue.cuh), so that warps meet at
 * products alone. The tokens of all of a block's tiles that fit lie in shared memory for all columns: panels of 64
 * columns, 128 bytes a token, in the 128-byte swizzle, columns in the order that products want (moe_order.cuh). */
#pragma once

#include "backend/cuda/moe/moe_stream_kernel.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"

enum {
    GROUP_OF = 4, // warps of a warpgroup
    GROUP_WARPS = 16,
    GROUP_DEPTH = 2,
    GROUP_OCTETS = 3,
    GROUP_PANEL = 64,        // columns
    GROUP_STEPS = 4,         // products of a panel
    GROUP_ROWS = 1024,       // bytes of eight tokens in a panel
    GROUP_SHARED = 220 << 10 // of panels and queues
};

template <class W, bool UP> using group_queue = block_queue<W, UP, GROUP_DEPTH, GROUP_OF>;

/* Of whole chunks. */
template <class W> static __host__ __device__ constexpr int group_panels(int in) {
    return (in + W::COLUMNS - 1) / W::COLUMNS * (W::COLUMNS / GROUP_PANEL);
}
static __device__ __forceinline__ int octets_of(const dmoe_tile &tile) { return (tile.n + 7) / 8; }

// ---- the tokens -----------------------------------------------------------------------------------------------------

/* Where a token lies: its row in the first panel, and bytes from panel to panel. */
struct group_row {
    int at, pitch;
};

/* Eight columns of x, rounded. */
template <class W>
static __device__ __forceinline__ uint4 eight_columns(const stream_args &a, bool as_it_is, int64_t row, int col) {
    using T = typename W::product;
    if (col >= a.in)
        return make_uint4(0, 0, 0, 0);
    if (as_it_is)
        return *reinterpret_cast<const uint4 *>(static_cast<const T *>(a.x.at) + row * a.x.stride + col);
    __align__(16) T eight[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        eight[i] = rounded<T>(load(a.x, row, col + i));
    return *reinterpret_cast<const uint4 *>(eight);
}

/* Half a panel of a token, pieces 4 half to 4 half + 3 of its eight: of NATURAL formats neighbours; else lane q of a
 * product has columns 16q to 16q + 15 of the panel, four to each product, and eight of those are what is read here. */
template <class W>
static __device__ __forceinline__ void bring_half(const stream_args &a, bool as_it_is, int64_t row, int panel, int half,
                                                  unsigned char *to, int swizzle) {
    uint4 v[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        v[q] = eight_columns<W>(a, as_it_is, row,
                                panel * GROUP_PANEL + (W::NATURAL ? half * 32 + q * 8 : q * 16 + half * 8));
    if constexpr (!W::NATURAL) {
        uint4 r[4] = {v[0], v[1], v[2], v[3]};
        v[0] = make_uint4(r[0].x, r[1].x, r[2].x, r[3].x), v[1] = make_uint4(r[0].y, r[1].y, r[2].y, r[3].y);
        v[2] = make_uint4(r[0].z, r[1].z, r[2].z, r[3].z), v[3] = make_uint4(r[0].w, r[1].w, r[2].w, r[3].w);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        *reinterpret_cast<uint4 *>(to + ((half * 4 + k) ^ swizzle) * PIECE) = v[k];
}

/* The tokens of n tiles, which are neighbours in the list: tile after tile, eight tokens after eight. list: its pairs;
 * NULL: they are in order. */
template <class W, bool UP>
static __device__ void bring_tiles(const stream_args &a, const int32_t *list, const dmoe_tile *tiles, int n,
                                   unsigned char *panels, int *pairs, group_row *rows) {
    const element e = W::BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    bool as_it_is = a.x.element == e && a.x.stride % 8 == 0 && (uintptr_t)a.x.at % PIECE == 0;
    int n_panels = group_panels<W>(a.in), at = 0;
    for (int i = 0; i < n; i++) {
        int octets = octets_of(tiles[i]), place = tiles[i].first - tiles[0].first;
        for (int t = threadIdx.x; t < tiles[i].n; t += blockDim.x) {
            pairs[place + t] = list ? list[tiles[i].first + t] : tiles[i].first + t;
            rows[place + t] = {at * n_panels * GROUP_ROWS + t * 128, octets * GROUP_ROWS};
        }
        at += octets;
    }
    __syncthreads(); // pairs and rows are there
    int n_places = tiles[n - 1].first + tiles[n - 1].n - tiles[0].first;
#pragma unroll 2
    for (int i = threadIdx.x; i < n_places * n_panels * 2; i += blockDim.x) {
        int place = i / 2 / n_panels, panel = i / 2 % n_panels, pair = pairs[place];
        group_row r = rows[place];
        bring_half<W>(a, as_it_is, UP ? a.first_token + pair / a.top_k : pair, panel, i % 2,
                      panels + r.at + panel * r.pitch, r.at / 128 % 8);
    }
    fence_bulk();
}

// ---- products -------------------------------------------------------------------------------------------------------

/* The queue's next tile of rows times N tokens, of which a tile may have fewer octets: what is read beyond them gives
 * sums that nobody reads. pitch: from panel to panel. */
template <class W, int N, class QUEUE>
static __device__ __forceinline__ void sum_unit(const stream_args &a, QUEUE &queue, uint32_t panels, int pitch,
                                                float (&sums)[N / 2]) {
    constexpr int OF_CHUNK = W::STEPS / GROUP_STEPS, AT_ONCE = 2 / OF_CHUNK, TURNS = W::CHUNKS / AT_ONCE; // of a slot
    static_assert(AT_ONCE >= 1 && TURNS == 2, "two batches a turn, two turns a slot");
    uint32_t made[2][GROUP_STEPS][4];
    const unsigned char *at = nullptr;
    typename W::chunk w[AT_ONCE];
    int n_chunks = (a.in + W::COLUMNS - 1) / W::COLUMNS;
    auto add_batch = [&](int b) {
        uint64_t tokens = operand_rows(of_warp(panels));
        panels += pitch;
        products_wait<1>(); // those of the same registers
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k++) {
            w[b / OF_CHUNK].fragment(b % OF_CHUNK * GROUP_STEPS + k, made[b][k]);
            registers_settle(made[b][k]);
        }
        products_begin();
#pragma unroll
        for (int k = 0; k < GROUP_STEPS; k++)
            halves_product<N, W::BF16>::add(sums, made[b][k], tokens + 2 * k);
        products_commit();
    };
    auto load = [&](int turn, int n) {
        at = turn == 0 ? queue.take() : at + AT_ONCE * W::CHUNK_BYTES;
#pragma unroll
        for (int j = 0; j < n; j++)
            w[j].load(at + j * W::CHUNK_BYTES);
        if (turn + 1 == TURNS || n_chunks <= AT_ONCE)
            queue.put();
    };
    int turn = 0;
#pragma unroll 1
    for (; n_chunks >= AT_ONCE; n_chunks -= AT_ONCE) {
        load(turn, AT_ONCE);
        add_batch(0);
        add_batch(1);
        turn ^= 1;
    }
    if (n_chunks > 0) {
        load(turn, 1);
        add_batch(0);
    }
    products_wait<0>();
    registers_settle(sums);
}

template <class W, bool UP, int OCTETS, class QUEUE>
static __device__ __forceinline__ void multiply_unit(const stream_args &a, QUEUE &queue, const dmoe_tile &tile,
                                                     int unit, uint32_t panels, const int *pairs) {
    const rows_of_tile<UP> rows(a, tile.expert, unit * GROUP_OF + threadIdx.x / 32 % GROUP_OF);
    const row_ends<UP> ends(a, rows); // they come while products are made
    float sums[OCTETS * 4] = {};
    sum_unit<W, OCTETS * 8>(a, queue, panels, octets_of(tile) * GROUP_ROWS, sums);
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const float of_octet[4] = {sums[4 * o], sums[4 * o + 1], sums[4 * o + 2], sums[4 * o + 3]};
        finish<W, UP>(a, tile, pairs, o, rows, ends, of_octet, rows.unit[0]);
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* How many of the tiles from the i-th on have their tokens in shared memory together. */
static __device__ int group_together(const stream_args &a, const dmoe_tile *tiles, int i, int n_tiles) {
    int n = 1, octets = octets_of(tiles[i]);
    while (i + n < n_tiles && (octets += octets_of(tiles[i + n])) <= a.x_tokens / 8)
        n++;
    return n;
}

/* OCTETS: of the tokens that a tile has at the most. a.x_tokens: how many there is room for. */
template <class W, bool UP, int OCTETS>
static __global__ void __launch_bounds__(GROUP_WARPS * 32, 1) moe_group(const __grid_constant__ stream_args a) {
    extern __shared__ __align__(1024) unsigned char panels_and_queues[];
    __shared__ dmoe_tile tiles[MOST_OF_BLOCK];
    __shared__ int pairs[MOST_PLACES];
    __shared__ group_row token_rows[MOST_PLACES];
    int n_panels = group_panels<W>(a.in), n_units = (a.n_row_tiles + GROUP_OF - 1) / GROUP_OF;
    if (UP) {
        wait_for_previous();
        let_next_start();
    }
    const share s = take_tiles(a, tiles, n_units);
    int mine = s.begin + threadIdx.x / 32 / GROUP_OF;
    group_queue<W, UP> queue(a, tiles, s.first_tile, mine, s.end,
                             panels_and_queues + a.x_tokens / 8 * n_panels * GROUP_ROWS);
    if (!UP) {
        let_next_start();
        wait_for_previous();
    }
    for (int i = 0; i < s.n_tiles;) {
        int together = group_together(a, tiles, i, s.n_tiles), first = tiles[i].first;
        uint32_t panels = shared_address(panels_and_queues);
        if (i > 0)
            __syncthreads(); // those before have been read
        bring_tiles<W, UP>(a, a.ids ? nullptr : a.list.pair, tiles + i, together, panels_and_queues, pairs, token_rows);
        __syncthreads(); // the tokens are there
        for (int k = 0; k < together; k++, i++) {
            const dmoe_tile tile = tiles[i];
            int begin = (s.first_tile + i) * n_units, end = min(begin + n_units, s.end),
                *of_tile = pairs + tile.first - first;
            for (; mine < end; mine += GROUP_WARPS / GROUP_OF)
                multiply_unit<W, UP, OCTETS>(a, queue, tile, mine - begin, panels, of_tile);
            panels += octets_of(tile) * n_panels * GROUP_ROWS;
        }
    }
}
