/* argmax_filter_product.cuh - of argmax_filter.cu: the product of bytes, and which of its sums stand for rows that may
 * win.
 *
 * The ring and who shares x are those of lm_head.cu (lm_head_ring.cuh); a stage has 128 elements of each row. W comes
 * in units of 64 rows, near the multiprocessor that reads them (argmax_filter_units.cuh). A block does one for each of
 * its warpgroups at a time, a tile. What differs besides is the end of a tile:
 *
 *     A sum is of interest if row.step * (sum + spread) + row.size * slack >= best, best[token] being the best lower
 *     bound known so far, that is if sum >= best / row.step - slack * row.size / row.step - spread. While the tensor
 *     core has the tile, a warp writes down for each token the least of these of its 16 rows, an integer, and by how
 *     much those of a row are larger whatever the token: so a sum costs an addition and a maximum, one instruction.
 *     Where a maximum says that some pass, the lane writes its sums down, and during the next tile's products its warp
 *     looks at them one by one: then their own lower bound may raise `best`, and they go on the block's list. So the
 *     tensor core waits for little at the end of a tile. What is seldom run there is short, as it comes from far away.
 *     (One compare and one way on the list for each register took 3,000 clocks a tile with a hit, as most are.)
 *
 * Where two warpgroups fill the tensor core, the second begins a piece later, so that one multiplies while the other
 * compares.
 *
 * `best` starts with what the blocks' first tiles have, over all rows of them, and is handed on from block to block
 * through memory (`bests`), between tiles, without anybody's waiting for a block in particular. How early it comes
 * depends on timing, and with it how long lists are, but the rows with upper bounds that reach the final `best` are on
 * them always. */
#pragma once

#include "backend/cuda/head/argmax_filter_bound.cuh"
#include "backend/cuda/head/argmax_filter_units.cuh"
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
    bool by_turns; // the second warpgroup begins a piece after the first, if there are two
    float cap;
    float most_needed, most_beyond; // of thresholds: with a sum they stay in 31 bits
    int looks_at;                   // the piece during which thresholds are made
    int most_found;
    uint32_t *claims; // [token tile]
    int n_rows;       // of W
    int n_tokens, n_pieces, octets, n_stages, token_tiles, sharers;
};

// ---- what may win ---------------------------------------------------------------------------------------------------

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
        float sum = (float)w.noted[warp].sums[note][i], off = r.size * w.slack[token];
        float upper = fmaf(r.step, sum + w.spread[token], off), lower = fmaf(r.step, sum - w.spread[token], -off);
        if (!(upper >= w.best[token]))
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
 * is waited for. */
template <int N, class W> __device__ __forceinline__ void begin_bests(W &w, const lane_rows &r, int (&sums)[N / 2]) {
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

/* Where the lane with columns 2q, 2q + 1 finds four of reach: those of two eights of tokens. */
__device__ constexpr int place_of_reach(int token) {
    return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
}
__device__ __forceinline__ int4 reach_of_16(uint32_t at) {
    int4 v;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* A warp's thresholds of its coming sums: of a token the least of its 16 rows, and how much larger that of the lane's
 * two rows is at least. Of a row that is not there no sum passes. What float32 rounds here is less than a tenth of the
 * bound (LAMBDA). */
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
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < N; t += 32) {
        float best = w.best[t], needed = fmaf(best, best >= 0 ? low : high, fmaf(-off, w.slack[t], -w.spread[t]));
        reach[place_of_reach(t)] = -__float2int_rd(fminf(fmaxf(needed, -a.most_needed), a.most_needed));
        if (best < INFINITY) {
            least_best = min(least_best, __float_as_uint(fmaxf(best, 0)));
            least_slack = min(least_slack, __float_as_uint(w.slack[t]));
        }
    }
    float least = __uint_as_float(__reduce_min_sync(0xffffffffu, least_best)),
          slack = __uint_as_float(__reduce_min_sync(0xffffffffu, least_slack));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float more = fminf(fmaf(least, by[i] - low, slack * (off - ratio[i])),
                           a.most_beyond); // the latter, if no token is there
        beyond[i] = r.step[i] > 0 ? __float2int_rd(fmaxf(more, 0)) : INT32_MAX;
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
    int n_waiting = threads_count(1, n_consumers, own < INFINITY),
        n_tries = n_waiting >= 64 && s.n_shares > 16 ? MOST_TRIES : 2;
    for (int i = 0, n_better = 0; i < n_tries && n_better < n_waiting - n_waiting / 32; i++) {
        exchange<N>(a, s, w, coming);
        n_better = threads_count(1, n_consumers, own < INFINITY && coming > own);
    }
    exchange<N>(a, s, w, coming);
    threads_sync(1, n_consumers); // what others have is there
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <int N, class W> __device__ void watch_tokens(const product_args &a, const share &s, W &w, int n_consumers) {
    for (int t = threadIdx.x; t < N; t += n_consumers) {
        bool there = s.first_token + t < a.n_tokens;
        token k = there ? a.tokens[s.first_token + t] : token{1, 0, 0};
        w.best[t] = there && k.step > 0 ? -INFINITY : INFINITY; // of a token without a step nothing is looked at
        w.spread[t] = k.spread, w.slack[t] = k.slack, w.step[t] = k.step;
    }
    if (threadIdx.x == 0)
        w.n_listed = 0;
    threads_sync(1, n_consumers); // all tokens are there
}

/* Of the list what still may win. What the last tile has raised is told too: who chooses makes logits of all that reach
 * the best he knows. */
template <int N, class W>
__device__ void tell_candidates(const product_args &a, const share &s, W &w, int n_consumers, float coming) {
    int t = threadIdx.x;
    threads_sync(1, n_consumers); // all have listed theirs, and raised what is best
    exchange<N>(a, s, w, coming);
    threads_sync(1, n_consumers); // what others have is there
    for (int i = t; i < min(w.n_listed, (int)LISTED); i += n_consumers)
        if (w.list[i].upper >= w.best[w.list[i].token()])
            push(a, s.first_token + w.list[i].token(), w.list[i].row(), w.list[i].upper);
}

/* Numbers of barriers are constants, else all sixteen are the block's. */
__device__ __forceinline__ void warpgroup_sync() {
    int group = threadIdx.x / WARPGROUP;
    if (group == 0)
        threads_sync(3, WARPGROUP);
    else if (group == 1)
        threads_sync(4, WARPGROUP);
    else
        threads_sync(5, WARPGROUP);
}

/* Stages of a tile of which the warpgroup has no rows. */
__device__ __forceinline__ void let_pass(const product_args &a, const shared_places &m, uint32_t empty_there,
                                         ring_place &at) {
    for (int piece = 0; piece < a.n_pieces; piece++) {
        barrier_wait(m.full + 8 * at.slot, at.parity);
        warpgroup_sync(); // all warps have seen it
        if (empty_there)
            barrier_arrive_at_rank(empty_there + 8 * at.slot);
        at.step();
    }
}

/* Registers that the copying warpgroup leaves go to the others' sums (setmaxnreg). */
template <int N, int GROUPS>
__global__ void __launch_bounds__((GROUPS + 1) * WARPGROUP, 1)
    filter_product(const __grid_constant__ unit_maps w_maps, const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ product_args a) {
    constexpr int CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32;
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ __align__(16) watch<N, WARPS> watched;
    __shared__ int claimed;
    __shared__ bool begun;
    int warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0, role = warp - WARPS;
    int n_shares = gridDim.x / a.token_tiles, token_tile = blockIdx.x / n_shares;
    shared_places m = places_of(a, unaligned, full, empty);
    if (threadIdx.x == CONSUMERS) {
        claimed = claim_share(a.w, a.claims + token_tile, n_shares);
        begun =
            *reinterpret_cast<const volatile int32_t *>(a.is_wanted) != 0; // of this step or the one before: a guess
        bulk_map_prefetch(w_maps.of_half);
        bulk_map_prefetch(w_maps.of_half + 1);
        bulk_map_prefetch(&x_map);
        prepare_ring(a, m, GROUPS);
    }
    __syncthreads(); // the barriers are ready, and the share is known
    share s = share_of_units<N, GROUPS>(a, rank, token_tile, claimed, n_shares);
    units_filler<N, GROUPS, product_args> ring(a, m, s);
    bool copies = role >= 0 && role <= GROUPS && threadIdx.x % 32 == 0, copies_tokens = copies && role == GROUPS;
    if (copies && !copies_tokens && begun)
        ring.copy_units(&w_maps, role, 0, ring.n_early);
    if (a.sharers > 1)
        cluster_sync(); // the barriers of both blocks
    let_next_start();
    wait_for_previous();
    if (!*a.is_wanted) { // by any block
        if (copies_tokens && begun)
            ring.leave();
        return;
    }
    if (warp >= WARPS) {
        if (GROUPS == 3)
            registers_fewer<32>();
        else
            registers_fewer<40>();
        if (copies_tokens)
            ring.copy_tokens(&x_map);
        else if (copies)
            ring.copy_units(&w_maps, role, begun ? ring.n_early : 0, ring.n);
        __syncwarp();
    } else {
        if (GROUPS == 3)
            registers_more<160>();
        else
            registers_more<232>();
        watch_tokens<N>(a, s, watched, CONSUMERS);
        ring_place at = {0, a.n_stages, 0};
        uint32_t empty_there = 0; // a product of the tensor core ends for all four warps of a group: the first one
                                  // tells each block that copies
        if (warp % 4 == 0 && (int)threadIdx.x % 32 < a.sharers)
            empty_there = address_at_rank(m.empty, threadIdx.x % 32);
        int sums[N / 2], n_noted = 0;
        float coming = -INFINITY;
        int last = 0, tile = s.first * M_ROWS;
        for (int pass = 0; pass < s.n_passes; pass++, tile += GROUPS * M_ROWS) {
            if (warp / 4 + pass * GROUPS >= s.n) {
                let_pass(a, m, empty_there, at);
                if (pass == 0)
                    meet_others<N>(a, s, watched, CONSUMERS, coming);
                continue;
            }
            bool begins = GROUPS == 2 && a.by_turns && pass == 0 && s.n > 1, is_first = warp < WARPS / 2;
            if (begins && !is_first)
                threads_sync(2, CONSUMERS); // the first warpgroup is a piece ahead
            lane_rows r(a, s, tile);
            int beyond[2];
            multiply<int8_product<N>, N>(a, m, empty_there, at, sums, [&](int piece) {
                if (begins && is_first && piece == 1)
                    threads_arrive(2, 2 * WARPGROUP);
                if (pass > 0 && piece == a.looks_at / 2) {
                    look_closer<N>(a, s, watched, last, n_noted);
                    n_noted = 0;
                    exchange<N>(a, s, watched, coming);
                }
                if (pass > 0 && piece == a.looks_at) {
                    exchange<N>(a, s, watched, coming);
                    set_reach<N>(a, watched, r, beyond);
                }
            });
            if (pass == 0) {
                begin_bests<N>(watched, r, sums);
                meet_others<N>(a, s, watched, CONSUMERS, coming);
                set_reach<N>(a, watched, r, beyond);
            }
            note_candidates<N>(a, s, watched, tile, beyond, sums, n_noted);
            last = tile;
        }
        look_closer<N>(a, s, watched, last, n_noted);
        if (s.n_passes > 0)
            tell_candidates<N>(a, s, watched, CONSUMERS, coming);
        __syncwarp();
    }
    if (a.sharers > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

} // namespace screen
