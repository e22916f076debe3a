/* delta.cu - the plain SHORT_CONV and DELTA_RULE: recurrences, walked token by token.
 *
 * SHORT_CONV    a thread a channel of a sequence; the last kernel - 1 inputs are held in registers between tokens.
 * DELTA_RULE    a block a sequence and value head, a thread a column of S (value channel), which it keeps in registers:
 * key_dim floats, read once and written once a step. Time is serial in tokens, so long prompts are slow. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta.h"
#include "backend/cuda/value.h"

enum { MAX_KERNEL = 8, KEEP = 256 };

static __device__ float *state_at(const device_plan &plan, const dcache &c, int seq) {
    return static_cast<float *>(c.at) + plan.state_slot[seq] * c.block_elements;
}

/* The tokens that a step walks for a sequence: those that are computed again, then its own, from row `first` on. */
struct walk {
    int first, n_again, n, n_kept; // n_kept: after so many the state is the slot's
    int base;                      // the first one's position
    __device__ walk(const device_plan &plan, const ddelta_back &back, int seq) {
        first = plan.query_start[seq], n = n_kept = plan.query_start[seq + 1] - first, n_again = 0;
        base = plan.position[first];
        if (back.n == 0)
            return;
        n_again = base - back.base[seq], base = back.base[seq];
        n += n_again, n_kept = back.kept[seq] - base;
    }
};

/* The row of a token that a slot keeps, of u; of what the delta rule reads. */
static __device__ float *kept_u(const ddelta_back &back, float *slot, int position) {
    float *rows = reinterpret_cast<float *>(reinterpret_cast<char *>(slot) + back.rows);
    return rows + (int64_t)(position % back.n) * back.conv_width;
}
static __device__ float *kept_qkv(const ddelta_back &back, float *slot, int position) {
    float *rows =
        reinterpret_cast<float *>(reinterpret_cast<char *>(slot) + back.rows) + (int64_t)back.n * back.conv_width;
    return rows + (int64_t)(position % back.n) * back.delta_width;
}

static __global__ void short_conv(device_plan plan, int kernel, ddelta_back back, dmat u, dweight w, dcache cache,
                                  dmat y) {
    let_next_start();
    wait_for_previous();
    int seq = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (seq >= step_seqs(plan) || c >= u.width)
        return;
    float *kept = state_at(plan, cache, seq), past[MAX_KERNEL], left[MAX_KERNEL],
          weight[MAX_KERNEL]; // kept [kernel - 1][channels], oldest first
    walk at(plan, back, seq);
    bool fresh = plan.position[at.first] == 0;
#pragma unroll
    for (int j = 0; j < MAX_KERNEL; j++) {
        past[j] = j < kernel - 1 && !fresh ? kept[(int64_t)j * u.width + c] : 0.0f;
        weight[j] = j < kernel ? load(w, (int64_t)c * kernel + j) : 0.0f;
    }
    for (int i = 0; i <= at.n; i++) {
        if (i == at.n_kept)
#pragma unroll
            for (int j = 0; j < MAX_KERNEL; j++)
                left[j] = past[j];
        if (i == at.n)
            break;
        int t = at.first + i - at.n_again;
        float x = i < at.n_again ? kept_u(back, kept, at.base + i)[c] : load(u, t, c), sum = 0;
#pragma unroll
        for (int j = 0; j < MAX_KERNEL; j++)
            sum += weight[j] * (j == kernel - 1 ? x : past[j]);
        if (i >= at.n_again)
            store(y, t, c, silu(sum));
#pragma unroll
        for (int j = 0; j < MAX_KERNEL; j++)
            past[j] = j == kernel - 2 ? x : j + 1 < MAX_KERNEL ? past[j + 1] : 0.0f;
    }
    for (int j = 0; j < kernel - 1; j++)
        kept[(int64_t)j * u.width + c] = left[j];
    for (int i = max(at.n_kept, at.n_again); i < at.n; i++)
        kept_u(back, kept, at.base + i)[c] = load(u, at.first + i - at.n_again, c);
}

void launch_short_conv(const struct launch *l, int kernel, const struct ddelta_back *back, struct dmat u,
                       struct dweight w, struct dcache cache, struct dmat y) {
    launch_node(short_conv, dim3((u.width + 127) / 128, l->n_seqs), 128, 0, l->stream, l->plan, kernel, *back, u, w,
                cache, y);
}

static __global__ void __launch_bounds__(KEEP)
    delta_keep(device_plan plan, ddelta_back back, dmat qkv, dmat b, dmat gate, dcache cache) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, i = blockIdx.x * KEEP + threadIdx.x;
    if (t >= step_tokens(plan) || i >= back.delta_width)
        return;
    int seq = plan.seq_of_row[t], position = plan.position[t], of_b = i - qkv.width, of_gate = of_b - b.width;
    if (position >= back.kept[seq]) {
        float x = of_b < 0 ? load(qkv, t, i) : of_gate < 0 ? load(b, t, of_b) : load(gate, t, of_gate);
        kept_qkv(back, state_at(plan, cache, seq), position)[i] = x;
    }
}

void launch_delta_keep(const struct launch *l, const struct ddelta_back *back, struct dmat qkv, struct dmat b,
                       struct dmat gate, struct dcache cache) {
    launch_node(delta_keep, dim3((back->delta_width + KEEP - 1) / KEEP, l->n_tokens), KEEP, 0, l->stream, l->plan,
                *back, qkv, b, gate, cache);
}

/* What the rule reads of a token: of the step, or a row that was kept. */
struct delta_token {
    const float *kept; // NULL: of the step, row t
    int t;
    __device__ float qkv(const dmat &x, int i) const { return kept ? kept[i] : load(x, t, i); }
};

/* Shared memory: k^ and q^ of the token [key_dim] each. KEYS: key_dim at most. */
template <int KEYS>
static __global__ void __launch_bounds__(256)
    delta_rule(device_plan plan, ddelta a, ddelta_back back, dmat qkv, dmat b, dmat gate, dweight a_log,
               dweight dt_bias, dcache cache, dmat out) {
    let_next_start();
    wait_for_previous();
    __shared__ float k[KEYS], q[KEYS], shared[32];
    int seq = blockIdx.y, h = blockIdx.x, v = threadIdx.x, kh = h / (a.n_value_heads / a.n_key_heads);
    if (seq >= step_seqs(plan))
        return;
    walk at(plan, back, seq);
    int keys = a.n_key_heads * a.key_dim;
    bool fresh = plan.position[at.first] == 0, mine = v < a.value_dim;
    float *slot = state_at(plan, cache, seq),
          *state = slot + a.state_offset + (int64_t)h * a.key_dim * a.value_dim; // [key_dim][value_dim]
    float s[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        s[i] = mine && !fresh && i < a.key_dim ? state[(int64_t)i * a.value_dim + v] : 0.0f;
    for (int step = 0; step <= at.n; step++) {
        if (step == at.n_kept)
#pragma unroll
            for (int i = 0; i < KEYS; i++)
                if (mine && i < a.key_dim)
                    state[(int64_t)i * a.value_dim + v] = s[i];
        if (step == at.n)
            break;
        int t = at.first + step - at.n_again;
        bool again = step < at.n_again;
        delta_token token = {again ? kept_qkv(back, slot, at.base + step) : nullptr, t};
        float sum_q = 0, sum_k = 0;
        for (int i = v; i < a.key_dim; i += blockDim.x) {
            q[i] = token.qkv(qkv, kh * a.key_dim + i);
            k[i] = token.qkv(qkv, keys + kh * a.key_dim + i);
            sum_q += q[i] * q[i];
            sum_k += k[i] * k[i];
        }
        float scale_q = rsqrtf((float)a.key_dim) / sqrtf(block_sum(sum_q, shared) + 1e-6f);
        float scale_k = 1.0f / sqrtf(block_sum(sum_k, shared) + 1e-6f); // the barriers also publish q and k
        float alpha = again ? token.kept[qkv.width + b.width + h] : load(gate, t, h);
        float x = alpha + load(dt_bias, h), softplus = x > 20.0f ? x : log1pf(expf(x));
        float decay = expf(-expf(load(a_log, h)) * softplus), recalled = 0, o = 0;
        float beta = sigmoid(again ? token.kept[qkv.width + h] : load(b, t, h));
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (i < a.key_dim) {
                s[i] *= decay;
                recalled += k[i] * scale_k * s[i];
            }
        float e = mine ? beta * (token.qkv(qkv, 2 * keys + h * a.value_dim + v) - recalled) : 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (i < a.key_dim) {
                s[i] += k[i] * scale_k * e;
                o += q[i] * scale_q * s[i];
            }
        if (mine && !again)
            store(out, t, h * a.value_dim + v, o);
        __syncthreads(); // the next token's q and k overwrite these
    }
}

void launch_delta_rule(const struct launch *l, const struct ddelta *a, const struct ddelta_back *back, struct dmat qkv,
                       struct dmat b, struct dmat gate, struct dweight a_log, struct dweight dt_bias,
                       struct dcache cache, struct dmat out) {
    dim3 grid(a->n_value_heads, l->n_seqs);
    int threads = (a->value_dim + 31) / 32 * 32;
    if (a->key_dim <= 32)
        launch_node(delta_rule<32>, grid, threads, 0, l->stream, l->plan, *a, *back, qkv, b, gate, a_log, dt_bias,
                    cache, out);
    else
        launch_node(delta_rule<128>, grid, threads, 0, l->stream, l->plan, *a, *back, qkv, b, gate, a_log, dt_bias,
                    cache, out);
}
