/* diff_heads.cu - DIFF_HEADS: y = o1 - lambda * o2 of head pairs, lambda = exp(q1.k1) - exp(q2.k2) + lambda_init.
 *
 * A block makes 1,024 columns of a row, and lambda for itself: four vectors of a head's width are read by each, which
 * the L2 has. Bytes a row: those of x and y. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/own_op.h"

enum { THREADS = 256, COLUMNS = 1024 };

struct lambdas {
    dweight w[4];
};

static __device__ float dot(const dweight &a, const dweight &b, int n) {
    float sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        sum += load(a, i) * load(b, i);
    return warp_sum(sum);
}

static __global__ void diff_heads(dmat x, lambdas lambda, float lambda_init, dmat y) {
    let_next_start();
    int t = blockIdx.y, n = (int)lambda.w[0].out;
    float factor = expf(dot(lambda.w[0], lambda.w[1], n)) - expf(dot(lambda.w[2], lambda.w[3], n)) + lambda_init;
    wait_for_previous();
    for (int i = blockIdx.x * COLUMNS + threadIdx.x; i < min((int)(blockIdx.x + 1) * COLUMNS, y.width); i += THREADS)
        store(y, t, i, load(x, t, i) - factor * load(x, t, y.width + i));
}

CUDA_OP(diff_heads) {
    const struct dweight *w = o->floats;
    lambdas all = {{w[0], w[1], w[2], w[3]}};
    dim3 grid((o->out[0].width + COLUMNS - 1) / COLUMNS, o->n_rows);
    launch_node(diff_heads, grid, THREADS, 0, l->stream, o->in[0], all, o->args->diff_heads.lambda_init, o->out[0]);
}
