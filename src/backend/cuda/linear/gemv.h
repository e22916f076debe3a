/* gemv.h - gemv.cu and gemv_once.cu. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gemv.cu: LINEAR of a few rows, bound by reading its weight once ---- */
enum { GEMV_MAX_ROWS = 8, GEMV_MAX_M_TILES = 3 };
/* Shared memory that a block asks for: at least hardly more than half of a multiprocessor's, so that no second one of
 * the product has a place there and one of moe_down_join.cuh has. */
enum { GEMV_SHARED_LEAST = 115840, GEMV_SHARED_MOST = 226 << 10 };
struct dgemv {
    struct dweight w;      // e4m3, f16 or bf16
    const float *bias;     // [w.out]; NULL: none
    struct dending ending; // plain or gated
    bool among_experts;    // experts run in the same step
    int held; // multiprocessors that the node before holds to its end; from a sixteenth to a quarter of all are left to
              // it
};
/* Whether it can compute that: x f16 (or bf16 with a weight of that) at addresses that are multiples of 16, whole
 * pieces of 16 bytes in a row of the weight, and shared memory for so many rows. */
bool gemv_takes(const struct dgemv *a, struct dmat x, struct dmat y, int n_rows);
void launch_gemv(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y);

/* How it is cut into blocks and warps. launch_gemv takes what gemv_cut_of says; benchmarks try others. */
struct gemv_cut {
    int m_tiles;                 // of 16 rows that a warp computes at once
    int row_warps, column_warps; // of a block; the latter a power of two
    int cluster, n_blocks;       // blocks that share the columns; all blocks
    bool deep;                   // longer queues, without a cluster
};
struct gemv_cut gemv_cut_of(const struct dgemv *a, int n_rows); // n_blocks 0: shared memory is not enough
int gemv_blocks(int cluster);                                   // that run at once, one on a multiprocessor
/* Blocks on the multiprocessors that are free while the node before runs have all their weights there when it ends;
 * those that begin with its end would be waited for. */
int gemv_blocks_for(const struct dgemv *a, int cluster);
bool gemv_takes_cut(const struct dgemv *a, int n_rows, const struct gemv_cut *cut); // whether shared memory is enough
void launch_gemv_cut(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y,
                     const struct gemv_cut *cut);

/* ---- gemv_once.cu: of those one row by e4m3, plain, whose weights are in shared memory all at once ---- */
struct gemv_once_cut {
    int n_blocks, m_tiles, n_passes; // n_blocks 0: it does not take it
    size_t bytes;                    // of shared memory
};
/* a: one that gemv_takes. The second one: by so many blocks, for tests, of one that the first one would take. */
struct gemv_once_cut gemv_once_cut_of(const struct dgemv *a, int n_rows);
struct gemv_once_cut gemv_once_cut_by(const struct dgemv *a, int n_blocks);
void launch_gemv_once(const struct launch *l, const struct dgemv *a, struct dmat x, struct dmat y,
                      const struct gemv_once_cut *c);

#ifdef __cplusplus
}
#endif
