/* gemm_w4_many_ends.cuh - what becomes of a warp's sums of a tile of gemm_w4_many.cu.
 *
 * A lane has rows g and g + 8 of its warp's 16 of W, of pairs a gate and its up, for tokens 2t and 2t + 1 of every
 * eight. Results of 16 bits are turned, so that a lane has two neighbouring columns of token g. Chunks of tokens are a
 * loop, not one piece of code each, which would be too long to stay near; and long enough that latencies hide each
 * other. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/ptx/sigmoid.cuh"

enum w4_many_ending { W4_PLAIN, W4_SILU, W4_GATED };

template <int N> struct w4_many_end {
    static constexpr int CHUNK = N % 64 == 0 ? 64 : N % 48 == 0 ? 48 : 32, CHUNKS = N / CHUNK, VALUES = CHUNK / 2;
    static_assert(N % CHUNK == 0, "whole chunks");
    const gemm_w4_args &a;
    int lane, first_unit, unit; // of the warp, of the lane's first row
    float scale[2], bias[2];

    __device__ __forceinline__ w4_many_end(const gemm_w4_args &a, int lane) : a(a), lane(lane) {}
    __device__ __forceinline__ void begin(int tile) {
        first_unit = tile * (a.gated ? 8 : 16), unit = first_unit + lane / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int of = unit + (a.gated ? 0 : 8 * i), row = of + (a.gated ? a.n_units * i : 0);
            bool there = of < a.n_units;
            scale[i] = there ? a.scale[row] : 0;
            bias[i] = there && a.bias ? a.bias[row] : 0;
        }
    }

    /* A chunk's sums, of registers that have no numbers. */
    template <int FROM, int TO>
    static __device__ __forceinline__ void take(float (&v)[VALUES], const float (&d)[N / 2], int chunk) {
        constexpr int MIDDLE = (FROM + TO) / 2;
        if constexpr (TO - FROM == 1) {
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                v[i] = d[FROM * VALUES + i];
        } else if (chunk < MIDDLE) {
            take<FROM, MIDDLE>(v, d, chunk);
        } else {
            take<MIDDLE, TO>(v, d, chunk);
        }
    }

    __device__ __forceinline__ void write_floats(const float *v, int token, int n_tokens) const {
        float *to = static_cast<float *>(a.y) + (int64_t)token * a.y_stride + unit;
#pragma unroll
        for (int i = 0; i < 2; i++, to += a.y_stride) {
            if (token + i < n_tokens && unit < a.n_units)
                to[0] = v[i];
            if (token + i < n_tokens && !a.gated && unit + 8 < a.n_units)
                to[8] = v[2 + i];
        }
    }
    /* Of token g, from `column` on. */
    __device__ __forceinline__ void write_pair(uint32_t pair, int token, int column, bool even) const {
        uint16_t *to = static_cast<uint16_t *>(a.y) + (int64_t)token * a.y_stride + column;
        if (even && column + 1 < a.n_units) {
            *reinterpret_cast<uint32_t *>(to) = pair;
            return;
        }
        if (column < a.n_units)
            to[0] = (uint16_t)pair;
        if (column + 1 < a.n_units)
            to[1] = (uint16_t)(pair >> 16);
    }
    __device__ __forceinline__ uint32_t to_pair(float low, float high) const {
        if (a.y_element == ELEMENT_F16)
            return finite_halves(__floats2half2_rn(low, high));
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<uint32_t &>(pair);
    }

    /* The sums of eight tokens, from `token` on. */
    __device__ __forceinline__ void write_eight(const float *v, int token, bool even) const {
        if (a.y_element == ELEMENT_F32) {
            write_floats(v, token + lane % 4 * 2, a.n_tokens);
            return;
        }
        uint32_t turned = turn_matrix(to_pair(v[0], v[1])), turned_8 = turn_matrix(to_pair(v[2], v[3]));
        if (token + lane / 4 >= a.n_tokens)
            return;
        write_pair(turned, token + lane / 4, first_unit + lane % 4 * 2, even);
        if (!a.gated)
            write_pair(turned_8, token + lane / 4, first_unit + 8 + lane % 4 * 2, even);
    }
    template <w4_many_ending ENDING>
    __device__ __forceinline__ void write_as(const float (&d)[N / 2], int first_token) const {
        bool even = ((uintptr_t)a.y % 4 | (uintptr_t)a.y_stride % 2) == 0;
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            float v[VALUES];
            take<0, CHUNKS>(v, d, chunk);
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                v[i] = fmaf(v[i], scale[i / 2 % 2], bias[i / 2 % 2]);
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                if (ENDING != W4_PLAIN && i % 4 < 2)
                    v[i] = ENDING == W4_SILU ? silu_fast(v[i]) * v[i + 2] : w4_gated(a.ending, v[i], v[i + 2]);
#pragma unroll
            for (int eight = 0; eight < CHUNK / 8; eight++)
                write_eight(v + 4 * eight, first_token + chunk * CHUNK + eight * 8, even);
        }
    }
    __device__ __forceinline__ void write(const float (&d)[N / 2], int first_token) const {
        if (!a.gated)
            write_as<W4_PLAIN>(d, first_token);
        else if (a.ending.act == 0)
            write_as<W4_SILU>(d, first_token);
        else
            write_as<W4_GATED>(d, first_token);
    }
};
