/* heads_pairs.cuh - of qkv_prep.cu: heads of 128 channels of raw products, rotated whole or not at all, and a cache of e4m3.
 *
 * Half a warp does a head: lane l of it has channels 4l .. 4l + 3 and those 64 further, which rotate with them, so that a warp's instruction does two
 * heads. A block does two neighbouring heads of some rows, ROWS a warp, all of whose loads are under way before the first is looked at. What does not
 * depend on the row is loaded before the wait. Where a row lies in the cache is found by a lane each. */
#pragma once

#include "backend/cuda/fours.cuh"
#include "backend/cuda/heads.cuh"
#include "backend/cuda/late.cuh"

namespace {

enum { PAIR_WARPS = 8, PAIR_PLACES = 132 * 3 }; // of a block; blocks that an H200 runs at once

struct pair_heads {
    device_plan plan;
    const float *cos_sin; // [tokens][128], or NULL
    dmat x, q;            // raw of half precision; half precision
    dcache cache;
    const float *q_norm, *k_norm; // of NORMED, each may be NULL
    float eps, plus;
    int n_q, n_kv, n_slots, log_slots;
    int n_rows; // that the step was launched for
};

/* Of sizes; what is not a number stays so. */
__device__ inline float larger(float most, float x) {
    asm("max.NaN.xorsign.abs.f32 %0, %0, %1;" : "+f"(most) : "f"(x));
    return most;
}
__device__ inline float larger(float most, float4 x) { return larger(larger(larger(larger(most, x.x), x.y), x.z), x.w); }

/* Over the half of the warp that a lane is in. */
__device__ inline float half_sum(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ inline float half_most(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return fabsf(x);
}

/* A lane's share of a head, times whatever `by` is. */
struct half_head {
    float4 low, high;
    __device__ void load(const float *at) {
        low = *reinterpret_cast<const float4 *>(at);
        high = *reinterpret_cast<const float4 *>(at + 64);
    }
    __device__ void rotate(const half_head &angles) { // cosines, sines
        float4 c = angles.low, s = angles.high, first = low;
        low = {low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y, low.z * c.z - high.z * s.z, low.w * c.w - high.w * s.w};
        high = {high.x * c.x + first.x * s.x, high.y * c.y + first.y * s.y, high.z * c.z + first.z * s.z, high.w * c.w + first.w * s.w};
    }
};

/* To the place of a key or value in the cache, as kv.cuh says; sides: keys' heads, then values'. */
__device__ inline void store_pair_cached(const pair_heads &p, int block, int slot, int side, int sub, const half_head &head) {
    float most = half_most(larger(larger(0, head.low), head.high)), scale = most == 0 ? 1.0f : most * (1 / 448.0f);
    char *in = static_cast<char *>(p.cache.at) + block * p.cache.block_elements, *row = in + (side * p.n_slots + slot) * 128;
    float by = __fdividef(1.0f, scale);
    if (sub == 0)
        reinterpret_cast<float *>(in + 2 * p.n_kv * p.n_slots * 128)[side * p.n_slots + slot] = scale;
    *reinterpret_cast<uint32_t *>(row + kv_swizzled(128, slot, 4 * sub)) = e4m3_of(head.low * by);
    *reinterpret_cast<uint32_t *>(row + kv_swizzled(128, slot, 64 + 4 * sub)) = e4m3_of(head.high * by);
}

template <int ROWS, bool NORMED>
__global__ void __launch_bounds__(PAIR_WARPS * 32, 3) qkv_prep_pairs(const __grid_constant__ pair_heads p) {
    int lane = threadIdx.x % 32, sub = lane % 16, head = 2 * blockIdx.y + lane / 16, step = PAIR_WARPS * gridDim.x;
    bool is_q = 2 * blockIdx.y < p.n_q, is_v = 2 * blockIdx.y >= p.n_q + p.n_kv, turns = !is_v && p.cos_sin;
    int col = head * 128 + 4 * sub;
    const float *norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    half_head scale, bias = {}, weight;
    scale.load(p.x.col_scale + col);
    if (p.x.bias)
        bias.load(p.x.bias + col);
    if (NORMED && norm)
        weight.load(norm + 4 * sub);
    // In this order: who starts behind this node may rely on all before it being done (attention_decode.cu).
    wait_for_previous();
    let_next_start();
    int n_tokens = load_late(p.plan.counts);
    for (int t = blockIdx.x * PAIR_WARPS + threadIdx.x / 32; t < p.n_rows; t += ROWS * step) {
        uint2 low[ROWS], high[ROWS];
        half_head angles[ROWS];
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
            low[k] = *reinterpret_cast<const uint2 *>(from);
            high[k] = *reinterpret_cast<const uint2 *>(from + 64);
            factor[k] = p.x.row_scale[row];
            if (turns)
                angles[k].load(p.cos_sin + row * 128 + 4 * sub);
        }
        if (finds && mine < n_tokens) {
            slot = position & (p.n_slots - 1);
            block = p.plan.block_table[p.cache.group][(int64_t)seq * p.plan.table_width[p.cache.group] + (position >> p.log_slots)];
        }
        __syncwarp(); // else the assembler waits for the first of these before it asks for the others
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            int row = t + k * step;
            if (row >= n_tokens)
                break;
            float by = factor[k];
            half_head x = {floats_of<ELEMENT_F16>(low[k]) * (scale.low * by) + bias.low,
                           floats_of<ELEMENT_F16>(high[k]) * (scale.high * by) + bias.high};
            if (NORMED && norm) {
                float n = rsqrtf(half_sum(dot(x.low, x.low) + dot(x.high, x.high)) * (1.0f / 128) + p.eps);
                x = {x.low * ((weight.low + p.plus) * n), x.high * ((weight.high + p.plus) * n)};
            }
            if (turns)
                x.rotate(angles[k]);
            if (is_q) {
                __half *to = static_cast<__half *>(p.q.at) + row * p.q.stride + col;
                *reinterpret_cast<uint2 *>(to) = stored_of<ELEMENT_F16>(x.low);
                *reinterpret_cast<uint2 *>(to + 64) = stored_of<ELEMENT_F16>(x.high);
            } else {
                int of = __shfl_sync(0xffffffffu, block, k), at = __shfl_sync(0xffffffffu, slot, k);
                store_pair_cached(p, of, at, head - p.n_q, sub, x);
            }
        }
    }
}

bool norm_is_plain(const dweight &w) { return !w.at || (w.element == ELEMENT_F32 && (uintptr_t)w.at % 16 == 0); }

/* Whether they do that. */
bool heads_pair_up(const dqkv &a, const drope *rope, const dmat &x, const dmat &q, const dweight &q_norm, const dweight &k_norm,
                   const dcache &cache) {
    bool sizes = a.head_dim == 128 && a.v_head_dim == 128 && a.n_heads % 2 == 0 && a.n_kv_heads % 2 == 0;
    bool usual = !a.k_absent && !a.v_from_k && !a.v_norm && (!rope || (rope->dim == 128 && rope->pairing == 0));
    bool elements = x.col_scale && x.element == ELEMENT_F16 && q.element == ELEMENT_F16 && cache.element == ELEMENT_E4M3;
    bool lie = x.stride % 4 == 0 && q.stride % 4 == 0 && (uintptr_t)x.at % 8 == 0 && (uintptr_t)q.at % 8 == 0 &&
               (uintptr_t)x.col_scale % 16 == 0 && (uintptr_t)x.bias % 16 == 0 && norm_is_plain(q_norm) && norm_is_plain(k_norm);
    return sizes && usual && elements && lie;
}

template <bool NORMED> void start_pairs(const launch *l, const pair_heads &p) {
    int n_pairs = p.n_q / 2 + p.n_kv, abreast = n_pairs < PAIR_PLACES ? PAIR_PLACES / n_pairs : 1;
    auto blocks = [&](int rows) { return (p.n_rows + PAIR_WARPS * rows - 1) / (PAIR_WARPS * rows); };
    constexpr int MOST = NORMED ? 2 : 3; // rows of a warp at once, by its registers
    auto start = [&](auto kernel, int rows) {
        dim3 grid(blocks(rows) < abreast ? blocks(rows) : abreast, n_pairs);
        launch_node(kernel, grid, PAIR_WARPS * 32, 0, l->stream, p);
    };
    if (blocks(1) <= abreast)
        start(qkv_prep_pairs<1, NORMED>, 1);
    else if (blocks(2) <= abreast)
        start(qkv_prep_pairs<2, NORMED>, 2);
    else
        start(qkv_prep_pairs<MOST, NORMED>, MOST);
}

void start_pair_heads(const launch *l, const dqkv &a, const drope *rope, const dmat &x, const dweight &q_norm, const dweight &k_norm,
                      const dcache &cache, const dmat &q) {
    pair_heads p = {l->plan,
                    rope ? rope->cos_sin : nullptr,
                    x,
                    q,
                    cache,
                    static_cast<const float *>(q_norm.at),
                    static_cast<const float *>(k_norm.at),
                    a.eps,
                    a.plus_one ? 1.0f : 0.0f,
                    a.n_heads,
                    a.n_kv_heads,
                    l->block_size,
                    __builtin_ctz((unsigned)l->block_size),
                    l->n_tokens};
    if (q_norm.at || k_norm.at)
        start_pairs<true>(l, p);
    else
        start_pairs<false>(l, p);
}

} // namespace
