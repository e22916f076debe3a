/* wide_tile.cuh - what a warpgroup of wide.cu does with a tile: products of all stages, and what becomes of the sums.
 *
 * Sums are laid out as wgmma_e4m3_f16.cuh says: a lane has columns 2t and 2t + 1 of every eight, a pair of halves, for tokens g and g + 8 of the
 * warp's 16, here of each part of 64 tokens. */
#pragma once

#include "backend/cuda/gated_end.cuh"
#include "backend/cuda/wide_feed.cuh"

namespace {

// ---- the end of a tile ----------------------------------------------------------------------------------------------

static __device__ float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ float load_float(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
static __device__ void fold_size(uint32_t at, uint32_t size) {
    asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(at), "r"(size) : "memory");
}

/* x/2 + x/2 tanh(y). SiLU has y = x/2. What the hyperbolic tangent is off by, 2^-11 at most, is what half precision makes of x/2. */
static __device__ float gate_by_tanh(float half_x, float y) { return fmaf(half_x, tanh_fast(y), half_x); }

/* Bytes of a warpgroup's scales and biases. */
template <int N, int PARTS> constexpr int SCALES = (2 * N + PARTS * PART_TOKENS) * 4;

/* How a warp's sums become rows: of 16 tokens a line each, gates of so many octets and then what they let through, 16 bytes an octet, swizzled. */
template <int PARTS> constexpr int LINE_OCTETS = PARTS == 2 ? 2 : 4; // of two parts the ring has another stage for it
template <int PARTS> constexpr int LINES = 16 * LINE_OCTETS<PARTS> * 32;

/* N: rows of W that a product has: gates, then as many that they let through. PARTS: of tokens, all of the tile's, or of 1 a part
 * for each warpgroup. PLAIN: SiLU and no biases. */
template <int N, int PARTS, bool PLAIN> struct consumer {
    static constexpr int EIGHTS = N / 8, OCTETS = EIGHTS / 2, STEPS = PIECE_BYTES / E4M3_K; // of W's rows; of y's columns
    static constexpr int ROW_GROUPS = PARTS == 1 ? 1 : GROUPS, TILE_PARTS = PARTS == 1 ? GROUPS : PARTS;
    static constexpr int AT_ONCE = LINE_OCTETS<PARTS>, TIMES = (OCTETS + AT_ONCE - 1) / AT_ONCE;

    const wide_args &a;
    const shared_places &m;
    int rank, group, warp, lane; // rank: in the cluster; warp: of the group
    uint32_t empty_there;        // of the block whom this lane tells that a slot is free; 0: nobody
    uint32_t sums[PARTS][N / 4];

    __device__ void sync_group() const { threads_sync(1 + group, WARPGROUP); }

    // ---- products ---------------------------------------------------------------------------------------------------

    /* A lane of the first warp for each block that copies to this one: a product of the tensor core ends for all four warps. */
    __device__ uint32_t told() const {
        if (warp > 0 || lane >= a.sharers())
            return 0;
        return a.sharers() > 1 ? address_at_rank(m.empty, lane) : m.empty;
    }
    __device__ void release(int slot) const {
        if (slot >= 0 && empty_there)
            barrier_arrive_at_rank(empty_there + slot * 8);
    }

    /* Of the stage, as the tensor core is told where it lies: of W, or behind it of tokens. */
    __device__ uint64_t operand(int slot, int offset) const {
        constexpr int STAGE = ROW_GROUPS * N * PIECE_BYTES + TILE_PARTS * PART_BYTES;
        uint64_t first = operand_rows(m.ring);
        uint32_t low = of_warp((uint32_t)first + (slot * STAGE + offset >> 4));
        return (first & 0xffffffff00000000u) | low;
    }

    /* A stage's products are begun, and those of the stage before have ended. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add) {
        uint64_t w = operand(at.slot, ROW_GROUPS > 1 ? group * N * PIECE_BYTES : 0);
        uint64_t x = operand(at.slot, ROW_GROUPS * N * PIECE_BYTES + (PARTS == 1 ? group * PART_BYTES : 0));
        barrier_wait(m.full + at.slot * 8, at.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                e4m3_half_product<N>::multiply(sums[part], x + k * E4M3_K_STEP + part * (PART_BYTES >> 4), w + k * E4M3_K_STEP,
                                               add || k > 0);
        products_commit();
        products_wait<1>();
        release(last);
        last = at.slot;
        at.step();
    }

    /* All pieces of the tile. */
    __device__ void multiply(ring_place &at) {
        int last = -1;
#pragma unroll
        for (int part = 0; part < PARTS; part++) // their registers are free until here
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                sums[part][i] = 0;
        for (int piece = 0; piece < a.n_pieces; piece++)
            multiply_stage(at, last, piece > 0);
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            registers_settle(sums[part]);
        release(last);
    }

    // ---- the end of a tile ------------------------------------------------------------------------------------------

    /* Of the tile: of W's rows [scale, bias][gate, up][octets][8], then the scales of its tokens. */
    __device__ uint32_t scales() const { return m.scales + group * SCALES<N, PARTS>; }
    __device__ uint32_t x_scales() const { return scales() + 2 * EIGHTS * 32; }
    __device__ void fetch_w_scales(int row_tile) const {
        const int n = OCTETS * 8;
        for (int i = threadIdx.x % WARPGROUP; i < n * 2; i += WARPGROUP) {
            int half = i >= n, column = row_tile * n + i - half * n;
            bool there = column < a.n_columns;
            int row = there ? column + half * a.n_columns : 0;
            copy_four(scales() + i * 4, a.w_scale + row, there);
            copy_four(scales() + (i + EIGHTS * 8) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int token) const {
        for (int i = threadIdx.x % WARPGROUP; i < PARTS * PART_TOKENS; i += WARPGROUP) {
            bool there = token + i < a.n_tokens;
            copy_four(x_scales() + i * 4, a.x_scale + (there ? token + i : 0), there);
        }
    }
    __device__ uint32_t lines() const { return m.lines + (group * 4 + warp) * LINES<PARTS>; }
    __device__ uint32_t sizes() const { return m.sizes + (group * 4 + warp) * 64; } // of 16 tokens, the largest so far
    static __device__ uint32_t line_turn(int token) { return AT_ONCE == 4 ? token & 7 : token >> 1 & 3; }

    /* Some octets of a part to the warp's lines. */
    template <int PART, int TIME> __device__ void to_lines() const {
        constexpr int FIRST = TIME * AT_ONCE, THERE = OCTETS - FIRST < AT_ONCE ? OCTETS - FIRST : AT_ONCE;
        int token = lane % 16;
        uint32_t to = lines() + token * AT_ONCE * 32 + (lane / 16 ^ line_turn(token)) * 16;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < THERE; i += 2) {
                const uint32_t *d = &sums[PART][(half * OCTETS + FIRST + i) * 2];
                bool two = i + 1 < THERE;
                store_matrices(to ^ (half * AT_ONCE + i) * 16, d[0], d[1], two ? d[2] : 0, two ? d[3] : 0);
            }
    }
    /* The which-th of all of them: registers have no numbers at run time. */
    template <int FROM, int TO> __device__ void to_lines(int which) const {
        if constexpr (TO - FROM == 1)
            to_lines<FROM / TIMES, FROM % TIMES>();
        else if (which < (FROM + TO) / 2)
            to_lines<FROM, (FROM + TO) / 2>(which);
        else
            to_lines<(FROM + TO) / 2, TO>(which);
    }

    /* Eight columns of a token from its pairs of gates and of what they let through; scales: of the octet. */
    template <bool BF16> __device__ uint4 gated_octet(uint4 gates, uint4 ups, uint32_t scales, float by) const {
        uint32_t g[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w}, words[4];
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            float4 gate_by = load_four(scales + i * 4), up_by = load_four(scales + OCTETS * 32 + i * 4), gate_bias = {}, up_bias = {};
            if (!PLAIN) {
                gate_bias = load_four(scales + EIGHTS * 32 + i * 4);
                up_bias = load_four(scales + EIGHTS * 32 + OCTETS * 32 + i * 4);
            }
            const float *gs = &gate_by.x, *us = &up_by.x, *gb = &gate_bias.x, *ub = &up_bias.x;
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 gate2 = __half22float2(reinterpret_cast<const __half2 &>(g[(i + k) / 2]));
                float2 up2 = __half22float2(reinterpret_cast<const __half2 &>(u[(i + k) / 2]));
                float gate = k % 2 ? gate2.y : gate2.x, up = k % 2 ? up2.y : up2.x;
                if (PLAIN) {
                    float half = gate * gs[k] * (0.5f * by);
                    v[k] = gate_by_tanh(half, half) * (up * us[k] * by);
                } else {
                    gate = fmaf(gate, gs[k] * by, gb[k]);
                    v[k] = gate_by_tanh(0.5f * gate, gate * (a.bend + a.twist * gate * gate)) * fmaf(up, us[k] * by, ub[k]);
                }
            }
            words[i / 2] = to_pair<BF16>(v[0], v[1]);
            words[i / 2 + 1] = to_pair<BF16>(v[2], v[3]);
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    template <bool BF16> static __device__ uint32_t largest_of(uint4 eight) {
        uint32_t most =
            larger_sizes<BF16>(larger_sizes<BF16>(eight.x & 0x7fff7fffu, eight.y), larger_sizes<BF16>(eight.z & 0x7fff7fffu, eight.w));
        most = larger_sizes<BF16>(most, most >> 16);
        return size_bits<BF16>(most);
    }

    /* What lies in the lines: a lane has an octet of a token at a time, so that 32 or 64 bytes of a token leave together. */
    template <bool BF16> __device__ void from_lines(int part, int time, int row_tile, int first_token) const {
        int octet0 = row_tile * OCTETS + time * AT_ONCE, n_tokens = a.n_tokens - first_token;
        int there = min(min(AT_ONCE, OCTETS - time * AT_ONCE), a.n_columns / 8 - octet0), shift = there > 2 ? 2 : there - 1;
        if (there <= 0)
            return;
        char *y = static_cast<char *>(a.y) + (first_token * a.y_stride + octet0 * 8) * 2;
        uint8_t *twin = a.twin + (first_token * a.twin_stride + octet0 * 8);
        uint32_t of_octets = scales() + time * AT_ONCE * 32, of_tokens = x_scales() + (part * PART_TOKENS + warp * 16) * 4;
#pragma unroll 1
        for (int task = lane; task < 16 << shift; task += 32) {
            int token = task >> shift, octet = task - (token << shift);
            if (octet >= there || token >= n_tokens)
                continue;
            uint32_t from = lines() + token * AT_ONCE * 32 + (octet ^ line_turn(token)) * 16;
            uint4 eight = gated_octet<BF16>(load_shared_16(from), load_shared_16(from ^ AT_ONCE * 16), of_octets + octet * 32,
                                            load_float(of_tokens + token * 4));
            *reinterpret_cast<uint4 *>(y + (token * (int)a.y_stride + octet * 8) * 2) = eight;
            if (a.twin)
                *reinterpret_cast<uint2 *>(twin + token * (int)a.twin_stride + octet * 8) = to_e4m3<BF16>(eight, a.twin_factor);
            if (a.most)
                fold_size(sizes() + token * 4, largest_of<BF16>(eight));
        }
    }
    /* Sizes of the part's 16 tokens of the warp go out, and begin again. */
    __device__ void tell_most(int first_token) const {
        if (lane < 16) {
            uint32_t at = sizes() + lane * 4, size = load_shared(at);
            store_shared(at, 0);
            if (first_token + lane < a.n_tokens)
                atomicMax(a.most + first_token + lane, size);
        }
    }

    /* A loop of few instructions, as they are run once or twice a launch and come from far: in a step a tile's end of 3,400 instructions one
     * after the other took 12,000 cycles more the first time than the next. */
    template <bool BF16> __device__ void finish(int row_tile, int first_token) const {
#pragma unroll 1
        for (int which = 0; which < PARTS * TIMES; which++) {
            int part = which / TIMES, time = which - part * TIMES;
            to_lines<0, PARTS * TIMES>(which);
            __syncwarp();
            from_lines<BF16>(part, time, row_tile, first_token + part * PART_TOKENS);
            __syncwarp();
            if (a.most && time == TIMES - 1) {
                tell_most(first_token + part * PART_TOKENS);
                __syncwarp();
            }
        }
    }

    // ---- tile after tile -------------------------------------------------------------------------------------------

    __device__ void run() {
        ring_place at = {0, a.n_stages, 0};
        empty_there = told();
        bool first = true;
        if (lane < 16)
            store_shared(sizes() + lane * 4, 0);
        for (tile_walk walk(a, rank); walk.there(); walk.next()) {
            int row_tile = ROW_GROUPS > 1 ? walk.row_tile() * GROUPS + group : walk.row_tile();
            int token = (walk.token_tile() * TILE_PARTS + (PARTS == 1 ? group : 0)) * PART_TOKENS;
            sync_group(); // nobody reads scales of the tile before
            fetch_w_scales(row_tile);
            if (first)
                wait_for_previous();
            first = false;
            fetch_x_scales(token);
            multiply(at);
            asm volatile("cp.async.wait_all;" ::: "memory");
            sync_group(); // scales are there
            if (a.y_element == ELEMENT_F16)
                finish<false>(row_tile, token + warp * 16);
            else
                finish<true>(row_tile, token + warp * 16);
        }
        wait_for_previous();
    }
};

} // namespace
