/* attention.cu - the plain ATTENTION, for every shape and element: a block a token row and head.
 *
 * Four warps deal the visible keys among themselves, 4 keys apart; a lane holds every 32nd channel of q and of the
 * warp's sum, the softmax runs in one pass (m, l, acc), and the four are joined at the end. Each key and value is read
 * once a query head: n_heads / n_kv_heads times the floor, mostly from L2. The oracle on the device of
 * attention_decode.cu and attention_prefill.cu, and what serves head sizes, block sizes and elements that they do not
 * take. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/value.h"
#include "core/ops.h"

enum { WARPS = 4, MAX_PER_LANE = 16 }; // channels of a head: up to 512

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

/* The end of the keys that a token sees. */
static __device__ int end_of_keys(const device_plan &plan, int reach, int seq, int position) {
    return reach == REACH_ALL ? plan.seq_len[seq] : reach == REACH_BEFORE ? position : position + 1;
}

/* V: channel groups of 32 that a lane holds of a value row; 2 rows with paired values. */
static __global__ void attention(device_plan plan, dattention a, dmat q, dweight sinks, dcache cache, int block_size,
                                 dmat out) {
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
    kv_shape shape = {a.n_kv_heads,  a.rotary_dim > 0 ? a.rotary_dim : a.head_dim,
                      a.v_head_dim,  block_size,
                      cache.element, a.rotary_dim > 0};
    int end = end_of_keys(plan, a.reach, seq, position);
    for (int j = first + warp; j < end; j += WARPS) {
        const char *block = kv_block(plan, cache, block_size, seq, j);
        int slot = j % block_size;
        float s = 0;
        for (int i = 0; i < n_q; i++)
            if (lane + 32 * i < a.head_dim)
                s += query[i] * kv_load(block + shape.key(kv, slot, lane + 32 * i), cache.element);
        s = warp_sum(s) * a.scale * kv_scale_at(shape, block, false, kv, slot);
        if (a.softcap > 0)
            s = a.softcap * tanhf(s / a.softcap);
        if (s > p.m)
            grow(&p, s, n_values * n_v);
        float e = expf(s - p.m);
        p.l += e;
        for (int v = 0; v < n_values; v++) {
            float weight = e * kv_scale_at(shape, block, true, value_head[v], slot);
            for (int i = 0; i < n_v; i++)
                if (lane + 32 * i < a.v_head_dim)
                    p.acc[v * n_v + i] +=
                        weight * kv_load(block + shape.value(value_head[v], slot, lane + 32 * i), cache.element);
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

void launch_attention(const struct launch *l, const struct dattention *a, struct dmat q, struct dweight sinks,
                      struct dcache cache, struct dmat out) {
    dim3 grid(a->n_heads, l->n_tokens);
    size_t shared = (size_t)WARPS * (a->paired_values ? 2 : 1) * a->v_head_dim * sizeof(float);
    launch_node(attention, grid, WARPS * 32, shared, l->stream, l->plan, *a, q, sinks, cache, l->block_size, out);
}
