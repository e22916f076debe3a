/* norm.cu - ADD_NORM, NORM: root mean square norms, with the element that products read, its e4m3 twin, or both.
 *
 *     r = (x + d) * r_scale;  y = r / sqrt(mean(r^2) + eps) * w        a block a row (ADD_NORM), a block or warp a group (NORM)
 *     d may be a product's output, normed first: d / sqrt(mean(d^2) + eps) * v   (the sandwich of Gemma: one node for two ops)
 *
 * What is fast holds its columns in registers, four neighbours at a time: each of x, d, r and y crosses memory once, in 16 or 8
 * bytes a thread. A row is all latency, so there is one barrier: the sum of squares and the largest |r w| go through it together,
 * and the row's factor, being positive, changes neither which element is largest nor what e4m3 makes of r w / largest. Norm weights
 * are loaded before the wait. Bytes a row of W: 4 W (x) + 4 W (d) + 4 W (r) + 2 W (y).
 *
 * Rows that are not a multiple of four columns, or lie off 16 bytes, or are wider than 8,192 take the plain kernels, which read a
 * row again where they need it again: the oracle of the others. Padding rows are computed too; nobody reads them. */
#include "backend/cuda/fours.cuh"

enum { THREADS = 256, WIDEST = THREADS * 4 * 8 };

struct norm_of {
    const float *w; // NULL: 1
    float eps, plus;
    int width;
};

static norm_of norm_by(const dweight &w, float eps, bool plus_one, int width) {
    return norm_of{static_cast<const float *>(w.at), eps, w.at && plus_one ? 1.0f : 0.0f, width};
}

static __device__ float weight_at(const norm_of &n, int i) { return n.w ? n.w[i] + n.plus : 1.0f; }
static __device__ float4 weights_at(const norm_of &n, int col) {
    return n.w ? *reinterpret_cast<const float4 *>(n.w + col) + n.plus : make_float4(1, 1, 1, 1);
}
static __device__ float factor_of(const norm_of &n, float sum_of_squares) { return 1.0f / sqrtf(sum_of_squares / n.width + n.eps); }

struct add_norm_args {
    dmat x, d; // d.at NULL: r = x
    norm_of n, d_norm;
    const float *r_scale; // NULL: 1
    dmat r, y, twin;
};

// ---- ADD_NORM ---------------------------------------------------------------------------------------------------

/* D: how d lies, NORMED: it is normed first. Thread i holds the fours i, i + blockDim.x, ... */
template <element D, int FOURS, bool NORMED>
static __global__ void __launch_bounds__(FOURS < 4 ? 1024 / FOURS : THREADS) add_norm(add_norm_args a) {
    __shared__ float2 of_d[32], of_r[32];
    let_next_start();
    int t = blockIdx.x, n = a.x.width / 4;
    float4 w[FOURS], v[FOURS], x[FOURS];
    typename four_of<D>::stored d[FOURS];
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * blockDim.x;
        w[k] = i < n ? weights_at(a.n, 4 * i) : float4{};
        v[k] = NORMED && i < n ? weights_at(a.d_norm, 4 * i) : float4{};
    }
    float scale = a.r_scale ? *a.r_scale : 1.0f;
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * blockDim.x;
        x[k] = i < n ? load_four<ELEMENT_F32>(a.x, t, 4 * i) : float4{};
        d[k] = i < n && a.d.at ? load_four<D>(a.d, t, 4 * i) : typename four_of<D>::stored{};
    }
    auto d_of = [&](int k) {
        int i = threadIdx.x + k * blockDim.x;
        return i < n ? values_of<D>(a.d, t, 4 * i, d[k]) : float4{};
    };
    if (NORMED) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            float4 di = d_of(k);
            sum += dot(di, di);
        }
        float factor = factor_of(a.d_norm, block_sum_max(make_float2(sum, 0), of_d).x);
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            x[k] = (x[k] + d_of(k) * (v[k] * factor)) * scale;
    } else {
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            x[k] = (x[k] + d_of(k)) * scale;
    }
    float2 both = {0, 0};
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * blockDim.x;
        both.x += dot(x[k], x[k]);
        w[k] = x[k] * w[k];
        both.y = fmaxf(both.y, largest(w[k]));
        if (i < n)
            store_four(a.r, t, 4 * i, x[k]);
    }
    both = block_sum_max(both, of_r);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.twin.at && threadIdx.x == 0)
        a.twin.scale[t] = e4m3_scale(both.y * factor);
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = threadIdx.x + k * blockDim.x;
        if (i < n && a.y.at)
            store_four(a.y, t, 4 * i, w[k] * factor);
        if (i < n && a.twin.at)
            store_e4m3(a.twin, t, 4 * i, w[k] * inverse);
    }
}

static __global__ void plain_add_norm(add_norm_args a) {
    __shared__ float2 of_r[32];
    let_next_start();
    wait_for_previous();
    int t = blockIdx.x;
    float scale = a.r_scale ? *a.r_scale : 1.0f;
    float2 both = {0, 0};
    for (int i = threadIdx.x; i < a.x.width; i += blockDim.x) {
        float v = (load(a.x, t, i) + (a.d.at ? load(a.d, t, i) : 0.0f)) * scale;
        store(a.r, t, i, v);
        both.x += v * v;
        both.y = fmaxf(both.y, fabsf(v * weight_at(a.n, i)));
    }
    both = block_sum_max(both, of_r);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.twin.at && threadIdx.x == 0)
        a.twin.scale[t] = e4m3_scale(both.y * factor);
    for (int i = threadIdx.x; i < a.x.width; i += blockDim.x) { // its own stores: no barrier
        float v = load(a.r, t, i) * weight_at(a.n, i);
        if (a.y.at)
            store(a.y, t, i, v * factor);
        if (a.twin.at)
            store_e4m3(a.twin, t, i, v * inverse);
    }
}

template <element D, bool NORMED> static void launch_fours(const struct launch *l, const add_norm_args &a) {
    int n = a.x.width / 4;
    if (n <= THREADS)
        launch_node(add_norm<D, 1, NORMED>, l->n_tokens, (n + 31) / 32 * 32, 0, l->stream, a);
    else if (n <= 2 * THREADS)
        launch_node(add_norm<D, 2, NORMED>, l->n_tokens, THREADS, 0, l->stream, a);
    else if (n <= 4 * THREADS)
        launch_node(add_norm<D, 4, NORMED>, l->n_tokens, THREADS, 0, l->stream, a);
    else if (n <= 6 * THREADS)
        launch_node(add_norm<D, 6, NORMED>, l->n_tokens, THREADS, 0, l->stream, a);
    else
        launch_node(add_norm<D, 8, NORMED>, l->n_tokens, THREADS, 0, l->stream, a);
}

template <bool NORMED> static void launch_by_element(const struct launch *l, const add_norm_args &a) {
    switch (a.d.element) {
    case ELEMENT_F16: launch_fours<ELEMENT_F16, NORMED>(l, a); break;
    case ELEMENT_BF16: launch_fours<ELEMENT_BF16, NORMED>(l, a); break;
    default: launch_fours<ELEMENT_F32, NORMED>(l, a); // and where there is none
    }
}

static bool fits_registers(const add_norm_args &a) {
    return a.x.element == ELEMENT_F32 && a.r.element == ELEMENT_F32 && a.x.width <= WIDEST && lies_in_fours(a.x) && lies_in_fours(a.d) &&
           lies_in_fours(a.r) && lies_in_fours(a.y) && lies_in_fours(a.twin);
}

void launch_add_norm(const struct launch *l, const struct dadd_norm *a, struct dmat x, struct dmat d, struct dmat r, struct dmat y,
                     struct dmat twin) {
    add_norm_args args = {x,
                          d,
                          norm_by(a->w, a->eps, a->plus_one, x.width),
                          norm_by(a->d_norm, a->d_eps, a->d_plus_one, x.width),
                          static_cast<const float *>(a->r_scale.at),
                          r,
                          y,
                          twin};
    if (a->d_norm.at)
        launch_by_element<true>(l, args);
    else if (fits_registers(args))
        launch_by_element<false>(l, args);
    else
        launch_node(plain_add_norm, l->n_tokens, THREADS, 0, l->stream, args);
}

// ---- NORM -------------------------------------------------------------------------------------------------------

struct norm_args {
    dmat x, gate; // gate.at NULL: none
    norm_of n;    // of a group
    float scale;
    dmat y, twin; // twin: where a group is the row
};

/* WARP: a warp a group, else a block. Thread i of them holds the fours i, i + threads, ... of its group. */
template <bool WARP, int FOURS> static __global__ void __launch_bounds__(THREADS) norm(norm_args a) {
    __shared__ float2 shared[32];
    let_next_start();
    int threads = WARP ? 32 : blockDim.x, thread = WARP ? threadIdx.x % 32 : threadIdx.x, t = blockIdx.y, n = a.n.width / 4;
    int group = WARP ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x, col = group * a.n.width;
    float4 x[FOURS], w[FOURS];
#pragma unroll
    for (int k = 0; k < FOURS; k++)
        w[k] = thread + k * threads < n ? weights_at(a.n, 4 * (thread + k * threads)) * a.scale : float4{};
    wait_for_previous();
    if (col >= a.x.width)
        return; // a whole warp
    float2 both = {0, 0};
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = thread + k * threads;
        x[k] = i < n ? load_four(a.x, t, col + 4 * i) : float4{};
    }
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = thread + k * threads;
        both.x += dot(x[k], x[k]);
        x[k] = x[k] * w[k];
        if (i < n && a.gate.at)
            x[k] = x[k] * silu(load_four(a.gate, t, col + 4 * i));
        both.y = fmaxf(both.y, largest(x[k]));
    }
    both = WARP ? join_sum_max(both, 32) : block_sum_max(both, shared);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.twin.at && thread == 0)
        a.twin.scale[t] = e4m3_scale(both.y * factor);
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = thread + k * threads;
        if (i < n && a.y.at)
            store_four(a.y, t, col + 4 * i, x[k] * factor);
        if (i < n && a.twin.at)
            store_e4m3(a.twin, t, col + 4 * i, x[k] * inverse);
    }
}

static __global__ void plain_norm(norm_args a) {
    __shared__ float2 shared[32];
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * a.n.width;
    float2 both = {0, 0};
    for (int i = threadIdx.x; i < a.n.width; i += blockDim.x) {
        float v = load(a.x, t, col + i), gate = a.gate.at ? silu(load(a.gate, t, col + i)) : 1.0f;
        both.x += v * v;
        both.y = fmaxf(both.y, fabsf(v * weight_at(a.n, i) * a.scale * gate));
    }
    both = block_sum_max(both, shared);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.twin.at && threadIdx.x == 0)
        a.twin.scale[t] = e4m3_scale(both.y * factor);
    for (int i = threadIdx.x; i < a.n.width; i += blockDim.x) {
        float v = load(a.x, t, col + i) * weight_at(a.n, i) * a.scale;
        v = a.gate.at ? v * silu(load(a.gate, t, col + i)) : v;
        if (a.y.at)
            store(a.y, t, col + i, v * factor);
        if (a.twin.at)
            store_e4m3(a.twin, t, col + i, v * inverse);
    }
}

void launch_norm(const struct launch *l, int n_rows, struct dmat x, struct dmat gate, struct dweight w, float eps, bool plus_one, int group,
                 float scale, struct dmat y, struct dmat twin) {
    norm_args a = {x, gate, norm_by(w, eps, plus_one, group), scale, y, twin};
    int n_groups = x.width / group, n = group / 4;
    dim3 warps((n_groups + 7) / 8, n_rows), blocks(n_groups, n_rows);
    bool in_fours = group % 4 == 0 && group <= WIDEST && lies_in_fours(x) && lies_in_fours(gate) && lies_in_fours(y) && lies_in_fours(twin);
    if (!in_fours)
        launch_node(plain_norm, blocks, group >= THREADS ? (int)THREADS : (group + 31) / 32 * 32, 0, l->stream, a);
    else if (n <= 32)
        launch_node(norm<true, 1>, warps, THREADS, 0, l->stream, a);
    else if (n <= 4 * 32)
        launch_node(norm<true, 4>, warps, THREADS, 0, l->stream, a);
    else if (n <= 4 * THREADS)
        launch_node(norm<false, 4>, blocks, n <= THREADS ? (n + 31) / 32 * 32 : (int)THREADS, 0, l->stream, a);
    else
        launch_node(norm<false, 8>, blocks, THREADS, 0, l->stream, a);
}
