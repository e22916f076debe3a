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

#include "backend/cuda/head/argmax_filter_exact.cuh"

namespace screen {

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
