/* sample_slice.cuh - of sample.cu: a row of logits as the blocks of a cluster have it, each a slice in its shared
 * memory (sample_cluster.cuh, sample_best.cuh). Here are the counts and masses by which cuts are found. sample.cu says
 * how these serve. */
#pragma once

#include "backend/cuda/sample/sample_best.cuh"

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
