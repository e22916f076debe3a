/* gemm_fp8_gated.h - gemm_fp8_gated.cu. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_fp8_gated.cu: LINEAR of many rows, e4m3 by e4m3 on the tensor core, with GATED_ACT behind it ---- */
enum { GATED_MAX_ROWS = 512 }; // of more by gemm_fp8_prefill.cu
struct dl2_copy;               // l2_copy.h
struct dgated {
    struct dweight w;               // e4m3: gates, then what they let through
    const float *bias;              // [w.out]; NULL: none
    int act;                        // core/ops.h activation: ACT_SILU or ACT_GELU_TANH
    struct dmat qact;               // of y: written too, by its static_scale; at NULL: none
    const struct dl2_copy *l2_copy; // w once more, in halves; NULL: it is not. Read where the cut's tiles are its
};
/* Whether it can compute y = act(gate) * up, y.width = w.out / 2: x e4m3 with a scale a row; w.in a multiple of 16,
 * above 128, up to HALF_SUMS_IN, y.width of 8, w, x and y and their rows at multiples of 16 bytes; y of 16 bits. y may
 * have most. */
bool gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y);

/* How it is cut into blocks. launch_gemm_gated takes what gated_cut_of says; benchmarks try others. */
enum gated_sharing { GATED_SHARES_NOTHING, GATED_SHARES_W, GATED_SHARES_X };
struct gated_cut {
    int octets;   // half of those of y's columns in a tile: 6, 7, 9 or 11
    int parts;    // of 64 tokens in a tile: 2, 3 or 4 (of 11 octets not 4)
    int n_blocks; // even where they share
    int n_stages; // of the ring: 2 at least, room for a tile's sums, and no more than there are pieces of 128 columns
                  // of x
    /* What the two blocks of a cluster have in common: rows of W, with other tokens each, which make an even number of
     * tiles; or tokens, with other rows of W each. */
    enum gated_sharing shared;
};
struct gated_cut gated_cut_of(const struct dgated *a, int n_rows);
int gated_blocks(enum gated_sharing shared); // that run at once
int gated_stages(int octets, int parts);     // most that shared memory has room for
bool gated_takes_cut(const struct dgated *a, int n_rows, const struct gated_cut *cut);
cudaError_t launch_gemm_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y,
                                  const struct gated_cut *cut);

#ifdef __cplusplus
}
#endif
