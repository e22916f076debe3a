/* prefill_rows.cuh - of attention_prefill.cu: queries on their way to shared memory, rounded to what scores are
 * multiplied in, and results on their way out.
 *
 * Over a cache of 16 bits that is its element, over int8 float16. Over e4m3 a row is first brought to at most 256 by a
 * power of two, its scale, and then is the sum of two e4m3: what rounding x leaves, and the rounding of that, eight
 * bits of fraction in all. So two products of e4m3, which are twice as fast, stand for one of float16, and keys need
 * not be widened.
 *
 *     row    [DIM bytes of the larger][DIM bytes of the smaller], in panels of 128 bytes */
#pragma once

#include "backend/cuda/attention/prefill/prefill_queries.cuh"

namespace {

/* Of eight queries: the largest size, and as a larger and a smaller part what they are times a power of two. */
template <element Q> struct split {
    static __device__ float largest(const eight_queries<Q> &x) {
        float most = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            most = fmaxf(most, fmaxf(fabsf(x.pair(k).x), fabsf(x.pair(k).y)));
        return most;
    }
    static __device__ void parts(const eight_queries<Q> &x, float by, uint32_t (&large)[4], uint32_t (&small)[4]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 y = {x.pair(k).x * by, x.pair(k).y * by};
            large[k] = e4m3_of_floats(y.x, y.y);
            uint32_t pair = e4m3_to_pair((uint16_t)large[k]);
            float2 z = __half22float2(reinterpret_cast<__half2 &>(pair));
            small[k] = e4m3_of_floats(y.x - z.x, y.y - z.y);
        }
    }
};
template <> struct split<ELEMENT_F16> { // two at a time
    static __device__ __half2 half(const eight_queries<ELEMENT_F16> &x, int k) {
        uint32_t y = k == 0 ? x.half.x : k == 1 ? x.half.y : k == 2 ? x.half.z : x.half.w;
        return reinterpret_cast<__half2 &>(y);
    }
    static __device__ float largest(const eight_queries<ELEMENT_F16> &x) {
        __half2 most = __hmax2(__hmax2(__habs2(half(x, 0)), __habs2(half(x, 1))),
                               __hmax2(__habs2(half(x, 2)), __habs2(half(x, 3))));
        return fmaxf(__low2float(most), __high2float(most));
    }
    static __device__ void parts(const eight_queries<ELEMENT_F16> &x, float by, uint32_t (&large)[4],
                                 uint32_t (&small)[4]) {
        __half2 factor = __float2half2_rn(by);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            __half2 y = __hmul2(half(x, k), factor);
            large[k] = e4m3_of_pair(reinterpret_cast<uint32_t &>(y));
            uint32_t z = e4m3_to_pair((uint16_t)large[k]);
            y = __hsub2(y, reinterpret_cast<__half2 &>(z));
            small[k] = e4m3_of_pair(reinterpret_cast<uint32_t &>(y));
        }
    }
};

/* Eight channels from c on of row r, times by, as a larger and a smaller part. */
template <class S, element Q>
__device__ void store_split(const memory<S> &m, int r, int c, const eight_queries<Q> &eight, float by) {
    uint32_t large[4], small[4];
    split<Q>::parts(eight, by, large, small);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t *y = half ? small : large;
        int at = half * S::DIM + c, within = at % 128;
        *reinterpret_cast<uint2 *>(m.at(m.query) + at / 128 * S::QUERY_PANEL + r * 128 +
                                   ((within / 16) ^ (r & 7)) * 16 +
                                   within % 16) = {y[0] | y[1] << 16, y[2] | y[3] << 16};
    }
}

/* The power of two that brings a row to at most 256, and what undoes it, of the largest size that each of LANES threads
 * side by side knows. */
template <int LANES> __device__ float row_factor_of(float most, float &back) {
    if (LANES == 32)
        most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
    else
        for (int step = LANES / 2; step > 0; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    int exponent = (int)(__float_as_uint(most) >> 23) - 127; // most is less than 2^(exponent + 1)
    back = __uint_as_float((uint32_t)(127 - 7 + exponent) << 23);
    return __uint_as_float((uint32_t)(127 + 7 - exponent) << 23);
}

/* LANES threads side by side have a row, of EACH times eight channels a thread. Queries of 16 bits, which take as many
 * bytes as their two parts, come to where these are to be: all loads are under way at once, and what is done with a row
 * is a loop of few instructions (as long code that runs once an item, this took 9,000 cycles). */
template <class S, element Q>
__device__ void load_split_rows(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    constexpr int LANES = S::DIM / 8 < 32 ? S::DIM / 8 : 32, EACH = S::DIM / 8 / LANES, AT_ONCE = COMPUTE / LANES;
    constexpr float LEAST = Q == ELEMENT_F16 ? 0x1p-8f : 0x1p-100f; // float16 ends at 2^15, which brings 2^-8 to 128
    int lane = threadIdx.x % LANES;
    if constexpr (Q != ELEMENT_F32) {
#pragma unroll 2
        for (int r = threadIdx.x / LANES; r < S::ROWS; r += AT_ONCE) {
            const char *from = static_cast<const char *>(p.q.at) + query_row<S>(p, part, kv, r) * 2;
            for (int c = lane; c < S::DIM / 8; c += LANES)
                copy_piece(m.query + c / 8 * S::QUERY_PANEL + r * 128 + c % 8 * 16, from + moved<S>(p, 8 * c) * 2);
        }
        await_pieces();
        __syncwarp(); // the warp's rows are there
    }
#pragma unroll 2
    for (int r = threadIdx.x / LANES; r < S::ROWS; r += AT_ONCE) {
        eight_queries<Q> eight[EACH];
        float most = LEAST, back;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int c = lane + e * LANES;
            if constexpr (Q == ELEMENT_F32)
                eight[e].load(p.q, query_row<S>(p, part, kv, r) + moved<S>(p, 8 * c));
            else
                eight[e].half =
                    *reinterpret_cast<const uint4 *>(m.at(m.query) + c / 8 * S::QUERY_PANEL + r * 128 + c % 8 * 16);
            most = fmaxf(most, split<Q>::largest(eight[e]));
        }
        float by = row_factor_of<LANES>(most, back);
        __syncwarp(); // all lanes have read the row
#pragma unroll
        for (int e = 0; e < EACH; e++)
            store_split<S, Q>(m, r, 8 * (lane + e * LANES), eight[e], by);
        if (lane == 0)
            *reinterpret_cast<float *>(m.at(m.row_scales() + r * 4)) = back;
    }
    static_assert(S::ROWS % AT_ONCE == 0, "no row is left over");
}

template <class S, element Q>
__device__ void load_some(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    if constexpr (S::KEYS_AS_THEY_ARE)
        load_split_rows<S, Q>(p, m, part, kv);
    else
        load_rows<S, Q>(p, m, part, kv);
}

template <class S> __device__ void load_queries(const arguments &p, const memory<S> &m, const dpart &part, int kv) {
    if (p.q.element == ELEMENT_F32)
        load_some<S, ELEMENT_F32>(p, m, part, kv);
    else if (p.q.element == ELEMENT_F16)
        load_some<S, ELEMENT_F16>(p, m, part, kv);
    else
        load_some<S, ELEMENT_BF16>(p, m, part, kv);
    fence_bulk();
    threads_sync(1, COMPUTE); // all queries are there
}

/* Eight channels of 16 bits of a result, and the largest size in the row, of which LANES threads side by side have one
 * each. */
template <int LANES, bool BF16>
__device__ void store_eight(const arguments &p, bool is_there, int64_t to, int64_t row, const uint4 &x) {
    if (is_there)
        *reinterpret_cast<uint4 *>(static_cast<char *>(p.out.at) + to * 2) = x;
    if (!p.out.absmax)
        return;
    uint32_t most =
        __vmaxu2(__vmaxu2(x.x & 0x7FFF7FFF, x.y & 0x7FFF7FFF), __vmaxu2(x.z & 0x7FFF7FFF, x.w & 0x7FFF7FFF));
    most = max(most >> 16, most & 0xFFFF); // sizes are in the order of their bits
    if (LANES == 32)
        most = __reduce_max_sync(0xffffffffu, most);
    else
        for (int step = 1; step < LANES; step *= 2)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    float size = BF16 ? __uint_as_float(most << 16) : __half2float(__ushort_as_half((unsigned short)most));
    if (is_there && threadIdx.x % LANES == 0)
        atomicMax(p.out.absmax + row, __float_as_uint(size));
}

} // namespace
