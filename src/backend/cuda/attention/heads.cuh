/* heads.cuh - a head of q, k or v in the registers of a warp: read, normed, rotated, written; see qkv_prep.cu.
 *
 * A lane holds P channels of the head, up to 16, in pieces of V = 4 (or 1, where a size is no multiple of 4). */
#pragma once

#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

/* Channel of a lane's value i, of pieces of V channels. */
template <int V> __device__ int channel(int i) { return (i / V * 32 + threadIdx.x % 32) * V + i % V; }

template <int V, int P> __device__ void load_head(const dmat &x, int t, int col, int n, float (&head)[P]) {
    int64_t row = t * x.stride + col;
    float factor = x.col_scale ? x.row_scale[t] : 0;
#pragma unroll
    for (int i = 0; i < P; i += V) {
        int c = channel<V>(i);
        if (c >= n) {
            for (int j = 0; j < V; j++)
                head[i + j] = 0;
        } else if (V == 4 && x.element == ELEMENT_F32) {
            float4 four = *reinterpret_cast<const float4 *>(static_cast<const float *>(x.at) + row + c);
            head[i] = four.x, head[i + V / 2 - 1] = four.y, head[i + V / 2] = four.z, head[i + V - 1] = four.w;
        } else if (V == 4 && x.element == ELEMENT_F16) {
            uint2 four = *reinterpret_cast<const uint2 *>(static_cast<const __half *>(x.at) + row + c);
            float2 low = __half22float2(reinterpret_cast<__half2 &>(four.x)),
                   high = __half22float2(reinterpret_cast<__half2 &>(four.y));
            head[i] = low.x, head[i + V / 2 - 1] = low.y, head[i + V / 2] = high.x, head[i + V - 1] = high.y;
            for (int j = 0; j < V && x.col_scale; j++)
                head[i + j] = unscaled_value(x, factor, col + c + j, head[i + j]);
        } else {
            for (int j = 0; j < V; j++)
                head[i + j] = load(x, t, col + c + j);
        }
    }
}

template <int V, int P> __device__ void normalise(const dweight *w, int n, float eps, bool plus_one, float (&head)[P]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < P; i++)
        sum += head[i] * head[i];
    float factor = 1.0f / sqrtf(warp_sum(sum) / n + eps);
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = channel<V>(i);
        head[i] *= c < n && w ? factor * (load(*w, c) + (plus_one ? 1.0f : 0.0f)) : factor;
    }
}

/* The angles of a lane's channels. */
template <int P> struct angles { float cosine[P], sine[P]; };

template <int V, int P> __device__ void load_angles(const drope &rope, int t, angles<P> &a) {
    const float *cos_sin = rope.cos_sin + (int64_t)t * rope.dim;
    int half = rope.dim / 2;
    bool fours = V == 4 && rope.pairing == 0 && half % 4 == 0;
#pragma unroll
    for (int i = 0; i < P; i += V) {
        int c = channel<V>(i);
        if (fours && c < rope.dim) {
            const float *from = cos_sin + (c >= half ? c - half : c);
            *reinterpret_cast<float4 *>(a.cosine + i) = *reinterpret_cast<const float4 *>(from);
            *reinterpret_cast<float4 *>(a.sine + i) = *reinterpret_cast<const float4 *>(from + half);
        }
        for (int j = 0; j < V && !fours; j++) {
            int pair = rope.pairing == 0 ? (c + j) % max(half, 1) : (c + j) / 2;
            if (c + j < rope.dim) {
                a.cosine[i + j] = cos_sin[pair];
                a.sine[i + j] = cos_sin[half + pair];
            }
        }
    }
}

/* Turns the first rope.dim channels; shared holds a head a warp. */
template <int V, int P>
__device__ void rotate(const drope &rope, const angles<P> &a, int n, float *shared, float (&head)[P]) {
    int half = rope.dim / 2;
#pragma unroll
    for (int i = 0; i < P; i++)
        if (channel<V>(i) < n)
            shared[channel<V>(i)] = head[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = channel<V>(i);
        if (c >= rope.dim)
            continue;
        bool second = rope.pairing == 0 ? c >= half : c % 2;
        float other = shared[rope.pairing == 0 ? c + (second ? -half : half) : c ^ 1] * a.sine[i];
        head[i] = head[i] * a.cosine[i] + (second ? other : -other);
    }
}

__device__ inline uint32_t two_halves(float low, float high) {
    __half2 x = __halves2half2(to_half(low), to_half(high));
    return reinterpret_cast<uint32_t &>(x);
}

__device__ inline uint32_t int8_of(float x) {
    return (uint32_t)__float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f)) & 0xFF;
}

/* V elements times `by`, in a row of one 16-byte piece of the cache, in one store. */
template <int V> __device__ void store_piece(char *to, element e, const float *x, float by) {
    if constexpr (V == 1) {
        kv_store(to, e, *x * by);
    } else {
        float4 four = {x[0] * by, x[1] * by, x[2] * by, x[3] * by};
        switch (e) {
        case ELEMENT_F32: *reinterpret_cast<float4 *>(to) = four; break;
        case ELEMENT_F16:
            *reinterpret_cast<uint2 *>(to) = {two_halves(four.x, four.y), two_halves(four.z, four.w)};
            break;
        case ELEMENT_BF16: {
            __nv_bfloat162 low = __floats2bfloat162_rn(four.x, four.y), high = __floats2bfloat162_rn(four.z, four.w);
            *reinterpret_cast<uint2 *>(to) = {reinterpret_cast<uint32_t &>(low), reinterpret_cast<uint32_t &>(high)};
            break;
        }
        case ELEMENT_E4M3: *reinterpret_cast<__nv_fp8x4_e4m3 *>(to) = __nv_fp8x4_e4m3(four); break;
        default:
            *reinterpret_cast<uint32_t *>(to) =
                int8_of(four.x) | int8_of(four.y) << 8 | int8_of(four.z) << 16 | int8_of(four.w) << 24;
        }
    }
}

template <int V, int P> __device__ void store_query(const dmat &q, int t, int col, int n, const float (&head)[P]) {
    int64_t row = t * q.stride + col;
#pragma unroll
    for (int i = 0; i < P; i += V) {
        int c = channel<V>(i);
        if (c >= n)
            continue;
        if (V == 4 && q.element == ELEMENT_F32)
            *reinterpret_cast<float4 *>(static_cast<float *>(q.at) + row + c) = {head[i], head[i + V / 2 - 1],
                                                                                 head[i + V / 2], head[i + V - 1]};
        else if (V == 4 && q.element != ELEMENT_F32)
            store_piece<V>(static_cast<char *>(q.at) + (row + c) * 2, q.element, head + i, 1);
        else
            for (int j = 0; j < V; j++)
                store(q.at, row + c + j, q.element, head[i + j]);
    }
}

/* The scale of a row of a cache of 8 bits, over the warp; what is not a number stays so. */
template <int P> __device__ float row_scale(element e, const float (&head)[P]) {
    float most = 0;
    bool broken = false;
#pragma unroll
    for (int i = 0; i < P; i++) {
        most = fmaxf(most, fabsf(head[i]));
        broken = broken || head[i] != head[i];
    }
    most = warp_max(most);
    return __any_sync(0xffffffffu, broken) ? __int_as_float(0x7fffffff) : kv_scale(e, most);
}

/* A row of keys or values in its slot of a block, and its scale where the cache has 8 bits. */
template <int V, int P>
__device__ void store_cache(const kv_shape &s, char *block, int slot, bool is_v, int kv, int n,
                            const float (&head)[P]) {
    float by = 1;
    if (kv_has_scales(s.e)) {
        float scale = row_scale<P>(s.e, head);
        if (threadIdx.x % 32 == 0)
            *reinterpret_cast<float *>(block + s.scale(is_v, kv, slot)) = scale;
        by = 1.0f / scale;
    }
#pragma unroll
    for (int i = 0; i < P; i += V) {
        int c = channel<V>(i);
        if (c < n)
            store_piece<V>(block + (is_v ? s.value(kv, slot, c) : s.key(kv, slot, c)), s.e, head + i, by);
    }
}
