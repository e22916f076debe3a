/* prefill_scores.cuh - of attention_prefill.cu: where a computing thread stands, and its scores S = q K^T up to their
 * mask. */
#pragma once

#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/prefill_shape.cuh"
#include "backend/cuda/value.h"

namespace {

/* What is the same in all threads of a warp, said so that operands are computed once for it. */
__device__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/* Where a computing thread stands: its two rows of the sequence, and what its warpgroup's rows see. */
struct place {
    int sharer, first_row; // of the warpgroup: which share of the channels; in the tile
    int row[2], position[2];
    int first_position, last_position;
    float by[2]; // a row's scores become powers of two times this
};

template <class S> __device__ place place_of(const arguments &p, const dpart &part) {
    int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4,
        per_kv = p.a.n_heads / p.a.n_kv_heads;
    place at;
    at.sharer = group % S::SHARERS;
    at.first_row = group / S::SHARERS * 64;
    for (int k = 0; k < 2; k++) {
        at.row[k] = part.first_column + at.first_row + 16 * warp + g + 8 * k;
        at.position[k] = part.position + min(at.row[k], part.columns - 1) / per_kv;
    }
    int first = part.first_column + at.first_row;
    at.first_position = part.position + min(first, part.columns - 1) / per_kv;
    at.last_position = part.position + min(first + 63, part.columns - 1) / per_kv;
    return at;
}

/* After load_queries. */
template <class S> __device__ void set_row_scales(const arguments &p, const memory<S> &m, place &at) {
    constexpr float LOG2_E = 1.4426950408889634f;
    int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4;
    for (int k = 0; k < 2; k++) {
        at.by[k] = p.a.scale * LOG2_E;
        if (S::KEYS_AS_THEY_ARE)
            at.by[k] *= reinterpret_cast<const float *>(m.at(m.row_scales()))[at.first_row + 16 * warp + g + 8 * k];
    }
}

/* 32 bytes of the rows' queries with 32 of keys. */
template <class S> __device__ void multiply_keys(uint64_t rows, uint64_t keys, bool add, float (&s)[S::KEYS / 2]) {
    if constexpr (S::KEYS_AS_THEY_ARE)
        e4m3_product<S::KEYS>::multiply(s, rows, keys, add);
    else
        halves_product<S::KEYS, S::BF16>::multiply(s, rows, keys, add);
}

/* Starts s = q k^T of the warpgroup's rows, before the rows' factors. Panels of 128 bytes are taken from the last to
 * the first: so the smaller part of e4m3 queries comes first, as their sums lose what is small beside them. */
template <class S>
__device__ void begin_scores(const memory<S> &m, const place &at, int tile, float (&s)[S::KEYS / 2]) {
    constexpr bool NARROW =
        S::KEYS_AS_THEY_ARE && S::RAW_WIDTH == 64; // keys are half a panel wide, which both parts are multiplied with
    constexpr int KEY_PANELS = NARROW ? 1 : S::KEYS_AS_THEY_ARE ? S::DIM / 128 : S::N_PANELS;
    constexpr int KEY_PANEL = S::KEYS_AS_THEY_ARE ? S::RAW_PANEL : S::PANEL;
    uint32_t query = m.query, key = m.keys(tile);
    if (S::BYTES ||
        S::DIM ==
            512) // operands are not to be computed before the loop over tiles, where no registers are left for them
        asm volatile("" : "+r"(query), "+r"(key));
    uint64_t rows = operand_rows(query + at.first_row * 128);
    uint64_t keys = NARROW ? operand_rows_of_64(key) : operand_rows(key);
    products_begin();
    registers_settle(s);
#pragma unroll
    for (int k = 4 * S::N_PANELS - 1; k >= 0; k--) { // operands count in 16 bytes
        int panel = k / 4, key_panel = panel % KEY_PANELS;
        multiply_keys<S>(rows + (panel * S::QUERY_PANEL >> 4) + 2 * (k % 4),
                         keys + (key_panel * KEY_PANEL >> 4) + 2 * (NARROW ? k % 2 : k % 4), k < 4 * S::N_PANELS - 1,
                         s);
    }
    products_commit();
}

/* Once they are there: the keys' scales. */
template <class S> __device__ void end_scores(const memory<S> &m, int tile, float (&s)[S::KEYS / 2]) {
    registers_settle(s);
    if constexpr (S::KEYS_AS_THEY_ARE) {
        const float2 *scales = reinterpret_cast<const float2 *>(m.at(m.key_scales(tile))) + threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++) {
            float2 by = scales[4 * j];
            s[4 * j] *= by.x;
            s[4 * j + 1] *= by.y;
            s[4 * j + 2] *= by.x;
            s[4 * j + 3] *= by.y;
        }
    }
}

/* cap * tanh(x / cap), as 1 - 2 / (1 + e^2x), in powers of two. */
template <class S> __device__ void cap_scores(const place &at, float cap, float (&s)[S::KEYS / 2]) {
    constexpr float LOG2_E = 1.4426950408889634f;
#pragma unroll
    for (int j = 0; j < S::KEYS / 2; j++) {
        float e = exp2_fast(s[j] * (2 * at.by[j / 2 % 2] / cap));
        s[j] = cap * LOG2_E * (1.0f - __fdividef(2.0f, 1.0f + e));
    }
}

template <class S>
__device__ void hide(const arguments &p, const dpart &part, const place &at, int tile, float (&s)[S::KEYS / 2]) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int first = first_visible(p.a, at.position[k]), last = min(at.position[k], part.end - 1);
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int key = tile + 8 * j + 2 * t + i;
                if (key < first || key > last)
                    s[4 * j + 2 * k + i] = -INFINITY;
            }
    }
}

/* The warp has read what the barrier is of. */
__device__ void release(uint32_t empty) {
    __syncwarp();
    barrier_arrive_warp(empty, threadIdx.x % 32);
}

} // namespace
