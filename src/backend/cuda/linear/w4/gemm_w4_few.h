/* gemm_w4_few.h - gemm_w4_few.cu. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_w4_few.cu: as gemm_w4.cu, of a few rows ---- */
enum { W4_FEW_MAX_ROWS = 8 };
bool gemm_w4_few_takes(const struct dgemm_w4 *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_w4_few(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y);

/* How it is cut. launch_gemm_w4_few takes what gemm_w4_few_cut_of says; tests and benchmarks try others. The order in
 * which a sum is added up follows from segments alone, which gemm_w4_few_cut_of takes from the weight. */
struct gemm_w4_few_cut {
    int segments; // of a tile's columns: a power of two
    int warps;    // of a block: a power of two
    int split;    // blocks that share tiles, each with some segments: a power of two
    int n_blocks; // a multiple of split
    int a_copy;   // blocks of a tile that are copied at once, ...
    int n_copies; // ... and copies that each warp's queue has room for
    bool alone;   // no other such block beside it on a multiprocessor
};
struct gemm_w4_few_cut gemm_w4_few_cut_of(const struct dweight *w, int n_rows); // n_blocks 0: there is none
bool gemm_w4_few_takes_cut(const struct dweight *w, int n_rows, const struct gemm_w4_few_cut *cut);
cudaError_t launch_gemm_w4_few_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                   struct dmat y, const struct gemm_w4_few_cut *cut);

#ifdef __cplusplus
}
#endif
