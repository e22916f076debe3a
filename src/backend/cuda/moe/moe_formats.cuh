/* moe_formats.cuh - formats of experts' weights, as moe_stream.cu and moe_tiles.cuh multiply by them.
 *
 * A chunk is what 16 rows have of COLUMNS columns, of which a lane takes a fourth of rows r and r + 8: `chunk` in
 * registers, from a chunk in shared memory by `load`. `elements` are those of one of its two rows as the first two and
 * the last two of STEPS products. A step of the stream has CHUNKS of them, and a queue has DEPTH steps. X_ASIDE: by
 * how much the pitch of tokens in shared memory passes a multiple of 128 bytes, so that the lanes of a load meet no
 * bank twice. IN_BLOCKS: in memory a chunk lies as it does here; else rows lie one after another. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/weights/blocks.h"

#include <type_traits>

enum { PIECE = 16 }; // bytes that a lane copies or loads at once

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
