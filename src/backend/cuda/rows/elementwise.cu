/* elementwise.cu - GATED_ACT, GATED_ADD, SOFTCAP: no sum over more than two elements.
 *
 * GATED_ACT   y = act(gate) * up. Without a qact a thread makes eight neighbours and a block 2,048 columns of a row.
 *             With one a row belongs to a cluster (row_join.cuh), and lies in its registers, rounded to half precision,
 *             between the largest element and the rounding to e4m3. Bytes a row of W: 4 W of half precision (gate, up)
 *             or 8 W, and 2 W or W. The hardware's exponential and reciprocal are good to some units in the last place
 *             of float32: two of them an element are as much as a multiprocessor does while it loads what they need, so
 *             no instruction more than needed. Where y is float32, and for other activations than silu and gelu_tanh,
 *             the plain kernel has the exact ones. The qact alone of unscaled products of many rows is act_rows.cuh's.
 * Gates that a half precision product left infinite count as its largest number, as to_half has it.
 *
 * The others: a block 1,024 columns of a row. Rows that do not lie in fours (GATED_ACT: eights) take the plain kernels.
 * Padding rows are computed too, since nothing reads them. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/row_join.cuh"
#include "backend/cuda/rows/act_rows.cuh"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/value.h"

enum { THREADS = 256, COLUMNS = 1024, ACT_COLUMNS = 8 * THREADS, MOST_THREADS = 512, WIDEST = 8 * 8 * MOST_THREADS };

static dim3 grid_of(int n_rows, int width) { return dim3((width + COLUMNS - 1) / COLUMNS, n_rows); }

#define FOR_COLUMNS(i, width) \
    for (int i = blockIdx.x * COLUMNS + threadIdx.x; i < min((int)(blockIdx.x + 1) * COLUMNS, width); i += THREADS)

// ---- GATED_ACT --------------------------------------------------------------------------------------------------

struct act_args {
    float limit;
    dmat gate, up, y, qact;
};

/* 1 / (1 + 2^-x); NaN stays NaN. */
static __device__ float sigmoid_of_2(float x) {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
}

/* `activate` for silu and gelu_tanh with the hardware's exponential; tanh(u) = 2 sigmoid(2 u) - 1. */
template <int ACT> static __device__ float act(float gate, float up) {
    constexpr float LOG2E = 1.4426950408889634f, ROOT = 0.7978845608028654f; // sqrt(2 / pi)
    return gate *
           sigmoid_of_2(ACT == 0 ? LOG2E * gate
                                 : gate * (2 * ROOT * LOG2E + 2 * ROOT * 0.044715f * LOG2E * gate * gate)) *
           up;
}

/* Infinities become the largest numbers of half precision. */
template <element E> static __device__ typename four_of<E>::stored finite(typename four_of<E>::stored x) {
    if constexpr (E == ELEMENT_F16)
        return make_uint2(finite_halves(reinterpret_cast<__half2 &>(x.x)),
                          finite_halves(reinterpret_cast<__half2 &>(x.y)));
    return x;
}

template <int ACT> static __device__ float4 act_four(float4 gate, float4 up) {
    return make_float4(act<ACT>(gate.x, up.x), act<ACT>(gate.y, up.y), act<ACT>(gate.z, up.z), act<ACT>(gate.w, up.w));
}

/* Four at col as values, infinities made finite. unit: of unscaled products, the row's scale. */
template <element E, bool RAW>
static __device__ float4 value_of(const dmat &m, int col, float unit, typename four_of<E>::stored x) {
    float4 v = floats_of<E>(finite<E>(x));
    if constexpr (RAW) {
        v = v * (__ldg(reinterpret_cast<const float4 *>(m.col_scale + col)) * unit);
        if (m.bias)
            v = v + __ldg(reinterpret_cast<const float4 *>(m.bias + col));
    }
    return v;
}

/* E: of gate and up, RAW: they are unscaled products, Y: of what is made of them. */
template <int ACT, element E, bool RAW, element Y>
static __device__ eight_of<Y> act_eight(const act_args &a, int t, int col, float unit) {
    eight_of<E> gate = load_eight<E>(a.gate, t, col), up = load_eight<E>(a.up, t, col);
    float4 low =
        act_four<ACT>(value_of<E, RAW>(a.gate, col, unit, gate.low), value_of<E, RAW>(a.up, col, unit, up.low));
    float4 high = act_four<ACT>(value_of<E, RAW>(a.gate, col + 4, unit, gate.high),
                                value_of<E, RAW>(a.up, col + 4, unit, up.high));
    return {stored_of<Y>(low), stored_of<Y>(high)};
}

/* Y: of y. */
template <int ACT, element E, bool RAW, element Y>
static __global__ void __launch_bounds__(THREADS) gated_act(act_args a) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = 8 * (blockIdx.x * THREADS + threadIdx.x);
    float unit = RAW ? a.gate.row_scale[t] : 1.0f;
    if (col < a.y.width)
        store_eight<Y>(a.y, t, col, act_eight<ACT, E, RAW, Y>(a, t, col, unit));
}

/* The same with a qact, and y where it is wanted. C: blocks a row, EIGHTS: that a thread holds. */
template <int ACT, element E, bool RAW, int C, int EIGHTS>
static __global__ void GYRE_CLUSTER(C) __launch_bounds__(MOST_THREADS) gated_act_row(act_args a) {
    __shared__ row_meeting<C> meeting;
    constexpr element H = ELEMENT_F16; // finer than any y, and e4m3 all the more
    let_next_start();
    row_open(meeting);
    row_place<C> at;
    int t = at.row, n = a.gate.width / 8;
    row_opened<C>();
    wait_for_previous();
    float unit = RAW ? a.gate.row_scale[t] : 1.0f;
    eight_of<H> held[EIGHTS];
    float2 both = {0, 0};
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) {
        int i = at.thread + k * at.n_threads;
        held[k] = {};
        if (i < n)
            held[k] = act_eight<ACT, E, RAW, H>(a, t, 8 * i, unit);
        both.y = fmaxf(both.y, fmaxf(largest(floats_of<H>(held[k].low)), largest(floats_of<H>(held[k].high))));
    }
    both = row_join(both, meeting);
    float inverse = e4m3_inverse(both.y);
    if (at.thread == 0)
        a.qact.scale[t] = e4m3_scale(both.y);
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) {
        int i = at.thread + k * at.n_threads;
        if (i >= n)
            continue;
        float4 low = floats_of<H>(held[k].low), high = floats_of<H>(held[k].high);
        store_e4m3(a.qact, t, 8 * i, low * inverse, high * inverse);
        if (a.y.at) {
            store_four(a.y, t, 8 * i, low);
            store_four(a.y, t, 8 * i + 4, high);
        }
    }
}

static __device__ float finite(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

static __global__ void plain_gated_act(int act, act_args a) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    FOR_COLUMNS(i, a.y.width) {
        float gate = load(a.gate, t, i), up = load(a.up, t, i);
        store(a.y, t, i,
              activate(act, a.limit, a.gate.element == ELEMENT_F16 ? finite(gate) : gate,
                       a.up.element == ELEMENT_F16 ? finite(up) : up));
    }
}

/* Threads a block where C blocks hold a row of n eights. */
static int threads_of(int n, int C, int eights) { return (n + C * eights * 32 - 1) / (C * eights * 32) * 32; }

template <int ACT, element E, bool RAW> static void launch_act(const struct launch *l, int n_rows, const act_args &a) {
    dim3 grid((a.gate.width + ACT_COLUMNS - 1) / ACT_COLUMNS, n_rows);
    int n = a.gate.width / 8;
    if (!a.qact.at && a.y.element == ELEMENT_F16)
        launch_node(gated_act<ACT, E, RAW, ELEMENT_F16>, grid, THREADS, 0, l->stream, a);
    else if (!a.qact.at)
        launch_node(gated_act<ACT, E, RAW, ELEMENT_BF16>, grid, THREADS, 0, l->stream, a);
    else if (n_rows <= 16)
        launch_node(gated_act_row<ACT, E, RAW, 8, 1>, 8 * n_rows, threads_of(n, 8, 1), 0, l->stream, a);
    else if (n_rows <= 64)
        launch_node(gated_act_row<ACT, E, RAW, 4, 2>, 4 * n_rows, threads_of(n, 4, 2), 0, l->stream, a);
    else
        launch_node(gated_act_row<ACT, E, RAW, 2, 4>, 2 * n_rows, threads_of(n, 2, 4), 0, l->stream, a);
}

/* Whether many rows are worth going from row to row: up to 64 each has multiprocessors of its own. */
static bool goes_by_rows(int n_rows, const act_args &a) {
    return n_rows > 64 && a.gate.col_scale && a.qact.at && !a.y.at && !a.gate.bias && !a.up.bias &&
           a.gate.stride == a.up.stride && a.gate.row_scale == a.up.row_scale;
}

template <int ACT> static void launch_act(const struct launch *l, int n_rows, const act_args &a) {
    if (goes_by_rows(n_rows, a))
        act_rows::start<ACT>(l->stream, {a.gate, a.up, a.qact, n_rows});
    else if (a.gate.col_scale)
        launch_act<ACT, ELEMENT_F16, true>(l, n_rows, a);
    else if (a.gate.element == ELEMENT_F16)
        launch_act<ACT, ELEMENT_F16, false>(l, n_rows, a);
    else if (a.gate.element == ELEMENT_BF16)
        launch_act<ACT, ELEMENT_BF16, false>(l, n_rows, a);
    else
        launch_act<ACT, ELEMENT_F32, false>(l, n_rows, a);
}

/* The two that feed-forward networks have; the others take the plain kernel. */
static bool goes_in_eights(int act, struct dmat gate, struct dmat up, struct dmat y) {
    return act <= 1 && y.element != ELEMENT_F32 && gate.element == up.element && gate.width <= WIDEST &&
           lies_in_eights(gate) && lies_in_eights(up) && lies_in_eights(y);
}

/* A row's blocks are a cluster. */
bool gated_act_takes_qact(int act, struct dmat gate, struct dmat up, struct dmat y) {
    return goes_in_eights(act, gate, up, y) && compute_capability() >= 90;
}

void launch_gated_act(const struct launch *l, int n_rows, int act, float limit, struct dmat gate, struct dmat up,
                      struct dmat y, struct dmat qact) {
    act_args a = {limit, gate, up, y, qact};
    if (!goes_in_eights(act, gate, up, y))
        launch_node(plain_gated_act, grid_of(n_rows, y.width), THREADS, 0, l->stream, act, a);
    else if (act == 0)
        launch_act<0>(l, n_rows, a);
    else
        launch_act<1>(l, n_rows, a);
}

// ---- the others -------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS) gated_add_fours(dmat add, dmat x, dmat gate, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * COLUMNS + 4 * threadIdx.x;
    if (col >= y.width)
        return;
    float factor = gate.at ? sigmoid(load(gate, t, 0)) : 1.0f;
    float4 v = load_four(x, t, col);
    if (x.col_scale) {
        v = v * (*reinterpret_cast<const float4 *>(x.col_scale + col) * x.row_scale[t]);
        if (x.bias)
            v = v + *reinterpret_cast<const float4 *>(x.bias + col);
    }
    store_four(y, t, col, load_four(add, t, col) + v * factor);
}

static __global__ void plain_gated_add(dmat add, dmat x, dmat gate, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    float factor = gate.at ? sigmoid(load(gate, t, 0)) : 1.0f;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, load(add, t, i) + load(x, t, i) * factor);
}

static __global__ void __launch_bounds__(THREADS) softcap_fours(float cap, dmat x, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * COLUMNS + 4 * threadIdx.x;
    if (col >= y.width)
        return;
    float4 v = load_four(x, t, col);
    store_four(y, t, col, make_float4(tanhf(v.x / cap), tanhf(v.y / cap), tanhf(v.z / cap), tanhf(v.w / cap)) * cap);
}

static __global__ void plain_softcap(float cap, dmat x, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, cap * tanhf(load(x, t, i) / cap));
}

void launch_gated_add(const struct launch *l, int n_rows, struct dmat add, struct dmat x, struct dmat gate,
                      struct dmat y) {
    bool in_fours = lies_in_fours(add) && lies_in_fours(x) && lies_in_fours(y);
    launch_node(in_fours ? gated_add_fours : plain_gated_add, grid_of(n_rows, y.width), THREADS, 0, l->stream, add, x,
                gate, y);
}

void launch_softcap(const struct launch *l, int n_rows, float cap, struct dmat x, struct dmat y) {
    bool in_fours = lies_in_fours(x) && lies_in_fours(y);
    launch_node(in_fours ? softcap_fours : plain_softcap, grid_of(n_rows, y.width), THREADS, 0, l->stream, cap, x, y);
}
