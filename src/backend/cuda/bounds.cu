/* bounds.cu - what no key and no value of a layer passes, whatever the tokens are; found when a program is compiled.
 *
 *     x = g * r / sqrt(mean(r^2) + eps) is a row of D columns behind an ADD_NORM, so x = g * u with sum(u^2) <= D, and
 *     |W_i x + b_i| <= sqrt(D) |W_i * g| + |b_i|           (Cauchy and Schwarz)
 *
 * A rotation makes of a pair with bounds p and q at most factor * sqrt(p^2 + q^2). bound[h] is the largest of head h: of the keys' heads, then of
 * the values'. A hundredth is added for the rounding of x and of sums. Bytes: the rows of W for keys and values, once. */
#include "backend/cuda/ending.cuh"

enum { WARPS = 8, WIDEST_HEAD = 512 };

struct bounds_args {
    dweight w, g;
    const float *bias;
    bool plus_one;
    float factor;
    dheads h;
    float *bound;
};

static __device__ float row_bound(const bounds_args &a, int64_t row) {
    const char *at = static_cast<const char *>(a.w.at) + row * a.w.in * kv_element_bytes(a.w.element);
    float sum = 0;
    for (int64_t i = threadIdx.x % 32; i < a.w.in; i += 32) {
        float g = static_cast<const float *>(a.g.at)[i] + (a.plus_one ? 1.0f : 0.0f);
        float v = kv_load(at + i * kv_element_bytes(a.w.element), a.w.element) * g;
        sum += v * v;
    }
    float scale = a.w.element == ELEMENT_E4M3 ? a.w.scale[row] : 1.0f;
    return 1.01f * (sqrtf(warp_sum(sum) * (float)a.w.in) * scale + (a.bias ? fabsf(a.bias[row]) : 0.0f));
}

static __global__ void __launch_bounds__(WARPS * 32) kv_bounds(const __grid_constant__ bounds_args a) {
    __shared__ float of_row[WIDEST_HEAD], shared[32];
    let_next_start();
    wait_for_previous();
    int dim = a.h.head_dim, head = a.h.n_heads + blockIdx.x;
    for (int i = threadIdx.x / 32; i < dim; i += WARPS) {
        float bound = row_bound(a, (int64_t)head * dim + i);
        if (threadIdx.x % 32 == 0)
            of_row[i] = bound;
    }
    __syncthreads(); // all rows have theirs
    float most = 0;
    for (int i = threadIdx.x; i < dim / 2; i += blockDim.x) {
        unit_rows c = pair_channels(a.h, i);
        float p = of_row[c.first], q = of_row[c.second];
        bool turns = (int)blockIdx.x < a.h.n_kv_heads && i < a.h.rope_dim / 2;
        most = fmaxf(most, turns ? a.factor * sqrtf(p * p + q * q) : fmaxf(p, q));
    }
    most = block_max(most, shared);
    if (threadIdx.x == 0)
        a.bound[blockIdx.x] = most;
}

void launch_kv_bounds(cudaStream_t stream, struct dweight w, const float *bias, struct dweight g, bool plus_one, float factor,
                      const struct dheads *h, float *bound) {
    bounds_args a = {w, g, bias, plus_one, factor, *h, bound};
    launch_node(kv_bounds, 2 * h->n_kv_heads, WARPS * 32, 0, stream, a);
}
