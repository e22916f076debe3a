/* delta_chunks.cuh - the delta rule by chunks of C = D / 2 tokens, as products; what its passes share.
 *
 * With G_i the sum of g over a chunk's tokens up to i, S the state before it and D_ij = e^(G_i - G_j) for j <= i, else
 * 0 (Yang et al., "Gated delta networks", 2412.06464, the WY form):
 *
 *     q^, k^, v                                                                 delta_chunk_inputs.cu: a stream of rows
 *
 *     T  = (1 + strictly lower part of (beta_i D_ij k_i.k_j))^-1 diag(beta)     delta_chunk_parts.cu: a block a chunk
 *     A  = D_ij q_i.k_j                                                         and key head, all side by side
 *
 *     R  = T (V - e^G K S)                                                      delta_chunk_scan.cu: a block a value
 *     O  = e^G Q S + A R                                                        head and some columns of S, chunk
 *     S' = e^(G_C) S + sum_i e^(G_C - G_i) k_i R_i^T                            after chunk
 *
 * What is multiplied are pairs of bfloat16, a number and what rounding it has left, in three products with sums in
 * float32, so that a sum is off by 2^-15 of the sizes of its terms (docs/numerics.md). T is solved in float32. Entries
 * of T, A, K and Q are at most 1 in size, as a product of (1 - beta k k^T) makes nothing longer.
 *
 * Between the passes all lies where the values of SHORT_CONV and DELTA_RULE would, a row a token:
 *
 *     mixed   [q^: hi D, lo D | k^: hi D, lo D | v: D floats] of each head    floats 2 heads * D + value heads * D
 *     parts   [T: hi C, lo C | A: hi C, lo C] of each value head              floats value heads * D
 *
 * and o takes v's place. Chunks are counted from a sequence's first row in the step; rows behind its last are zeros. */
#pragma once

#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/recurrent/delta_state.cuh"

/* Row t of T and A of a value head, in pairs: T from 0 on, A from C on. */
template <int D> static __device__ __forceinline__ uint32_t *part_row(const ddelta_layer &a, int t, int h) {
    return static_cast<uint32_t *>(a.parts.at) + t * a.parts.stride + h * D;
}

/* ---- sequences that go by chunks ---- */

struct chunk_place {
    int seq, first, n, index; // its rows from `first` on; index: which of its sequence's
};

static __device__ __forceinline__ int tokens_of(const ddelta_layer &a, const device_plan &p, int seq) {
    return seq < step_seqs(p) ? chunked_tokens(a, p, seq) : 0;
}

/* By a warp: item `i` of what sequences have by `count`, which is given their tokens, 0 of those that are walked. seq
 * -1: there are fewer. */
template <class Count>
static __device__ __forceinline__ int2 find_item(const ddelta_layer &a, const device_plan &p, int i,
                                                 const Count &count) {
    int lane = threadIdx.x % 32, before = 0, n_seqs = step_seqs(p);
    for (int base = 0; base < n_seqs; base += 32) {
        int n = count(tokens_of(a, p, base + lane)), sum = n;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? left : 0;
        }
        uint32_t beyond = __ballot_sync(0xffffffffu, before + sum > i);
        if (beyond) {
            int at = __ffs((int)beyond) - 1;
            return make_int2(base + at, i - before - __shfl_sync(0xffffffffu, sum - n, at));
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return make_int2(-1, 0);
}

template <int C>
static __device__ __forceinline__ chunk_place find_chunk(const ddelta_layer &a, const device_plan &p, int i) {
    int2 at = find_item(a, p, i, [](int n) { return (n + C - 1) / C; });
    if (at.x < 0)
        return chunk_place{-1, 0, 0, 0};
    int first = p.query_start[at.x] + at.y * C;
    return chunk_place{at.x, first, min(C, p.query_start[at.x + 1] - first), at.y};
}

// ---- gates ----------------------------------------------------------------------------------------------------------

/* By a warp: inclusive sums of g over the rows of a chunk, of which lane l gives alpha[k] of row l + 32 k. */
template <int C>
static __device__ __forceinline__ void sum_gates(const float (&alpha)[(C + 31) / 32], int n, float rate, float bias,
                                                 float *G) {
    int lane = threadIdx.x % 32;
    float before = 0;
#pragma unroll
    for (int k = 0; k < (C + 31) / 32; k++) {
        int i = lane + 32 * k;
        float sum = i < n ? -rate * softplus(alpha[k] + bias) : 0.0f;
        for (int step = 1; step < 32; step *= 2) {
            float left = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? left : 0.0f;
        }
        sum += before;
        if (i < C)
            G[i] = sum;
        before = __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* By a warp: G and beta of a value head's rows in the chunk; beta is 0 behind its end. */
template <int C>
static __device__ __forceinline__ void gates_of_chunk(const ddelta_layer &a, const chunk_place &c, int h, float *G,
                                                      float *beta) {
    float alpha[(C + 31) / 32];
#pragma unroll
    for (int k = 0; k < (C + 31) / 32; k++) {
        int i = threadIdx.x % 32 + 32 * k;
        alpha[k] = i < c.n ? load(a.a, c.first + i, h) : 0.0f;
        if (i < C)
            beta[i] = i < c.n ? sigmoid(load(a.b, c.first + i, h)) : 0.0f;
    }
    sum_gates<C>(alpha, c.n, expf(load(a.a_log, h)), load(a.dt_bias, h), G);
}

// ---- pairs of bfloat16 in shared memory: [2][rows][pitch], hi then lo -----------------------------------------------

struct two_of {
    uint32_t hi, lo;
};
static __device__ __forceinline__ two_of split_pair(float low, float high) {
    uint32_t pair = to_pair<true>(low, high);
    return two_of{pair, rest_of_pair(low, high, pair)};
}

/* 16 x 16 of A, rows from `row`, columns from `col`, of a tile [rows][PITCH]. */
template <int PITCH> static __device__ __forceinline__ void load_a(uint32_t (&m)[4], uint32_t tile, int row, int col) {
    int lane = threadIdx.x % 32;
    load_matrices(m, tile + 2 * ((row + lane % 16) * PITCH + col + lane / 16 * 8));
}
/* Likewise of its transpose: row `row` of A is column `row` of the tile. */
template <int PITCH>
static __device__ __forceinline__ void load_a_turned(uint32_t (&m)[4], uint32_t tile, int row, int col) {
    int lane = threadIdx.x % 32;
    load_matrices_turned(m, tile + 2 * ((col + lane / 16 * 8 + lane % 8) * PITCH + row + lane / 8 % 2 * 8));
}
/* 16 x 8 of B, hi and lo (planes `plane` bytes apart), rows from `row`, columns from `col`: b[0], b[1] hi, b[2], b[3]
 * lo. */
template <int PITCH>
static __device__ __forceinline__ void load_b(uint32_t (&b)[4], uint32_t tile, int plane, int row, int col) {
    int lane = threadIdx.x % 32;
    load_matrices_turned(b, tile + lane / 16 * plane + 2 * ((row + lane % 16) * PITCH + col));
}
/* Likewise where the tile holds B's columns as rows. */
template <int PITCH>
static __device__ __forceinline__ void load_b_of_rows(uint32_t (&b)[4], uint32_t tile, int plane, int row, int col) {
    int lane = threadIdx.x % 32;
    load_matrices(b, tile + lane / 16 * plane + 2 * ((col + lane % 8) * PITCH + row + lane / 8 % 2 * 8));
}

/* c += a b of pairs, without lo times lo. */
static __device__ __forceinline__ void multiply_pairs(float (&c)[4], const uint32_t (&hi)[4], const uint32_t (&lo)[4],
                                                      const uint32_t (&b)[4]) {
    multiply_add<true>(c, lo, b[0], b[1]);
    multiply_add<true>(c, hi, b[2], b[3]);
    multiply_add<true>(c, hi, b[0], b[1]);
}

/* Two neighbours of a row into a tile of pairs. */
template <int PITCH>
static __device__ __forceinline__ void store_pair(uint32_t tile, int plane, int row, int col, float x, float y) {
    two_of two = split_pair(x, y);
    uint32_t at = tile + 2 * (row * PITCH + col);
    store_shared(at, two.hi);
    store_shared(at + plane, two.lo);
}

/* 16 bytes on their way to shared memory, or zeros. Not copy_later: with a hint for the cache ptxas 13.0 gave one of
 * these kernels an odd register for it, which is no instruction ("an illegal instruction was encountered"). */
static __device__ __forceinline__ void ask_piece(uint32_t to, const uint32_t *from, bool zeros) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(zeros ? 0 : 16) : "memory");
}

/* Rows of pairs, hi at 0 and lo behind them, of WIDTH columns, on their way to a tile by THREADS threads; zeros from
 * row n on. */
template <int WIDTH, int PITCH, int THREADS>
static __device__ __forceinline__ void ask_rows(uint32_t tile, const uint32_t *from, int64_t stride, int rows, int n) {
    constexpr int PIECES = WIDTH / 4, STEP = THREADS / PIECES; // 16 bytes each, of a row; rows at a time
    static_assert(THREADS % PIECES == 0, "a thread has one piece of some rows");
    int piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES, last = n - 1;
    uint32_t to = tile + piece / (PIECES / 2) * 2 * rows * PITCH + 2 * (row * PITCH + piece % (PIECES / 2) * 8);
    from += piece * 4;
    for (; row < rows; row += STEP, to += 2 * STEP * PITCH)
        ask_piece(to, from + min(row, last) * stride, row > last);
}
