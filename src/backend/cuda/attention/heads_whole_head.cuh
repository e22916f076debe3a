/* heads_whole_head.cuh - of heads_whole.cuh: a head in the registers of a warp, or of eight lanes: loaded, normed,
 * rotated, stored. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

namespace {

struct whole_heads {
    device_plan plan;
    dqkv a;
    const float *cos_sin; // [tokens][N], or NULL
    dmat x, q;
    dweight q_norm, k_norm;
    dcache cache;
    int n_slots, n_warps; // n_warps: that have work, a multiple of the heads of a row
    int n_rows;           // that the step was launched for
};

/* How a lane holds a head: PIECES of V neighbours. A head has so many LANES of a warp, which has HEADS of them. */
template <int N> struct whole_size {
    static constexpr int LANES = N == 64 ? 8 : 32, HEADS = 32 / LANES;
    static constexpr int V = N == 128 ? 2 : 4, P = N / LANES, PIECES = P / V;
    static constexpr int AT_ONCE = N == 128 ? 6 : N == 512 ? 2 : 4; // rows of a warp
    static constexpr int BLOCKS = N == 128 ? 3 : 2;                 // on a multiprocessor
};

/* A lane's number among those of its head. */
template <int N> __device__ int whole_lane() { return threadIdx.x % whole_size<N>::LANES; }
/* Channel of a lane's piece j. */
template <int N> __device__ int whole_channel(int j) {
    return whole_size<N>::V * (whole_size<N>::LANES * j + whole_lane<N>());
}

template <int WORDS> struct alignas(4 * WORDS) whole_words { uint32_t w[WORDS]; };

/* V elements as they lie in memory. */
template <int V, bool WIDE> using whole_piece = whole_words<WIDE ? V : V / 2>;

template <int V, bool WIDE> __device__ void floats_of(const whole_piece<V, WIDE> &piece, element e, float *x) {
    if constexpr (WIDE) {
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = __uint_as_float(piece.w[i]);
    } else {
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            uint32_t two = piece.w[i];
            float2 halves = __half22float2(reinterpret_cast<__half2 &>(two));
            x[2 * i] = e == ELEMENT_F16 ? halves.x : __uint_as_float(two << 16);
            x[2 * i + 1] = e == ELEMENT_F16 ? halves.y : __uint_as_float(two & 0xffff0000u);
        }
    }
}

/* Cosines and sines of a lane's channels in the first half of a head. */
template <int N> struct whole_angles {
    static constexpr int V = whole_size<N>::V, PIECES = whole_size<N>::PIECES / 2;
    float cosine[PIECES][V], sine[PIECES][V];

    __device__ void load(const float *cos_sin) {
        typedef whole_words<V> piece;
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float *at = cos_sin + whole_channel<N>(j);
            *reinterpret_cast<piece *>(cosine[j]) = *reinterpret_cast<const piece *>(at);
            *reinterpret_cast<piece *>(sine[j]) = *reinterpret_cast<const piece *>(at + N / 2);
        }
    }
};

template <class T> __device__ T *of_lane(T *x, int lane) {
    return reinterpret_cast<T *>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(x), lane));
}
__device__ inline int of_lane(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

/* V elements times `by`, in one store. */
template <int V, element E> __device__ void store_some(char *to, const float *x, float by) {
    if constexpr (V == 4) {
        store_piece<4>(to, E, x, by);
    } else {
        float2 two = make_float2(x[0] * by, x[1] * by);
        __nv_bfloat162 bits;
        switch (E) {
        case ELEMENT_F32: *reinterpret_cast<float2 *>(to) = two; break;
        case ELEMENT_F16: *reinterpret_cast<uint32_t *>(to) = two_halves(two.x, two.y); break;
        case ELEMENT_BF16:
            bits = __floats2bfloat162_rn(two.x, two.y);
            *reinterpret_cast<uint32_t *>(to) = reinterpret_cast<uint32_t &>(bits);
            break;
        case ELEMENT_E4M3: *reinterpret_cast<__nv_fp8x2_e4m3 *>(to) = __nv_fp8x2_e4m3(two); break;
        default: *reinterpret_cast<uint16_t *>(to) = (uint16_t)(int8_of(two.x) | int8_of(two.y) << 8);
        }
    }
}

template <int N> struct whole_head {
    static constexpr int V = whole_size<N>::V, PIECES = whole_size<N>::PIECES, P = whole_size<N>::P;
    float x[P];

    template <bool WIDE> __device__ void take(const whole_piece<V, WIDE> (&row)[PIECES], element e) {
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            floats_of<V, WIDE>(row[j], e, x + V * j);
    }
    /* Of a vector of N. */
    __device__ void load(const void *at, element e) {
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] = ::load(at, whole_channel<N>(i / V) + i % V, e);
    }
    __device__ void fill(float by) {
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] = by;
    }
    /* Of a head with this norm: what it is multiplied by. */
    __device__ float norm_factor(float eps) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < P; i++)
            sum += x[i] * x[i];
#pragma unroll
        for (int step = whole_size<N>::LANES / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        return rsqrtf(sum * (1.0f / N) + eps);
    }
    __device__ void normalise(float eps, const whole_head &weight) {
        float factor = norm_factor(eps);
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] *= factor * weight.x[i];
    }
    __device__ void rotate(const whole_angles<N> &a) {
#pragma unroll
        for (int i = 0; i < P / 2; i++) {
            float first = x[i], second = x[i + P / 2], cosine = a.cosine[i / V][i % V], sine = a.sine[i / V][i % V];
            x[i] = first * cosine - second * sine;
            x[i + P / 2] = second * cosine + first * sine;
        }
    }
    /* What is not a number stays so. */
    __device__ float largest() const {
        uint32_t most = 0; // bits of sizes are ordered as they are, and what is not a number is above all
#pragma unroll
        for (int i = 0; i < P; i++)
            most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
        if constexpr (whole_size<N>::HEADS == 1)
            most = __reduce_max_sync(0xffffffffu, most);
#pragma unroll
        for (int step = whole_size<N>::LANES / 2; step > 0 && whole_size<N>::HEADS > 1; step /= 2)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        return __uint_as_float(most);
    }
};

template <int N> __device__ void store_query(const dmat &q, int64_t at, const whole_head<N> &head) {
    constexpr int V = head.V;
#pragma unroll
    for (int j = 0; j < head.PIECES; j++) {
        int64_t i = at + whole_channel<N>(j);
        char *to = static_cast<char *>(q.at) + i * (q.element == ELEMENT_F32 ? 4 : 2);
        const float *x = head.x + V * j;
        switch (q.element) {
        case ELEMENT_F32: store_some<V, ELEMENT_F32>(to, x, 1); break;
        case ELEMENT_F16: store_some<V, ELEMENT_F16>(to, x, 1); break;
        default: store_some<V, ELEMENT_BF16>(to, x, 1);
        }
    }
}

/* Where a head of a token lies in the cache, as kv.cuh says: rows are panels of 128 bytes, or of 64. */
template <int N, element E> struct whole_row {
    static constexpr int SIZE = E == ELEMENT_E4M3 || E == ELEMENT_I8 ? 1 : 2;
    static constexpr int PANEL = N * SIZE < 128 ? N * SIZE : 128, PANELS = N * SIZE / PANEL;
};

struct whole_place {
    char *row;    // of the first panel
    float *scale; // of 8 bits
    int slot;

    __device__ whole_place at(int lane) const {
        return {of_lane(row, lane), of_lane(scale, lane), of_lane(slot, lane)};
    }
};

template <int N, element E>
__device__ whole_place place_of(const whole_heads &p, int seq, int position, bool is_v, int kv) {
    using row = whole_row<N, E>;
    int side = is_v ? p.a.n_kv_heads : 0, slot = position & (p.n_slots - 1);
    char *block = kv_block(p.plan, p.cache, p.n_slots, seq, position);
    char *scales = block + (int64_t)p.a.n_kv_heads * p.n_slots * 2 * N;
    return {block + ((int64_t)(side + kv) * row::PANELS * p.n_slots + slot) * row::PANEL,
            reinterpret_cast<float *>(scales) + (side + kv) * p.n_slots + slot, slot};
}

/* By all lanes; is_there: the head is one of the row's. */
template <int N, element E>
__device__ void store_cached(const whole_place &at, int n_slots, bool is_there, const whole_head<N> &head) {
    constexpr int SIZE = whole_row<N, E>::SIZE, PANEL = whole_row<N, E>::PANEL;
    float by = 1;
    if constexpr (SIZE == 1) {
        float most = head.largest(), scale = most == 0 ? 1.0f : most * (E == ELEMENT_E4M3 ? 1 / 448.0f : 1 / 127.0f);
        if (is_there && whole_lane<N>() == 0)
            *at.scale = scale;
        by = __fdividef(1.0f, scale);
    }
#pragma unroll
    for (int j = 0; j < head.PIECES && is_there; j++) {
        int i = whole_channel<N>(j) * SIZE;
        store_some<head.V, E>(at.row + (int64_t)(i / PANEL) * n_slots * PANEL + kv_swizzled(PANEL, at.slot, i % PANEL),
                              head.x + head.V * j, by);
    }
}

} // namespace
