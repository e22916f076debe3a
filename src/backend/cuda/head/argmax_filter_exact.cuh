/* argmax_filter_exact.cuh - of argmax_filter_choice.cuh: what it is given, and logits of listed tokens as lm_head.cu
 * has them. */
#pragma once

#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/argmax_filter_columns.cuh"
#include "backend/cuda/head/argmax_filter_product.cuh"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"
#include "core/sample_weight.h"

namespace screen {

enum {
    MOST_FOUND = 1024, // of a token, on its list
    MOST_EXACT = 512,  // of those, that may win
    CHOICE_THREADS = 128,
    CHOICE_WARPS = CHOICE_THREADS / 32,
    EXACT_ROWS = 16,
    EXACT_CHUNK = 512, // of a row, in a stage
    EXACT_STAGES = 3,
    MULTIPLIERS = 2, // warps with sixteen rows each; the others copy
    COPIERS = CHOICE_WARPS - MULTIPLIERS,
    TOO_OFTEN = 5, // of 32
};

/* What a step leaves between its nodes. */
struct scratch {
    int8_t *p; // [tokens][pitch]
    int64_t pitch;
    token *tokens;
    float *bests;
    int32_t *n_found;
    candidate *found;         // [tokens][MOST_FOUND]
    int32_t *is_wanted;       // whether the step is screened
    unsigned long long *keys; // [tokens]: the largest logit so far, and where
    int32_t *n_parts;         // [tokens]: parts of choice that are through
    int32_t *n_ended;         // tokens that are through
};

struct ending {
    device_plan plan;
    scratch s;
    dmat x;
    const char *w;
    int in, most_exact;
    float cap;
    dfilter_state *state;
    dcounts *counts;
};

/* Logits of a token for some rows of W, a block's work: by way of shared memory, bulk copies of some columns ahead, by
 * warps that do nothing else, and products of 16 terms at a time in order, as lm_head.cu has them, each of which waits
 * for the one before. Within sixteen the order is free. */
template <bool BF16> struct exact_logits {
    /* A stage has the columns of 16 rows, or half as many of 32, and behind them those of x. Eight rows lie in
     * different banks. */
    static constexpr int STAGE = (EXACT_ROWS + 1) * (EXACT_CHUNK * 2 + 16),
                         RING = EXACT_STAGES * STAGE + 16; // of x 16 bytes more are read
    static constexpr int AT_ONCE = 64;                     // columns
    static_assert((2 * EXACT_ROWS + 1) * (EXACT_CHUNK + 16) <= STAGE && MULTIPLIERS == 2, "");
    struct operands {
        uint32_t w[AT_ONCE / 16][4], x[AT_ONCE / 32][4];
    };
    const ending &e;
    const char *x;
    const int32_t *ids;
    int n_ids, warp, lane;
    uint32_t ring, full, empty; // in shared memory

    __device__ exact_logits(const ending &e, const char *x, const int32_t *ids, int n_ids, uint32_t ring, uint32_t full,
                            uint32_t empty)
        : e(e), x(x), ids(ids), n_ids(n_ids), warp(threadIdx.x / 32), lane(threadIdx.x % 32), ring(ring), full(full),
          empty(empty) {}

    __device__ static int columns(int n_rows) { return n_rows > EXACT_ROWS ? EXACT_CHUNK / 2 : EXACT_CHUNK; }
    __device__ static int pitch(int n_rows) { return columns(n_rows) * 2 + 16; }

    __device__ void copy() const {
        ring_place at = {0, EXACT_STAGES, 0};
        int mine = lane * COPIERS + warp - MULTIPLIERS;
        for (int first = 0; first < n_ids; first += MULTIPLIERS * EXACT_ROWS) {
            int n = min(n_ids - first, MULTIPLIERS * EXACT_ROWS), step = columns(n),
                x_row = n > EXACT_ROWS ? 2 * EXACT_ROWS : EXACT_ROWS;
            if (warp - MULTIPLIERS >= n) // of the last chunk alone: nobody waits for who copies nothing, so the ring
                                         // may pass it, and it would wait for ever
                break;
            const char *from = mine < n ? e.w + (int64_t)ids[first + mine] * e.in * 2 : x;
            for (int k = 0; k < e.in; k += step, at.step()) {
                int n_bytes = min(e.in - k, step) * 2;
                uint32_t barrier = full + at.slot * 8;
                barrier_wait(empty + at.slot * 8, at.parity ^ 1);
                if (mine == 0)
                    barrier_expect(barrier, n_bytes * (n + 1));
                if (mine < n || mine == x_row)
                    bulk_copy(ring + at.slot * STAGE + mine * pitch(n), from + k * 2, n_bytes, barrier);
                __syncwarp();
            }
        }
    }
    __device__ void load(operands &o, uint32_t w, uint32_t of_x) const {
#pragma unroll
        for (int i = 0; i < AT_ONCE / 32; i++) {
            load_matrices(o.x[i], of_x + i * 64);
            load_matrices(o.w[2 * i], w + i * 64);
            load_matrices(o.w[2 * i + 1], w + i * 64 + 32);
        }
    }
    /* n columns from there on. */
    __device__ void multiply(uint32_t w, uint32_t of_x, int n, float (&c)[4]) const {
        operands o[2];
        int n_full = n / AT_ONCE;
        load(o[0], w, of_x);
#pragma unroll
        for (int i = 0; i < EXACT_CHUNK / AT_ONCE; i++)
            if (i < n_full) {
                if (i + 1 < EXACT_CHUNK / AT_ONCE)
                    load(o[(i + 1) % 2], w + (i + 1) * AT_ONCE * 2, of_x + (i + 1) * AT_ONCE * 2);
#pragma unroll
                for (int k = 0; k < AT_ONCE / 16; k++)
                    multiply_add<BF16>(c, o[i % 2].w[k], o[i % 2].x[k / 2][k % 2 * 2],
                                       o[i % 2].x[k / 2][k % 2 * 2 + 1]);
            }
        for (int k = n_full * AT_ONCE; k < n; k += 16) {
            uint32_t some[4], of[4];
            load_matrices(some, w + k * 2);
            load_matrices(of, of_x + k * 2);
            if (n - k < 16) // eight: behind the end there is zero
                some[2] = some[3] = of[1] = 0;
            multiply_add<BF16>(c, some, of[0], of[1]);
        }
    }
    template <class F> __device__ void take_logits(int first, const float (&c)[4], F take) const {
        int i = first + warp * EXACT_ROWS + lane / 4;
        if (lane % 4 != 0)
            return;
        if (i < n_ids)
            take(e.cap > 0 ? e.cap * tanhf(c[0] / e.cap) : c[0], ids[i]);
        if (i + 8 < n_ids)
            take(e.cap > 0 ? e.cap * tanhf(c[2] / e.cap) : c[2], ids[i + 8]);
    }
    /* All warps of the block; those that multiply take part in every stage. take(logit, id): of each row, by one lane.
     */
    template <class F> __device__ void each(F take) const {
        ring_place at = {0, EXACT_STAGES, 0};
        if (warp >= MULTIPLIERS)
            copy();
        for (int first = 0; warp < MULTIPLIERS && first < n_ids; first += MULTIPLIERS * EXACT_ROWS) {
            int n = min(n_ids - first, MULTIPLIERS * EXACT_ROWS), step = columns(n);
            uint32_t w = (warp * EXACT_ROWS + lane % 16) * pitch(n) + lane / 16 * 16,
                     of_x = (n > EXACT_ROWS ? 2 * EXACT_ROWS : EXACT_ROWS) * pitch(n) + lane / 8 * 16;
            float c[4] = {};
            for (int k = 0; k < e.in; k += step, at.step()) {
                uint32_t stage = ring + at.slot * STAGE;
                barrier_wait(full + at.slot * 8, at.parity);
                if (warp * EXACT_ROWS < n)
                    multiply(stage + w, stage + of_x, min(e.in - k, step), c);
                __syncwarp(); // all have read the stage
                barrier_arrive_warp(empty + at.slot * 8, lane);
            }
            take_logits(first, c, take);
        }
        __syncwarp();
    }
};

/* Of the ring. */
struct ring_barriers {
    uint64_t full[EXACT_STAGES], empty[EXACT_STAGES];
    __device__ void init() {
        for (int i = 0; i < EXACT_STAGES; i++) {
            barrier_init(shared_address(&full[i]), 1);
            barrier_init(shared_address(&empty[i]), MULTIPLIERS * WARP_ARRIVALS);
        }
        barrier_init_done();
    }
};

} // namespace screen
