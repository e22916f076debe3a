/* gemm_fp8_small_m_ending.cuh - what gemm_fp8_small_m.cu makes of its sums (struct dending), compiled for each ending
 * and element of y.
 *
 * The tensor core leaves a lane the sums of two rows of W by two tokens, for every eight tokens: lane 4g + t has row g
 * of an octet and row g of the next one, tokens 2t and 2t + 1. Of endings in pairs the second octet holds the partners
 * of the first. So a lane ends two units of two tokens at a time; eight by eight values of 16 bits are then turned
 * (movmatrix), so that a lane has two neighbouring columns of a token, and four lanes write 16 bytes of its row. Of
 * float32, eight lanes write 32. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/qact/requant.cuh"
#include "backend/cuda/value.h"

struct small_m_args {
    const float *w_scale, *bias, *x_scale;
    dmat y;
    dending ending;
    int n_units; // columns of y, or pairs of rows
    int n_tokens, n_pieces, octets, n_tiles, n_stages, split, ring_bytes;
    dmat qact;            // at NULL: none
    float qact_factor;    // 1 / static_scale
    requant_args requant; // of PLAIN
};

/* The endings as kernels have them: activations that models of size have are written out. */
enum variant { PLAIN, GATED_SILU, GATED_GELU_TANH, GATED_OTHER };
/* In code: once in a kernel, not for every eight tokens, since a node's first time through its instructions waits for
 * each. */
static __host__ __device__ constexpr bool is_long(variant v) { return v == GATED_OTHER; }
static __host__ __device__ constexpr bool is_gated(variant v) { return v != PLAIN; }

/* The larger of two sizes; what is not a number is larger than any. */
static __device__ float larger(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

/* x / (1 + e^-k), within 1e-5 of its size for |k| up to 80: the exponent's rounding; ex2 and rcp are right to 2 units
 * in the last place. */
static __device__ float times_sigmoid(float x, float k) { return __fdividef(x, 1.0f + __expf(-k)); }

template <variant E> static __device__ float ended_pair(const small_m_args &a, float gate, float up) {
    if constexpr (E == GATED_SILU)
        return times_sigmoid(gate, gate) * up;
    else if constexpr (E == GATED_GELU_TANH) // (1 + tanh(u)) / 2 is the sigmoid of 2u
        return times_sigmoid(gate, 2 * 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate)) * up;
    else
        return activate(a.ending.act, a.ending.limit, gate, up);
}

/* Two values of half precision in 32 bits, the first in the low ones. */
template <class Y> struct halves;
template <> struct halves<__half> {
    using pair = __half2;
    static constexpr bool BF16 = false;
    static __device__ pair of(float low, float high) { // as to_half, but what is not a number stays so
        pair v = __floats2half2_rn(low, high), most = __float2half2_rn(65504.0f);
        return __hmax2_nan(__hmin2_nan(v, most), __hneg2(most));
    }
    static __device__ float2 floats(pair v) { return __half22float2(v); }
};
template <> struct halves<__nv_bfloat16> {
    using pair = __nv_bfloat162;
    static constexpr bool BF16 = true;
    static __device__ pair of(float low, float high) { return __floats2bfloat162_rn(low, high); }
    static __device__ float2 floats(pair v) { return __bfloat1622float2(v); }
};

/* What a lane needs of its two rows of W to finish sums. */
struct row_pair {
    int octet[2]; // of units, whole warps agree; -1: none. In pairs both are the same
    float scale[2], bias[2];
};

template <variant E> static __device__ row_pair rows_of_lane(const small_m_args &a, int tile, int warp) {
    row_pair r;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int octet = tile * a.octets + (E == PLAIN ? warp * 2 + half : warp), unit = octet * 8 + threadIdx.x % 32 / 4;
        bool there = octet < (tile + 1) * a.octets && unit < a.n_units;
        int row = there ? unit + (E != PLAIN && half ? a.n_units : 0) : 0;
        r.octet[half] = there ? octet : -1;
        r.scale[half] = there ? a.w_scale[row] : 0;
        r.bias[half] = there && a.bias ? a.bias[row] : 0;
    }
    return r;
}

/* Values of eight columns by eight tokens as pairs of 16 bits, turned: two columns, 2 (lane % 4) and the next, of token
 * lane / 4. */
template <class Y> static __device__ uint32_t turned_halves(float v0, float v1) {
    typename halves<Y>::pair pair = halves<Y>::of(v0, v1);
    return turn_matrix(reinterpret_cast<uint32_t &>(pair));
}

/* Into y and its qact, and each row's largest size, as it was rounded, into `most`, of the token that the lane then
 * has. */
template <class Y, bool GATED>
static __device__ void write_eight(const small_m_args &a, int octet, int first_token, float v0, float v1, float &most) {
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(Y) == 4) {
        int token = first_token + lane % 4 * 2;
        float *to = static_cast<float *>(a.y.at) + token * a.y.stride + octet * 8 + lane / 4;
        if (token < a.n_tokens)
            to[0] = v0;
        if (token + 1 < a.n_tokens)
            to[a.y.stride] = v1;
    } else {
        int token = first_token + lane / 4;
        uint32_t turned = turned_halves<Y>(v0, v1);
        float2 v = halves<Y>::floats(reinterpret_cast<typename halves<Y>::pair &>(turned));
        most = larger(most, larger(fabsf(v.x), fabsf(v.y)));
        int column = octet * 8 + lane % 4 * 2;
        if (token < a.n_tokens)
            *reinterpret_cast<uint32_t *>(static_cast<Y *>(a.y.at) + token * a.y.stride + column) = turned;
        if (GATED && a.qact.at && token < a.n_tokens)
            *reinterpret_cast<uint16_t *>(static_cast<uint8_t *>(a.qact.at) + token * a.qact.stride + column) =
                e4m3_of_scaled_pair<halves<Y>::BF16>(turned, a.qact_factor);
    }
}

// ---- all of them ----------------------------------------------------------------------------------------------------

/* Sums of eight tokens by a lane's two rows; x_scale: of all tokens. */
template <variant E, class Y>
static __device__ void finish(const small_m_args &a, const row_pair &r, const float *x_scale, int first_token,
                              float4 sums, float &most) {
    int mine = first_token + threadIdx.x % 4 * 2;
    float x0 = x_scale[mine], x1 = x_scale[mine + 1];
    float low[2] = {sums.x * (r.scale[0] * x0) + r.bias[0], sums.y * (r.scale[0] * x1) + r.bias[0]};
    float high[2] = {sums.z * (r.scale[1] * x0) + r.bias[1], sums.w * (r.scale[1] * x1) + r.bias[1]};
    if (E == PLAIN) {
        if (r.octet[0] >= 0)
            write_eight<Y, false>(a, r.octet[0], first_token, low[0], low[1], most);
        if (r.octet[1] >= 0)
            write_eight<Y, false>(a, r.octet[1], first_token, high[0], high[1], most);
    } else if (r.octet[0] >= 0) {
        write_eight<Y, true>(a, r.octet[0], first_token, ended_pair<E>(a, low[0], high[0]),
                             ended_pair<E>(a, low[1], high[1]), most);
    }
}

/* Each row's largest size, of what a warp has of it, into the block's and then the rows'. A lane has token 8j + lane
 * / 4. */
template <int N>
static __device__ void gather_most(const small_m_args &a, const float (&most)[N / 8], uint32_t *of_block,
                                   int n_consumers) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float m = larger(most[j], __shfl_xor_sync(0xffffffffu, most[j], 1));
        m = larger(m, __shfl_xor_sync(0xffffffffu, m, 2));
        if (threadIdx.x % 4 == 0)
            atomicMax(&of_block[j * 8 + threadIdx.x % 32 / 4], __float_as_uint(m));
    }
    threads_sync(1, n_consumers); // all warps' are there
    if (threadIdx.x < a.n_tokens)
        atomicMax(&a.y.absmax[threadIdx.x], of_block[threadIdx.x]);
}
