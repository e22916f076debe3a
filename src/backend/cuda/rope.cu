/* rope.cu - the angles of a step's rows, once a step and rope: a block a row, a thread a pair. As core/rope.c, in float32. */
#include "backend/cuda/device.cuh"

static __global__ void rope_angles(device_plan plan, drope rope) {
    let_next_start();
    wait_for_previous();
    int t = blockIdx.x, half = rope.dim / 2;
    if (t >= step_tokens(plan))
        return;
    int64_t n_known = plan.n_known[plan.seq_of_row[t]];
    const float *freq = rope.inv_freq;
    float factor = rope.factor;
    double theta = 0;
    if (rope.by_length != 0 && n_known > rope.original_context) {
        if (rope.by_length == 1) {
            freq = rope.inv_freq_long;
            factor = rope.factor_long;
        } else {
            double s = (double)n_known / (double)rope.original_context;
            theta = rope.theta * pow(rope.scaling * s - (rope.scaling - 1), (double)rope.dim / (rope.dim - 2));
        }
    }
    float *out = rope.cos_sin + (int64_t)t * rope.dim;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float f = theta > 0 ? (float)(1.0 / pow(theta, 2.0 * i / rope.dim)) : freq[i];
        float angle = (float)plan.position[t] * f;
        out[i] = cosf(angle) * factor;
        out[half + i] = sinf(angle) * factor;
    }
}

void launch_rope_angles(const struct launch *l, const struct drope *rope) {
    launch_node(rope_angles, l->n_tokens, 128, 0, l->stream, l->plan, *rope);
}
