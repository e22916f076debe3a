/* delta.cu - the plain SHORT_CONV and DELTA_RULE: recurrences, walked token by token.
 *
 * SHORT_CONV    a thread a channel of a sequence; the last kernel - 1 inputs are held in registers between tokens.
 * DELTA_RULE    a block a sequence and value head, a thread a column of S (value channel), which it keeps in registers:
 * key_dim floats, read once and written once a step. Time is serial in tokens, so long prompts are slow. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta.h"
#include "backend/cuda/value.h"

enum { MAX_KERNEL = 8 };

static __device__ float *state_at(const device_plan &plan, const dcache &c, int seq) {
    return static_cast<float *>(c.at) + plan.state_slot[seq] * c.block_elements;
}

static __global__ void short_conv(device_plan plan, int kernel, dmat u, dweight w, dcache cache, dmat y) {
    let_next_start();
    wait_for_previous();
    int seq = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (seq >= step_seqs(plan) || c >= u.width)
        return;
    float *kept = state_at(plan, cache, seq), past[MAX_KERNEL],
          weight[MAX_KERNEL]; // kept [kernel - 1][channels], oldest first
    int first = plan.query_start[seq], end = plan.query_start[seq + 1];
    bool fresh = plan.position[first] == 0;
#pragma unroll
    for (int j = 0; j < MAX_KERNEL; j++) {
        past[j] = j < kernel - 1 && !fresh ? kept[(int64_t)j * u.width + c] : 0.0f;
        weight[j] = j < kernel ? load(w, (int64_t)c * kernel + j) : 0.0f;
    }
    for (int t = first; t < end; t++) {
        float x = load(u, t, c), sum = 0;
#pragma unroll
        for (int j = 0; j < MAX_KERNEL; j++)
            sum += weight[j] * (j == kernel - 1 ? x : past[j]);
        store(y, t, c, silu(sum));
#pragma unroll
        for (int j = 0; j < MAX_KERNEL; j++)
            past[j] = j == kernel - 2 ? x : j + 1 < MAX_KERNEL ? past[j + 1] : 0.0f;
    }
    for (int j = 0; j < kernel - 1; j++)
        kept[(int64_t)j * u.width + c] = past[j];
}

void launch_short_conv(const struct launch *l, int kernel, struct dmat u, struct dweight w, struct dcache cache,
                       struct dmat y) {
    launch_node(short_conv, dim3((u.width + 127) / 128, l->n_seqs), 128, 0, l->stream, l->plan, kernel, u, w, cache, y);
}

/* Shared memory: k^ and q^ of the token [key_dim] each. KEYS: key_dim at most. */
template <int KEYS>
static __global__ void __launch_bounds__(256) delta_rule(device_plan plan, ddelta a, dmat qkv, dmat b, dmat gate,
                                                         dweight a_log, dweight dt_bias, dcache cache, dmat out) {
    let_next_start();
    wait_for_previous();
    __shared__ float k[KEYS], q[KEYS], shared[32];
    int seq = blockIdx.y, h = blockIdx.x, v = threadIdx.x, kh = h / (a.n_value_heads / a.n_key_heads);
    if (seq >= step_seqs(plan))
        return;
    int first = plan.query_start[seq], end = plan.query_start[seq + 1], keys = a.n_key_heads * a.key_dim;
    bool fresh = plan.position[first] == 0, mine = v < a.value_dim;
    float *state =
        state_at(plan, cache, seq) + a.state_offset + (int64_t)h * a.key_dim * a.value_dim; // [key_dim][value_dim]
    float s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        s[i] = mine && !fresh && i < a.key_dim ? state[(int64_t)i * a.value_dim + v] : 0.0f;
    for (int t = first; t < end; t++) {
        float sum_q = 0, sum_k = 0;
        for (int i = v; i < a.key_dim; i += blockDim.x) {
            q[i] = load(qkv, t, kh * a.key_dim + i);
            k[i] = load(qkv, t, keys + kh * a.key_dim + i);
            sum_q += q[i] * q[i];
            sum_k += k[i] * k[i];
        }
        float scale_q = rsqrtf((float)a.key_dim) / sqrtf(block_sum(sum_q, shared) + 1e-6f);
        float scale_k = 1.0f / sqrtf(block_sum(sum_k, shared) + 1e-6f); // the barriers also publish q and k
        float x = load(gate, t, h) + load(dt_bias, h), softplus = x > 20.0f ? x : log1pf(expf(x));
        float decay = expf(-expf(load(a_log, h)) * softplus), beta = sigmoid(load(b, t, h)), recalled = 0, o = 0;
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (i < a.key_dim) {
                s[i] *= decay;
                recalled += k[i] * scale_k * s[i];
            }
        float e = mine ? beta * (load(qkv, t, 2 * keys + h * a.value_dim + v) - recalled) : 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (i < a.key_dim) {
                s[i] += k[i] * scale_k * e;
                o += q[i] * scale_q * s[i];
            }
        if (mine)
            store(out, t, h * a.value_dim + v, o);
        __syncthreads(); // the next token's q and k overwrite these
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (mine && i < a.key_dim)
            state[(int64_t)i * a.value_dim + v] = s[i];
}

void launch_delta_rule(const struct launch *l, const struct ddelta *a, struct dmat qkv, struct dmat b, struct dmat gate,
                       struct dweight a_log, struct dweight dt_bias, struct dcache cache, struct dmat out) {
    dim3 grid(a->n_value_heads, l->n_seqs);
    int threads = (a->value_dim + 31) / 32 * 32;
    if (a->key_dim <= 32)
        launch_node(delta_rule<32>, grid, threads, 0, l->stream, l->plan, *a, qkv, b, gate, a_log, dt_bias, cache, out);
    else
        launch_node(delta_rule<128>, grid, threads, 0, l->stream, l->plan, *a, qkv, b, gate, a_log, dt_bias, cache,
                    out);
}
