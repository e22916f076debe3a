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
/* Whether it should, in place of gemm_w4.cu, which reads W again for every 32 rows. */
bool gemm_w4_many_pays(const struct dweight *w, int n_rows);

#ifdef __cplusplus
}
#endif
