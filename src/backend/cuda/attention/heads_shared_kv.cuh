/* heads_shared_kv.cuh - of qkv_prep.cu: heads of a layer whose cache has shared keys (core/ops.def, rotary_dim; kv.cuh
 * has the layout).
 *
 * A key's channels that do not turn are weight * v, so the weight goes into the queries there. In a row of 8 bits
 * turned channels and values share a scale: the turned ones are divided by a power of two, `unit`, no less than any of
 * their weights, and so are of the size of v; queries are multiplied by it. Both sides of a row are one warp's. */
#pragma once

#include "backend/cuda/attention/heads_shared_plain.cuh"

namespace {

// ---- of 512 channels, 128 of which turn: as heads_whole.cuh ------------------------------------------------------

/* Pieces 0 and 2 of the lower half of a warp turn; in a row of values those of piece 2 change places with piece 0 of
 * the upper half. */
struct short_size {
    static constexpr int N = 512, TURNED = 128;
    static __device__ bool turns(int j) { return j % 2 == 0 && threadIdx.x % 32 < 16; }
    static __device__ int key_channel(int j) { return j / 2 * (TURNED / 2) + whole_channel<N>(0); }
    static __device__ int value_channel(int j) { return kv_moved(whole_channel<N>(j), N, TURNED); }
};

/* Cosines and sines of piece 0, and so of piece 2; in the upper half of a warp of angles of 0. */
struct short_angles {
    float cosine[4], sine[4];

    __device__ void load(const float *cos_sin) {
        typedef whole_words<4> piece;
        const float *at = cos_sin + whole_channel<short_size::N>(0);
        *reinterpret_cast<piece *>(cosine) = *reinterpret_cast<const piece *>(at);
        *reinterpret_cast<piece *>(sine) = *reinterpret_cast<const piece *>(at + short_size::N / 2);
    }
};

/* What of a head turns: pieces 0 and 2. */
struct short_turned {
    float x[8];

    __device__ void rotate(const short_angles &a) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float first = x[i], second = x[i + 4];
            x[i] = first * a.cosine[i] - second * a.sine[i];
            x[i + 4] = second * a.cosine[i] + first * a.sine[i];
        }
    }
    /* Of what is stored; what is not a number stays so. */
    __device__ float largest() const {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
        return __uint_as_float(__reduce_max_sync(0xffffffffu, short_size::turns(0) ? most : 0));
    }
};

template <element E> struct short_place {
    static constexpr int SIZE = E == ELEMENT_E4M3 || E == ELEMENT_I8 ? 1 : 2;
    char *key, *value;
    float *scale;
    int slot;

    __device__ static short_place of(const whole_heads &p, int seq, int position, int kv) {
        constexpr int N = short_size::N, TURNED = short_size::TURNED;
        int slot = position & (p.n_slots - 1);
        char *block = kv_block(p.plan, p.cache, p.n_slots, seq, position);
        int64_t slots = (int64_t)p.a.n_kv_heads * p.n_slots, row = (int64_t)kv * p.n_slots * SIZE;
        return {block + row * TURNED + slot * 128, block + slots * TURNED * SIZE + row * N + slot * 128,
                reinterpret_cast<float *>(block + slots * (TURNED + N) * SIZE) + kv * p.n_slots + slot, slot};
    }
    __device__ short_place at(int lane) const {
        return {of_lane(key, lane), of_lane(value, lane), of_lane(scale, lane), of_lane(slot, lane)};
    }
    __device__ void store_piece(char *row, int n_slots, int c, const float *x, float by) const {
        int i = c * SIZE;
        store_some<4, E>(row + (int64_t)(i / 128) * n_slots * 128 + kv_swizzled(128, slot, i % 128), x, by);
    }
    __device__ void store(int n_slots, const short_turned &k, const whole_head<512> &v) const {
        float by = 1;
        if constexpr (SIZE == 1) {
            float most = __uint_as_float(max(__float_as_uint(k.largest()), __float_as_uint(v.largest())));
            float to = most == 0 ? 1.0f : most * (E == ELEMENT_E4M3 ? 1 / 448.0f : 1 / 127.0f);
            if (threadIdx.x % 32 == 0)
                *scale = to;
            by = __fdividef(1.0f, to);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (short_size::turns(j))
                store_piece(key, n_slots, short_size::key_channel(j), k.x + 2 * j, by);
            store_piece(value, n_slots, short_size::value_channel(j), v.x + 4 * j, by);
        }
    }
};

template <element E, bool WIDE>
__global__ void __launch_bounds__(256, 2) qkv_prep_short_whole(const __grid_constant__ whole_heads p) {
    constexpr int N = short_size::N, P = whole_size<N>::P;
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : a.n_kv_heads), i = blockIdx.x * 8 + threadIdx.x / 32,
        step = p.n_warps / n_rows;
    int t = i / n_rows, h = i - t * n_rows, col = h * N;
    bool is_q = h < a.n_heads, raw = p.x.col_scale, biased = raw && p.x.bias;
    // What a normed query is multiplied by; and, of its turned channels alone, a normed value to become a key.
    whole_head<N> weight, scale;
    {
        whole_head<N> of_key;
        float most = 0, one = a.plus_one ? 1.0f : 0.0f;
        of_key.load(p.k_norm.at, p.k_norm.element);
        weight.load(p.q_norm.at, p.q_norm.element);
#pragma unroll
        for (int k = 0; k < P; k++)
            most = short_size::turns(k / 4) ? fmaxf(most, fabsf(of_key.x[k] + one)) : most;
        float unit = power_above(warp_max(most));
#pragma unroll
        for (int k = 0; k < P; k++) {
            float of_k = of_key.x[k] + one, of_q = weight.x[k] + one;
            weight.x[k] = !is_q ? of_k / unit : of_q * (short_size::turns(k / 4) ? unit : of_k);
        }
    }
    if (raw)
        scale.load(p.x.col_scale + col, ELEMENT_F32);
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    if (t >= step)
        return;
    auto find = [&](int seq, int position) { return short_place<E>::of(p, seq, position, h - a.n_heads); };
    take_rows<N, WIDE, short_angles>(p, {t, step, col, !is_q, true}, find, [&](const auto &row, whole_head<N> &head) {
        short_turned turned;
        for (int c = 0; c < P && raw; c++)
            head.x[c] *= row.factor * scale.x[c];
        for (int c = 0; c < P && biased; c++)
            head.x[c] += p.x.bias[col + whole_channel<N>(c / 4) + c % 4];
        float by = head.norm_factor(a.eps);
#pragma unroll
        for (int c = 0; c < P; c++)
            head.x[c] *= is_q ? by * weight.x[c] : by;
#pragma unroll
        for (int c = 0; c < 8; c++)
            turned.x[c] = head.x[c % 4 + c / 4 * 8] * (is_q ? 1.0f : weight.x[c % 4 + c / 4 * 8]);
        turned.rotate(row.angles);
        if (is_q) {
#pragma unroll
            for (int c = 0; c < 8; c++)
                head.x[c % 4 + c / 4 * 8] = turned.x[c];
            store_query(p.q, row.t * p.q.stride + h * N, head);
        } else {
            row.place.at(row.lane).store(p.n_slots, turned, head);
        }
    });
}

template <element E> void start_short_whole(const launch *l, const whole_heads &p) {
    int n_blocks = (p.n_warps + 7) / 8;
    if (p.x.element == ELEMENT_F32)
        launch_node(qkv_prep_short_whole<E, true>, n_blocks, 256, 0, l->stream, p);
    else
        launch_node(qkv_prep_short_whole<E, false>, n_blocks, 256, 0, l->stream, p);
}

void start_shared_kv_heads(const launch *l, const dqkv &a, const drope &rope, const dmat &x, const dweight &q_norm,
                       const dweight &k_norm, const dcache &cache, const dmat &q) {
    int n_heads = a.n_heads + (a.k_absent ? 0 : a.n_kv_heads);
    if (a.head_dim == short_size::N && a.rotary_dim == short_size::TURNED &&
        heads_are_whole(a, &rope, x, q, q_norm, k_norm, cache)) {
        whole_heads p = {l->plan, a, rope.cos_sin, x, q, q_norm, k_norm, cache, l->block_size, 0, 0};
        share_rows<short_size::N>(l, n_heads, p);
        switch (cache.element) {
        case ELEMENT_F16: start_short_whole<ELEMENT_F16>(l, p); break;
        case ELEMENT_BF16: start_short_whole<ELEMENT_BF16>(l, p); break;
        case ELEMENT_E4M3: start_short_whole<ELEMENT_E4M3>(l, p); break;
        default: start_short_whole<ELEMENT_I8>(l, p);
        }
        return;
    }
    shared_kv_heads p = {l->plan, a, rope, x, q, q_norm, k_norm, cache, l->block_size};
    int n_blocks = (n_heads * l->n_tokens + 7) / 8;
    launch_node(qkv_prep_shared_kv<16>, n_blocks, 256, (size_t)8 * a.head_dim * sizeof(float), l->stream, p);
}

} // namespace
