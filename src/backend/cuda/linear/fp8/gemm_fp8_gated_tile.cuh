/* gemm_fp8_gated_tile.cuh - what a warpgroup of gemm_fp8_gated.cu does tile after tile: products, and what becomes of
 * their sums: by way of the ring to rows, where gates meet what they let through. */
#pragma once

#include "backend/cuda/linear/fp8/gemm_fp8_gated_columns.cuh"

namespace {

static __device__ void load_words(uint32_t (&v)[4], uint32_t at) {
    uint4 four = load_shared_16(at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

template <int N, int PARTS, bool PLAIN> struct consumer : tile_columns<N, PARTS, PLAIN> {
    using products = tile_products<N, PARTS>;
    using columns_of = tile_columns<N, PARTS, PLAIN>;
    using columns_of::x_scales, columns_of::fetch_w_scales, columns_of::fetch_x_scales, columns_of::scales_at;
    using products::a, products::m, products::rank, products::group, products::warp, products::lane, products::sums;
    using products::meet, products::multiply, products::give_back, products::part_of, products::told;
    using products::OCTETS, products::TILE_OCTETS, products::OWN, products::ALONE, products::empty_there;
    using typename columns_of::column_scales;

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
                    this->template gated_four<BF16>(pairs[r][k] + c, gates[r][k] + c, ups[r][k] + c, by_column,
                                                    p.by[k]);
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
