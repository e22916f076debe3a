/* delta_chunk_parts.cu - the first pass over a prompt's chunks (delta_chunks.cuh): convolution, unit keys and queries,
 * T and A, of all chunks side by side.
 *
 * A block has a chunk and a key head, whose value heads share K K^T and Q K^T. It convolves the head's q, k and v (a
 * thread a channel and some rows, all loads under way at once), makes units of q's and k's rows, multiplies them by
 * mma, and solves T by forward substitution: a thread a column and value head, the column in registers, rows of the
 * triangle from shared memory as all lanes of a warp want the same. Up to four value heads are solved at once.
 *
 * Bytes a token and layer: the projection's columns in, mixed and parts out, 12 to 20 KiB a key head. */
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/recurrent/delta_chunks.cuh"

enum { PARTS_THREADS = 256, HEADS_AT_ONCE = 4 };

/* Shared memory, in bytes: x, a tile of floats, then K K^T and Q K^T; q and k as pairs, then triangles; gates. */
template <int D> struct parts_memory {
    static constexpr int C = D / 2, X_PITCH = D + 4, PITCH = D + 8, PRODUCT_PITCH = C + 1;
    static constexpr int PLANE = 2 * C * PITCH, TILE = 2 * PLANE, X = 0, Q = 4 * C * X_PITCH, K = Q + TILE,
                         GATES = K + TILE;
    static constexpr int G = GATES, BETA = G + 4 * HEADS_AT_ONCE * C, BYTES = BETA + 4 * HEADS_AT_ONCE * C;
    static_assert(2 * C * PRODUCT_PITCH <= C * X_PITCH, "both products lie where x was");
    static_assert(4 * HEADS_AT_ONCE * C * C <= 2 * TILE, "triangles lie where q and k were");
};

/* How a thread goes over a tile [C, D]: a column, ROWS rows from `row` on. */
template <int D> struct column_run {
    static constexpr int ROWS = D / 2 * D / PARTS_THREADS;
    int column, row;
    __device__ column_run() : column(threadIdx.x % D), row(threadIdx.x / D * ROWS) {}
};

template <class Load, int N>
static __device__ __forceinline__ void load_inputs(float (&x)[N], const ddelta_layer &a, const chunk_place &c,
                                                   const float *kept, bool fresh, int channel, int row,
                                                   const Load &load_row) {
#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = row + j - (DELTA_TAPS - 1), t = c.index * (int)(a.shape.key_dim / 2) + i; // in the chunk, in the step
        if (i < c.n && t >= 0)
            x[j] = load_row(c.first + i);
        else
            x[j] = i < c.n && !fresh ? kept_input(a, kept, channel, t + DELTA_TAPS - 1) : 0.0f;
    }
}

/* A channel of u in some rows after the convolution; zero behind the chunk's end. */
template <int D>
static __device__ __forceinline__ void convolve(float (&y)[column_run<D>::ROWS], const ddelta_layer &a,
                                                const chunk_place &c, const float *kept, bool fresh, int channel,
                                                int row) {
    constexpr int ROWS = column_run<D>::ROWS;
    float x[ROWS + DELTA_TAPS - 1], weight[DELTA_TAPS];
    if (a.u.element == ELEMENT_F32) {
        const float *at = static_cast<const float *>(a.u.at) + channel;
        load_inputs(x, a, c, kept, fresh, channel, row, [&](int t) { return at[t * a.u.stride]; });
    } else {
        const __half *at = static_cast<const __half *>(a.u.at) + channel;
        float scale = a.u.col_scale[channel], bias = a.u.bias ? a.u.bias[channel] : 0.0f;
        load_inputs(x, a, c, kept, fresh, channel, row,
                    [&](int t) { return __half2float(at[t * a.u.stride]) * (a.u.row_scale[t] * scale) + bias; });
    }
#pragma unroll
    for (int j = 0; j < DELTA_TAPS; j++)
        weight[j] = tap(a, channel, j);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < DELTA_TAPS; j++)
            sum += weight[j] * x[i + j];
        y[i] = row + i < c.n ? silu(sum) : 0.0f;
    }
}

/* Rows of x to units times `factor`, as pairs in shared memory and in `to`, the head's place in mixed. */
template <int D>
static __device__ void make_units(const float *x, uint32_t tile, const chunk_place &c, float factor, float *to,
                                  int64_t stride) {
    typedef parts_memory<D> memory;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int PAIRS = (D / 2 + 31) / 32;
    for (int row = warp; row < memory::C; row += PARTS_THREADS / 32) {
        float2 v[PAIRS];
        float squares = 0;
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            int p = lane + 32 * k;
            v[k] = p < D / 2 ? *reinterpret_cast<const float2 *>(x + row * memory::X_PITCH + 2 * p) : float2{};
            squares += v[k].x * v[k].x + v[k].y * v[k].y;
        }
        float by = factor / sqrtf(warp_sum(squares) + 1e-6f);
        uint32_t *out = reinterpret_cast<uint32_t *>(to + (c.first + row) * stride);
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
            int p = lane + 32 * k;
            if (p >= D / 2)
                continue;
            two_of two = split_pair(v[k].x * by, v[k].y * by);
            uint32_t at = tile + 2 * (row * memory::PITCH + 2 * p);
            store_shared(at, two.hi);
            store_shared(at + memory::PLANE, two.lo);
            if (row < c.n)
                out[p] = two.hi, out[D / 2 + p] = two.lo;
        }
    }
}

/* Lower triangles of K K^T (by the first warps) and Q K^T, in tiles of 16 rows. */
template <int D> static __device__ void multiply_keys(uint32_t q, uint32_t k, float *kk, float *qk) {
    typedef parts_memory<D> memory;
    constexpr int TILES = memory::C / 16;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = warp % TILES;
    if (warp >= 2 * TILES)
        return;
    uint32_t rows = warp < TILES ? k : q;
    float *out = warp < TILES ? kk : qk, c[2 * TILES][4] = {};
#pragma unroll
    for (int step = 0; step < D; step += 16) {
        uint32_t hi[4], lo[4], b[4];
        load_a<memory::PITCH>(hi, rows, 16 * tile, step);
        load_a<memory::PITCH>(lo, rows + memory::PLANE, 16 * tile, step);
#pragma unroll
        for (int n = 0; n < 2 * TILES; n++)
            if (n / 2 <= tile) {
                load_b_of_rows<memory::PITCH>(b, k, memory::PLANE, step, 8 * n);
                multiply_pairs(c[n], hi, lo, b);
            }
    }
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[(16 * tile + lane / 4 + i / 2 * 8) * memory::PRODUCT_PITCH + 8 * n + lane % 4 * 2 + i % 2] = c[n][i];
}

/* Triangles [head][C][C] of beta_i D_ij k_i.k_j below the diagonal, and A into parts. */
template <int D>
static __device__ void weigh(const ddelta_layer &a, const chunk_place &c, int first_head, int n_heads, const float *kk,
                             const float *qk, const float *G, const float *beta, float *triangle) {
    typedef parts_memory<D> memory;
    constexpr int C = memory::C, PAIRS = C * C / 2;
    for (int at = threadIdx.x; at < n_heads * PAIRS; at += PARTS_THREADS) {
        int head = at / PAIRS, i = at % PAIRS / (C / 2), j = at % (C / 2) * 2;
        const float *g = G + head * C;
        float d0 = j <= i ? expf(g[i] - g[j]) : 0.0f, d1 = j + 1 <= i ? expf(g[i] - g[j + 1]) : 0.0f;
        const float *k = kk + i * memory::PRODUCT_PITCH + j, *q = qk + i * memory::PRODUCT_PITCH + j;
        float by = beta[head * C + i];
        *reinterpret_cast<float2 *>(triangle + (head * C + i) * C + j) =
            make_float2(j < i ? by * d0 * k[0] : 0.0f, j + 1 < i ? by * d1 * k[1] : 0.0f);
        two_of two = split_pair(d0 * q[0], d1 * q[1]);
        if (i < c.n) {
            uint32_t *out = part_row<D>(a, c.first + i, first_head + head) + C;
            out[j / 2] = two.hi, out[C / 2 + j / 2] = two.lo;
        }
    }
}

/* A column of T: of (1 + triangle) x = unit vector j, times beta_j. By thread head * C + j, into parts. */
template <int D>
static __device__ void solve(const ddelta_layer &a, const chunk_place &c, int first_head, int n_heads,
                             const float *triangle, const float *beta) {
    constexpr int C = D / 2;
    int head = threadIdx.x / C, j = threadIdx.x % C;
    if (head >= n_heads)
        return; // a warp, or half of one where that is a head
    const float *rows = triangle + head * C * C;
    float x[C], by = beta[head * C + j];
#pragma unroll
    for (int i = 0; i < C; i++) {
        float sum[4] = {i == j ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 four = *reinterpret_cast<const float4 *>(rows + i * C + m); // zero from the diagonal on
            sum[0] -= four.x * x[m];
            if (m + 1 < i)
                sum[1] -= four.y * x[m + 1];
            if (m + 2 < i)
                sum[2] -= four.z * x[m + 2];
            if (m + 3 < i)
                sum[3] -= four.w * x[m + 3];
        }
        x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    uint32_t lanes = __activemask();
#pragma unroll
    for (int i = 0; i < C; i++) { // an even column stores both hi, its neighbour both lo
        float own = x[i] * by, other = __shfl_xor_sync(lanes, own, 1);
        two_of two = j % 2 == 0 ? split_pair(own, other) : split_pair(other, own);
        if (i < c.n)
            part_row<D>(a, c.first + i, first_head + head)[(j % 2 ? C / 2 : 0) + j / 2] = j % 2 ? two.lo : two.hi;
    }
}

template <int D>
static __global__ void __launch_bounds__(PARTS_THREADS, 2)
    delta_chunk_parts(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan) {
    typedef parts_memory<D> memory;
    typedef column_run<D> run;
    constexpr int C = memory::C;
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    wait_for_previous();
    chunk_place c = find_chunk<C>(plan, blockIdx.x);
    if (c.seq < 0)
        return;
    float *x = reinterpret_cast<float *>(shared + memory::X), *kk = x, *qk = x + C * memory::PRODUCT_PITCH,
          *triangle = reinterpret_cast<float *>(shared + memory::Q), *G = reinterpret_cast<float *>(shared + memory::G),
          *beta = reinterpret_cast<float *>(shared + memory::BETA);
    uint32_t q = shared_address(shared + memory::Q), k = shared_address(shared + memory::K);
    int kh = blockIdx.y, group = a.shape.n_value_heads / a.shape.n_key_heads, keys = a.shape.n_key_heads * D;
    const float *kept = kept_of(a, plan.state_slot[c.seq]);
    bool fresh = plan.position[plan.query_start[c.seq]] == 0;
    float *mixed = static_cast<float *>(a.mixed.at), y[run::ROWS];
    run at;
#pragma unroll 1
    for (int of = 0; of < 2; of++) { // q, k
        convolve<D>(y, a, c, kept, fresh, of * keys + kh * D + at.column, at.row);
        __syncthreads(); // x is free
#pragma unroll
        for (int i = 0; i < run::ROWS; i++)
            x[(at.row + i) * memory::X_PITCH + at.column] = y[i];
        __syncthreads(); // x is there
        make_units<D>(x, of ? k : q, c, of ? 1.0f : rsqrtf((float)D), mixed + of * keys + kh * D, a.mixed.stride);
    }
#pragma unroll 1
    for (int h = kh * group; h < (kh + 1) * group; h++) {
        int channel = 2 * keys + h * D + at.column;
        convolve<D>(y, a, c, kept, fresh, channel, at.row);
#pragma unroll
        for (int i = 0; i < run::ROWS; i++)
            if (at.row + i < c.n)
                mixed[(c.first + at.row + i) * a.mixed.stride + channel] = y[i];
    }
    __syncthreads(); // q and k are there, x is free
    multiply_keys<D>(q, k, kk, qk);
#pragma unroll 1
    for (int first = 0; first < group; first += HEADS_AT_ONCE) {
        int h = kh * group + first, n_heads = min((int)HEADS_AT_ONCE, group - first), warp = threadIdx.x / 32;
        if (warp < n_heads)
            gates_of_chunk<C>(a, c, h + warp, G + warp * C, beta + warp * C);
        __syncthreads(); // gates and products are there; the last triangles are solved
        weigh<D>(a, c, h, n_heads, kk, qk, G, beta, triangle);
        __syncthreads(); // triangles are there
        solve<D>(a, c, h, n_heads, triangle, beta);
        __syncthreads(); // gates are free
    }
}

template <int D> static void launch_of_width(const struct launch *l, const ddelta_layer &a, int most_chunks) {
    allow_shared(delta_chunk_parts<D>, parts_memory<D>::BYTES);
    launch_node(delta_chunk_parts<D>, dim3(most_chunks, a.shape.n_key_heads), PARTS_THREADS, parts_memory<D>::BYTES,
                l->stream, a, l->plan);
}

void launch_delta_chunk_parts(const struct launch *l, const struct ddelta_layer *a) {
    int most = delta_most_long(l), C = a->shape.key_dim / 2, most_chunks = l->n_tokens / C + most;
    switch (a->shape.key_dim) {
    case 32: launch_of_width<32>(l, *a, most_chunks); break;
    case 64: launch_of_width<64>(l, *a, most_chunks); break;
    default: launch_of_width<128>(l, *a, most_chunks);
    }
}
