/* launching.cuh - tensor maps, and through card.cuh how many blocks have a place. Host code. */
#pragma once

#include "backend/cuda/ptx/card.cuh"

#include "backend/cuda/value.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

/* The driver's cuTensorMapEncodeTiled for maps that are neither interleaved nor filled; false: there is none, or it
 * refuses. */
static inline bool encode_map(CUtensorMap *map, CUtensorMapDataType type, const void *at, int rank,
                              const cuuint64_t *size, const cuuint64_t *strides, const cuuint32_t *box,
                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = [] { // the process has one driver
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return result == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)found : nullptr;
    }();
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    return encode_tiled && encode_tiled(map, type, (cuuint32_t)rank, const_cast<void *>(at), size, strides, box, ones,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A map of rows of bytes, for boxes of 128 bytes of some rows, in the 128-byte swizzle; size and strides as
 * cuTensorMapEncodeTiled takes them, innermost first. Beyond the end there is zero. False: the driver refuses. */
static inline bool encode_rows(CUtensorMap *map, const void *at, int rank, const cuuint64_t *size,
                               const cuuint64_t *strides, const cuuint32_t *box, CUtensorMapL2promotion promotion) {
    return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, at, rank, size, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                      promotion);
}
