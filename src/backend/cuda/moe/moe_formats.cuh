/* moe_formats.cuh - formats of experts' weights, as moe_stream_kernel.cuh, moe_tiles.cuh and moe_wide.cuh multiply by
 * them.
 *
 * A chunk is what 16 rows have of COLUMNS columns: `chunk` in registers, of a lane, from a chunk in shared memory by
 * `load`. `fragment` is the left operand of one of its STEPS products. A step of the stream has CHUNKS of them, and a
 * queue has DEPTH steps. IN_BLOCKS: in memory a chunk lies as it does here; else rows lie one after another. BLOCKS:
 * how many of the stream a multiprocessor has, if few tokens leave room; what takes many instructions wants more warps.
 * MANY_WARPS, MANY_DEPTH: of blocks with more than eight tokens of an expert. WIDTH_OF: what columns are a multiple of.
 * WIDE_TOKENS: of a tile of moe_wide.cuh, as many as leave registers to make operands in. AS_LOADED: fragments are
 * words of a chunk as they are, in the same registers. SPREADS: as spread_shape says.
 *
 * Tokens. A lane q reads 16 bytes of a token for two products at a time, from x_at(q) + x_pair(pair) on. Either a
 * lane's columns of a chunk are neighbours, in the order in which it has those of W; or columns are where products want
 * them (NATURAL), and a token's pairs of columns are put in that order as it comes. X_ASIDE: by how much the pitch of
 * tokens in shared memory passes a multiple of 128 bytes, so that the lanes of a load meet no bank twice. */
#pragma once

#include "backend/cuda/linear/w4/quads.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/weights/blocks.h"

#include <type_traits>

enum {
    PIECE = 16, // bytes that a lane copies or loads at once
    STREAM_WARPS = 8
};

/* apart: bytes from row r to row r + 8. */
static __device__ __forceinline__ void load_rows(const unsigned char *at, int apart, uint32_t (&w)[2][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 v = *reinterpret_cast<const uint4 *>(at + half * apart + threadIdx.x % 32 * PIECE);
        w[half][0] = v.x, w[half][1] = v.y, w[half][2] = v.z, w[half][3] = v.w;
    }
}

template <class T> static __device__ __forceinline__ T rounded(float x) {
    if constexpr (std::is_same_v<T, __half>)
        return to_half(x);
    else
        return __float2bfloat16_rn(x);
}

/* Pairs of float16, as T has them. */
template <class T> static __device__ __forceinline__ void pairs_as(uint32_t &low, uint32_t &high) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        float2 l = __half22float2(reinterpret_cast<__half2 &>(low)),
               h = __half22float2(reinterpret_cast<__half2 &>(high));
        low = to_pair<true>(l.x, l.y), high = to_pair<true>(h.x, h.y);
    }
}

/* Where a lane's neighbours lie, of a chunk of so many columns. */
template <int COLUMNS> struct neighbours {
    static constexpr bool NATURAL = false;
    static __device__ __forceinline__ int x_at(int q) { return q * (COLUMNS / 2); }
    static __device__ __forceinline__ constexpr int x_pair(int pair) { return pair * PIECE; }
};
/* Pairs of columns 2q and 2q + 8 of two products beside one another. */
struct natural {
    static constexpr bool NATURAL = true;
    static __device__ __forceinline__ int x_at(int q) { return q * PIECE; }
    static __device__ __forceinline__ constexpr int x_pair(int pair) { return pair * 4 * PIECE; }
};

/* Where a pair of columns of a NATURAL format lies in a token. */
static __device__ __forceinline__ int natural_byte(int pair) {
    return pair / 16 * 64 + pair % 4 * PIECE + pair / 8 % 2 * 8 + pair / 4 % 2 * 4;
}

template <class T> struct e4m3_expert : neighbours<64> {
    using product = T;
    static constexpr int BYTES = 1, COLUMNS = 64, CHUNK_BYTES = 1024, STEPS = 4, CHUNKS = 4, DEPTH = 3, X_ASIDE = 16,
                         MANY_WARPS = 8, MANY_DEPTH = 3, BLOCKS = 1, WIDTH_OF = BYTES == 1 ? 16 : 8, WIDE_TOKENS = 144;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = false, AS_LOADED = false, SPREADS = true;
    struct chunk {
        uint32_t w[2][4];
        __device__ __forceinline__ void load(const unsigned char *at, int apart = 32 * PIECE) {
            load_rows(at, apart, w);
        }
        __device__ __forceinline__ void fragment(int s, uint32_t (&m)[4]) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                e4m3_to_pairs(w[half][s], m[half], m[half + 2]);
                pairs_as<T>(m[half], m[half + 2]);
            }
        }
    };
};

template <class T> struct plain_expert : neighbours<32> {
    using product = T;
    static constexpr int BYTES = 2, COLUMNS = 32, CHUNK_BYTES = 1024, STEPS = 2, CHUNKS = 2, DEPTH = 6, X_ASIDE = 64,
                         MANY_WARPS = 8, MANY_DEPTH = 6, BLOCKS = 1, WIDTH_OF = BYTES == 1 ? 16 : 8, WIDE_TOKENS = 144;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = false, AS_LOADED = true, SPREADS = false;
    struct chunk {
        uint32_t w[2][4];
        __device__ __forceinline__ void load(const unsigned char *at, int apart = 32 * PIECE) {
            load_rows(at, apart, w);
        }
        __device__ __forceinline__ void fragment(int s, uint32_t (&m)[4]) {
#pragma unroll
            for (int half = 0; half < 2; half++)
                m[half] = w[half][2 * s], m[half + 2] = w[half][2 * s + 1];
        }
    };
};

template <class T> struct mxfp4_expert : neighbours<BLOCK_COLUMNS> {
    using product = T;
    static constexpr int COLUMNS = BLOCK_COLUMNS, CHUNK_BYTES = MXFP4_BLOCK, STEPS = 4, CHUNKS = 5, DEPTH = 3,
                         MANY_WARPS = 16, MANY_DEPTH = 2, X_ASIDE = 16, BLOCKS = 2, WIDTH_OF = MXFP4_COLUMNS,
                         WIDE_TOKENS = 144;
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>, IN_BLOCKS = true, AS_LOADED = false, SPREADS = false;
    struct chunk {
        uint32_t w[2][2], by[2]; // by: 2^(b - 15), twice
        __device__ __forceinline__ void load(const unsigned char *at) {
            uint4 v = *reinterpret_cast<const uint4 *>(at + threadIdx.x % 32 * PIECE);
            uint32_t b = *reinterpret_cast<const uint16_t *>(at + BLOCK_NIBBLES +
                                                             (threadIdx.x % 32 / 4 * 2 + threadIdx.x % 4 / 2) * 2);
            w[0][0] = v.x, w[0][1] = v.y, w[1][0] = v.z, w[1][1] = v.w;
            by[0] = (b & 255u) * 0x04000400u, by[1] = (b >> 8) * 0x04000400u;
        }
        __device__ __forceinline__ void fragment(int s, uint32_t (&m)[4]) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (s % 2 == 0)
                    e2m1_to_pairs_low(w[half][s / 2], m[half], m[half + 2]);
                else
                    e2m1_to_pairs_high(w[half][s / 2], m[half], m[half + 2]);
                m[half] = multiply_pair(m[half], by[half]), m[half + 2] = multiply_pair(m[half + 2], by[half]);
                pairs_as<T>(m[half], m[half + 2]);
            }
        }
    };
};

/* Of float16 alone. INT4 always has zero points here. */
template <quad_kind KIND, int GROUP> struct quads_expert : natural {
    using product = __half;
    static constexpr int COLUMNS = QUADS_COLUMNS, SCALES = QUADS_COLUMNS / GROUP * QUADS_ROWS,
                         CHUNK_BYTES = QUADS_NIBBLES + SCALES * (KIND == QUADS_INT4 ? 3 : 1), STEPS = QUADS_STEPS,
                         CHUNKS = 2, DEPTH = 3, MANY_WARPS = 16, MANY_DEPTH = 2, X_ASIDE = 64, BLOCKS = 2,
                         WIDTH_OF = 64, WIDE_TOKENS = 128;
    static constexpr bool BF16 = false, IN_BLOCKS = true, AS_LOADED = false, SPREADS = false;
    struct chunk {
        quads_fragments<KIND, GROUP> scales;
        quads_words<KIND> words;
        __device__ __forceinline__ void load(const unsigned char *at) {
            int lane = threadIdx.x % 32;
            scales.load(shared_address(at), lane, KIND == QUADS_INT4);
            words.load(shared_address(at) + lane * PIECE);
        }
        __device__ __forceinline__ void fragment(int s, uint32_t (&m)[4]) {
            if constexpr (KIND == QUADS_INT4) // who begins behind a group's first step has this too
                scales.begin_group(s);
            scales.fragment(s, words.of, m);
            if constexpr (quads_fragments<KIND, GROUP>::ON_SUMS) {
                m[0] = multiply_pair(m[0], scales.by_row), m[2] = multiply_pair(m[2], scales.by_row);
                m[1] = multiply_pair(m[1], scales.by_row_8), m[3] = multiply_pair(m[3], scales.by_row_8);
            }
        }
    };
};

template <class W> static __host__ __device__ constexpr int x_chunk_bytes() { return W::COLUMNS * 2; }

/* A block of the stream, of tiles of so many octets of tokens. */
template <class W, int OCTETS> struct stream_shape {
    static constexpr int WARPS = OCTETS == 1 ? STREAM_WARPS : W::MANY_WARPS,
                         DEPTH = OCTETS == 1 ? W::DEPTH : W::MANY_DEPTH,
                         BLOCKS = OCTETS == 1 ? 1 + W::BLOCKS : 16 / W::MANY_WARPS; // of registers for so many
    static constexpr bool AT_MOST = false, POSTED = false;
};
/* Of one token whose experts' ids are posted. */
template <class W> struct posted_shape : stream_shape<W, 1> { static constexpr bool POSTED = true; };
/* The same, where a block has more tiles of rows than that has warps: one each, with shorter queues. */
struct spread_shape {
    static constexpr int WARPS = 12, DEPTH = 2, BLOCKS = 1;
    static constexpr bool AT_MOST = true, POSTED = true;
};
