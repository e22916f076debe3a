/* norm.cu - ADD_NORM, NORM: root mean square norms, with the element that products read, its e4m3 qact, or both.
 *
 *     r = (x + d) * r_scale;  y = r / sqrt(mean(r^2) + eps) * w        a cluster a row (ADD_NORM), a block or warp a
 *                             group (NORM)
 *     d may be a product's output, normed first: d / sqrt(mean(d^2) + eps) * v   (the sandwich of Gemma: one node for
 *                                                                                two ops)
 *
 * What is fast holds its columns in registers, four neighbours at a time: each of x, d, r and y crosses memory once, in
 * 16 or 8 bytes a thread. A row is all latency, so there is one wait: the sum of squares and the largest |r w| go
 * through it together, and the row's factor, being positive, changes neither which element is largest nor what e4m3
 * makes of r w / largest. Norm weights are loaded before the wait. A few rows are spread over eight multiprocessors
 * each, since one loads a row in half a microsecond, and x, which was written a layer ago, is brought to the L2 before
 * the wait. Of many, a block of up to 512 threads has a row, or two at a time that share the columns' weights and
 * scales, which are more bytes than a row of d. Behind a product of gemm_fp8_split_k.cu x is in registers before the
 * wait: of all rows up to 264, as beside each of the product's blocks there is room for one of two rows. Bytes a row of
 * W: 4 W (x) + 4 W (d) + 4 W (r) + 2 W (y). On an H200, each behind the one before (bench/cuda/nodes.cu): a row of
 * 3,584 1.2 us, of 5,376 1.3 us (1.7 with d normed), 128 of them 2.7 and 2.9, 512 4.8 and 6.1 us (6.3 TB/s, from L2).
 *
 * Rows that are not a multiple of four columns, or lie off 16 bytes, or are wider than 8,192 take the plain kernels,
 * which read a row again where they need it again: the oracle of the others. Padding rows are computed too; nobody
 * reads them. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/rows/add_norm_few.cuh"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/value.h"

enum { THREADS = 256, WIDEST = MOST_THREADS * 4 * 4 };
enum { LONE_ROWS = 256, PREFETCHED_LONE_ROWS = 128 }; // up to so many rows, each has a block of its own

// ---- ADD_NORM of many rows --------------------------------------------------------------------------------------

/* A sum, and the largest of sizes. */
static __device__ float2 warp_join_sizes(float2 v) {
    return make_float2(warp_sum(v.x), __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v.y))));
}

/* What each thread has of ROWS rows, joined over the block. */
template <int ROWS> static __device__ void rows_join(float2 (&mine)[ROWS], float2 (&shares)[ROWS][MOST_THREADS / 32]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        mine[j] = warp_join_sizes(mine[j]);
        if (lane == 0)
            shares[j][warp] = mine[j];
    }
    __syncthreads(); // every warp's shares are there
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        mine[j] = warp_join_sizes(lane < n_warps ? shares[j][lane] : make_float2(0, 0));
}

/* D, RAW, NORMED: as above. Block b has the rows b and, if ROWS is 2, b + n_blocks; thread i of it holds their fours i,
 * i + n_threads, ..., with WHOLE as many as every other. All loads of a thread are under way at once. */
template <element D, bool RAW, bool NORMED, int FOURS, int ROWS, bool WHOLE>
static __global__ void __launch_bounds__(MOST_THREADS, FOURS == 4 ? 1 : 2)
    add_norm_rows(const __grid_constant__ add_norm_args a) {
    typedef typename four_of<D>::stored stored;
    __shared__ float2 shares_of_d[ROWS][MOST_THREADS / 32], shares[ROWS][MOST_THREADS / 32];
    let_next_start();
    int n = a.x.width / 4, thread = threadIdx.x, n_threads = blockDim.x, row[ROWS];
    float4 w[FOURS], v[FOURS], column[FOURS], x[ROWS][FOURS];
    stored d[ROWS][FOURS];
    float unit[ROWS];
    auto is_mine = [&](int k) { return WHOLE || thread + k * n_threads < n; };
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = thread + k * n_threads;
        w[k] = is_mine(k) ? weights_at(a.n, 4 * i) : float4{};
        v[k] = NORMED && is_mine(k) ? weights_at(a.d_norm, 4 * i) : float4{};
        column[k] = RAW && is_mine(k) ? reinterpret_cast<const float4 *>(a.d.col_scale)[i] : float4{};
    }
    float scale = a.r_scale ? *a.r_scale : 1.0f;
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        row[j] = blockIdx.x + j * gridDim.x;
        if (row[j] >= a.n_rows)
            row[j] = blockIdx.x; // once more
    }
    auto load_x = [&] {
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const float4 *xs =
                reinterpret_cast<const float4 *>(static_cast<const float *>(a.x.at) + row[j] * a.x.stride) + thread;
#pragma unroll
            for (int k = 0; k < FOURS; k++)
                x[j][k] = is_mine(k) ? __ldcg(xs + k * n_threads) : float4{};
        }
    };
    if (a.prefetch)
        load_x();
    wait_for_previous();
    if (!a.prefetch)
        load_x();
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const stored *ds = reinterpret_cast<const stored *>(static_cast<const char *>(a.d.at) +
                                                            row[j] * a.d.stride * (D == ELEMENT_F32 ? 4 : 2)) +
                           thread;
        unit[j] = RAW ? a.d.row_scale[row[j]] : 1.0f;
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            d[j][k] = is_mine(k) && (RAW || a.d.at) ? ds[k * n_threads] : stored{};
    }
    __syncwarp(); // else the assembler waits for the first of these before it asks for the others
    auto added = [&](int j, int k) {
        float4 value = floats_of<D>(d[j][k]);
        if constexpr (RAW) {
            value = value * (column[k] * unit[j]);
            if (a.d.bias && is_mine(k))
                value = value + reinterpret_cast<const float4 *>(a.d.bias)[thread + k * n_threads];
        }
        return value;
    };
    float2 both[ROWS];
    if constexpr (NORMED) {
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            both[j] = make_float2(0, 0);
#pragma unroll
            for (int k = 0; k < FOURS; k++)
                both[j].x += dot(added(j, k), added(j, k));
        }
        rows_join(both, shares_of_d);
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        float factor = NORMED ? factor_of(a.d_norm, both[j].x) : 1.0f;
        float4 *rs = reinterpret_cast<float4 *>(static_cast<float *>(a.r.at) + row[j] * a.r.stride) + thread;
        both[j] = make_float2(0, 0);
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            float4 value = added(j, k), r = (x[j][k] + (NORMED ? value * (v[k] * factor) : value)) * scale;
            if (is_mine(k))
                rs[k * n_threads] = r;
            x[j][k] = r * w[k];
            both[j] = make_float2(both[j].x + dot(r, r), fmaxf(both[j].y, largest(x[j][k])));
        }
    }
    rows_join(both, shares);
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        float by = factor_of(a.n, both[j].x), inverse = e4m3_inverse(both[j].y);
        if (a.qact.at && thread == 0)
            a.qact.scale[row[j]] = e4m3_scale(both[j].y * by);
        uint32_t *qacts =
            reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(a.qact.at) + row[j] * a.qact.stride) + thread;
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            if (is_mine(k) && a.qact.at)
                qacts[k * n_threads] = e4m3_of(x[j][k] * inverse);
            if (is_mine(k) && a.y.at)
                store_four(a.y, row[j], 4 * (thread + k * n_threads), x[j][k] * by);
        }
    }
}

// ---- ADD_NORM of any ---------------------------------------------------------------------------------------------

static __global__ void plain_add_norm(add_norm_args a) {
    __shared__ row_meeting<1> of_r;
    let_next_start();
    wait_for_previous();
    int t = blockIdx.x;
    float scale = a.r_scale ? *a.r_scale : 1.0f;
    float2 both = {0, 0};
    for (int i = threadIdx.x; i < a.x.width; i += blockDim.x) {
        float d = (a.d.at ? load(a.d, t, i) : 0.0f) + (a.also.at ? load(a.also, t, i) : 0.0f);
        float v = (load(a.x, t, i) + d) * scale;
        store(a.r, t, i, v);
        both.x += v * v;
        both.y = fmaxf(both.y, fabsf(v * weight_at(a.n, i)));
    }
    both = row_join(both, of_r);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.qact.at && threadIdx.x == 0)
        a.qact.scale[t] = e4m3_scale(both.y * factor);
    for (int i = threadIdx.x; i < a.x.width; i += blockDim.x) { // its own stores: no barrier
        float v = load(a.r, t, i) * weight_at(a.n, i);
        if (a.y.at)
            store(a.y, t, i, v * factor);
        if (a.qact.at)
            store_e4m3(a.qact, t, i, v * inverse);
    }
}

/* Threads a block where C blocks hold a row of so many fours. */
static int threads_of(int n, int C, int fours) { return (n + C * fours * 32 - 1) / (C * fours * 32) * 32; }

/* Few rows, of cards that have clusters. */
template <element D, bool RAW, bool NORMED, class RANKS>
static void launch_few(const struct launch *l, const add_norm_args &a, const RANKS &ranks) {
    int n = a.x.width / 4, rows = l->n_tokens;
    if (rows <= 16)
        launch_node(add_norm<D, RAW, NORMED, 8, 1, RANKS>, 8 * rows, threads_of(n, 8, 1), 0, l->stream, a, ranks);
    else if (!NORMED)
        launch_node(add_norm<D, RAW, NORMED, 4, 2, RANKS>, 4 * rows, threads_of(n, 4, 2), 0, l->stream, a, ranks);
    else
        launch_node(add_norm<D, RAW, NORMED, 2, 2, RANKS>, 2 * rows, threads_of(n, 2, 2), 0, l->stream, a, ranks);
}

/* A few rows are spread over as many multiprocessors as there are, many have enough with one each. */
template <element D, bool RAW, bool NORMED>
static void launch_fours(const struct launch *l, const add_norm_args &a, const among_ranks *ranks) {
    int n = a.x.width / 4, rows = l->n_tokens;
    constexpr bool may_meet = RAW || D == ELEMENT_F32; // as products are made
    if constexpr (may_meet)
        if (ranks) {
            launch_few<D, RAW, NORMED>(l, a, *ranks);
            return;
        }
    if (rows <= ADD_NORM_FEW && compute_capability() >= 90)
        launch_few<D, RAW, NORMED>(l, a, alone{});
    else if (n % 64 == 0 && n <= 2 * MOST_THREADS && rows > (a.prefetch ? PREFETCHED_LONE_ROWS : LONE_ROWS) && !NORMED)
        launch_node(add_norm_rows<D, RAW, false, 2, 2, true>, (rows + 1) / 2, n / 2, 0, l->stream, a);
    else if (n % 64 == 0 && n <= 2 * MOST_THREADS)
        launch_node(add_norm_rows<D, RAW, NORMED, 2, 1, true>, rows, n / 2, 0, l->stream, a);
    else if (n % 96 == 0 && n <= 3 * MOST_THREADS)
        launch_node(add_norm_rows<D, RAW, NORMED, 3, 1, true>, rows, n / 3, 0, l->stream, a);
    else
        launch_node(add_norm_rows<D, RAW, NORMED, 4, 1, false>, rows, threads_of(n, 1, 4), 0, l->stream, a);
}

template <bool NORMED>
static void launch_by_element(const struct launch *l, const add_norm_args &a, const among_ranks *ranks) {
    if (a.d.col_scale)
        launch_fours<ELEMENT_F16, true, NORMED>(l, a, ranks);
    else if (a.d.element == ELEMENT_F16)
        launch_fours<ELEMENT_F16, false, NORMED>(l, a, ranks);
    else if (a.d.element == ELEMENT_BF16)
        launch_fours<ELEMENT_BF16, false, NORMED>(l, a, ranks);
    else
        launch_fours<ELEMENT_F32, false, NORMED>(l, a, ranks); // and where there is none
}

static bool fits_registers(const add_norm_args &a) {
    return a.x.element == ELEMENT_F32 && a.r.element == ELEMENT_F32 && a.x.width <= WIDEST && lies_in_fours(a.x) &&
           lies_in_fours(a.d) && lies_in_fours(a.r) && lies_in_fours(a.y) && lies_in_fours(a.qact);
}

void launch_add_norm(const struct launch *l, const struct dadd_norm *a, struct dmat x, struct dmat d, struct dmat r,
                     struct dmat y, struct dmat qact) {
    add_norm_args args = {x,
                          d,
                          a->also,
                          norm_by(a->w, a->eps, a->plus_one, x.width),
                          norm_by(a->d_norm, a->d_eps, a->d_plus_one, x.width),
                          static_cast<const float *>(a->r_scale.at),
                          r,
                          y,
                          qact,
                          l->n_tokens,
                          a->prefetch};
    among_ranks ranks = {a->meeting ? *a->meeting : dmeeting{}, a->rows};
    const among_ranks *sums = a->meeting ? &ranks : nullptr;
    if (a->d_norm.at)
        launch_by_element<true>(l, args, sums);
    else if (fits_registers(args))
        launch_by_element<false>(l, args, sums);
    else
        launch_node(plain_add_norm, l->n_tokens, THREADS, 0, l->stream, args);
}

// ---- NORM -------------------------------------------------------------------------------------------------------

struct norm_args {
    dmat x, gate; // gate.at NULL: none
    norm_of n;    // of a group
    float scale;
    dmat y, qact; // qact: where a group is the row
};

/* WARP: a warp a group, else a block. Thread i of them holds the fours i, i + threads, ... of its group. */
template <bool WARP, int FOURS> static __global__ void __launch_bounds__(THREADS) norm(norm_args a) {
    __shared__ row_meeting<1> shared;
    let_next_start();
    int threads = WARP ? 32 : blockDim.x, thread = WARP ? threadIdx.x % 32 : threadIdx.x, t = blockIdx.y,
        n = a.n.width / 4;
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
    both = WARP ? warp_join(both) : row_join(both, shared);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.qact.at && thread == 0)
        a.qact.scale[t] = e4m3_scale(both.y * factor);
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = thread + k * threads;
        if (i < n && a.y.at)
            store_four(a.y, t, col + 4 * i, x[k] * factor);
        if (i < n && a.qact.at)
            store_e4m3(a.qact, t, col + 4 * i, x[k] * inverse);
    }
}

static __global__ void plain_norm(norm_args a) {
    __shared__ row_meeting<1> shared;
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = blockIdx.x * a.n.width;
    float2 both = {0, 0};
    for (int i = threadIdx.x; i < a.n.width; i += blockDim.x) {
        float v = load(a.x, t, col + i), gate = a.gate.at ? silu(load(a.gate, t, col + i)) : 1.0f;
        both.x += v * v;
        both.y = fmaxf(both.y, fabsf(v * weight_at(a.n, i) * a.scale * gate));
    }
    both = row_join(both, shared);
    float factor = factor_of(a.n, both.x), inverse = e4m3_inverse(both.y);
    if (a.qact.at && threadIdx.x == 0)
        a.qact.scale[t] = e4m3_scale(both.y * factor);
    for (int i = threadIdx.x; i < a.n.width; i += blockDim.x) {
        float v = load(a.x, t, col + i) * weight_at(a.n, i) * a.scale;
        v = a.gate.at ? v * silu(load(a.gate, t, col + i)) : v;
        if (a.y.at)
            store(a.y, t, col + i, v * factor);
        if (a.qact.at)
            store_e4m3(a.qact, t, col + i, v * inverse);
    }
}

void launch_norm(const struct launch *l, int n_rows, struct dmat x, struct dmat gate, struct dweight w, float eps,
                 bool plus_one, int group, float scale, struct dmat y, struct dmat qact) {
    norm_args a = {x, gate, norm_by(w, eps, plus_one, group), scale, y, qact};
    int n_groups = x.width / group, n = group / 4;
    dim3 warps((n_groups + 7) / 8, n_rows), blocks(n_groups, n_rows);
    bool in_fours = group % 4 == 0 && group <= 4 * 8 * THREADS && lies_in_fours(x) && lies_in_fours(gate) &&
                    !gate.col_scale && lies_in_fours(y) && lies_in_fours(qact);
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
