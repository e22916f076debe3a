/* gemm_w4_many.h - gemm_w4_many.cu. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_w4_many.cu: what gemm_w4.cu computes, of many rows, on wgmma ---- */
/* Takes what gemm_w4_takes does. INT4 codes times their scales are rounded to float16 here. */
cudaError_t launch_gemm_w4_many(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                struct dmat y);
/* How it is cut. launch_gemm_w4_many takes what gemm_w4_many_cut_of says; tests and benchmarks try others. */
struct gemm_w4_many_cut {
    int tokens;   // of a tile: 32, 64, 128, 192, 240 or 256; of 128 and more two blocks share them
    int n_blocks; // at most as many as run at once; an even number where they share
};
struct gemm_w4_many_cut gemm_w4_many_cut_of(const struct dweight *w, int n_rows);
struct gemm_w4_many_cut gemm_w4_many_cut_by(const struct dweight *w, int n_rows, int tokens); // the best by such tiles
cudaError_t launch_gemm_w4_many_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                    struct dmat y, const struct gemm_w4_many_cut *cut);
/* Whether it should, in place of gemm_w4.cu, which reads W again for every 32 rows. */
bool gemm_w4_many_pays(const struct dweight *w, int n_rows);

#ifdef __cplusplus
}
#endif
