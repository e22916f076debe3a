/* gemv_sums.cuh - of gemv_kernel.cuh: weights times x in a warp's sums, and what becomes of them. */
#pragma once

#include "backend/cuda/linear/gemv/gemv_parts.cuh"

/* A warp's sums of a pass. Two of each, by turns, so that neither waits for the other. */
template <class W, int M_TILES> struct warp_sums {
    static constexpr int X_BYTES = CHUNK_BYTES / W::BYTES * 2;
    static constexpr bool BF16 = std::is_same_v<typename W::product, __nv_bfloat16>;
    float of[2][M_TILES][4] = {};

    /* A chunk of every row by the same columns of the lane's token, which lie at x. */
    __device__ __forceinline__ void add_chunk(const uint32_t (&w)[M_TILES][2][4], const unsigned char *x) {
#pragma unroll
        for (int s = 0; s < W::STEPS; s += 2) {
            uint32_t m[2][M_TILES][4];
#pragma unroll
            for (int t = 0; t < M_TILES; t++)
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        W::step(w[t][half], s + k, m[k][t][half], m[k][t][half + 2]);
            uint4 b = *reinterpret_cast<const uint4 *>(x + s / 2 * PIECE);
#pragma unroll
            for (int t = 0; t < M_TILES; t++) {
                multiply_add<BF16>(of[0][t], m[0][t], b.x, b.y);
                multiply_add<BF16>(of[1][t], m[1][t], b.z, b.w);
            }
        }
    }

    __device__ __forceinline__ void leave(int n_tokens, int r, int q, float *to, int pitch) {
#pragma unroll
        for (int t = 0; t < M_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int token = q * 2 + i % 2, row = t * 16 + r + i / 2 * 8;
                if (token < n_tokens)
                    to[token * pitch + row] = of[0][t][i] + of[1][t][i];
                of[0][t][i] = of[1][t][i] = 0;
            }
    }
};

/* Sums that warps, and blocks of a cluster, left in shared memory become results. */
template <class W, int M_TILES, gemv_end E, bool CLUSTERED> struct results {
    static constexpr int ROWS = 16 * M_TILES, SUM_PITCH = ROWS + 4;

    /* A thread's i-th result of a pass; none: token -1. */
    struct item {
        int token, unit, in_pass;
    };

    const gemv_args<E> &a;
    const station<E, CLUSTERED> &at;
    const places &m;
    int block_pitch;

    __device__ __forceinline__ results(const gemv_args<E> &a, const station<E, CLUSTERED> &at, const places &m)
        : a(a), at(at), m(m), block_pitch(a.row_warps * ROWS + 4) {}

    __device__ __forceinline__ item item_of(int i, int row_warp, int pass) const {
        span units = at.units_of_pass(a, row_warp, pass);
        int token = a.n_tokens == 1 ? 0 : i / a.pass_units, in_pass = i - token * a.pass_units;
        return {token < a.n_tokens && units.begin + in_pass < units.end ? token : -1, units.begin + in_pass, in_pass};
    }

    __device__ __forceinline__ void finish(const item &it, float first, float second) const {
        int64_t to = it.token * a.y_stride + it.unit;
        if constexpr (E == END_PLAIN)
            store(a.y, to, a.y_element, first);
        if constexpr (E == END_GATED)
            store(a.y, to, a.y_element,
                  a.end.act == 0 ? silu(first) * second : activate_rarely(a.end.act, a.end.limit, first, second));
    }
    static __device__ __noinline__ float activate_rarely(int act, float limit, float gate, float up) {
        return activate(act, limit, gate, up);
    }

    /* From the sums that `sum_of(tile row)` gives. */
    template <class F> __device__ __forceinline__ void write(const item &it, F sum_of) const {
        int i = it.unit - at.group.begin;
        auto scaled = [&](float sum, int i) {
            return sum * (W::BYTES == 1 ? m.scales[i] : 1.0f) + (a.bias ? m.biases[i] : 0.0f);
        };
        float first = scaled(sum_of(tile_row(it.in_pass, in_pairs(E), false)), i), second = 0;
        if (in_pairs(E))
            second = scaled(sum_of(tile_row(it.in_pass, true, true)), i + at.n_units);
        finish(it, first, second);
    }

    /* What the column warps of these rows left, added in their order. */
    __device__ __forceinline__ float sum_of_warps(const float *sums, int token, int row) const {
        float v[MAX_WARPS], sum = 0;
        const float *from = sums + token * SUM_PITCH + row;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            v[c] = c < at.column_warps ? from[c * a.n_tokens * SUM_PITCH] : 0;
#pragma unroll
        for (int c = 0; c < MAX_WARPS; c++)
            sum += v[c];
        return sum;
    }
    /* The same of the blocks of the cluster. */
    __device__ __forceinline__ float sum_of_blocks(const float *sums, int token, int row) const {
        float v[MAX_CLUSTER], sum = 0;
        uint32_t from = shared_address(sums + token * block_pitch + row);
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            v[k] = k < at.n_ranks ? load_at_rank(address_at_rank(from, k)) : 0;
#pragma unroll
        for (int k = 0; k < MAX_CLUSTER; k++)
            sum += v[k];
        return sum;
    }

    __device__ __forceinline__ void write_pass(const float *sums, int pass) const {
        int thread = at.column_warp * 32 + at.lane, n_threads = at.column_warps * 32;
#pragma unroll 1
        for (int i = thread; i < a.n_tokens * a.pass_units; i += n_threads) {
            item it = item_of(i, at.row_warp, pass);
            if (it.token >= 0)
                write(it, [&](int row) { return sum_of_warps(sums, it.token, row); });
        }
    }

    __device__ __forceinline__ void write_pass_of_cluster(int pass) const {
        const float *sums = m.block_sums + (pass & 1) * a.n_tokens * block_pitch;
        int a_token = a.row_warps * a.pass_units;
#pragma unroll 1
        for (int i = at.rank * blockDim.x + threadIdx.x; i < a.n_tokens * a_token; i += at.n_ranks * blockDim.x) {
            int token = i / a_token, w = i % a_token / a.pass_units, in_pass = i % a.pass_units;
            span units = at.units_of_pass(a, w, pass);
            if (units.begin + in_pass < units.end)
                write({token, units.begin + in_pass, in_pass},
                      [&](int row) { return sum_of_blocks(sums, token, w * ROWS + row); });
        }
    }

    /* A pass has ended: its sums are left where others add them, and nobody waits for anybody's loads. */
    __device__ __forceinline__ void end_pass(int pass, warp_sums<W, M_TILES> &sums) const {
        float *of_row_warp =
            m.warp_sums + ((pass & 1) * at.n_warps + at.row_warp * at.column_warps) * a.n_tokens * SUM_PITCH;
        float *of_block = m.block_sums + (pass & 1) * a.n_tokens * block_pitch + at.row_warp * ROWS;
        int thread = at.column_warp * 32 + at.lane, n_threads = at.column_warps * 32;
        if (CLUSTERED && pass > 0) {
            cluster_wait(); // every block's sums of the pass before are there, and those of the one before that have
                            // been read
            write_pass_of_cluster(pass - 1);
        }
        if (CLUSTERED && at.column_warps == 1)
            sums.leave(a.n_tokens, at.r, at.q, of_block, block_pitch);
        else {
            sums.leave(a.n_tokens, at.r, at.q, of_row_warp + at.column_warp * a.n_tokens * SUM_PITCH, SUM_PITCH);
            named_barrier(at.row_warp,
                          n_threads); // the sums of the column warps are there; the pass before's have been read
            if (!CLUSTERED)
                write_pass(of_row_warp, pass);
            else
                for (int i = thread; i < a.n_tokens * ROWS; i += n_threads)
                    of_block[i / ROWS * block_pitch + i % ROWS] = sum_of_warps(of_row_warp, i / ROWS, i % ROWS);
        }
        if (CLUSTERED)
            cluster_arrive();
    }

    __device__ __forceinline__ void end() const {
        if (CLUSTERED) {
            cluster_wait();
            write_pass_of_cluster(a.n_passes - 1);
            cluster_arrive();
            cluster_wait(); // the others have read our sums
        }
    }
};
