/* large_ends.cuh - what becomes of the sums of a tile of large.cu: raw products, or GATED_ACT of them.
 *
 * Sums are laid out as wgmma_e4m3_f16.cuh says: a lane has columns 2t and 2t + 1 of every eight, a pair of halves, for tokens g and g + 8 of the warp's
 * 16, of each part of 64 tokens. Chunk by chunk they go to the warp's lines in shared memory, 16 tokens by some columns, from where a lane takes 16 bytes
 * of a token at a time, so that what is written are whole sectors. Chunks are a loop, not one piece of code each: code that is run once comes from
 * memory, and took longer than what it computed. */
#pragma once

#include "backend/cuda/gated_end.cuh"
#include "backend/cuda/ring.cuh"

namespace {

enum { PARTS = 2, PART_TOKENS = 64, TILE_TOKENS = 16 }; // of a warpgroup; of a warp in a part

struct large_args {
    void *y;
    int64_t y_stride;
    int n_columns, n_tokens, n_pieces, token_tiles, n_tiles; // of y; of 128 columns of x; n_tiles: of a cluster
    // Of pairs:
    const float *w_scale, *bias, *x_scale;
    uint32_t *most;
    float bend, twist; // of the activation: gate * up * (1 + tanh(gate * (bend + twist * gate^2))) / 2
    element y_element;
    uint8_t *twin; // NULL: none
    int64_t twin_stride;
    float twin_factor; // 1 / static_scale
};

/* A warp's sums of COUNT products of N rows of W beside each other. */
template <int N, int COUNT> using warp_sums = uint32_t[PARTS][COUNT][N / 4];

/* The lines: COLUMNS of sums of a token are `pitch` bytes apart from the next token's. */
template <int COLUMNS> constexpr int line_pitch = COLUMNS * 2 + 16;

/* WIDTH columns of sums from octet FROM on. */
template <int WIDTH> static __device__ __forceinline__ void put_octets(const uint32_t *sums, uint32_t to) {
#pragma unroll
    for (int k = 0; k < WIDTH / 8; k += 2)
        store_matrices(to + k * 16, sums[2 * k], sums[2 * k + 1], sums[2 * k + 2], sums[2 * k + 3]);
}

// ---- raw products: the sums as they are ------------------------------------------------------------------------------

template <int N, int COUNT, int CHUNK> struct raw_end {
    static constexpr int UNITS = CHUNK / 8, TURNS = UNITS / 2, CHUNKS = N * COUNT / CHUNK, BYTES = TILE_TOKENS * line_pitch<CHUNK>,
                         SCALES = 0;
    static_assert(N % CHUNK == 0 && CHUNK % 16 == 0, "whole sectors");
    const large_args &a;
    uint32_t lines;
    int lane;

    /* The chunk, whose number is no constant. */
    template <int I> __device__ __forceinline__ void put(const warp_sums<N, COUNT> &sums, int chunk) const {
        if constexpr (I < PARTS * CHUNKS) {
            constexpr int FIRST = I % CHUNKS * CHUNK;
            if (chunk == I)
                put_octets<CHUNK>(sums[I / CHUNKS][FIRST / N] + FIRST % N / 4, lines + lane % 16 * line_pitch<CHUNK> + lane / 16 * 16);
            else
                put<I + 1>(sums, chunk);
        }
    }

    __device__ __forceinline__ void write(const warp_sums<N, COUNT> &sums, int first_column, int first_token) const {
#pragma unroll 1
        for (int chunk = 0; chunk < PARTS * CHUNKS; chunk++) {
            put<0>(sums, chunk);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                int row = (i * 32 + lane) / UNITS, unit = (i * 32 + lane) % UNITS,
                    column = first_column + chunk % CHUNKS * CHUNK + unit * 8;
                int64_t token = first_token + chunk / CHUNKS * PART_TOKENS + row;
                if (token < a.n_tokens && column < a.n_columns)
                    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.y) + token * a.y_stride + column) =
                        load_shared_16(lines + row * line_pitch<CHUNK> + unit * 16);
            }
            __syncwarp();
        }
    }
};

// ---- pairs: the activation ------------------------------------------------------------------------------------------

/* Eight floats. */
static __device__ __forceinline__ void load_floats(float (&v)[8], uint32_t at) {
    uint4 low = load_shared_16(at), high = load_shared_16(at + 16);
    const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(bits[i]);
}
/* Eight halves as floats. */
static __device__ __forceinline__ void load_sums(float (&v)[8], uint32_t at) {
    uint4 eight = load_shared_16(at);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = __half22float2(reinterpret_cast<const __half2 &>(pairs[i]));
        v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
}

/* N rows of W: gates, then as many that they let through. Lines have CHUNK of either. scales: [scale, bias][N]. SILU: the activation is that, and there are no
 * biases. */
template <int N, bool SILU> struct gated_end {
    static constexpr int CHUNK = 32, CHUNKS = N / 2 / CHUNK, BYTES = TILE_TOKENS * line_pitch<2 * CHUNK>, SCALES = 2 * N * 4;
    static_assert(N / 2 % CHUNK == 0 && CHUNK / 8 * TILE_TOKENS == 64, "a lane has 8 columns of two tokens");
    const large_args &a;
    uint32_t lines, scales;
    int lane;
    float by[PARTS][2]; // scales of the lane's tokens

    /* By all of a warpgroup, which meets between this and write(). */
    __device__ void fetch_scales(int first_column) const {
#pragma unroll
        for (int i = threadIdx.x % WARPGROUP; i < N; i += WARPGROUP) {
            int column = first_column + i % (N / 2), row = column + i / (N / 2) * a.n_columns;
            bool there = column < a.n_columns;
            copy_four(scales + i * 4, a.w_scale + (there ? row : 0), there);
            copy_four(scales + (N + i) * 4, (a.bias ? a.bias : a.w_scale) + (there ? row : 0), there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int first_token) {
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++) {
            int token = first_token + i / 2 * PART_TOKENS + lane / 4 + i % 2 * 8;
            by[i / 2][i % 2] = token < a.n_tokens ? a.x_scale[token] : 0;
        }
    }

    template <int I> __device__ __forceinline__ void put(const warp_sums<N, 1> &sums, int chunk) const {
        if constexpr (I < PARTS * CHUNKS) {
            constexpr int FIRST = I % CHUNKS * CHUNK;
            uint32_t to = lines + lane % 16 * line_pitch<2 * CHUNK> + lane / 16 * 16;
            if (chunk == I) {
                put_octets<CHUNK>(sums[I / CHUNKS][0] + FIRST / 4, to);
                put_octets<CHUNK>(sums[I / CHUNKS][0] + (N / 2 + FIRST) / 4, to + CHUNK * 2);
            } else {
                put<I + 1>(sums, chunk);
            }
        }
    }

    /* What a gate lets through. SiLU is linear in its scale but for the argument of tanh, so that of the token is applied to the product. */
    static __device__ float silu(float gate, float up, float half_by, float half_squared) {
        return fmaf(gate, tanh_fast(gate * half_by), gate) * up * half_squared;
    }
    __device__ float gated(float gate, float up) const {
        return fmaf(gate, tanh_fast(gate * (a.bend + a.twist * gate * gate)), gate) * (0.5f * up);
    }

    /* most: pairs of sizes of one of the lane's tokens, which four lanes share. */
    template <bool BF16> __device__ void tell_most(uint32_t most, int token) const {
        most = larger_sizes<BF16>(most, most >> 16);
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 2));
        uint32_t size = size_bits<BF16>(most);
        if (lane % 4 == 0 && token < a.n_tokens)
            atomicMax(a.most + token, size);
    }

    /* One of the lane's tokens, whose sums lie at `line`, in eight columns, whose scales lie at `at`. */
    template <bool BF16> __device__ __forceinline__ void compute(uint32_t (&pairs)[4], uint32_t line, uint32_t at, float of_token) const {
        float gate[8], up[8], gs[8], us[8], y[8];
        load_sums(gate, line);
        load_sums(up, line + CHUNK * 2);
        load_floats(gs, at);
        load_floats(us, at + N / 2 * 4);
        if constexpr (SILU) {
            float half_by = 0.5f * of_token, half_squared = half_by * of_token;
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = silu(gate[i] * gs[i], up[i] * us[i], half_by, half_squared);
        } else {
            float gb[8], ub[8];
            load_floats(gb, at + N * 4);
            load_floats(ub, at + N * 6);
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = gated(fmaf(gate[i], gs[i] * of_token, gb[i]), fmaf(up[i], us[i] * of_token, ub[i]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = to_pair<BF16>(y[2 * i], y[2 * i + 1]);
    }

    template <bool BF16> __device__ __forceinline__ void write(const warp_sums<N, 1> &sums, int first_column, int first_token) const {
        uint32_t most[2] = {0, 0};
#pragma unroll 1
        for (int chunk = 0; chunk < PARTS * CHUNKS; chunk++) {
            const int part = chunk / CHUNKS, unit = lane % 4, tile_column = chunk % CHUNKS * CHUNK + unit * 8,
                      column = first_column + tile_column;
            put<0>(sums, chunk);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = lane / 4 + i * 8;
                int64_t token = first_token + part * PART_TOKENS + row;
                uint32_t pairs[4];
                compute<BF16>(pairs, lines + row * line_pitch<2 * CHUNK> + unit * 16, scales + tile_column * 4, part ? by[1][i] : by[0][i]);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    most[i] = larger_sizes<BF16>(most[i], pairs[k]); // columns beyond the last are zeros
                if (token < a.n_tokens && column < a.n_columns) {
                    uint4 eight = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.y) + token * a.y_stride + column) = eight;
                    if (a.twin)
                        *reinterpret_cast<uint2 *>(a.twin + token * a.twin_stride + column) = to_e4m3<BF16>(eight, a.twin_factor);
                }
            }
            __syncwarp();
            if (a.most && chunk % CHUNKS == CHUNKS - 1) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    tell_most<BF16>(most[i], first_token + part * PART_TOKENS + lane / 4 + i * 8);
                    most[i] = 0;
                }
            }
        }
    }
};

} // namespace
