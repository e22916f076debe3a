/* gemm_fp8_small_m.h - gemm_fp8_small_m.cu. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemm_fp8_small_m.cu: LINEAR of some tens of rows, e4m3 by e4m3 on the tensor core, bound by reading its weight
 * once ---- */
enum { SMALL_M_MAX_ROWS = 64 };
struct dsmall_m {
    struct dweight w;  // e4m3
    const float *bias; // [w.out]; NULL: none
    struct dending ending;
    struct dmat qact;        // of y, of GATED: written too, by its static_scale; at NULL: none
    struct drequant requant; // of x
};
/* Whether it can compute that: x e4m3 with a scale a row; w.in a multiple of 16, units of 8, w and x at multiples of 16
 * bytes; y of 16 bits, or float32 if PLAIN. Of GATED y may have most. */
bool small_m_takes(const struct dsmall_m *a, struct dmat x, struct dmat y, int n_rows);
cudaError_t launch_gemm_small_m(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x,
                                struct dmat y);

/* How it is cut into blocks. launch_gemm_small_m takes what small_m_cut_of says; benchmarks try others. */
struct small_m_cut {
    int octets;   // of columns of y in a tile
    int split;    // blocks that share a tile, each with some of its terms; 1, or all tiles are computed at once
    int n_blocks; // a multiple of split, which is 8 at most
    int n_stages; // of the ring: 2 at least
};
struct small_m_cut small_m_cut_of(const struct dsmall_m *a, int n_rows);
cudaError_t launch_gemm_small_m_cut(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x,
                                    struct dmat y, const struct small_m_cut *cut);

#ifdef __cplusplus
}
#endif
