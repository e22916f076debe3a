/* gated_end.cuh - what the ends of tiles of gemm_fp8_gated.cu and gemm_fp8_prefill.cu have in common, where GATED_ACT
 * follows a LINEAR: scales on their way to shared memory, the hyperbolic tangent that activations are made of, the
 * largest size of a row, and how a value and its e4m3 qact are written. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

namespace {

/* An activation is gate * (1 + tanh(gate * (bend + twist * gate^2))) / 2; SiLU has a bend of 1/2, and GELU by tanh
 * these. */
const float GELU_BEND = 0.7978845608028654f, GELU_TWIST = GELU_BEND * 0.044715f; // sqrt(2 / pi)

__device__ inline void copy_four(uint32_t to, const float *from, bool there) { // zeros if not
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ inline float tanh_fast(float x) { // to 2^-11
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of pairs of the element, one by one; signs are anything, and what is not a number stays so. */
template <bool BF16> __device__ uint32_t larger_sizes(uint32_t sizes, uint32_t v) {
    uint32_t larger;
    if (BF16)
        asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v));
    else
        asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v));
    return larger;
}
/* The size in the low half, as bits of a float (dmat.absmax). */
template <bool BF16> __device__ uint32_t size_bits(uint32_t sizes) {
    return BF16 ? sizes << 16 & 0x7fff0000u
                : __float_as_uint(__half2float(__ushort_as_half((unsigned short)(sizes & 0x7fff))));
}

/* Eight of the element, times a power of two, as e4m3. */
template <bool BF16> __device__ uint2 to_e4m3(uint4 eight, float factor) {
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i] = e4m3_of_scaled_pair<BF16>(pairs[i], factor);
    return make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
}

/* By predicate: a branch for each costs a tile's end as much as what it computes. */
__device__ __forceinline__ void store_if(bool there, void *to, uint2 v) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"((uint32_t)there),
        "l"(to), "r"(v.x), "r"(v.y)
        : "memory");
}
__device__ __forceinline__ void store_if(bool there, void *to, uint4 v) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(
                     (uint32_t)there),
                 "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Eight columns of a token, if they are there, to y and, where a kernel's arguments have one, to its qact; not to y
 * what the qact tells, where that is enough. */
template <bool BF16, class ARGS>
__device__ __forceinline__ void store_octet(const ARGS &a, bool there, void *y, uint8_t *qact, uint4 eight) {
    uint2 elements = to_e4m3<BF16>(eight, a.qact_factor);
    store_if(there && a.qact, qact, elements);
    store_if(there && !(a.untold_only && qact_tells(elements)), y, eight);
}

} // namespace
