/* elementwise.cu - GATED_ACT, GATED_ADD, SOFTCAP, DIFF_HEADS: no sum over more than two elements. A block 1,024 columns of a
 * row; padding rows are computed too, since nothing reads them. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, COLUMNS = 1024 };

static dim3 grid_of(int n_rows, int width) { return dim3((width + COLUMNS - 1) / COLUMNS, n_rows); }

#define FOR_COLUMNS(i, width) \
    for (int i = blockIdx.x * COLUMNS + threadIdx.x; i < min((int)(blockIdx.x + 1) * COLUMNS, width); i += THREADS)

static __global__ void gated_act(int act, float limit, dmat gate, dmat up, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, activate(act, limit, load(gate, t, i), load(up, t, i)));
}

static __global__ void gated_add(dmat add, dmat x, dmat gate, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    float factor = gate.at ? sigmoid(load(gate, t, 0)) : 1.0f;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, load(add, t, i) + load(x, t, i) * factor);
}

static __global__ void softcap(float cap, dmat x, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.y;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, cap * tanhf(load(x, t, i) / cap));
}

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
    wait_for_previous();
    int t = blockIdx.y, n = (int)lambda.w[0].out;
    float factor = expf(dot(lambda.w[0], lambda.w[1], n)) - expf(dot(lambda.w[2], lambda.w[3], n)) + lambda_init;
    FOR_COLUMNS(i, y.width)
    store(y, t, i, load(x, t, i) - factor * load(x, t, y.width + i));
}

void launch_gated_act(const struct launch *l, int n_rows, int act, float limit, struct dmat gate, struct dmat up, struct dmat y) {
    launch_node(gated_act, grid_of(n_rows, y.width), THREADS, 0, l->stream, act, limit, gate, up, y);
}

void launch_gated_add(const struct launch *l, int n_rows, struct dmat add, struct dmat x, struct dmat gate, struct dmat y) {
    launch_node(gated_add, grid_of(n_rows, y.width), THREADS, 0, l->stream, add, x, gate, y);
}

void launch_softcap(const struct launch *l, int n_rows, float cap, struct dmat x, struct dmat y) {
    launch_node(softcap, grid_of(n_rows, y.width), THREADS, 0, l->stream, cap, x, y);
}

void launch_diff_heads(const struct launch *l, struct dmat x, const struct dweight lambda[4], float lambda_init, struct dmat y) {
    lambdas all = {{lambda[0], lambda[1], lambda[2], lambda[3]}};
    launch_node(diff_heads, grid_of(l->n_tokens, y.width), THREADS, 0, l->stream, x, all, lambda_init, y);
}
