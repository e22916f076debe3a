/* heads_pairs_head.cuh - of heads_pairs.cuh: a head in half a warp's registers: summed, rotated, stored. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

namespace {

enum { PAIR_WARPS = 8 }; // of a block

template <int N> struct pair_size {
    static constexpr int FOURS = N / 128, LANE = N / 32; // of a lane in either half of a head; its channels there
    static constexpr int PANELS = N / 128;               // of a row of the cache
    static constexpr int BLOCKS = N == 128 ? 3 : 2;      // on a multiprocessor
    static constexpr bool BIASED = N == 128;             // else no registers are left for those
};

struct pair_heads {
    device_plan plan;
    const float *cos_sin; // [tokens][N], or NULL
    dmat x, q;            // raw of half precision; half precision
    dcache cache;
    const float *q_norm, *k_norm; // of NORMED, each may be NULL
    float eps, plus;
    bool v_normed;
    int n_q, n_kv, n_slots, log_slots;
    int n_rows; // that the step was launched for
};

/* Of sizes; what is not a number stays so. */
__device__ inline float larger(float most, float x) {
#if GYRE_HOPPER
    asm("max.NaN.xorsign.abs.f32 %0, %0, %1;" : "+f"(most) : "f"(x));
#else
    most = isnan(x) || isnan(most) ? NAN : fmaxf(fabsf(most), fabsf(x));
#endif
    return most;
}
__device__ inline float larger(float most, float4 x) {
    return larger(larger(larger(larger(most, x.x), x.y), x.z), x.w);
}

/* Over the half of the warp that a lane is in. */
__device__ inline float half_sum(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ inline float half_most(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return fabsf(x);
}

/* A lane's share of a head, times whatever `by` is. */
template <int N> struct half_head {
    static constexpr int FOURS = pair_size<N>::FOURS;
    float4 low[FOURS], high[FOURS];

    __device__ void fill(float by) {
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            low[i] = high[i] = {by, by, by, by};
    }
    __device__ void load(const float *at) {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            low[i] = reinterpret_cast<const float4 *>(at)[i];
            high[i] = reinterpret_cast<const float4 *>(at + N / 2)[i];
        }
    }
    __device__ float squares() const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            sum += dot(low[i], low[i]) + dot(high[i], high[i]);
        return sum;
    }
    __device__ float largest() const {
        float most = 0;
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            most = larger(larger(most, low[i]), high[i]);
        return most;
    }
    __device__ void rotate(const half_head &angles) { // cosines, sines
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            float4 c = angles.low[i], s = angles.high[i], x = low[i], y = high[i];
            low[i] = {x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y, x.z * c.z - y.z * s.z, x.w * c.w - y.w * s.w};
            high[i] = {y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y, y.z * c.z + x.z * s.z, y.w * c.w + x.w * s.w};
        }
    }
};

/* So many registers, as one load or store has them. */
template <int WORDS> struct alignas(4 * WORDS) pair_words {
    uint32_t w[WORDS];
    template <class T> __device__ static pair_words at(const T *from) {
        return *reinterpret_cast<const pair_words *>(from);
    }
    template <class T> __device__ void put(T *to) const { *reinterpret_cast<pair_words *>(to) = *this; }
};

/* Fours in half precision, as they lie in memory. */
template <int FOURS> struct pair_halves : pair_words<2 * FOURS> {
    __device__ float4 four(int i) const {
        return floats_of<ELEMENT_F16>(make_uint2(this->w[2 * i], this->w[2 * i + 1]));
    }
    __device__ void set(int i, float4 x) {
        uint2 two = stored_of<ELEMENT_F16>(x);
        this->w[2 * i] = two.x, this->w[2 * i + 1] = two.y;
    }
};
template <int FOURS> __device__ inline void store_fours(__half *to, const float4 (&x)[FOURS]) {
    pair_halves<FOURS> halves;
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        halves.set(i, x[i]);
    halves.put(to);
}
template <int FOURS> __device__ inline void store_bytes(char *to, const float4 (&x)[FOURS], float by) {
    pair_words<FOURS> bytes;
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        bytes.w[i] = e4m3_of(x[i] * by);
    bytes.put(to);
}

/* To the place of a key or value in the cache, as kv.cuh says; sides: keys' heads, then values'. */
template <int N>
__device__ inline void store_pair_cached(const pair_heads &p, int block, int slot, int side, int sub,
                                         const half_head<N> &head) {
    constexpr int PANELS = pair_size<N>::PANELS, LANE = pair_size<N>::LANE;
    float most = half_most(head.largest()), scale = most == 0 ? 1.0f : most * (1 / 448.0f);
    char *in = static_cast<char *>(p.cache.at) + block * p.cache.block_elements,
         *row = in + (side * PANELS * p.n_slots + slot) * 128;
    float by = __fdividef(1.0f, scale);
    if (sub == 0)
        reinterpret_cast<float *>(in + 2 * p.n_kv * p.n_slots * N)[side * p.n_slots + slot] = scale;
    int low = LANE * sub, high = N / 2 + LANE * sub;
    store_bytes(row + kv_swizzled(128, slot, low), head.low, by);
    store_bytes(row + high / 128 * p.n_slots * 128 + kv_swizzled(128, slot, high % 128), head.high, by);
}

} // namespace
