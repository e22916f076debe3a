/* heads_whole.cuh - of qkv_prep.cu: heads of 64, 128, 256 or 512 channels that are rotated whole or not at all, and a
 * cache of 16 or 8 bits.
 *
 * A warp does one head of every so many rows, or four neighbouring ones of 64 channels, eight lanes each: what does not
 * depend on the row, the norm's weights and the scales of unscaled products, stays in its registers. It takes AT_ONCE
 * rows at a time, all of whose loads are under way before the first is looked at, since each comes from the L2 or
 * beyond; where those rows lie in the cache is found by a lane each. Of a head's L lanes, lane l holds channels V l ..
 * V l + V - 1 of every L V, V 2 of 128 channels and 4 of others, so that the other channel of a pair is always in the
 * same lane. Sizes and the cache's element are known to the compiler: with divisions by sizes known at run time a head
 * takes some thousand instructions, and the node is bound by those. */
#pragma once

#include "backend/cuda/attention/heads_whole_head.cuh"

namespace {

/* Columns [col, col + N) of rows t, t + step ...: a head that the cache keeps, or a query; turned, or not. */
struct rows_of_warp {
    int t, step, col;
    bool is_kept, turns;
};

/* A row among those under way. place.at(lane): where it lies in the cache. */
template <class ANGLES, class PLACE> struct row_under_way {
    int t, lane;
    float factor; // of unscaled products
    const ANGLES &angles;
    const PLACE &place;
};

/* take(row, head) of each, find(seq, position) its place. */
template <int N, bool WIDE, class ANGLES, class FIND, class TAKE>
__device__ void take_rows(const whole_heads &p, const rows_of_warp &r, FIND find, TAKE take) {
    constexpr int AT_ONCE = whole_size<N>::AT_ONCE, V = whole_size<N>::V, PIECES = whole_size<N>::PIECES,
                  LANES = whole_size<N>::LANES, SIZE = WIDE ? 4 : 2;
    const char *from = static_cast<const char *>(p.x.at) + (r.col + whole_channel<N>(0)) * SIZE;
    int64_t pitch = p.x.stride * SIZE;
    int n_tokens = load_late(p.plan.counts), lane = whole_lane<N>(), of_head = threadIdx.x % 32 - lane;
    for (int t = r.t; t < p.n_rows; t += AT_ONCE * r.step) {
        whole_piece<V, WIDE> row[AT_ONCE][PIECES];
        ANGLES angles[AT_ONCE];
        int my_row = t + lane * r.step, position = 0, seq = 0;
        bool mine = lane < AT_ONCE && my_row < p.n_rows;
        float my_factor = mine && p.x.row_scale ? p.x.row_scale[my_row] : 1.0f;
        if (mine && r.is_kept) {
            position = p.plan.position[my_row];
            seq = p.plan.seq_of_row[my_row];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) { // padding rows too, so as not to wait for the number of tokens
            if (t + k * r.step >= p.n_rows)
                break;
#pragma unroll
            for (int j = 0; j < PIECES; j++)
                row[k][j] = *reinterpret_cast<const whole_piece<V, WIDE> *>(from + (t + k * r.step) * pitch +
                                                                            j * (LANES * V * SIZE));
            if (r.turns)
                angles[k].load(p.cos_sin + (int64_t)(t + k * r.step) * N);
        }
        decltype(find(0, 0)) place = {};
        if (mine && r.is_kept && my_row < n_tokens)
            place = find(seq, position);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (t + k * r.step >= n_tokens)
                break;
            whole_head<N> head;
            head.template take<WIDE>(row[k], p.x.element);
            float factor = __shfl_sync(0xffffffffu, my_factor, of_head + k);
            take(row_under_way<ANGLES, decltype(place)>{t + k * r.step, of_head + k, factor, angles[k], place}, head);
        }
    }
}

/* Groups of HEADS heads each, but for the last. */
template <int HEADS> __host__ __device__ int groups_of(int n_heads) { return (n_heads + HEADS - 1) / HEADS; }

template <int N, element E, bool WIDE>
__global__ void __launch_bounds__(256, whole_size<N>::BLOCKS) qkv_prep_whole(const __grid_constant__ whole_heads p) {
    constexpr int HEADS = whole_size<N>::HEADS;
    const dqkv &a = p.a;
    int n_q = groups_of<HEADS>(a.n_heads), n_kv = groups_of<HEADS>(a.n_kv_heads),
        n_groups = n_q + (a.k_absent ? 0 : 2 * n_kv), i = blockIdx.x * 8 + threadIdx.x / 32,
        step = p.n_warps / n_groups;
    int t = i / n_groups, group = i - t * n_groups;
    bool is_q = group < n_q, is_v = group >= n_q + n_kv, turns = !is_v && p.cos_sin, raw = p.x.col_scale,
         biased = raw && p.x.bias;
    group -= is_q ? 0 : is_v ? n_q + n_kv : n_q;
    // Lanes behind the last head do that one once more, and store nothing.
    int head_of_lane = group * HEADS + threadIdx.x % 32 / whole_size<N>::LANES,
        n_heads = is_q ? a.n_heads : a.n_kv_heads, h = min(head_of_lane, n_heads - 1);
    bool is_there = head_of_lane < n_heads;
    int keys = a.n_heads * N, col = is_q ? h * N : keys + (h + (is_v && !a.v_from_k ? a.n_kv_heads : 0)) * N;
    const dweight &norm = is_q ? p.q_norm : p.k_norm;
    bool weighted = !is_v && norm.at, normed = is_v ? a.v_norm : weighted;
    whole_head<N> weight, scale, bias;
    weight.fill(1);
    if (weighted)
        weight.load(norm.at, norm.element);
    for (int k = 0; k < weight.P && weighted && a.plus_one; k++)
        weight.x[k] += 1;
    if (raw)
        scale.load(p.x.col_scale + col, ELEMENT_F32);
    if (biased)
        bias.load(p.x.bias + col, ELEMENT_F32);
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    if (t >= step)
        return;
    auto find = [&](int seq, int position) { return place_of<N, E>(p, seq, position, is_v, h); };
    take_rows<N, WIDE, whole_angles<N>>(p, {t, step, col, !is_q, turns}, find,
                                        [&](const auto &row, whole_head<N> &head) {
                                            for (int c = 0; c < head.P && raw; c++)
                                                head.x[c] *= row.factor * scale.x[c];
                                            for (int c = 0; c < head.P && biased; c++)
                                                head.x[c] += bias.x[c];
                                            if (normed)
                                                head.normalise(a.eps, weight);
                                            if (turns)
                                                head.rotate(row.angles);
                                            if (!is_q)
                                                store_cached<N, E>(row.place.at(row.lane), p.n_slots, is_there, head);
                                            else if (is_there)
                                                store_query(p.q, row.t * p.q.stride + h * N, head);
                                        });
}

bool on_16_bytes(const void *at) { return (uintptr_t)at % 16 == 0; }

/* Whether they do that. */
bool heads_are_whole(const dqkv &a, const drope *rope, const dmat &x, const dmat &q, const dweight &q_norm,
                     const dweight &k_norm, const dcache &cache) {
    int n = a.head_dim;
    bool sizes =
        (n == 64 || n == 128 || n == 256 || n == 512) && a.v_head_dim == n && x.stride % 4 == 0 && q.stride % 4 == 0;
    bool turns = !rope || (rope->dim == n && rope->pairing == 0);
    bool lies = on_16_bytes(x.at) && on_16_bytes(q.at) && on_16_bytes(x.col_scale) && on_16_bytes(x.bias) &&
                on_16_bytes(q_norm.at) && on_16_bytes(k_norm.at);
    return sizes && turns && lies && cache.element != ELEMENT_F32;
}

template <int N, element E> void start_whole(const launch *l, const whole_heads &p) {
    int n_blocks = (p.n_warps + 7) / 8;
    if (p.x.element == ELEMENT_F32)
        launch_node(qkv_prep_whole<N, E, true>, n_blocks, 256, 0, l->stream, p);
    else
        launch_node(qkv_prep_whole<N, E, false>, n_blocks, 256, 0, l->stream, p);
}

/* So many heads a row, or groups of them. */
template <int N> void share_rows(const launch *l, int n_heads, whole_heads &p) {
    int at_once = n_multiprocessors() * 8 * whole_size<N>::BLOCKS; // warps that run at once
    int rows = at_once / n_heads > 0 ? at_once / n_heads : 1, each = (l->n_tokens + rows - 1) / rows; // of a warp
    p.n_warps = n_heads * ((l->n_tokens + each - 1) / each);
    p.n_rows = l->n_tokens;
}

template <int N> void start_whole(const launch *l, whole_heads &p) {
    constexpr int HEADS = whole_size<N>::HEADS;
    share_rows<N>(l, groups_of<HEADS>(p.a.n_heads) + (p.a.k_absent ? 0 : 2 * groups_of<HEADS>(p.a.n_kv_heads)), p);
    switch (p.cache.element) {
    case ELEMENT_F16: start_whole<N, ELEMENT_F16>(l, p); break;
    case ELEMENT_BF16: start_whole<N, ELEMENT_BF16>(l, p); break;
    case ELEMENT_E4M3: start_whole<N, ELEMENT_E4M3>(l, p); break;
    default: start_whole<N, ELEMENT_I8>(l, p);
    }
}

void start_whole_heads(const launch *l, whole_heads p) {
    switch (p.a.head_dim) {
    case 64: start_whole<64>(l, p); break;
    case 128: start_whole<128>(l, p); break;
    case 256: start_whole<256>(l, p); break;
    default: start_whole<512>(l, p);
    }
}

} // namespace
