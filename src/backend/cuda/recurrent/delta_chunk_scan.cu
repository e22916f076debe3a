/* delta_chunk_scan.cu - the second pass over a prompt's chunks (delta_chunks.cuh): the state from chunk to chunk and o.
 *
 * Columns of S are independent of one another, so a block has a sequence, a value head and COLUMNS of them, in
 * registers as sums of mma, and as pairs of bfloat16 in shared memory, where they are an operand. A chunk:
 *
 *     K S and Q S      a warp 16 rows of K and of Q and some columns       Y = V - e^G K S to shared memory
 *     T Y              the same rows and columns; T is a triangle          R, e^(G_C - G) R to shared memory
 *     A R              likewise                                            O = e^G Q S + A R to global memory
 *     K^T R            a warp 16 rows of S and some columns                S to shared memory
 *
 * with a barrier behind each line but the third. While a chunk is computed the next one's K and Q are on their way
 * (cp.async; K has two places), T and A behind it.
 *
 * How many columns a block has changes no bit of any. */
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/recurrent/delta_chunks.cuh"

/* Shared memory, in bytes, and who computes what. Tiles are pairs: a plane of hi, then one of lo. */
template <int D, int COLUMNS> struct scan_shape {
    static constexpr int C = D / 2, WARPS = D == 32 ? 4 : 8, THREADS = 32 * WARPS;
    static constexpr int ROW_PITCH = D + 8, CHUNK_PITCH = C + 8, PITCH = COLUMNS + 8;
    static constexpr int ROW_PLANE = 2 * C * ROW_PITCH, CHUNK_PLANE = 2 * C * CHUNK_PITCH, S_PLANE = 2 * D * PITCH,
                         R_PLANE = 2 * C * PITCH;
    static constexpr int K = 0, Q = K + 4 * ROW_PLANE, T = Q + 2 * ROW_PLANE, A = T + 2 * CHUNK_PLANE,
                         S = A + 2 * CHUNK_PLANE, R = S + 2 * S_PLANE, DECAYED = R + 2 * R_PLANE,
                         G = DECAYED + 2 * R_PLANE, BYTES = G + 2 * C * 4;
    // tiles of 16 rows of a chunk, and of S; columns of a warp there
    static constexpr int TILES = C / 16, OWN = COLUMNS * TILES / WARPS, S_TILES = D / 16,
                         S_OWN = COLUMNS * S_TILES / WARPS;
    static_assert(OWN % 8 == 0 && S_OWN % 8 == 0, "whole tiles of mma");
    static_assert(BYTES <= 227 << 10, "what a block may have");
};

/* What a block works on. */
struct scan_job {
    int seq, first, n_tokens, h, column;
};

template <int D, int COLUMNS> struct scan {
    typedef scan_shape<D, COLUMNS> shape;
    static constexpr int C = shape::C, N = shape::OWN / 8, SN = shape::S_OWN / 8;
    const ddelta_layer &a;
    scan_job job;
    uint32_t shared;
    char *memory;
    int warp, lane, row, column, s_row, s_column; // of the warp's tiles
    float s[SN][4];

    __device__ scan(const ddelta_layer &layer, const scan_job &j, char *m)
        : a(layer), job(j), shared(shared_address(m)), memory(m) {
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp % shape::TILES * 16, column = warp / shape::TILES * shape::OWN;
        s_row = warp % shape::S_TILES * 16, s_column = warp / shape::S_TILES * shape::S_OWN;
    }
    __device__ int rows_of(int chunk) const { return min(C, job.n_tokens - chunk * C); }
    __device__ int key_head() const { return job.h / (a.shape.n_value_heads / a.shape.n_key_heads); }
    __device__ int keys() const { return a.shape.n_key_heads * D; }
    __device__ float *gates(int chunk) const { return reinterpret_cast<float *>(memory + shape::G) + chunk % 2 * C; }
    __device__ uint32_t k_tile(int chunk) const { return shared + shape::K + chunk % 2 * 2 * shape::ROW_PLANE; }
    __device__ float *mixed_row(int chunk) const {
        return static_cast<float *>(a.mixed.at) + (job.first + (int64_t)chunk * C) * a.mixed.stride;
    }

    __device__ void ask_keys(int chunk) const {
        const uint32_t *at = reinterpret_cast<const uint32_t *>(mixed_row(chunk) + key_head() * D);
        int n = rows_of(chunk);
        ask_rows<D, shape::ROW_PITCH, shape::THREADS>(shared + shape::Q, at, a.mixed.stride, C, n);
        ask_rows<D, shape::ROW_PITCH, shape::THREADS>(k_tile(chunk), at + keys(), a.mixed.stride, C, n);
    }
    __device__ void ask_parts(int chunk) const {
        const uint32_t *at = part_row<D>(a, job.first + chunk * C, job.h);
        int n = rows_of(chunk);
        ask_rows<C, shape::CHUNK_PITCH, shape::THREADS>(shared + shape::T, at, a.parts.stride, C, n);
        ask_rows<C, shape::CHUNK_PITCH, shape::THREADS>(shared + shape::A, at + C, a.parts.stride, C, n);
    }

    /* a of the rows that a warp's gates want for a chunk, before they are wanted. */
    __device__ void load_alpha(float (&alpha)[(C + 31) / 32], int chunk) const {
#pragma unroll
        for (int k = 0; k < (C + 31) / 32; k++) {
            int i = lane + 32 * k;
            alpha[k] = i < rows_of(chunk) ? load(a.a, job.first + chunk * C + i, job.h) : 0.0f;
        }
    }

    /* Element i of tile n is in row `from` + lane / 4 + 8 (i / 2), column 8 n + 2 (lane % 4) + i % 2. */
    template <class State> __device__ void load_state_tile(const State *at, bool fresh) {
#pragma unroll
        for (int n = 0; n < SN; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const State *two = at + (s_row + lane / 4 + 4 * i) * D + s_column + 8 * n + 2 * (lane % 4);
                s[n][i] = fresh ? 0.0f : load_state_one(two), s[n][i + 1] = fresh ? 0.0f : load_state_one(two + 1);
            }
    }
    template <class State> __device__ void keep_state_tile(State *at) const {
#pragma unroll
        for (int n = 0; n < SN; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                store_state_two(at + (s_row + lane / 4 + 4 * i) * D + s_column + 8 * n + 2 * (lane % 4), s[n][i],
                                s[n][i + 1]);
    }
    __device__ void share_state() const {
#pragma unroll
        for (int n = 0; n < SN; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                store_pair<shape::PITCH>(shared + shape::S, shape::S_PLANE, s_row + lane / 4 + 4 * i,
                                         s_column + 8 * n + 2 * (lane % 4), s[n][i], s[n][i + 1]);
    }
    /* The warp's own rows and columns of a chunk, scaled by row. */
    __device__ void share_rows(int tile, const float (&x)[N][4], float first, float second) const {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                float by = i ? second : first;
                store_pair<shape::PITCH>(shared + tile, shape::R_PLANE, row + lane / 4 + 4 * i,
                                         column + 8 * n + 2 * (lane % 4), x[n][i] * by, x[n][i + 1] * by);
            }
    }

    /* Where row i of the warp's tile (0: lane / 4, 1: that + 8) has v, and then o. */
    __device__ float *value_at(int chunk, int i, int n) const {
        return mixed_row(chunk) + (row + lane / 4 + 8 * i) * a.mixed.stride + 2 * keys() + job.h * D + job.column +
               column + 8 * n + 2 * (lane % 4);
    }
    __device__ void load_values(float (&v)[N][4], int chunk) const {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                bool mine = row + lane / 4 + 8 * i < rows_of(chunk);
                float2 two = mine ? *reinterpret_cast<const float2 *>(value_at(chunk, i, n)) : float2{};
                v[n][2 * i] = two.x, v[n][2 * i + 1] = two.y;
            }
    }
    __device__ void store_outputs(const float (&o)[N][4], int chunk) const {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (row + lane / 4 + 8 * i < rows_of(chunk))
                    *reinterpret_cast<float2 *>(value_at(chunk, i, n)) = make_float2(o[n][2 * i], o[n][2 * i + 1]);
    }

    /* K S and Q S. */
    __device__ void read_state(float (&ks)[N][4], float (&qs)[N][4], int chunk) const {
#pragma unroll
        for (int step = 0; step < D; step += 16) {
            uint32_t k_hi[4], k_lo[4], q_hi[4], q_lo[4], b[4];
            load_a<shape::ROW_PITCH>(k_hi, k_tile(chunk), row, step);
            load_a<shape::ROW_PITCH>(k_lo, k_tile(chunk) + shape::ROW_PLANE, row, step);
            load_a<shape::ROW_PITCH>(q_hi, shared + shape::Q, row, step);
            load_a<shape::ROW_PITCH>(q_lo, shared + shape::Q + shape::ROW_PLANE, row, step);
#pragma unroll
            for (int n = 0; n < N; n++) {
                load_b<shape::PITCH>(b, shared + shape::S, shape::S_PLANE, step, column + 8 * n);
                multiply_pairs(ks[n], k_hi, k_lo, b);
                multiply_pairs(qs[n], q_hi, q_lo, b);
            }
        }
    }
    /* x += the warp's rows of a lower triangle times R's tile. */
    __device__ void add_triangle(float (&x)[N][4], int triangle) const {
#pragma unroll
        for (int step = 0; step < C; step += 16) {
            if (step > row)
                break;
            uint32_t hi[4], lo[4], b[4];
            load_a<shape::CHUNK_PITCH>(hi, shared + triangle, row, step);
            load_a<shape::CHUNK_PITCH>(lo, shared + triangle + shape::CHUNK_PLANE, row, step);
#pragma unroll
            for (int n = 0; n < N; n++) {
                load_b<shape::PITCH>(b, shared + shape::R, shape::R_PLANE, step, column + 8 * n);
                multiply_pairs(x[n], hi, lo, b);
            }
        }
    }
    /* S = decay S + K^T of what R has become at the chunk's end. */
    __device__ void write_state(int chunk, float decay) {
#pragma unroll
        for (int n = 0; n < SN; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] *= decay;
#pragma unroll
        for (int step = 0; step < C; step += 16) {
            uint32_t hi[4], lo[4], b[4];
            load_a_turned<shape::ROW_PITCH>(hi, k_tile(chunk), s_row, step);
            load_a_turned<shape::ROW_PITCH>(lo, k_tile(chunk) + shape::ROW_PLANE, s_row, step);
#pragma unroll
            for (int n = 0; n < SN; n++) {
                load_b<shape::PITCH>(b, shared + shape::DECAYED, shape::R_PLANE, step, s_column + 8 * n);
                multiply_pairs(s[n], hi, lo, b);
            }
        }
    }

    /* A chunk, whose K, Q, gates and S are there. */
    __device__ void chunk(int i, bool is_last) {
        float v[N][4], ks[N][4] = {}, qs[N][4] = {}, alpha[(C + 31) / 32];
        const float *G = gates(i);
        float g0 = G[row + lane / 4], g1 = G[row + lane / 4 + 8], g_end = G[C - 1];
        load_values(v, i);
        if (!is_last && warp == 0)
            load_alpha(alpha, i + 1);
        read_state(ks, qs, i);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float decay = expf(k < 2 ? g0 : g1);
                v[n][k] -= decay * ks[n][k], qs[n][k] *= decay, ks[n][k] = 0;
            }
        share_rows(shape::R, v, 1, 1);
        wait_batches<0>();
        __syncthreads(); // Y is there, T and A too; Q and S have been read
        if (!is_last)
            ask_keys(i + 1);
        close_batch();
        add_triangle(ks, shape::T);
        __syncthreads(); // Y has been read
        share_rows(shape::R, ks, 1, 1);
        share_rows(shape::DECAYED, ks, expf(g_end - g0), expf(g_end - g1));
        __syncthreads(); // R is there, both ways
        add_triangle(qs, shape::A);
        store_outputs(qs, i);
        write_state(i, expf(g_end));
        share_state();
        if (!is_last && warp == 0)
            sum_gates<C>(alpha, rows_of(i + 1), expf(load(a.a_log, job.h)), load(a.dt_bias, job.h), gates(i + 1));
        wait_batches<0>();
        __syncthreads(); // the next chunk's K, Q, gates and S are there; A and R have been read
        if (!is_last)
            ask_parts(i + 1);
        close_batch();
    }

    /* The last inputs of the convolution, of channels [from, from + n). */
    __device__ void keep_inputs(float *kept, int from, int n) const {
        int last = job.first + job.n_tokens - (a.kernel - 1);
        for (int i = threadIdx.x; i < n * (a.kernel - 1); i += shape::THREADS)
            kept[(int64_t)(i / n) * a.u.width + from + i % n] = load(a.u, last + i / n, from + i % n);
    }
};

template <int D, int COLUMNS, class State>
static __global__ void __launch_bounds__(scan_shape<D, COLUMNS>::THREADS, 1)
    delta_chunk_scan(const __grid_constant__ ddelta_layer a, const __grid_constant__ device_plan plan) {
    extern __shared__ __align__(16) char memory[];
    constexpr int C = D / 2, PARTS = D / COLUMNS;
    let_next_start();
    wait_for_previous();
    int seq = find_item(a, plan, blockIdx.y, [](int n) { return n > 0; }).x;
    if (seq < 0)
        return;
    int h = blockIdx.x / PARTS, part = blockIdx.x % PARTS, first = plan.query_start[seq], slot = plan.state_slot[seq];
    scan_job job = {seq, first, plan.query_start[seq + 1] - first, h, part * COLUMNS};
    scan<D, COLUMNS> it(a, job, memory);
    int n_chunks = (job.n_tokens + C - 1) / C;
    State *state = state_of<State>(a, slot, h) + job.column;
    it.ask_keys(0);
    close_batch();
    it.ask_parts(0);
    close_batch();
    if (it.warp == 0) {
        float alpha[(C + 31) / 32];
        it.load_alpha(alpha, 0);
        sum_gates<C>(alpha, it.rows_of(0), expf(load(a.a_log, h)), load(a.dt_bias, h), it.gates(0));
    }
    it.load_state_tile(state, plan.position[first] == 0);
    it.share_state();
    wait_batches<1>();
    __syncthreads(); // K, Q, gates and S of the first chunk are there
    for (int i = 0; i < n_chunks; i++)
        it.chunk(i, i + 1 == n_chunks);
    it.keep_state_tile(state);
    float *kept = kept_of(a, slot);
    it.keep_inputs(kept, 2 * it.keys() + h * D + job.column, COLUMNS);
    if (part == 0 && h % (a.shape.n_value_heads / a.shape.n_key_heads) == 0) {
        it.keep_inputs(kept, it.key_head() * D, D);
        it.keep_inputs(kept, it.keys() + it.key_head() * D, D);
    }
}

template <int D, int COLUMNS, class State> static void launch_columns(const struct launch *l, const ddelta_layer &a) {
    typedef scan_shape<D, COLUMNS> shape;
    dim3 grid(a.shape.n_value_heads * (D / COLUMNS), delta_most_long(l));
    allow_shared(delta_chunk_scan<D, COLUMNS, State>, shape::BYTES);
    launch_node(delta_chunk_scan<D, COLUMNS, State>, grid, shape::THREADS, shape::BYTES, l->stream, a, l->plan);
}

template <int D, int COLUMNS> static void launch_states(const struct launch *l, const ddelta_layer &a) {
    if (a.cache.element == ELEMENT_F32)
        launch_columns<D, COLUMNS, float>(l, a);
    else
        launch_columns<D, COLUMNS, __nv_bfloat16>(l, a);
}

void launch_delta_chunk_scan(const struct launch *l, const struct ddelta_layer *a) {
    bool has_place = a->shape.n_value_heads * 4 * delta_most_long(l) <= n_multiprocessors();
    switch (a->shape.key_dim) {
    case 32: launch_states<32, 32>(l, *a); break;
    case 64: launch_states<64, 32>(l, *a); break;
    default:
        if (has_place)
            launch_states<128, 32>(l, *a);
        else
            launch_states<128, 64>(l, *a);
    }
}
