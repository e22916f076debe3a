/* heads_pairs.cuh - of qkv_prep.cu: heads of 128 or 256 channels of unscaled products, rotated whole or not at all, and
 * a cache of e4m3.
 *
 * Half a warp does a head of N channels: lane l of it has N / 32 neighbours from N / 32 l on and those N / 2 further,
 * which rotate with them, so that a warp's instruction does two heads, which share angles. A block does two
 * neighbouring heads of some rows, ROWS a warp, all of whose loads are under way before the first is looked at. What
 * does not depend on the row is loaded before the wait. Where a row lies in the cache is found by a lane each. */
#pragma once

#include "backend/cuda/attention/heads_pairs_head.cuh"

namespace {

/* The head that a row's unscaled products are. */
template <int N>
__device__ __forceinline__ void scale_head(half_head<N> &x, const pair_halves<pair_size<N>::FOURS> &low,
                                           const pair_halves<pair_size<N>::FOURS> &high, const half_head<N> &scale,
                                           const half_head<N> &bias, float by) {
#pragma unroll
    for (int i = 0; i < pair_size<N>::FOURS; i++) {
        x.low[i] = low.four(i) * (scale.low[i] * by);
        x.high[i] = high.four(i) * (scale.high[i] * by);
        if (pair_size<N>::BIASED) {
            x.low[i] = x.low[i] + bias.low[i];
            x.high[i] = x.high[i] + bias.high[i];
        }
    }
}
template <int N> __device__ __forceinline__ void norm_head(half_head<N> &x, const half_head<N> &weight, float eps) {
    float n = rsqrtf(half_sum(x.squares()) * (1.0f / N) + eps);
#pragma unroll
    for (int i = 0; i < pair_size<N>::FOURS; i++) {
        x.low[i] = x.low[i] * (weight.low[i] * n);
        x.high[i] = x.high[i] * (weight.high[i] * n);
    }
}

template <int N, int ROWS, bool NORMED>
__global__ void __launch_bounds__(PAIR_WARPS * 32, pair_size<N>::BLOCKS)
    qkv_prep_pairs(const __grid_constant__ pair_heads p) {
    constexpr int FOURS = pair_size<N>::FOURS, LANE = pair_size<N>::LANE;
    constexpr bool BIASED = pair_size<N>::BIASED;
    int lane = threadIdx.x % 32, sub = lane % 16, head = 2 * blockIdx.y + lane / 16, step = PAIR_WARPS * gridDim.x;
    bool is_q = 2 * blockIdx.y < p.n_q, is_v = 2 * blockIdx.y >= p.n_q + p.n_kv, turns = !is_v && p.cos_sin;
    int col = head * N + LANE * sub;
    const float *norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    bool normed = NORMED && (is_v ? p.v_normed : norm != nullptr);
    half_head<N> scale, bias, weight;
    scale.load(p.x.col_scale + col);
    bias.fill(0);
    if (BIASED && p.x.bias)
        bias.load(p.x.bias + col);
    weight.fill(1);
    if (NORMED && norm)
        weight.load(norm + LANE * sub);
#pragma unroll
    for (int i = 0; i < FOURS && NORMED; i++) {
        weight.low[i] = weight.low[i] + (norm ? p.plus : 0.0f);
        weight.high[i] = weight.high[i] + (norm ? p.plus : 0.0f);
    }
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    int n_tokens = load_late(p.plan.counts);
    for (int t = blockIdx.x * PAIR_WARPS + threadIdx.x / 32; t < p.n_rows; t += ROWS * step) {
        pair_halves<FOURS> low[ROWS], high[ROWS];
        half_head<N> angles[ROWS];
        float factor[ROWS];
        int mine = t + sub * step, position = 0, seq = 0, block = 0, slot = 0;
        bool finds = !is_q && sub < ROWS && mine < p.n_rows;
        if (finds) {
            position = p.plan.position[mine];
            seq = p.plan.seq_of_row[mine];
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) { // padding rows too, so as not to wait for the number of tokens
            int row = min(t + k * step, p.n_rows - 1);
            const __half *from = static_cast<const __half *>(p.x.at) + row * p.x.stride + col;
            low[k] = {pair_halves<FOURS>::at(from)};
            high[k] = {pair_halves<FOURS>::at(from + N / 2)};
            factor[k] = p.x.row_scale[row];
            if (turns)
                angles[k].load(p.cos_sin + row * N + LANE * sub);
        }
        if (finds && mine < n_tokens) {
            slot = position & (p.n_slots - 1);
            block = p.plan.block_table[p.cache.group]
                                      [(int64_t)seq * p.plan.table_width[p.cache.group] + (position >> p.log_slots)];
        }
        __syncwarp(); // else the assembler waits for the first of these before it asks for the others
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            int row = t + k * step;
            if (row >= n_tokens)
                break;
            half_head<N> x;
            scale_head<N>(x, low[k], high[k], scale, bias, factor[k]);
            if (normed)
                norm_head<N>(x, weight, p.eps);
            if (turns)
                x.rotate(angles[k]);
            if (is_q) {
                __half *to = static_cast<__half *>(p.q.at) + row * p.q.stride + col;
                store_fours(to, x.low);
                store_fours(to + N / 2, x.high);
            } else {
                int of = __shfl_sync(0xffffffffu, block, k), at = __shfl_sync(0xffffffffu, slot, k);
                store_pair_cached(p, of, at, head - p.n_q, sub, x);
            }
        }
    }
}

bool norm_is_plain(const dweight &w) { return !w.at || (w.element == ELEMENT_F32 && (uintptr_t)w.at % 16 == 0); }

/* Whether they do that. */
bool heads_pair_up(const dqkv &a, const drope *rope, const dmat &x, const dmat &q, const dweight &q_norm,
                   const dweight &k_norm, const dcache &cache) {
    int n = a.head_dim;
    bool sizes =
        (n == 128 || (n == 256 && !x.bias)) && a.v_head_dim == n && a.n_heads % 2 == 0 && a.n_kv_heads % 2 == 0;
    bool usual = !a.k_absent && !a.v_from_k && (!rope || (rope->dim == n && rope->pairing == 0));
    bool elements =
        x.col_scale && x.element == ELEMENT_F16 && q.element == ELEMENT_F16 && cache.element == ELEMENT_E4M3;
    bool lie = x.stride % 8 == 0 && q.stride % 8 == 0 && (uintptr_t)x.at % 16 == 0 && (uintptr_t)q.at % 16 == 0 &&
               (uintptr_t)x.col_scale % 16 == 0 && (uintptr_t)x.bias % 16 == 0 && norm_is_plain(q_norm) &&
               norm_is_plain(k_norm);
    return sizes && usual && elements && lie;
}

template <int N, bool NORMED> void start_pairs(const launch *l, const pair_heads &p) {
    int places = n_multiprocessors() * pair_size<N>::BLOCKS; // of blocks that run at once
    int n_pairs = p.n_q / 2 + p.n_kv, abreast = n_pairs < places ? places / n_pairs : 1;
    auto blocks = [&](int rows) { return (p.n_rows + PAIR_WARPS * rows - 1) / (PAIR_WARPS * rows); };
    constexpr int MOST = NORMED ? 2 : 3; // rows of a warp at once, by its registers
    auto start = [&](auto kernel, int rows) {
        dim3 grid(blocks(rows) < abreast ? blocks(rows) : abreast, n_pairs);
        launch_node(kernel, grid, PAIR_WARPS * 32, 0, l->stream, p);
    };
    if (blocks(1) <= abreast)
        start(qkv_prep_pairs<N, 1, NORMED>, 1);
    else if (blocks(2) <= abreast)
        start(qkv_prep_pairs<N, 2, NORMED>, 2);
    else
        start(qkv_prep_pairs<N, MOST, NORMED>, MOST);
}

void start_pair_heads(const launch *l, const dqkv &a, const drope *rope, const dmat &x, const dweight &q_norm,
                      const dweight &k_norm, const dcache &cache, const dmat &q) {
    pair_heads p = {l->plan,
                    rope ? rope->cos_sin : nullptr,
                    x,
                    q,
                    cache,
                    static_cast<const float *>(q_norm.at),
                    static_cast<const float *>(k_norm.at),
                    a.eps,
                    a.plus_one ? 1.0f : 0.0f,
                    a.v_norm,
                    a.n_heads,
                    a.n_kv_heads,
                    l->block_size,
                    __builtin_ctz((unsigned)l->block_size),
                    l->n_tokens};
    bool normed = q_norm.at || k_norm.at || a.v_norm;
    if (a.head_dim == 256)
        start_pairs<256, true>(l, p);
    else if (normed)
        start_pairs<128, true>(l, p);
    else
        start_pairs<128, false>(l, p);
}

} // namespace
