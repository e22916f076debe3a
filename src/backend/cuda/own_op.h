/* own_op.h - an op that is a node of its own with the arguments of its record, in the .cu file of its kernel:
 *
 *     CUDA_OP(diff_heads) {
 *         launch_node(diff_heads, grid, THREADS, 0, l->stream, o->in[0], o->args->diff_heads.lambda_init, o->out[0]);
 *     }
 *
 * That file is all that the backend needs: build.mk lists them (cuda_ops.h), and step/lower.c makes nodes of them.
 * Values are float32 or a product's element (value.h), rows of padding are there to be read, and what does not start
 * shows as cudaGetLastError. */
#pragma once

#include "backend/cuda/value.h"
#include "core/ops.h"

struct own_op {
    int n_rows;                           // that the step is launched for
    const struct dmat *in, *out;          // [OP_MAX_IN], [OP_MAX_OUT]; at NULL: absent
    const struct dweight *matrix, *floats; // [OP_MAX_WEIGHTS]: as products and as sums read them
    const union op_args *args;
};

#define CUDA_OP(function) extern "C" void cuda_op_##function(const struct launch *l, const struct own_op *o)
