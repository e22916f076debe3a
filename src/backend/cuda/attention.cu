/* attention.cu - QKV_PREP, and the plain ATTENTION: a block a token row and head.
 *
 * QKV_PREP      a block a row and head of q, k or v; the head lies in shared memory between norm, rotation and store.
 * ATTENTION     four warps deal the visible keys among themselves, 4 keys apart; a lane holds every 32nd channel of q and of the
 *               warp's sum, the softmax runs in one pass (m, l, acc), and the four are joined at the end. Each key and value
 *               is read once a query head: n_heads / n_kv_heads times the floor, mostly from L2. The oracle of faster kernels. */
#include "backend/cuda/device.cuh"

enum { WARPS = 4, MAX_PER_LANE = 16 }; // channels of a head: up to 512

static __device__ int64_t key_at(const dcache &c, int64_t block, int head, int slot, int n_slots, int k_dim) {
    return block + ((int64_t)head * n_slots + slot) * k_dim;
}

static __device__ int64_t value_at(const dcache &c, int64_t block, int n_heads, int head, int slot, int n_slots, int k_dim, int v_dim) {
    return block + (int64_t)n_heads * n_slots * k_dim + ((int64_t)head * n_slots + slot) * v_dim;
}

/* Rotates the first rope.dim channels of a head in shared memory. */
static __device__ void rotate(float *head, const drope &rope, int t) {
    const float *cos_sin = rope.cos_sin + (int64_t)t * rope.dim;
    int half = rope.dim / 2;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float *a = rope.pairing == 0 ? head + i : head + 2 * i, *b = rope.pairing == 0 ? head + i + half : head + 2 * i + 1;
        float x = *a, y = *b;
        *a = x * cos_sin[i] - y * cos_sin[half + i];
        *b = y * cos_sin[i] + x * cos_sin[half + i];
    }
    __syncthreads(); // the whole head is turned
}

static __device__ void normalise(float *head, int n, const dweight &w, float eps, bool plus_one, float *shared) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += head[i] * head[i];
    float factor = 1.0f / sqrtf(block_sum(sum, shared) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        head[i] *= factor * (w.at ? load(w, i) + (plus_one ? 1.0f : 0.0f) : 1.0f);
    __syncthreads(); // rotation reads pairs
}

static __global__ void qkv_prep(device_plan plan, dqkv a, drope rope, bool rotated, dmat x, dweight q_norm, dweight k_norm, dcache cache,
                                int block_size, dmat q) {
    let_next_start();
    wait_for_previous();
    extern __shared__ float head[];
    __shared__ float shared[32];
    int t = blockIdx.y, h = blockIdx.x, kv = h - a.n_heads, position;
    if (t >= step_tokens(plan))
        return;
    bool is_q = kv < 0, is_v = kv >= a.n_kv_heads;
    if (is_v)
        kv -= a.n_kv_heads;
    int n = is_v ? a.v_head_dim : a.head_dim, keys = a.n_heads * a.head_dim, values = keys + a.n_kv_heads * a.head_dim;
    int col = is_q ? h * n : is_v ? (a.v_from_k ? keys : values) + kv * n : keys + kv * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        head[i] = load(x, t, col + i);
    __syncthreads(); // the head is there
    dweight none = {};
    if (is_v ? a.v_norm : (is_q ? q_norm.at : k_norm.at) != nullptr)
        normalise(head, n, is_v ? none : is_q ? q_norm : k_norm, a.eps, a.plus_one, shared);
    if (!is_v && rotated)
        rotate(head, rope, t);
    if (is_q) {
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            store(q, t, h * n + i, head[i]);
        return;
    }
    position = plan.position[t];
    int64_t block = block_start(plan, cache, block_size, plan.seq_of_row[t], position);
    int slot = position % block_size;
    int64_t at = is_v ? value_at(cache, block, a.n_kv_heads, kv, slot, block_size, a.head_dim, a.v_head_dim)
                      : key_at(cache, block, kv, slot, block_size, a.head_dim);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        store(cache.at, at + i, cache.element, head[i]);
}

void launch_qkv_prep(const struct launch *l, const struct dqkv *a, const struct drope *rope, struct dmat x, struct dweight q_norm,
                     struct dweight k_norm, struct dcache cache, struct dmat q) {
    drope none = {};
    dim3 grid(a->n_heads + (a->k_absent ? 0 : 2 * a->n_kv_heads), l->n_tokens);
    int widest = a->head_dim > a->v_head_dim ? a->head_dim : a->v_head_dim;
    launch_node(qkv_prep, grid, 128, widest * sizeof(float), l->stream, l->plan, *a, rope ? *rope : none, rope != nullptr, x, q_norm,
                k_norm, cache, l->block_size, q);
}

/* The softmax of a warp so far: m the largest score, l the sum of e^(s - m), acc that of e^(s - m) v. */
struct partial {
    float m, l, acc[2 * MAX_PER_LANE];
};

static __device__ void grow(partial *p, float s, int n) {
    float m = fmaxf(p->m, s), shrink = p->m == -INFINITY ? 0.0f : expf(p->m - m);
    p->l *= shrink;
    for (int i = 0; i < n; i++)
        p->acc[i] *= shrink;
    p->m = m;
}

/* V: channel groups of 32 that a lane holds of a value row; 2 rows with paired values. */
static __global__ void attention(device_plan plan, dattention a, dmat q, dweight sinks, dcache cache, int block_size, dmat out) {
    let_next_start();
    wait_for_previous();
    __shared__ float ms[WARPS], ls[WARPS];
    extern __shared__ float sums[]; // [WARPS][width]
    int t = blockIdx.y, h = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (t >= step_tokens(plan))
        return;
    int seq = plan.seq_of_row[t], position = plan.position[t], per_kv = a.n_heads / a.n_kv_heads, half = a.n_heads / 2;
    int n_values = a.paired_values ? 2 : 1, width = n_values * a.v_head_dim, kv = h / per_kv;
    int value_head[2] = {a.paired_values ? h % half / per_kv : kv, a.paired_values ? (h % half + half) / per_kv : 0};
    int n_q = (a.head_dim + 31) / 32, n_v = (a.v_head_dim + 31) / 32;
    float query[MAX_PER_LANE];
    for (int i = 0; i < n_q; i++)
        query[i] = lane + 32 * i < a.head_dim ? load(q, t, h * a.head_dim + lane + 32 * i) : 0.0f;
    partial p = {-INFINITY, 0.0f, {}};
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    if (a.chunk > 0)
        first = max(first, position / a.chunk * a.chunk);
    for (int j = first + warp; j <= position; j += WARPS) {
        int64_t block = block_start(plan, cache, block_size, seq, j);
        int slot = j % block_size;
        int64_t key = key_at(cache, block, kv, slot, block_size, a.head_dim);
        float s = 0;
        for (int i = 0; i < n_q; i++)
            if (lane + 32 * i < a.head_dim)
                s += query[i] * load(cache.at, key + lane + 32 * i, cache.element);
        s = warp_sum(s) * a.scale;
        if (a.softcap > 0)
            s = a.softcap * tanhf(s / a.softcap);
        if (s > p.m)
            grow(&p, s, n_values * n_v);
        float e = expf(s - p.m);
        p.l += e;
        for (int v = 0; v < n_values; v++) {
            int64_t value = value_at(cache, block, a.n_kv_heads, value_head[v], slot, block_size, a.head_dim, a.v_head_dim);
            for (int i = 0; i < n_v; i++)
                if (lane + 32 * i < a.v_head_dim)
                    p.acc[v * n_v + i] += e * load(cache.at, value + lane + 32 * i, cache.element);
        }
    }
    if (lane == 0) {
        ms[warp] = p.m;
        ls[warp] = p.l;
    }
    for (int v = 0; v < n_values; v++)
        for (int i = 0; i < n_v; i++)
            if (lane + 32 * i < a.v_head_dim)
                sums[warp * width + v * a.v_head_dim + lane + 32 * i] = p.acc[v * n_v + i];
    __syncthreads(); // all four partial softmaxes are there
    float sink = sinks.at ? load(sinks, h) : -INFINITY, m = sink;
    for (int w = 0; w < WARPS; w++)
        m = fmaxf(m, ms[w]);
    float total = sinks.at ? expf(sink - m) : 0.0f, share[WARPS];
    for (int w = 0; w < WARPS; w++) {
        share[w] = ms[w] == -INFINITY ? 0.0f : expf(ms[w] - m);
        total += ls[w] * share[w];
    }
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += sums[w * width + i] * share[w];
        store(out, t, h * width + i, sum / total);
    }
}

void launch_attention(const struct launch *l, const struct dattention *a, struct dmat q, struct dweight sinks, struct dcache cache,
                      struct dmat out) {
    dim3 grid(a->n_heads, l->n_tokens);
    size_t shared = (size_t)WARPS * (a->paired_values ? 2 : 1) * a->v_head_dim * sizeof(float);
    launch_node(attention, grid, WARPS * 32, shared, l->stream, l->plan, *a, q, sinks, cache, l->block_size, out);
}
