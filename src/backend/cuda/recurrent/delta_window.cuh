/* delta_window.cuh - what a token brings to a block of THREADS threads that has a value head: q, k and v through their
 * convolution, b, a and z; from the projection, or from the rows that a slot keeps (delta.h). For delta_token.cuh. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta_layer.h"
#include "backend/cuda/recurrent/delta_state.cuh"

enum { THREADS = 256 }; // of a block, which has a head

/* A column of the projection, float32 or (RAW) unscaled products. Its elements are loaded as they lie and converted
 * where they are wanted, so that many loads are under way at once. */
template <bool RAW> struct stored_element { typedef float type; };
template <> struct stored_element<true> { typedef __half type; };
template <bool RAW> struct column_of {
    typedef typename stored_element<RAW>::type stored;
    const stored *at;
    float scale, bias;
    __device__ void open(const dmat &m, int column) {
        at = static_cast<const stored *>(m.at) + column;
        scale = RAW ? m.col_scale[column] : 1.0f;
        bias = RAW && m.bias ? m.bias[column] : 0.0f;
    }
    __device__ stored fetch(const dmat &m, int64_t t) const { return at[t * m.stride]; }
    __device__ float value(stored x, float row_scale) const { // as unscaled_value has it
        if constexpr (RAW)
            return __half2float(x) * (row_scale * scale) + bias;
        else
            return x;
    }
};

/* The channels of a thread, i and i + THREADS of [q | k | v]: their weights, their window, where they are in u. */
template <int D, bool RAW> struct window {
    static constexpr int N = (3 * D + THREADS - 1) / THREADS;
    typedef typename column_of<RAW>::stored stored;
    float weight[N][DELTA_TAPS], past[N][DELTA_TAPS - 1];
    column_of<RAW> of[N];
    stored next[N];
    float again[N]; // of a token that is computed again
    int column[N];

    __device__ static bool is_mine(int i) { return (int)threadIdx.x + i * THREADS < 3 * D; }

    __device__ void open(const ddelta_layer &a, int h, int kh) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int x = threadIdx.x + i * THREADS, keys = a.shape.n_key_heads * D;
            column[i] = x < D ? kh * D + x : x < 2 * D ? keys + kh * D + x - D : 2 * keys + h * D + x - 2 * D;
            of[i].open(a.u, is_mine(i) ? column[i] : 0);
#pragma unroll
            for (int j = 0; j < DELTA_TAPS; j++)
                weight[i][j] = is_mine(i) ? tap(a, column[i], j) : 0.0f;
        }
    }
    __device__ void recall(const ddelta_layer &a, const float *kept) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < DELTA_TAPS - 1; j++)
                past[i][j] = is_mine(i) ? kept_input(a, kept, column[i], j) : 0.0f;
    }
    __device__ void forget(bool all) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < DELTA_TAPS - 1; j++)
                past[i][j] = all ? 0.0f : past[i][j];
    }
    __device__ void load_token(const ddelta_layer &a, int t) {
#pragma unroll
        for (int i = 0; i < N; i++)
            next[i] = is_mine(i) ? of[i].fetch(a.u, t) : stored(0.0f);
    }
    __device__ void load_again(const float *row) {
#pragma unroll
        for (int i = 0; i < N; i++)
            again[i] = is_mine(i) ? row[column[i]] : 0.0f;
    }
    __device__ float convolve(int i, float x) { // and moves on
        float sum = 0;
#pragma unroll
        for (int j = 0; j < DELTA_TAPS; j++)
            sum += weight[i][j] * (j == DELTA_TAPS - 1 ? x : past[i][j]);
#pragma unroll
        for (int j = 0; j < DELTA_TAPS - 1; j++)
            past[i][j] = j == DELTA_TAPS - 2 ? x : past[i][j + 1];
        return silu(sum);
    }
    /* q, k and v of the token, and sums of squares of q and k by 32 channels. */
    template <bool AGAIN> __device__ void put_token(float *qkv, float *squares, float row_scale) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int x = threadIdx.x + i * THREADS;
            float y = convolve(i, AGAIN ? again[i] : of[i].value(next[i], row_scale)), square = warp_sum(y * y);
            if (is_mine(i))
                qkv[x] = y;
            if (x < 2 * D && x % 32 == 0)
                squares[x / 32] = square;
        }
    }
    __device__ void copy_inputs(float (&to)[N][DELTA_TAPS - 1]) const {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < DELTA_TAPS - 1; j++)
                to[i][j] = past[i][j];
    }
    /* Those of q and k are of all value heads of a key head: one of them does it. */
    __device__ void keep(const ddelta_layer &a, float *kept, bool all, const float (&inputs)[N][DELTA_TAPS - 1]) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (is_mine(i) && (all || (int)threadIdx.x + i * THREADS >= 2 * D))
#pragma unroll
                for (int j = 0; j < DELTA_TAPS - 1; j++)
                    keep_input(a, kept, column[i], j, inputs[i][j]);
    }
    /* Likewise what u is in row t. */
    __device__ void keep_row(const ddelta_layer &a, float *row, int t, bool all) const {
        float row_scale = RAW ? a.u.row_scale[t] : 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (is_mine(i) && (all || (int)threadIdx.x + i * THREADS >= 2 * D))
                row[column[i]] = of[i].value(of[i].fetch(a.u, t), row_scale);
    }
};

/* What else a token brings: b and a of the head, z of a thread's channel, the row's scale. */
template <bool RAW> struct token_gates {
    typedef typename column_of<RAW>::stored stored;
    column_of<RAW> of_b, of_a, of_z;
    stored b, a, z;
    float row_scale, b_again, a_again;
    __device__ void open(const ddelta_layer &l, int h, int channel) {
        of_b.open(l.b, h), of_a.open(l.a, h), of_z.open(l.z, channel);
    }
    __device__ void load_token(const ddelta_layer &l, int t) {
        b = of_b.fetch(l.b, t), a = of_a.fetch(l.a, t), z = of_z.fetch(l.z, t);
        row_scale = RAW ? l.u.row_scale[t] : 1.0f;
    }
    __device__ void load_again(const ddelta_layer &l, const float *gates) {
        b_again = gates[0], a_again = gates[l.shape.n_value_heads];
    }
    __device__ void keep_row(const ddelta_layer &l, float *gates, int t) const {
        float scale = RAW ? l.u.row_scale[t] : 1.0f;
        gates[0] = of_b.value(of_b.fetch(l.b, t), scale);
        gates[l.shape.n_value_heads] = of_a.value(of_a.fetch(l.a, t), scale);
    }
};
