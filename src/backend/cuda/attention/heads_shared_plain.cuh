/* heads_shared_plain.cuh - of heads_shared_kv.cuh: the plain kernel, of any sizes, a warp a head of a row. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/heads_whole.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

namespace {

/* The least power of two above a size; 1 for 0. */
__device__ float power_above(float most) {
    return most > 0.0f ? __uint_as_float(min((__float_as_uint(most) & 0x7f800000u) + 0x800000u, 0x7f000000u)) : 1.0f;
}

// ---- the plain kernel: any sizes, a warp a head of a row ---------------------------------------------------------

struct shared_kv_heads {
    device_plan plan;
    dqkv a;
    drope rope;
    dmat x, q;
    dweight q_norm, k_norm;
    dcache cache;
    int n_slots;
};

__device__ bool turns(const dqkv &a, int c) { return c % (a.head_dim / 2) < a.rotary_dim / 2; }

template <int P> __device__ float shared_kv_unit(const shared_kv_heads &p) {
    float most = 0;
    for (int i = 0; i < P; i++) {
        int c = channel<1>(i);
        if (c < p.a.head_dim && turns(p.a, c))
            most = fmaxf(most, fabsf(load(p.k_norm, c) + (p.a.plus_one ? 1.0f : 0.0f)));
    }
    return power_above(warp_max(most));
}

template <int P>
__device__ void store_shared_kv(const shared_kv_heads &p, int t, int kv, float unit, const float (&key)[P],
                            const float (&v)[P]) {
    const dqkv &a = p.a;
    kv_shape s = {a.n_kv_heads, a.rotary_dim, a.v_head_dim, p.n_slots, p.cache.element, true};
    int position = p.plan.position[t], slot = position & (p.n_slots - 1);
    char *block = kv_block(p.plan, p.cache, p.n_slots, p.plan.seq_of_row[t], position);
    float both[2 * P], by = 1;
#pragma unroll
    for (int i = 0; i < P; i++) {
        both[i] = channel<1>(i) < a.head_dim && turns(a, channel<1>(i)) ? key[i] / unit : 0.0f;
        both[P + i] = v[i];
    }
    if (kv_has_scales(s.e)) {
        float scale = row_scale<2 * P>(s.e, both);
        if (threadIdx.x % 32 == 0)
            *reinterpret_cast<float *>(block + s.scale(true, kv, slot)) = scale;
        by = 1.0f / scale;
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = channel<1>(i);
        if (c < a.head_dim && turns(a, c))
            kv_store(block + s.key(kv, slot, c), s.e, both[i] * by);
        if (c < a.head_dim)
            kv_store(block + s.value(kv, slot, c), s.e, v[i] * by);
    }
}

template <int P> __global__ void __launch_bounds__(256) qkv_prep_shared_kv(const __grid_constant__ shared_kv_heads p) {
    wait_for_previous();
    let_next_start();
    extern __shared__ float short_memory[]; // [8][head_dim]
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : a.n_kv_heads), i = blockIdx.x * 8 + threadIdx.x / 32, t = i / n_rows,
        h = i % n_rows;
    if (t >= step_tokens(p.plan))
        return;
    float head[P], key[P], unit = shared_kv_unit<P>(p), *shared = short_memory + threadIdx.x / 32 * a.head_dim;
    angles<P> angle;
    load_head<1, P>(p.x, t, h * a.head_dim, a.head_dim, head);
    load_angles<1, P>(p.rope, t, angle);
    normalise<1, P>(h < a.n_heads ? &p.q_norm : nullptr, a.head_dim, a.eps, h < a.n_heads && a.plus_one, head);
#pragma unroll
    for (int k = 0; k < P; k++) {
        int c = channel<1>(k);
        float w = c < a.head_dim ? load(p.k_norm, c) + (a.plus_one ? 1.0f : 0.0f) : 0.0f;
        key[k] = head[k] * (h >= a.n_heads ? w : c < a.head_dim && turns(a, c) ? unit : w);
    }
    rotate<1, P>(p.rope, angle, a.head_dim, shared, key);
    if (h < a.n_heads)
        store_query<1, P>(p.q, t, h * a.head_dim, a.head_dim, key);
    else
        store_shared_kv<P>(p, t, h - a.n_heads, unit, key, head);
}

} // namespace
