/* sample.cu - SAMPLE: all of core/sample.h, in one node. A cluster of thread blocks takes a row of logits, and beyond
 * 128 rows another one behind it; where the head has looked for the largest itself (lm_head.cu), a warp takes a plain
 * row's from what it left, 1 KB, and its logits are not read. Where the step's tokens are told already
 * (argmax_filter.cu), it ends at once.
 *
 * Each block of the cluster holds a slice of the row in its shared memory, so the row is read once, by bulk copies that
 * are all asked for at once and looked at as they come; what the slices say is joined in the first block's. The row's
 * largest logit, and whether all are finite, is known beforehand where the head has left it; else a pass finds it. With
 * x the row after bias, bans and penalties and e = (x - max) / temperature, weights are the integers of
 * core/sample_weight.h, whose sums do not depend on the order: the token is that of sample_row, bit for bit.
 *
 * Nothing is sorted. top_k, top_p and the draw each ask for a place in the descending order of candidates: the first at
 * which the count, or the mass, exceeds a bound. One pass counts and weighs what is above each of eight edges of e, in
 * registers: four logits at a time, from the deepest edge up as far as the four reach. The most probable candidates, at
 * most LIST of them, go to the first block, where each looks at all others to find what stands before it; for most rows
 * that answers all three. A place further down is looked for in the range between two edges: if that holds more than
 * LIST, a histogram of the range in 1,024 bins and, where ties fill a bin, cuts by eight bits of (key, id) leave few
 * enough.
 *
 * Log-probabilities are of the raw row, read before it is changed. Bytes: the row, once.
 * Blocks push what they know into the others' memory before a barrier, never pull after a row's last one, so a block
 * may go on or end then. */
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/sample/sample_changes.cuh"
#include "backend/cuda/sample/sample_scores.cuh"
#include "backend/cuda/sample/sample_slice.cuh"
#include "backend/cuda/value.h"

// ---- the draw ---------------------------------------------------------------------------------------------------

static __device__ void clear_bins(const row_view &v, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS)
        v.s.own.count[i] = v.s.own.low[i] = v.s.own.high[i] = 0;
    __syncthreads(); // all are zero
}

static __device__ void add_to_bin(const row_view &v, int bin, unsigned long long weight) {
    bins &h = v.s.own;
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    atomicAdd(&h.count[bin], 1);
    uint32_t before = atomicAdd(&h.low[bin], low);
    high += before + low < before; // of the adds to one word, each wrap is seen by one
    if (high)
        atomicAdd(&h.high[bin], high);
}

/* The bins of all blocks become sums in the first one's memory. Two barriers: all bins are there; all sums are there.
 */
static __device__ void join_bins(const row_view &v, int n) {
    row_sync();
    int share = n / v.n_ranks, each = min(THREADS / share, v.n_ranks),
        bin = v.rank * share + threadIdx.x / each; // threads of a bin
    if (threadIdx.x < share * each) {              // whole warps
        uint32_t count = 0;
        unsigned long long mass = 0;
        for (int rank = threadIdx.x % each; rank < v.n_ranks; rank += each) {
            const bins &h = of_rank(v, rank).own;
            count += h.count[bin];
            mass += (unsigned long long)h.high[bin] << 32 | h.low[bin];
        }
        for (int step = 1; step < each; step *= 2) {
            count += __shfl_xor_sync(0xffffffffu, count, step);
            mass += __shfl_xor_sync(0xffffffffu, mass, step);
        }
        if (threadIdx.x % each == 0) {
            of_rank(v, 0).all.count[bin] = count;
            of_rank(v, 0).all.mass[bin] = mass;
        }
    }
    row_sync();
}

/* In the first block: the sum of each bin becomes what stands before it; entry n gets the total. */
static __device__ void sum_before(const row_view &v, int n, unsigned long long count_before,
                                  unsigned long long mass_before) {
    enum { EACH = BINS / THREADS };
    joined &all = v.s.all;
    int first = threadIdx.x * EACH, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t counts[EACH], count_to = 0;
    unsigned long long masses[EACH], mass_to = 0;
    for (int i = 0; i < EACH; i++) {
        counts[i] = first + i < n ? all.count[first + i] : 0, masses[i] = first + i < n ? all.mass[first + i] : 0;
        count_to += counts[i], mass_to += masses[i];
    }
    uint32_t count = count_to;
    unsigned long long mass = mass_to;
    for (int step = 1; step < 32; step *= 2) {
        uint32_t c = __shfl_up_sync(0xffffffffu, count_to, step);
        unsigned long long m = __shfl_up_sync(0xffffffffu, mass_to, step);
        if (lane >= step)
            count_to += c, mass_to += m;
    }
    if (lane == 31)
        v.s.warp_counts[warp] = count_to, v.s.warp_sums[warp] = mass_to;
    __syncthreads(); // every warp's sum is there, and all bins have been read
    for (int w = 0; w < warp; w++)
        count_before += v.s.warp_counts[w], mass_before += v.s.warp_sums[w];
    count_before += count_to - count, mass_before += mass_to - mass;
    for (int i = 0; i < EACH && first + i <= n; i++) {
        all.count[first + i] = (uint32_t)count_before, all.mass[first + i] = mass_before;
        count_before += counts[i], mass_before += masses[i];
    }
    if (threadIdx.x == THREADS - 1 && n == BINS)
        all.count[n] = (uint32_t)count_before, all.mass[n] = mass_before;
    __syncthreads(); // everybody's are there
}

/* The range at which the bound is exceeded. */
static __device__ pick range_of(const row_view &v, const drawing &d, bool by_count, unsigned long long bound) {
    const reached &all = v.s.all_reached;
    int i = 0;
    while (i < EDGES - 1 && (by_count ? all.count[i] : all.mass[i]) <= bound)
        i++;
    uint32_t count_before = i > 0 ? all.count[i - 1] : 0;
    return pick{lowest_of(d, i),
                i > 0 ? edge_of(d.deep, i - 1) : INFINITY,
                i,
                -1,
                (int)(all.count[i] - count_before),
                64,
                0,
                count_before,
                i > 0 ? all.mass[i - 1] : 0};
}

/* It becomes what is picked in every block, each of which may know the bound; else the first one does. */
static __device__ void pick_range(const row_view &v, const drawing &d, bool by_count, unsigned long long bound,
                                  bool all_know) {
    if (all_know) {
        if (threadIdx.x == 0)
            v.s.at = range_of(v, d, by_count, bound);
        __syncthreads(); // the pick is there
        return;
    }
    if (v.rank == 0 && threadIdx.x == 0)
        v.s.n_list = 0;
    if (v.rank == 0 && threadIdx.x < v.n_ranks)
        of_rank(v, threadIdx.x).at = range_of(v, d, by_count, bound);
    row_sync(); // the pick is everywhere
}

/* In the first block: of n bins the one at which the bound is exceeded, told to every block as what `p` becomes there.
 */
static __device__ void tell_bin(const row_view &v, int n, bool by_count, unsigned long long bound, pick p) {
    const joined &all = v.s.all;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        bool is_it = by_count ? all.count[i] <= bound && bound < all.count[i + 1]
                              : all.mass[i] <= bound && bound < all.mass[i + 1];
        if (!is_it)
            continue;
        p.n = (int)(all.count[i + 1] - all.count[i]), p.count_before = all.count[i], p.mass_before = all.mass[i];
        if (p.bin < 0)
            p.bin = i;
        else
            p.shift -= 8, p.prefix = p.prefix << 8 | (unsigned long long)(DIGITS - 1 - i);
        for (int rank = 0; rank < v.n_ranks; rank++)
            of_rank(v, rank).at = p;
    }
}

/* Cuts what is picked: into bins of its range or, where it is one already, by the next eight bits. */
static __device__ void cut(const row_view &v, const drawing &d, bool by_count, unsigned long long bound) {
    pick p = v.s.at;
    int n = p.bin < 0 ? BINS : DIGITS;
    clear_bins(v, n);
    each_picked(v, d, p, [&](float e, unsigned long long place) {
        add_to_bin(v, p.bin < 0 ? bin_of(d, p, e) : DIGITS - 1 - (int)(place >> (p.shift - 8) & 255), weight_of(e));
    });
    join_bins(v, n);
    if (v.rank == 0) {
        sum_before(v, n, p.count_before, p.mass_before);
        tell_bin(v, n, by_count, bound, p);
    }
    row_sync(); // the new pick is everywhere
}

/* The place in the order of candidates at which count or mass exceeds the bound; in the first block it stays as
 * found_id and mass_through. all_know: the bound, and the list is empty; else the first block does. */
static __device__ void look_up(const row_view &v, const drawing &d, bool by_count, unsigned long long bound,
                               bool all_know) {
    pick_range(v, d, by_count, bound, all_know);
    while (v.s.at.n > LIST)
        cut(v, d, by_count, bound);
    gather(v, d, v.s.at);
    if (v.rank != 0)
        return;
    rank_list(v, (uint32_t)v.s.at.count_before, v.s.at.mass_before);
    find_in_list(v, by_count, bound);
}

/* Whether the first place that is asked for, and so all, is among so many of the most probable. */
static __device__ bool is_near_top(const drow &a, const reached &all, int range) {
    unsigned long long total = all.mass[EDGES - 1];
    if (a.top_k > 0)
        return min((uint32_t)a.top_k, all.count[EDGES - 1]) <= all.count[range];
    return (a.top_p < 1 ? sample_reach(a.top_p, total) : sample_point(a.bits, total)) < all.mass[range];
}

/* In the first block, whose list holds every place that is asked for. */
static __device__ void draw_from_list(const row_view &v, const reached &all) {
    const drow &a = v.s.asked;
    unsigned long long total = all.mass[EDGES - 1];
    rank_list(v, 0, 0);
    if (a.top_k > 0) {
        find_in_list(v, true, min((uint32_t)a.top_k, all.count[EDGES - 1]) - 1);
        total = v.s.mass_through;
        __syncthreads(); // it has been read
    }
    if (a.top_p < 1) {
        find_in_list(v, false, sample_reach(a.top_p, total));
        total = v.s.mass_through;
        __syncthreads(); // it has been read
    }
    find_in_list(v, false, sample_point(a.bits, total));
}

static __device__ void draw_from_all(const row_view &v, const drawing &d, const reached &all) {
    const drow &a = v.s.asked;
    enum { TOP_K, TOP_P, POINT };
    unsigned long long total = all.mass[EDGES - 1]; // from the second on the first block's alone
    bool is_first = true;
#pragma unroll 1
    for (int asks = TOP_K; asks <= POINT; asks++) { // look_up is much code
        if (asks == TOP_K ? a.top_k <= 0 : asks == TOP_P && !(a.top_p < 1))
            continue;
        unsigned long long bound = asks == TOP_K   ? min((uint32_t)a.top_k, all.count[EDGES - 1]) - 1
                                   : asks == TOP_P ? sample_reach(a.top_p, total)
                                                   : sample_point(a.bits, total);
        look_up(v, d, asks == TOP_K, bound, is_first);
        total = v.s.mass_through;
        is_first = false;
    }
}

/* After this the first block knows the token, as found_id. */
static __device__ void draw(const row_view &v, float max) {
    drawing d =
        drawing_of(max, v.s.asked.temperature, fmaxf(v.s.asked.least, SAMPLE_LEAST_EXPONENT), v.s.asked.top_k > 0);
    weigh_slice<true>(v, 1, d, INFINITY);
    row_sync(); // every block knows what is reached
    const reached &all = all_reached(v, 1);
    int range = top_of(all);
    if (range < 0 || !is_near_top(v.s.asked, all, range)) {
        draw_from_all(v, d, all);
        return;
    }
    gather(v, d, pick{lowest_of(d, range), INFINITY, range, -1, (int)all.count[range], 64, 0, 0, 0});
    if (v.rank == 0)
        draw_from_list(v, all);
}

// ---- a row ------------------------------------------------------------------------------------------------------

static __device__ void tell_result(const device_plan &plan, int r, const dsampled &result) {
    plan.places->sampled[r] = result;
    plan.places->row_token[r] = result.token;
}

static __device__ void write_result(const row_view &v, const dsampled &result) {
    if (v.rank == 0 && threadIdx.x == 0)
        tell_result(v.plan, v.r, result);
}

static __device__ void sample_row(const row_view &v, best raw, int n_vocab) {
    const drow &a = v.s.asked;
    dsampled result = {raw.id, raw.id, 0, 0, 0, 0};
    float log_sum = a.is_scored ? score(v, raw.logit, n_vocab, result) : 0;
    best top = raw;
    if (a.is_changed) {
        change_slice(v);
        row_sync(); // every block knows every best
        top = best_told(v, 1);
        result.token = top.id;
        result.flags = top.logit > -INFINITY ? 0 : SAMPLED_NOTHING_LEFT;
    }
    if (a.temperature > 0 && result.flags == 0) {
        draw(v, top.logit);
        result.token = v.s.found_id;
    }
    if (a.is_scored && v.rank == 0)
        result.logprob = v.raw[result.token] - log_sum;
    write_result(v, result);
}

/* The best of a row of which the head has left that of each part; a warp's. What is not a number is better than any,
 * and bad. */
static __device__ best best_of_parts(int r, const dbests &bests, bool &bad) {
    const dbest *of_row = bests.at + (int64_t)r * HEAD_BESTS;
    best mine = {-INFINITY, INT_MAX};
    bad = false;
    for (int i = threadIdx.x % 32; i < bests.n; i += 32) {
        dbest part = of_row[i];
        bad |= !(part.logit < INFINITY);
        mine = better(mine, best{part.logit, part.id});
    }
    mine = warp_best(mine);
    bad = __any_sync(0xffffffffu, bad) || mine.logit == -INFINITY;
    if (!(mine.logit > -INFINITY))
        mine.id = 0;
    return mine;
}

/* A plain row. */
static __device__ void take_best(const device_plan &plan, int r, const dbests &bests) {
    bool bad;
    int token = best_of_parts(r, bests, bad).id;
    if (threadIdx.x % 32 == 0)
        tell_result(plan, r, dsampled{token, token, 0, bad ? SAMPLED_NOT_FINITE : 0, 0, 0});
}

/* Plain rows of which the head has left the best of each part, a warp's each. */
static __device__ void take_bests(const device_plan &plan, const dbests &bests) {
    int warp = (int)(threadIdx.x / 32 * gridDim.x + blockIdx.x);
    for (int r = warp; r < step_rows(plan); r += (int)gridDim.x * WARPS)
        if (plan.rows[r].is_plain)
            take_best(plan, r, bests);
}

/* The next of the cluster's rows of which the head has not said all that is wanted, as it has of plain ones if
 * some_told; -1: there is none. Each cluster has every n-th. What is known between two rows is kept in shared memory:
 * registers would be put aside for a row's time, which every barrier waits for. */
static __device__ int next_row(const device_plan &plan, bool some_told, cluster_shared &s) {
    if (threadIdx.x < 32) {
        int n_clusters = (int)(gridDim.x / row_blocks()), n_rows = step_rows(plan), base = s.base;
        uint32_t left = s.left;
        for (; left == 0 && base < n_rows; base += 32 * n_clusters) {
            int r = base + (int)threadIdx.x * n_clusters;
            left = __ballot_sync(0xffffffffu, r < n_rows && !(some_told && plan.rows[r].is_plain));
        }
        __syncwarp(); // all lanes have read base and left
        if (threadIdx.x == 0) {
            s.row = left ? base + (__ffs((int)left) - 33) * n_clusters : -1;
            s.left = left & (left - 1);
            s.base = base;
        }
    }
    __syncthreads(); // the row is known
    return s.row;
}

/* The best of a row of which nobody has said it. */
static __device__ best best_of_slices(const row_view &v, bool &bad) {
    look_at_slice(v);
    row_sync(); // every block knows every best
    best raw = best_told(v, 0);
    bad = raw.logit == -INFINITY;
    for (int i = 0; i < v.n_ranks; i++)
        bad |= v.s.bad[i];
    return raw;
}

/* A row, by the cluster. Others' memory is written from its first barrier on, and not read after its last. */
static __device__ void take_row(const row_view &v, int n_vocab, const dbests &bests) {
    if (threadIdx.x == 0)
        v.s.any_bad = v.s.above = v.s.n_list = 0;
    row_arrive(); // this block has begun with the row, and what others add to is zero
    if (threadIdx.x == 0 && in_bulk(v))
        copy_slice(v);
    if (threadIdx.x < sizeof(drow) / 4)
        reinterpret_cast<int32_t *>(&v.s.asked)[threadIdx.x] =
            reinterpret_cast<const int32_t *>(v.plan.rows + v.r)[threadIdx.x];
    bool bad = false;
    best raw = bests.at ? best_of_parts(v.r, bests, bad) : best{};
    if (!in_bulk(v))
        load_slice(v);
    row_wait();      // all blocks have: their memory may be written
    __syncthreads(); // asked, any_bad and the barriers
    if (!bests.at)
        raw = best_of_slices(v, bad);
    if (bad || v.s.asked.is_plain)
        write_result(v, dsampled{raw.id, raw.id, 0, bad ? SAMPLED_NOT_FINITE : 0, 0, 0});
    else
        sample_row(v, raw, n_vocab);
    await_slice(v); // also where nobody has looked at it
#if GYRE_HOPPER
    fence_bulk(); // what was written to the slice comes before the next row's copies
#endif
    __syncthreads(); // this block has done with its memory
    if (threadIdx.x == 0 && in_bulk(v))
        v.s.n_copied++;
}

static __global__ void __launch_bounds__(THREADS, 2)
    sample(device_plan plan, dmat logits, int slice, dbests bests, float *copies) {
    extern __shared__ __align__(16) char memory[];
    cluster_shared &shared = *reinterpret_cast<cluster_shared *>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        shared.base = (int)(blockIdx.x / row_blocks());
        shared.left = shared.n_copied = 0;
#if GYRE_HOPPER
        for (int i = 0; i < PIECES; i++)
            barrier_init(shared_address(&shared.copied[i]), 1);
        barrier_init_done();
#endif
    }
    __syncthreads(); // the barriers are there
    wait_for_previous();
    if (bests.done && *bests.done)
        return;
    bool some_told = bests.at && step_rows_not_plain(plan) < step_rows(plan);
    if (some_told)
        take_bests(plan, bests);
    for (int r; (r = next_row(plan, some_told, shared)) >= 0;) {
        int rank = row_rank(), first = rank * slice;
        row_view v = {
            plan, shared,       copies ? copies + (int64_t)r * slice : reinterpret_cast<float *>(memory + SHARED_BYTES),
            r,    first,        max(0, min(slice, logits.width - first)),
            rank, row_blocks(), static_cast<const float *>(logits.at) + r * logits.stride};
        take_row(v, logits.width, bests);
    }
}

// ---- launching --------------------------------------------------------------------------------------------------

enum {
    MOST_SLICE = (227 * 1024 - SHARED_BYTES) / 4,
    MOST_CLUSTERS = 128, // more cost plain rows their beginning and end; of as few as run at once the last ends late
};
#ifdef GYRE_RACECHECK
enum { FEW_ROWS = 0 }; // under racecheck and synccheck a cluster of sixteen blocks faults
#else
enum { FEW_ROWS = 8 };
#endif

static int slice_of(int n_vocab, int n_ranks) { return ((n_vocab + n_ranks - 1) / n_ranks + 3) / 4 * 4; }

bool sample_fits(int n_vocab) { return slice_of(n_vocab, MOST_CLUSTER) <= MOST_SLICE; }

static void set_up() {
    facts_of_cards.get({(const void *)sample, current_device(), -2, 0, 0}, [] {
        return (int)cudaFuncSetAttribute(sample, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    });
    allow_shared(sample, SHARED_BYTES + MOST_SLICE * (int)sizeof(float));
}

/* Before Hopper: a block a row, whose copy of it lies in global memory. */
static void launch_without_clusters(const struct launch *l, struct dmat logits, struct dbests bests, float *copies) {
    allow_shared(sample, SHARED_BYTES);
    launch_node(sample, dim3(l->n_rows < MOST_CLUSTERS ? l->n_rows : (int)MOST_CLUSTERS), dim3(THREADS), SHARED_BYTES,
                l->stream, l->plan, logits, slice_of(logits.width, 1), bests, copies);
}

int64_t sample_copies_bytes(int n_rows, int n_vocab) {
    return compute_capability() >= 90 ? 0 : (int64_t)n_rows * slice_of(n_vocab, 1) * (int64_t)sizeof(float);
}

/* Sixteen blocks a row where that fills no more of the device than there is, or where eight cannot hold the row. */
void launch_sample(const struct launch *l, struct dmat logits, struct dbests bests, float *copies) {
    if (compute_capability() < 90) {
        launch_without_clusters(l, logits, bests, copies);
        return;
    }
    int n_ranks = l->n_rows <= FEW_ROWS || slice_of(logits.width, 8) > MOST_SLICE ? 16 : 8,
        slice = slice_of(logits.width, n_ranks);
    set_up();
    launch_cluster(sample, dim3((l->n_rows < MOST_CLUSTERS ? l->n_rows : (int)MOST_CLUSTERS) * n_ranks), n_ranks,
                   dim3(THREADS), SHARED_BYTES + slice * sizeof(float), l->stream, l->plan, logits, slice, bests,
                   (float *)nullptr);
}
