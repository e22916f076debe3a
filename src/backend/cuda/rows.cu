/* rows.cu - EMBED, TAKE_ROWS and the change of an element type: a block a row, threads over columns. Bytes: each row once in
 * and once out. */
#include "backend/cuda/device.cuh"

static __global__ void embed(device_plan plan, dweight table, float scale, dmat y) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.x;
    if (t >= step_tokens(plan))
        return;
    int64_t row = (int64_t)plan.token_id[t] * table.in;
    for (int i = threadIdx.x; i < y.width; i += blockDim.x)
        store(y, t, i, load(table, row + i) * scale);
}

static __global__ void take_rows(device_plan plan, dmat x, dmat y) {
    let_next_start();
    wait_for_previous();
    int r = blockIdx.x;
    if (r >= step_rows(plan))
        return;
    int t = plan.out_row[r];
    for (int i = threadIdx.x; i < y.width; i += blockDim.x)
        store(y, r, i, load(x, t, i));
}

static __global__ void convert(dmat x, dmat y) {
    let_next_start();
    wait_for_previous();
    for (int i = threadIdx.x; i < y.width; i += blockDim.x)
        store(y, blockIdx.x, i, load(x, blockIdx.x, i));
}

void launch_embed(const struct launch *l, struct dweight table, float scale, struct dmat y) {
    launch_node(embed, l->n_tokens, 256, 0, l->stream, l->plan, table, scale, y);
}

void launch_take_rows(const struct launch *l, struct dmat x, struct dmat y) {
    launch_node(take_rows, l->n_rows, 256, 0, l->stream, l->plan, x, y);
}

void launch_convert(const struct launch *l, int n_rows, struct dmat x, struct dmat y) {
    launch_node(convert, n_rows, 256, 0, l->stream, x, y);
}
