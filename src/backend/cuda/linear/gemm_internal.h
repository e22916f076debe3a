/* gemm_internal.h - what gemm.c and gemm_plan.c share. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/linear/plan_cache.h"
#include "backend/cuda/value.h"

/* One of the library's. */
struct algorithm {
    cublasLtMatmulAlgo_t words;
    size_t workspace_bytes; // what it needs
};

struct plan_of_rows {
    int rows;
    const struct linear_kernel *kernel; // that computes it; NULL: the library
    const char *why;                    // it was chosen
    cublasLtMatrixLayout_t x, y;
    struct algorithm algorithm;
};

struct gemm {
    struct loaded *loaded;
    const struct op *op, *act; // the GATED_ACT behind it, or NULL
    struct dweight weight;
    const struct dl2_copy *const *l2_copy; // [L2_COPY_SHAPES]: the weight once more, each or NULL
    struct dmat x, y;                      // where they lie in every step; of e4m3, y is for unscaled products
    struct dmat output;                    // what kernels of ours write
    void *bias;                            // in the element that the library wants
    void *counter;                         // COUNTER_BYTES, of nobody else; NULL: the workspace of all
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w;
    struct plan_of_rows *plans; // [n_plans], of padded_rows_at(i) rows
    int n_plans;
};

struct plan_key gemm_shape(const struct gemm *g); // without rows, alignments and what belongs to a choice between paths

/* rows 0: of all numbers of rows. */
enum status gemm_refused(const struct op *op, int rows, cublasStatus_t code, struct error *err);
/* What a launch reads and writes beside the weight's shape, which is the gemm's. */
struct operands {
    const void *weight, *x;
    void *y, *workspace; // as large as the algorithm needs
};
cublasStatus_t gemm_put(const struct gemm *g, const struct plan_of_rows *p, const struct algorithm *a,
                        struct operands o);

int gemm_alignment(const void *at); // in bytes, as far as the library asks

/* ---- gemm_time.c ---- */
enum { MOST_PROPOSALS = 32, MOST_WEIGHTS = 16 };
struct proposals {
    struct algorithm at[MOST_PROPOSALS];
    int n;
};
/* Up to `most` of the library's proposals, its first the first. */
enum status gemm_proposals(const struct gemm *g, const struct plan_of_rows *p, int most, struct proposals *out,
                           struct error *err);
/* Adds up to `most` of those that need no workspace, which may be none: of the ones that split sums, which do and bring
 * a node to join them, it thinks too well. What it does not propose (smaller tiles that fill the card) is up to a tenth
 * faster alone and no faster in a step, whose clock is that of the power limit. */
void gemm_add_proposals(const struct gemm *g, const struct plan_of_rows *p, int most, struct proposals *out);

/* Weights of one shape. */
struct same_shape {
    const void *at[MOST_WEIGHTS];
    int n;
};
/* Microseconds of a node of each in a graph of n of them, with the weights by turns; negative: the library cannot, or
 * it is much slower than another. Medians of replays by turns, of all rounds but the first, so that all are timed at
 * the same clock. Counters are zeroed as in a step's graph, by one node for all. Returns what a call of the device's
 * failed with, where that left none that was timed. */
cudaError_t gemm_race(const struct gemm *g, const struct plan_of_rows *p, const struct proposals *proposals,
                      const struct same_shape *same_shape, int n, int rounds, double *us);

/* ---- gemm_plan.c ---- */
/* Chooses an algorithm for each of g->plans, whose layouts are there. */
enum status gemm_plan(struct gemm *g, struct error *err);
