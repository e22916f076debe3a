/* moe_wide_end.cuh - of moe_wide.cuh: what becomes of a tile's sums.
 *
 * Sums stay in registers, so that this is one line of code for all of them, run once a tile: it has no branch but one
 * for each 16 tokens, and what it reads is in shared memory by then. Half of a tile's time went into its end before. */
#pragma once

#include "backend/cuda/moe/moe_wide_ring.cuh"

template <class W> using wide_sums = float[ROW_TILES][W::WIDE_TOKENS / 2];

/* What a warpgroup has of a tile beside its operands. */
template <class W> struct __align__(16) wide_aside {
    int pairs[W::WIDE_TOKENS];
    float scale[WARPGROUP], bias[WARPGROUP]; // of its rows, tile by tile of 16, if there are any
    dmoe_tile next;
};

static __device__ __forceinline__ void store_if(bool there, void *at, uint32_t word) {
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.b32 there, %0, 0;\n\t@there st.global.b32 [%1], %2;\n\t}" ::"r"(
                     (int)there),
                 "l"(at), "r"(word)
                 : "memory");
}

static __device__ __forceinline__ void store_four_if(bool there, void *at, float4 v) {
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.b32 there, %0, 0;\n\t@there st.global.v4.f32 [%1], {%2, %3, %4, "
                 "%5};\n\t}" ::"r"((int)there),
                 "l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Sums of a warp's rows, lane 4r + q: of token 8o + 2q + i the rows r and r + 8 of tile m at [m][4o + i] and
 * [m][4o + 2 + i]. */
template <class W, bool UP, int ACT> struct wide_end {
    using out = std::conditional_t<UP, typename W::product, float>;
    // From a lane's unit of the warp's first tile to that of the second, as they lie in y.
    static constexpr int APART = !UP ? TILE_ROWS : W::NATURAL ? 8 : W::COLUMNS == 32 ? 2 : 32;
    const stream_args &a;
    const int *pairs;
    float scale[ROW_TILES][2], bias[ROW_TILES][2];
    char *to; // of pair 0: the lane's first row, or the unit of an even r
    uint32_t pitch;
    int odd = threadIdx.x / 4 % 2;

    __device__ __forceinline__ wide_end(const stream_args &a, const wide_aside<W> &aside, int row_tile)
        : a(a), pairs(aside.pairs), pitch(a.units * (int)sizeof(out)) {
        int r = threadIdx.x % 32 / 4, unit = row_tile * (UP ? 8 : TILE_ROWS) + r;
#pragma unroll
        for (int i = 0; i < ROW_TILES * 2; i++) {
            int row = threadIdx.x / 32 % 4 * (ROW_TILES * TILE_ROWS) + i * 8 + r;
            scale[i / 2][i % 2] = a.scale ? aside.scale[row] : 1.0f;
            bias[i / 2][i % 2] = a.bias ? aside.bias[row] : 0.0f;
        }
        if (rows_turned<W>)
            unit += UP ? r : 3 * r; // two places a lane in hidden's order, or four rows
        else if (UP && !W::NATURAL)
            unit = unit / PANEL_COLUMNS * PANEL_COLUMNS + column_place(W::COLUMNS, unit % PANEL_COLUMNS);
        to = reinterpret_cast<char *>(static_cast<out *>(a.y) + unit - (UP && !rows_turned<W> ? odd : 0));
    }
    __device__ __forceinline__ float of(int m, int half, float sum) const {
        return sum * scale[m][half] + bias[m][half];
    }
    __device__ __forceinline__ char *at(int pair) const { return to + (uint64_t)(uint32_t)pair * pitch; }

    __device__ __forceinline__ float gated(const float (&sums)[W::WIDE_TOKENS / 2], int m, int at) const {
        return activated(ACT < 0 ? a.act : ACT, a.limit, of(m, 0, sums[at]), of(m, 1, sums[at + 2]));
    }
    /* Gates and ups of two tokens: of both units of each, or lanes of neighbouring units, r and r + 1, each take both
     * of one token. Those are neighbours in hidden, too. */
    __device__ __forceinline__ void gated(const wide_sums<W> &sums, int o, int2 of_two, int left) const {
        if constexpr (rows_turned<W>) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                store_if(left > i, at(i ? of_two.y : of_two.x),
                         to_pair<W::BF16>(gated(sums[0], 0, 4 * o + i), gated(sums[1], 1, 4 * o + i)));
        } else {
            char *row = at(odd ? of_two.y : of_two.x);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                uint32_t mine = to_pair<W::BF16>(gated(sums[m], m, 4 * o), gated(sums[m], m, 4 * o + 1)),
                         other = __shfl_xor_sync(0xffffffffu, mine, 4);
                store_if(left > odd, row + m * APART * sizeof(out),
                         odd ? __byte_perm(other, mine, 0x7632) : __byte_perm(mine, other, 0x5410));
            }
        }
    }
    __device__ __forceinline__ void plain(const wide_sums<W> &sums, int o, int2 of_two, int left) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            char *row = at(i ? of_two.y : of_two.x);
            float v[ROW_TILES][2];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    v[m][half] = of(m, half, sums[m][4 * o + 2 * half + i]);
            if constexpr (rows_turned<W>) {
                store_four_if(left > i, row, make_float4(v[0][0], v[0][1], v[1][0], v[1][1]));
            } else {
#pragma unroll
                for (int k = 0; k < 4; k++)
                    store_if(left > i, row + (k / 2 * APART + k % 2 * 8) * sizeof(out),
                             __float_as_uint(v[k / 2][k % 2]));
            }
        }
    }
    /* Of n tokens, 16 at a time, so that one's latencies hide the other's; their pairs come as those before leave. */
    __device__ __forceinline__ void put(int n, const wide_sums<W> &sums) const {
        constexpr int OCTETS = W::WIDE_TOKENS / 8;
        const int2 *mine = reinterpret_cast<const int2 *>(pairs) + threadIdx.x % 4;
        int2 of_two[2] = {mine[0], mine[4]};
#pragma unroll
        for (int o = 0; o < OCTETS; o += 2) {
            int left = n - o * 8 - threadIdx.x % 4 * 2;
            int2 now[2] = {of_two[0], of_two[1]};
            if (o + 2 < OCTETS)
                of_two[0] = mine[o * 4 + 8], of_two[1] = mine[o * 4 + 12];
#pragma unroll
            for (int k = 0; k < 2; k++)
                UP ? gated(sums, o + k, now[k], left - 8 * k) : plain(sums, o + k, now[k], left - 8 * k);
            if (n <= o * 8 + 16)
                break;
        }
    }
};
