/* gemm_w4.h - gemm_w4.cu. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_w4.cu: LINEAR by weights of four bits, bound by reading its weight once up to 32 rows ---- */
enum { GEMM_W4_SLAB = 32, GEMM_W4_MOST_WARPS = 20 }; // rows of x for which a weight is read once; of a block
struct dgemm_w4 {
    struct dweight w;      // ELEMENT_QUADS
    const float *bias;     // [w.out]; NULL: none
    struct dending ending; // GATED as w.quads.gated says
};
/* Whether it can compute that: x f16, its address a multiple of 16 and its stride of 8; w.in a multiple of 64; y of
 * f16, bf16 or f32. What a row of y is depends on nothing but that row of x: not on how many there are. */
bool gemm_w4_takes(const struct dgemm_w4 *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_w4(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y);

/* How it is cut into blocks. launch_gemm_w4 takes what gemm_w4_cut_of says; tests and benchmarks try others. The order
 * in which a sum is added up follows from split and column_warps, which gemm_w4_cut_of takes from the weight alone. */
struct gemm_w4_cut {
    int row_warps, column_warps; // of a block, GEMM_W4_MOST_WARPS together at most; a row warp has 16 rows of W, and
                                 // four of them multiply together: row_warps is a multiple of 4
    int split;                   // blocks that share rows, each with some columns: 1, 2, 4 or 8
    int n_blocks;                // a multiple of split; where sums are joined, enough for all tiles at once
    int most_stages;             // of the ring; as many as shared memory has room for are taken
};
struct gemm_w4_cut gemm_w4_cut_of(const struct dweight *w, int n_rows);
bool gemm_w4_takes_cut(const struct dweight *w, int n_rows, const struct gemm_w4_cut *cut);
cudaError_t launch_gemm_w4_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y,
                               const struct gemm_w4_cut *cut);

#ifdef __cplusplus
}
#endif
