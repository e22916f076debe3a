/* gemm_fp8_split_k.h - gemm_fp8_split_k.cu. */
#pragma once

#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_fp8_split_k.cu: unscaled products of 65 and more rows, whose terms the blocks of a cluster share ---- */
/* Whether it can compute y = x W^T: x e4m3; w.in a multiple of 16 up to HALF_SUMS_IN, w.out of 8, w, x and y and their
 * rows at multiples of 16 bytes; y of half precision, as its sums are. Scales are not looked at. */
bool split_k_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows);
/* l2_copy: [L2_COPY_SHAPES] copies of w (l2_copy.h), of which one is read in place of w whose tiles the step has; NULL,
 * or NULL for one: not there. requant: of x; NULL: none. The node behind it starts when all before it have ended, and
 * so may read before it waits what those left. */
cudaError_t launch_gemm_split_k(cudaStream_t stream, int n_rows, struct dweight w,
                                const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                const struct drequant *requant);
/* Whether requant.value may be given. */
bool split_k_requantises(struct dweight w, int n_rows);

/* How it is cut into blocks. launch_gemm_split_k takes the one that split_k_cut_of names, or the first; tests and
 * benchmarks try others. */
enum { SPLIT_K_CUTS = 19 };
struct split_k_cut {
    int rows;    // of W in a tile, whose tokens are 128
    int split;   // blocks with the same tile, each with a part of its terms
    int sharers; // tiles of a cluster, of other tokens and the same rows: 1 or 2
};
struct split_k_cut split_k_cut_at(int i);
/* One with which all blocks are at work at once, on most multiprocessors; negative: none, and the library is better. */
int split_k_cut_of(struct dweight w, int n_rows);
/* How many rows the tiles of w's L2 copy i < L2_COPY_SHAPES are to have: those that steps of 128 rows read, of 256;
 * 0: none, or the same. */
int split_k_l2_copy_rows(struct dweight w, int i);
cudaError_t launch_gemm_split_k_cut(cudaStream_t stream, int n_rows, struct dweight w,
                                    const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                    const struct drequant *requant, int cut);

#ifdef __cplusplus
}
#endif
