/* prefill_bytes.cuh - of attention_prefill_halves.cu: prompts over a cache of e4m3, where keys and values are
 * multiplied as they lie there.
 *
 *     S [rows, keys] = q K^T,  P = 2^(S - m),  O^T [channels, rows] += V^T P^T
 *
 * All products are of e4m3: queries and P are the sum of two e4m3 (prefill_rows.cuh), V^T comes to registers turned, 64
 * channels at a time, and P goes to shared memory, whose bytes are the only right operand that wgmma knows:
 *
 *     weights   [2 terms][64 rows][128 keys]   of 16 keys, bytes 4t .. 4t + 3 of a row are keys 2t, 2t + 1, 2t + 8, 2t
 *               + 9
 *
 * The largest score m is kept per row, in whole powers of two, and raised when a score passes it by P_SLACK; a value's
 * scale is P's, relative to a power of two that is raised likewise. As the tensor cores keep some 14 bits of a sum,
 * sums of a step are added to O in float32.
 *
 * S (a shape) has STEP 128 keys a step, KEYS of them whose scores a warpgroup makes, CHANNELS that it sums. */
#pragma once

#include "backend/cuda/attention/prefill/prefill_bytes_scores.cuh"

namespace {

/* Factors of rows are powers of two, so that bfloat16 has them exactly. */
template <class S> __device__ void shrink_sums(const memory<S> &m, int step, row_sums<S> &o) {
    const uint32_t *shrink = reinterpret_cast<const uint32_t *>(m.shrink(step)) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t two = shrink[4 * n];
        float by[2] = {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
#pragma unroll
        for (int i = 0; i < S::CHANNELS / 64; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o.o[i][4 * n + k] *= by[k % 2];
    }
}

/* The left operand of 64 channels of a step's values. Row g is channel 2g, row g + 8 channel 2g + 1; of 16 keys, column
 * 4t .. 4t + 3 are keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <class S> __device__ void load_values(const memory<S> &m, int step, int i, uint32_t (&v)[4][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    constexpr int WIDTH = S::RAW_WIDTH;
    uint32_t from =
        m.values(step) + i / 2 * S::STEP * WIDTH + lane * WIDTH + kv_swizzled(WIDTH, lane, i % 2 * 64 + warp * 16);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t words[4];
        load_matrices_turned(words, from + k * 32 * WIDTH);
        v[k][0] = __byte_perm(words[0], words[1], 0x6420);
        v[k][1] = __byte_perm(words[0], words[1], 0x7531);
        v[k][2] = __byte_perm(words[2], words[3], 0x6420);
        v[k][3] = __byte_perm(words[2], words[3], 0x7531);
    }
}

/* Zeroes values of keys that nobody sees, which may be anything: 0 times it must be 0. */
template <class S> __device__ void clear_values(const memory<S> &m, const source &src, int tile, int step) {
    int key = tile + threadIdx.x % 128;
    if (key < src.low || key >= src.end)
        for (int at = 0; at < S::CHANNELS; at += 16)
            *reinterpret_cast<uint4 *>(m.at(m.values(step)) + at / S::RAW_WIDTH * S::STEP * S::RAW_WIDTH +
                                       threadIdx.x % 128 * S::RAW_WIDTH + at % S::RAW_WIDTH) = {0, 0, 0, 0};
    threads_sync(OWN + threadIdx.x / 128, 128); // they are zero
}

/* o += V^T P^T of a step, whose values and P are there. */
template <class S> __device__ void add_values(const memory<S> &m, const source &src, int step, row_sums<S> &o) {
    int tile = src.first + step * S::STEP;
    uint64_t weights = operand_rows(m.weights(step));
    uint32_t v[2][4][4];
    if (tile < src.low || tile + S::STEP > src.end)
        clear_values(m, src, tile, step);
    load_values(m, step, 0, v[0]);
#pragma unroll
    for (int i = 0; i < S::CHANNELS / 64; i++) {
        float sum[32];
        registers_settle(sum);
        products_begin();
#pragma unroll
        for (int k = 0; k < 8; k++) // the smaller term first
            e4m3_product<64>::multiply(sum, v[i % 2][k % 4], weights + (k < 4 ? S::TERM >> 4 : 0) + 2 * (k % 4), k > 0);
        products_commit();
        if (i + 1 < S::CHANNELS / 64)
            load_values(m, step, i + 1, v[(i + 1) % 2]);
        products_wait<0>();
        registers_settle(sum);
#pragma unroll
        for (int j = 0; j < 32; j++)
            o.o[i][j] += sum[j];
    }
}

/* What a row's sums are multiplied by, and where they go: for all threads. */
struct ending {
    int64_t to; // -1: no row
    float by;
    int row; // of the step
};

__device__ ending ending_of(const arguments &p, const dpart &part, int kv, int r, float by) { // r: row of the tile
    row_place at = place_of_row(p, part, kv, part.first_column + r);
    return {part.first_column + r < part.columns ? at.token * p.out.stride + (int64_t)at.head * p.a.head_dim : -1, by,
            (int)at.token};
}

/* What the thread adds to its two rows' sums of P: of all lanes, and the sink. */
template <class S>
__device__ float row_total(const arguments &p, int kv, const place &at, const row_sums<S> &o, int k, bool sink) {
    int per_kv = p.a.n_heads / p.a.n_kv_heads;
    float l = o.l[k] + __shfl_xor_sync(0xffffffffu, o.l[k], 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    return p.sinks.at && sink
               ? l + exp2_fast(load(p.sinks, kv * per_kv + at.row[k] % per_kv) * LOG2_E - o.m[k] + P_LOG2_UNIT)
               : l;
}

/* In float32, a pair of channels at a time, and the largest size of a row's. */
template <class S>
__device__ void store_floats(const arguments &p, const ending *endings, int first_channel, const row_sums<S> &o) {
    int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            ending e = endings[8 * n + 2 * t + k];
            float *to = static_cast<float *>(p.out.at) + e.to + 16 * warp + 2 * g;
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < S::CHANNELS / 64; i++) {
                float x = o.o[i][4 * n + k] * e.by, y = o.o[i][4 * n + 2 + k] * e.by;
                most = max(most, max(__float_as_uint(x) & 0x7FFFFFFF, __float_as_uint(y) & 0x7FFFFFFF));
                if (e.to >= 0)
                    *reinterpret_cast<float2 *>(to + moved<S>(p, first_channel + 64 * i)) = {x, y};
            }
            if (p.out.absmax) {
                for (int step = 4; step < 32; step *= 2)
                    most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
                if (g == 0 && e.to >= 0)
                    atomicMax(p.out.absmax + e.row, most);
            }
        }
}

/* In 16 bits, which first come to `room`, [panel][row][128 bytes], PITCH bytes from a panel to the next: from there a
 * warp stores a row at a time, and knows the largest size in it. */
template <class S, bool BF16, int PITCH>
__device__ void store_pairs(const arguments &p, const ending *endings, int first_channel, char *room,
                            const row_sums<S> &o) {
    constexpr int LANES = S::CHANNELS / 8, ROWS = 32 / LANES; // of a row; rows at a time
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int r = 8 * n + 2 * t + k;
            float by = endings[r].by;
#pragma unroll
            for (int i = 0; i < S::CHANNELS / 64; i++)
                *reinterpret_cast<uint32_t *>(room + i * PITCH + r * 128 + ((2 * warp + g / 4) ^ (2 * t)) * 16 +
                                              g % 4 * 4) =
                    to_pair<BF16>(o.o[i][4 * n + k] * by, o.o[i][4 * n + 2 + k] * by);
        }
    threads_sync(OWN + threadIdx.x / 128, 128); // the rows are there
#pragma unroll 2
    for (int i = 0; i < 16 / ROWS; i++) {
        int r = warp * 16 + i * ROWS + lane / LANES, c = lane % LANES;
        ending e = endings[r];
        uint4 x = *reinterpret_cast<const uint4 *>(room + c / 8 * PITCH + r * 128 + ((c % 8) ^ (r / 2 % 4 * 2)) * 16);
        store_eight<LANES, BF16>(p, e.to >= 0, e.to + moved<S>(p, first_channel + 8 * c), e.row, x);
    }
}

/* Rows of 64, whose endings are there; room: of the queries, which nobody needs any more. */
template <class S>
__device__ void store_rows(const arguments &p, const ending *endings, int first_channel, char *room,
                           const row_sums<S> &o) {
    if (p.out.element == ELEMENT_F32)
        store_floats(p, endings, first_channel, o);
    else if (p.out.element == ELEMENT_F16)
        store_pairs<S, false, S::QUERY_PANEL>(p, endings, first_channel, room, o);
    else
        store_pairs<S, true, S::QUERY_PANEL>(p, endings, first_channel, room, o);
}

} // namespace
