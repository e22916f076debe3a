/* ending.cuh - what a product makes of its sums: see struct dending in kernels.h. For every kernel that multiplies by a weight.
 *
 *     PLAIN   y[t, i] = s_i                                            a unit is a row of W, and a column of y
 *     GATED   y[t, i] = act(s_i) * s_(F + i)                           a unit is a pair of rows, F = units
 *     ROPE    (a, b) = (s_i cos - s_j sin, s_j cos + s_i sin)          a unit is a pair of rows i, j of a head
 *
 * where s is a sum with its scales and its bias, in float32. A kernel lays the rows of a unit where one thread gets both sums:
 *
 *     unit_rows rows = rows_of(ending, n_units, unit);                 // of W; may be asked before wait_for_previous()
 *     token_place place = place_of(ending, t);                         // ROPE, after it, once a token
 *     float2 angle = angle_of(ending, t, unit);                        // likewise, once a token and unit of a head
 *     finish_unit(ending, y, t, place, unit, angle, s_first, s_second);
 *
 * A rotation pairs channels i and i + rope_dim / 2 of a head, or 2i and 2i + 1; channels that no rotation reaches, and those of
 * values, are paired as well, and pass. Queries go to y, which has n_heads * head_dim columns. Keys and values go to the token's slot
 * in the layer's cache, as qkv_prep.cu writes them but for two things. The sums have not been rounded in between. And the scale of
 * a row of an e4m3 cache is not that of the row's own largest value, which is spread over thread blocks, but of a bound that no row
 * of that head passes (launch_kv_bounds): about 20 times the largest, which costs e4m3 four of the 14 powers of two below it and
 * no digit of any other. Caches of int8, where it would cost four bits, keep QKV_PREP. */
#pragma once

#include "backend/cuda/kv.cuh"

__device__ inline bool ending_in_pairs(const dending &e) { return e.kind != ENDING_PLAIN; }

struct unit_rows {
    int first, second; // second: of pairs
};

/* The channels of pair i of a head. */
__device__ inline unit_rows pair_channels(const dheads &h, int i) {
    int turning = h.rope_dim / 2, passing = (h.head_dim - h.rope_dim) / 2;
    if (h.pairing != 0)
        return {2 * i, 2 * i + 1};
    return i < turning ? unit_rows{i, i + turning} : unit_rows{i + turning, i + turning + passing};
}

__device__ inline unit_rows rows_of(const dending &e, int n_units, int unit) {
    if (e.kind == ENDING_PLAIN)
        return {unit, unit};
    if (e.kind == ENDING_GATED)
        return {unit, unit + n_units};
    int pairs = e.heads.head_dim / 2, head = unit / pairs;
    unit_rows c = pair_channels(e.heads, unit - head * pairs);
    return {head * e.heads.head_dim + c.first, head * e.heads.head_dim + c.second};
}

/* Where a token's keys and values go. block NULL: a row of padding, of which nothing is written. */
struct token_place {
    char *block;
    int slot;
};

__device__ inline token_place place_of(const dending &e, int t) {
    const dheads &h = e.heads;
    if (t >= step_tokens(h.plan))
        return {nullptr, 0};
    int position = h.plan.position[t];
    return {kv_block(h.plan, h.cache, h.n_slots, h.plan.seq_of_row[t], position), position & (h.n_slots - 1)};
}

/* Cosine and sine by which a token's unit turns; 1 and 0: not at all. */
__device__ inline float2 angle_of(const dending &e, int t, int unit) {
    const dheads &h = e.heads;
    int pairs = h.head_dim / 2, head = unit / pairs, i = unit - head * pairs, turning = h.rope_dim / 2;
    if (head >= h.n_heads + h.n_kv_heads || i >= turning || t >= step_tokens(h.plan))
        return make_float2(1, 0);
    const float *at = h.cos_sin + (int64_t)t * h.rope_dim + i;
    return make_float2(at[0], at[turning]);
}

/* What is not finite becomes NaN in e4m3, which has no infinity. */
__device__ inline void store_cached(char *at, element e, float x, float by) {
    x *= by;
    kv_store(at, e, e == ELEMENT_E4M3 && !(fabsf(x) <= 3.4e38f) ? __int_as_float(0x7fffffff) : x);
}

__device__ inline void store_turned(const dheads &h, const dmat &q, int t, token_place place, int unit, float2 angle, float a, float b) {
    if (!place.block)
        return;
    int pairs = h.head_dim / 2, head = unit / pairs, i = unit - head * pairs, kv = head - h.n_heads;
    unit_rows c = pair_channels(h, i);
    float first = a * angle.x - b * angle.y, second = b * angle.x + a * angle.y;
    if (kv < 0) {
        store(q, t, head * h.head_dim + c.first, first);
        store(q, t, head * h.head_dim + c.second, second);
        return;
    }
    bool is_v = kv >= h.n_kv_heads;
    kv_shape s = {h.n_kv_heads, h.head_dim, h.head_dim, h.n_slots, h.cache.element};
    float by = 1;
    if (kv_has_scales(s.e)) {
        float scale = kv_scale(s.e, h.bound[kv]);
        by = 1.0f / scale;
        if (i == 0)
            *reinterpret_cast<float *>(place.block + s.scale(is_v, is_v ? kv - h.n_kv_heads : kv, place.slot)) = scale;
    }
    kv -= is_v ? h.n_kv_heads : 0;
    store_cached(place.block + (is_v ? s.value(kv, place.slot, c.first) : s.key(kv, place.slot, c.first)), s.e, first, by);
    store_cached(place.block + (is_v ? s.value(kv, place.slot, c.second) : s.key(kv, place.slot, c.second)), s.e, second, by);
}

/* s_second, place and angle: where the ending has them. */
__device__ inline void finish_unit(const dending &e, const dmat &y, int t, token_place place, int unit, float2 angle, float s_first,
                                   float s_second) {
    if (e.kind == ENDING_ROPE)
        store_turned(e.heads, y, t, place, unit, angle, s_first, s_second);
    else
        store(y, t, unit, e.kind == ENDING_GATED ? activate(e.act, e.limit, s_first, s_second) : s_first);
}
