/* gemm_internal.h - what gemm.c and gemm_plan.c share. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/plan_cache.h"

struct plan_of_rows {
    int rows;
    enum linear_path path;
    cublasLtMatrixLayout_t x, y;
    cublasLtMatmulAlgo_t algorithm;
};

struct gemm {
    struct backend *backend;
    const struct op *op, *act; // the GATED_ACT behind it, or NULL
    struct dweight weight;
    struct dmat x, y; // where they lie in every step; of e4m3, y is for raw products
    struct dmat made; // what kernels of ours write
    void *bias;       // in the element that the library wants
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w;
    struct plan_of_rows *plans; // [n_plans], of padded_rows_at(i) rows
    int n_plans;
};

struct plan_key gemm_shape(const struct gemm *g); // without rows, alignments and what belongs to a choice between paths

enum status gemm_refused(const struct op *op, int rows, cublasStatus_t code, struct error *err);
cublasStatus_t gemm_put(const struct gemm *g, const struct plan_of_rows *p, const cublasLtMatmulAlgo_t *algorithm, const void *weight,
                        const void *x, void *y);

/* ---- gemm_plan.c ---- */
/* Chooses an algorithm for each of g->plans, whose layouts are there. */
enum status gemm_plan(struct gemm *g, struct error *err);
