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

static __device__ void load_words(uint32_t (&v)[4], uint32_t at) {
    uint4 four = load_shared_16(at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

/* Bytes of scales and biases: of the rows of W and the tokens of those who share them. */
template <int N, int PARTS> constexpr int SCALES = (PARTS == 1 ? 2 * N + PART_TOKENS : 4 * N + PARTS * PART_TOKENS) * 4;
template <int PARTS> constexpr int SCALE_SETS = PARTS == 1 ? GROUPS : 1;

/* How a warp's sums become rows: of 16 tokens a line each, gates of four octets and then what they let through, 16 bytes an octet, swizzled. */
enum { AT_ONCE = 4, LINE = AT_ONCE * 32, LINES = 16 * LINE };

/* N: rows of W that a product has: gates, then as many that they let through. PARTS: of tokens, all of the tile's, or of 1 a part
 * for each warpgroup. PLAIN: SiLU and no biases.
 *
 * Of PARTS 2 to 4 a warpgroup's product 2f + r is its f-th part of tokens by the r-th N rows of W; of an odd number both warpgroups have the last
 * part, each with N rows of its own. */
template <int N, int PARTS, bool PLAIN> struct consumer {
    static constexpr int EIGHTS = N / 8, OCTETS = EIGHTS / 2, STEPS = PIECE_BYTES / E4M3_K; // of W's rows; of y's columns
    static constexpr int ROW_GROUPS = PARTS == 1 ? 1 : GROUPS, TILE_PARTS = PARTS == 1 ? GROUPS : PARTS, TILE_OCTETS = ROW_GROUPS * OCTETS;
    static constexpr int W_BYTES = N * PIECE_BYTES, STAGE = ROW_GROUPS * W_BYTES + TILE_PARTS * PART_BYTES;
    static constexpr int OWN = (PARTS + 1) / 2, ALONE = PARTS % 2 ? OWN - 1 : OWN; // parts of the warpgroup; which has N rows alone, if any
    static constexpr int ABREAST = PARTS == 1 ? 1 : 2;                             // tokens of a lane at once, at the end
    static constexpr int MEET = PARTS == 1 ? (int)WARPGROUP : (int)CONSUMERS;      // threads that have the same scales

    const wide_args &a;
    const shared_places &m;
    int rank, group, warp, lane; // rank: in the cluster; warp: of the group
    uint32_t empty_there;        // of the block whom this lane tells that a slot is free; 0: nobody
    uint32_t sums[PARTS][N / 4];

    __device__ void meet() const { threads_sync(PARTS == 1 ? 1 + group : 1, MEET); }
    /* The part of the tile's tokens that is the warpgroup's f-th. */
    __device__ int part_of(int f) const { return PARTS == 1 ? 0 : min(2 * f + group, PARTS - 1); }

    // ---- products ---------------------------------------------------------------------------------------------------

    /* A lane of the first warp for each block that copies to this one: a product of the tensor core ends for all four warps, and what they had loaded
     * for it was there when it began. racecheck does not follow that, so in a build for it all lanes tell all blocks (TELLERS). */
    __device__ uint32_t told() const {
        if (warp > 0 || lane >= a.sharers())
            return 0;
        return a.sharers() > 1 ? address_at_rank(m.empty, lane) : m.empty;
    }
    __device__ void release(int slot) const {
        if (slot < 0)
            return;
        if (TELLERS > 1)
            for (int i = 0; i < a.sharers(); i++)
                barrier_arrive_at_rank(address_at_rank(m.empty, i) + slot * 8);
        else if (empty_there)
            barrier_arrive_at_rank(empty_there + slot * 8);
    }

    /* Of the stage, as the tensor core is told where it lies: of W, or behind it of tokens. */
    __device__ uint64_t operand(int slot, int offset) const {
        uint64_t first = operand_rows(m.ring);
        uint32_t low = of_warp((uint32_t)first + (slot * STAGE + offset >> 4));
        return (first & 0xffffffff00000000u) | low;
    }

    /* A stage's products are begun, and those of the stage before have ended. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add) {
        uint64_t w = operand(at.slot, 0), x = operand(at.slot, W_BYTES + group * PART_BYTES);
        barrier_wait(m.full + at.slot * 8, at.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            e4m3_half_product<N>::multiply(sums[0], x + k * E4M3_K_STEP, w + k * E4M3_K_STEP, add || k > 0);
        products_commit();
        products_wait<1>();
        release(last);
        last = at.slot;
        at.step();
    }

    /* Tokens as products have them, of a step: 32 columns. */
    using fragments = uint32_t[OWN][4];
    static __device__ void settle(fragments &x) {
#pragma unroll
        for (int f = 0; f < OWN; f++)
            registers_settle(x[f]);
    }
    /* Where the lane's row of the warpgroup's first part lies in the first stage, as load_matrices wants it. */
    __device__ uint32_t first_row() const {
        return m.ring + ROW_GROUPS * W_BYTES + part_of(0) * PART_BYTES + (warp * 16 + lane % 16) * PIECE_BYTES +
               (lane / 16 ^ lane % 8) * 16;
    }
    /* Likewise, but tokens come through registers, each for two products: those of a step while products of the step before run. All products but the
     * last step's have ended behind it. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add, uint32_t row, fragments (&x)[2]) {
        constexpr int NEXT_ROWS = W_BYTES >> 4;
        uint64_t w = operand(at.slot, 0), own_rows = of_warp(group * NEXT_ROWS);
        row += at.slot * STAGE;
        barrier_wait(m.full + at.slot * 8, at.parity);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            fragments &now = x[k % 2];
#pragma unroll
            for (int f = 0; f < OWN; f++)
                load_matrices(now[f], (row ^ k * E4M3_K) + (part_of(f) - part_of(0)) * PART_BYTES);
            products_begin();
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                e4m3_half_product<N>::multiply(sums[i], now[i / 2], w + k * E4M3_K_STEP + (i / 2 == ALONE ? own_rows : i % 2 * NEXT_ROWS),
                                               add || k > 0);
            products_commit();
            products_wait<1>();
            settle(x[1 - k % 2]); // until here they were read
            if (k == 0)
                release(last);
        }
        last = at.slot;
        at.step();
    }

    /* All pieces of the tile. */
    __device__ void multiply(ring_place &at) {
        int last = -1;
#pragma unroll
        for (int i = 0; i < PARTS; i++) // their registers are free until here
#pragma unroll
            for (int k = 0; k < N / 4; k++)
                sums[i][k] = 0;
        if constexpr (PARTS == 1) {
            for (int piece = 0; piece < a.n_pieces; piece++)
                multiply_stage(at, last, piece > 0);
        } else {
            fragments x[2] = {};
            uint32_t row = first_row();
            for (int piece = 0; piece < a.n_pieces; piece++)
                multiply_stage(at, last, piece > 0, row, x);
        }
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            registers_settle(sums[i]);
        release(last);
    }

    // ---- the end of a tile ------------------------------------------------------------------------------------------

    /* Of the tile: of W's rows [scale, bias][gate, up][octets][8], then the scales of its tokens. */
    __device__ uint32_t scales() const { return m.scales + (PARTS == 1 ? group * SCALES<N, PARTS> : 0); }
    __device__ uint32_t x_scales() const { return scales() + TILE_OCTETS * 128; }
    __device__ void fetch_w_scales(int first_column) const {
        const int n = TILE_OCTETS * 8;
        for (int i = threadIdx.x % MEET; i < n * 2; i += MEET) {
            int half = i >= n, column = first_column + i - half * n;
            bool there = column < a.n_columns;
            int row = there ? column + half * a.n_columns : 0;
            copy_four(scales() + i * 4, a.w_scale + row, there);
            if (!PLAIN)
                copy_four(scales() + (i + 2 * n) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int token) const {
        for (int i = threadIdx.x % MEET; i < PARTS * PART_TOKENS; i += MEET) {
            bool there = token + i < a.n_tokens;
            copy_four(x_scales() + i * 4, a.x_scale + (there ? token + i : 0), there);
        }
    }
    __device__ uint32_t lines() const { return m.lines + (group * 4 + warp) * LINES; }

    /* Octets of the warpgroup's f-th part; from which of the tile's on; how often some of them go to the lines. */
    static __device__ constexpr int octets_of(int f) { return f == ALONE ? OCTETS : 2 * OCTETS; }
    __device__ int first_of(int f) const { return ROW_GROUPS > 1 && f == ALONE ? group * OCTETS : 0; }
    static __device__ constexpr int times_of(int f) { return (octets_of(f) + AT_ONCE - 1) / AT_ONCE; }

    /* Gates of an octet of the part, and OCTETS * 2 behind them what they let through. */
    template <int F> __device__ const uint32_t *octet_of(int octet) const { return &sums[2 * F + octet / OCTETS][octet % OCTETS * 2]; }

    /* Swizzles the eight units of a line: what eight lanes read of two tokens comes from all banks. */
    static __device__ int turn_of(int token) { return token / 2 | token % 2 * AT_ONCE; }

    /* Some octets of a part to the warp's lines. */
    template <int F, int TIME> __device__ void to_lines() const {
        constexpr int FIRST = TIME * AT_ONCE, THERE = octets_of(F) - FIRST < AT_ONCE ? octets_of(F) - FIRST : AT_ONCE;
        int token = lane % 16;
        uint32_t to = lines() + token * LINE + (lane / 16 ^ turn_of(token % 8)) * 16;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < THERE; i += 2) {
                bool two = i + 1 < THERE;
                const uint32_t *d = octet_of<F>(FIRST + i) + half * OCTETS * 2, *e = octet_of<F>(FIRST + i + two) + half * OCTETS * 2;
                store_matrices(to ^ (half * AT_ONCE + i) * 16, d[0], d[1], e[0], e[1]);
            }
    }
    /* The which-th of all of them: registers have no numbers at run time. */
    template <int FROM, int TO> __device__ void to_lines(int which) const {
        constexpr int TIMES = times_of(0);
        if constexpr (TO - FROM == 1)
            to_lines<FROM / TIMES, FROM % TIMES>();
        else if (which < (FROM + TO) / 2)
            to_lines<FROM, (FROM + TO) / 2>(which);
        else
            to_lines<(FROM + TO) / 2, TO>(which);
    }

    /* What a gate lets through. SiLU is x/2 + x/2 tanh(x/2). What the hyperbolic tangent is off by, 2^-11 at most, is what half precision makes of
     * x/2. */
    static __device__ float silu(float gate, float up, float by) {
        float half = gate * (0.5f * by);
        return fmaf(half, tanh_fast(half), half) * (up * by);
    }
    __device__ float gated(float gate, float up) const {
        float half = 0.5f * gate;
        return fmaf(half, tanh_fast(gate * (a.bend + a.twist * gate * gate)), half) * up;
    }

    /* Four columns of a token from its sums, two pairs each, by the columns' scales (and biases) and its own. */
    struct column_scales {
        float4 gate, up, gate_bias, up_bias;
    };
    __device__ column_scales scales_at(uint32_t at) const {
        column_scales s = {load_four(at), load_four(at + TILE_OCTETS * 32)};
        if (!PLAIN)
            s.gate_bias = load_four(at + TILE_OCTETS * 64), s.up_bias = load_four(at + TILE_OCTETS * 96);
        return s;
    }
    template <bool BF16>
    __device__ void gated_four(uint32_t *pairs, const uint32_t *gates, const uint32_t *ups, const column_scales &s, float by) const {
        const float *gs = &s.gate.x, *us = &s.up.x, *gb = &s.gate_bias.x, *ub = &s.up_bias.x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 gate = __half22float2(reinterpret_cast<const __half2 &>(gates[i])),
                   up = __half22float2(reinterpret_cast<const __half2 &>(ups[i]));
            int k = 2 * i;
            if (PLAIN)
                pairs[i] = to_pair<BF16>(silu(gate.x * gs[k], up.x * us[k], by), silu(gate.y * gs[k + 1], up.y * us[k + 1], by));
            else
                pairs[i] = to_pair<BF16>(gated(fmaf(gate.x, gs[k] * by, gb[k]), fmaf(up.x, us[k] * by, ub[k])),
                                         gated(fmaf(gate.y, gs[k + 1] * by, gb[k + 1]), fmaf(up.y, us[k + 1] * by, ub[k + 1])));
        }
    }

    /* most: pairs of sizes of one of the lane's tokens, which four lanes share. */
    template <bool BF16> __device__ void tell_most(uint32_t most, int token) const {
        most = larger_sizes<BF16>(most, most >> 16);
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (lane % 4 == 0 && token < a.n_tokens)
            atomicMax(a.most + token, size_bits<BF16>(most));
    }

    /* The f-th part, some octets at a time: a lane has an octet of two tokens, lane / 4 and 8 further, so that 64 bytes of a token leave together. */
    template <bool BF16> __device__ void finish(int f, int first_octet, int first_token) const {
        int octet = first_octet + first_of(f) + lane % 4, left = min(octets_of(f) - lane % 4, a.n_columns / 8 - octet);
        int token = first_token + part_of(f) * PART_TOKENS + lane / 4;
        uint32_t of_octet = scales() + (first_of(f) + lane % 4) * 32, of_token = x_scales() + (token - first_token + warp * 16) * 4;
        float by[2] = {load_float(of_token), load_float(of_token + 32)};
        uint32_t most_of[2] = {0, 0};
        token += warp * 16;
        char *y = static_cast<char *>(a.y) + (token * a.y_stride + octet * 8) * 2;
        uint8_t *twin = a.twin + (token * a.twin_stride + octet * 8);
        uint32_t from = lines() + lane / 4 * LINE + (lane % 4 ^ turn_of(lane / 4)) * 16;
#pragma unroll 1
        for (int time = 0; time < times_of(f); time++) {
            to_lines<0, (OWN - 1) * times_of(0) + times_of(OWN - 1)>(f * times_of(0) + time);
            __syncwarp();
            if (left > 0)
#pragma unroll 1
                for (int first = 0; first < 2; first += ABREAST) {
                    uint32_t gates[ABREAST][4], ups[ABREAST][4], pairs[ABREAST][4];
#pragma unroll
                    for (int i = 0; i < ABREAST; i++) {
                        load_words(gates[i], from + (first + i) * 8 * LINE);
                        load_words(ups[i], (from ^ AT_ONCE * 16) + (first + i) * 8 * LINE);
                    }
#pragma unroll
                    for (int k = 0; k < 4; k += 2) {
                        column_scales by_column = scales_at(of_octet + k * 8);
#pragma unroll
                        for (int i = 0; i < ABREAST; i++)
                            gated_four<BF16>(pairs[i] + k, gates[i] + k, ups[i] + k, by_column, first + i ? by[1] : by[0]);
                    }
#pragma unroll
                    for (int i = 0; i < ABREAST; i++) {
                        uint4 eight = make_uint4(pairs[i][0], pairs[i][1], pairs[i][2], pairs[i][3]);
                        int further = (first + i) * 8;
                        if (token + further < a.n_tokens)
                            store_octet<BF16>(a, y + further * 2 * a.y_stride, twin + further * a.twin_stride, eight);
                        uint32_t most = first + i ? most_of[1] : most_of[0];
                        most = larger_sizes<BF16>(larger_sizes<BF16>(most, eight.x), eight.y);
                        most = larger_sizes<BF16>(larger_sizes<BF16>(most, eight.z), eight.w);
                        (first + i ? most_of[1] : most_of[0]) = most;
                    }
                }
            __syncwarp();
            left -= AT_ONCE;
            of_octet += AT_ONCE * 32;
            y += AT_ONCE * 16;
            twin += AT_ONCE * 8;
        }
        if (a.most)
#pragma unroll
            for (int i = 0; i < 2; i++)
                tell_most<BF16>(most_of[i], token + i * 8);
    }
    /* A loop of few instructions, as they are run once or twice a launch and come from far: in a step a tile's end of 3,400 instructions one
     * after the other took 12,000 cycles more the first time than the next. */
    template <bool BF16> __device__ void finish(int first_octet, int first_token) const {
#pragma unroll 1
        for (int f = 0; f < OWN; f++)
            finish<BF16>(f, first_octet, first_token);
    }

    // ---- tile after tile -------------------------------------------------------------------------------------------

    __device__ void run() {
        ring_place at = {0, a.n_stages, 0};
        empty_there = told();
        bool first = true;
        for (tile_walk walk(a, rank); walk.there(); walk.next()) {
            int octet = walk.row_tile() * TILE_OCTETS, token = (walk.token_tile() * TILE_PARTS + (PARTS == 1 ? group : 0)) * PART_TOKENS;
            meet(); // nobody reads scales of the tile before
            fetch_w_scales(octet * 8);
            if (first)
                wait_for_previous();
            first = false;
            fetch_x_scales(token);
            multiply(at);
            asm volatile("cp.async.wait_all;" ::: "memory");
            meet(); // scales are there
            if (a.y_element == ELEMENT_F16)
                finish<false>(octet, token);
            else
                finish<true>(octet, token);
        }
        wait_for_previous();
    }
};

} // namespace
