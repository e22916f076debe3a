/* screen_choice.cuh - of screen.cu: which token of a list it is.
 *
 * Some blocks a token, each with every so manieth of its list: of those that reach the final best bound a warp makes the logits, sixteen rows of W at a
 * time, of which pieces come by bulk copies ahead. Most tokens have less than sixteen, and what they wait for is some latencies of memory and a chain of
 * in / 16 products. The tensor core adds 16 terms to a sum at once, and here the same terms in the same order as in head.cu,
 * so logits are those of head.cu, bit for bit (tests/cuda/test_screen.cu compares them).
 *
 * The last block of a token writes it, and the last of all tells whether all tokens are there. */
#pragma once

#include "backend/cuda/screen_columns.cuh"
#include "backend/cuda/screen_product.cuh"
#include "core/sample_weight.h"

namespace screen {

enum {
    MOST_FOUND = 1024, // of a token, on its list
    MOST_EXACT = 512,  // of those, that may win
    CHOICE_THREADS = 128,
    CHOICE_WARPS = CHOICE_THREADS / 32,
    EXACT_ROWS = 16,
    LONG_CHUNK = 512,  // of a row, in a stage
    SHORT_CHUNK = 224, // likewise, if two warps have a ring each
    RINGS = 2,
    EXACT_STAGES = 3,
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
    dscreen_state *state;
};

/* Logits of a token for every `step`-th sixteen of some rows of W, one warp's work: by way of shared memory, bulk copies of CHUNK columns ahead, and
 * products of 16 terms at a time in order, as head.cu has them. Within sixteen the order is free, so a lane's terms are four behind one another. */
template <bool BF16, int CHUNK> struct exact_logits {
    static constexpr int PITCH = CHUNK * 2 + 32, STAGE = (EXACT_ROWS + 1) * PITCH; // four rows lie in different banks; the last row is x
    static constexpr int RING = EXACT_STAGES * STAGE;
    const ending &e;
    const char *x;
    const int32_t *ids;
    int n_ids, first, step, n_chunks, n_turns, lane;
    uint32_t ring, full; // in shared memory

    __device__ exact_logits(const ending &e, const char *x, const int32_t *ids, int n_ids, int first, int step, uint32_t ring,
                            uint32_t full)
        : e(e), x(x), ids(ids), n_ids(n_ids), first(first), step(step), n_chunks((e.in + CHUNK - 1) / CHUNK), lane(threadIdx.x % 32),
          ring(ring), full(full) {
        int sixteens = (n_ids + EXACT_ROWS - 1) / EXACT_ROWS;
        n_turns = (sixteens - first + step - 1) / step * n_chunks; // none if there are no more than `first`
    }

    __device__ int row_of(int turn) const { return (first + turn / n_chunks * step) * EXACT_ROWS; }
    __device__ void put(int turn) const {
        int row = row_of(turn), k = turn % n_chunks * CHUNK, n = min(n_ids - row, (int)EXACT_ROWS), stage = turn % EXACT_STAGES;
        int n_bytes = min(e.in - k, CHUNK) * 2;
        uint32_t barrier = full + stage * 8, to = ring + stage * STAGE + lane * PITCH;
        if (lane == 0)
            barrier_expect(barrier, n_bytes * (n + 1));
        __syncwarp();
        if (lane < n)
            bulk_copy(to, e.w + ((int64_t)ids[row + lane] * e.in + k) * 2, n_bytes, barrier);
        else if (lane == EXACT_ROWS)
            bulk_copy(to, x + k * 2, n_bytes, barrier);
    }
    __device__ uint2 four(uint32_t at, int k, int n) const { // behind the end there is zero
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at + k * 2) : "memory");
        return k < n ? v : uint2{0, 0};
    }
    __device__ void multiply(int turn, float (&c)[4]) const {
        uint32_t stage = ring + turn % EXACT_STAGES * STAGE, low = stage + lane / 4 * PITCH, high = low + 8 * PITCH,
                 of_x = stage + EXACT_ROWS * PITCH;
        int n = min(e.in - turn % n_chunks * CHUNK, CHUNK);
#pragma unroll 8
        for (int k = lane % 4 * 4; k < n + lane % 4 * 4; k += 16) {
            uint2 a0 = four(low, k, n), a1 = four(high, k, n), b = four(of_x, k, n);
            const uint32_t a[4] = {a0.x, a1.x, a0.y, a1.y};
            multiply_add<BF16>(c, a, b.x, b.y);
        }
    }
    /* take(logit, id): of each row, by one lane. */
    template <class F> __device__ void each(F take) const {
        for (int turn = 0; turn < min(n_turns, (int)EXACT_STAGES); turn++)
            put(turn);
        float c[4];
        for (int turn = 0; turn < n_turns; turn++) {
            if (turn % n_chunks == 0)
                c[0] = c[1] = c[2] = c[3] = 0;
            barrier_wait(full + turn % EXACT_STAGES * 8, turn / EXACT_STAGES % 2);
            multiply(turn, c);
            __syncwarp(); // all have read the stage
            if (turn + EXACT_STAGES < n_turns)
                put(turn + EXACT_STAGES);
            int i = row_of(turn) + lane / 4;
            if (turn % n_chunks == n_chunks - 1 && lane % 4 == 0) {
                if (i < n_ids)
                    take(e.cap > 0 ? e.cap * tanhf(c[0] / e.cap) : c[0], ids[i]);
                if (i + 8 < n_ids)
                    take(e.cap > 0 ? e.cap * tanhf(c[2] / e.cap) : c[2], ids[i + 8]);
            }
        }
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

/* The largest of the block's logits: by one warp, or if they are many by two, whose stages are shorter. */
template <bool BF16> __device__ unsigned long long largest(const ending &e, const char *x, chosen &c, uint32_t ring, uint32_t full) {
    int warp = threadIdx.x / 32;
    unsigned long long key = 0;
    bool bad = false;
    auto take = [&](float logit, int id) {
        bad |= !(fabsf(logit) < INFINITY);
        key = max(key, key_of(logit + 0.0f, id)); // -0 is 0
    };
    if (c.n_here <= EXACT_ROWS && warp == 0)
        exact_logits<BF16, LONG_CHUNK>(e, x, c.ids, c.n_here, 0, 1, ring, full).each(take);
    else if (c.n_here > EXACT_ROWS && warp < RINGS)
        exact_logits<BF16, SHORT_CHUNK>(e, x, c.ids, c.n_here, warp, RINGS, ring + warp * exact_logits<BF16, SHORT_CHUNK>::RING,
                                        full + warp * EXACT_STAGES * 8)
            .each(take);
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
    dscreen_state *state = e.state;
    uint32_t recent = state->recent << 1 | left;
    bool pauses = __popc(recent) >= TOO_OFTEN;
    state->recent = pauses ? 0 : recent;
    if (pauses)
        state->paused = PAUSE;
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
    __shared__ uint64_t full[RINGS * EXACT_STAGES];
    __shared__ chosen c;
    let_next_start();
    if (threadIdx.x == 0) {
        c.n_here = c.n_all = 0;
        c.bad = false;
        for (int i = 0; i < RINGS * EXACT_STAGES; i++)
            barrier_init(shared_address(&full[i]), 1);
        barrier_init_done();
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
        key = largest<BF16>(e, static_cast<const char *>(e.x.at) + r * e.x.stride * 2, c, shared_address(ring), shared_address(full));
    if (threadIdx.x == 0)
        end_part(e, r, there, key, bad || c.bad);
}

constexpr int choice_shared_bytes() {
    int by_one = exact_logits<false, LONG_CHUNK>::RING, by_all = RINGS * exact_logits<false, SHORT_CHUNK>::RING;
    return by_one > by_all ? by_one : by_all;
}

} // namespace screen
