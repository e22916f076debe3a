/* delta_token.cuh - a token of a value head: what a block of THREADS threads makes of a state in registers; for
 * delta_decode.cu.
 *
 *     e = beta (v - d k^T S);   S' = d S + k e^T;   o = q^T S' = d q^T S + (q.k) e
 *
 * Both sums over rows are of the old state, so a token has one pass over it and three barriers. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta_layer.h"
#include "backend/cuda/recurrent/delta_window.cuh"

/* How a state [D, D] lies in registers: thread i has four columns of rows i / FOURS + ROWS * j, j < DEPTH. */
template <int D> struct state_tile {
    static constexpr int FOURS = D / 4, ROWS = THREADS / FOURS, DEPTH = D / ROWS;
    __device__ static int place() { return threadIdx.x / FOURS * D + threadIdx.x % FOURS * 4; } // of a thread's first
    template <class State> __device__ static void load(float4 (&s)[DEPTH], const State *at) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            s[j] = load_state(at + j * ROWS * D);
    }
    __device__ static void forget(float4 (&s)[DEPTH], bool all) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            s[j] = all ? make_float4(0, 0, 0, 0) : s[j];
    }
    template <class State> __device__ static void keep(const float4 (&s)[DEPTH], State *at) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            store_state(at + j * ROWS * D, s[j]);
    }
};

/* Shared memory. qkv: after the convolution, by the parity of the token. recalled, read: k^T S and q^T S of the rows of
 * a group of threads. */
template <int D> struct token_memory {
    float qkv[2][3 * D], e[D], recalled[THREADS * 4 / D][D], read[THREADS * 4 / D][D], squares[2 * D / 32],
        of_norm[D / 32];
};

static __device__ float4 scaled(float4 x, float by) { return make_float4(x.x * by, x.y * by, x.z * by, x.w * by); }
static __device__ float4 plus_scaled(float4 sum, float4 x, float by) {
    return make_float4(fmaf(x.x, by, sum.x), fmaf(x.y, by, sum.y), fmaf(x.z, by, sum.z), fmaf(x.w, by, sum.w));
}

template <int D> static __device__ float sum_of_rows(const float (&rows)[THREADS * 4 / D][D], int v) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < THREADS * 4 / D; r++)
        sum += rows[r][v];
    return sum;
}

template <int N> static __device__ float sum_of(const float *x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += x[i];
    return sum;
}

/* q.k by each warp. */
template <int D> static __device__ float warp_dot(const float *q, const float *k) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        sum += q[threadIdx.x % 32 + 32 * i] * k[threadIdx.x % 32 + 32 * i];
    return warp_sum(sum);
}

template <int D> static __device__ void store_output(const ddelta_layer &a, bool few, int t, int h, float o, float y) {
    int channel = h * D + threadIdx.x;
    if (few) {
        store(a.mixed, t, 2 * a.shape.n_key_heads * D + channel, o);
        return;
    }
    store(a.y, t, channel, y);
    if (a.y.absmax)
        fold_absmax(a.y.absmax, t, fabsf(y));
}

/* What does not change from token to token of a head. */
struct head_constants {
    float norm_weight, rate, bias;
    template <int D> __device__ void open(const ddelta_layer &a, int h) {
        norm_weight = threadIdx.x < D ? norm_weight_at(a, threadIdx.x) : 0.0f;
        rate = expf(load(a.a_log, h)), bias = load(a.dt_bias, h);
    }
};

/* The token that w and gates hold, of row t: s moves on, the output is stored; AGAIN: s moves on alone. `used` is
 * called once the window has been read by all of the block. parity: another than the last token's. */
template <int D, bool AGAIN, bool RAW, class Used>
static __device__ __forceinline__ void advance(const ddelta_layer &a, token_memory<D> &m, int parity, bool few, int t,
                                               int h, window<D, RAW> &w, const token_gates<RAW> &gates,
                                               const head_constants &head, float4 (&s)[state_tile<D>::DEPTH],
                                               const Used &used) {
    typedef state_tile<D> tile;
    int thread = threadIdx.x, four = thread % tile::FOURS, row = thread / tile::FOURS, warp = thread / 32;
    bool has_output = thread < D;
    float *q = m.qkv[parity], *k = q + D, *v = k + D;
    float scale = gates.row_scale, z = AGAIN ? 0.0f : gates.of_z.value(gates.z, scale);
    float decay = expf(-head.rate * softplus((AGAIN ? gates.a_again : gates.of_a.value(gates.a, scale)) + head.bias)),
          beta = sigmoid(AGAIN ? gates.b_again : gates.of_b.value(gates.b, scale));
    w.template put_token<AGAIN>(q, m.squares, scale);
    __syncthreads(); // q, k, v and their squares are there
    used();
    float scale_q = rsqrtf((float)D) / sqrtf(sum_of<D / 32>(m.squares) + 1e-6f),
          scale_k = 1.0f / sqrtf(sum_of<D / 32>(m.squares + D / 32) + 1e-6f);
    float4 recalled = make_float4(0, 0, 0, 0), read = recalled;
#pragma unroll
    for (int j = 0; j < tile::DEPTH; j++) {
        recalled = plus_scaled(recalled, s[j], k[row + j * tile::ROWS]);
        read = plus_scaled(read, s[j], q[row + j * tile::ROWS]);
    }
    *reinterpret_cast<float4 *>(&m.recalled[row][4 * four]) = recalled;
    *reinterpret_cast<float4 *>(&m.read[row][4 * four]) = read;
    float overlap = has_output ? warp_dot<D>(q, k) * scale_q * scale_k : 0.0f, o = 0;
    __syncthreads(); // sums over each group's rows are there
    if (has_output) {
        float e = beta * (v[thread] - decay * scale_k * sum_of_rows<D>(m.recalled, thread));
        o = decay * scale_q * sum_of_rows<D>(m.read, thread) + overlap * e;
        m.e[thread] = e * scale_k;
        float squares = warp_sum(o * o);
        if (thread % 32 == 0)
            m.of_norm[warp] = squares;
    }
    __syncthreads(); // e is there, and the squares of o
    float4 e = *reinterpret_cast<const float4 *>(&m.e[4 * four]);
#pragma unroll
    for (int j = 0; j < tile::DEPTH; j++)
        s[j] = plus_scaled(scaled(s[j], decay), e, k[row + j * tile::ROWS]);
    if (has_output && !AGAIN)
        store_output<D>(a, few, t, h, o, gated_output<D>(a, o, m.of_norm, head.norm_weight, z));
}
