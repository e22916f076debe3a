/* screen_product.cuh - of screen.cu: the product of bytes, and which of its sums stand for rows that may win.
 *
 * Blocks, tiles, the ring and who shares x are those of head.cu (head_ring.cuh); a stage has 128 elements of each row. What differs is the end of a tile:
 *
 *     A sum is of interest if row.step * (sum + spread) + row.size * slack >= best, best[token] being the best lower bound known so far,
 *     that is if sum >= best / row.step - slack * row.size / row.step - spread. So a sum costs two multiply-adds and a comparison, of integers: the
 *     right side is computed times 2^-149, where the bits of a float are its integer, rounded; above 2^24 they are less than that, and below 0
 *     less than any sum, so that too much passes rather than too little. Nothing is reduced over lanes. Those that pass are queued by their warp, and looked at when all have been compared: then their own lower
 *     bound may raise `best`, and they go on the block's list. If the queue is full, the tokens that are left are compared once more behind that.
 *
 * Where two warpgroups fill the tensor core, the second begins a piece later, so that one multiplies while the other compares.
 *
 * `best` starts with what the blocks' first tiles have, over all rows of them, and is handed on from block to block through memory (`bests`), between
 * tiles, without anybody's waiting for a block in particular. How early it comes depends on timing, and with it how long lists are, but the rows with upper bounds that
 * reach the final `best` are on them always. */
#pragma once

#include "backend/cuda/head_ring.cuh"
#include "backend/cuda/screen_bound.cuh"
#include "backend/cuda/wgmma_int8.cuh"

namespace screen {

static_assert((int)INT8_K == (int)STEP_BYTES, "");

enum {
    LISTED = 1024, // candidates that a block keeps until its end
    QUEUED = 128,  // sums of a warp: those of sixteen rows and eight tokens
};

/* Thresholds are in units of 2^-149. */
constexpr float BEST_UNIT = 0x1p-74f, ROW_UNIT = 0x1p-75f;

struct candidate {
    int32_t row;
    float upper; // bound of its logit, in units of the token's step
};

struct product_args {
    const row *rows;
    const token *tokens;
    float *bests;     // [tokens]
    int32_t *n_found; // [tokens]
    candidate *found; // [tokens][most_found]
    const int32_t *is_wanted;
    bool by_turns; // the second warpgroup begins a piece after the first, if there are two
    float cap;
    int most_found;
    int n_rows; // of W
    int n_tokens, n_pieces, octets, n_tiles, n_stages, token_tiles, sharers;
};

// ---- what may win ---------------------------------------------------------------------------------------------------

struct listed {
    int32_t row, token; // of the block's
    float upper;
};
struct queued {
    int32_t sum;
    uint32_t place; // row of the warp's, token of the block's
    static __device__ constexpr uint32_t place_of(int row, int token) { return (uint32_t)token << 8 | row; }
    __device__ int row() const { return place & 255; }
    __device__ int token() const { return place >> 8; }
};
struct warp_queue {
    int n, full_at; // full_at: the first eight tokens that it had no room for
    queued list[QUEUED];
};

template <int N, int WARPS> struct watch {
    float best[N], spread[N], slack[N], step[N]; // of the tokens, one behind the other; best times BEST_UNIT
    float spread_bits[N], slack_bits[N];         // as thresholds are made of them
    int n_listed;
    warp_queue queues[WARPS];
    listed list[LISTED];
};

/* The lane's two rows of a tile, 8 apart. by: 1 / step, NaN of a row that is not there, which reaches no threshold. */
struct lane_rows {
    int first;                               // of the warp
    float step[2], size[2], by[2], ratio[2]; // the last two times ROW_UNIT
    __device__ lane_rows(const product_args &a, int tile) {
        int of_tile = threadIdx.x / 32 * 16, mine = of_tile + threadIdx.x % 32 / 4;
        first = tile * a.octets * 8 + of_tile;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = tile * a.octets * 8 + mine + 8 * i;
            bool there = mine + 8 * i < a.octets * 8 && at < a.n_rows;
            row r = there ? a.rows[at] : row{NAN, 0};
            step[i] = r.step, size[i] = r.size;
            by[i] = __fdividef(1, r.step) * ROW_UNIT, ratio[i] = r.size * by[i];
        }
    }
};

__device__ inline void push(const product_args &a, int token, int row, float upper) {
    int at = atomicAdd(a.n_found + token, 1);
    if (at < a.most_found)
        a.found[(int64_t)token * a.most_found + at] = candidate{row, upper};
}

/* Sums that have passed: all lanes, a sum each. */
template <class W>
__device__ void look_closer(const product_args &a, const share_of_block &s, W &w, const lane_rows &r, const warp_queue &q) {
    int n = min(q.n, (int)QUEUED);
    for (int i = threadIdx.x % 32; i < (n + 31) / 32 * 32; i += 32) {
        queued c = i < n ? q.list[i] : queued{0, 0};
        int from = c.row() % 8 * 4, token = c.token();
        float step_low = __shfl_sync(0xffffffffu, r.step[0], from), step_high = __shfl_sync(0xffffffffu, r.step[1], from);
        float size_low = __shfl_sync(0xffffffffu, r.size[0], from), size_high = __shfl_sync(0xffffffffu, r.size[1], from);
        float step = c.row() < 8 ? step_low : step_high, off = (c.row() < 8 ? size_low : size_high) * w.slack[token];
        float upper = fmaf(step, (float)c.sum + w.spread[token], off), lower = fmaf(step, (float)c.sum - w.spread[token], -off);
        if (i >= n || !(upper * BEST_UNIT >= w.best[token]))
            continue;
        if (lower * BEST_UNIT > w.best[token])
            raise(&w.best[token], before_cap(lower, w.step[token], a.cap) * BEST_UNIT);
        int at = atomicAdd(&w.n_listed, 1);
        if (at < LISTED)
            w.list[at] = listed{r.first + c.row(), token, upper};
        else
            push(a, s.first_token + token, r.first + c.row(), upper);
    }
}

/* Lanes that differ in bits of STEP and above join the largest they have of C tokens; each keeps fewer tokens, from `first` on. */
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

/* The best lower bounds of the warp's 16 rows of the first tile. */
template <int N, class W> __device__ void begin_bests(W &w, const lane_rows &r, const int (&sums)[N / 2]) {
    constexpr int AT_ONCE = N / 4 < 16 ? N / 4 : 16, LEFT = AT_ONCE >= 8 ? AT_ONCE / 8 : 1; // tokens of a lane
#pragma unroll
    for (int part = 0; part < N / 4; part += AT_ONCE) {
        float most[AT_ONCE];
        int first = part;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int k = part + i, token = k / 2 * 8 + k % 2 + threadIdx.x % 4 * 2;
            float low = fmaf(r.step[0], (float)sums[k / 2 * 4 + k % 2] - w.spread[token], -r.size[0] * w.slack[token]);
            float high = fmaf(r.step[1], (float)sums[k / 2 * 4 + 2 + k % 2] - w.spread[token], -r.size[1] * w.slack[token]);
            most[i] = fmaxf(-INFINITY, fmaxf(low, high)); // not NaN
        }
        join_lanes<AT_ONCE, 4>(most, first);
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            int k = first + i;
            raise(&w.best[k / 2 * 8 + k % 2 + threadIdx.x % 4 * 2], most[i] * BEST_UNIT);
        }
    }
}

/* Sums of the lane's two rows and two tokens, those that pass. place: of the first. */
__device__ __forceinline__ void enqueue(warp_queue &q, int j, uint32_t place, const bool (&passes)[4], const int *sums) {
    int n = passes[0] + passes[1] + passes[2] + passes[3], at = atomicAdd(&q.n, n);
    if (at + n > QUEUED)
        atomicMin(&q.full_at, j);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (passes[i]) {
            if (at < QUEUED)
                q.list[at] = queued{sums[i], place + queued::place_of(i / 2 * 8, i % 2)};
            at++;
        }
}

/* Of shared memory, read where it is used. */
__device__ __forceinline__ float2 load_two(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* Which of the lane's four sums of eight tokens reach what is best. tokens: the lane's in watch. */
template <int N> __device__ __forceinline__ void compare_four(uint32_t tokens, const lane_rows &r, const int *sums, bool (&passes)[4]) {
    float2 best = load_two(tokens), spread = load_two(tokens + N * 16), slack = load_two(tokens + N * 20);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        passes[2 * i] = sums[2 * i] >= __float_as_int(fmaf(r.by[i], best.x, fmaf(-r.ratio[i], slack.x, -spread.x)));
        passes[2 * i + 1] = sums[2 * i + 1] >= __float_as_int(fmaf(r.by[i], best.y, fmaf(-r.ratio[i], slack.y, -spread.y)));
    }
}

/* In two steps, for some tokens after the other: whether any sum passes, which mostly none does, and which, of code that is seldom fetched. */
template <int N, class W>
__device__ void find_candidates(const product_args &a, const share_of_block &s, W &w, const lane_rows &r, const int (&sums)[N / 2]) {
    constexpr int EIGHTS = N / 8, AT_ONCE = EIGHTS < 8 ? EIGHTS : 8;
    warp_queue &q = w.queues[threadIdx.x / 32];
    int lane = threadIdx.x % 32;
    uint32_t tokens = kept(shared_address(w.best + lane % 4 * 2)), place = queued::place_of(lane / 4, lane % 4 * 2);
    for (int first = 0; first < EIGHTS;) {
        if (lane == 0)
            q.n = 0, q.full_at = EIGHTS;
        __syncwarp();
        bool any_queued = false;
#pragma unroll
        for (int part = 0; part < EIGHTS; part += AT_ONCE) {
            bool any[4] = {}, passes[4];
#pragma unroll
            for (int j = part; j < part + AT_ONCE; j++) {
                compare_four<N>(tokens + j * 32, r, sums + 4 * j, passes);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    any[i] |= passes[i];
            }
            if (!__any_sync(0xffffffffu, (any[0] | any[1] | any[2] | any[3]) && first < part + AT_ONCE))
                continue;
            any_queued = true;
#pragma unroll
            for (int j = part; j < part + AT_ONCE; j++) {
                compare_four<N>(tokens + j * 32, r, sums + 4 * j, passes);
                if (j >= first && (passes[0] | passes[1] | passes[2] | passes[3]))
                    enqueue(q, j, place + queued::place_of(0, j * 8), passes, sums + 4 * j);
            }
        }
        first = EIGHTS;
        if (any_queued) {
            __syncwarp(); // the queue is there
            first = q.full_at;
            look_closer(a, s, w, r, q);
            __syncwarp(); // all have read the queue
        }
    }
}

/* What others know of a token comes to this block, and the other way round. `coming`: what was read some time ago. */
template <int N, class W> __device__ void exchange(const product_args &a, const share_of_block &s, W &w, float &coming) {
    int t = threadIdx.x;
    if (t >= N || s.first_token + t >= a.n_tokens)
        return;
    float *there = a.bests + s.first_token + t;
    if (coming * BEST_UNIT > w.best[t])
        raise(&w.best[t], coming * BEST_UNIT);
    else if (w.best[t] > coming * BEST_UNIT)
        raise(there, w.best[t] * (1 / BEST_UNIT));
    coming = *reinterpret_cast<volatile float *>(there);
}

/* The block's first tile has raised its bests: those of other blocks, which are about as far, join before any sum is compared with them. */
template <int N, class W>
__device__ void meet_others(const product_args &a, const share_of_block &s, W &w, int n_consumers, float &coming) {
    int t = threadIdx.x;
    threads_sync(1, n_consumers); // all warps' are there
    if (t < N && a.cap > 0)
        w.best[t] = before_cap(w.best[t] * (1 / BEST_UNIT), w.step[t], a.cap) * BEST_UNIT;
    for (int i = 0; i < 3; i++) {
        exchange<N>(a, s, w, coming);
        asm volatile("" ::"f"(coming) : "memory");
    }
    threads_sync(1, n_consumers); // what others have is there
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <int N, class W> __device__ void watch_tokens(const product_args &a, const share_of_block &s, W &w, int n_consumers) {
    for (int t = threadIdx.x; t < N; t += n_consumers) {
        bool there = s.first_token + t < a.n_tokens;
        token k = there ? a.tokens[s.first_token + t] : token{1, 0, 0};
        w.best[t] = there && k.step > 0 ? -INFINITY : INFINITY; // of a token without a step nothing is looked at
        w.spread[t] = k.spread, w.slack[t] = k.slack, w.step[t] = k.step;
        w.spread_bits[t] = k.spread * 0x1p-100f * 0x1p-49f, w.slack_bits[t] = k.slack * BEST_UNIT;
    }
    if (threadIdx.x == 0)
        w.n_listed = 0;
    threads_sync(1, n_consumers); // all tokens are there
}

/* Of the list what still may win. */
template <int N, class W>
__device__ void tell_candidates(const product_args &a, const share_of_block &s, W &w, int n_consumers, float coming) {
    int t = threadIdx.x;
    exchange<N>(a, s, w, coming);
    threads_sync(1, n_consumers); // all have told the others and listed theirs
    if (t < N && s.first_token + t < a.n_tokens && coming * BEST_UNIT > w.best[t])
        w.best[t] = coming * BEST_UNIT;
    threads_sync(1, n_consumers);
    for (int i = t; i < min(w.n_listed, (int)LISTED); i += n_consumers)
        if (w.list[i].upper * BEST_UNIT >= w.best[w.list[i].token])
            push(a, s.first_token + w.list[i].token, w.list[i].row, w.list[i].upper);
}

/* Registers that the copying warpgroup leaves go to the others' sums (setmaxnreg). */
template <int N, int GROUPS>
__global__ void __launch_bounds__((GROUPS + 1) * WARPGROUP, 1)
    screen_product(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ product_args a) {
    constexpr int CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32;
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ __align__(16) watch<N, WARPS> watched;
    int warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0;
    int cluster = (int)blockIdx.x / a.sharers, n_parts = (int)gridDim.x / a.token_tiles;
    share_of_block s = {rank, cluster % a.token_tiles * N, cluster / a.token_tiles * a.sharers + rank, n_parts, 0};
    s.n_passes = (a.n_tiles + n_parts - 1 - (a.sharers > 1 ? 0 : s.part)) / n_parts;
    shared_places m;
    m.w = kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1));
    m.x = m.w + a.n_stages * a.octets * ATOM;
    m.full = kept(shared_address(full));
    m.empty = kept(shared_address(empty));
    filler<N, true, product_args> ring(a, m, s, &w_map, &x_map);
    bool copies = threadIdx.x == CONSUMERS, begun = false;
    if (copies) {
        bulk_map_prefetch(&w_map);
        bulk_map_prefetch(&x_map);
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(m.full + 8 * i, 1);
            barrier_init(m.empty + 8 * i, GROUPS * a.sharers);
        }
        barrier_init_done();
        begun = *reinterpret_cast<const volatile int32_t *>(a.is_wanted) != 0; // of this step or the one before: a guess
        if (begun)
            ring.begin();
    }
    __syncthreads(); // the barriers are ready
    if (a.sharers > 1)
        cluster_sync(); // those of both blocks
    let_next_start();
    if (warp >= WARPS) {
        if (GROUPS == 3)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        wait_for_previous();
        if (copies && !begun && *a.is_wanted)
            ring.begin();
        if (copies && *a.is_wanted)
            ring.run();
        else if (copies && begun)
            ring.leave();
        __syncwarp();
    } else {
        if (GROUPS == 3)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        wait_for_previous();
        if (!*a.is_wanted)
            s.n_passes = 0;
        watch_tokens<N>(a, s, watched, CONSUMERS);
        ring_place at = {0, a.n_stages, 0};
        uint32_t empty_there =
            0; // a product of the tensor core ends for all four warps of a group: the first one tells each block that copies
        if (warp % 4 == 0 && (int)threadIdx.x % 32 < a.sharers)
            empty_there = address_at_rank(m.empty, threadIdx.x % 32);
        int sums[N / 2];
        float coming = -INFINITY;
        for (int pass = 0, tile = s.part; pass < s.n_passes; pass++, tile += s.n_parts) {
            bool begins = GROUPS == 2 && a.by_turns && pass == 0, is_first = warp < WARPS / 2;
            if (begins && !is_first)
                threads_sync(2, CONSUMERS); // the first warpgroup is a piece ahead
            multiply<int8_product<N>, N>(a, m, empty_there, at, sums, [&](int piece) {
                if (begins && is_first && piece == 1)
                    threads_arrive(2, 2 * WARPGROUP);
            });
            lane_rows r(a, tile);
            if (pass == 0) {
                begin_bests<N>(watched, r, sums);
                meet_others<N>(a, s, watched, CONSUMERS, coming);
            }
            exchange<N>(a, s, watched, coming);
            find_candidates<N>(a, s, watched, r, sums);
        }
        if (s.n_passes > 0)
            tell_candidates<N>(a, s, watched, CONSUMERS, coming);
        __syncwarp();
    }
    if (a.sharers > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

} // namespace screen
