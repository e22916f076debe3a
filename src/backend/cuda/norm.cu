/* norm.cu - ADD_NORM, NORM: root mean square norms.
 *
 *     r = (x + d) * r_scale;  y = r / sqrt(mean(r^2) + eps) * w        a block a row (ADD_NORM), a block a row and group (NORM)
 *
 * ADD_NORM of a row is all latency: 1,024 threads hold the sum in registers, so that each of x, d, r and y crosses memory once.
 * On an H200 a row of 3,584 took 15.3 us with 256 threads that read r again. Wider rows than WIDEST are read again by the
 * others. Rows of the padding of a step are left alone. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, WIDE_THREADS = 1024, HELD = 8, WIDEST = WIDE_THREADS * HELD };

static __device__ float weight_at(const dweight &w, int i, bool plus_one) { return w.at ? load(w, i) + (plus_one ? 1.0f : 0.0f) : 1.0f; }

static __device__ float added(const dmat &x, const dmat &d, float scale, int t, int i) {
    return (load(x, t, i) + (d.at ? load(d, t, i) : 0.0f)) * scale;
}

static __global__ void __launch_bounds__(WIDE_THREADS)
    add_norm(device_plan plan, dmat x, dmat d, dweight w, dweight r_scale, float eps, bool plus_one, dmat r, dmat y) {
    let_next_start();
    wait_for_previous();
    __shared__ float shared[32];
    int t = blockIdx.x;
    if (t >= step_tokens(plan))
        return;
    float scale = r_scale.at ? load(r_scale, 0) : 1.0f, sum = 0, held[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = threadIdx.x + k * blockDim.x;
        held[k] = i < x.width ? added(x, d, scale, t, i) : 0.0f;
        sum += held[k] * held[k];
    }
    for (int i = threadIdx.x + HELD * blockDim.x; i < x.width; i += blockDim.x) {
        float v = added(x, d, scale, t, i);
        store(r, t, i, v);
        sum += v * v;
    }
    float factor = 1.0f / sqrtf(block_sum(sum, shared) / x.width + eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = threadIdx.x + k * blockDim.x;
        if (i < x.width) {
            store(r, t, i, held[k]);
            store(y, t, i, held[k] * factor * weight_at(w, i, plus_one));
        }
    }
    for (int i = threadIdx.x + HELD * blockDim.x; i < x.width; i += blockDim.x) // its own stores: no barrier
        store(y, t, i, load(r, t, i) * factor * weight_at(w, i, plus_one));
}

static __global__ void norm(int n_rows, dmat x, dmat gate, dweight w, float eps, bool plus_one, int group, float scale, dmat y) {
    let_next_start();
    wait_for_previous();
    __shared__ float shared[32];
    int t = blockIdx.y, col = blockIdx.x * group;
    float sum = 0;
    for (int i = threadIdx.x; i < group; i += blockDim.x) {
        float v = load(x, t, col + i);
        sum += v * v;
    }
    float factor = 1.0f / sqrtf(block_sum(sum, shared) / group + eps);
    for (int i = threadIdx.x; i < group; i += blockDim.x) {
        float v = load(x, t, col + i) * factor * weight_at(w, i, plus_one) * scale;
        store(y, t, col + i, gate.at ? v * silu(load(gate, t, col + i)) : v);
    }
}

void launch_add_norm(const struct launch *l, struct dmat x, struct dmat d, struct dweight w, struct dweight r_scale, float eps,
                     bool plus_one, struct dmat r, struct dmat y) {
    int threads = x.width <= WIDEST / 4 ? THREADS : WIDE_THREADS;
    launch_node(add_norm, l->n_tokens, threads, 0, l->stream, l->plan, x, d, w, r_scale, eps, plus_one, r, y);
}

void launch_norm(const struct launch *l, int n_rows, struct dmat x, struct dmat gate, struct dweight w, float eps, bool plus_one, int group,
                 float scale, struct dmat y) {
    dim3 grid(x.width / group, n_rows);
    launch_node(norm, grid, group >= THREADS ? THREADS : (group + 31) / 32 * 32, 0, l->stream, n_rows, x, gate, w, eps, plus_one, group,
                scale, y);
}
