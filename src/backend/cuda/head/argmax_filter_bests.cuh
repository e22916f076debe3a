/* argmax_filter_bests.cuh - of argmax_filter_product.cuh: what it is given, candidates, and the best lower bounds of a
 * tile. */
#pragma once

#include "backend/cuda/head/argmax_filter_bound.cuh"
#include "backend/cuda/head/argmax_filter_units.cuh"
#include "backend/cuda/ptx/copy_later.cuh"
#include "backend/cuda/ptx/wgmma_int8.cuh"
#include "backend/cuda/value.h"

namespace screen {

static_assert((int)INT8_K == (int)STEP_BYTES, "");

enum {
    LISTED = 1024, // candidates that a block keeps until its end
    MOST_TRIES = 8,
    NOTED = 8, // times that a lane of a warp has some that may win, of a tile
    NOTE = 32, // its sums then: of two rows, and at most sixteen tokens
};

struct candidate {
    int32_t row;
    float upper; // bound of its logit, in units of the token's step
};

struct product_args {
    units w;
    const row *rows;
    const token *tokens;
    float *bests;     // [tokens]
    int32_t *n_found; // [tokens]
    candidate *found; // [tokens][most_found]
    const int32_t *is_wanted;
    const drow *asked;     // [tokens], for their masks
    const dplaces *places; // where these are
    bool by_turns;         // the second warpgroup begins a piece after the first, if there are two
    float cap;
    float most_needed, most_beyond; // of thresholds: with a sum they stay in 31 bits
    int looks_at;                   // the piece during which thresholds are made
    int most_found;
    uint32_t *claims; // [token tile]
    int n_rows;       // of W
    int n_tokens, n_pieces, octets, n_stages, token_tiles, sharers;
};

// ---- what may win ---------------------------------------------------------------------------------------------------

/* Where the lane with columns 2q, 2q + 1 finds four of reach: those of two eights of tokens. */
__device__ constexpr int place_of_reach(int token) {
    return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
}

struct listed {
    uint32_t place; // row, token of the block's
    float upper;
    static __device__ constexpr uint32_t place_of(int row, int token) { return (uint32_t)token << 24 | row; }
    __device__ int row() const { return place & 0xffffff; }
    __device__ int token() const { return place >> 24; }
};
struct notes {
    int sums[NOTED][NOTE];
    uint32_t from[NOTED]; // the lane, and its first eight tokens
};

template <int N, int WARPS> struct watch {
    float best[N], spread[N], slack[N], step[N]; // of the tokens
    int mask[N];                                 // where in the lists; -1: all may come
    const int32_t *lists;
    bool has_masks; // some token has one
    int n_listed;
    __align__(16) int reach[WARPS][N < 16 ? 16 : N]; // with it a sum of the warp's that may win is not below 0; by
                                                     // place_of_reach
    __align__(16) notes noted[WARPS];
    listed list[LISTED];
};

/* The lane's two rows of a tile, 8 apart. step: NaN of a row that is not there. */
struct lane_rows {
    float step[2], size[2];
    __device__ lane_rows(const product_args &a, const share &s, int tile) {
        int mine = tile + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row r = mine + 8 * i < s.end ? a.rows[mine + 8 * i] : row{NAN, 0};
            step[i] = r.step, size[i] = r.size;
        }
    }
};

__device__ inline void push(const product_args &a, int token, int row, float upper) {
    int at = atomicAdd(a.n_found + token, 1);
    if (at < a.most_found)
        a.found[(int64_t)token * a.most_found + at] = candidate{row, upper};
}

/* Whether the token may be that row. */
template <class W> __device__ __forceinline__ bool may_be(const W &w, int token, int row) {
    int mask = w.mask[token];
    return mask < 0 || (uint32_t)w.lists[mask + row / 32] >> row % 32 & 1;
}

/* The first n notes of a warp, of that tile, which is its first row: all lanes, a sum each. What may win goes on the
 * list, and may raise what is best. */
template <int N, class W>
__device__ __forceinline__ void look_closer(const product_args &a, const share &s, W &w, int tile, int n) {
    int i = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncwarp(); // the notes are there
#pragma unroll 1
    for (int note = 0; note < n; note++) {
        uint32_t from = w.noted[warp].from[note];
        int at = tile + warp * 16 + from % 32 / 4 + i / 2 % 2 * 8;
        int token = (from / 32 + i / 4) * 8 + from % 4 * 2 + i % 2;
        if (i >= N / 2 || at >= s.end)
            continue;
        row r = a.rows[at];
        bool may = may_be(w, token, at);
        float sum = (float)w.noted[warp].sums[note][i], off = r.size * w.slack[token];
        float upper = fmaf(r.step, sum + w.spread[token], off), lower = fmaf(r.step, sum - w.spread[token], -off);
        if (!may || !(upper >= w.best[token]))
            continue;
        if (lower > w.best[token])
            raise(&w.best[token], before_cap(lower, w.step[token], a.cap));
        int place = atomicAdd(&w.n_listed, 1);
        if (place < LISTED)
            w.list[place] = listed{listed::place_of(at, token), upper};
        else
            push(a, s.first_token + token, at, upper);
    }
    __syncwarp(); // all have read them
}

/* What tokens may be of the warp's 16 rows, that one the first: a word of a mask each, until there are thresholds, in
 * their place. ask_words begins to copy them, each lane those of its own; they are there for all behind await_words. */
template <int N, class W> __device__ __forceinline__ void ask_words(const product_args &a, W &w, int first_row) {
    int *words = w.reach[threadIdx.x / 32];
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < N; t += 32) {
        int mask = w.mask[t], *to = words + place_of_reach(t);
        if (mask >= 0 && first_row < a.n_rows)
            copy_word_later(shared_address(to), w.lists + mask + first_row / 32);
        else
            *to = -1;
    }
    close_batch();
}
__device__ __forceinline__ void await_words() {
    wait_batches<0>();
    __syncwarp(); // everybody's are there
}
/* Bit i: the token may be row i of the warp's. */
template <class W> __device__ __forceinline__ uint32_t word_of(const W &w, int token) {
    int warp = threadIdx.x / 32;
    return (uint32_t)w.reach[warp][place_of_reach(token)] >> warp % 2 * 16 & 0xffff;
}

/* Lanes that differ in bits of STEP and above join the largest they have of C tokens; each keeps fewer tokens, from
 * `first` on. */
template <int C, int STEP, int MOST> __device__ __forceinline__ void join_lanes(float (&most)[MOST], int &first) {
    constexpr int HALF = C > 1 ? C / 2 : 1;
    bool upper = threadIdx.x & STEP;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        float v = C > 1 && !upper ? most[k + C / 2] : most[k];
        if (C > 1 && upper)
            most[k] = most[k + C / 2];
        most[k] = fmaxf(most[k], __shfl_xor_sync(0xffffffffu, v, STEP));
    }
    if (C > 1 && upper)
        first += C / 2;
    if constexpr (STEP < 16)
        join_lanes<HALF, STEP * 2>(most, first);
}

/* The best lower bounds of the warp's 16 rows of the first tile, by a loop in whose turns the sums move on: unrolled it
 * is waited for. MASKED: words are there. */
template <int N, bool MASKED, class W>
__device__ __forceinline__ void begin_bests(W &w, const lane_rows &r, int (&sums)[N / 2]) {
    constexpr int AT_ONCE = N / 4 < 8 ? N / 4 : 8, STEP = AT_ONCE * 2; // tokens of a lane; sums
#pragma unroll 1
    for (int part = 0; part < N / 4; part += AT_ONCE) {
        float most[AT_ONCE];
        int first = part;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int token = (part + i) / 2 * 8 + i % 2 + threadIdx.x % 4 * 2;
            float low = fmaf(r.step[0], (float)sums[i / 2 * 4 + i % 2] - w.spread[token], -r.size[0] * w.slack[token]);
            float high =
                fmaf(r.step[1], (float)sums[i / 2 * 4 + 2 + i % 2] - w.spread[token], -r.size[1] * w.slack[token]);
            if (MASKED) {
                uint32_t word = word_of(w, token) >> threadIdx.x % 32 / 4;
                low = word & 1 ? low : NAN, high = word & 1 << 8 ? high : NAN;
            }
            most[i] = fmaxf(-INFINITY, fmaxf(low, high)); // not NaN
        }
        join_lanes<AT_ONCE, 4>(most, first);
        raise(&w.best[first / 2 * 8 + first % 2 + threadIdx.x % 4 * 2], most[0]);
        int passed[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            passed[i] = sums[i];
#pragma unroll
        for (int i = 0; i < N / 2 - STEP; i++)
            sums[i] = sums[i + STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            sums[N / 2 - STEP + i] = passed[i];
    }
}

} // namespace screen
