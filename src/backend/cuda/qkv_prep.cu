/* qkv_prep.cu - QKV_PREP: a warp a head of q, k or v of a row.
 *
 * A lane holds up to 16 channels of the head, pieces of FOUR (or 1, where a size is no multiple of 4); the norm is a sum over the
 * warp, the rotation reads the other channel of a pair from shared memory. q leaves as a value, k and v go to their slot in the
 * cache, in its element and with the row's own scale where that has 8 bits. Reads and writes each value once, in 16 bytes a lane. */
#include "backend/cuda/kv.cuh"

namespace {

enum { WARPS = 8, MOST = 512, PER_LANE = MOST / 32 };

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

/* Channel of a lane's value i, of pieces of V channels. */
template <int V> __device__ int channel(int i) { return (i / V * 32 + threadIdx.x % 32) * V + i % V; }

template <int V> __device__ void load_head(const dmat &x, int t, int col, int n, float (&head)[PER_LANE]) {
    int64_t row = t * x.stride + col;
    float factor = x.col_scale ? RAW_UNIT * x.row_scale[t] : 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i += V) {
        int c = channel<V>(i);
        if (c >= n) {
            for (int j = 0; j < V; j++)
                head[i + j] = 0;
        } else if (V == 4 && x.element == ELEMENT_F32) {
            float4 four = *reinterpret_cast<const float4 *>(static_cast<const float *>(x.at) + row + c);
            head[i] = four.x, head[i + V / 2 - 1] = four.y, head[i + V / 2] = four.z, head[i + V - 1] = four.w;
        } else if (V == 4 && x.element == ELEMENT_F16) {
            uint2 four = *reinterpret_cast<const uint2 *>(static_cast<const __half *>(x.at) + row + c);
            float2 low = __half22float2(reinterpret_cast<__half2 &>(four.x)), high = __half22float2(reinterpret_cast<__half2 &>(four.y));
            head[i] = low.x, head[i + V / 2 - 1] = low.y, head[i + V / 2] = high.x, head[i + V - 1] = high.y;
            for (int j = 0; j < V && x.col_scale; j++)
                head[i + j] = raw_value(x, factor, col + c + j, head[i + j]);
        } else {
            for (int j = 0; j < V; j++)
                head[i + j] = load(x, t, col + c + j);
        }
    }
}

template <int V> __device__ void normalise(const dweight &w, int n, float eps, bool plus_one, float (&head)[PER_LANE]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        sum += head[i] * head[i];
    float factor = 1.0f / sqrtf(warp_sum(sum) / n + eps);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int c = channel<V>(i);
        head[i] *= c < n && w.at ? factor * (load(w, c) + (plus_one ? 1.0f : 0.0f)) : factor;
    }
}

/* Turns the first rope.dim channels; shared holds a head a warp. */
template <int V> __device__ void rotate(const drope &rope, int t, int n, float *shared, float (&head)[PER_LANE]) {
    const float *cos_sin = rope.cos_sin + (int64_t)t * rope.dim;
    int half = rope.dim / 2;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        if (channel<V>(i) < n)
            shared[channel<V>(i)] = head[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int c = channel<V>(i);
        if (c >= rope.dim)
            continue;
        bool second = rope.pairing == 0 ? c >= half : c % 2;
        int pair = rope.pairing == 0 ? c - (second ? half : 0) : c / 2, other = rope.pairing == 0 ? c + (second ? -half : half) : c ^ 1;
        float turned = shared[other] * cos_sin[half + pair];
        head[i] = head[i] * cos_sin[pair] + (second ? turned : -turned);
    }
}

template <int V> __device__ void store_query(const dmat &q, int t, int col, int n, const float (&head)[PER_LANE]) {
    int64_t row = t * q.stride + col;
#pragma unroll
    for (int i = 0; i < PER_LANE; i += V) {
        int c = channel<V>(i);
        if (c >= n)
            continue;
        if (V == 4 && q.element == ELEMENT_F32)
            *reinterpret_cast<float4 *>(static_cast<float *>(q.at) + row + c) = {head[i], head[i + V / 2 - 1], head[i + V / 2],
                                                                                 head[i + V - 1]};
        else
            for (int j = 0; j < V; j++)
                store(q.at, row + c + j, q.element, head[i + j]);
    }
}

/* V elements in a row of one 16-byte piece of the cache, in one store. */
template <int V> __device__ void store_piece(char *to, element e, const float *x, float by) {
    alignas(16) char piece[16];
    int size = kv_element_bytes(e);
    for (int j = 0; j < V; j++)
        kv_store(piece + j * size, e, x[j] * by);
    if (V == 4 && size == 4)
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<uint4 *>(piece);
    else if (V == 4 && size == 2)
        *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<uint2 *>(piece);
    else if (V == 4)
        *reinterpret_cast<uint32_t *>(to) = *reinterpret_cast<uint32_t *>(piece);
    else
        for (int j = 0; j < V; j++)
            kv_store(to + j * size, e, x[j] * by);
}

template <int V> __device__ void store_cache(const arguments &p, int t, bool is_v, int kv, int n, const float (&head)[PER_LANE]) {
    int position = p.plan.position[t], slot = position & (p.n_slots - 1);
    char *block = kv_block(p.plan, p.cache, p.n_slots, p.plan.seq_of_row[t], position);
    kv_shape s = {p.a.n_kv_heads, p.a.head_dim, p.a.v_head_dim, p.n_slots, p.cache.element};
    float by = 1;
    if (kv_has_scales(s.e)) {
        float most = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            most = fmaxf(most, fabsf(head[i]));
        float scale = kv_scale(s.e, warp_max(most));
        if (threadIdx.x % 32 == 0)
            *reinterpret_cast<float *>(block + s.scale(is_v, kv, slot)) = scale;
        by = 1.0f / scale;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i += V) {
        int c = channel<V>(i);
        if (c < n)
            store_piece<V>(block + (is_v ? s.value(kv, slot, c) : s.key(kv, slot, c)), s.e, head + i, by);
    }
}

template <int V> __global__ void __launch_bounds__(WARPS * 32) qkv_prep(const __grid_constant__ arguments p) {
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    extern __shared__ float shared[]; // [WARPS][the wider head]
    const dqkv &a = p.a;
    int n_rows = a.n_heads + (a.k_absent ? 0 : 2 * a.n_kv_heads), i = blockIdx.x * WARPS + threadIdx.x / 32;
    int t = i / n_rows, h = i % n_rows, kv = h - a.n_heads;
    if (t >= step_tokens(p.plan))
        return;
    bool is_q = kv < 0, is_v = kv >= a.n_kv_heads;
    if (is_v)
        kv -= a.n_kv_heads;
    int n = is_v ? a.v_head_dim : a.head_dim, keys = a.n_heads * a.head_dim, values = keys + a.n_kv_heads * a.head_dim;
    int col = is_q ? h * n : is_v ? (a.v_from_k ? keys : values) + kv * n : keys + kv * n;
    float head[PER_LANE];
    load_head<V>(p.x, t, col, n, head);
    dweight none = {};
    if (is_v ? a.v_norm : (is_q ? p.q_norm.at : p.k_norm.at) != nullptr)
        normalise<V>(is_v ? none : is_q ? p.q_norm : p.k_norm, n, a.eps, a.plus_one, head);
    if (!is_v && p.rotated)
        rotate<V>(p.rope, t, n, shared + threadIdx.x / 32 * max(a.head_dim, a.v_head_dim), head);
    if (is_q)
        store_query<V>(p.q, t, h * n, n, head);
    else
        store_cache<V>(p, t, is_v, kv, n, head);
}

bool in_fours(const dqkv *a, const dmat &x, const dmat &q) {
    return a->head_dim % 4 == 0 && a->v_head_dim % 4 == 0 && x.stride % 4 == 0 && q.stride % 4 == 0 && (uintptr_t)x.at % 16 == 0 &&
           (uintptr_t)q.at % 16 == 0;
}

} // namespace

void launch_qkv_prep(const launch *l, const dqkv *a, const drope *rope, dmat x, dweight q_norm, dweight k_norm, dcache cache, dmat q) {
    drope none = {};
    arguments p = {l->plan, *a, rope ? *rope : none, rope != nullptr, x, q, q_norm, k_norm, cache, l->block_size};
    int64_t n_rows = (int64_t)(a->n_heads + (a->k_absent ? 0 : 2 * a->n_kv_heads)) * l->n_tokens;
    int n_blocks = (int)((n_rows + WARPS - 1) / WARPS);
    size_t n_bytes = (size_t)WARPS * (a->head_dim > a->v_head_dim ? a->head_dim : a->v_head_dim) * sizeof(float);
    if (in_fours(a, x, q))
        launch_node(qkv_prep<4>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
    else
        launch_node(qkv_prep<1>, n_blocks, WARPS * 32, n_bytes, l->stream, p);
}
