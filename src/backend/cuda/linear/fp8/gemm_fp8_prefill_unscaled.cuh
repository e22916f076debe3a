/* gemm_fp8_prefill_unscaled.cuh - of gemm_fp8_prefill_ends.cuh: sums exchanged by octets, and unscaled products of
 * them. */
#pragma once

#include "backend/cuda/linear/fp8/gated_end.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/value.h"

namespace {

enum { PARTS = 2, PART_TOKENS = 64, TILE_TOKENS = 16 }; // of a warpgroup; of a warp in a part

struct gemm_prefill_args {
    void *y;
    int64_t y_stride;
    int n_columns, n_tokens, n_pieces, token_tiles, n_tiles; // of y; of 128 columns of x; n_tiles: of a cluster
    // Of pairs:
    const float *w_scale, *bias, *x_scale;
    uint32_t *absmax;
    float bend, twist; // of the activation: gate * up * (1 + tanh(gate * (bend + twist * gate^2))) / 2
    element y_element;
    uint8_t *qact; // NULL: none
    int64_t qact_stride;
    float qact_factor; // 1 / static_scale
    bool untold_only;  // of y, where there is a qact
};

/* A warp's sums of a tile of ROWS rows of W. */
template <int ROWS> using warp_sums = uint32_t[PARTS][ROWS / 4];

/* Of four octets: of a token the lane's pair of each, or all pairs of the lane's own (lane % 4). [token g or g +
 * 8][pair] */
enum { CHUNK = 32 };
using four_octets = uint32_t[2][4];

/* Columns from FROM on of a part's sums; what lies beyond the tile's last is anything. */
template <int FROM, int ROWS>
static __device__ __forceinline__ void take_octets(four_octets &d, const uint32_t (&sums)[ROWS / 4]) {
    constexpr int LAST = ROWS / 8 - 1;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            d[i][k] = sums[(FROM / 8 + k < LAST ? FROM / 8 + k : LAST) * 2 + i];
}
/* From one to the other: lanes that differ in a bit exchange what is the other's, bit by bit. */
static __device__ __forceinline__ void exchange_octets(uint32_t (&d)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? d[k] : d[k + 1], 1);
        d[k] = odd ? other : d[k];
        d[k + 1] = odd ? d[k + 1] : other;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? d[k] : d[k + 2], 2);
        d[k] = upper ? other : d[k];
        d[k + 2] = upper ? d[k + 2] : other;
    }
}

// ---- unscaled products: the sums as they are
// ------------------------------------------------------------------------------

template <int ROWS> struct unscaled_end {
    static constexpr int CHUNKS = (ROWS + CHUNK - 1) / CHUNK, SCALES = 0;
    const gemm_prefill_args &a;
    int lane;

    /* The chunk, of both parts, as one from FROM to before TO: registers have no numbers at run time. */
    template <int FROM, int TO>
    static __device__ __forceinline__ void take(four_octets (&d)[PARTS], const warp_sums<ROWS> &sums, int chunk) {
        constexpr int MIDDLE = (FROM + TO) / 2;
        if constexpr (TO - FROM == 1) {
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                take_octets<FROM * CHUNK, ROWS>(d[part], sums[part]);
        } else if (chunk < MIDDLE) {
            take<FROM, MIDDLE>(d, sums, chunk);
        } else {
            take<MIDDLE, TO>(d, sums, chunk);
        }
    }

    __device__ __forceinline__ void write(const warp_sums<ROWS> &sums, int first_column, int first_token) const {
        const int token = first_token + lane / 4;
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            four_octets d[PARTS];
            take<0, CHUNKS>(d, sums, chunk);
            const int of_tile = chunk * CHUNK + lane % 4 * 8, column = first_column + of_tile;
            const bool there = column < a.n_columns && (ROWS % CHUNK == 0 || of_tile < ROWS);
            uint16_t *y = static_cast<uint16_t *>(a.y) + token * a.y_stride + column;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int further = part * PART_TOKENS + i * 8;
                    exchange_octets(d[part][i], lane);
                    if (there && token + further < a.n_tokens)
                        *reinterpret_cast<uint4 *>(y + further * a.y_stride) =
                            make_uint4(d[part][i][0], d[part][i][1], d[part][i][2], d[part][i][3]);
                }
        }
    }
};

} // namespace
