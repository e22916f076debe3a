/* moe_kernels_bf16.cu - experts' kernels of bfloat16 products; see moe_kernels.h. */
#include "backend/cuda/moe/moe_kernels.cuh"

const expert_kernels *expert_kernels_bf16(const struct dweight &w) {
    switch (w.element) {
    case ELEMENT_E4M3: return kernels_of<e4m3_expert<__nv_bfloat16>>();
    case ELEMENT_MXFP4: return kernels_of<mxfp4_expert<__nv_bfloat16>>();
    case ELEMENT_F16:
    case ELEMENT_BF16: return kernels_of<plain_expert<__nv_bfloat16>>();
    default: return nullptr;
    }
}
