/* delta_norm.cu - the gated norm behind a DeltaNet layer's chunks: y = norm(o) * w * silu(z) a head, its qact, or both.
 *
 * A block a row, a warp a head at a time. The row waits in shared memory for its largest size. The arithmetic is
 * delta_decode.cu's, so a token comes out the same beside a prompt and without one.
 *
 * Bytes a row: 4 W (o) + 2 to 4 W (z) + 1 W (qact) or 2 W (y). */
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/recurrent/delta_state.cuh"

enum { NORM_THREADS = 256 };

template <int D>
static __global__ void __launch_bounds__(NORM_THREADS) delta_norm(const __grid_constant__ ddelta_layer a) {
    extern __shared__ float row[]; // [value heads * D] and 32 more
    constexpr int N = D / 32;
    let_next_start();
    int t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = a.shape.n_value_heads * D;
    float weight[N], largest = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        weight[k] = norm_weight_at(a, lane + 32 * k);
    wait_for_previous();
    const float *o = static_cast<const float *>(a.mixed.at) + t * a.mixed.stride + 2 * a.shape.n_key_heads * D;
    for (int h = warp; h < a.shape.n_value_heads; h += NORM_THREADS / 32) {
        float x[N], z[N], squares[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = o[h * D + lane + 32 * k], z[k] = load(a.z, t, h * D + lane + 32 * k);
#pragma unroll
        for (int k = 0; k < N; k++)
            squares[k] = warp_sum(x[k] * x[k]);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float y = gated_output<D>(a, x[k], squares, weight[k], z[k]);
            largest = fmaxf(largest, fabsf(y));
            row[h * D + lane + 32 * k] = y;
            if (a.y.at)
                store(a.y, t, h * D + lane + 32 * k, y);
        }
    }
    if (!a.qact.at)
        return;
    largest = block_max(largest, row + width); // all of the row is there
    float inverse = e4m3_inverse(largest);
    if (threadIdx.x == 0)
        a.qact.scale[t] = e4m3_scale(largest);
    for (int i = 4 * threadIdx.x; i < width; i += 4 * NORM_THREADS)
        store_e4m3(a.qact, t, i, *reinterpret_cast<const float4 *>(row + i) * inverse);
}

template <int D> static void launch_of_width(const struct launch *l, const ddelta_layer &a) {
    int n_bytes = (a.shape.n_value_heads * D + 32) * (int)sizeof(float);
    allow_shared(delta_norm<D>, DELTA_MOST_ROW * (int)sizeof(float)); // one number: the last that is said holds
    launch_node(delta_norm<D>, l->n_tokens, NORM_THREADS, n_bytes, l->stream, a);
}

void launch_delta_norm(const struct launch *l, const struct ddelta_layer *a) {
    switch (a->shape.key_dim) {
    case 32: launch_of_width<32>(l, *a); break;
    case 64: launch_of_width<64>(l, *a); break;
    default: launch_of_width<128>(l, *a);
    }
}
