/* gemm_fp8_gated_tile.cuh - what a warpgroup of gemm_fp8_gated.cu does with a tile: products of all stages, and what
 * becomes of the sums.
 *
 * Sums are laid out as wgmma_e4m3_f16.cuh says: a lane has columns 2t and 2t + 1 of every eight, a pair of halves, for
 * tokens g and g + 8 of the warp's 16, here of each part of 64 tokens. */
#pragma once

#include "backend/cuda/linear/gated_end.cuh"
#include "backend/cuda/linear/gemm_fp8_gated_feed.cuh"
#include "backend/cuda/value.h"

namespace {

static __device__ float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
static __device__ float load_float(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
static __device__ void load_words(uint32_t (&v)[4], uint32_t at) {
    uint4 four = load_shared_16(at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

/* Bytes of scales and biases: of a tile's rows of W and its tokens. */
template <int N, int PARTS> constexpr int SCALES = (4 * N + PARTS * PART_TOKENS) * 4;

/* N: rows of W that a product has: gates, then as many that they let through. PARTS: of tokens, all of the tile's.
 * PLAIN: SiLU and no biases.
 *
 * A warpgroup's product 2f + r is its f-th part of tokens by the r-th N rows of W; of an odd number both warpgroups
 * have the last part, each with N rows of its own. */
template <int N, int PARTS, bool PLAIN> struct consumer {
    static constexpr int OCTETS = N / 16, STEPS = PIECE_BYTES / E4M3_K,
                         TILE_OCTETS = GROUPS * OCTETS; // octets: of y's columns
    static constexpr int W_BYTES = N * PIECE_BYTES, STAGE = GROUPS * W_BYTES + PARTS * PART_BYTES;
    static constexpr int OWN = (PARTS + 1) / 2,
                         ALONE = PARTS % 2 ? OWN - 1 : OWN; // parts of the warpgroup; which has N rows alone, if any

    const gated_args &a;
    const shared_places &m;
    int rank, group, warp, lane; // rank: in the cluster; warp: of the group
    uint32_t empty_there;        // of the block whom this lane tells that a slot is free; 0: nobody
    uint32_t sums[PARTS][N / 4];

    __device__ void meet() const { threads_sync(1, CONSUMERS); }
    /* The part of the tile's tokens that is the warpgroup's f-th. */
    __device__ int part_of(int f) const { return min(2 * f + group, PARTS - 1); }

    // ---- products ---------------------------------------------------------------------------------------------------

    /* A lane of the first warp for each block that copies to this one: a product of the tensor core ends for all four
     * warps, and what they had loaded for it was there when it began. racecheck does not follow that, so in a build for
     * it all lanes tell all blocks (TELLERS). */
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

    /* Tokens as products have them, of a step: 32 columns. */
    using fragments = uint32_t[OWN][4];
    static __device__ void settle(fragments &x) {
#pragma unroll
        for (int f = 0; f < OWN; f++)
            registers_settle(x[f]);
    }
    /* Where the lane's row of the warpgroup's first part lies in the first stage, as load_matrices wants it. */
    __device__ uint32_t first_row() const {
        return m.ring + GROUPS * W_BYTES + part_of(0) * PART_BYTES + (warp * 16 + lane % 16) * PIECE_BYTES +
               (lane / 16 ^ lane % 8) * 16;
    }
    /* Tokens come through registers, each for two products: those of a step while products of the step before run. All
     * products but the last step's have ended behind it. frees: the slot of the stage before is nobody's then. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add, bool frees, uint32_t row, fragments (&x)[2]) {
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
                e4m3_half_product<N>::multiply(sums[i], now[i / 2],
                                               w + k * E4M3_K_STEP + (i / 2 == ALONE ? own_rows : i % 2 * NEXT_ROWS),
                                               add || k > 0);
            products_commit();
            products_wait<1>();
            settle(x[1 - k % 2]); // until here they were read
            if (k == 0 && frees)
                release(last);
        }
        last = at.slot;
        at.step();
    }

    /* All pieces of the tile. The last slots, as many as there are, stay: sums leave through them. */
    __device__ void multiply(ring_place &at) {
        int last = -1;
        fragments x[2] = {};
        uint32_t row = first_row();
#pragma unroll
        for (int i = 0; i < PARTS; i++) // their registers are free until here
#pragma unroll
            for (int k = 0; k < N / 4; k++)
                sums[i][k] = 0;
        for (int piece = 0; piece < a.n_pieces; piece++)
            multiply_stage(at, last, piece > 0, piece <= a.n_pieces - a.n_stages, row, x);
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            registers_settle(sums[i]);
    }
    /* The ring is the copying thread's again. */
    __device__ void give_back(ring_place at) const {
        for (int i = 0; i < a.n_stages; i++, at.step())
            release(at.slot);
    }

    // ---- the end of a tile ------------------------------------------------------------------------------------------

    /* Of the tile: of W's rows [scale, bias][gate, up][octets][8], then the scales of its tokens. */
    __device__ uint32_t x_scales() const { return m.scales + TILE_OCTETS * 128; }
    __device__ void fetch_w_scales(int first_column) const {
        const int n = TILE_OCTETS * 8;
        for (int i = threadIdx.x; i < n * 2; i += CONSUMERS) {
            int half = i >= n, column = first_column + i - half * n;
            bool there = column < a.n_columns;
            int row = there ? column + half * a.n_columns : 0;
            copy_four(m.scales + i * 4, a.w_scale + row, there);
            if (!PLAIN)
                copy_four(m.scales + (i + 2 * n) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }
    __device__ void fetch_x_scales(int token) const {
        for (int i = threadIdx.x; i < PARTS * PART_TOKENS; i += CONSUMERS) {
            bool there = token + i < a.n_tokens;
            copy_four(x_scales() + i * 4, a.x_scale + (there ? token + i : 0), there);
        }
    }

    /* Octets of the warpgroup's f-th part; from which of the tile's on. */
    static __host__ __device__ constexpr int octets_of(int f) { return f == ALONE ? OCTETS : 2 * OCTETS; }
    __device__ int first_of(int f) const { return f == ALONE ? group * OCTETS : 0; }

    /* A warp's sums become rows by way of the ring. Of a part's tokens a line each: gates of its octets, then what they
     * let through, 16 bytes an octet, and 16 more, so that eight lines of an octet are in all banks; four lines on are
     * 64 bytes on. */
    static __host__ __device__ constexpr int line_of(int f) { return (2 * octets_of(f) + 1) * 16; }
    static __host__ __device__ constexpr int lines_before(int f) { return f == 0 ? 0 : 16 * line_of(0); }
    static constexpr int LINES = lines_before(OWN - 1) + 16 * line_of(OWN - 1); // of a warp, bytes
    static constexpr int ALL_OCTETS = octets_of(0) + (OWN > 1 ? octets_of(1) : 0);
    __device__ uint32_t lines() const { return m.ring + (group * 4 + warp) * LINES; }

    /* The i-th 16 bytes of the f-th part's lines. */
    template <int F> __device__ const uint32_t *octet_of(int i) const {
        const int k = i % octets_of(F);
        return &sums[2 * F + k / OCTETS][(k % OCTETS + (i < octets_of(F) ? 0 : OCTETS)) * 2];
    }
    template <int F> __device__ void to_lines() const {
        uint32_t to = lines() + lines_before(F) + lane % 16 * line_of(F) + lane / 16 * 16;
#pragma unroll
        for (int i = 0; i < 2 * octets_of(F); i += 2) {
            const uint32_t *d = octet_of<F>(i), *e = octet_of<F>(i + 1);
            store_matrices(to + i * 16, d[0], d[1], e[0], e[1]);
        }
        if constexpr (F + 1 < OWN)
            to_lines<F + 1>();
    }

    /* What a gate lets through. SiLU is x/2 + x/2 tanh(x/2). What the hyperbolic tangent is off by, 2^-11 at most, is
     * what half precision makes of x/2. */
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
    __device__ void gated_four(uint32_t *pairs, const uint32_t *gates, const uint32_t *ups, const column_scales &s,
                               float by) const {
        const float *gs = &s.gate.x, *us = &s.up.x, *gb = &s.gate_bias.x, *ub = &s.up_bias.x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 gate = __half22float2(reinterpret_cast<const __half2 &>(gates[i])),
                   up = __half22float2(reinterpret_cast<const __half2 &>(ups[i]));
            int k = 2 * i;
            if (PLAIN)
                pairs[i] = to_pair<BF16>(silu(gate.x * gs[k], up.x * us[k], by),
                                         silu(gate.y * gs[k + 1], up.y * us[k + 1], by));
            else
                pairs[i] = to_pair<BF16>(
                    gated(fmaf(gate.x, gs[k] * by, gb[k]), fmaf(up.x, us[k] * by, ub[k])),
                    gated(fmaf(gate.y, gs[k + 1] * by, gb[k + 1]), fmaf(up.y, us[k + 1] * by, ub[k + 1])));
        }
    }

    /* most: pairs of sizes of one of the lane's tokens, which four lanes share. */
    template <bool BF16> __device__ void tell_most(uint32_t most, int token) const {
        most = larger_sizes<BF16>(most, most >> 16);
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = larger_sizes<BF16>(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (lane % 4 == 0 && token < a.n_tokens)
            atomicMax(a.absmax + token, size_bits<BF16>(most));
    }

    /* Where a lane is: four lanes have an octet each of the same two tokens, eight apart, of one part and then of the
     * next. Lanes that read at once have tokens four apart, of which lines are in other banks. */
    struct end_place {
        int octet, n_octets, line, token; // octet, n_octets: of the part's; line: bytes of one
        uint32_t from, scales;
        float by[2];
        bool there[2];
        char *y;
        uint8_t *qact;
    };
    __device__ end_place place_in(int f, int octet, int first_octet, int first_token) const {
        int in_tile = part_of(f) * PART_TOKENS + warp * 16 + (lane / 8 | lane / 4 % 2 * 4),
            of_tile = first_of(f) + octet;
        int64_t column = (first_octet + of_tile) * 8;
        end_place p;
        p.octet = octet, p.n_octets = octets_of(f), p.line = line_of(f), p.token = first_token + in_tile;
        p.from = lines() + lines_before(f) + in_tile % 16 * p.line + octet * 16;
        p.scales = m.scales + of_tile * 32;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            p.by[k] = load_float(x_scales() + (in_tile + k * 8) * 4);
            p.there[k] = p.token + k * 8 < a.n_tokens;
        }
        p.y = static_cast<char *>(a.y) + (p.token * a.y_stride + column) * 2;
        p.qact = a.qact + (p.token * a.qact_stride + column);
        return p;
    }
    /* The lane's octets of its two tokens in ROUNDS rounds, each four octets behind the one before: those of two, so
     * that something hides what one waits for. What lies beyond the tile is read too, and left. */
    template <bool BF16, int ROUNDS>
    __device__ __forceinline__ void finish_octets(end_place &p, int columns, uint32_t (&most)[2]) const {
        uint32_t gates[ROUNDS][2][4], ups[ROUNDS][2][4], pairs[ROUNDS][2][4];
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                load_words(gates[r][k], p.from + k * 8 * p.line + r * 64);
                load_words(ups[r][k], p.from + k * 8 * p.line + p.n_octets * 16 + r * 64);
            }
#pragma unroll
        for (int c = 0; c < 4; c += 2)
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                column_scales by_column = scales_at(p.scales + r * 128 + c * 8);
#pragma unroll
                for (int k = 0; k < 2; k++)
                    gated_four<BF16>(pairs[r][k] + c, gates[r][k] + c, ups[r][k] + c, by_column, p.by[k]);
            }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            bool is = p.octet < min(p.n_octets, columns);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint32_t *v = pairs[r][k];
                store_octet<BF16>(a, is && p.there[k], p.y + k * 16 * a.y_stride, p.qact + k * 8 * a.qact_stride,
                                  make_uint4(v[0], v[1], v[2], v[3]));
                uint32_t larger = larger_sizes<BF16>(larger_sizes<BF16>(v[0], v[1]), larger_sizes<BF16>(v[2], v[3]));
                most[k] = is ? larger_sizes<BF16>(most[k], larger) : most[k];
            }
            p.octet += 4;
            p.y += 64;
            p.qact += 32;
        }
        p.from += ROUNDS * 64;
        p.scales += ROUNDS * 128;
    }
    /* A loop of few instructions, as they come from far, whose branches are few: half of the time went for those
     * (docs/lab/cuda_linear_many_rows.md). */
    template <bool BF16> __device__ void finish(int first_octet, int first_token) const {
        uint32_t most[2] = {0, 0}, most_before[2] = {0, 0}; // most_before: of the first of two parts
        end_place p = place_in(0, lane % 4, first_octet, first_token);
        const int first_of_all = p.token, columns = a.n_columns / 8 - first_octet;
        constexpr int CHANGES = octets_of(0) & ~3,
                      CHANGED = (octets_of(0) + 3) & ~3; // lanes come to the second part before octets of these rounds
        bool is_second = false;
        to_lines<0>();
        __syncwarp();
#pragma unroll 1
        for (int round = 0; round < ALL_OCTETS;) {
            if (OWN > 1 && !is_second && p.octet >= octets_of(0)) {
                is_second = true;
                most_before[0] = most[0], most_before[1] = most[1];
                most[0] = most[1] = 0;
                p = place_in(OWN - 1, p.octet - octets_of(0), first_octet, first_token);
            }
            const int until = OWN == 1 || round >= CHANGED ? ALL_OCTETS : round >= CHANGES ? CHANGED : CHANGES;
            const int left = columns - first_of(is_second ? OWN - 1 : 0);
#pragma unroll 1
            for (; round + 4 < until; round += 8)
                finish_octets<BF16, 2>(p, left, most);
            if (round < until)
                finish_octets<BF16, 1>(p, left, most);
            round = until;
        }
        if (a.absmax)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (OWN > 1)
                    tell_most<BF16>(most_before[k], first_of_all + k * 8);
                tell_most<BF16>(most[k], p.token + k * 8);
            }
    }

    // ---- tile after tile -------------------------------------------------------------------------------------------

    __device__ void run() {
        ring_place at = {0, a.n_stages, 0};
        empty_there = told();
        bool first = true;
        for (tile_walk walk(a, rank); walk.there(); walk.next()) {
            int octet = walk.row_tile() * TILE_OCTETS, token = walk.token_tile() * PARTS * PART_TOKENS;
            if (!first) {
                fence_bulk();
                meet(); // nobody reads scales or lines of the tile before
                give_back(at);
            }
            fetch_w_scales(octet * 8);
            if (first)
                wait_for_previous();
            first = false;
            fetch_x_scales(token);
            multiply(at);
            asm volatile("cp.async.wait_all;" ::: "memory");
            meet(); // scales are there, and all products have ended
            if (a.y_element == ELEMENT_F16)
                finish<false>(octet, token);
            else
                finish<true>(octet, token);
        }
        wait_for_previous();
    }
};

} // namespace
