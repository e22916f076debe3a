/* delta_token.cuh - a token of a value head: what a block of THREADS threads makes of a state in registers; for
 * delta_decode.cu.
 *
 *     e = beta (v - d k^T S);   S' = d S + k e^T;   o = q^T S' = d q^T S + (q.k) e
 *
 * Both sums over rows are of the old state, so a token has one pass over it and three barriers. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta_layer.h"
#include "backend/cuda/recurrent/delta_state.cuh"

enum { THREADS = 256 }; // of a block, which has a head

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
    __device__ float convolve(int i, float row_scale) { // and moves on
        float sum = 0, x = of[i].value(next[i], row_scale);
#pragma unroll
        for (int j = 0; j < DELTA_TAPS; j++)
            sum += weight[i][j] * (j == DELTA_TAPS - 1 ? x : past[i][j]);
#pragma unroll
        for (int j = 0; j < DELTA_TAPS - 1; j++)
            past[i][j] = j == DELTA_TAPS - 2 ? x : past[i][j + 1];
        return silu(sum);
    }
    /* q, k and v of the token, and sums of squares of q and k by 32 channels. */
    __device__ void put_token(float *qkv, float *squares, float row_scale) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int x = threadIdx.x + i * THREADS;
            float y = convolve(i, row_scale), square = warp_sum(y * y);
            if (is_mine(i))
                qkv[x] = y;
            if (x < 2 * D && x % 32 == 0)
                squares[x / 32] = square;
        }
    }
    /* Those of q and k are of all value heads of a key head: one of them does it. */
    __device__ void keep(const ddelta_layer &a, float *kept, bool all) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (is_mine(i) && (all || (int)threadIdx.x + i * THREADS >= 2 * D))
#pragma unroll
                for (int j = 0; j < DELTA_TAPS - 1; j++)
                    keep_input(a, kept, column[i], j, past[i][j]);
    }
};

/* What else a token brings: b and a of the head, z of a thread's channel, the row's scale. */
template <bool RAW> struct token_gates {
    typedef typename column_of<RAW>::stored stored;
    column_of<RAW> of_b, of_a, of_z;
    stored b, a, z;
    float row_scale;
    __device__ void open(const ddelta_layer &l, int h, int channel) {
        of_b.open(l.b, h), of_a.open(l.a, h), of_z.open(l.z, channel);
    }
    __device__ void load_token(const ddelta_layer &l, int t) {
        b = of_b.fetch(l.b, t), a = of_a.fetch(l.a, t), z = of_z.fetch(l.z, t);
        row_scale = RAW ? l.u.row_scale[t] : 1.0f;
    }
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

/* The token that w and gates hold, of row t: s moves on, the output is stored. `used` is called once the window has
 * been read by all of the block. parity: another than the last token's. */
template <int D, bool RAW, class Used>
static __device__ __forceinline__ void advance(const ddelta_layer &a, token_memory<D> &m, int parity, bool few, int t,
                                               int h, window<D, RAW> &w, const token_gates<RAW> &gates,
                                               const head_constants &head, float4 (&s)[state_tile<D>::DEPTH],
                                               const Used &used) {
    typedef state_tile<D> tile;
    int thread = threadIdx.x, four = thread % tile::FOURS, row = thread / tile::FOURS, warp = thread / 32;
    bool has_output = thread < D;
    float *q = m.qkv[parity], *k = q + D, *v = k + D;
    float scale = gates.row_scale, z = gates.of_z.value(gates.z, scale);
    float decay = expf(-head.rate * softplus(gates.of_a.value(gates.a, scale) + head.bias)),
          beta = sigmoid(gates.of_b.value(gates.b, scale));
    w.put_token(q, m.squares, scale);
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
    if (has_output)
        store_output<D>(a, few, t, h, o, gated_output<D>(a, o, m.of_norm, head.norm_weight, z));
}
