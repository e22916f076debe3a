/* static_scale.cu - how large a gated product of normed rows is going to be, by its weights; see static_scale.c.
 *
 *     squares[j] = (sum_k (w[j, k] n[k])^2 + b[j]^2) * (sum_k (w[F + j, k] n[k])^2 + b[F + j]^2)          n the norm's
 *                                                                                                         weight
 *
 * A warp a column j. All of w is read, once, when a program is compiled: 1 ms of Qwen2.5-7B. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/qact/static_scale.h"
#include "backend/cuda/value.h"

#include <cuda_fp8.h>

enum { WARPS = 8, PIECE = 16 }; // of a block; e4m3 that a lane reads at once

static __device__ float norm_at(const dgated_sizes &g, int64_t k) { return (g.plus_one ? 1.0f : 0.0f) + g.norm[k]; }

/* Of one row of w, known to all lanes. */
static __device__ float variance(const dgated_sizes &g, int64_t row, int lane) {
    const uint8_t *w = static_cast<const uint8_t *>(g.w.at) + row * g.w.in;
    float sum = 0;
    for (int64_t k = lane * PIECE; k < g.w.in; k += 32 * PIECE) {
        uint4 piece = *reinterpret_cast<const uint4 *>(w + k);
        const uint8_t *codes = reinterpret_cast<const uint8_t *>(&piece);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            float v = __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[i], __NV_E4M3))) * norm_at(g, k + i);
            sum = fmaf(v, v, sum);
        }
    }
    float bias = g.bias ? g.bias[row] : 0, scale = g.w.scale[row];
    return warp_sum(sum) * (scale * scale) + bias * bias;
}

static __global__ void __launch_bounds__(WARPS * 32) gated_sizes(dgated_sizes g, float *squares) {
    int64_t column = blockIdx.x * WARPS + threadIdx.x / 32, n = g.w.out / 2;
    int lane = threadIdx.x % 32;
    if (column >= n)
        return;
    float gate = variance(g, column, lane), up = variance(g, n + column, lane);
    if (lane == 0)
        squares[column] = gate * up;
}

void launch_gated_sizes(cudaStream_t stream, const struct dgated_sizes *g, float *squares) {
    gated_sizes<<<(unsigned)((g->w.out / 2 + WARPS - 1) / WARPS), WARPS * 32, 0, stream>>>(*g, squares);
}
