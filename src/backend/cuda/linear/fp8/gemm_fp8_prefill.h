/* gemm_fp8_prefill.h - gemm_fp8_prefill.cu. */
#pragma once

#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_fp8_prefill.cu: products of hundreds and thousands of rows, summed in half precision ---- */
/* Whether it can compute the unscaled products y = x W^T: x e4m3; w.in a multiple of 16, at most GEMM_PREFILL_MOST_IN,
 * w.out of 8, w, x and y and their rows at multiples of 16 bytes; y of half precision. Scales are not looked at.
 *
 * A sum is one chain of terms, of which the tensor core drops what is below 2^-13 of the sum so far: terms that are all
 * alike in size and sign stop adding up after 8,192 to 16,384 of them. Of others sums do not come near that. */
enum { GEMM_PREFILL_MOST_IN = 22016 };
bool gemm_prefill_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_prefill(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y);
/* Likewise what gemm_fp8_gated.cu computes, and as it does. */
bool gemm_prefill_gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_prefill_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x,
                                      struct dmat y);
/* Whether it should, in place of the library: rows fill its tiles, and tiles the multiprocessors. */
bool gemm_prefill_pays(struct dweight w, int n_rows);
bool gemm_prefill_gated_pays(struct dweight w, bool biased, int n_rows);

/* How it is cut into blocks. launch_gemm_prefill takes what gemm_prefill_cut_of says; tests and benchmarks try others.
 */
enum { GEMM_PREFILL_CUTS = 10, GEMM_PREFILL_PAIR_CUTS = 6 };
struct gemm_prefill_cut {
    int rows;    // of W in a tile, whose tokens are 256
    int sharers; // blocks of a cluster, which have the same rows and each other tokens: 1, or 2 if tokens make an even
                 // number of tiles
};
struct gemm_prefill_cut gemm_prefill_cut_at(int i);
int gemm_prefill_cut_of(struct dweight w, int n_rows);
bool gemm_prefill_takes_cut(int n_rows, int cut);
cudaError_t launch_gemm_prefill_cut(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y,
                                    int cut);
/* Likewise of pairs, whose tiles have as many gates as rows that they let through. */
struct gemm_prefill_cut gemm_prefill_pair_cut_at(int i);
int gemm_prefill_pair_cut_of(struct dweight w, bool biased, int n_rows);
bool gemm_prefill_takes_pair_cut(bool biased, int n_rows, int cut);
cudaError_t launch_gemm_prefill_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x,
                                          struct dmat y, int cut);

#ifdef __cplusplus
}
#endif
