/* moe_kernels_quads.cu - experts' kernels of weights in quads (weights/quads.h), of float16 products; see
 * moe_kernels.h. */
#include "backend/cuda/moe/moe_kernels.cuh"

const expert_kernels *expert_kernels_quads(const struct dweight &w) {
    if (w.element != ELEMENT_QUADS)
        return nullptr;
    switch (w.quads.kind) {
    case QUADS_NVFP4: return kernels_of<quads_expert<QUADS_NVFP4, 16>>();
    case QUADS_INT4:
        return w.quads.group == 32   ? kernels_of<quads_expert<QUADS_INT4, 32>>()
               : w.quads.group == 64 ? kernels_of<quads_expert<QUADS_INT4, 64>>()
                                     : kernels_of<quads_expert<QUADS_INT4, 128>>();
    default: return nullptr;
    }
}
