/* attention_int4.cu - the plain ATTENTION over a cache of int4 (kv_int4.cuh), for every shape: a block a token row and
 * head.
 *
 * Four warps deal the visible keys among themselves, 32 at a time. A lane has a key: its scores are sums of codes times
 * the query, which stands in shared memory, a group at a time, times the group's scale. Then a lane has bytes of all
 * value rows in turn, two channels each. The softmax runs in one pass (m, l, acc); the four are joined at the end, and
 * what comes out is rotated back once. Each byte is read once a query head and token: n_heads / n_kv_heads times the
 * floor, mostly from L2, and becomes floats as often. What serves prompts, and decoding where
 * attention_decode_int4.cu does not. */
#include "backend/cuda/attention/attention_int4.h"
#include "backend/cuda/attention/kv_int4.cuh"
#include "core/ops.h"

namespace {

enum { WARPS = 4, MAX_BYTES = 8 }; // bytes of a value row in a lane: rows of up to 512 channels

struct arguments {
    device_plan plan;
    dattention a;
    dmat q, out;
    dweight sinks;
    dcache cache;
    int4_shape shape;
    float key_factor, value_factor; // of the rotations
};

/* The softmax of a warp so far: m the largest score, l the sum of e^(s - m), acc that of e^(s - m) v; VALUES rows of
 * values to a key. */
template <int VALUES> struct partial { float m, l, acc[VALUES][MAX_BYTES][2]; };

/* By the block, in shared memory. */
__device__ void hadamard(float *x, int n) {
    for (int apart = 1; apart < int4_block_width(n); apart *= 2) {
        __syncthreads(); // what is turned is there
        for (int i = threadIdx.x; i < n / 2; i += WARPS * 32) {
            int at = i / apart * 2 * apart + i % apart;
            float a = x[at], b = x[at + apart];
            x[at] = a + b;
            x[at + apart] = a - b;
        }
    }
    __syncthreads();
}
__device__ void sign_and_scale(float *x, int n, float factor) {
    for (int i = threadIdx.x; i < n; i += WARPS * 32)
        x[i] *= int4_signed(i, factor);
}

/* The query that meets keys, [k_dim]; behind it, of shared keys, the one that meets values, [v_dim]. */
__device__ void take_query(const arguments &p, int t, int h, float *query) {
    const dattention &a = p.a;
    int half = a.head_dim / 2, n = a.rotary_dim / 2;
    float *of_values = query + p.shape.k_dim;
    for (int i = threadIdx.x; i < a.head_dim; i += WARPS * 32) {
        float x = load(p.q, t, h * a.head_dim + i);
        if (a.rotary_dim == 0) {
            query[i] = x;
            continue;
        }
        bool turns = i % half < n;
        if (turns)
            query[i / half * n + i % half] = x;
        of_values[i] = turns ? 0.0f : x;
    }
    __syncthreads();
    if (a.rotary_dim > 0) {
        sign_and_scale(query, p.shape.k_dim, p.key_factor);
        sign_and_scale(of_values, p.shape.v_dim, p.value_factor);
        hadamard(query, p.shape.k_dim);
        hadamard(of_values, p.shape.v_dim);
    }
}

__device__ float dot(const int4_row &row, int n, const float *query) {
    float sum = 0;
    int byte = 0;
    for (int first = 0, g = 0; first < n; first += KV_INT4_GROUP, g++) {
        int m = min(KV_INT4_GROUP, n - first), half = (m + 1) / 2;
        float of_group = 0;
        for (int k = 0; k < half; k++, byte++) {
            int both = row.codes[(int64_t)byte * row.code_step];
            of_group += (float)((both & 15) - 8) * query[first + k];
            if (k + half < m)
                of_group += (float)((both >> 4) - 8) * query[first + k + half];
        }
        sum += int4_scale(row.scales[(int64_t)g * row.scale_step]) * of_group;
    }
    return sum;
}

/* The key at j of this lane. */
__device__ float score(const arguments &p, char *block, int slot, int kv, const float *query) {
    const dattention &a = p.a;
    float s = dot(int4_key_row(p.shape, block, kv, slot), p.shape.k_dim, query);
    if (a.rotary_dim > 0)
        s += dot(int4_value_row(p.shape, block, kv, slot), p.shape.v_dim, query + p.shape.k_dim);
    s *= a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(s / a.softcap) : s;
}

/* A value row times its weight. */
__device__ void add_value(const arguments &p, char *block, int slot, int head, float weight,
                          float (&acc)[MAX_BYTES][2]) {
    int4_row row = int4_value_row(p.shape, block, head, slot);
    int n = int4_bytes(p.shape.v_dim), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MAX_BYTES; i++) {
        int byte = lane + 32 * i;
        if (byte >= n)
            break;
        float by = weight * int4_scale(row.scales[byte / (KV_INT4_GROUP / 2)]);
        int both = row.codes[byte];
        acc[i][0] += by * (float)((both & 15) - 8);
        acc[i][1] += by * (float)((both >> 4) - 8);
    }
}

/* Keys that a token sees: [first, end). */
struct visible {
    int seq, first, end;
};
__device__ visible keys_of(const arguments &p, int t) {
    const dattention &a = p.a;
    int seq = p.plan.seq_of_row[t], position = p.plan.position[t];
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    if (a.chunk > 0)
        first = max(first, position / a.chunk * a.chunk);
    int end = a.reach == REACH_ALL ? p.plan.seq_len[seq] : a.reach == REACH_BEFORE ? position : position + 1;
    return {seq, first, end};
}

template <int VALUES>
__device__ void take_keys(const arguments &p, const visible &v, int kv, const int (&value_head)[2], const float *query,
                          partial<VALUES> &sum) {
    int lane = threadIdx.x % 32, n_slots = p.shape.n_slots;
    for (int from = v.first + threadIdx.x / 32 * 32; from < v.end; from += WARPS * 32) {
        int mine = min(from + lane, v.end - 1), n = min(32, v.end - from);
        char *block = int4_block(p.plan, p.cache, n_slots, v.seq, mine);
        float s = score(p, block, mine % n_slots, kv, query);
        s = lane < n ? s : -INFINITY;
        float m = fmaxf(sum.m, warp_max(s)), shrink = sum.m == -INFINITY ? 0.0f : expf(sum.m - m),
              e = lane < n ? expf(s - (m == -INFINITY ? 0.0f : m)) : 0.0f;
        sum.l = sum.l * shrink + e;
        sum.m = m;
#pragma unroll
        for (int h = 0; h < VALUES; h++)
#pragma unroll
            for (int i = 0; i < MAX_BYTES; i++)
                sum.acc[h][i][0] *= shrink, sum.acc[h][i][1] *= shrink;
        for (int j = 0; j < n; j++) {
            float weight = __shfl_sync(0xffffffffu, e, j);
            char *at = reinterpret_cast<char *>(__shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(block), j));
#pragma unroll
            for (int h = 0; h < VALUES; h++)
                add_value(p, at, (from + j) % n_slots, value_head[h], weight, sum.acc[h]);
        }
    }
    sum.l = warp_sum(sum.l);
}

template <int VALUES>
__device__ void leave(const arguments &p, const partial<VALUES> &sum, float *ms, float *ls, float *sums) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = p.shape.v_dim, width = VALUES * n;
    if (lane == 0)
        ms[warp] = sum.m, ls[warp] = sum.l;
#pragma unroll
    for (int h = 0; h < VALUES; h++)
#pragma unroll
        for (int i = 0; i < MAX_BYTES; i++) {
            if (lane + 32 * i >= int4_bytes(n))
                break;
            int4_pair c = int4_channels(lane + 32 * i, n);
            sums[warp * width + h * n + c.low] = sum.acc[h][i][0];
            if (c.high < n)
                sums[warp * width + h * n + c.high] = sum.acc[h][i][1];
        }
}

/* The four sums, over the softmax's denominator, into the first of them. */
__device__ void join(const arguments &p, int h, const float *ms, const float *ls, float *sums, int width) {
    float sink = p.sinks.at ? load(p.sinks, h) : -INFINITY, m = sink;
    for (int w = 0; w < WARPS; w++)
        m = fmaxf(m, ms[w]);
    float total = p.sinks.at ? expf(sink - m) : 0.0f, share[WARPS];
    for (int w = 0; w < WARPS; w++) {
        share[w] = ms[w] == -INFINITY ? 0.0f : expf(ms[w] - m);
        total += ls[w] * share[w];
    }
    for (int i = threadIdx.x; i < width; i += WARPS * 32) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += sums[w * width + i] * share[w];
        sums[i] = sum / total;
    }
}

template <int VALUES>
__global__ void __launch_bounds__(WARPS * 32) attention_int4(const __grid_constant__ arguments p) {
    let_next_start();
    wait_for_previous();
    __shared__ float ms[WARPS], ls[WARPS];
    extern __shared__ float memory[]; // the query, [WARPS][width] sums
    const dattention &a = p.a;
    int t = blockIdx.y, h = blockIdx.x, per_kv = a.n_heads / a.n_kv_heads, half = a.n_heads / 2;
    if (t >= step_tokens(p.plan))
        return;
    int width = VALUES * a.v_head_dim, kv = h / per_kv;
    int value_head[2] = {VALUES == 2 ? h % half / per_kv : kv, VALUES == 2 ? (h % half + half) / per_kv : 0};
    float *query = memory, *sums = memory + p.shape.k_dim + (a.rotary_dim > 0 ? a.v_head_dim : 0);
    partial<VALUES> sum = {-INFINITY, 0.0f, {}};
    take_query(p, t, h, query);
    take_keys(p, keys_of(p, t), kv, value_head, query, sum);
    leave(p, sum, ms, ls, sums);
    __syncthreads(); // all four partial softmaxes are there
    join(p, h, ms, ls, sums, width);
    for (int first = 0; first < width; first += a.v_head_dim) {
        hadamard(sums + first, a.v_head_dim);
        sign_and_scale(sums + first, a.v_head_dim, p.value_factor);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += WARPS * 32)
        store(p.out, t, h * width + i, sums[i]);
}

} // namespace

void launch_attention_int4(const launch *l, const dattention *a, dmat q, dweight sinks, dcache cache, dmat out) {
    int k_dim = a->rotary_dim > 0 ? a->rotary_dim : a->head_dim, width = (a->paired_values ? 2 : 1) * a->v_head_dim;
    arguments p = {l->plan,
                   *a,
                   q,
                   out,
                   sinks,
                   cache,
                   {a->n_kv_heads, k_dim, a->v_head_dim, l->block_size},
                   int4_rotation_factor(k_dim),
                   int4_rotation_factor(a->v_head_dim)};
    dim3 grid(a->n_heads, l->n_tokens);
    size_t shared = (size_t)(k_dim + (a->rotary_dim > 0 ? a->v_head_dim : 0) + WARPS * width) * sizeof(float);
    if (a->paired_values)
        launch_node(attention_int4<2>, grid, WARPS * 32, shared, l->stream, p);
    else
        launch_node(attention_int4<1>, grid, WARPS * 32, shared, l->stream, p);
}
