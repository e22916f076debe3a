/* argmax_filter_notes.cuh - of argmax_filter_product.cuh: which sums may win, written down and looked at closer. */
#pragma once

#include "backend/cuda/head/argmax_filter_bests.cuh"

namespace screen {

__device__ __forceinline__ int4 reach_of_16(uint32_t at) {
    int4 v;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* A warp's thresholds of its coming sums: of a token the least of its 16 rows, and how much larger that of the lane's
 * two rows is at least. Of a row that is not there no sum passes; nor, where masks are, of a token that may be none of
 * the rows, and of a row that no token may be. What float32 rounds here is less than a tenth of the bound (LAMBDA). */
template <int N, class W>
__device__ __forceinline__ void set_reach(const product_args &a, W &w, const lane_rows &r, int (&beyond)[2]) {
    constexpr uint32_t INFINITE = 0x7f800000; // positive floats are ordered as their bits
    uint32_t least_by = INFINITE, most_by = 0, most_ratio = 0, least_best = INFINITE, least_slack = INFINITE;
    float by[2], ratio[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        by[i] = __fdividef(1, r.step[i]), ratio[i] = r.size[i] * by[i];
        if (r.step[i] > 0) {
            least_by = min(least_by, __float_as_uint(by[i]));
            most_by = max(most_by, __float_as_uint(by[i]));
            most_ratio = max(most_ratio, __float_as_uint(ratio[i]));
        }
    }
    least_by = __reduce_min_sync(0xffffffffu, least_by);
    most_by = __reduce_max_sync(0xffffffffu, most_by);
    most_ratio = __reduce_max_sync(0xffffffffu, most_ratio);
    float low = __uint_as_float(least_by), high = __uint_as_float(most_by), off = __uint_as_float(most_ratio);
    int *reach = w.reach[threadIdx.x / 32];
    bool masked = w.has_masks;
    uint32_t open = masked ? 0 : ~0u;
    if (masked)
        await_words();
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < N; t += 32) {
        float best = w.best[t];
        if (masked) {
            uint32_t word = best < INFINITY ? word_of(w, t) : 0;
            best = word ? best : INFINITY;
            open |= word;
        }
        float needed = fmaf(best, best >= 0 ? low : high, fmaf(-off, w.slack[t], -w.spread[t]));
        reach[place_of_reach(t)] = -__float2int_rd(fminf(fmaxf(needed, -a.most_needed), a.most_needed));
        if (best < INFINITY) {
            least_best = min(least_best, __float_as_uint(fmaxf(best, 0)));
            least_slack = min(least_slack, __float_as_uint(w.slack[t]));
        }
    }
    if (masked)
        open = __reduce_or_sync(0xffffffffu, open);
    float least = __uint_as_float(__reduce_min_sync(0xffffffffu, least_best)),
          slack = __uint_as_float(__reduce_min_sync(0xffffffffu, least_slack));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float more = fminf(fmaf(least, by[i] - low, slack * (off - ratio[i])),
                           a.most_beyond); // the latter, if no token is there
        bool is = r.step[i] > 0 && open >> (threadIdx.x % 32 / 4 + 8 * i) & 1;
        beyond[i] = is ? __float2int_rd(fmaxf(more, 0)) : INT32_MAX;
    }
    __syncwarp(); // all of reach is there
}

/* What of a tile may win is noted, by lane and 64 tokens; n: notes so far. There is room for what a tile has mostly;
 * else they are looked at here. */
template <int N, class W>
__device__ __forceinline__ void note_candidates(const product_args &a, const share &s, W &w, int tile,
                                                const int (&beyond)[2], const int (&sums)[N / 2], int &n) {
    constexpr int EIGHTS = N / 8, AT_ONCE = EIGHTS < 8 ? EIGHTS : 8, SOME = AT_ONCE < 2 ? 1 : 2;
    static_assert(AT_ONCE * 4 <= NOTE, "");
    int lane = threadIdx.x % 32;
    notes &to = w.noted[threadIdx.x / 32];
    uint32_t reach = kept(shared_address(w.reach[threadIdx.x / 32] + lane % 4 * 4));
#pragma unroll
    for (int part = 0; part < EIGHTS; part += AT_ONCE) {
        int most[4] = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN};
#pragma unroll
        for (int j = part; j < part + AT_ONCE; j += SOME) {
            int4 add = reach_of_16(reach + j * 32);
            const int of[4] = {add.x, add.y, add.z, add.w};
#pragma unroll
            for (int i = 0; i < 4 * SOME; i++)
                most[i % 4] = __viaddmax_s32(sums[4 * j + i], of[i / 4 * 2 + i % 2], most[i % 4]);
        }
        bool mine = max(most[0], most[1]) >= beyond[0] || max(most[2], most[3]) >= beyond[1];
        uint32_t lanes = __ballot_sync(0xffffffffu, mine);
#pragma unroll 1
        while (lanes) {
            if (n == NOTED) {
                look_closer<N>(a, s, w, tile, n);
                n = 0;
            }
            int place = n + __popc(lanes & ((1u << lane) - 1));
            if (mine && place < NOTED) {
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    *reinterpret_cast<int4 *>(to.sums[place] + 4 * j) =
                        make_int4(sums[4 * (part + j)], sums[4 * (part + j) + 1], sums[4 * (part + j) + 2],
                                  sums[4 * (part + j) + 3]);
                to.from[place] = part * 32 + lane;
                mine = false;
            }
            n = min(n + __popc(lanes), (int)NOTED);
            lanes = __ballot_sync(0xffffffffu, mine);
        }
    }
    __syncwarp(); // all have read reach
}

/* How many of the threads come with `x`; threads_sync too. */
__device__ __forceinline__ int threads_count(int barrier, int n_threads, bool x) {
    int n;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nbar.red.popc.u32 %0, %1, %2, p;\n}"
                 : "=r"(n)
                 : "r"(barrier), "r"(n_threads), "r"((int)x)
                 : "memory");
    return n;
}

/* What others know of a token comes to this block, and the other way round. `coming`: what was read some time ago. */
template <int N, class W> __device__ void exchange(const product_args &a, const share &s, W &w, float &coming) {
    int t = threadIdx.x;
    if (t >= N || s.first_token + t >= a.n_tokens)
        return;
    float *there = a.bests + s.first_token + t;
    if (coming > w.best[t])
        raise(&w.best[t], coming);
    else if (w.best[t] > coming)
        raise(there, w.best[t]);
    coming = *reinterpret_cast<volatile float *>(there);
}

/* The block's first tile has raised its bests: those of other blocks join before any sum is compared with them. A block
 * that is ahead of most would note too much: it waits until nearly all tokens, if they are many, have a better one
 * elsewhere, but not for long. */
template <int N, class W>
__device__ void meet_others(const product_args &a, const share &s, W &w, int n_consumers, float &coming) {
    int t = threadIdx.x;
    threads_sync(1, n_consumers); // all warps' are there
    if (t < N && a.cap > 0)
        w.best[t] = before_cap(w.best[t], w.step[t], a.cap);
    float own = t < N ? w.best[t] : INFINITY;
    bool waits = own > -INFINITY && own < INFINITY; // else it may be none of these rows, or it is not there
    int n_waiting = threads_count(1, n_consumers, waits), n_tries = n_waiting >= 64 && s.n_shares > 16 ? MOST_TRIES : 2;
    for (int i = 0, n_better = 0; i < n_tries && n_better < n_waiting - n_waiting / 32; i++) {
        exchange<N>(a, s, w, coming);
        n_better = threads_count(1, n_consumers, waits && coming > own);
    }
    exchange<N>(a, s, w, coming);
    threads_sync(1, n_consumers); // what others have is there
}

} // namespace screen
