/* qkv_prep_int4.cu - QKV_PREP over a cache of int4: a warp a head of q, k or v of a row, as qkv_prep.cu's plain kernel.
 *
 * A head is normed and turned as there. Keys and values are then rotated in registers (kv_int4.cuh), 7 sums a channel
 * of 128, rounded from shared memory and stored; a query is rotated as its keys are, once, and attention never turns
 * keys back. Queries of shared keys meet keys and values, which are rotated each for itself: they leave as they are,
 * with the norm's weight of k on what does not turn, and attention rotates their two parts.
 *
 * Instructions of a row of k or v, 128 channels: some 30 a channel of a lane to load, norm and turn, 40 to rotate, and
 * 32 x 10 for a group's scale, by 16 of 32 lanes at once; about 600 in all, next to the 256 bytes that are read and the
 * 72 that are written. A key's 64 bytes lie in as many lines of 32: what a prompt writes is joined in the L2. */
#include "backend/cuda/attention/attention_int4.h"
#include "backend/cuda/attention/kv_int4.cuh"

#include <math.h>

namespace {

enum { WARPS = 8 };

struct arguments {
    device_plan plan;
    dqkv a;
    drope rope;
    bool rotated;
    dmat x, q;
    dweight q_norm, k_norm;
    dcache cache;
    int4_shape shape;
    float key_factor, value_factor; // of the rotations
    int row_floats;
};

__device__ bool turns(const dqkv &a, int c) { return c % (a.head_dim / 2) < a.rotary_dim / 2; }

/* A query of shared keys meets values where it does not turn. */
template <int V, int P> __device__ void weigh_unturned(const arguments &p, float (&head)[P]) {
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = channel<V>(i);
        if (c < p.a.head_dim && !turns(p.a, c))
            head[i] *= load(p.k_norm, c) + (p.a.plus_one ? 1.0f : 0.0f);
    }
}

/* Of a key of shared keys the turned channels, at the front. */
template <int V, int P> __device__ void gather_turned(const dqkv &a, float *shared, float (&head)[P]) {
    int half = a.head_dim / 2, n = a.rotary_dim / 2;
    __syncwarp(); // who turned the head has read it
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = channel<V>(i);
        if (c < a.head_dim && turns(a, c))
            shared[c / half * n + c % half] = head[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < P; i++)
        head[i] = channel<V>(i) < a.rotary_dim ? shared[channel<V>(i)] : 0.0f;
}

template <int V, int P>
__device__ void keep(const arguments &p, int t, bool is_v, int kv, float *shared, float (&head)[P]) {
    int position = p.plan.position[t], slot = position & (p.shape.n_slots - 1);
    int n = is_v ? p.shape.v_dim : p.shape.k_dim;
    char *block = int4_block(p.plan, p.cache, p.shape.n_slots, p.plan.seq_of_row[t], position);
    int4_rotate<V, P>(n, is_v ? p.value_factor : p.key_factor, head);
    __syncwarp(); // shared is no longer read
#pragma unroll
    for (int i = 0; i < P; i++)
        if (channel<V>(i) < n)
            shared[int4_padded(channel<V>(i))] = head[i];
    __syncwarp();
    int4_store_row(shared, n, is_v ? int4_value_row(p.shape, block, kv, slot) : int4_key_row(p.shape, block, kv, slot));
}

template <int V, int P>
__global__ void __launch_bounds__(WARPS * 32) qkv_prep_int4(const __grid_constant__ arguments p) {
    // In this order: who starts behind this node may rely on all before it being done.
    wait_for_previous();
    let_next_start();
    extern __shared__ float4 memory[]; // [WARPS][row_floats]
    float *shared = reinterpret_cast<float *>(memory) + threadIdx.x / 32 * p.row_floats;
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : 2 * a.n_kv_heads), i = blockIdx.x * WARPS + threadIdx.x / 32;
    int t = i / n_rows, h = i % n_rows, kv = h - a.n_heads;
    if (t >= step_tokens(p.plan))
        return;
    bool is_q = kv < 0, is_v = kv >= a.n_kv_heads, turned = !is_v && p.rotated;
    if (is_v)
        kv -= a.n_kv_heads;
    int n = is_v ? a.v_head_dim : a.head_dim, keys = a.n_heads * a.head_dim, values = keys + a.n_kv_heads * a.head_dim;
    int col = is_q ? h * n : is_v ? (a.v_from_k ? keys : values) + kv * n : keys + kv * n;
    float head[P];
    angles<P> angle;
    load_head<V, P>(p.x, t, col, n, head);
    if (turned)
        load_angles<V, P>(p.rope, t, angle);
    if (is_v ? a.v_norm : (is_q ? p.q_norm.at : p.k_norm.at) != nullptr)
        normalise<V, P>(is_v ? nullptr : is_q ? &p.q_norm : &p.k_norm, n, a.eps, a.plus_one, head);
#pragma unroll
    for (int k = 0; k < P; k++) // the norm may have made them what is not a number
        head[k] = channel<V>(k) < n ? head[k] : 0.0f;
    if (turned)
        rotate<V, P>(p.rope, angle, n, shared, head);
    if (is_q) {
        if (a.rotary_dim > 0)
            weigh_unturned<V, P>(p, head);
        else
            int4_rotate<V, P>(n, p.key_factor, head);
        store_query<V, P>(p.q, t, h * n, n, head);
        return;
    }
    if (!is_v && a.rotary_dim > 0)
        gather_turned<V, P>(a, shared, head);
    keep<V, P>(p, t, is_v, kv, shared, head);
}

bool in_fours(const dqkv *a, const dmat &x, const dmat &q) {
    return a->head_dim % 4 == 0 && a->v_head_dim % 4 == 0 && x.stride % 4 == 0 && q.stride % 4 == 0 &&
           (uintptr_t)x.at % 16 == 0 && (uintptr_t)q.at % 16 == 0;
}

} // namespace

float int4_rotation_factor(int n) { return 1 / sqrtf((float)int4_block_width(n)); }

void launch_qkv_prep_int4(const launch *l, const dqkv *a, const drope *rope, dmat x, dweight q_norm, dweight k_norm,
                          dcache cache, dmat q) {
    drope none = {};
    int k_dim = a->rotary_dim > 0 ? a->rotary_dim : a->head_dim,
        widest = a->head_dim > a->v_head_dim ? a->head_dim : a->v_head_dim;
    arguments p = {l->plan,
                   *a,
                   rope ? *rope : none,
                   rope != nullptr,
                   x,
                   q,
                   q_norm,
                   k_norm,
                   cache,
                   {a->n_kv_heads, k_dim, a->v_head_dim, l->block_size},
                   int4_rotation_factor(k_dim),
                   int4_rotation_factor(a->v_head_dim),
                   (int4_row_floats(widest) + 3) / 4 * 4};
    int64_t n_rows = (int64_t)(a->n_heads + (a->k_absent ? 0 : 2 * a->n_kv_heads)) * l->n_tokens;
    int n_blocks = (int)((n_rows + WARPS - 1) / WARPS);
    size_t n_bytes = (size_t)WARPS * p.row_floats * sizeof(float);
    if (!in_fours(a, x, q))
        launch_node(qkv_prep_int4<1, 16>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else if (widest <= 128)
        launch_node(qkv_prep_int4<4, 4>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else if (widest <= 256)
        launch_node(qkv_prep_int4<4, 8>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else
        launch_node(qkv_prep_int4<4, 16>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
}
