/* wide_tile.cuh - what a warpgroup of wide.cu does with a tile: products of all stages, sums exchanged with the blocks that have other terms,
 * and what becomes of them.
 *
 * Sums are laid out as wgmma.cuh says: a lane has columns 2t and 2t + 1 of every eight for tokens g and g + 8 of the warp's 16. Values leave
 * by way of the warp's lines in shared memory, 16 tokens by 64 bytes, from where 16 bytes a lane are written. */
#pragma once

#include "backend/cuda/wide_feed.cuh"

namespace {

// ---- the end of a tile ----------------------------------------------------------------------------------------------

static __device__ void copy_four(uint32_t to, const float *from, bool there) { // zeros if not
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
static __device__ float2 load_pair(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ void store_word(uint32_t at, uint32_t v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
static __device__ void store_pair(uint32_t at, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
static __device__ uint4 load_sixteen(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

/* Of a float32, or pair by pair; what is not a number stays so. */
template <element E> static __device__ uint32_t larger_sizes(uint32_t sizes, uint32_t v) {
    uint32_t larger;
    if (E == ELEMENT_F32)
        return max(sizes, v & 0x7fffffffu);
    if (E == ELEMENT_BF16)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    else
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    return larger;
}

/* Two channels of the lane in a piece of eight; what is not finite becomes NaN in e4m3, which has no infinity. */
static __device__ void store_channels(uint32_t piece, element e, float low, float high) {
    int t = threadIdx.x % 4;
    if (e == ELEMENT_E4M3) {
        const float LARGEST = 3.4e38f, NONE = __int_as_float(0x7fffffff);
        low = fabsf(low) <= LARGEST ? low : NONE, high = fabsf(high) <= LARGEST ? high : NONE;
        unsigned short pair = __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(piece + t * 2), "h"(pair) : "memory");
    } else {
        store_word(piece + t * 4, e == ELEMENT_F16 ? to_pair<false>(low, high) : to_pair<true>(low, high));
    }
}

/* Where a token's keys and values go. block NULL: it is padding, of which nothing is written. */
struct token_place {
    char *block;
    int slot;
};
static __device__ token_place place_of_token(const wide_args &a, int t) {
    const dheads &h = a.heads;
    if (t >= a.n_tokens || t >= step_tokens(h.plan))
        return {nullptr, 0};
    int position = h.plan.position[t];
    return {kv_block(h.plan, h.cache, h.n_slots, h.plan.seq_of_row[t], position), position & (h.n_slots - 1)};
}

/* gate * up / (1 + e^-(gate * (bend + twist * gate^2))): SiLU, and GELU by tanh. bend and twist count in powers of two. */
static __device__ float gated(const wide_args &a, float gate, float up) {
    float power = exp2_fast(-gate * (a.bend + a.twist * gate * gate));
    return __fdividef(gate * up, 1.0f + power);
}

template <int N, int PARTS, variant V> struct consumer {
    static constexpr int EIGHTS = N / 8 * PARTS, HALVES = halves_of(V), OCTETS = EIGHTS / HALVES; // of W's rows; of y's columns
    static constexpr int STEPS = PIECE_BYTES / E4M3_K;

    const wide_args &a;
    const shared_places &m;
    int rank, stage_bytes, group, warp, lane; // rank: in the cluster; warp: of the group
    float sums[PARTS][N / 2];
    float x_scale[2];
    token_place places[2]; // of heads, of the lane's two tokens

    __device__ void sync_group() const { threads_sync(1 + group, WARPGROUP); }

    /* Scales and biases of the tile's rows: [scale, bias][half][octets][8]. */
    __device__ uint32_t scales() const { return m.scales + group * 2 * EIGHTS * 32; }
    __device__ void fetch_scales(int row_tile) const {
        sync_group(); // nobody reads those of the tile before
        int n = a.octets * 8;
        for (int i = threadIdx.x % WARPGROUP; i < n * HALVES; i += WARPGROUP) {
            int half = i >= n, unit = row_tile * n + i - half * n;
            bool there = unit < a.n_units;
            int row = there ? row_of(a, V, unit, half) : 0;
            copy_four(scales() + i * 4, a.w_scale + row, there);
            copy_four(scales() + (i + EIGHTS * 8) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }

    /* The value of sums of the eighth of W's rows: two columns of the lane's first token, then of its second. */
    __device__ float4 value(int octet, int half) const {
        constexpr int E = N / 8;
        int i = octet * HALVES + half;
        const float *d = &sums[i / E][i % E * 4];
        uint32_t at = scales() + ((half * a.octets + octet) * 8 + lane % 4 * 2) * 4;
        float2 s = load_pair(at), b = load_pair(at + EIGHTS * 8 * 4);
        return {fmaf(d[0], s.x * x_scale[0], b.x), fmaf(d[1], s.y * x_scale[0], b.y), fmaf(d[2], s.x * x_scale[1], b.x),
                fmaf(d[3], s.y * x_scale[1], b.y)};
    }
    __device__ float4 column_pairs(int octet) const {
        float4 v = value(octet, 0);
        if constexpr (V == GATED) {
            float4 u = value(octet, 1);
            return {gated(a, v.x, u.x), gated(a, v.y, u.y), gated(a, v.z, u.z), gated(a, v.w, u.w)};
        }
        return v;
    }

    /* Blocks that split a tile send each other the sums of the columns that are not theirs: [sender][eighth][thread]. */
    __device__ int first_octet(int rank) const { return a.octets * rank / a.split; }
    __device__ void exchange() {
        constexpr int E = N / 8;
        int most = (a.octets + a.split - 1) / a.split * HALVES;
        uint32_t mine = m.ring + threadIdx.x * 16;
        cluster_are_here(); // their barriers are ready
        if (lane < a.split)
            barrier_arrive_at_rank(address_at_rank(m.all_read, lane));
        barrier_wait(m.all_read, 0); // nobody reads a ring any more
#pragma unroll 1
        for (int to = 0; to < a.split; to++) {
            if (to == rank)
                continue;
            int begin = first_octet(to) * HALVES, end = first_octet(to + 1) * HALVES, sender = rank - (rank > to);
            uint32_t there = address_at_rank(mine + sender * most * CONSUMERS * 16, to), told = address_at_rank(m.all_sums, to);
#pragma unroll
            for (int i = 0; i < EIGHTS; i++)
                if (i >= begin && i < end) {
                    const float *d = &sums[i / E][i % E * 4];
                    store_at_rank(there, {d[0], d[1], d[2], d[3]}, told);
                    there += CONSUMERS * 16;
                }
        }
        barrier_wait(m.all_sums, 0);
        int begin = first_octet(rank) * HALVES, end = first_octet(rank + 1) * HALVES;
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
            if (i >= begin && i < end) {
                float *d = &sums[i / E][i % E * 4];
                float4 own = {d[0], d[1], d[2], d[3]}, sum = {0, 0, 0, 0};
#pragma unroll 1
                for (uint32_t k = 0, from = mine; k < (uint32_t)a.split; k++) {
                    float4 v = own;
                    if (k != (uint32_t)rank) {
                        v = load_four(from);
                        from += most * CONSUMERS * 16;
                    }
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
                mine += CONSUMERS * 16;
                d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
            }
    }

    /* A pair of sizes, or a float32, for each of the lane's two tokens. */
    template <element E> __device__ void tell_most(uint32_t (&most)[2], int first_token) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (E != ELEMENT_F32)
                most[i] = larger_sizes<E>(most[i], most[i] >> 16);
            most[i] = larger_sizes<E>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            most[i] = larger_sizes<E>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
            int token = first_token + lane / 4 + 8 * i;
            uint32_t size = E == ELEMENT_F32   ? most[i]
                            : E == ELEMENT_F16 ? __float_as_uint(__half2float(__ushort_as_half((unsigned short)most[i])))
                                               : most[i] << 16;
            if (lane % 4 == 0 && token < a.n_tokens)
                atomicMax(a.most + token, size);
        }
    }

    template <element E> __device__ void finish(int row_tile, int token_tile) {
        constexpr int SIZE = E == ELEMENT_F32 ? 4 : 2, AT_ONCE = LINE / (8 * SIZE), PIECES = 8 * SIZE / 16; // octets; 16 bytes of an octet
        int begin = first_octet(rank), end = first_octet(rank + 1), first_token = token_tile * TOKENS + group * GROUP_TOKENS + warp * 16;
        uint32_t staging = m.staging + (group * 4 + warp) * STAGING, to = staging + lane / 4 * PITCH + lane % 4 * 2 * SIZE;
        uint32_t most[2] = {0, 0}; // of the lane's two tokens; pairs
#pragma unroll
        for (int base = 0; base < OCTETS; base += AT_ONCE) {
            if (base >= end || base + AT_ONCE <= begin)
                continue;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (base + k < OCTETS) {
                    float4 v = column_pairs(base + k);
                    bool mine = base + k >= begin && base + k < end; // columns beyond the last are zeros
                    uint32_t first[2] = {__float_as_uint(v.x), __float_as_uint(v.y)},
                             second[2] = {__float_as_uint(v.z), __float_as_uint(v.w)};
                    if (E == ELEMENT_F32) {
                        store_pair(to + k * 32, {v.x, v.y});
                        store_pair(to + k * 32 + 8 * PITCH, {v.z, v.w});
                    } else {
                        first[0] = first[1] = to_pair<E == ELEMENT_BF16>(v.x, v.y);
                        second[0] = second[1] = to_pair<E == ELEMENT_BF16>(v.z, v.w);
                        store_word(to + k * 16, first[0]);
                        store_word(to + k * 16 + 8 * PITCH, second[0]);
                    }
#pragma unroll
                    for (int i = 0; i < (E == ELEMENT_F32 ? 2 : 1); i++)
                        if (mine) {
                            most[0] = larger_sizes<E>(most[0], first[i]);
                            most[1] = larger_sizes<E>(most[1], second[i]);
                        }
                }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int token = i * 8 + lane / 4, piece = lane % 4, octet = base + piece / PIECES, column = (row_tile * a.octets + octet) * 8;
                if (octet >= begin && octet < end && column < a.n_units && first_token + token < a.n_tokens) {
                    uint4 v = load_sixteen(staging + token * PITCH + piece * 16);
                    int64_t at = (first_token + token) * a.y_stride + column;
                    *reinterpret_cast<uint4 *>(static_cast<char *>(a.y) + at * SIZE + piece % PIECES * 16) = v;
                }
            }
            __syncwarp();
        }
        if (a.most)
            tell_most<E>(most, first_token);
    }

    /* Sums of an octet of pairs: both halves turned by the angles of the lane's tokens, into pieces 0 and 1 of the warp's lines. */
    __device__ void turn_octet(int octet, int unit, int first_token, uint32_t to) const {
        const dheads &h = a.heads;
        int apart = h.head_dim / 2, head = unit / apart, channel = unit - head * apart + lane % 4 * 2;
        bool turns = head < h.n_heads + h.n_kv_heads;
        element e = head < h.n_heads ? a.y_element : h.cache.element;
        float by = head >= h.n_heads && kv_has_scales(e) ? 1.0f / kv_scale(e, h.bound[head - h.n_heads]) : 1.0f;
        float4 v = value(octet, 0), u = value(octet, 1);
        float low[2][2] = {{v.x, v.y}, {v.z, v.w}}, high[2][2] = {{u.x, u.y}, {u.z, u.w}};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 cosine = {1, 1}, sine = {0, 0};
            if (turns) {
                const float *angle = h.cos_sin + (int64_t)min(first_token + lane / 4 + 8 * i, a.n_tokens - 1) * h.rope_dim + channel;
                cosine = *reinterpret_cast<const float2 *>(angle), sine = *reinterpret_cast<const float2 *>(angle + apart);
            }
            uint32_t at = to + 8 * i * PITCH;
            store_channels(at, e, (low[i][0] * cosine.x - high[i][0] * sine.x) * by, (low[i][1] * cosine.y - high[i][1] * sine.y) * by);
            store_channels(at + 16, e, (high[i][0] * cosine.x + low[i][0] * sine.x) * by,
                           (high[i][1] * cosine.y + low[i][1] * sine.y) * by);
        }
    }

    /* Eight channels of a head from the warp's lines to where they belong. */
    __device__ void put_channels(int unit, int half, int token, token_place place, uint32_t from) const {
        const dheads &h = a.heads;
        int apart = h.head_dim / 2, head = unit / apart, channel = unit - head * apart + half * apart, kv = head - h.n_heads;
        if (!place.block || token >= a.n_tokens)
            return;
        if (kv < 0) {
            *reinterpret_cast<uint4 *>(static_cast<char *>(a.y) + (token * a.y_stride + head * h.head_dim + channel) * 2) =
                load_sixteen(from);
            return;
        }
        kv_shape s = {h.n_kv_heads, h.head_dim, h.head_dim, h.n_slots, h.cache.element};
        bool is_v = kv >= h.n_kv_heads;
        int k = is_v ? kv - h.n_kv_heads : kv;
        char *at = place.block + (is_v ? s.value(k, place.slot, channel) : s.key(k, place.slot, channel));
        uint4 v = load_sixteen(from);
        if (!kv_has_scales(s.e)) {
            *reinterpret_cast<uint4 *>(at) = v;
            return;
        }
        *reinterpret_cast<uint2 *>(at) = {v.x, v.y};
        if (channel == 0)
            *reinterpret_cast<float *>(place.block + s.scale(is_v, k, place.slot)) = kv_scale(s.e, h.bound[kv]);
    }

    /* Queries to y, keys and values to the cache. A line has two octets of pairs. */
    __device__ void finish_heads(int row_tile, int token_tile) {
        int begin = first_octet(rank), end = min(first_octet(rank + 1), a.n_units / 8 - row_tile * a.octets);
        int first_token = token_tile * TOKENS + group * GROUP_TOKENS + warp * 16, first_unit = row_tile * a.octets * 8;
        uint32_t staging = m.staging + (group * 4 + warp) * STAGING, to = staging + lane / 4 * PITCH;
#pragma unroll
        for (int base = 0; base < OCTETS; base += 2) {
            if (base >= end || base + 2 <= begin)
                continue;
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (base + k < OCTETS && base + k >= begin && base + k < end)
                    turn_octet(base + k, first_unit + (base + k) * 8, first_token, to + k * 32);
            __syncwarp();
            int octet = base + lane % 4 / 2;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (octet >= begin && octet < end)
                    put_channels(first_unit + octet * 8, lane % 2, first_token + lane / 4 + 8 * i, places[i],
                                 staging + (lane / 4 + 8 * i) * PITCH + lane % 4 * 16);
            __syncwarp();
        }
    }

    __device__ void release(int slot) const {
        if (slot >= 0 && lane == 0)
            barrier_arrive(m.empty + slot * 8);
    }

    /* Of the stage, as the tensor core is told where it lies: of W, or behind it of tokens. */
    __device__ uint64_t operand(int slot, int offset) const {
        uint64_t first = operand_rows(m.ring);
        uint32_t low = of_warp((uint32_t)first + (slot * stage_bytes + offset >> 4));
        return (first & 0xffffffff00000000u) | low;
    }

    /* A stage's products are begun, and those of the stage before have ended. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add) {
        uint64_t w = operand(at.slot, 0), x = operand(at.slot, stage_bytes - X_BYTES + group * GROUP_TOKENS * PIECE_BYTES);
        barrier_wait(m.full + at.slot * 8, at.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            e4m3_product<N>::multiply(sums[0], x + k * E4M3_K_STEP, w + k * E4M3_K_STEP, add || k > 0);
        end_stage(at, last);
    }
    /* With tokens in registers, which must not be those of the stage before. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add, uint32_t (&tokens)[STEPS][4]) {
        uint64_t w = operand(at.slot, 0);
        uint32_t row = m.ring + (at.slot + 1) * stage_bytes - X_BYTES + (group * GROUP_TOKENS + warp * 16 + lane % 16) * PIECE_BYTES;
        barrier_wait(m.full + at.slot * 8, at.parity);
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            load_matrices(tokens[k], row + ((2 * k + lane / 16) ^ lane % 8) * 16);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                e4m3_multiply(sums[part], tokens[k], w + k * E4M3_K_STEP + part * (N * PIECE_BYTES >> 4), add || k > 0);
        end_stage(at, last);
    }
    __device__ void end_stage(ring_place &at, int &last) const {
        products_commit();
        products_wait<1>();
        release(last);
        last = at.slot;
        at.step();
    }

    /* For a group without tokens. */
    __device__ void pass_over(ring_place &at, int n_pieces) const {
        for (int piece = 0; piece < n_pieces; piece++) {
            barrier_wait(m.full + at.slot * 8, at.parity);
            release(at.slot);
            at.step();
        }
    }

    /* All pieces of the tile. */
    __device__ void multiply(ring_place &at, int n_pieces) {
        int last = -1;
        if constexpr (PARTS == 1) {
            for (int piece = 0; piece < n_pieces; piece++)
                multiply_stage(at, last, piece > 0);
        } else {
            uint32_t even[STEPS][4], odd[STEPS][4];
            int piece = 0;
            for (; piece + 1 < n_pieces; piece += 2) {
                multiply_stage(at, last, piece > 0, even);
                multiply_stage(at, last, true, odd);
            }
            if (piece < n_pieces)
                multiply_stage(at, last, piece > 0, even);
        }
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            registers_settle(sums[part]);
        release(last);
    }

    __device__ void run(int n_pieces) {
        ring_place at = {0, a.n_stages, 0};
        bool first = true;
        for (tile_walk walk(a); walk.there(); walk.next()) {
            int row_tile = walk.row_tile(), token_tile = walk.token_tile();
            fetch_scales(row_tile);
            if (first)
                wait_for_previous();
            first = false;
            int token = token_tile * TOKENS + group * GROUP_TOKENS + warp * 16 + lane / 4;
            x_scale[0] = token < a.n_tokens ? a.x_scale[token] : 0;
            x_scale[1] = token + 8 < a.n_tokens ? a.x_scale[token + 8] : 0;
            if constexpr (V == HEADS)
                for (int i = 0; i < 2; i++)
                    places[i] = place_of_token(a, token + 8 * i);
            bool has_tokens = token_tile * TOKENS + group * GROUP_TOKENS < a.n_tokens;
            multiply(at, has_tokens ? n_pieces : 0);
            pass_over(at, has_tokens ? 0 : n_pieces);
            if constexpr (PARTS == 1)
                if (a.split > 1)
                    exchange();
            asm volatile("cp.async.wait_all;" ::: "memory");
            sync_group(); // scales are there
            if constexpr (V == HEADS)
                finish_heads(row_tile, token_tile);
            else if (V == PLAIN && a.y_element == ELEMENT_F32)
                finish<ELEMENT_F32>(row_tile, token_tile);
            else if (a.y_element == ELEMENT_F16)
                finish<ELEMENT_F16>(row_tile, token_tile);
            else
                finish<ELEMENT_BF16>(row_tile, token_tile);
        }
        if (first)
            wait_for_previous();
    }
};

} // namespace
