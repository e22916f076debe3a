/* delta_chunk_inputs.cu - what a prompt's chunks are made of (delta_chunks.cuh): q, k and v behind their convolution, q
 * and k as units, in pairs of bfloat16.
 *
 * A stream: a warp has a head of q, k or v and RUN rows of a chunk, a lane D / 32 neighbouring channels, whose window
 * it keeps in registers; BATCH rows are loaded at a time. silu divides fast, 2 units in the last place.
 *
 * Bytes a token: 2 or 4 a channel in (the window's three rows once more a run), 4 out. */
#include "backend/cuda/recurrent/delta_chunks.cuh"

enum { INPUTS_THREADS = 256, BATCH = 8 };

/* N neighbours of a row. */
template <int N> struct lane_row { float x[N]; };
template <int N> static __device__ __forceinline__ lane_row<N> load_lane(const float *at) {
    lane_row<N> r;
    if constexpr (N == 4) {
        float4 v = *reinterpret_cast<const float4 *>(at);
        r.x[0] = v.x, r.x[1] = v.y, r.x[2] = v.z, r.x[3] = v.w;
    } else if constexpr (N == 2) {
        float2 v = *reinterpret_cast<const float2 *>(at);
        r.x[0] = v.x, r.x[1] = v.y;
    } else {
        r.x[0] = *at;
    }
    return r;
}
template <int N> static __device__ __forceinline__ lane_row<N> load_lane(const __half *at) {
    lane_row<N> r;
    if constexpr (N == 4) {
        uint2 v = *reinterpret_cast<const uint2 *>(at);
        float2 low = __half22float2(reinterpret_cast<__half2 &>(v.x)),
               high = __half22float2(reinterpret_cast<__half2 &>(v.y));
        r.x[0] = low.x, r.x[1] = low.y, r.x[2] = high.x, r.x[3] = high.y;
    } else if constexpr (N == 2) {
        float2 v = __half22float2(*reinterpret_cast<const __half2 *>(at));
        r.x[0] = v.x, r.x[1] = v.y;
    } else {
        r.x[0] = __half2float(*at);
    }
    return r;
}

static __device__ __forceinline__ float fast_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

/* Which head of q, k and v a warp has: its first channel, and what it is. */
struct input_head {
    int channel, kind; // 0: q, 1: k, 2: v
};
template <int D> static __device__ __forceinline__ input_head head_of(const ddelta_layer &a, int i) {
    int n = a.shape.n_key_heads;
    return input_head{i * D, i < n ? 0 : i < 2 * n ? 1 : 2};
}

/* The rows of u, as they lie. */
template <int N, class Element> struct input_rows {
    const Element *at;
    int64_t stride;
    const float *row_scale; // NULL: values
    bool in_fours;          // rows lie so that a lane's channels are one load
    float scale[N], bias[N];
    __device__ input_rows(const dmat &u, int channel) {
        at = static_cast<const Element *>(u.at) + channel, stride = u.stride, row_scale = u.row_scale;
        in_fours = stride % 4 == 0 && reinterpret_cast<uintptr_t>(u.at) % 16 == 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            scale[i] = row_scale ? u.col_scale[channel + i] : 1.0f;
            bias[i] = row_scale && u.bias ? u.bias[channel + i] : 0.0f;
        }
    }
    __device__ lane_row<N> row(int64_t t) const {
        lane_row<N> r;
        if (in_fours)
            r = load_lane<N>(at + t * stride);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                r.x[i] = (float)at[t * stride + i];
        float by = row_scale ? row_scale[t] : 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++)
            r.x[i] = row_scale ? r.x[i] * (by * scale[i]) + bias[i] : r.x[i];
        return r;
    }
};

/* A row behind the convolution, where it belongs. */
template <int D>
static __device__ __forceinline__ void store_row(const ddelta_layer &a, const input_head &h, int64_t t,
                                                 const lane_row<D / 32> &y) {
    constexpr int N = D / 32;
    float *to = static_cast<float *>(a.mixed.at) + t * a.mixed.stride + h.channel;
    int lane = threadIdx.x % 32;
    if (h.kind == 2) {
        if constexpr (N == 4)
            reinterpret_cast<float4 *>(to)[lane] = make_float4(y.x[0], y.x[1], y.x[2], y.x[3]);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                to[lane * N + i] = y.x[i];
        return;
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        squares += y.x[i] * y.x[i];
    float by = (h.kind == 0 ? rsqrtf((float)D) : 1.0f) * rsqrtf(warp_sum(squares) + 1e-6f);
    uint32_t *words = reinterpret_cast<uint32_t *>(to);
    if constexpr (N == 4) {
        two_of low = split_pair(y.x[0] * by, y.x[1] * by), high = split_pair(y.x[2] * by, y.x[3] * by);
        reinterpret_cast<uint2 *>(words)[lane] = make_uint2(low.hi, high.hi);
        reinterpret_cast<uint2 *>(words + D / 2)[lane] = make_uint2(low.lo, high.lo);
    } else if constexpr (N == 2) {
        two_of two = split_pair(y.x[0] * by, y.x[1] * by);
        words[lane] = two.hi, words[D / 2 + lane] = two.lo;
    } else {
        two_of one = split_pair(y.x[0] * by, 0);
        reinterpret_cast<uint16_t *>(words)[lane] = (uint16_t)one.hi;
        reinterpret_cast<uint16_t *>(words)[D + lane] = (uint16_t)one.lo;
    }
}

template <int D, class Element>
static __device__ void convolve_run(const ddelta_layer &a, const chunk_place &c, const input_head &h, int begin,
                                    int end, const float *kept, bool fresh) {
    constexpr int N = D / 32;
    int channel = h.channel + threadIdx.x % 32 * N;
    input_rows<N, Element> rows(a.u, channel);
    float weight[DELTA_TAPS][N];
    lane_row<N> window[DELTA_TAPS - 1], next[BATCH];
#pragma unroll
    for (int j = 0; j < DELTA_TAPS; j++)
#pragma unroll
        for (int i = 0; i < N; i++)
            weight[j][i] = tap(a, channel + i, j);
#pragma unroll
    for (int j = 0; j < DELTA_TAPS - 1; j++) {
        int row = begin + j - (DELTA_TAPS - 1), t = c.index * (D / 2) + row; // in the chunk, in the sequence's step
        if (t >= 0)
            window[j] = rows.row(c.first + row);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                window[j].x[i] = fresh ? 0.0f : kept_input(a, kept, channel + i, t + DELTA_TAPS - 1);
    }
    for (int row = begin; row < end; row += BATCH) {
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            next[k] = rows.row(c.first + min(row + k, end - 1));
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            lane_row<N> y;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float sum = weight[DELTA_TAPS - 1][i] * next[k].x[i];
#pragma unroll
                for (int j = 0; j < DELTA_TAPS - 1; j++)
                    sum += weight[j][i] * window[j].x[i];
                y.x[i] = fast_silu(sum);
            }
            if (row + k < end)
                store_row<D>(a, h, c.first + row + k, y);
#pragma unroll
            for (int j = 0; j < DELTA_TAPS - 1; j++)
                window[j] = j == DELTA_TAPS - 2 ? next[k] : window[j + 1];
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(INPUTS_THREADS, 2)
    delta_chunk_inputs(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan) {
    constexpr int C = D / 2, RUN = C < 32 ? C : 32;
    let_next_start();
    wait_for_previous();
    int i = blockIdx.y * (INPUTS_THREADS / 32) + threadIdx.x / 32, begin = blockIdx.x % (C / RUN) * RUN;
    chunk_place c = find_chunk<C>(a, plan, blockIdx.x / (C / RUN));
    if (c.seq < 0 || i >= 2 * a.shape.n_key_heads + a.shape.n_value_heads || begin >= c.n)
        return;
    input_head h = head_of<D>(a, i);
    const float *kept = kept_of(a, plan.state_slot[c.seq]);
    bool fresh = plan.position[plan.query_start[c.seq]] == 0;
    int end = min(c.n, begin + RUN);
    if (a.u.element == ELEMENT_F32)
        convolve_run<D, float>(a, c, h, begin, end, kept, fresh);
    else
        convolve_run<D, __half>(a, c, h, begin, end, kept, fresh);
}

template <int D> static void launch_of_width(const struct launch *l, const ddelta_layer &a) {
    constexpr int C = D / 2, RUNS = C < 32 ? 1 : C / 32, WARPS = INPUTS_THREADS / 32;
    int n_heads = 2 * a.shape.n_key_heads + a.shape.n_value_heads;
    dim3 grid(delta_most_chunks(l, C) * RUNS, (n_heads + WARPS - 1) / WARPS);
    launch_node(delta_chunk_inputs<D>, grid, INPUTS_THREADS, 0, l->stream, a, l->plan);
}

void launch_delta_chunk_inputs(const struct launch *l, const struct ddelta_layer *a) {
    switch (a->shape.key_dim) {
    case 32: launch_of_width<32>(l, *a); break;
    case 64: launch_of_width<64>(l, *a); break;
    default: launch_of_width<128>(l, *a);
    }
}
