/* sample_scores.cuh - of sample.cu: log-probabilities of the raw row, before it is changed. */
#pragma once

#include "backend/cuda/sample/sample_slice.cuh"
#include "core/sample_weight.h"

static __device__ unsigned long long block_most(unsigned long long x, unsigned long long *warps) {
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    __syncthreads(); // nobody reads the last ones any more
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads(); // every warp's is there
    x = threadIdx.x % 32 < WARPS ? warps[threadIdx.x % 32] : 0;
    for (int step = 16; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

static __device__ void write_top(const row_view &v, int k, unsigned long long place, float log_sum) {
    v.plan.places->top_token[v.r * MOST_TOP_LOGPROBS + k] = id_of(place);
    v.plan.places->top_logprob[v.r * MOST_TOP_LOGPROBS + k] = logit_of(place) - log_sum;
}

/* One after the other, for rows with more than LIST tokens near the top: what comes after the one before in every
 * slice, then the best of those. */
static __device__ void take_top_in_turn(const row_view &v, int n, float log_sum) {
    unsigned long long last = ~0ull;
    for (int k = 0; k < n; k++) {
        unsigned long long mine = 0;
        for (int i = threadIdx.x; i < v.n; i += THREADS) {
            unsigned long long p = place_of(v.x[i], v.first + i);
            mine = p < last && p > mine ? p : mine;
        }
        mine = block_most(mine, v.s.warp_sums);
        if (threadIdx.x < v.n_ranks)
            of_rank(v, threadIdx.x).next[k & 1][v.rank] = mine;
        row_sync(); // every slice's next is everywhere
        last = v.s.next[k & 1][0];
        for (int rank = 1; rank < v.n_ranks; rank++)
            last = max(last, v.s.next[k & 1][rank]);
        if (v.rank == 0 && threadIdx.x == 0)
            write_top(v, k, last, log_sum);
    }
}

static __device__ void take_top(const row_view &v, const drawing &d, const reached &all, int n, float log_sum) {
    int range = top_of(all);
    if (range < 0 || all.count[range] < n) {
        take_top_in_turn(v, n, log_sum);
        return;
    }
    gather(v, d, pick{lowest_of(d, range), INFINITY, range, -1, (int)all.count[range], 64, 0, 0, 0});
    if (v.rank != 0)
        return;
    rank_list(v, 0, 0);
    int i = threadIdx.x;
    if (i < v.s.n_list && v.s.all.count_before[i] < n)
        write_top(v, (int)v.s.all.count_before[i], v.s.all.list[i].place, log_sum);
    __syncthreads(); // the list has been read
    if (threadIdx.x == 0)
        v.s.n_list = 0;
}

/* Of the raw row: what result says but for the token's own, in the first block. Returns log(sum(exp)). */
static __device__ float score(const row_view &v, float max, int n_vocab, dsampled &result) {
    drawing d = drawing_of(max, 1, SAMPLE_LEAST_EXPONENT, v.s.asked.n_top > 0);
    int target = v.s.asked.target;
    float wanted = target >= 0 ? v.raw[target] : INFINITY;
    int above = v.s.asked.n_top > 0 ? weigh_slice<true>(v, 0, d, wanted) : weigh_slice<false>(v, 0, d, wanted);
    above = (int)__reduce_add_sync(0xffffffffu, (uint32_t)above);
    if (target >= 0 && threadIdx.x % 32 == 0)
        atomicAdd(&of_rank(v, 0).above, above);
    row_sync(); // every block knows what is reached, the first one the rank
    const reached &all = all_reached(v, 0);
    float log_sum =
        (float)((double)max + log((double)all.mass[EDGES - 1] * (1.0 / (double)(1ull << SAMPLE_WEIGHT_BITS))));
    if (target >= 0) {
        result.target_logprob = v.raw[target] - log_sum;
        result.target_rank = v.s.above + 1;
    }
    if (v.s.asked.n_top > 0)
        take_top(v, d, all, min(v.s.asked.n_top, n_vocab), log_sum);
    return log_sum;
}
