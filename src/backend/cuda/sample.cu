/* sample.cu - SAMPLE: all of core/sample.h, in one node. A cluster of thread blocks takes a row of logits, and beyond 128 rows another one behind it;
 * where the head has looked for the largest itself (head.cu), a warp takes a plain row's from what it left, 1 KB, and its logits are not read.
 * Where the step's tokens are told already (screen.cu), it ends at once.
 *
 * Each block of the cluster holds a slice of the row in its shared memory, so the row is read once, by bulk copies that are all
 * asked for at once; what the slices say is joined in the first block's. With x the row after bias, bans and penalties and e = (x - max) / temperature, weights are the
 * integers of core/sample_weight.h, whose sums do not depend on the order: the token is that of sample_row, bit for bit.
 *
 * Nothing is sorted. top_k, top_p and the draw each ask for a place in the descending order of candidates: the first at which the
 * count, or the mass, exceeds a bound. One pass counts and weighs what is above each of eight edges of e, in registers. The most
 * probable candidates, at most LIST of them, go to the first block, where each looks at all others to find what stands before it;
 * for most rows that answers all three. A place further down is looked for in the range between two edges: if that holds more than
 * LIST, a histogram of the range in 1,024 bins and, where ties fill a bin, cuts by eight bits of (key, id) leave few enough.
 *
 * Greedy rows end at the first cluster barrier. Log-probabilities are of the raw row, read before it is changed. Bytes: the row, once.
 * Blocks push what they know into the others' memory before a barrier, never pull after a row's last one, so a block may go on or end then. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/device.cuh"
#include "core/sample_weight.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

#ifdef GYRE_RACECHECK
enum { THREADS = 256 }; // each barrier of a cluster of 512 threads costs racecheck 100 ms
#else
enum { THREADS = 512 };
#endif

enum {
    WARPS = THREADS / 32,
    EDGES = 8,
    BINS = 1024,       // of the range between two edges
    DIGITS = 256,      // of a cut by eight bits
    LIST = 256,        // candidates that the first block looks at one by one
    CHUNK = 8192,      // tokens whose history is counted at a time
    MOST_CLUSTER = 16, // more than 8 is not portable, but every Hopper has it
    PIECES = 4,        // that a slice is copied in
};

/* Range i of e reaches down to edge i; the last one to the end of the candidates. Bins are powers of two wide, so that an e is
 * never on the wrong side of where one begins. */
static __device__ float edge_of(int i) {
    return i == 0   ? -1.0f
           : i == 1 ? -2.0f
           : i == 2 ? -3.0f
           : i == 3 ? -4.0f
           : i == 4 ? -6.0f
           : i == 5 ? -8.0f
           : i == 6 ? -11.0f
                    : -INFINITY;
}
static __device__ float bins_a_unit(int range) { return range < 4 ? 1024.0f : range < 6 ? 512.0f : range == 6 ? 256.0f : 32.0f; }

struct best {
    float logit;
    int id;
};

/* How many candidates are at each edge or above, and what they weigh. */
struct reached {
    uint32_t count[EDGES];
    unsigned long long mass[EDGES];
};

/* What is looked at: candidates of a range, of a bin of it unless that is -1, whose leading bits are `prefix`. */
struct pick {
    float low, high; // low <= e < high
    int range, bin, n;
    int shift; // of the bits that are not told apart; 64: all
    unsigned long long prefix, count_before, mass_before;
};

struct bins {
    uint32_t count[BINS], low[BINS], high[BINS]; // mass in two halves: shared memory adds 32 bits at a time
};

struct listed {
    unsigned long long place, weight;
};

/* Of the first block: the sums of all blocks' bins, then what stands before each; and candidates, with what stands before them. */
struct joined {
    uint32_t count[BINS + 1];
    unsigned long long mass[BINS + 1];
    listed list[LIST];
    unsigned long long mass_before[LIST];
    uint32_t count_before[LIST];
};

struct cluster_shared {
    drow asked;
    uint64_t copied[PIECES];     // barriers
    best bests[2][MOST_CLUSTER]; // of every block; of the raw and of the changed row
    int bad[MOST_CLUSTER];
    reached of_blocks[2][MOST_CLUSTER]; // likewise
    reached all_reached;
    unsigned long long next[2][MOST_CLUSTER]; // the best not taken yet, by turns
    pick at;
    // of the first block
    unsigned long long mass_through; // up to the place found last, it included
    int found_id, n_list, above;     // above: the target
    // of a block
    int row, base;     // the cluster's row; the first of the next 32 that it looks at
    uint32_t left;     // of the last 32, those that it has still to do
    uint32_t n_copied; // rows that bulk copies brought
    best warp_bests[WARPS];
    reached of_warps[WARPS];
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

/* Whether the slice lies as bulk copies want it. */
static __device__ bool in_bulk(const row_view &v) { return reinterpret_cast<uintptr_t>(v.raw + v.first) % 16 == 0 && v.n % 4 == 0; }

/* In fours. */
static __device__ int piece_begin(const row_view &v, int piece) { return v.n / 4 * piece / PIECES; }

/* One thread, once the barriers are there and the logits. */
static __device__ void copy_slice(const row_view &v) {
    for (int piece = 0; piece < PIECES; piece++) {
        int begin = piece_begin(v, piece), n_bytes = (piece_begin(v, piece + 1) - begin) * (int)sizeof(float4);
        uint32_t barrier = shared_address(&v.s.copied[piece]);
        barrier_expect(barrier, n_bytes);
        if (n_bytes > 0)
            bulk_copy(shared_address(v.x + 4 * begin), v.raw + v.first + 4 * begin, n_bytes, barrier);
    }
}

/* Looks at the slice as it comes. */
static __device__ void look_at_copy(const row_view &v, best &mine, int &bad) {
    for (int piece = 0; piece < PIECES; piece++) {
        barrier_wait(shared_address(&v.s.copied[piece]), v.s.n_copied & 1);
        for (int i = piece_begin(v, piece) + threadIdx.x; i < piece_begin(v, piece + 1); i += THREADS) {
            float4 q = reinterpret_cast<const float4 *>(v.x)[i];
            look_at(q.x, v.first + 4 * i, mine, bad);
            look_at(q.y, v.first + 4 * i + 1, mine, bad);
            look_at(q.z, v.first + 4 * i + 2, mine, bad);
            look_at(q.w, v.first + 4 * i + 3, mine, bad);
        }
    }
}

/* The slice is in shared memory after this, and whole fours. */
static __device__ void read_slice(const row_view &v) {
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    if (in_bulk(v)) {
        look_at_copy(v, mine, bad);
    } else {
        for (int i = threadIdx.x; i < v.n; i += THREADS) {
            float x = v.raw[v.first + i];
            look_at(x, v.first + i, mine, bad);
            v.x[i] = x;
        }
        if (threadIdx.x < 4 && v.n + (int)threadIdx.x < (v.n + 3) / 4 * 4)
            v.x[v.n + threadIdx.x] = -INFINITY;
    }
    tell_best(v, 0, mine, bad);
}

// ---- counts and masses ------------------------------------------------------------------------------------------

/* e = (x - max) / temperature as core/sample_weight.h has it, divided by multiplying: with the rounded inverse and two corrections the
 * quotient is the rounded one, but where a candidate's e cannot depend on it (next to 0), or is none (what overflows is NaN here). */
struct drawing {
    float max, temperature, inverse, least; // least: what is lower is no candidate
    bool divides;                           // an extreme temperature or maximum: by the division itself
};

static __device__ drawing drawing_of(float max, float temperature, float least) {
    bool divides = !(temperature > 0x1p-40f && temperature < 0x1p40f) || isinf(max);
    return drawing{max, temperature, __frcp_rn(temperature), least, divides};
}

static __device__ float exponent_of(const drawing &d, float x) {
    if (d.divides)
        return sample_exponent(x, d.max, d.temperature);
    float a = __fadd_rn(x, -d.max), q = __fmul_rn(a, d.inverse);
    q = __fmaf_rn(__fmaf_rn(-q, d.temperature, a), d.inverse, q);
    return __fmaf_rn(__fmaf_rn(-q, d.temperature, a), d.inverse, q);
}

/* The sum of 32 numbers below 2^54, known to the warp. */
static __device__ unsigned long long warp_sum_of(unsigned long long x) {
    uint32_t low = __reduce_add_sync(0xffffffffu, (uint32_t)x & 0x7ffffffu), high = __reduce_add_sync(0xffffffffu, (uint32_t)(x >> 27));
    return low + ((unsigned long long)high << 27);
}

/* What the block's slice reaches goes to every block. */
static __device__ void tell_reached(const row_view &v, int slot, const uint32_t counts[EDGES], const unsigned long long masses[EDGES]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < EDGES; i++) {
        uint32_t count = __reduce_add_sync(0xffffffffu, counts[i]);
        unsigned long long mass = warp_sum_of(masses[i]);
        if (lane == i)
            v.s.of_warps[warp].count[i] = count, v.s.of_warps[warp].mass[i] = mass;
    }
    __syncthreads(); // every warp's are there
    int i = threadIdx.x % EDGES, rank = threadIdx.x / EDGES;
    if (rank >= v.n_ranks)
        return;
    uint32_t count = 0;
    unsigned long long mass = 0;
    for (int w = 0; w < WARPS; w++)
        count += v.s.of_warps[w].count[i], mass += v.s.of_warps[w].mass[i];
    reached &to = of_rank(v, rank).of_blocks[slot][v.rank];
    to.count[i] = count, to.mass[i] = mass;
}

/* After a cluster barrier. */
static __device__ const reached &all_reached(const row_view &v, int slot) {
    reached &all = v.s.all_reached;
    if (threadIdx.x < EDGES) {
        uint32_t count = 0;
        unsigned long long mass = 0;
        for (int rank = 0; rank < v.n_ranks; rank++)
            count += v.s.of_blocks[slot][rank].count[threadIdx.x], mass += v.s.of_blocks[slot][rank].mass[threadIdx.x];
        all.count[threadIdx.x] = count, all.mass[threadIdx.x] = mass;
    }
    __syncthreads(); // all edges' are there
    return all;
}

/* Of a candidate. */
static __device__ unsigned long long weight_of(float e) {
    int32_t k;
    float mantissa = sample_mantissa(e, &k);
    return sample_scaled(mantissa, k);
}

/* Without edges only what is above the last one, all candidates, is told. Returns how many of the slice this thread saw above
 * `wanted`. */
template <bool with_edges> static __device__ int weigh_slice(const row_view &v, int slot, const drawing &d, float wanted) {
    uint32_t counts[EDGES] = {};
    unsigned long long masses[EDGES] = {};
    int above = 0;
    for (int i = threadIdx.x; i < (v.n + 3) / 4; i += THREADS) {
        float4 q = reinterpret_cast<const float4 *>(v.x)[i];
        float four[4] = {q.x, q.y, q.z, q.w}, e[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            e[j] = exponent_of(d, four[j]);
            above += four[j] > wanted;
            unsigned long long w = e[j] >= d.least ? weight_of(e[j]) : 0;
            counts[EDGES - 1] += e[j] >= d.least, masses[EDGES - 1] += w;
            if constexpr (with_edges)
                if (e[j] >= fmaxf(d.least, edge_of(EDGES - 2))) {
#pragma unroll
                    for (int k = 0; k < EDGES - 1; k++)
                        if (e[j] >= edge_of(k))
                            counts[k]++, masses[k] += w;
                }
        }
    }
    tell_reached(v, slot, counts, masses);
    return above;
}

/* The range that is as long as a list may be, from the top: its edge, or -1 where more than LIST are above the first. */
static __device__ int top_of(const reached &all) {
    int range = -1;
    while (range + 1 < EDGES && all.count[range + 1] <= LIST)
        range++;
    return range;
}

/* Descending: by logit, then by id from low to high. */
static __device__ unsigned long long place_of(float x, int id) {
    return (unsigned long long)sample_key(x) << 32 | (0xffffffffu - (uint32_t)id);
}
static __device__ int id_of(unsigned long long place) { return (int)(0xffffffffu - (uint32_t)place); }
static __device__ float logit_of(unsigned long long place) { return sample_key_logit((uint32_t)(place >> 32)); }

static __device__ int bin_of(const pick &p, float e) {
    float start = p.range > 0 ? -edge_of(p.range - 1) : 0.0f, unit = bins_a_unit(p.range);
    return min((int)(-e * unit) - (int)(start * unit), (int)BINS - 1);
}

static __device__ bool is_picked(const pick &p, float e, unsigned long long place) {
    return e >= p.low && e < p.high && (p.bin < 0 || bin_of(p, e) == p.bin) && (p.shift == 64 || place >> p.shift == p.prefix);
}

/* Down to an edge, but to candidates only. */
static __device__ float lowest_of(const drawing &d, int range) { return fmaxf(d.least, edge_of(range)); }

/* What is picked goes to the first block's list, which is empty. */
static __device__ void gather(const row_view &v, const drawing &d, const pick &p) {
    cluster_shared &to = of_rank(v, 0);
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        float e = exponent_of(d, v.x[i]);
        if (!(e >= p.low && e < p.high))
            continue;
        unsigned long long place = place_of(v.x[i], v.first + i);
        if (is_picked(p, e, place))
            to.all.list[atomicAdd(&to.n_list, 1)] = listed{place, weight_of(e)};
    }
    cg::this_cluster().sync(); // the list is whole
}

/* In the first block: what stands before each of the list, to begin with what stands before all. As many threads look for one
 * as there are, up to a warp. */
static __device__ void rank_list(const row_view &v, uint32_t count_before, unsigned long long mass_before) {
    joined &all = v.s.all;
    int n = v.s.n_list, each = THREADS / LIST;
    while (each < 32 && n * each * 2 <= THREADS)
        each *= 2;
    int i = threadIdx.x / each, part = threadIdx.x % each;
    unsigned long long mine = i < n ? all.list[i].place : ~0ull, mass = 0;
    uint32_t count = 0;
    for (int j = part; j < n; j += each)
        if (all.list[j].place > mine)
            count++, mass += all.list[j].weight;
    for (int step = 1; step < each; step *= 2) {
        count += __shfl_xor_sync(0xffffffffu, count, step);
        mass += __shfl_xor_sync(0xffffffffu, mass, step);
    }
    if (i < n && part == 0)
        all.count_before[i] = count_before + count, all.mass_before[i] = mass_before + mass;
    __syncthreads(); // all are known
}

/* In the first block: the listed candidate at which the bound is exceeded, if it is there. */
static __device__ void find_in_list(const row_view &v, bool by_count, unsigned long long bound) {
    const joined &all = v.s.all;
    int i = threadIdx.x;
    if (i < v.s.n_list) {
        unsigned long long before = by_count ? all.count_before[i] : all.mass_before[i];
        if (before <= bound && bound - before < (by_count ? 1 : all.list[i].weight))
            v.s.found_id = id_of(all.list[i].place), v.s.mass_through = all.mass_before[i] + all.list[i].weight;
    }
    __syncthreads(); // it is found
}

// ---- log-probabilities of the raw row ---------------------------------------------------------------------------

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

/* One after the other, for rows with more than LIST tokens near the top: what comes after the one before in every slice, then the
 * best of those. */
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
        cg::this_cluster().sync(); // every slice's next is everywhere
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
    drawing d = drawing_of(max, 1, SAMPLE_LEAST_EXPONENT);
    int target = v.s.asked.target;
    float wanted = target >= 0 ? v.raw[target] : INFINITY;
    int above = v.s.asked.n_top > 0 ? weigh_slice<true>(v, 0, d, wanted) : weigh_slice<false>(v, 0, d, wanted);
    above = (int)__reduce_add_sync(0xffffffffu, (uint32_t)above);
    if (target >= 0 && threadIdx.x % 32 == 0)
        atomicAdd(&of_rank(v, 0).above, above);
    cg::this_cluster().sync(); // every block knows what is reached, the first one the rank
    const reached &all = all_reached(v, 0);
    float log_sum = (float)((double)max + log((double)all.mass[EDGES - 1] * (1.0 / (double)(1ull << SAMPLE_WEIGHT_BITS))));
    if (target >= 0) {
        result.target_logprob = v.raw[target] - log_sum;
        result.target_rank = v.s.above + 1;
    }
    if (v.s.asked.n_top > 0)
        take_top(v, d, all, min(v.s.asked.n_top, n_vocab), log_sum);
    return log_sum;
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

static __device__ void add_to_bin(const row_view &v, int bin, unsigned long long weight) {
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
        unsigned long long mass = 0;
        for (int rank = 0; rank < v.n_ranks; rank++) {
            const bins &h = of_rank(v, rank).own;
            count += h.count[bin];
            mass += (unsigned long long)h.high[bin] << 32 | h.low[bin];
        }
        of_rank(v, 0).all.count[bin] = count;
        of_rank(v, 0).all.mass[bin] = mass;
    }
    cg::this_cluster().sync();
}

/* In the first block: the sum of each bin becomes what stands before it; entry n gets the total. */
static __device__ void sum_before(const row_view &v, int n, unsigned long long count_before, unsigned long long mass_before) {
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

/* In the first block: the range at which the bound is exceeded, told to every block by a thread each. */
static __device__ void tell_range(const row_view &v, const drawing &d, bool by_count, unsigned long long bound) {
    const reached &all = v.s.all_reached;
    if (threadIdx.x == 0)
        v.s.n_list = 0;
    if (threadIdx.x >= v.n_ranks)
        return;
    int i = 0;
    while (i < EDGES - 1 && (by_count ? all.count[i] : all.mass[i]) <= bound)
        i++;
    uint32_t count_before = i > 0 ? all.count[i - 1] : 0;
    of_rank(v, threadIdx.x).at = pick{lowest_of(d, i), i > 0 ? edge_of(i - 1) : INFINITY, i, -1, (int)(all.count[i] - count_before), 64, 0,
                                      count_before,    i > 0 ? all.mass[i - 1] : 0};
}

/* In the first block: of n bins the one at which the bound is exceeded, told to every block as what `p` becomes there. */
static __device__ void tell_bin(const row_view &v, int n, bool by_count, unsigned long long bound, pick p) {
    const joined &all = v.s.all;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        bool is_it = by_count ? all.count[i] <= bound && bound < all.count[i + 1] : all.mass[i] <= bound && bound < all.mass[i + 1];
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
    for (int i = threadIdx.x; i < v.n; i += THREADS) {
        float e = exponent_of(d, v.x[i]);
        if (!(e >= p.low && e < p.high))
            continue;
        unsigned long long place = place_of(v.x[i], v.first + i);
        if (is_picked(p, e, place))
            add_to_bin(v, p.bin < 0 ? bin_of(p, e) : DIGITS - 1 - (int)(place >> (p.shift - 8) & 255), weight_of(e));
    }
    join_bins(v, n);
    if (v.rank == 0) {
        sum_before(v, n, p.count_before, p.mass_before);
        tell_bin(v, n, by_count, bound, p);
    }
    cg::this_cluster().sync(); // the new pick is everywhere
}

/* The place in the order of candidates at which count or mass exceeds the bound, which the first block knows; there it stays as
 * found_id and mass_through. */
static __device__ void look_up(const row_view &v, const drawing &d, bool by_count, unsigned long long bound) {
    if (v.rank == 0)
        tell_range(v, d, by_count, bound);
    cg::this_cluster().sync(); // the pick is everywhere
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
    unsigned long long total = all.mass[EDGES - 1]; // from here on the first block's alone
    if (a.top_k > 0) {
        look_up(v, d, true, min((uint32_t)a.top_k, all.count[EDGES - 1]) - 1);
        total = v.s.mass_through;
    }
    if (a.top_p < 1) {
        look_up(v, d, false, v.rank == 0 ? sample_reach(a.top_p, total) : 0);
        total = v.s.mass_through;
    }
    look_up(v, d, false, v.rank == 0 ? sample_point(a.bits, total) : 0);
}

/* After this the first block knows the token, as found_id. */
static __device__ void draw(const row_view &v, float max) {
    drawing d = drawing_of(max, v.s.asked.temperature, fmaxf(v.s.asked.least, SAMPLE_LEAST_EXPONENT));
    weigh_slice<true>(v, 1, d, INFINITY);
    cg::this_cluster().sync(); // every block knows what is reached
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
        result.logprob = v.raw[result.token] - log_sum;
    write_result(v, result);
}

/* A plain row of which the head has left the best of each part; a warp's. What is not a number is better than any. */
static __device__ void take_best(const device_plan &plan, int r, const dbests &bests) {
    const dbest *of_row = bests.at + (int64_t)r * HEAD_BESTS;
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    for (int i = threadIdx.x % 32; i < bests.n; i += 32) {
        dbest part = of_row[i];
        bad |= !(part.logit < INFINITY);
        mine = better(mine, best{part.logit, part.id});
    }
    mine = warp_best(mine);
    bad = __any_sync(0xffffffffu, bad) || mine.logit == -INFINITY;
    int token = mine.logit > -INFINITY ? mine.id : 0;
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

/* The next of the cluster's rows of which the head has not said all that is wanted; -1: there is none. Each cluster has every n-th. What is known
 * between two rows is kept in shared memory: registers would be put aside for a row's time, which every barrier waits for. */
static __device__ int next_row(const device_plan &plan, const dbests &bests, cluster_shared &s) {
    if (threadIdx.x < 32) {
        int n_clusters = (int)(gridDim.x / cg::this_cluster().num_blocks()), n_rows = step_rows(plan), base = s.base;
        uint32_t left = s.left;
        for (; left == 0 && base < n_rows; base += 32 * n_clusters) {
            int r = base + (int)threadIdx.x * n_clusters;
            left = __ballot_sync(0xffffffffu, r < n_rows && !(bests.at && plan.rows[r].is_plain));
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

/* A row, by the cluster. Others' memory is written from its first barrier on, and not read after its last. */
static __device__ void take_row(const row_view &v, int n_vocab) {
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0)
        v.s.any_bad = v.s.above = v.s.n_list = 0;
    cluster.barrier_arrive(); // this block has begun with the row, and what others add to is zero
    if (threadIdx.x == 0 && in_bulk(v))
        copy_slice(v);
    if (threadIdx.x < sizeof(drow) / 4)
        reinterpret_cast<int32_t *>(&v.s.asked)[threadIdx.x] = reinterpret_cast<const int32_t *>(v.plan.rows + v.r)[threadIdx.x];
    cluster.barrier_wait(); // all blocks have: their memory may be written
    __syncthreads();        // asked, any_bad and the barriers
    read_slice(v);
    cluster.sync(); // every block knows every best
    best raw = best_told(v, 0);
    int bad = 0;
    for (int i = 0; i < v.n_ranks; i++)
        bad |= v.s.bad[i];
    if (bad || raw.logit == -INFINITY)
        write_result(v, dsampled{raw.id, raw.id, 0, SAMPLED_NOT_FINITE, 0, 0});
    else if (v.s.asked.is_plain)
        write_result(v, dsampled{raw.id, raw.id, 0, 0, 0, 0});
    else
        sample_row(v, raw, n_vocab);
    if (threadIdx.x == 0 && in_bulk(v))
        v.s.n_copied++;
    fence_bulk();    // what was written to the slice comes before the next row's copies
    __syncthreads(); // this block has done with its memory
}

static __global__ void __launch_bounds__(THREADS, 2) sample(device_plan plan, dmat logits, int slice, dbests bests) {
    extern __shared__ __align__(16) char memory[];
    cluster_shared &shared = *reinterpret_cast<cluster_shared *>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        shared.base = (int)(blockIdx.x / cg::this_cluster().num_blocks());
        shared.left = shared.n_copied = 0;
        for (int i = 0; i < PIECES; i++)
            barrier_init(shared_address(&shared.copied[i]), 1);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    wait_for_previous();
    if (bests.done && *bests.done)
        return;
    if (bests.at)
        take_bests(plan, bests);
    for (int r; (r = next_row(plan, bests, shared)) >= 0;) {
        cg::cluster_group cluster = cg::this_cluster();
        int rank = (int)cluster.block_rank(), first = rank * slice;
        row_view v = {plan,
                      shared,
                      reinterpret_cast<float *>(memory + SHARED_BYTES),
                      r,
                      first,
                      max(0, min(slice, logits.width - first)),
                      rank,
                      (int)cluster.num_blocks(),
                      static_cast<const float *>(logits.at) + r * logits.stride};
        take_row(v, logits.width);
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

static cudaError_t set_up() {
    cudaFuncSetAttribute(sample, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return cudaFuncSetAttribute(sample, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES + MOST_SLICE * (int)sizeof(float));
}

/* Sixteen blocks a row where that fills no more of the device than there is, or where eight cannot hold the row. */
void launch_sample(const struct launch *l, struct dmat logits, struct dbests bests) {
    int n_ranks = l->n_rows <= FEW_ROWS || slice_of(logits.width, 8) > MOST_SLICE ? 16 : 8, slice = slice_of(logits.width, n_ranks);
    size_t n_shared = SHARED_BYTES + slice * sizeof(float);
    static const cudaError_t is_set_up = set_up();
    (void)is_set_up; // what went wrong shows as cudaGetLastError
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {(unsigned)n_ranks, 1, 1};
    cudaLaunchConfig_t config = {
        dim3((l->n_rows < MOST_CLUSTERS ? l->n_rows : (int)MOST_CLUSTERS) * n_ranks), dim3(THREADS), n_shared, l->stream, attributes, 2};
    cudaLaunchKernelEx(&config, sample, l->plan, logits, slice, bests);
}
