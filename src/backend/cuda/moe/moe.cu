/* moe.cu - MOE_ROUTE and the plain MOE_FFN.
 *
 * MOE_ROUTE   a warp a token: the logits lie in shared memory, top_k rounds of the largest.
 * MOE_FFN     two nodes. hidden[t,k,f] = act(W13_e x)[f]: a warp an f, both of its rows; y[t,d] = sum_k weight * (W2_e
 *             hidden + b2): a warp a d. A lane reads eight weights at once, so that a few tokens are bound by the bytes
 *             of their experts. Every token reads its experts' weights for itself: right at any size, not fast at many
 *             tokens. */
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/moe/moe_route_shared.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/value.h"

static __global__ void moe_route(device_plan plan, route_args a) {
    let_next_start();
    wait_for_previous();
    extern __shared__ float memory[];
    int t = blockIdx.x;
    if (t >= step_tokens(plan))
        return;
    route_token(a, t, memory, nullptr);
    route_shared(a, t);
}

bool moe_route_gates(struct dweight w, struct dmat x) {
    bool halves = w.element == ELEMENT_F16 || w.element == ELEMENT_BF16;
    return halves && x.element == w.element && w.out == 1 && w.in == x.width && (uintptr_t)w.at % 16 == 0 &&
           lies_in_eights(x);
}

void launch_moe_route(const struct launch *l, const struct droute *a, struct dmat logits, struct dweight bias,
                      struct dweight expert_scale, struct dmat ids, struct dmat weights) {
    route_args args = {*a, logits, bias, expert_scale, ids, weights};
    launch_node(moe_route, l->n_tokens, 32, route_floats(*a) * sizeof(float), l->stream, l->plan, args);
}

enum { WARPS = 8 };

/* A row of weights times n values, by a warp; known to all lanes. W: element of the weights, X: of the values, EIGHTS:
 * both lie so that a lane reads eight neighbours of each at once. */
template <element W, element X, bool EIGHTS>
static __device__ float row_dot(const dweight &w, int64_t row, const dmat &x, int64_t t) {
    dmat rows = {const_cast<void *>(w.at), w.in, (int)w.in, W, nullptr};
    int lane = threadIdx.x % 32, n = (int)w.in;
    float sum = 0;
    if constexpr (EIGHTS) {
#pragma unroll 4
        for (int i = 8 * lane; i < n; i += 8 * 32) {
            eight_of<W> a = load_eight<W>(rows, row, i);
            eight_of<X> b = load_eight<X>(x, t, i);
            sum += dot(floats_of<W>(a.low), floats_of<X>(b.low)) + dot(floats_of<W>(a.high), floats_of<X>(b.high));
        }
    } else {
        for (int i = lane; i < n; i += 32)
            sum += load(rows, row, i) * load(x, t, i);
    }
    return warp_sum(sum);
}

/* The token's k-th expert among those that are here; -1: it is not. */
static __device__ int expert_here(const dmoe &a, const dmat &ids, int t, int k) {
    int expert = static_cast<const int32_t *>(ids.at)[t * ids.stride + k] - a.first_expert;
    return (uint32_t)expert < (uint32_t)a.n_experts ? expert : -1;
}

template <element W, element X, bool EIGHTS>
static __global__ void __launch_bounds__(WARPS * 32)
    moe_up(device_plan plan, dmoe a, dmat x, dmat ids, dweight w13, dweight b13) {
    let_next_start();
    wait_for_previous();
    int f = blockIdx.x * WARPS + threadIdx.x / 32, t = blockIdx.y / a.top_k, k = blockIdx.y % a.top_k;
    if (t >= step_tokens(plan) || f >= a.ffn_size)
        return;
    int expert = expert_here(a, ids, t, k);
    if (expert < 0)
        return;
    int64_t gate_row = (int64_t)expert * 2 * a.ffn_size + f, up_row = gate_row + a.ffn_size;
    float gate = row_dot<W, X, EIGHTS>(w13, gate_row, x, t), up = row_dot<W, X, EIGHTS>(w13, up_row, x, t);
    if (b13.at) {
        gate += load(b13, gate_row);
        up += load(b13, up_row);
    }
    if (threadIdx.x % 32 == 0)
        static_cast<float *>(a.scratch)[(int64_t)blockIdx.y * a.ffn_size + f] = activate(a.act, a.limit, gate, up);
}

template <element W, bool EIGHTS>
static __global__ void __launch_bounds__(WARPS * 32)
    moe_down(device_plan plan, dmoe a, dmat ids, dmat weights, dweight w2, dweight b2, dmat y) {
    let_next_start();
    wait_for_previous();
    int d = blockIdx.x * WARPS + threadIdx.x / 32, t = blockIdx.y;
    if (t >= step_tokens(plan) || d >= y.width)
        return;
    dmat hidden = {a.scratch, a.ffn_size, a.ffn_size, ELEMENT_F32, nullptr};
    float sum = 0;
#pragma unroll 2
    for (int k = 0; k < a.top_k; k++) {
        int expert = expert_here(a, ids, t, k);
        if (expert < 0)
            continue;
        int64_t row = (int64_t)expert * y.width + d;
        sum += load(weights, t, k) * (row_dot<W, ELEMENT_F32, EIGHTS>(w2, row, hidden, (int64_t)t * a.top_k + k) +
                                      (b2.at ? load(b2, row) : 0.0f));
    }
    if (threadIdx.x % 32 == 0)
        store(y, t, d, sum);
}

/* Pairs of a token and an expert are a grid's rows, of which there are 65,535: 8,192 tokens with 8 experts each are one
 * too many. Those beyond go into nodes of their own, which count tokens from their first: a step of more than
 * MOE_GRAPH_TOKENS is launched for the tokens that it has, so none is beyond. */
enum { MOST_PAIRS = 65535 };
static_assert(MOE_GRAPH_TOKENS * MOE_MOST_TOP_K <= MOST_PAIRS, "steps with padding are one piece");

static dmat rows_from(dmat m, int64_t first) {
    int64_t size = m.element == ELEMENT_F16 || m.element == ELEMENT_BF16 ? 2 : 4;
    m.at = static_cast<char *>(m.at) + first * m.stride * size;
    return m;
}

template <element W, element X, bool EIGHTS>
static void launch_both(const struct launch *l, const struct dmoe *a, struct dmat x, struct dmat ids,
                        struct dmat weights, struct dweight w13, struct dweight w2, struct dweight b13,
                        struct dweight b2, struct dmat y) {
    int most = MOST_PAIRS / a->top_k;
    for (int first = 0; first < l->n_tokens; first += most) {
        int n = l->n_tokens - first < most ? l->n_tokens - first : most;
        dim3 up((a->ffn_size + WARPS - 1) / WARPS, n * a->top_k), down((y.width + WARPS - 1) / WARPS, n);
        dmoe some = *a;
        some.scratch = static_cast<float *>(a->scratch) + (int64_t)first * a->top_k * a->ffn_size;
        dmat at = rows_from(ids, first);
        launch_node(moe_up<W, X, EIGHTS>, up, WARPS * 32, 0, l->stream, l->plan, some, rows_from(x, first), at, w13,
                    b13);
        launch_node(moe_down<W, EIGHTS>, down, WARPS * 32, 0, l->stream, l->plan, some, at, rows_from(weights, first),
                    w2, b2, rows_from(y, first));
    }
}

void launch_moe_ffn(const struct launch *l, const struct dmoe *a, struct dmat x, struct dmat ids, struct dmat weights,
                    struct dweight w13, struct dweight w2, struct dweight b13, struct dweight b2, struct dmat y) {
    auto both =
        launch_both<ELEMENT_F32, ELEMENT_F32, false>; // of any element of x there are two: float32 and the weights'
    bool eights = w13.in % 8 == 0 && w2.in % 8 == 0 && lies_in_eights(x), narrow = x.element != ELEMENT_F32;
    switch (w13.element) {
    case ELEMENT_F16:
        both = !eights  ? launch_both<ELEMENT_F16, ELEMENT_F16, false>
               : narrow ? launch_both<ELEMENT_F16, ELEMENT_F16, true>
                        : launch_both<ELEMENT_F16, ELEMENT_F32, true>;
        break;
    case ELEMENT_BF16:
        both = !eights  ? launch_both<ELEMENT_BF16, ELEMENT_BF16, false>
               : narrow ? launch_both<ELEMENT_BF16, ELEMENT_BF16, true>
                        : launch_both<ELEMENT_BF16, ELEMENT_F32, true>;
        break;
    default:
        if (eights)
            both = launch_both<ELEMENT_F32, ELEMENT_F32, true>;
    }
    both(l, a, x, ids, weights, w13, w2, b13, b2, y);
}
