/* decode_int4_scores.cuh - of attention_decode_int4.cu: codes as half precision, queries in a computing warp's
 * registers, and their scores with a tile of 64 keys.
 *
 * Lane 4 g + t. Rows of a product's left operand are keys: of step j, 0 to 3, row g is slot 8 g + 2 j + g % 2 and row
 * g + 8 its neighbour, 8 g + 2 j + 1 - g % 2, so that a lane's slots are one word of every byte's row, and neighbours
 * of a matrix of values lie in different banks. A byte's lower code is a column of one product, its upper one of the
 * next.
 *
 * A code becomes half precision by its place in the fraction: c in the lowest four bits of 1024's is 1024 + c, four
 * bits higher 1024 + 16 c. Of keys the query has 1/16 there, and what 1024 and the codes' zero, 8, add to a score is
 * the same for all keys: sums begin with less that. Of values a multiply-add takes it off, since sums of values are of
 * all keys and would lose what is left. */
#pragma once

#include "backend/cuda/attention/decode/decode_int4_shape.cuh"

namespace {

/* Codes in bits 0-3 and 16-19, or 4-7 and 20-23, as halves 1024 + c and 1024 + 16 c. */
__device__ __forceinline__ uint32_t low_codes(uint32_t w) { return (w & 0x000f000fu) | 0x64006400u; }
__device__ __forceinline__ uint32_t high_codes(uint32_t w) { return (w & 0x00f000f0u) | 0x64006400u; }

/* c - 8 of those. */
__device__ __forceinline__ uint32_t low_values(uint32_t w) {
    uint32_t x = low_codes(w);
    __half2 v = __hsub2(reinterpret_cast<__half2 &>(x), __float2half2_rn(1032.0f));
    return reinterpret_cast<uint32_t &>(v);
}
__device__ __forceinline__ uint32_t high_values(uint32_t w) {
    uint32_t x = high_codes(w);
    __half2 v = __hfma2(reinterpret_cast<__half2 &>(x), __float2half2_rn(0.0625f), __float2half2_rn(-72.0f));
    return reinterpret_cast<uint32_t &>(v);
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

/* Where a computing thread stands. */
struct place_int4 {
    int lane, group, quarter, odd;          // group: lane / 4, quarter: lane % 4, odd: group % 2
    uint32_t first_slot[2], second_slot[2]; // of __byte_perm: a word's byte of row g and of g + 8, in both halves
    uint32_t first_scale, second_scale;     // likewise a word's bfloat16 as a float

    __device__ explicit place_int4(int lane_) {
        lane = lane_, group = lane / 4, quarter = lane % 4, odd = group & 1;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            first_slot[k] = (2 * k + odd) * 0x1111u + 0x4400u;
            second_slot[k] = (2 * k + 1 - odd) * 0x1111u + 0x4400u;
        }
        first_scale = odd ? 0x3244u : 0x1044u;
        second_scale = odd ? 0x1044u : 0x3244u;
    }
    __device__ int key(int step, int row) const { return 8 * group + 2 * step + (row ^ odd); } // row: 0, or 1 of g + 8
};

// ---- queries ------------------------------------------------------------------------------------------------------

template <class S> struct queries_int4 {
    uint2 own[S::GROUPS][2];   // right operands: the channels of lower and of upper codes
    float begin[S::GROUPS][2]; // of columns 2 t and 2 t + 1: what a group's sum begins with

    static __device__ float channel_of(const memory<S> &m, element e, int column, int channel) {
        const char *row = m.queries + column * (S::DIM * (e == ELEMENT_F32 ? 4 : 2) + 32);
        return ::load(row, channel, e);
    }
    __device__ void take(const arguments &p, const memory<S> &m, int n_columns, const place_int4 &at) {
        const uint32_t low[4] = {0xe408e408u, 0xe408e408u, 0xe408e408u, 0xe408e408u}, // -1032
            high[4] = {0xe480e480u, 0xe480e480u, 0xe480e480u, 0xe480e480u};           // -16 * 72
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++) {
            int column = at.group, c = KV_INT4_GROUP * g + at.quarter;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float x[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = column < n_columns
                               ? channel_of(m, p.q.element, column, c + 16 * k + 4 * i) * (k ? 0.0625f : 1.0f)
                               : 0.0f;
                own[g][k] = {to_pair<false>(x[0], x[1]), to_pair<false>(x[2], x[3])};
            }
            float sum[4] = {0, 0, 0, 0};
            multiply_add<false>(sum, low, own[g][0].x, own[g][0].y);
            multiply_add<false>(sum, high, own[g][1].x, own[g][1].y);
            begin[g][0] = sum[0], begin[g][1] = sum[1];
        }
    }
};

// ---- scores -------------------------------------------------------------------------------------------------------

constexpr int STEPS = TILE / 16;

template <class S> struct scores_int4 {
    float s[STEPS][1][4]; // as scale_scores has them

    __device__ void make(uint32_t stage, const queries_int4<S> &q, const place_int4 &at) {
#pragma unroll
        for (int j = 0; j < STEPS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[j][0][k] = 0;
        uint32_t codes = stage + at.quarter * TILE + 8 * at.group, scales = stage + S::KEY_SCALES + 16 * at.group;
#pragma unroll
        for (int g = 0; g < S::GROUPS; g++) {
            uint2 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = load_shared_8(codes + (16 * g + 4 * i) * TILE);
            uint4 four = load_shared_16(scales + g * TILE * 2);
            uint32_t d[STEPS] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                uint32_t x[4], first = at.first_slot[j % 2], second = at.second_slot[j % 2];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = j < 2 ? w[i].x : w[i].y;
                x[0] = w_pair(x[0], x[1], first, second, x[1]);
                x[2] = w_pair(x[2], x[3], first, second, x[3]);
                uint32_t low[4] = {low_codes(x[0]), low_codes(x[1]), low_codes(x[2]), low_codes(x[3])},
                         high[4] = {high_codes(x[0]), high_codes(x[1]), high_codes(x[2]), high_codes(x[3])};
                float of_first = __uint_as_float(__byte_perm(d[j], 0, at.first_scale)),
                      of_second = __uint_as_float(__byte_perm(d[j], 0, at.second_scale));
                float sum[4] = {q.begin[g][0], q.begin[g][1], q.begin[g][0], q.begin[g][1]};
                multiply_add<false>(sum, low, q.own[g][0].x, q.own[g][0].y);
                multiply_add<false>(sum, high, q.own[g][1].x, q.own[g][1].y);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s[j][0][k] += (k < 2 ? of_first : of_second) * sum[k];
            }
        }
    }
    /* The bytes of two words for row g, returned, and for row g + 8. */
    static __device__ uint32_t w_pair(uint32_t a, uint32_t b, uint32_t first, uint32_t second, uint32_t &other) {
        uint32_t mine = __byte_perm(a, b, first);
        other = __byte_perm(a, b, second);
        return mine;
    }
    /* -inf where the column does not see the key. */
    __device__ void hide(const task<S> &t, int tile, const place_int4 &at) {
#pragma unroll
        for (int j = 0; j < STEPS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int column = 2 * at.quarter + k % 2, key = tile + at.key(j, k / 2);
                if (key < t.first[column] || key > t.last[column])
                    s[j][0][k] = -INFINITY;
            }
    }
};

} // namespace
