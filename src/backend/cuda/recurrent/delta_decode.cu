/* delta_decode.cu - a gated DeltaNet layer between its products, token by token, in one node; see delta_layer.h.
 *
 * A block has a sequence and a value head, its 256 threads all of the head's state in registers: [D, D] float32, fours
 * of a row side by side in a warp, 64 KiB at D = 128, which cross memory once each way a step. Two blocks to a
 * multiprocessor have 128 KiB under way. With S the state before a token and d its decay
 *
 *     e = beta (v - d k^T S);   S' = d S + k e^T;   o = q^T S' = d q^T S + (q.k) e
 *
 * so both sums over rows are of the old state, and a token has one pass over it and three barriers. The value heads of
 * a key head each convolve its q and k for themselves, from L2, and are a cluster, since one of them moves on the
 * window of inputs that all read.
 *
 * Before it waits for the projection a block asks for its state in L2. Which slot that is it reads from the plan, which
 * may be the last step's still: a prefetch of another slot costs time and nothing else, and is read past L1, where an
 * old entry would stay.
 *
 * Bytes: 8 D^2 a head and sequence (4 D^2 with a state of bfloat16). Sums are in a fixed order that depends on nothing
 * but D. */
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/recurrent/delta_layer.h"
#include "backend/cuda/recurrent/delta_state.cuh"

enum { THREADS = 256, FIRST_BLOCKS = 264 }; // FIRST_BLOCKS: that are on the card while the node before still runs

/* How a state [D, D] lies in registers: thread i has four columns of rows i / FOURS + ROWS * j, j < DEPTH. */
template <int D> struct state_tile {
    static constexpr int FOURS = D / 4, ROWS = THREADS / FOURS, DEPTH = D / ROWS;
    template <class State> __device__ static void load(float4 (&s)[DEPTH], const State *at, bool fresh) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            s[j] = fresh ? make_float4(0, 0, 0, 0) : load_state(at + j * ROWS * D);
    }
    template <class State> __device__ static void keep(const float4 (&s)[DEPTH], State *at) {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            store_state(at + j * ROWS * D, s[j]);
    }
};

/* Shared memory. qkv: after the convolution, by the parity of the token. recalled, read: k^T S and q^T S of the rows of
 * a group of threads. */
template <int D> struct token_memory {
    float qkv[2][3 * D], e[D], recalled[THREADS * 4 / D][D], read[THREADS * 4 / D][D], squares[2 * D / 32],
        of_norm[D / 32];
};

/* The channels of a thread, i and i + THREADS of [q | k | v]: their weights, their window, where they are in u. */
template <int D> struct window {
    static constexpr int N = (3 * D + THREADS - 1) / THREADS;
    float weight[N][DELTA_TAPS], past[N][DELTA_TAPS - 1], next[N];
    int column[N];

    __device__ static bool is_mine(int i) { return (int)threadIdx.x + i * THREADS < 3 * D; }

    __device__ void open(const ddelta_layer &a, int h, int kh) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int x = threadIdx.x + i * THREADS, keys = a.shape.n_key_heads * D;
            column[i] = x < D ? kh * D + x : x < 2 * D ? keys + kh * D + x - D : 2 * keys + h * D + x - 2 * D;
#pragma unroll
            for (int j = 0; j < DELTA_TAPS; j++)
                weight[i][j] = is_mine(i) ? tap(a, column[i], j) : 0.0f;
        }
    }
    __device__ void recall(const ddelta_layer &a, const float *kept, bool fresh) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < DELTA_TAPS - 1; j++)
                past[i][j] = is_mine(i) && !fresh ? kept_input(a, kept, column[i], j) : 0.0f;
    }
    __device__ void load_token(const ddelta_layer &a, int t) {
#pragma unroll
        for (int i = 0; i < N; i++)
            next[i] = is_mine(i) ? load(a.u, t, column[i]) : 0.0f;
    }
    __device__ float convolve(int i) { // and moves on
        float sum = 0, x = next[i];
#pragma unroll
        for (int j = 0; j < DELTA_TAPS; j++)
            sum += weight[i][j] * (j == DELTA_TAPS - 1 ? x : past[i][j]);
#pragma unroll
        for (int j = 0; j < DELTA_TAPS - 1; j++)
            past[i][j] = j == DELTA_TAPS - 2 ? x : past[i][j + 1];
        return silu(sum);
    }
    /* q, k and v of the token, and sums of squares of q and k by 32 channels. */
    __device__ void put_token(float *qkv, float *squares) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int x = threadIdx.x + i * THREADS;
            float y = convolve(i), square = warp_sum(y * y);
            if (is_mine(i))
                qkv[x] = y;
            if (x < 2 * D && x % 32 == 0)
                squares[x / 32] = square;
        }
    }
    /* Those of q and k are of all value heads of a key head: one of them does it. */
    __device__ void keep(const ddelta_layer &a, float *kept, bool all) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (is_mine(i) && (all || (int)threadIdx.x + i * THREADS >= 2 * D))
#pragma unroll
                for (int j = 0; j < DELTA_TAPS - 1; j++)
                    keep_input(a, kept, column[i], j, past[i][j]);
    }
};

static __device__ float4 scaled(float4 x, float by) { return make_float4(x.x * by, x.y * by, x.z * by, x.w * by); }
static __device__ float4 plus_scaled(float4 sum, float4 x, float by) {
    return make_float4(fmaf(x.x, by, sum.x), fmaf(x.y, by, sum.y), fmaf(x.z, by, sum.z), fmaf(x.w, by, sum.w));
}

template <int D> static __device__ float sum_of_rows(const float (&rows)[THREADS * 4 / D][D], int v) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < THREADS * 4 / D; r++)
        sum += rows[r][v];
    return sum;
}

template <int N> static __device__ float sum_of(const float *x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += x[i];
    return sum;
}

/* q.k by each warp. */
template <int D> static __device__ float warp_dot(const float *q, const float *k) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        sum += q[threadIdx.x % 32 + 32 * i] * k[threadIdx.x % 32 + 32 * i];
    return warp_sum(sum);
}

template <int D> static __device__ void store_output(const ddelta_layer &a, bool few, int t, int h, float o, float y) {
    int channel = h * D + threadIdx.x;
    if (few) {
        store(a.mixed, t, 2 * a.shape.n_key_heads * D + channel, o);
        return;
    }
    store(a.y, t, channel, y);
    if (a.y.absmax)
        fold_absmax(a.y.absmax, t, fabsf(y));
}

template <int D, class State>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_decode(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan, bool few) {
    typedef state_tile<D> tile;
    __shared__ token_memory<D> m;
    let_next_start();
    int h = blockIdx.x, seq = blockIdx.y, group = a.shape.n_value_heads / a.shape.n_key_heads, kh = h / group;
    int thread = threadIdx.x, four = thread % tile::FOURS, row = thread / tile::FOURS, warp = thread / 32;
    bool has_output = thread < D;
    if ((int)(blockIdx.y * gridDim.x + blockIdx.x) < FIRST_BLOCKS)
        prefetch_bytes(state_of<State>(a, __ldcg(plan.state_slot + seq), h), D * D * (int)sizeof(State));
    window<D> w;
    w.open(a, h, kh);
    float norm_weight = has_output ? norm_weight_at(a, thread) : 0.0f;
    float rate = expf(load(a.a_log, h)), bias = load(a.dt_bias, h);
    wait_for_previous();
    if (seq >= step_seqs(plan))
        return; // the cluster
    int first = plan.query_start[seq], end = plan.query_start[seq + 1], slot = plan.state_slot[seq];
    if (few && end - first > DELTA_FEW_TOKENS)
        return; // likewise
    bool fresh = plan.position[first] == 0;
    float *kept = kept_of(a, slot);
    State *state = state_of<State>(a, slot, h) + row * D + 4 * four;
    float4 s[tile::DEPTH];
    tile::load(s, state, fresh);
    w.recall(a, kept, fresh);
    w.load_token(a, first);
    for (int t = first; t < end; t++) {
        float *q = m.qkv[(t - first) % 2], *k = q + D, *v = k + D;
        float b = load(a.b, t, h), alpha = load(a.a, t, h), z = has_output ? load(a.z, t, h * D + thread) : 0.0f;
        w.put_token(q, m.squares);
        if (t + 1 < end)
            w.load_token(a, t + 1);
        __syncthreads(); // q, k, v and their squares are there
        if (t == first && group > 1)
            cluster_is_here(); // this block has used the window
        float scale_q = rsqrtf((float)D) / sqrtf(sum_of<D / 32>(m.squares) + 1e-6f),
              scale_k = 1.0f / sqrtf(sum_of<D / 32>(m.squares + D / 32) + 1e-6f);
        float decay = expf(-rate * softplus(alpha + bias)), beta = sigmoid(b);
        float4 recalled = make_float4(0, 0, 0, 0), read = recalled;
#pragma unroll
        for (int j = 0; j < tile::DEPTH; j++) {
            recalled = plus_scaled(recalled, s[j], k[row + j * tile::ROWS]);
            read = plus_scaled(read, s[j], q[row + j * tile::ROWS]);
        }
        *reinterpret_cast<float4 *>(&m.recalled[row][4 * four]) = recalled;
        *reinterpret_cast<float4 *>(&m.read[row][4 * four]) = read;
        float overlap = has_output ? warp_dot<D>(q, k) * scale_q * scale_k : 0.0f, o = 0;
        __syncthreads(); // sums over each group's rows are there
        if (has_output) {
            float e = beta * (v[thread] - decay * scale_k * sum_of_rows<D>(m.recalled, thread));
            o = decay * scale_q * sum_of_rows<D>(m.read, thread) + overlap * e;
            m.e[thread] = e * scale_k;
            float squares = warp_sum(o * o);
            if (thread % 32 == 0)
                m.of_norm[warp] = squares;
        }
        __syncthreads(); // e is there, and the squares of o
        float4 e = *reinterpret_cast<const float4 *>(&m.e[4 * four]);
#pragma unroll
        for (int j = 0; j < tile::DEPTH; j++)
            s[j] = plus_scaled(scaled(s[j], decay), e, k[row + j * tile::ROWS]);
        if (has_output)
            store_output<D>(a, few, t, h, o, gated_output<D>(a, o, m.of_norm, norm_weight, z));
    }
    tile::keep(s, state);
    if (group > 1)
        cluster_are_here();
    w.keep(a, kept, h % group == 0);
}

template <int D> static void launch_heads(const struct launch *l, const ddelta_layer &a, bool few) {
    dim3 grid(a.shape.n_value_heads, l->n_seqs);
    int group = a.shape.n_value_heads / a.shape.n_key_heads;
    launch_cluster(delta_decode<D, float>, grid, group, THREADS, 0, l->stream, a, l->plan, few);
}

static void launch_of_width(const struct launch *l, const ddelta_layer &a, bool few) {
    switch (a.shape.key_dim) {
    case 32: launch_heads<32>(l, a, few); break;
    case 64: launch_heads<64>(l, a, few); break;
    default: launch_heads<128>(l, a, few);
    }
}

void launch_delta_decode(const struct launch *l, const struct ddelta_layer *a) { launch_of_width(l, *a, false); }
void launch_delta_decode_few(const struct launch *l, const struct ddelta_layer *a) { launch_of_width(l, *a, true); }

bool delta_layer_takes(const struct ddelta *s, int kernel) {
    bool has_width = s->key_dim == 32 || s->key_dim == 64 || s->key_dim == 128;
    return has_width && s->value_dim == s->key_dim && s->state_offset % 4 == 0 && kernel >= 1 && kernel <= DELTA_TAPS &&
           s->n_value_heads <= DELTA_MOST_GROUP * s->n_key_heads;
}
