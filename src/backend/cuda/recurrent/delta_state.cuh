/* delta_state.cuh - what the fast kernels of a DeltaNet layer share: where a sequence's state is, the convolution's
 * inputs that were kept, gates. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/recurrent/delta_layer.h"

/* ---- a slot: inputs of the convolution [kernel - 1][channels] in float32, oldest first, then S [value head][D][D] in
 * float32 or bfloat16 (dcache.element) ---- */

static __device__ __forceinline__ float *kept_of(const ddelta_layer &a, int slot) {
    int64_t n_bytes = a.cache.block_elements * (a.cache.element == ELEMENT_F32 ? 4 : 2);
    return reinterpret_cast<float *>(static_cast<char *>(a.cache.at) + slot * n_bytes);
}
template <class State> static __device__ __forceinline__ State *state_of(const ddelta_layer &a, int slot, int h) {
    return reinterpret_cast<State *>(kept_of(a, slot) + a.shape.state_offset) +
           (int64_t)h * a.shape.key_dim * a.shape.value_dim;
}
static __device__ __forceinline__ float4 load_state(const float *at) { return *reinterpret_cast<const float4 *>(at); }
static __device__ __forceinline__ void store_state(float *at, float4 x) { *reinterpret_cast<float4 *>(at) = x; }

static __device__ __forceinline__ float4 load_state(const __nv_bfloat16 *at) {
    uint2 x = *reinterpret_cast<const uint2 *>(at);
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                       __uint_as_float(x.y & 0xffff0000u));
}
static __device__ __forceinline__ void store_state(__nv_bfloat16 *at, float4 x) {
    *reinterpret_cast<uint2 *>(at) = make_uint2(to_pair<true>(x.x, x.y), to_pair<true>(x.z, x.w));
}
static __device__ __forceinline__ float load_state_one(const __nv_bfloat16 *at) { return __bfloat162float(*at); }
static __device__ __forceinline__ void store_state_two(__nv_bfloat16 *at, float x, float y) {
    *reinterpret_cast<uint32_t *>(at) = to_pair<true>(x, y);
}
static __device__ __forceinline__ float load_state_one(const float *at) { return *at; }
static __device__ __forceinline__ void store_state_two(float *at, float x, float y) {
    *reinterpret_cast<float2 *>(at) = make_float2(x, y);
}

/* Rows of u that a slot keeps, and b and a of a value head (delta.h). */
static __device__ __forceinline__ float *kept_rows(const ddelta_layer &a, float *slot) {
    return reinterpret_cast<float *>(reinterpret_cast<char *>(slot) + a.back.rows);
}
static __device__ __forceinline__ float *kept_u(const ddelta_layer &a, float *slot, int position) {
    return kept_rows(a, slot) + (int64_t)(position % a.back.n) * a.back.conv_width;
}
static __device__ __forceinline__ float *kept_gates(const ddelta_layer &a, float *slot, int position, int h) {
    return kept_rows(a, slot) + (int64_t)a.back.n * a.back.conv_width +
           (int64_t)(position % a.back.n) * a.back.delta_width + a.u.width + h;
}

/* Tokens of a sequence of the step that go by chunks; 0: they are walked one by one, as are those of which the state
 * can go back to one before. */
static __device__ __forceinline__ int chunked_tokens(const ddelta_layer &a, const device_plan &p, int seq) {
    int first = p.query_start[seq], n = p.query_start[seq + 1] - first;
    if (n <= DELTA_FEW_TOKENS)
        return 0;
    if (a.back.n == 0)
        return n;
    int position = p.position[first];
    return a.back.base[seq] == position && a.back.kept[seq] == position + n ? n : 0;
}

/* Asks for so many bytes in L2, by all threads of the block. */
static __device__ __forceinline__ void prefetch_bytes(const void *at, int n_bytes) {
    for (int i = threadIdx.x * 128; i < n_bytes; i += blockDim.x * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(at) + i));
}

// ---- the convolution: DELTA_TAPS weights, the first of them zero where the kernel is shorter ------------------------

static __device__ __forceinline__ float tap(const ddelta_layer &a, int channel, int j) {
    int own = j - (DELTA_TAPS - a.kernel);
    return own >= 0 ? load(a.conv, (int64_t)channel * a.kernel + own) : 0.0f;
}
/* Input j of the DELTA_TAPS - 1 before the step's first token. */
static __device__ __forceinline__ float kept_input(const ddelta_layer &a, const float *kept, int channel, int j) {
    int own = j - (DELTA_TAPS - a.kernel);
    return own >= 0 ? kept[(int64_t)own * a.u.width + channel] : 0.0f;
}
static __device__ __forceinline__ void keep_input(const ddelta_layer &a, float *kept, int channel, int j, float x) {
    int own = j - (DELTA_TAPS - a.kernel);
    if (own >= 0)
        kept[(int64_t)own * a.u.width + channel] = x;
}

// ---- gates and the norm ---------------------------------------------------------------------------------------------

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

static __device__ __forceinline__ float norm_weight_at(const ddelta_layer &a, int i) {
    return (a.norm.at ? load(a.norm, i) + a.plus : 1.0f) * a.scale;
}

/* Of o; squares: of its head, summed by 32 channels. */
template <int D>
static __device__ __forceinline__ float gated_output(const ddelta_layer &a, float o, const float *squares, float weight,
                                                     float z) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        sum += squares[i];
    return o * rsqrtf(sum * (1.0f / D) + a.eps) * weight * silu(z);
}
