/* fast.h - the fast functions of ops over the kernels of kernels.h, and the products that they share. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"

/* What replaces the reference of an op, and the scratch that it wants. One is defined beside each function, and its row
 * is in fast.c. */
struct fast_op {
    op_function *run;
    struct need (*need)(const struct loaded *l, const struct op *op, struct bucket bucket); // NULL: none
};
/* NULL: the reference is all there is. */
const struct fast_op *fast_op(const struct op *op);
struct need fast_need(const struct fast_op *f, const struct loaded *l, const struct op *op, struct bucket bucket);

/* A run of neighbouring positions of a KV head in a cache of int4, and the rows that meet it (fast_kv_int4.c). */
struct int4_run {
    const struct kernels *kernels;
    const struct attention_args *args;
    struct kv_int4_block block; // from the first position on
    int64_t n, rows;
    float *panel; // [max(head_dim, v_head_dim)][PANEL_ROWS]
};
/* Floats of a worker: that panel and, of shared keys, q_v. */
int64_t int4_attention_scratch(const struct attention_args *a, int64_t rows);
/* Rotates rows of queries [head_dim]; of shared keys what meets keys goes to the front of q, what meets values to q_v
 * [v_head_dim]. */
void int4_queries(const struct attention_args *a, int64_t rows, float *q, float *q_v);
/* scores = q keys, sum += p values, as they are rotated. turned: of shared keys, [v_head_dim][PANEL_ROWS]. */
void int4_score(const struct int4_run *run, const float *q, const float *q_v, float *turned, float *scores,
                int64_t stride);
void int4_add(const struct int4_run *run, const float *p, int64_t p_stride, float *sum, int64_t stride);

/* Products of one x with runs of rows of one weight. Weights are read once, however many rows x has; what a row of x
 * gives does not depend on the others. */
struct product {
    const struct kernels *kernels;
    const struct placed *weight;
    struct mat x;
    float *scratch;         // product_scratch(kernels, x.width) floats, this product's until its last run
    int arranged;           // which arrangement of x the scratch holds; 0 before the first run
    const float *shared;    // x arranged for all workers, group by group, or NULL ...
    int shared_arrangement; // ... and how
};
int64_t product_scratch(const struct kernels *k, int64_t width);

/* y [x.rows, end - begin] = x times rows [begin, end), plus bias [end - begin] (may be NULL). */
void product_rows(struct product *p, int64_t begin, int64_t end, struct mat y, const float *bias);
