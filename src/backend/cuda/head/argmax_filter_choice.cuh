/* argmax_filter_choice.cuh - of argmax_filter.cu: which token of a list it is.
 *
 * Some blocks a token, each with every so manieth of its list: of those that reach the final best bound two warps make
 * the logits, sixteen rows of W each at a time, of which pieces come by bulk copies that the two others ask for. Most
 * tokens have less than sixteen, and what they wait for is some latencies of memory and a chain of in / 16 products.
 * The tensor core adds 16 terms to a sum at once, and here the same terms in the same order as in lm_head.cu, so logits
 * are those of lm_head.cu, bit for bit (tests/cuda/test_argmax_filter.cu compares them).
 *
 * The last block of a token writes it, and the last of all tells whether all tokens are there. */
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

/* What several blocks find of a token meets as the largest of such: by logit, then the lowest row. 0: none. */
__device__ inline unsigned long long key_of(float logit, int id) {
    return (unsigned long long)sample_key(logit) << 32 | (0xffffffffu - (uint32_t)id);
}

/* What a token's block knows to begin with, all asked for at once. */
struct token_list {
    const candidate *at;
    int n;
    float best;
    candidate mine; // the thread's first
    __device__ token_list(const scratch &s, int r)
        : at(s.found + (int64_t)r * MOST_FOUND), n(s.n_found[r]), best(s.bests[r]), mine(at[threadIdx.x]) {}
};

struct chosen {
    int n_here, n_all;       // rows that reach the final best: on `ids`, of the token
    int32_t ids[MOST_EXACT]; // those of every n_parts-th place of the list
    unsigned long long keys[CHOICE_WARPS];
    bool bad;
};

/* Finds them. */
__device__ inline void gather(const token_list &list, chosen &c) {
    int part = blockIdx.x, n_parts = gridDim.x, n_all = 0;
    for (int i = threadIdx.x; i < min(list.n, (int)MOST_FOUND); i += CHOICE_THREADS) {
        candidate it = i == threadIdx.x ? list.mine : list.at[i];
        bool reaches = it.upper >= list.best;
        n_all += reaches;
        if (reaches && i % n_parts == part) {
            int at = atomicAdd(&c.n_here, 1);
            if (at < MOST_EXACT)
                c.ids[at] = it.row;
        }
    }
    n_all = __reduce_add_sync(0xffffffffu, n_all);
    if (threadIdx.x % 32 == 0 && n_all > 0)
        atomicAdd(&c.n_all, n_all);
    __syncthreads(); // the list is there, and all are counted
}

/* The largest of the block's logits. */
template <bool BF16>
__device__ unsigned long long largest(const ending &e, const char *x, chosen &c, uint32_t ring,
                                      ring_barriers &barriers) {
    int warp = threadIdx.x / 32;
    unsigned long long key = 0;
    bool bad = false;
    exact_logits<BF16>(e, x, c.ids, c.n_here, ring, shared_address(barriers.full), shared_address(barriers.empty))
        .each([&](float logit, int id) {
            bad |= !(fabsf(logit) < INFINITY);
            key = max(key, key_of(logit + 0.0f, id)); // -0 is 0
        });
    for (int step = 16; step > 0; step /= 2)
        key = max(key, __shfl_xor_sync(0xffffffffu, key, step));
    if (threadIdx.x % 32 == 0)
        c.keys[warp] = key;
    if (bad)
        c.bad = true;
    __syncthreads(); // all warps' are there
    for (int w = 0; w < CHOICE_WARPS; w++)
        key = max(key, c.keys[w]);
    return key;
}

/* Counted in the low half: who has ended; in the high half: with a reason to leave the step. */
enum { LEFT = 1 << 16 };

/* A token's last: whether all have been told. */
__device__ inline void end_token(const ending &e, bool bad) {
    int before = atomicAdd(e.s.n_ended, bad ? 1 + LEFT : 1);
    if (before % LEFT != (int)gridDim.y - 1)
        return;
    bool left = bad || before >= LEFT;
    dfilter_state *state = e.state;
    uint32_t recent = state->recent << 1 | left;
    bool pauses = __popc(recent) >= TOO_OFTEN;
    state->recent = pauses ? 0 : recent;
    if (pauses)
        state->paused = PAUSE;
    if (left && e.counts)
        atomicAdd(&e.counts->left, 1ull);
    if (left)
        state->n_left++;
    else
        state->n_done++;
    state->is_done = !left;
}

/* What a block has found; by one thread. The last of the token's blocks tells the token. */
__device__ inline void end_part(const ending &e, int r, bool there, unsigned long long key, bool bad) {
    if (gridDim.x > 1) {
        if (key)
            atomicMax(e.s.keys + r, key);
        __threadfence(); // before the count
        int before = atomicAdd(e.s.n_parts + r, bad ? 1 + LEFT : 1);
        if (before % LEFT != (int)gridDim.x - 1)
            return;
        bad |= before >= LEFT;
        key = atomicMax(e.s.keys + r, 0ull);
    }
    bad |= there && !key;
    if (there && !bad) {
        int token = (int)(0xffffffffu - (uint32_t)key);
        e.plan.places->sampled[r] = dsampled{token, token, 0, 0, 0, 0};
        e.plan.places->row_token[r] = token;
    }
    end_token(e, bad);
}

template <bool BF16> __global__ void __launch_bounds__(CHOICE_THREADS) choose(ending e) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ ring_barriers barriers;
    __shared__ chosen c;
    let_next_start();
    if (threadIdx.x == 0) {
        c.n_here = c.n_all = 0;
        c.bad = false;
        barriers.init();
    }
    __syncthreads(); // counts and barriers
    wait_for_previous();
    int r = blockIdx.y, is_wanted = *e.s.is_wanted, n_rows = step_rows(e.plan);
    token_list list(e.s, r);
    if (!is_wanted)
        return;
    bool there = r < n_rows, bad = false;
    unsigned long long key = 0;
    if (there) {
        gather(list, c);
        bad = c.n_all > e.most_exact || list.n > MOST_FOUND;
    }
    if (there && !bad)
        key =
            largest<BF16>(e, static_cast<const char *>(e.x.at) + r * e.x.stride * 2, c, shared_address(ring), barriers);
    if (threadIdx.x == 0)
        end_part(e, r, there, key, bad || c.bad);
}

} // namespace screen
