/* qkv_prep.cu - QKV_PREP: a warp a head of q, k or v of a row, or of every so many rows where heads_whole.cuh takes it,
 * or two heads where heads_pairs.cuh does.
 *
 * A lane holds P channels of the head, up to 16, in pieces of V = 4 (or 1, where a size is no multiple of 4); the norm
 * is a sum over the warp, the rotation reads the other channel of a pair from shared memory. What does not depend on
 * the head, its place in the cache and its angles, is read while the head comes. q leaves as a value, k and v go to
 * their slot in the cache, in its element and with the row's own scale where that has 8 bits. Reads and writes each
 * value once, in 16 bytes a lane. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/heads_pairs.cuh"
#include "backend/cuda/attention/heads_shared_kv.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

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
    int n_slots;
};

template <int V, int P> __global__ void __launch_bounds__(WARPS * 32) qkv_prep(const __grid_constant__ arguments p) {
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    extern __shared__ float4 memory[]; // [WARPS][the wider head]
    float *shared = reinterpret_cast<float *>(memory);
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : 2 * a.n_kv_heads), i = blockIdx.x * WARPS + threadIdx.x / 32;
    int t = i / n_rows, h = i % n_rows, kv = h - a.n_heads;
    if (t >= step_tokens(p.plan))
        return;
    bool is_q = kv < 0, is_v = kv >= a.n_kv_heads, turns = !is_v && p.rotated;
    if (is_v)
        kv -= a.n_kv_heads;
    int n = is_v ? a.v_head_dim : a.head_dim, keys = a.n_heads * a.head_dim, values = keys + a.n_kv_heads * a.head_dim;
    int col = is_q ? h * n : is_v ? (a.v_from_k ? keys : values) + kv * n : keys + kv * n;
    float head[P];
    angles<P> angle;
    load_head<V, P>(p.x, t, col, n, head);
    if (turns)
        load_angles<V, P>(p.rope, t, angle);
    int position = is_q ? 0 : p.plan.position[t];
    char *block = is_q ? nullptr : kv_block(p.plan, p.cache, p.n_slots, p.plan.seq_of_row[t], position);
    if (is_v ? a.v_norm : (is_q ? p.q_norm.at : p.k_norm.at) != nullptr)
        normalise<V, P>(is_v ? nullptr : is_q ? &p.q_norm : &p.k_norm, n, a.eps, a.plus_one, head);
    if (turns)
        rotate<V, P>(p.rope, angle, n, shared + threadIdx.x / 32 * max(a.head_dim, a.v_head_dim), head);
    if (is_q)
        store_query<V, P>(p.q, t, h * n, n, head);
    else
        store_cache<V, P>({a.n_kv_heads, a.head_dim, a.v_head_dim, p.n_slots, p.cache.element}, block,
                          position & (p.n_slots - 1), is_v, kv, n, head);
}

bool in_fours(const dqkv *a, const dmat &x, const dmat &q) {
    return a->head_dim % 4 == 0 && a->v_head_dim % 4 == 0 && x.stride % 4 == 0 && q.stride % 4 == 0 &&
           (uintptr_t)x.at % 16 == 0 && (uintptr_t)q.at % 16 == 0;
}

} // namespace

void launch_qkv_prep(const launch *l, const dqkv *a, const drope *rope, dmat x, dweight q_norm, dweight k_norm,
                     dcache cache, dmat q) {
    if (a->rotary_dim > 0) {
        start_shared_kv_heads(l, *a, *rope, x, q_norm, k_norm, cache, q);
        return;
    }
    if (heads_pair_up(*a, rope, x, q, q_norm, k_norm, cache)) {
        start_pair_heads(l, *a, rope, x, q_norm, k_norm, cache, q);
        return;
    }
    if (heads_are_whole(*a, rope, x, q, q_norm, k_norm, cache)) {
        start_whole_heads(
            l, {l->plan, *a, rope ? rope->cos_sin : nullptr, x, q, q_norm, k_norm, cache, l->block_size, 0, 0});
        return;
    }
    drope none = {};
    arguments p = {l->plan, *a, rope ? *rope : none, rope != nullptr, x, q, q_norm, k_norm, cache, l->block_size};
    int64_t n_rows = (int64_t)(a->n_heads + (a->k_absent ? 0 : 2 * a->n_kv_heads)) * l->n_tokens;
    int n_blocks = (int)((n_rows + WARPS - 1) / WARPS);
    size_t n_bytes = (size_t)WARPS * (a->head_dim > a->v_head_dim ? a->head_dim : a->v_head_dim) * sizeof(float);
    int widest = a->head_dim > a->v_head_dim ? a->head_dim : a->v_head_dim;
    if (!in_fours(a, x, q))
        launch_node(qkv_prep<1, 16>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else if (widest <= 128)
        launch_node(qkv_prep<4, 4>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else if (widest <= 256)
        launch_node(qkv_prep<4, 8>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else
        launch_node(qkv_prep<4, 16>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
}
