/* elementwise.cu - GATED_ACT, GATED_ADD, SOFTCAP, DIFF_HEADS: no sum over more than two elements.
 *
 * GATED_ACT   y = act(gate) * up. Without a twin a thread makes four neighbours and a block 1,024 columns of a row. With one a
 *             block makes a row, which stays in its registers (up to 28,672 columns) between the largest element and the
 *             rounding. Bytes a row of W: 4 W of half precision (gate, up) or 8 W, and 2 W or W. The exponential is the hardware's,
 *             good to 2 units in the last place of float32; where y is float32 the plain kernel has the exact one.
 * Gates that a half precision product left infinite count as its largest number, as to_half has it.
 *
 * The others: a block 1,024 columns of a row. Rows that do not lie in fours take the plain kernels. Padding rows are computed
 * too, since nothing reads them. */
#include "backend/cuda/fours.cuh"

enum { THREADS = 256, COLUMNS = 1024, ROW_THREADS = 1024, ROW_FOURS = 7, WIDEST = ROW_THREADS * ROW_FOURS * 4 };

static dim3 grid_of(int n_rows, int width) { return dim3((width + COLUMNS - 1) / COLUMNS, n_rows); }

#define FOR_COLUMNS(i, width) \
    for (int i = blockIdx.x * COLUMNS + threadIdx.x; i < min((int)(blockIdx.x + 1) * COLUMNS, width); i += THREADS)

// ---- GATED_ACT --------------------------------------------------------------------------------------------------

struct act_args {
    float limit;
    dmat gate, up, y, twin;
};

static __device__ float finite(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
static __device__ float4 finite(float4 x) { return make_float4(finite(x.x), finite(x.y), finite(x.z), finite(x.w)); }

static __device__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(x < -80.0f ? 80.0f : -x)); }

/* `activate` with the hardware's exponential; tanh(u) = 2 sigmoid(2 u) - 1. */
template <int ACT> static __device__ float act(float limit, float gate, float up) {
    if constexpr (ACT == 2)
        return activate(ACT, limit, gate, up);
    else if constexpr (ACT == 0)
        return gate * fast_sigmoid(gate) * up;
    else if constexpr (ACT == 1)
        return gate * fast_sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
    else if constexpr (ACT == 3)
        return fast_sigmoid(gate) * up;
    else {
        float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        return (u + 1.0f) * g * fast_sigmoid(1.702f * g);
    }
}

template <int ACT, element E> static __device__ float4 act_four(float limit, float4 gate, float4 up) {
    if constexpr (E == ELEMENT_F16) {
        gate = finite(gate);
        up = finite(up);
    }
    return make_float4(act<ACT>(limit, gate.x, up.x), act<ACT>(limit, gate.y, up.y), act<ACT>(limit, gate.z, up.z),
                       act<ACT>(limit, gate.w, up.w));
}

/* E: of gate and up. */
template <int ACT, element E> static __global__ void __launch_bounds__(THREADS) gated_act(act_args a) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * COLUMNS + 4 * threadIdx.x;
    if (col >= a.y.width)
        return;
    auto gate = load_four<E>(a.gate, t, col), up = load_four<E>(a.up, t, col);
    store_four(a.y, t, col, act_four<ACT, E>(a.limit, values_of<E>(a.gate, t, col, gate), values_of<E>(a.up, t, col, up)));
}

/* The same with a twin, and y where it is wanted: a block a row. FOURS: that a thread holds. */
template <int ACT, element E, int FOURS> static __global__ void __launch_bounds__(ROW_THREADS) gated_act_row(act_args a) {
    __shared__ float2 shared[32];
    let_next_start();
    wait_for_previous();
    int t = blockIdx.x, n = a.gate.width / 4;
    float4 y[FOURS];
    float2 both = {0, 0};
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * ROW_THREADS;
        typename four_of<E>::stored gate = {}, up = {};
        if (i < n) {
            gate = load_four<E>(a.gate, t, 4 * i);
            up = load_four<E>(a.up, t, 4 * i);
        }
        y[k] = i < n ? act_four<ACT, E>(a.limit, values_of<E>(a.gate, t, 4 * i, gate), values_of<E>(a.up, t, 4 * i, up)) : float4{};
        both.y = fmaxf(both.y, largest(y[k]));
    }
    both = block_sum_max(both, shared);
    float inverse = e4m3_inverse(both.y);
    if (threadIdx.x == 0)
        a.twin.scale[t] = e4m3_scale(both.y);
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * ROW_THREADS;
        if (i < n && a.y.at)
            store_four(a.y, t, 4 * i, y[k]);
        if (i < n)
            store_e4m3(a.twin, t, 4 * i, y[k] * inverse);
    }
}

static __global__ void plain_gated_act(int act, act_args a) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    FOR_COLUMNS(i, a.y.width) {
        float gate = load(a.gate, t, i), up = load(a.up, t, i);
        store(a.y, t, i,
              activate(act, a.limit, a.gate.element == ELEMENT_F16 ? finite(gate) : gate, a.up.element == ELEMENT_F16 ? finite(up) : up));
    }
}

template <int ACT, element E> static void launch_act(const struct launch *l, int n_rows, const act_args &a) {
    dim3 grid = grid_of(n_rows, a.gate.width);
    if (!a.twin.at)
        launch_node(gated_act<ACT, E>, grid, THREADS, 0, l->stream, a);
    else if (a.gate.width <= 4 * 4 * ROW_THREADS)
        launch_node(gated_act_row<ACT, E, 4>, n_rows, ROW_THREADS, 0, l->stream, a);
    else
        launch_node(gated_act_row<ACT, E, ROW_FOURS>, n_rows, ROW_THREADS, 0, l->stream, a);
}

template <int ACT> static void launch_act(const struct launch *l, int n_rows, const act_args &a) {
    switch (a.gate.element) {
    case ELEMENT_F16: launch_act<ACT, ELEMENT_F16>(l, n_rows, a); break;
    case ELEMENT_BF16: launch_act<ACT, ELEMENT_BF16>(l, n_rows, a); break;
    default: launch_act<ACT, ELEMENT_F32>(l, n_rows, a);
    }
}

bool gated_act_takes_twin(struct dmat gate, struct dmat up, struct dmat y) {
    return y.element != ELEMENT_F32 && gate.element == up.element && gate.width <= WIDEST && lies_in_fours(gate) && lies_in_fours(up) &&
           lies_in_fours(y);
}

void launch_gated_act(const struct launch *l, int n_rows, int act, float limit, struct dmat gate, struct dmat up, struct dmat y,
                      struct dmat twin) {
    act_args a = {limit, gate, up, y, twin};
    if (!gated_act_takes_twin(gate, up, y)) {
        launch_node(plain_gated_act, grid_of(n_rows, y.width), THREADS, 0, l->stream, act, a);
        return;
    }
    switch (act) { // core/ops.h activation
    case 0: launch_act<0>(l, n_rows, a); break;
    case 1: launch_act<1>(l, n_rows, a); break;
    case 2: launch_act<2>(l, n_rows, a); break;
    case 3: launch_act<3>(l, n_rows, a); break;
    default: launch_act<4>(l, n_rows, a);
    }
}

// ---- the others -------------------------------------------------------------------------------------------------

static __global__ void __launch_bounds__(THREADS) gated_add_fours(dmat add, dmat x, dmat gate, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * COLUMNS + 4 * threadIdx.x;
    if (col >= y.width)
        return;
    float factor = gate.at ? sigmoid(load(gate, t, 0)) : 1.0f;
    store_four(y, t, col, load_four(add, t, col) + load_four(x, t, col) * factor);
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

struct lambdas {
    dweight w[4];
};

static __device__ float dot(const dweight &a, const dweight &b, int n) {
    float sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        sum += load(a, i) * load(b, i);
    return warp_sum(sum);
}

static __global__ void diff_heads(dmat x, lambdas lambda, float lambda_init, dmat y) {
    let_next_start();
    int t = blockIdx.y, n = (int)lambda.w[0].out;
    float factor = expf(dot(lambda.w[0], lambda.w[1], n)) - expf(dot(lambda.w[2], lambda.w[3], n)) + lambda_init;
    wait_for_previous();
    FOR_COLUMNS(i, y.width)
    store(y, t, i, load(x, t, i) - factor * load(x, t, y.width + i));
}

void launch_gated_add(const struct launch *l, int n_rows, struct dmat add, struct dmat x, struct dmat gate, struct dmat y) {
    bool in_fours = lies_in_fours(add) && lies_in_fours(x) && lies_in_fours(y);
    launch_node(in_fours ? gated_add_fours : plain_gated_add, grid_of(n_rows, y.width), THREADS, 0, l->stream, add, x, gate, y);
}

void launch_softcap(const struct launch *l, int n_rows, float cap, struct dmat x, struct dmat y) {
    bool in_fours = lies_in_fours(x) && lies_in_fours(y);
    launch_node(in_fours ? softcap_fours : plain_softcap, grid_of(n_rows, y.width), THREADS, 0, l->stream, cap, x, y);
}

void launch_diff_heads(const struct launch *l, struct dmat x, const struct dweight lambda[4], float lambda_init, struct dmat y) {
    lambdas all = {{lambda[0], lambda[1], lambda[2], lambda[3]}};
    launch_node(diff_heads, grid_of(l->n_tokens, y.width), THREADS, 0, l->stream, x, all, lambda_init, y);
}
