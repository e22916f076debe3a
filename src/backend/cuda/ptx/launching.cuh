/* launching.cuh - what the launchers of products ask of the driver: tensor maps, and how many blocks have a place. Host code. */
#pragma once

#include "backend/cuda/value.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

/* A map of rows of bytes, for boxes of 128 bytes of some rows, in the 128-byte swizzle; size and strides as cuTensorMapEncodeTiled takes
 * them, innermost first. Beyond the end there is zero. False: the driver refuses. */
static inline bool encode_rows(CUtensorMap *map, const void *at, int rank, const cuuint64_t *size, const cuuint64_t *strides,
                               const cuuint32_t *box, CUtensorMapL2promotion promotion) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return result == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)found : nullptr;
    }();
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    return encode_tiled && encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, const_cast<void *>(at), size, strides, box, ones,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* How many blocks of a kernel that fills a multiprocessor run at once: in clusters not all multiprocessors have a place. */
template <class K> static int blocks_at_once(K *kernel, int cluster, int n_threads, int n_shared) {
    int device = 0, n = 0, n_clusters = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {dim3(n / cluster * cluster), dim3(n_threads), (size_t)n_shared, nullptr, &attribute, 1};
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_shared);
    if (cudaOccupancyMaxActiveClusters(&n_clusters, kernel, &config) != cudaSuccess || n_clusters == 0)
        n_clusters = 1; // the launch says why
    return (n_clusters < n / cluster ? n_clusters : n / cluster) * cluster;
}
