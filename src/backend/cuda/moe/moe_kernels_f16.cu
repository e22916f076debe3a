/* moe_kernels_f16.cu - experts' kernels of float16 products; see moe_kernels.h. */
#include "backend/cuda/moe/moe_kernels.cuh"

const expert_kernels *expert_kernels_f16(const struct dweight &w) {
    switch (w.element) {
    case ELEMENT_E4M3: return kernels_of<e4m3_expert<__half>>();
    case ELEMENT_MXFP4: return kernels_of<mxfp4_expert<__half>>();
    case ELEMENT_F16:
    case ELEMENT_BF16: return kernels_of<plain_expert<__half>>();
    default: return nullptr;
    }
}
