/* wide_tile.cuh - what a warpgroup of wide.cu does with a tile: products of all stages, and what becomes of the sums.
 *
 * Sums are laid out as wgmma.cuh says: a lane has columns 2t and 2t + 1 of every eight for tokens g and g + 8 of the warp's 16, here of both
 * parts of 64 tokens. Values leave by way of the warp's lines in shared memory, 16 tokens by 64 bytes, from where 16 bytes a lane are
 * written. */
#pragma once

#include "backend/cuda/mma.cuh"
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

/* Of pairs of the element, one by one; what is not a number stays so. */
template <bool BF16> static __device__ uint32_t larger_sizes(uint32_t sizes, uint32_t v) {
    uint32_t larger;
    if (BF16)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    else
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    return larger;
}

/* Eight of the element, times a power of two, as e4m3. */
template <bool BF16> static __device__ uint2 to_e4m3(uint4 eight, float factor) {
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i] = e4m3_of_scaled_pair<BF16>(pairs[i], factor);
    return make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
}

/* gate * up / (1 + e^-(gate * (bend + twist * gate^2))): SiLU, and GELU by tanh. bend and twist count in powers of two. */
static __device__ float gated(const wide_args &a, float gate, float up) {
    float power = exp2_fast(-gate * (a.bend + a.twist * gate * gate));
    return __fdividef(gate * up, 1.0f + power);
}

/* N: rows of W that a product has: gates, then as many that they let through. TOGETHER: each warpgroup has a part of every tile's tokens; or all
 * of every other tile. PLAIN: SiLU and no biases, with an end of fewer instructions (finish_plain). */
template <int N, bool TOGETHER, bool PLAIN> struct consumer {
    static constexpr int MINE = TOGETHER ? 1 : PARTS;                                       // parts of a tile
    static constexpr int EIGHTS = N / 8, OCTETS = EIGHTS / 2, STEPS = PIECE_BYTES / E4M3_K; // of W's rows; of y's columns
    static constexpr int TURN = 1 + GROUPS; // the first of the barriers at which warpgroups wait for their turn

    const wide_args &a;
    const shared_places &m;
    int rank, stage_bytes, group, warp, lane; // rank: in the cluster; warp: of the group
    uint32_t empty_there;                     // of the block whom this lane tells that a slot is free; 0: nobody
    float sums[MINE][N / 2];
    float x_scale[MINE][2];

    __device__ void sync_group() const { threads_sync(1 + group, WARPGROUP); }

    // ---- products ---------------------------------------------------------------------------------------------------

    /* A lane of the first warp for each block that copies to this one: a product of the tensor core ends for all four warps. */
    __device__ uint32_t told() const {
        if (warp > 0 || lane >= a.sharers)
            return 0;
        return a.sharers > 1 ? address_at_rank(m.empty, lane) : m.empty;
    }
    __device__ void release(int slot) const {
        if (slot >= 0 && empty_there)
            barrier_arrive_at_rank(empty_there + slot * 8);
    }

    /* Of the stage, as the tensor core is told where it lies: of W, or behind it of tokens. */
    __device__ uint64_t operand(int slot, int offset) const {
        uint64_t first = operand_rows(m.ring);
        uint32_t low = of_warp((uint32_t)first + (slot * stage_bytes + offset >> 4));
        return (first & 0xffffffff00000000u) | low;
    }

    /* A stage's products are begun, and those of the stage before have ended. */
    template <int SOME> __device__ void multiply_stage(ring_place &at, int &last, bool add) {
        constexpr int APART = PART_TOKENS * PIECE_BYTES;
        uint64_t w = operand(at.slot, 0), x = operand(at.slot, stage_bytes - X_BYTES + (TOGETHER ? group * APART : 0));
        barrier_wait(m.full + at.slot * 8, at.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int part = 0; part < SOME; part++)
                e4m3_product<N>::multiply(sums[part], x + k * E4M3_K_STEP + part * (APART >> 4), w + k * E4M3_K_STEP, add || k > 0);
        products_commit();
        products_wait<1>();
        release(last);
        last = at.slot;
        at.step();
    }

    /* All pieces of the tile, of one or both parts; behind the last the other warpgroup may begin its own. A warpgroup must not wait for
     * a stage before those before it have come: a barrier tells one round of the ring from the next, no more. */
    template <int SOME> __device__ void multiply(ring_place &at, bool more) {
        int last = -1;
        if (PLAIN) { // their registers are free until here
#pragma unroll
            for (int part = 0; part < SOME; part++)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    sums[part][i] = 0;
        }
        for (int piece = 0; piece < a.n_pieces; piece++)
            multiply_stage<SOME>(at, last, piece > 0);
        if (more && !TOGETHER)
            threads_arrive(TURN + 1 - group, CONSUMERS);
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < SOME; part++)
            registers_settle(sums[part]);
        release(last);
    }

    // ---- the end of a tile ------------------------------------------------------------------------------------------

    /* Scales and biases of the tile's rows: [scale, bias][gate, up][octets][8]. */
    __device__ uint32_t scales() const { return m.scales + group * 2 * EIGHTS * 32; }
    __device__ void fetch_scales(int row_tile) const {
        sync_group(); // nobody reads those of the tile before
        const int n = OCTETS * 8;
        for (int i = threadIdx.x % WARPGROUP; i < n * 2; i += WARPGROUP) {
            int half = i >= n, column = row_tile * n + i - half * n;
            bool there = column < a.n_columns;
            int row = there ? column + half * a.n_columns : 0;
            copy_four(scales() + i * 4, a.w_scale + row, there);
            copy_four(scales() + (i + EIGHTS * 8) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int first_token) {
#pragma unroll
        for (int i = 0; i < 2 * MINE; i++) {
            int token = first_token + i / 2 * PART_TOKENS + i % 2 * 8 + lane / 4;
            x_scale[i / 2][i % 2] = token < a.n_tokens ? a.x_scale[token] : 0;
        }
    }

    /* Two columns of the lane's first token, then of its second: of the gates, or of what they let through. */
    __device__ float4 value(int part, int octet, int half) const {
        const float *d = &sums[part][(half * OCTETS + octet) * 4], *by = x_scale[part];
        uint32_t at = scales() + ((half * OCTETS + octet) * 8 + lane % 4 * 2) * 4;
        float2 s = load_pair(at), b = load_pair(at + EIGHTS * 8 * 4);
        return {fmaf(d[0], s.x * by[0], b.x), fmaf(d[1], s.y * by[0], b.y), fmaf(d[2], s.x * by[1], b.x), fmaf(d[3], s.y * by[1], b.y)};
    }
    __device__ float4 column_pairs(int part, int octet) const {
        float4 v = value(part, octet, 0), u = value(part, octet, 1);
        return {gated(a, v.x, u.x), gated(a, v.y, u.y), gated(a, v.z, u.z), gated(a, v.w, u.w)};
    }

    /* most: pairs of sizes of the lane's two tokens. */
    template <bool BF16> __device__ void tell_most(uint32_t (&most)[2], int first_token) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[i] = larger_sizes<BF16>(most[i], most[i] >> 16);
            most[i] = larger_sizes<BF16>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            most[i] = larger_sizes<BF16>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
            int token = first_token + lane / 4 + 8 * i;
            uint32_t size = BF16 ? most[i] << 16 : __float_as_uint(__half2float(__ushort_as_half((unsigned short)most[i])));
            if (lane % 4 == 0 && token < a.n_tokens)
                atomicMax(a.most + token, size);
        }
    }

    template <bool BF16> __device__ void finish(int part, int row_tile, int first_token) {
        constexpr int AT_ONCE = LINE / 16; // octets
        uint32_t staging = m.staging + (group * 4 + warp) * STAGING, to = staging + lane / 4 * PITCH + lane % 4 * 4;
        uint32_t most[2] = {0, 0};
#pragma unroll
        for (int base = 0; base < OCTETS; base += AT_ONCE) {
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (base + k < OCTETS) {
                    float4 v = column_pairs(part, base + k);
                    uint32_t first = to_pair<BF16>(v.x, v.y), second = to_pair<BF16>(v.z, v.w);
                    store_shared(to + k * 16, first);
                    store_shared(to + k * 16 + 8 * PITCH, second);
                    most[0] = larger_sizes<BF16>(most[0], first); // columns beyond the last are zeros
                    most[1] = larger_sizes<BF16>(most[1], second);
                }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int token = i * 8 + lane / 4, octet = base + lane % 4, column = (row_tile * OCTETS + octet) * 8;
                if (octet < OCTETS && column < a.n_columns && first_token + token < a.n_tokens) {
                    int64_t at = (first_token + token) * a.y_stride + column, twin_at = (first_token + token) * a.twin_stride + column;
                    uint4 eight = load_shared_16(staging + token * PITCH + lane % 4 * 16);
                    *reinterpret_cast<uint4 *>(static_cast<char *>(a.y) + at * 2) = eight;
                    if (a.twin)
                        *reinterpret_cast<uint2 *>(a.twin + twin_at) = to_e4m3<BF16>(eight, a.twin_factor);
                }
            }
            __syncwarp();
        }
        if (a.most)
            tell_most<BF16>(most, first_token);
    }

    /* Words of four values of SiLU: two columns of the lane's first token, then of its second. The scale of a token is a factor of gate and up, so
     * what is linear in them gets its square. Two gates share a reciprocal, as reciprocals and powers are what is waited for; a gate that 2^60
     * closes is closed. */
    template <bool BF16> __device__ void plain_words(uint32_t (&words)[2], int part, int octet) const {
        const float *g = &sums[part][octet * 4], *u = &sums[part][(OCTETS + octet) * 4], *by = x_scale[part];
        uint32_t at = scales() + (octet * 8 + lane % 4 * 2) * 4;
        float2 gate_by = load_pair(at), up_by = load_pair(at + OCTETS * 32);
        float v[4], closes[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float gate = g[i] * (i % 2 ? gate_by.y : gate_by.x), up = u[i] * (i % 2 ? up_by.y : up_by.x);
            closes[i] = 1.0f + exp2_fast(fminf(gate * (by[i / 2] * -a.bend), 60.0f));
            v[i] = gate * up * (by[i / 2] * by[i / 2]);
        }
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            float both = reciprocal_fast(closes[i] * closes[i + 1]);
            words[i / 2] = to_pair<BF16>(v[i] * (both * closes[i + 1]), v[i + 1] * (both * closes[i]));
        }
    }
    /* As finish, with whole matrices to the warp's lines. */
    template <bool BF16> __device__ void finish_plain(int part, int row_tile, int first_token) {
        constexpr int AT_ONCE = LINE / 16; // octets
        uint32_t staging = m.staging + (group * 4 + warp) * STAGING, to = staging + lane % 16 * PITCH + lane / 16 * 16;
        uint32_t from = staging + lane / 4 * PITCH + lane % 4 * 16, most[2] = {0, 0};
        int first = first_token + lane / 4, column = (row_tile * OCTETS + lane % 4) * 8, n_columns = a.n_columns - column;
        char *y = static_cast<char *>(a.y) + (first * a.y_stride + column) * 2;
        uint8_t *twin = a.twin + first * a.twin_stride + column;
#pragma unroll
        for (int base = 0; base < OCTETS; base += AT_ONCE) {
            uint32_t words[AT_ONCE][2] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (base + k < OCTETS) {
                    plain_words<BF16>(words[k], part, base + k);
                    most[0] = larger_sizes<BF16>(most[0], words[k][0]); // columns beyond the last are zeros
                    most[1] = larger_sizes<BF16>(most[1], words[k][1]);
                }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k += 2)
                if (base + k < OCTETS)
                    store_matrices(to + k * 16, words[k][0], words[k][1], words[k + 1][0], words[k + 1][1]);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (base + lane % 4 < OCTETS && base * 8 < n_columns && first + i * 8 < a.n_tokens) {
                    uint4 eight = load_shared_16(from + i * 8 * PITCH);
                    *reinterpret_cast<uint4 *>(y + i * 16 * a.y_stride + base * 16) = eight;
                    if (a.twin)
                        *reinterpret_cast<uint2 *>(twin + i * 8 * a.twin_stride + base * 8) = to_e4m3<BF16>(eight, a.twin_factor);
                }
            __syncwarp();
        }
        if (a.most)
            tell_most<BF16>(most, first_token);
    }
    template <bool BF16> __device__ void finish_parts(int n_parts, int row_tile, int first_token) {
#pragma unroll
        for (int part = 0; part < MINE; part++)
            if (part < n_parts) {
                if (PLAIN)
                    finish_plain<BF16>(part, row_tile, first_token + part * PART_TOKENS);
                else
                    finish<BF16>(part, row_tile, first_token + part * PART_TOKENS);
            }
    }

    // ---- tile after tile -------------------------------------------------------------------------------------------

    __device__ void run() {
        ring_place at = {0, a.n_stages, 0};
        tile_walk walk(a, rank);
        empty_there = told();
        if (group == 1 && !TOGETHER) {
            walk.next();
            at.skip(a.n_pieces);
        }
        for (bool first = true; walk.there(); first = false) {
            int row_tile = walk.row_tile(), token = walk.token_tile() * TOKENS;
            int first_token = token + warp * 16 + (TOGETHER ? group * PART_TOKENS : 0);
            int n_parts = TOGETHER || token + PART_TOKENS >= a.n_tokens ? 1 : PARTS;
            fetch_scales(row_tile);
            if (first)
                wait_for_previous();
            fetch_x_scales(first_token);
            if (!TOGETHER && (!first || group == 1))
                threads_sync(TURN + group, CONSUMERS);
            if (n_parts == MINE)
                multiply<MINE>(at, walk.left() > 1);
            else
                multiply<1>(at, walk.left() > 1);
            asm volatile("cp.async.wait_all;" ::: "memory");
            sync_group(); // scales are there
            if (a.y_element == ELEMENT_F16)
                finish_parts<false>(n_parts, row_tile, first_token);
            else
                finish_parts<true>(n_parts, row_tile, first_token);
            walk.next();
            if (!TOGETHER) {
                walk.next();
                at.skip(a.n_pieces);
            }
        }
        wait_for_previous();
    }
};

} // namespace
