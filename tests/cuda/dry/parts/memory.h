/* memory.h - part of device.c: memory, copies and the driver that maps it. */
#pragma once

// ---- memory -----------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void **out, size_t n_bytes) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (n_bytes > TOTAL - held)
        return told(cudaErrorMemoryAllocation);
    void *at = n_bytes >= LARGE
                   ? mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                   : calloc(n_bytes ? n_bytes : 1, 1);
    BUG_IF(!at || at == MAP_FAILED);
    *out = made(MEMORY, at, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *at) {
    MUST_BE_ALLOWED();
    int64_t n_bytes = given_back(MEMORY, at);
    if (n_bytes >= LARGE)
        munmap(at, (size_t)n_bytes);
    else if (n_bytes >= 0)
        free(at);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaMallocHost(void **out, size_t n_bytes) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    *out = made(PINNED, calloc(n_bytes ? n_bytes : 1, 1), n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *at) {
    MUST_BE_ALLOWED();
    if (given_back(PINNED, at) >= 0)
        free(at);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
/* Memory of this process, which a real runtime does not open here. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorNotSupported);
    memcpy(handle, &at, sizeof at);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    (void)flags;
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMapBufferObjectFailed);
    memcpy(out, &handle, sizeof *out);
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *at) {
    (void)at;
    MUST_BE_ALLOWED();
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total) {
    MAY_FAIL(cudaErrorUnknown);
    *n_free = TOTAL - held, *total = TOTAL;
    return cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t n_bytes) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorUnknown);
    dry.n_unordered++;
    memset(at, value, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *at, int value, size_t n_bytes, cudaStream_t s) {
    MAY_FAIL(cudaErrorUnknown);
    struct CUgraphNode_st *node = put(s, cudaGraphNodeTypeMemset);
    if (node)
        node->fill = (struct cudaMemsetParams){
            .dst = at, .value = (unsigned)value, .elementSize = 1, .width = n_bytes, .height = 1};
    if (value || n_bytes < LARGE) // zeros are there, and need no memory
        memset(at, value, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorUnknown);
    dry.n_unordered += kind != cudaMemcpyDeviceToHost;
    memcpy(to, from, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)kind, (void)s;
    MAY_FAIL(cudaErrorUnknown);
    memcpy(to, from, n_bytes);
    return cudaSuccess;
}
static void copy_2d(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height) {
    for (size_t i = 0; i < height; i++)
        memcpy(to + i * to_pitch, from + i * from_pitch, width);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorUnknown);
    dry.n_unordered += kind != cudaMemcpyDeviceToHost;
    copy_2d(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)kind, (void)s;
    MAY_FAIL(cudaErrorUnknown);
    if (to_pitch > (size_t)most_pitch || from_pitch > (size_t)most_pitch)
        return told(cudaErrorInvalidPitchValue);
    dry.n_row_copies++;
    copy_2d(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}

// ---- the driver -------------------------------------------------------------------------------------------------

static CUresult reserve(CUdeviceptr *out, size_t n_bytes, size_t align, CUdeviceptr at, unsigned long long flags) {
    (void)align, (void)at, (void)flags;
    if (may_fail("cuMemAddressReserve", cudaErrorUnknown) != cudaSuccess)
        return last = cudaSuccess, CUDA_ERROR_OUT_OF_MEMORY;
    void *found = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUdeviceptr)(uintptr_t)made(RANGE, found, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult free_range(CUdeviceptr at, size_t n_bytes) {
    if (given_back(RANGE, (void *)(uintptr_t)at) >= 0)
        munmap((void *)(uintptr_t)at, n_bytes);
    return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *out, size_t n_bytes, const CUmemAllocationProp *prop,
                       unsigned long long flags) {
    (void)prop, (void)flags;
    if (may_fail("cuMemCreate", cudaErrorUnknown) != cudaSuccess)
        return last = cudaSuccess, CUDA_ERROR_OUT_OF_MEMORY;
    if (n_bytes > TOTAL - held)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)made(MEMORY, malloc(1), n_bytes);
    return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle piece) {
    void *at = (void *)(uintptr_t)piece;
    if (given_back(MEMORY, at) >= 0)
        free(at);
    return CUDA_SUCCESS;
}
static CUresult map(CUdeviceptr at, size_t n_bytes, size_t offset, CUmemGenericAllocationHandle piece,
                    unsigned long long flags) {
    (void)at, (void)n_bytes, (void)offset, (void)piece, (void)flags;
    return may_fail("cuMemMap", cudaErrorUnknown) == cudaSuccess ? CUDA_SUCCESS
                                                                 : (last = cudaSuccess, CUDA_ERROR_OUT_OF_MEMORY);
}
static CUresult unmap(CUdeviceptr at, size_t n_bytes) {
    mmap((void *)(uintptr_t)at, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}
static CUresult set_access(CUdeviceptr at, size_t n_bytes, const CUmemAccessDesc *access, size_t n) {
    (void)access, (void)n;
    if (may_fail("cuMemSetAccess", cudaErrorUnknown) != cudaSuccess)
        return last = cudaSuccess, CUDA_ERROR_INVALID_VALUE;
    return mprotect((void *)(uintptr_t)at, n_bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                                 : CUDA_ERROR_INVALID_VALUE;
}
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *size,
                       const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill) {
    (void)type, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (may_fail("cuTensorMapEncodeTiled", cudaErrorUnknown) != cudaSuccess)
        return last = cudaSuccess, CUDA_ERROR_INVALID_VALUE;
    bool fits = (uintptr_t)at % 16 == 0;
    for (cuuint32_t i = 0; i < rank; i++)
        fits = fits && size[i] > 0 && size[i] <= (cuuint64_t)1 << 32 && box[i] >= 1 && box[i] <= 256;
    for (cuuint32_t i = 0; i + 1 < rank; i++)
        fits = fits && strides[i] % 16 == 0 && strides[i] < (cuuint64_t)1 << 40;
    memset(map, 0, sizeof *map);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult address_range(CUdeviceptr *base, size_t *n_bytes, CUdeviceptr at) {
    if (may_fail("cuMemGetAddressRange", cudaErrorUnknown) != cudaSuccess)
        return last = cudaSuccess, CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct thing *t = things;
    while (t && (t->kind != MEMORY || (uintptr_t)at - (uintptr_t)t->at >= t->n_bytes))
        t = t->next;
    if (t)
        *base = (CUdeviceptr)(uintptr_t)t->at, *n_bytes = t->n_bytes;
    pthread_mutex_unlock(&lock);
    return t ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    static const struct {
        const char *name;
        void *at;
    } known[] = {{"cuMemAddressReserve", (void *)reserve},
                 {"cuMemAddressFree", (void *)free_range},
                 {"cuMemCreate", (void *)create},
                 {"cuMemRelease", (void *)release},
                 {"cuMemMap", (void *)map},
                 {"cuMemUnmap", (void *)unmap},
                 {"cuMemSetAccess", (void *)set_access},
                 {"cuMemGetAddressRange", (void *)address_range},
                 {"cuTensorMapEncodeTiled", (void *)encode}};
    (void)version, (void)flags;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].at;
            *result = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}
