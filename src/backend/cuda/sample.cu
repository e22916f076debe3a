/* sample.cu - SAMPLE: all of core/sample.h, in one node. A cluster of thread blocks takes a row of logits.
 *
 * Each block of the cluster holds a slice of the row in its shared memory, so the row is read once; what the slices say is
 * joined in the first block's. With x the row after bias, bans and penalties and e = (x - max) / temperature, weights are the
 * integers of core/sample_weight.h, whose sums do not depend on the order: the token is that of sample_row, bit for bit.
 *
 * Nothing is sorted. top_k, top_p and the draw each ask for a place in the descending order of candidates: the first at which the
 * count, or the mass, exceeds a bound. A histogram of counts and masses over e in steps of 1/32 names the bin; the few
 * candidates in it go to the first block, where each finds what stands before it by looking at all others. A bin with more than
 * LIST of them (flat rows, many ties) is first cut by eight bits of (key, id) at a time.
 *
 * Greedy rows end at the first cluster barrier. Log-probabilities are of the raw row, read before it is changed. Bytes: the row, once.
 * Blocks push what they know into the others' memory before a barrier, never pull after one, so a block may end after its last barrier. */
#include "backend/cuda/device.cuh"
#include "core/sample_weight.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    BINS = 1024,       // of e, 1/32 wide
    DIGITS = 256,      // of a cut by eight bits
    LIST = THREADS,    // candidates that the first block looks at one by one
    CHUNK = 8192,      // tokens whose history is counted at a time
    MOST_CLUSTER = 16, // more than 8 is not portable, but every Hopper has it
};

struct best {
    float logit;
    int id;
};

/* Where the next look at the candidates goes: those of the bin, and of them those whose leading bits are `prefix`. */
struct pick {
    int bin, n, shift; // shift: of what is told apart no further yet; 64: the whole bin
    uint64_t prefix;
    uint64_t count_before, mass_before;
};

struct bins {
    uint32_t count[BINS], low[BINS], high[BINS]; // mass in two halves: shared memory adds 32 bits at a time
};

/* Of the first block: the sums of all blocks' bins, then what stands before each; and the candidates of the bin picked. */
struct joined {
    uint32_t count[BINS + 1];
    uint64_t mass[BINS + 1];
    unsigned long long list[LIST];
    uint64_t weight[LIST];
};

struct cluster_shared {
    drow asked;
    best bests[2][MOST_CLUSTER]; // of every block; of the raw and of the changed row
    int bad[MOST_CLUSTER];
    unsigned long long sums[MOST_CLUSTER];
    int above[MOST_CLUSTER];
    unsigned long long next[2][MOST_CLUSTER]; // the best not taken yet, by turns
    pick at;
    // of the first block
    uint64_t mass_through; // up to the place found last, it included
    int found_id, n_list;
    // of a block
    best warp_bests[WARPS];
    unsigned long long warp_sums[WARPS];
    uint32_t warp_counts[WARPS];
    int any_bad;
    union {
        struct {
            bins own;
            joined all;
        };
        uint32_t marks[CHUNK]; // of tokens of the slice: how often generated, and whether seen or allowed
    };
};
enum { SHARED_BYTES = (sizeof(cluster_shared) + 127) / 128 * 128 };
enum : uint32_t { SEEN = 1u << 31, ALLOWED = 1u << 30, COUNT = ALLOWED - 1 };

/* What a thread knows of its row. */
struct row_view {
    const device_plan &plan;
    cluster_shared &s;
    float *x;          // the slice
    int r, first, n;   // row; the slice's first token and how many
    int rank, n_ranks; // of the block in its cluster
    const float *raw;  // the row in global memory
};

static __device__ best better(best a, best b) { return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a; }

static __device__ best warp_best(best x) {
    for (int step = 16; step > 0; step /= 2)
        x = better(x, best{__shfl_xor_sync(0xffffffffu, x.logit, step), __shfl_xor_sync(0xffffffffu, x.id, step)});
    return x;
}

static __device__ unsigned long long warp_add(unsigned long long x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Known to the first warp. */
static __device__ unsigned long long block_add(unsigned long long x, unsigned long long *warps) {
    x = warp_add(x);
    __syncthreads(); // nobody reads the last sums any more
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads(); // every warp's sum is there
    return warp_add(threadIdx.x % 32 < WARPS ? warps[threadIdx.x % 32] : 0);
}

static __device__ cluster_shared &of_rank(const row_view &v, int rank) { return *cg::this_cluster().map_shared_rank(&v.s, rank); }

// ---- the best of the row ----------------------------------------------------------------------------------------

/* The block's best and whether it holds what is not finite go to every block. */
static __device__ void tell_best(const row_view &v, int slot, best mine, int bad) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0)
        v.s.warp_bests[threadIdx.x / 32] = mine;
    if (bad)
        v.s.any_bad = 1;
    __syncthreads(); // every warp's best, and any_bad
    if (threadIdx.x >= 32)
        return;
    int lane = threadIdx.x;
    mine = warp_best(lane < WARPS ? v.s.warp_bests[lane] : best{-INFINITY, INT_MAX});
    if (lane < v.n_ranks) {
        of_rank(v, lane).bests[slot][v.rank] = mine;
        of_rank(v, lane).bad[v.rank] = v.s.any_bad;
    }
}

/* After a cluster barrier; token 0 where nothing is above -infinity. */
static __device__ best best_told(const row_view &v, int slot) {
    int lane = threadIdx.x % 32;
    best b = warp_best(lane < v.n_ranks ? v.s.bests[slot][lane] : best{-INFINITY, INT_MAX});
    if (b.id == INT_MAX)
        b.id = 0;
    return b;
}

static __device__ void look_at(float x, int id, best &mine, int &bad) {
    bad |= !(x < INFINITY);
    if (x > mine.logit)
        mine = best{x, id};
}

/* Reads the slice; `keep` puts it into shared memory. */
static __device__ void read_slice(const row_view &v, bool keep) {
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    const float *from = v.raw + v.first;
    int n4 = reinterpret_cast<uintptr_t>(from) % 16 == 0 ? v.n / 4 : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n4; i += THREADS) {
        float4 q = reinterpret_cast<const float4 *>(from)[i];
        look_at(q.x, v.first + 4 * i, mine, bad);
        look_at(q.y, v.first + 4 * i + 1, mine, bad);
        look_at(q.z, v.first + 4 * i + 2, mine, bad);
        look_at(q.w, v.first + 4 * i + 3, mine, bad);
        if (keep)
            reinterpret_cast<float4 *>(v.x)[i] = q;
    }
    for (int i = 4 * n4 + threadIdx.x; i < v.n; i += THREADS) {
        look_at(from[i], v.first + i, mine, bad);
        if (keep)
            v.x[i] = from[i];
    }
    tell_best(v, 0, mine, bad);
}

// ---- log-probabilities of the raw row ---------------------------------------------------------------------------

/* Sum of the weights at temperature 1, and how many tokens are above the target, to the first block. */
static __device__ void tell_sums(const row_view &v, float max) {
    unsigned long long sum = 0, above = 0;
    float wanted = v.s.asked.target >= 0 ? v.raw[v.s.asked.target] : INFINITY;
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        sum += sample_weight(v.x[i] - max);
        above += v.x[i] > wanted;
    }
    sum = block_add(sum, v.s.warp_sums);
    above = block_add(above, v.s.warp_sums);
    if (threadIdx.x == 0) {
        of_rank(v, 0).sums[v.rank] = sum;
        of_rank(v, 0).above[v.rank] = (int)above;
    }
}

/* Descending: by logit, then by id from low to high. */
static __device__ unsigned long long place_of(float x, int id) {
    return (unsigned long long)sample_key(x) << 32 | (0xffffffffu - (uint32_t)id);
}
static __device__ int id_of(unsigned long long place) { return (int)(0xffffffffu - (uint32_t)place); }
static __device__ float logit_of(unsigned long long place) { return sample_key_logit((uint32_t)(place >> 32)); }

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

/* One after the other: what comes after the one before in every slice, then the best of those. At most MOST_TOP_LOGPROBS passes
 * over shared memory, each as long as a cluster barrier. */
static __device__ void write_top(const row_view &v, float log_sum, int n_vocab) {
    int n = min(v.s.asked.n_top, n_vocab);
    const dplaces *places = v.plan.places;
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
        cg::this_cluster().sync(); // every slice's next is everywhere
        last = v.s.next[k & 1][0];
        for (int rank = 1; rank < v.n_ranks; rank++)
            last = max(last, v.s.next[k & 1][rank]);
        if (v.rank == 0 && threadIdx.x == 0) {
            places->top_token[v.r * MOST_TOP_LOGPROBS + k] = id_of(last);
            places->top_logprob[v.r * MOST_TOP_LOGPROBS + k] = logit_of(last) - log_sum;
        }
    }
}

// ---- bias, bans, penalties --------------------------------------------------------------------------------------

static __device__ void add_bias(const row_view &v, const int32_t *pairs) {
    for (int i = threadIdx.x; i < v.s.asked.n_bias; i += THREADS) {
        int at = pairs[2 * i] - v.first;
        if (at >= 0 && at < v.n)
            atomicAdd(&v.x[at], __int_as_float(pairs[2 * i + 1])); // a token that is named twice: in either order
    }
}

static __device__ void ban(const row_view &v, const int32_t *pairs, int newest) {
    for (int i = threadIdx.x; i < v.s.asked.n_banned; i += THREADS) {
        int at = pairs[2 * i] - v.first, after = pairs[2 * i + 1];
        if (at >= 0 && at < v.n && (after < 0 || after == newest))
            v.x[at] = -INFINITY;
    }
}

/* Marks the tokens first .. first + n of the slice. */
static __device__ void mark(const row_view &v, const int32_t *lists, int newest, int first, int n) {
    const drow &a = v.s.asked;
    for (int i = threadIdx.x; i < n; i += THREADS)
        v.s.marks[i] = 0;
    __syncthreads(); // all are zero
    for (int i = threadIdx.x; i < a.n_allowed; i += THREADS) {
        int at = lists[a.allowed + i] - v.first - first;
        if (at >= 0 && at < n)
            atomicOr(&v.s.marks[at], ALLOWED);
    }
    int n_seen = a.n_history + (newest >= 0);
    for (int i = threadIdx.x; i < n_seen; i += THREADS) {
        int at = (i < a.n_history ? lists[a.history + i] : newest) - v.first - first;
        if (at < 0 || at >= n)
            continue;
        atomicOr(&v.s.marks[at], SEEN);
        if (i >= a.n_prompt)
            atomicAdd(&v.s.marks[at], 1);
    }
    __syncthreads(); // all are marked
}

static __device__ float penalised(const drow &a, float x, uint32_t mark) {
    uint32_t count = mark & COUNT;
    if (a.n_allowed > 0 && !(mark & ALLOWED))
        x = -INFINITY;
    if (a.repetition != 1 && (mark & SEEN))
        x = x > 0 ? __fdiv_rn(x, a.repetition) : __fmul_rn(x, a.repetition);
    if ((a.presence != 0 || a.frequency != 0) && count > 0)
        x = __fadd_rn(x, -__fadd_rn(a.presence, __fmul_rn(a.frequency, (float)count)));
    return x;
}

static __device__ void change_slice(const row_view &v) {
    const drow &a = v.s.asked;
    const int32_t *lists = v.plan.places->lists;
    int newest = v.plan.newest[v.r];
    __syncthreads(); // the slice has been read by whoever reads the raw one
    add_bias(v, lists + a.bias);
    __syncthreads(); // biases before bans
    ban(v, lists + a.banned, newest);
    __syncthreads(); // bans before penalties
    if (a.n_allowed > 0 || a.repetition != 1 || a.presence != 0 || a.frequency != 0)
        for (int from = 0; from < v.n; from += CHUNK) {
            int n = min(CHUNK, v.n - from);
            mark(v, lists, newest, from, n);
            for (int i = threadIdx.x; i < n; i += THREADS)
                v.x[from + i] = penalised(a, v.x[from + i], v.s.marks[i]);
            __syncthreads(); // marks have been read
        }
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    for (int i = threadIdx.x; i < v.n; i += THREADS)
        look_at(v.x[i], v.first + i, mine, bad);
    tell_best(v, 1, mine, 0);
}

// ---- the draw ---------------------------------------------------------------------------------------------------

static __device__ void clear_bins(const row_view &v, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS)
        v.s.own.count[i] = v.s.own.low[i] = v.s.own.high[i] = 0;
    __syncthreads(); // all are zero
}

static __device__ void add_to_bin(const row_view &v, int bin, uint64_t weight) {
    bins &h = v.s.own;
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    atomicAdd(&h.count[bin], 1);
    uint32_t before = atomicAdd(&h.low[bin], low);
    high += before + low < before; // of the adds to one word, each wrap is seen by one
    if (high)
        atomicAdd(&h.high[bin], high);
}

/* The bins of all blocks become sums in the first one's memory. Two barriers: all bins are there; all sums are there. */
static __device__ void join_bins(const row_view &v, int n) {
    cg::this_cluster().sync();
    int share = n / v.n_ranks;
    for (int i = threadIdx.x; i < share; i += THREADS) {
        int bin = v.rank * share + i;
        uint32_t count = 0;
        uint64_t mass = 0;
        for (int rank = 0; rank < v.n_ranks; rank++) {
            const bins &h = of_rank(v, rank).own;
            count += h.count[bin];
            mass += (uint64_t)h.high[bin] << 32 | h.low[bin];
        }
        of_rank(v, 0).all.count[bin] = count;
        of_rank(v, 0).all.mass[bin] = mass;
    }
    cg::this_cluster().sync();
}

/* In the first block: the sum of each bin becomes what stands before it; entry n gets the total. */
static __device__ void sum_before(const row_view &v, int n, uint64_t count_before, uint64_t mass_before) {
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

/* In the first block: the bin at which the bound is exceeded, told to every block. */
static __device__ void tell_pick(const row_view &v, int n, bool by_count, uint64_t bound, bool is_digit) {
    const joined &all = v.s.all;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        bool is_it = by_count ? all.count[i] <= bound && bound < all.count[i + 1] : all.mass[i] <= bound && bound < all.mass[i + 1];
        if (!is_it)
            continue;
        pick p = {i, (int)(all.count[i + 1] - all.count[i]), 64, 0, all.count[i], all.mass[i]};
        if (is_digit) {
            p.bin = v.s.at.bin;
            p.shift = v.s.at.shift - 8;
            p.prefix = v.s.at.prefix << 8 | (uint64_t)(DIGITS - 1 - i);
        }
        v.s.n_list = 0;
        for (int rank = v.n_ranks - 1; rank >= 0; rank--)
            of_rank(v, rank).at = p;
    }
}

struct drawing {
    float max, temperature, least; // least: what is lower is no candidate
};

/* The bin of a token of the slice; -1: it is none of the candidates. */
static __device__ int bin_of(const drawing &d, float e) { return e >= d.least ? min((int)(-32.0f * e), BINS - 1) : -1; }

static __device__ void fill_bins(const row_view &v, const drawing &d) {
    clear_bins(v, BINS);
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        float e = sample_exponent(v.x[i], d.max, d.temperature);
        if (e >= d.least)
            add_to_bin(v, bin_of(d, e), sample_weight(e));
    }
    join_bins(v, BINS);
    if (v.rank == 0)
        sum_before(v, BINS, 0, 0);
}

static __device__ bool is_picked(const pick &p, int bin, unsigned long long place) {
    return bin == p.bin && (p.shift == 64 || place >> p.shift == p.prefix);
}

/* Cuts the picked candidates by their next eight bits. */
static __device__ void pick_digit(const row_view &v, const drawing &d, bool by_count, uint64_t bound) {
    pick p = v.s.at;
    clear_bins(v, DIGITS);
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        float e = sample_exponent(v.x[i], d.max, d.temperature);
        unsigned long long place = place_of(v.x[i], v.first + i);
        if (is_picked(p, bin_of(d, e), place))
            add_to_bin(v, DIGITS - 1 - (int)(place >> (p.shift - 8) & 255), sample_weight(e));
    }
    join_bins(v, DIGITS);
    if (v.rank == 0) {
        sum_before(v, DIGITS, p.count_before, p.mass_before);
        tell_pick(v, DIGITS, by_count, bound, true);
    }
    cg::this_cluster().sync(); // the pick is everywhere
}

static __device__ void gather_picked(const row_view &v, const drawing &d) {
    pick p = v.s.at;
    cluster_shared &to = of_rank(v, 0);
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        unsigned long long place = place_of(v.x[i], v.first + i);
        if (is_picked(p, bin_of(d, sample_exponent(v.x[i], d.max, d.temperature)), place))
            to.all.list[atomicAdd(&to.n_list, 1)] = place;
    }
    cg::this_cluster().sync(); // the list is whole
}

/* In the first block: the listed candidate at which the bound is exceeded. */
static __device__ void find_in_list(const row_view &v, const drawing &d, bool by_count, uint64_t bound) {
    joined &all = v.s.all;
    int n = v.s.n_list, i = threadIdx.x;
    unsigned long long mine = i < n ? all.list[i] : 0;
    uint64_t weight = i < n ? sample_weight(sample_exponent(logit_of(mine), d.max, d.temperature)) : 0;
    all.weight[i] = weight;
    __syncthreads(); // all weights are there
    uint64_t count = v.s.at.count_before, mass = v.s.at.mass_before;
    for (int j = 0; i < n && j < n; j++)
        if (all.list[j] > mine)
            count++, mass += all.weight[j];
    uint64_t before = by_count ? count : mass;
    if (i < n && before <= bound && bound - before < (by_count ? 1 : weight))
        v.s.found_id = id_of(mine), v.s.mass_through = mass + weight;
    __syncthreads(); // it is found
}

/* The place in the order of candidates at which count or mass exceeds the bound, which the first block knows; there it stays as
 * found_id and mass_through. Returns whether the bins were used up for it. */
static __device__ bool look_up(const row_view &v, const drawing &d, bool by_count, uint64_t bound) {
    if (v.rank == 0)
        tell_pick(v, BINS, by_count, bound, false);
    cg::this_cluster().sync(); // the pick is everywhere
    bool is_crowded = v.s.at.n > LIST;
    while (v.s.at.n > LIST)
        pick_digit(v, d, by_count, bound);
    gather_picked(v, d);
    if (v.rank == 0)
        find_in_list(v, d, by_count, bound);
    return is_crowded;
}

/* After this the first block knows the token, as found_id. */
static __device__ void draw(const row_view &v, float max) {
    const drow &a = v.s.asked;
    drawing d = {max, a.temperature, fmaxf(a.least, SAMPLE_LEAST_EXPONENT)};
    bool is_first = v.rank == 0;
    uint64_t total = 0; // of what is left, in the first block
    fill_bins(v, d);
    if (is_first)
        total = v.s.all.mass[BINS];
    if (a.top_k > 0) {
        uint32_t n = is_first ? v.s.all.count[BINS] : 1;
        if (look_up(v, d, true, min((uint32_t)a.top_k, n) - 1))
            fill_bins(v, d);
        total = v.s.mass_through;
    }
    if (a.top_p < 1) {
        if (look_up(v, d, false, is_first ? sample_reach(a.top_p, total) : 0))
            fill_bins(v, d);
        total = v.s.mass_through;
    }
    look_up(v, d, false, is_first ? sample_point(a.bits, total) : 0);
}

// ---- a row ------------------------------------------------------------------------------------------------------

static __device__ void write_result(const row_view &v, const dsampled &result) {
    if (v.rank != 0 || threadIdx.x != 0)
        return;
    v.plan.places->sampled[v.r] = result;
    v.plan.places->row_token[v.r] = result.token;
}

/* log(sum(exp)) of the raw row, in the first block after a barrier. */
static __device__ float log_sum_told(const row_view &v, float max) {
    unsigned long long sum = 0;
    for (int rank = 0; rank < v.n_ranks; rank++)
        sum += v.s.sums[rank];
    return (float)((double)max + log((double)sum * (1.0 / (double)(1ull << SAMPLE_WEIGHT_BITS))));
}

static __device__ void score(const row_view &v, best raw, int n_vocab, dsampled &result) {
    float log_sum = log_sum_told(v, raw.logit);
    int above = 0;
    for (int rank = 0; rank < v.n_ranks; rank++)
        above += v.s.above[rank];
    result.logprob = v.raw[result.token] - log_sum;
    if (v.s.asked.target >= 0) {
        result.target_logprob = v.raw[v.s.asked.target] - log_sum;
        result.target_rank = above + 1;
    }
}

static __device__ void sample_row(const row_view &v, best raw, int n_vocab) {
    const drow &a = v.s.asked;
    dsampled result = {raw.id, raw.id, 0, 0, 0, 0};
    if (a.is_scored) {
        tell_sums(v, raw.logit);
        cg::this_cluster().sync(); // the first block has every sum
        if (a.n_top > 0)
            write_top(v, v.rank == 0 ? log_sum_told(v, raw.logit) : 0, n_vocab);
    }
    best top = raw;
    if (a.is_changed) {
        change_slice(v);
        cg::this_cluster().sync(); // every block knows every best
        top = best_told(v, 1);
        result.token = top.id;
        result.flags = top.logit > -INFINITY ? 0 : SAMPLED_NOTHING_LEFT;
    }
    if (a.temperature > 0 && result.flags == 0) {
        draw(v, top.logit);
        result.token = v.s.found_id;
    }
    if (a.is_scored && v.rank == 0)
        score(v, raw, n_vocab, result);
    write_result(v, result);
}

static __global__ void __launch_bounds__(THREADS, 2) sample(device_plan plan, dmat logits, int slice) {
    extern __shared__ __align__(16) char memory[];
    cluster_shared &shared = *reinterpret_cast<cluster_shared *>(memory);
    let_next_start();
    cg::cluster_group cluster = cg::this_cluster();
    int rank = (int)cluster.block_rank(), n_ranks = (int)cluster.num_blocks(), r = (int)blockIdx.x / n_ranks, first = rank * slice;
    row_view v = {plan, shared,  reinterpret_cast<float *>(memory + SHARED_BYTES),
                  r,    first,   max(0, min(slice, logits.width - first)),
                  rank, n_ranks, static_cast<const float *>(logits.at) + r * logits.stride};
    cluster.barrier_arrive(); // this block has started
    if (threadIdx.x == 0)
        shared.any_bad = 0;
    wait_for_previous();
    bool is_there = r < step_rows(plan);
    if (is_there && threadIdx.x < sizeof(drow) / 4)
        reinterpret_cast<int32_t *>(&shared.asked)[threadIdx.x] = reinterpret_cast<const int32_t *>(plan.rows + r)[threadIdx.x];
    cluster.barrier_wait(); // all blocks have started: their memory may be written
    __syncthreads();        // asked and any_bad
    if (!is_there)
        return;
    read_slice(v, !shared.asked.is_plain);
    cluster.sync(); // every block knows every best
    best raw = best_told(v, 0);
    int bad = 0;
    for (int i = 0; i < n_ranks; i++)
        bad |= shared.bad[i];
    if (bad || raw.logit == -INFINITY)
        write_result(v, dsampled{raw.id, raw.id, 0, SAMPLED_NOT_FINITE, 0, 0});
    else if (shared.asked.is_plain)
        write_result(v, dsampled{raw.id, raw.id, 0, 0, 0, 0});
    else
        sample_row(v, raw, logits.width);
}

// ---- launching --------------------------------------------------------------------------------------------------

enum { MOST_SLICE = (227 * 1024 - SHARED_BYTES) / 4, FEW_ROWS = 8 };

static int slice_of(int n_vocab, int n_ranks) { return ((n_vocab + n_ranks - 1) / n_ranks + 3) / 4 * 4; }

bool sample_fits(int n_vocab) { return slice_of(n_vocab, MOST_CLUSTER) <= MOST_SLICE; }

static cudaError_t set_up() {
    cudaFuncSetAttribute(sample, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return cudaFuncSetAttribute(sample, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES + MOST_SLICE * (int)sizeof(float));
}

/* Sixteen blocks a row where that fills no more of the device than there is, or where eight cannot hold the row. */
void launch_sample(const struct launch *l, struct dmat logits) {
    int n_ranks = l->n_rows <= FEW_ROWS || slice_of(logits.width, 8) > MOST_SLICE ? 16 : 8, slice = slice_of(logits.width, n_ranks);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {(unsigned)n_ranks, 1, 1};
    cudaLaunchConfig_t config = {dim3(l->n_rows * n_ranks), dim3(THREADS), SHARED_BYTES + slice * sizeof(float), l->stream, attributes, 2};
    static const cudaError_t is_set_up = set_up();
    (void)is_set_up; // what went wrong shows as cudaGetLastError
    cudaLaunchKernelEx(&config, sample, l->plan, logits, slice);
}
