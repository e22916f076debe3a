/* cudart_driver.c - see runtime.h: functions of the driver, which programs ask for by name, and tensor maps. */
#include "runtime.h"
#include "tensor_map.h"

#include <string.h>

static int bytes_of(CUtensorMapDataType type) {
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: runtime_unknown("a tensor map of elements of type %d", (int)type);
    }
}

static int span_of(CUtensorMapSwizzle swizzle) {
    switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: return INT32_MAX;
    case CU_TENSOR_MAP_SWIZZLE_32B: return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B: return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B: return 128;
    default: runtime_unknown("a tensor map with swizzle %d", (int)swizzle);
    }
}

/* As cuda.h says what it asks for. */
static CUresult encode_tiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
                             const cuuint64_t *size, const cuuint64_t *strides, const cuuint32_t *box,
                             const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                             CUtensorMapFloatOOBfill fill) {
    int bytes = bytes_of(type), span = span_of(swizzle);
    bool is_float = type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    struct tensor_map m = {
        .magic = TENSOR_MAP_MAGIC, .rank = (uint8_t)rank, .element_bytes = (uint8_t)bytes, .swizzle = (uint8_t)swizzle};
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        runtime_unknown("an interleaved tensor map");
    if (!out || (uintptr_t)out % 64 || rank < 1 || rank > TENSOR_MAP_MOST_RANK || !address || (uintptr_t)address % 16 ||
        !size || !box || !element_strides || (rank > 1 && !strides) ||
        (int)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float))
        return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * (cuuint32_t)bytes % 16 || (int)box[0] * bytes > span)
        return CUDA_ERROR_INVALID_VALUE;
    m.address = (uintptr_t)address;
    m.fills_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    for (cuuint32_t d = 0; d < rank; d++) {
        cuuint64_t stride = d ? strides[d - 1] : (cuuint64_t)bytes;
        if (size[d] < 1 || size[d] > (cuuint64_t)1 << 32 || box[d] < 1 || box[d] > 256 || element_strides[d] < 1 ||
            element_strides[d] > 8 || (d && (stride % 16 || stride >= (cuuint64_t)1 << 40)))
            return CUDA_ERROR_INVALID_VALUE;
        m.stride[d] = stride;
        m.size_less_1[d] = (uint32_t)(size[d] - 1);
        m.box[d] = (uint16_t)box[d];
        m.element_stride[d] = d ? (uint8_t)element_strides[d] : 1;
    }
    memcpy(out, &m, sizeof m);
    return CUDA_SUCCESS;
}

static const struct driver_function tensor_functions[] = {{"cuTensorMapEncodeTiled", (void *)encode_tiled},
                                                          {NULL, NULL}};

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    static const struct driver_function *const lists[] = {tensor_functions, memory_functions, graph_functions};
    (void)version, (void)flags;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct driver_function *f = lists[i]; f->name; f++)
            if (strcmp(f->name, name) == 0) {
                *out = f->at;
                *result = cudaDriverEntryPointSuccess;
                return cudaSuccess;
            }
    runtime_unknown("the driver is asked for %s", name);
}
