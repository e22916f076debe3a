/* heads_whole.cuh - of qkv_prep.cu: heads of 128, 256 or 512 channels that are rotated whole or not at all, and a cache of 16 or 8 bits.
 *
 * A warp does one head of every so many rows: what does not depend on the row, the norm's weights and the scales of raw products, stays
 * in its registers, and the next row is on its way while one is computed. Lane l holds channels 4 l .. 4 l + 3 of every 128, so of 256 and
 * more the other channel of a pair is in the same lane, of 128 in lane l ^ 16. Sizes and the cache's element are known to the compiler:
 * with divisions by sizes known at run time a head takes some thousand instructions, and the node is bound by those. */
#pragma once

#include "backend/cuda/heads.cuh"

namespace {

struct whole_heads {
    device_plan plan;
    dqkv a;
    const float *cos_sin; // [tokens][N], or NULL
    dmat x, q;
    dweight q_norm, k_norm;
    dcache cache;
    int n_slots, n_warps; // n_warps: that have work, a multiple of the heads of a row
};

/* Of a row, as it lies in memory: looked at a turn later, so that it can come meanwhile. */
template <int N> struct whole_row {
    uint4 four[N / 128];
    float factor; // of raw products
    int position, seq;

    __device__ void load(const whole_heads &p, int t, int64_t col, bool cached) {
        const dmat &x = p.x;
        int64_t at = t * x.stride + col + 4 * (threadIdx.x % 32);
        if (x.element == ELEMENT_F32)
#pragma unroll
            for (int j = 0; j < N / 128; j++)
                four[j] = *reinterpret_cast<const uint4 *>(static_cast<const float *>(x.at) + at + 128 * j);
        else
#pragma unroll
            for (int j = 0; j < N / 128; j++) {
                uint2 two = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(x.at) + at + 128 * j);
                four[j].x = two.x, four[j].y = two.y;
            }
        factor = x.row_scale ? x.row_scale[t] : 1;
        if (cached) {
            position = p.plan.position[t];
            seq = p.plan.seq_of_row[t];
        }
    }
};

__device__ inline void floats_of(uint4 four, element e, float *x) {
    if (e == ELEMENT_F32) {
        x[0] = __uint_as_float(four.x), x[1] = __uint_as_float(four.y), x[2] = __uint_as_float(four.z), x[3] = __uint_as_float(four.w);
    } else if (e == ELEMENT_F16) {
        float2 low = __half22float2(reinterpret_cast<__half2 &>(four.x)), high = __half22float2(reinterpret_cast<__half2 &>(four.y));
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    } else {
        x[0] = __uint_as_float(four.x << 16), x[1] = __uint_as_float(four.x & 0xffff0000u);
        x[2] = __uint_as_float(four.y << 16), x[3] = __uint_as_float(four.y & 0xffff0000u);
    }
}

/* Cosines and sines of a lane's channels in the first half of a head; of 128 in either half, where they are alike. */
template <int N> struct whole_angles {
    static constexpr int FOURS = N == 128 ? 1 : N / 256;
    float4 cosine[FOURS], sine[FOURS];

    __device__ void load(const float *cos_sin) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            const float *at = cos_sin + 128 * j + 4 * (N == 128 ? lane % 16 : lane);
            cosine[j] = *reinterpret_cast<const float4 *>(at);
            sine[j] = *reinterpret_cast<const float4 *>(at + N / 2);
        }
    }
};

template <int N> struct whole_head {
    static constexpr int FOURS = N / 128, P = N / 32;
    float x[P];

    __device__ void take(const whole_row<N> &row, element e) {
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            floats_of(row.four[j], e, x + 4 * j);
    }
    /* Of a vector of N. */
    __device__ void load(const void *at, element e) {
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int64_t i = 128 * j + 4 * (threadIdx.x % 32);
            uint2 two = {};
            if (e != ELEMENT_F32)
                two = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(at) + i);
            uint4 four =
                e == ELEMENT_F32 ? *reinterpret_cast<const uint4 *>(static_cast<const float *>(at) + i) : uint4{two.x, two.y, 0, 0};
            floats_of(four, e, x + 4 * j);
        }
    }
    __device__ void fill(float by) {
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] = by;
    }
    __device__ void normalise(float eps, const whole_head &weight) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < P; i++)
            sum += x[i] * x[i];
        float factor = rsqrtf(warp_sum(sum) * (1.0f / N) + eps);
#pragma unroll
        for (int i = 0; i < P; i++)
            x[i] *= factor * weight.x[i];
    }
    __device__ void rotate(const whole_angles<N> &a) {
        if constexpr (N == 128) {
            const float cosine[4] = {a.cosine[0].x, a.cosine[0].y, a.cosine[0].z, a.cosine[0].w};
            const float sine[4] = {a.sine[0].x, a.sine[0].y, a.sine[0].z, a.sine[0].w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float other = __shfl_xor_sync(0xffffffffu, x[i], 16) * sine[i];
                x[i] = x[i] * cosine[i] + (threadIdx.x % 32 < 16 ? -other : other);
            }
        } else {
#pragma unroll
            for (int j = 0; j < FOURS / 2; j++) {
                const float cosine[4] = {a.cosine[j].x, a.cosine[j].y, a.cosine[j].z, a.cosine[j].w};
                const float sine[4] = {a.sine[j].x, a.sine[j].y, a.sine[j].z, a.sine[j].w};
#pragma unroll
                for (int i = 4 * j; i < 4 * j + 4; i++) {
                    float first = x[i], second = x[i + P / 2];
                    x[i] = first * cosine[i % 4] - second * sine[i % 4];
                    x[i + P / 2] = second * cosine[i % 4] + first * sine[i % 4];
                }
            }
        }
    }
    /* What is not a number stays so. */
    __device__ float largest() const {
        uint32_t most = 0; // bits of sizes are ordered as they are, and what is not a number is above all
#pragma unroll
        for (int i = 0; i < P; i++)
            most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
        return __uint_as_float(__reduce_max_sync(0xffffffffu, most));
    }
};

template <int N> __device__ void store_query(const dmat &q, int t, int col, const whole_head<N> &head) {
#pragma unroll
    for (int j = 0; j < head.FOURS; j++) {
        int64_t at = t * q.stride + col + 128 * j + 4 * (threadIdx.x % 32);
        const float *x = head.x + 4 * j;
        if (q.element == ELEMENT_F32)
            *reinterpret_cast<float4 *>(static_cast<float *>(q.at) + at) = make_float4(x[0], x[1], x[2], x[3]);
        else
            store_piece<4>(static_cast<char *>(q.at) + at * 2, q.element, x, 1);
    }
}

/* As kv.cuh says: rows are panels of 128 bytes. */
template <int N, element E>
__device__ void store_cached(const dqkv &a, int n_slots, char *block, int slot, bool is_v, int kv, const whole_head<N> &head) {
    constexpr bool BYTES = E == ELEMENT_E4M3 || E == ELEMENT_I8;
    constexpr int SIZE = BYTES ? 1 : 2, N_PANELS = N * SIZE / 128;
    float by = 1;
    if constexpr (BYTES) {
        float most = head.largest(), scale = most == 0 ? 1.0f : most * (E == ELEMENT_E4M3 ? 1 / 448.0f : 1 / 127.0f);
        int64_t scales = (int64_t)a.n_kv_heads * n_slots * 2 * N;
        if (threadIdx.x % 32 == 0)
            *reinterpret_cast<float *>(block + scales + ((int64_t)(is_v ? a.n_kv_heads : 0) + kv) * n_slots * 4 + slot * 4) = scale;
        by = __fdividef(1.0f, scale);
    }
    char *row = block + ((int64_t)((is_v ? a.n_kv_heads : 0) + kv) * N_PANELS * n_slots + slot) * 128;
#pragma unroll
    for (int j = 0; j < head.FOURS; j++) {
        int at = (128 * j + 4 * (int)(threadIdx.x % 32)) * SIZE;
        store_piece<4>(row + (int64_t)(at / 128) * n_slots * 128 + kv_swizzled(128, slot, at % 128), E, head.x + 4 * j, by);
    }
}

template <int N, element E>
__global__ void __launch_bounds__(256, N <= 128   ? 4
                                       : N <= 256 ? 3
                                                  : 2) qkv_prep_whole(const __grid_constant__ whole_heads p) {
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : 2 * a.n_kv_heads), i = blockIdx.x * 8 + threadIdx.x / 32, step = p.n_warps / n_rows;
    int n_tokens = step_tokens(p.plan), t = i / n_rows, h = i - t * n_rows, kv = h - a.n_heads;
    if (t >= min(step, n_tokens))
        return;
    bool is_q = kv < 0, is_v = kv >= a.n_kv_heads, turns = !is_v && p.cos_sin, raw = p.x.col_scale, biased = raw && p.x.bias;
    if (is_v)
        kv -= a.n_kv_heads;
    int keys = a.n_heads * N, col = is_q ? h * N : keys + (kv + (is_v && !a.v_from_k ? a.n_kv_heads : 0)) * N;
    const dweight &norm = is_q ? p.q_norm : p.k_norm;
    bool weighted = !is_v && norm.at, normed = is_v ? a.v_norm : weighted;
    whole_head<N> weight, scale, bias;
    weight.fill(1);
    if (weighted)
        weight.load(norm.at, norm.element);
    for (int k = 0; k < weight.P && weighted && a.plus_one; k++)
        weight.x[k] += 1;
    if (raw)
        scale.load(p.x.col_scale + col, ELEMENT_F32);
    if (biased)
        bias.load(p.x.bias + col, ELEMENT_F32);
    whole_row<N> next;
    next.load(p, t, col, !is_q);
    for (; t < n_tokens; t += step) {
        whole_row<N> row = next;
        if (t + step < n_tokens)
            next.load(p, t + step, col, !is_q);
        char *block = is_q ? nullptr : kv_block(p.plan, p.cache, p.n_slots, row.seq, row.position);
        whole_angles<N> angles;
        if (turns)
            angles.load(p.cos_sin + (int64_t)t * N);
        whole_head<N> head;
        head.take(row, p.x.element);
        for (int k = 0; k < head.P && raw; k++)
            head.x[k] *= RAW_UNIT * row.factor * scale.x[k];
        for (int k = 0; k < head.P && biased; k++)
            head.x[k] += bias.x[k];
        if (normed)
            head.normalise(a.eps, weight);
        if (turns)
            head.rotate(angles);
        if (is_q)
            store_query(p.q, t, h * N, head);
        else
            store_cached<N, E>(a, p.n_slots, block, row.position & (p.n_slots - 1), is_v, kv, head);
    }
}

bool on_16_bytes(const void *at) { return (uintptr_t)at % 16 == 0; }

/* Whether they do that. */
bool heads_are_whole(const dqkv &a, const drope *rope, const dmat &x, const dmat &q, const dweight &q_norm, const dweight &k_norm,
                     const dcache &cache) {
    int n = a.head_dim;
    bool sizes = (n == 128 || n == 256 || n == 512) && a.v_head_dim == n && x.stride % 4 == 0 && q.stride % 4 == 0;
    bool turns = !rope || (rope->dim == n && rope->pairing == 0);
    bool lies = on_16_bytes(x.at) && on_16_bytes(q.at) && on_16_bytes(x.col_scale) && on_16_bytes(x.bias) && on_16_bytes(q_norm.at) &&
                on_16_bytes(k_norm.at);
    return sizes && turns && lies && cache.element != ELEMENT_F32;
}

template <int N> void start_whole(const launch *l, const whole_heads &p) {
    int n_blocks = (p.n_warps + 7) / 8;
    switch (p.cache.element) {
    case ELEMENT_F16: launch_node(qkv_prep_whole<N, ELEMENT_F16>, n_blocks, 256, 0, l->stream, p); break;
    case ELEMENT_BF16: launch_node(qkv_prep_whole<N, ELEMENT_BF16>, n_blocks, 256, 0, l->stream, p); break;
    case ELEMENT_E4M3: launch_node(qkv_prep_whole<N, ELEMENT_E4M3>, n_blocks, 256, 0, l->stream, p); break;
    default: launch_node(qkv_prep_whole<N, ELEMENT_I8>, n_blocks, 256, 0, l->stream, p);
    }
}

void start_whole_heads(const launch *l, whole_heads p) {
    int at_once = 132 * 8 * (p.a.head_dim == 128 ? 4 : p.a.head_dim == 256 ? 3 : 2); // warps that an H200 runs at once
    int n_heads = p.a.n_heads + (p.a.k_absent ? 0 : 2 * p.a.n_kv_heads), rows = at_once / n_heads > 0 ? at_once / n_heads : 1;
    int each = (l->n_tokens + rows - 1) / rows; // rows of a warp
    p.n_warps = n_heads * ((l->n_tokens + each - 1) / each);
    switch (p.a.head_dim) {
    case 128: start_whole<128>(l, p); break;
    case 256: start_whole<256>(l, p); break;
    default: start_whole<512>(l, p);
    }
}

} // namespace
