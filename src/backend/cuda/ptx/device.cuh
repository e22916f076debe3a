/* device.cuh - what the kernels share: how a node is started, elements of any type as floats, reductions, places in the
 * cache.
 *
 * How a node is started. Kernels of a step follow one another on one stream, each needing what those before it wrote.
 * launch_node lets a kernel start while the one before it still runs (programmatic dependent launch; in a captured
 * graph a programmatic edge), so that launching, the weights' first loads and the like are over when the inputs are
 * there. Nothing but the kernel itself then keeps the order, by three rules:
 *
 *   1. Every thread that reads what an earlier node wrote, or writes what an earlier node reads or writes, calls
 *      wait_for_previous() first. Values of a step share memory by liveness, so that holds for all outputs; for the
 * plan as well, since nodes may write parts of it. Weights are never written: they may be read before.
 *   2. Every thread block calls it, also one that has nothing to do, before it returns. The wait ends when the grid
 * before has ended, and says nothing about the grids before that one. That they ended too follows only if that grid
 * could not end without having waited, and so on: thus the residual that was written three nodes ago is there.
 *   3. let_next_start() says that this block does not mind the next node's being started. The next starts when all
 * blocks of this grid have said so or ended, so it never takes the place of one of them; in the memory and registers
 * they leave, it waits. It publishes nothing. A kernel that does not call it says so by ending.
 *
 * A node that others put on the stream (cuBLASLt, copies) has plain edges: it starts when all before it have ended and
 * been seen; a kernel that launch_node starts behind one waits for it like for any other. A kernel that breaks rule 1
 * or 2 is wrong only when the one before it is slow, which no test can count on: begin every kernel with both calls and
 * move them only with a reason. GYRE_EARLY_START=0 in the environment starts nodes one after another: to measure, and
 * to tell a missing wait from other faults. */
#pragma once

#include "backend/cuda/ptx/arch.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/value.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <utility>

inline bool nodes_start_early() {
    static const bool wanted = !getenv("GYRE_EARLY_START") || atoi(getenv("GYRE_EARLY_START")) != 0;
    return wanted && compute_capability() >= 90;
}

/* Puts the kernel on the stream; a fault shows as cudaGetLastError. The kernel keeps the rules above. */
template <class... Parameters, class... Arguments>
inline void launch_node(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                        Arguments &&...arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {grid, block, shared, stream, &early, nodes_start_early() ? 1u : 0u};
    cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/* Likewise in clusters of so many blocks; the fault is returned too. */
template <class... Parameters, class... Arguments>
inline cudaError_t launch_cluster(void (*kernel)(Parameters...), dim3 grid, int cluster, dim3 block, size_t shared,
                                  cudaStream_t stream, Arguments &&...arguments) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)cluster,
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {grid, block, shared, stream, attributes, cluster > 1 ? 2u : 1u};
    return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/* Before Hopper nodes start one after another: there is nothing to wait for. */
__device__ inline void wait_for_previous() {
#if GYRE_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if GYRE_HOPPER
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline float load(const void *at, int64_t i, element e) {
    if (e == ELEMENT_F32)
        return static_cast<const float *>(at)[i];
    return e == ELEMENT_F16 ? __half2float(static_cast<const __half *>(at)[i])
                            : __bfloat162float(static_cast<const __nv_bfloat16 *>(at)[i]);
}

/* Half precision ends at 65504: what is larger becomes that, as an infinity would spoil every row that it is summed
 * into. What is not a number stays so, to be found in logits: the smaller size, and the sign of x. */
__device__ inline __half to_half(float x) {
#if GYRE_HOPPER
    asm("min.NaN.xorsign.abs.f32 %0, %0, %1;" : "+f"(x) : "f"(65504.0f));
#else
    x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
#endif
    return __float2half_rn(x);
}
__device__ inline uint32_t finite_halves(__half2 x) {
#if GYRE_HOPPER
    uint32_t y;
    asm("min.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(y) : "r"(reinterpret_cast<uint32_t &>(x)), "r"(0x7bff7bffu));
    return y;
#else
    __half2 most = __float2half2_rn(65504.0f), y = __hmax2_nan(__hmin2_nan(x, most), __hneg2(most));
    return reinterpret_cast<uint32_t &>(y);
#endif
}

__device__ inline void store(void *at, int64_t i, element e, float x) {
    if (e == ELEMENT_F32)
        static_cast<float *>(at)[i] = x;
    else if (e == ELEMENT_F16)
        static_cast<__half *>(at)[i] = to_half(x);
    else
        static_cast<__nv_bfloat16 *>(at)[i] = __float2bfloat16_rn(x);
}

/* A unscaled product as a value; `factor` is its row's scale. */
__device__ inline float unscaled_value(const dmat &raw, float factor, int col, float x) {
    return x * (factor * raw.col_scale[col]) + (raw.bias ? raw.bias[col] : 0.0f);
}

/* Of any value, unscaled products too. */
__device__ inline float load(const dmat &m, int64_t row, int col) {
    float x = load(m.at, row * m.stride + col, m.element);
    return m.col_scale ? unscaled_value(m, m.row_scale[row], col, x) : x;
}
__device__ inline void store(const dmat &m, int64_t row, int col, float x) {
    store(m.at, row * m.stride + col, m.element, x);
}
__device__ inline float load(const dweight &w, int64_t i) { return load(w.at, i, w.element); }

__device__ inline float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Sum over the block, known to every thread. `shared` holds 32 floats; all threads call it, and may use shared again at
 * once. */
__device__ inline float block_sum(float x, float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads(); // every warp's sum is there
    x = warp_sum(lane < n_warps ? shared[lane] : 0.0f);
    __syncthreads(); // everybody has read them
    return x;
}

__device__ inline float block_max(float x, float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
    x = warp_max(x);
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = warp_max(lane < n_warps ? shared[lane] : -INFINITY);
    __syncthreads();
    return x;
}

/* What a warp found largest in a row, into dmat.absmax. All lanes call it; size >= 0 or not a number. */
__device__ inline void fold_absmax(uint32_t *most, int64_t row, float size) {
    uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(size));
    if (threadIdx.x % 32 == 0)
        atomicMax(most + row, bits);
}

/* By all threads alike; `adds` holds for one of them. */
__device__ inline void add_to_counter(const dcounter &t, int n, bool adds) {
    if (adds && n > 0)
        atomicAdd(t.at, (unsigned long long)n);
}

__device__ inline int step_tokens(const device_plan &p) { return p.counts[0]; }
__device__ inline int step_seqs(const device_plan &p) { return p.counts[1]; }
__device__ inline int step_rows(const device_plan &p) { return p.counts[2]; }
__device__ inline int step_rows_not_plain(const device_plan &p) { return p.counts[3]; }

/* The first element of the block that holds a position of a sequence. */
__device__ inline int64_t block_start(const device_plan &p, const dcache &c, int block_size, int seq, int position) {
    int block = p.block_table[c.group][(int64_t)seq * p.table_width[c.group] + position / block_size];
    return block * c.block_elements;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

/* core/ops.h activation, in its order. */
__device__ inline float activate(int act, float limit, float gate, float up) {
    switch (act) {
    case 0: return silu(gate) * up;
    case 1: return 0.5f * gate * (1.0f + tanhf(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate))) * up;
    case 2: return 0.5f * gate * (1.0f + erff(gate * 0.7071067811865476f)) * up;
    case 3: return sigmoid(gate) * up;
    default: {
        float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        return (u + 1.0f) * g * sigmoid(1.702f * g);
    }
    }
}
