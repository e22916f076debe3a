/* sample_slice.cuh - of sample.cu: a row of logits as the blocks of a cluster have it, each a slice in its shared
 * memory. What they tell one another of their slices, the best of the row, and the counts and masses by which cuts are
 * found. sample.cu says how these serve. */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"
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

/* Range i of e reaches down to edge i; the last one to the end of the candidates. Deep edges are for rows that ask for
 * so many of the most probable, however improbable those are: the fiftieth is often beyond -11. Bins are powers of two
 * wide, so that an e is never on the wrong side of where one begins. */
static __device__ __forceinline__ float edge_of(bool deep, int i) {
    return i == 0   ? -1.0f
           : i == 1 ? -2.0f
           : i == 2 ? (deep ? -4.0f : -3.0f)
           : i == 3 ? (deep ? -7.0f : -4.0f)
           : i == 4 ? (deep ? -11.0f : -6.0f)
           : i == 5 ? (deep ? -15.0f : -8.0f)
           : i == 6 ? (deep ? -20.0f : -11.0f)
                    : -INFINITY;
}
static __device__ float bins_a_unit(bool deep, int range) { // BINS in the range at most
    if (deep)
        return range < 2 ? 1024.0f : range == 2 ? 512.0f : range < 6 ? 256.0f : range == 6 ? 128.0f : 64.0f;
    return range < 4 ? 1024.0f : range < 6 ? 512.0f : range == 6 ? 256.0f : 32.0f;
}

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

/* Of the first block: the sums of all blocks' bins, then what stands before each; and candidates, with what stands
 * before them. */
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
    float *x;          // the slice, in shared memory; before Hopper in global memory
    int r, first, n;   // row; the slice's first token and how many
    int rank, n_ranks; // of the block in its cluster
    const float *raw;  // the row in global memory
};

static __device__ best better(best a, best b) {
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

static __device__ best warp_best(best x) {
    for (int step = 16; step > 0; step /= 2)
        x = better(x, best{__shfl_xor_sync(0xffffffffu, x.logit, step), __shfl_xor_sync(0xffffffffu, x.id, step)});
    return x;
}

/* The blocks of a row. Before Hopper there is one: its barriers are the block's. */
static __device__ cluster_shared &of_rank(const row_view &v, int rank) {
#if GYRE_HOPPER
    return *cg::this_cluster().map_shared_rank(&v.s, rank);
#else
    return v.s;
#endif
}
static __device__ void row_sync() {
#if GYRE_HOPPER
    cg::this_cluster().sync();
#else
    __syncthreads();
#endif
}
static __device__ void row_arrive() {
#if GYRE_HOPPER
    cg::this_cluster().barrier_arrive();
#endif
}
static __device__ void row_wait() {
#if GYRE_HOPPER
    cg::this_cluster().barrier_wait();
#endif
}
static __device__ int row_blocks() {
#if GYRE_HOPPER
    return (int)cg::this_cluster().num_blocks();
#else
    return 1;
#endif
}
static __device__ int row_rank() {
#if GYRE_HOPPER
    return (int)cg::this_cluster().block_rank();
#else
    return 0;
#endif
}

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
static __device__ bool in_bulk(const row_view &v) {
    return GYRE_HOPPER && reinterpret_cast<uintptr_t>(v.raw + v.first) % 16 == 0 && v.n % 4 == 0;
}

/* The slice in fours, the last of them filled up. */
static __device__ int n_fours(const row_view &v) { return (v.n + 3) / 4; }

/* A piece begins with one of the times that all threads take a four each. */
static __device__ int piece_begin(const row_view &v, int piece) {
    int times = (n_fours(v) + THREADS - 1) / THREADS;
    return min(times * piece / PIECES * THREADS, n_fours(v));
}

/* One thread, once the barriers are there and the logits. */
static __device__ void copy_slice(const row_view &v) {
#if GYRE_HOPPER
    for (int piece = 0; piece < PIECES; piece++) {
        int begin = piece_begin(v, piece), n_bytes = (piece_begin(v, piece + 1) - begin) * (int)sizeof(float4);
        uint32_t barrier = shared_address(&v.s.copied[piece]);
        barrier_expect(barrier, n_bytes);
        if (n_bytes > 0)
            bulk_copy(shared_address(v.x + 4 * begin), v.raw + v.first + 4 * begin, n_bytes, barrier);
    }
#endif
}

/* Of a slice that does not lie so: it is in shared memory after this. */
static __device__ void load_slice(const row_view &v) {
    for (int i = threadIdx.x; i < v.n; i += THREADS)
        v.x[i] = v.raw[v.first + i];
    if (threadIdx.x < 4 && v.n + (int)threadIdx.x < n_fours(v) * 4)
        v.x[v.n + threadIdx.x] = -INFINITY;
    __syncthreads(); // all of it is there
}

/* A piece of the slice is there, as this thread sees it. */
static __device__ void await_piece(const row_view &v, int piece) {
#if GYRE_HOPPER
    if (in_bulk(v))
        barrier_wait(shared_address(&v.s.copied[piece]), v.s.n_copied & 1);
#endif
}
static __device__ void await_slice(const row_view &v) {
    for (int piece = 0; piece < PIECES; piece++)
        await_piece(v, piece);
}

/* take(four, place of the first in the slice): this thread's fours of some; behind the end of the slice there is
 * -infinity. */
template <class F> static __device__ __forceinline__ void each_four_of(const row_view &v, int begin, int end, F take) {
    for (int i = begin + threadIdx.x; i < end; i += THREADS) {
        float4 q = reinterpret_cast<const float4 *>(v.x)[i];
        const float four[4] = {q.x, q.y, q.z, q.w};
        take(four, 4 * i);
    }
}
/* Of all, as they come. After that the thread sees the whole slice. */
template <class F> static __device__ __forceinline__ void each_four_to_come(const row_view &v, F take) {
#pragma unroll 1
    for (int piece = 0; piece < PIECES; piece++) {
        await_piece(v, piece);
        each_four_of(v, piece_begin(v, piece), piece_begin(v, piece + 1), take);
    }
}

/* The block's best of the row as it is goes to every block. */
static __device__ void look_at_slice(const row_view &v) {
    best mine = {-INFINITY, INT_MAX};
    int bad = 0;
    each_four_to_come(v, [&](const float(&four)[4], int at) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            look_at(four[j], v.first + at + j, mine, bad);
    });
    tell_best(v, 0, mine, bad);
}

// ---- counts and masses ------------------------------------------------------------------------------------------

/* e = (x - max) / temperature as core/sample_weight.h has it, divided by multiplying: with the rounded inverse and two
 * corrections the quotient is the rounded one, but where a candidate's e cannot depend on it (next to 0), or is none
 * (what overflows is NaN here). */
struct drawing {
    float max, temperature, inverse, least; // least: what is lower is no candidate
    bool divides;                           // an extreme temperature or maximum: by the division itself
    bool is_one;                            // temperature 1: nothing is divided
    bool deep;                              // which edges it has
};

static __device__ drawing drawing_of(float max, float temperature, float least, bool deep) {
    bool divides = !(temperature > 0x1p-40f && temperature < 0x1p40f) || isinf(max);
    return drawing{max, temperature, __frcp_rn(temperature), least, divides, temperature == 1 && !divides, deep};
}

static __device__ __noinline__ float divided(float x, float max, float temperature) {
    return sample_exponent(x, max, temperature);
}

static __device__ float exponent_of(const drawing &d, float x) {
    if (d.divides)
        return divided(x, d.max, d.temperature);
    float a = __fadd_rn(x, -d.max), q = __fmul_rn(a, d.inverse);
    q = __fmaf_rn(__fmaf_rn(-q, d.temperature, a), d.inverse, q);
    return __fmaf_rn(__fmaf_rn(-q, d.temperature, a), d.inverse, q);
}

static __device__ __forceinline__ void exponents_of(const drawing &d, const float (&four)[4], float (&e)[4]) {
    if (d.is_one) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            e[j] = __fadd_rn(four[j], -d.max);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
            e[j] = exponent_of(d, four[j]);
    }
}

/* No logit below it has an e of `low`, which is not above 0, or more: e and what it is made of are rounded by less than
 * 2^-21. */
static __device__ float lowest_logit(const drawing &d, float low) {
    return d.divides ? -INFINITY : __fadd_rd(d.max, low * d.temperature * 1.00001f);
}

/* The sum of 32 numbers below 2^54, known to the warp. */
static __device__ unsigned long long warp_sum_of(unsigned long long x) {
    uint32_t low = __reduce_add_sync(0xffffffffu, (uint32_t)x & 0x7ffffffu),
             high = __reduce_add_sync(0xffffffffu, (uint32_t)(x >> 27));
    return low + ((unsigned long long)high << 27);
}

/* What the block's slice reaches goes to every block. */
static __device__ void tell_reached(const row_view &v, int slot, const uint32_t counts[EDGES],
                                    const unsigned long long masses[EDGES]) {
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

/* Without edges only what is above the last one, all candidates, is told. Returns how many of the slice this thread saw
 * above `wanted`. */
template <bool with_edges>
static __device__ int weigh_slice(const row_view &v, int slot, const drawing &d, float wanted) {
    uint32_t counts[EDGES] = {};
    unsigned long long masses[EDGES] = {};
    int above = 0;
    each_four_to_come(v, [&](const float(&four)[4], int) {
        float e[4];
        unsigned long long w[4];
        exponents_of(d, four, e);
#pragma unroll
        for (int j = 0; j < 4; j++)
            above += four[j] > wanted;
        float most = fmaxf(fmaxf(e[0], e[1]), fmaxf(e[2], e[3]));
        if (!(most >= d.least))
            return;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool is = e[j] >= d.least;
            e[j] = is ? e[j] : -40.0f; // which weighs 2^-13, cut to 0: four at a time, without branches
            w[j] = weight_of(e[j]);
            counts[EDGES - 1] += is, masses[EDGES - 1] += w[j];
        }
#pragma unroll
        for (int k = with_edges ? EDGES - 2 : -1; k >= 0; k--) {
            float edge = edge_of(d.deep, k);
            if (!(most >= edge)) // mostly so
                break;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (e[j] >= edge)
                    counts[k]++, masses[k] += w[j];
        }
    });
    tell_reached(v, slot, counts, masses);
    return above;
}

/* The range that is as long as a list may be, from the top: its edge, or -1 where more than LIST are above the first.
 */
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

static __device__ int bin_of(const drawing &d, const pick &p, float e) {
    float start = p.range > 0 ? -p.high : 0.0f, unit = bins_a_unit(d.deep, p.range);
    return min((int)(-e * unit) - (int)(start * unit), (int)BINS - 1);
}

static __device__ bool is_picked(const drawing &d, const pick &p, float e, unsigned long long place) {
    return (p.bin < 0 || bin_of(d, p, e) == p.bin) && (p.shift == 64 || place >> p.shift == p.prefix);
}

/* Down to an edge, but to candidates only. */
static __device__ float lowest_of(const drawing &d, int range) { return fmaxf(d.least, edge_of(d.deep, range)); }

/* take(e, place): what is picked of the slice. Most of it is not, which the logits tell. */
template <class F>
static __device__ __forceinline__ void each_picked(const row_view &v, const drawing &d, const pick &p, F take) {
    float lowest = lowest_logit(d, p.low);
    each_four_of(v, 0, n_fours(v), [&](const float(&four)[4], int at) {
        float e[4];
        if (!(fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3])) >= lowest))
            return;
        exponents_of(d, four, e);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (e[j] >= p.low && e[j] < p.high) {
                unsigned long long place = place_of(four[j], v.first + at + j);
                if (is_picked(d, p, e[j], place))
                    take(e[j], place);
            }
    });
}

/* What is picked goes to the first block's list, which is empty. */
static __device__ void gather(const row_view &v, const drawing &d, const pick &p) {
    cluster_shared &to = of_rank(v, 0);
    each_picked(v, d, p, [&](float e, unsigned long long place) {
        to.all.list[atomicAdd(&to.n_list, 1)] = listed{place, weight_of(e)};
    });
    row_sync(); // the list is whole
}

/* In the first block: what stands before each of the list, to begin with what stands before all. As many threads look
 * for one as there are, up to a warp. */
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
