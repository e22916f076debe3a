/* delta_chunk_parts.cu - T and A of a prompt's chunks (delta_chunks.cuh), all side by side.
 *
 * A block has a chunk and a key head, whose value heads share K K^T and Q K^T: products by mma, tiles of 16 rows. T is
 * solved by forward substitution in float32, up to four value heads at once: a thread a column, the column in
 * registers, rows of the triangle from shared memory as all lanes of a warp want the same. Of columns 32 and on nothing
 * above row 32 is other than zero, and their warps begin there.
 *
 * Bytes a token and key head: 8 D in, 4 D out a value head. */
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/recurrent/delta_chunks.cuh"

enum { PARTS_THREADS = 256, HEADS_AT_ONCE = 4 };

/* Shared memory, in bytes: q and k as pairs, then triangles; K K^T and Q K^T; gates. */
template <int D> struct parts_memory {
    static constexpr int C = D / 2, PITCH = D + 8, PRODUCT_PITCH = C + 4;
    static constexpr int PLANE = 2 * C * PITCH, TILE = 2 * PLANE, Q = 0, K = Q + TILE, KK = K + TILE,
                         QK = KK + 4 * C * PRODUCT_PITCH, G = QK + 4 * C * PRODUCT_PITCH,
                         BETA = G + 4 * HEADS_AT_ONCE * C, BYTES = BETA + 4 * HEADS_AT_ONCE * C;
    static_assert(4 * HEADS_AT_ONCE * C * C <= 2 * TILE, "triangles lie where q and k were");
};

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
        for (int i = 0; i < 4; i += 2)
            *reinterpret_cast<float2 *>(out + (16 * tile + lane / 4 + 4 * i) * memory::PRODUCT_PITCH + 8 * n +
                                        lane % 4 * 2) = make_float2(c[n][i], c[n][i + 1]);
}

static __device__ __forceinline__ void store_fours(uint32_t *row, int C, int j, const float (&x)[4]) {
    two_of low = split_pair(x[0], x[1]), high = split_pair(x[2], x[3]);
    *reinterpret_cast<uint2 *>(row + j / 2) = make_uint2(low.hi, high.hi);
    *reinterpret_cast<uint2 *>(row + C / 2 + j / 2) = make_uint2(low.lo, high.lo);
}

/* Triangles [head][C][C] of beta_i D_ij k_i.k_j below the diagonal, and A into parts; four columns at a time. */
template <int D>
static __device__ void weigh(const ddelta_layer &a, const chunk_place &c, int first_head, int n_heads, const float *kk,
                             const float *qk, const float *G, const float *beta, float *triangle) {
    typedef parts_memory<D> memory;
    constexpr int C = memory::C, FOURS = C * C / 4;
    for (int at = threadIdx.x; at < n_heads * FOURS; at += PARTS_THREADS) {
        int head = at / FOURS, i = at % FOURS / (C / 4), j = at % (C / 4) * 4;
        const float *g = G + head * C;
        float4 k = *reinterpret_cast<const float4 *>(kk + i * memory::PRODUCT_PITCH + j),
               q = *reinterpret_cast<const float4 *>(qk + i * memory::PRODUCT_PITCH + j);
        float ks[4] = {k.x, k.y, k.z, k.w}, qs[4] = {q.x, q.y, q.z, q.w}, by = beta[head * C + i], own = g[i];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float decay = j + n <= i ? __expf(own - g[j + n]) : 0.0f;
            qs[n] *= decay;
            ks[n] = j + n < i ? by * decay * ks[n] : 0.0f;
        }
        *reinterpret_cast<float4 *>(triangle + (head * C + i) * C + j) = make_float4(ks[0], ks[1], ks[2], ks[3]);
        if (i < c.n)
            store_fours(part_row<D>(a, c.first + i, first_head + head) + C, C, j, qs);
    }
}

/* A column j of (1 + triangle)^-1, of which rows above FROM are zero, times beta_j. */
template <int C, int FROM>
static __device__ __forceinline__ void solve_column(float (&x)[C], const float *rows, int j, float by) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        float sum[4] = {i == j ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
        for (int m = FROM; m < i; m += 4) {
            float4 four = *reinterpret_cast<const float4 *>(rows + i * C + m); // zero from the diagonal on
            sum[0] -= four.x * x[m];
            if (m + 1 < i)
                sum[1] -= four.y * x[m + 1];
            if (m + 2 < i)
                sum[2] -= four.z * x[m + 2];
            if (m + 3 < i)
                sum[3] -= four.w * x[m + 3];
        }
        x[i] = i < FROM ? 0.0f : (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
#pragma unroll
    for (int i = 0; i < C; i++)
        x[i] *= by;
}

/* T where the triangles were. By thread head * C + j. */
template <int D> static __device__ void solve(int n_heads, float *triangle, const float *beta) {
    constexpr int C = D / 2;
    int head = threadIdx.x / C, j = threadIdx.x % C;
    bool mine = head < n_heads;
    float x[C], *rows = triangle + head * C * C;
    if (mine && (C <= 32 || j < 32))
        solve_column<C, 0>(x, rows, j, beta[head * C + j]);
    else if (mine)
        solve_column<C, C <= 32 ? 0 : 32>(x, rows, j, beta[head * C + j]);
    __syncthreads(); // the triangles have been read
    if (mine)
#pragma unroll
        for (int i = 0; i < C; i++)
            rows[i * C + j] = x[i];
    __syncthreads(); // T is there
}

template <int D>
static __device__ void store_solution(const ddelta_layer &a, const chunk_place &c, int first_head, int n_heads,
                                      const float *solution) {
    constexpr int C = D / 2, FOURS = C * C / 4;
    for (int at = threadIdx.x; at < n_heads * FOURS; at += PARTS_THREADS) {
        int head = at / FOURS, i = at % FOURS / (C / 4), j = at % (C / 4) * 4;
        float4 v = *reinterpret_cast<const float4 *>(solution + (head * C + i) * C + j);
        float x[4] = {v.x, v.y, v.z, v.w};
        if (i < c.n)
            store_fours(part_row<D>(a, c.first + i, first_head + head), C, j, x);
    }
}

template <int D>
static __global__ void __launch_bounds__(PARTS_THREADS, 2)
    delta_chunk_parts(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan) {
    typedef parts_memory<D> memory;
    constexpr int C = memory::C;
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    wait_for_previous();
    chunk_place c = find_chunk<C>(a, plan, blockIdx.x);
    if (c.seq < 0)
        return;
    float *kk = reinterpret_cast<float *>(shared + memory::KK), *qk = reinterpret_cast<float *>(shared + memory::QK),
          *triangle = reinterpret_cast<float *>(shared), *G = reinterpret_cast<float *>(shared + memory::G),
          *beta = reinterpret_cast<float *>(shared + memory::BETA);
    uint32_t q = shared_address(shared + memory::Q), k = shared_address(shared + memory::K);
    int kh = blockIdx.y, group = a.shape.n_value_heads / a.shape.n_key_heads, keys = a.shape.n_key_heads * D;
    const uint32_t *mixed = static_cast<const uint32_t *>(a.mixed.at) + c.first * a.mixed.stride + kh * D;
    ask_rows<D, memory::PITCH, PARTS_THREADS>(q, mixed, a.mixed.stride, C, c.n);
    ask_rows<D, memory::PITCH, PARTS_THREADS>(k, mixed + keys, a.mixed.stride, C, c.n);
    close_batch();
    wait_batches<0>();
    __syncthreads(); // q and k are there
    multiply_keys<D>(q, k, kk, qk);
#pragma unroll 1
    for (int first = 0; first < group; first += HEADS_AT_ONCE) {
        int h = kh * group + first, n_heads = min((int)HEADS_AT_ONCE, group - first), warp = threadIdx.x / 32;
        if (warp < n_heads)
            gates_of_chunk<C>(a, c, h + warp, G + warp * C, beta + warp * C);
        __syncthreads(); // gates and products are there, q and k have been read, and so has the last T
        weigh<D>(a, c, h, n_heads, kk, qk, G, beta, triangle);
        __syncthreads(); // triangles are there
        solve<D>(n_heads, triangle, beta);
        store_solution<D>(a, c, h, n_heads, triangle);
    }
}

template <int D> static void launch_of_width(const struct launch *l, const ddelta_layer &a) {
    allow_shared(delta_chunk_parts<D>, parts_memory<D>::BYTES);
    launch_node(delta_chunk_parts<D>, dim3(delta_most_chunks(l, D / 2), a.shape.n_key_heads), PARTS_THREADS,
                parts_memory<D>::BYTES, l->stream, a, l->plan);
}

void launch_delta_chunk_parts(const struct launch *l, const struct ddelta_layer *a) {
    switch (a->shape.key_dim) {
    case 32: launch_of_width<32>(l, *a); break;
    case 64: launch_of_width<64>(l, *a); break;
    default: launch_of_width<128>(l, *a);
    }
}
