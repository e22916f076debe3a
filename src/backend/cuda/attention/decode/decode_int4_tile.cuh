/* decode_int4_tile.cuh - of attention_decode_int4.cu: what a computing warp does with a tile of 64 keys and values: the
 * scores become weights, and values are added by them. */
#pragma once

#include "backend/cuda/attention/decode/decode_int4_scores.cuh"

namespace {

// ---- weights ------------------------------------------------------------------------------------------------------

template <class S> struct sums_int4 {
    float o[S::GROUPS][2][4]; // channels 32 i + 2 g + 0 or 1, and 16 on, by columns
    float m[2], l[2];         // of columns 2 t and 2 t + 1; l of this lane's keys alone
    uint32_t reference;       // bits of a power of two, bfloat16: above all scales of values yet

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[i][h][k] = 0;
        m[0] = m[1] = -INFINITY, l[0] = l[1] = 0, reference = 0;
    }
    __device__ void shrink(float by0, float by1) {
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[i][h][k] *= k % 2 ? by1 : by0;
    }
    __device__ float scale() const { return __uint_as_float(reference << 16); }

    /* Raises m where a score passed it by more than 8, and what was summed shrinks. */
    __device__ void raise(const scores_int4<S> &x) {
        constexpr float SLACK = 8;
        float most[2] = {-INFINITY, -INFINITY}, by[2];
#pragma unroll
        for (int j = 0; j < STEPS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                most[k % 2] = fmaxf(most[k % 2], x.s[j][0][k]);
        if (!__any_sync(0xffffffffu, most[0] > m[0] + SLACK || most[1] > m[1] + SLACK))
            return;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float top = fmaxf(m[k], largest_of_keys(most[k]));
            by[k] = top == -INFINITY ? 1.0f : exp2_fast(m[k] - top);
            m[k] = top;
            l[k] *= by[k];
        }
        shrink(by[0], by[1]);
    }
    /* P in place of scores. */
    __device__ void exponentials(scores_int4<S> &x) {
        float top[2] = {m[0] == -INFINITY ? 0.0f : m[0], m[1] == -INFINITY ? 0.0f : m[1]};
#pragma unroll
        for (int j = 0; j < STEPS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                x.s[j][0][k] = exp2_fast(x.s[j][0][k] - top[k % 2]);
                l[k % 2] += x.s[j][0][k];
            }
    }

    /* Scales go into P, relative to `reference`, so that P keeps half precision's fraction. What nobody sees has none:
     * 0 times it must be 0. */
    __device__ void refer(uint32_t scales, int tile, int low, int end, bool inside, const place_int4 &at) {
        uint32_t most = 0;
#pragma unroll 1 // or its loads take registers that sums have
        for (int j = 0; j < STEPS; j++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
                int key = at.key(j, row);
                bool seen = inside || (tile + key >= low && tile + key < end);
#pragma unroll
                for (int g = 0; g < S::GROUPS; g += 2) {
                    uint32_t w = load_shared(scales + (key * S::GROUPS + g) * 2);
                    most = __vmaxu2(most, seen ? w & 0x7fff7fffu : 0);
                }
            }
        most = max(most & 0xffff, most >> 16);
        if (!__any_sync(0xffffffffu, most >= reference && most > 0))
            return;
        most = min(__reduce_max_sync(0xffffffffu, most), 0x7e80u); // of what is not finite too: 2^126
        uint32_t above = (most & 0x7f80u) + 0x80u;
        if (above <= reference)
            return;
        float by = __uint_as_float((uint32_t)max((int)reference - (int)above + 0x3f80, 0) << 16); // of powers of two
        shrink(by, by);
        reference = above;
    }

    __device__ void add(uint32_t stage, const scores_int4<S> &x, int tile, int low, int end, bool inside,
                        const place_int4 &at) {
        uint32_t scales = stage + S::VALUE_SCALES;
        refer(scales, tile, low, end, inside, at);
        float per = __uint_as_float((0x7f00u - reference) << 16); // 1 / scale()
        int row = at.lane % 8; // of the matrix whose row this lane tells, lane / 8: keys of g, of g + 8; the next group
        uint32_t codes = stage + S::VALUES + at.lane / 16 * 16;
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            int slot = 8 * row + 2 * j + ((row ^ at.lane / 8) & 1), first = at.key(j, 0), second = at.key(j, 1);
            bool first_seen = inside || (tile + first >= low && tile + first < end),
                 second_seen = inside || (tile + second >= low && tile + second < end);
#pragma unroll
            for (int g = 0; g < S::GROUPS; g += 2) {
                uint32_t w[4], of_first = load_shared(scales + (first * S::GROUPS + g) * 2),
                               of_second = load_shared(scales + (second * S::GROUPS + g) * 2);
                load_matrices_turned(w, codes + slot * S::CODES + 16 * g);
                of_first = first_seen ? of_first : 0;
                of_second = second_seen ? of_second : 0;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float by0 = __uint_as_float(h ? of_first & 0xffff0000u : of_first << 16) * per,
                          by1 = __uint_as_float(h ? of_second & 0xffff0000u : of_second << 16) * per;
                    uint32_t even[4] = {low_values(w[2 * h]), high_values(w[2 * h]), low_values(w[2 * h + 1]),
                                        high_values(w[2 * h + 1])};
                    w[2 * h] >>= 8, w[2 * h + 1] >>= 8;
                    uint32_t odd[4] = {low_values(w[2 * h]), high_values(w[2 * h]), low_values(w[2 * h + 1]),
                                       high_values(w[2 * h + 1])};
                    uint32_t b0 = turn_matrix(to_pair<false>(x.s[j][0][0] * by0, x.s[j][0][1] * by0)),
                             b1 = turn_matrix(to_pair<false>(x.s[j][0][2] * by1, x.s[j][0][3] * by1));
                    multiply_add<false>(o[g + h][0], even, b0, b1);
                    multiply_add<false>(o[g + h][1], odd, b0, b1);
                }
            }
        }
    }
};

template <class S>
__device__ void take_tile_int4(const arguments &p, const memory<S> &m, const task<S> &t, int tile, int stage,
                               const queries_int4<S> &q, const place_int4 &at, sums_int4<S> &o) {
    bool inside = tile >= t.inside_from && tile + TILE <= t.inside_to;
    uint32_t at_stage = m.ring + stage * S::STAGE;
    scores_int4<S> x;
    x.make(at_stage, q, at);
#pragma unroll
    for (int j = 0; j < STEPS; j++)
        scale_scores<S>(p, p.a.scale, p.a.scale, x.s[j]);
    if (!inside)
        x.hide(t, tile, at);
    o.raise(x);
    o.exponentials(x);
    o.add(at_stage, x, tile, t.low, t.part.end, inside, at);
}

} // namespace
