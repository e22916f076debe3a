/* gemm.h - LINEAR by cuBLASLt. */
#pragma once

#include "backend/cuda/cuda.h"

/* x and y are where they lie in a step. With a weight of e4m3, x is a qact and y gets unscaled products (value.h). */
struct gemm; // y = x W^T + b of one LINEAR, for every number of rows of a bucket
/* act: the GATED_ACT that some paths do too, or NULL; made: where they write, which get no unscaled products. */
enum status gemm_open(struct loaded *loaded, const struct op *op, const struct op *act, struct dmat x, struct dmat y,
                      struct dmat output, int max_rows, struct gemm **out, struct error *err);
void gemm_free(struct gemm *g);
/* COUNTER_BYTES that no other LINEAR of the program has: a kernel of the library whose blocks draw tiles from a counter
 * has it there, zeroed by a node that the library puts before the kernel's, unless somebody does that for all
 * (graph_gather_fills). */
void gemm_count_at(struct gemm *g, void *counter);

bool gemm_is_worth_timing(const struct gemm *g); // its weight is large
/* By the library: y = x W^T, whose bias and scales it adds unless the weight is e4m3. */
enum status gemm_run(struct gemm *g, int n_rows, struct dmat x, struct dmat y, struct error *err);
