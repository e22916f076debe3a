/* gemm_fp8_prefill_ends.cuh - what becomes of the sums of a tile of gemm_fp8_prefill.cu: unscaled products, or
 * GATED_ACT of them.
 *
 * Sums are laid out as wgmma_e4m3_f16.cuh says: a lane has columns 2t and 2t + 1 of every eight, a pair of halves, for
 * tokens g and g + 8 of the warp's 16, of each part of 64 tokens. Chunk by chunk, four octets, the four lanes of a
 * token exchange them, until each has an octet, so that what is written are whole sectors. Chunks are a loop, not one
 * piece of code each: code that is run once comes from memory, and took longer than what it computed. */
#pragma once

#include "backend/cuda/linear/fp8/gemm_fp8_prefill_unscaled.cuh"

namespace {

/* Eight floats. */
static __device__ __forceinline__ void load_floats(float (&v)[8], uint32_t at) {
    uint4 low = load_shared_16(at), high = load_shared_16(at + 16);
    const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(bits[i]);
}
/* Eight halves as floats. */
static __device__ __forceinline__ void to_floats(float (&v)[8], const uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 two = __half22float2(reinterpret_cast<const __half2 &>(pairs[i]));
        v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
}

/* Of ROWS of W the first half are gates, the other what these let through; the last chunk of columns may be short.
 * scales: [scale, bias][row of W], without biases scales alone. */
template <int ROWS, bool SILU, bool BIASED> struct gated_end {
    static constexpr int COLUMNS = ROWS / 2, CHUNKS = (COLUMNS + CHUNK - 1) / CHUNK,
                         SCALES = (BIASED ? 4 : 2) * COLUMNS * 4;
    static_assert(COLUMNS % 8 == 0, "whole octets");
    const gemm_prefill_args &a;
    uint32_t scales;
    int lane;
    float by[PARTS][2]; // scales of the lane's tokens

    /* By all of a warpgroup, which meets between this and write(). */
    __device__ void fetch_scales(int first_column) const {
#pragma unroll
        for (int i = threadIdx.x % WARPGROUP; i < 2 * COLUMNS; i += WARPGROUP) {
            int column = first_column + i % COLUMNS, row = column + i / COLUMNS * a.n_columns;
            bool there = column < a.n_columns;
            copy_four(scales + i * 4, a.w_scale + (there ? row : 0), there);
            if (BIASED)
                copy_four(scales + (2 * COLUMNS + i) * 4, a.bias + (there ? row : 0), there);
        }
    }
    __device__ void fetch_x_scales(int first_token) {
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++) {
            int token = first_token + i / 2 * PART_TOKENS + lane / 4 + i % 2 * 8;
            by[i / 2][i % 2] = token < a.n_tokens ? a.x_scale[token] : 0;
        }
    }

    /* As raw_end::take: gates, and what they let through. */
    template <int FROM, int TO>
    static __device__ __forceinline__ void take(four_octets &gates, four_octets &ups, const warp_sums<ROWS> &sums,
                                                int chunk) {
        constexpr int MIDDLE = (FROM + TO) / 2, COLUMN = FROM % CHUNKS * CHUNK;
        if constexpr (TO - FROM == 1) {
            take_octets<COLUMN, ROWS>(gates, sums[FROM / CHUNKS]);
            take_octets<COLUMNS + COLUMN, ROWS>(ups, sums[FROM / CHUNKS]);
        } else if (chunk < MIDDLE) {
            take<FROM, MIDDLE>(gates, ups, sums, chunk);
        } else {
            take<MIDDLE, TO>(gates, ups, sums, chunk);
        }
    }

    /* What a gate lets through. SiLU is linear in its scale but for the argument of tanh, so that of the token is
     * applied to the product. */
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
            atomicMax(a.absmax + token, size);
    }

    /* One of the lane's tokens in eight columns, whose scales lie at `at`. */
    template <bool BF16>
    __device__ __forceinline__ void compute(uint32_t (&pairs)[4], const uint32_t (&gates)[4], const uint32_t (&ups)[4],
                                            uint32_t at, float of_token) const {
        float gate[8], up[8], gs[8], us[8], y[8];
        to_floats(gate, gates);
        to_floats(up, ups);
        load_floats(gs, at);
        load_floats(us, at + COLUMNS * 4);
        if constexpr (SILU) {
            float half_by = 0.5f * of_token, half_squared = half_by * of_token;
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = silu(gate[i] * gs[i], up[i] * us[i], half_by, half_squared);
        } else if constexpr (BIASED) {
            float gb[8], ub[8];
            load_floats(gb, at + COLUMNS * 8);
            load_floats(ub, at + COLUMNS * 12);
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = gated(fmaf(gate[i], gs[i] * of_token, gb[i]), fmaf(up[i], us[i] * of_token, ub[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i] = gated(gate[i] * (gs[i] * of_token), up[i] * (us[i] * of_token));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = to_pair<BF16>(y[2 * i], y[2 * i + 1]);
    }

    /* Eight columns of one of the lane's tokens, from `column` of y on. */
    template <bool BF16>
    __device__ __forceinline__ void write_octet(const uint32_t (&pairs)[4], int64_t token, int column) const {
        store_octet<BF16>(a, token < a.n_tokens && column < a.n_columns,
                          static_cast<uint16_t *>(a.y) + token * a.y_stride + column,
                          a.qact + token * a.qact_stride + column, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }

    template <bool BF16>
    __device__ __forceinline__ void write(const warp_sums<ROWS> &sums, int first_column, int first_token) const {
        uint32_t most[2] = {0, 0};
#pragma unroll 1
        for (int chunk = 0; chunk < PARTS * CHUNKS; chunk++) {
            four_octets gates, ups;
            take<0, PARTS * CHUNKS>(gates, ups, sums, chunk);
            const int part = chunk / CHUNKS, column = chunk % CHUNKS * CHUNK + lane % 4 * 8;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                exchange_octets(gates[i], lane);
                exchange_octets(ups[i], lane);
                if (COLUMNS % CHUNK == 0 || column < COLUMNS) {
                    uint32_t pairs[4];
                    compute<BF16>(pairs, gates[i], ups[i], scales + column * 4, part ? by[1][i] : by[0][i]);
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        most[i] = larger_sizes<BF16>(most[i], pairs[k]); // columns beyond the last are zeros
                    write_octet<BF16>(pairs, first_token + part * PART_TOKENS + lane / 4 + i * 8,
                                      first_column + column);
                }
            }
            if (a.absmax && chunk % CHUNKS == CHUNKS - 1) {
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
