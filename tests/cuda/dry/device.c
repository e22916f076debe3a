/* device.c - see device.h. */
#include "device.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

#include "base/status.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROCESSORS = 132, MOST_SHARED = 227 << 10, USUAL_SHARED = 48 << 10, MOST_KERNELS = 8192 };
enum { LARGE = 64 << 20 }; // such memory is mapped, so that only what is touched is there
/* As a library (build.mk) it has an H200's memory, and says what is wrong when it is. */
#ifdef DRY_LIBRARY
static const size_t TOTAL = (size_t)141 << 30;
#else
static const size_t TOTAL = (size_t)16 << 30;
#endif
static int most_pitch = INT32_MAX;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cudaError_t last;
static struct {
    int64_t n_calls, fail_at, n_unordered, n_kernels, n_row_copies;
    enum dry_fault fault;
    const char *failed, *failed_kernel;
    bool is_lost;
    unsigned most_rows;
    char misuse[200];
} dry;

#include "parts/things.h"

// ---- faults -----------------------------------------------------------------------------------------------------

static cudaError_t told(cudaError_t code) {
    if (code != cudaSuccess)
        last = code;
    return code;
}

/* Of calls whose answer a launcher keeps for as long as the process lives: they fail with the context only. */
static cudaError_t is_gone(void) { return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess); }

/* Whether this call is to fail, with `code` unless the context is gone. */
static cudaError_t may_fail(const char *name, cudaError_t code) {
    pthread_mutex_lock(&lock);
    bool now = ++dry.n_calls == dry.fail_at;
    if (now)
        dry.failed = name;
    if (now && dry.fault == DRY_LOST)
        dry.is_lost = true;
    cudaError_t is = dry.is_lost ? cudaErrorIllegalAddress : now ? code : cudaSuccess;
    pthread_mutex_unlock(&lock);
    return told(is);
}

#define MAY_FAIL(code)                                 \
    do {                                               \
        cudaError_t may_ = may_fail(__func__, (code)); \
        if (may_ != cudaSuccess)                       \
            return may_;                               \
    } while (0)
#define MAY_FAIL_BLAS(code)                                                   \
    do {                                                                      \
        if (may_fail(__func__, cudaErrorUnknown) != cudaSuccess)              \
            return last = cudaSuccess, (code); /* the library's own affair */ \
    } while (0)

void dry_begin(int64_t fail_at, enum dry_fault fault) {
    memset(&dry, 0, sizeof dry);
    dry.fail_at = fail_at;
    dry.fault = fault;
    last = cudaSuccess;
}

int64_t dry_calls(void) { return dry.n_calls; }
const char *dry_failed(void) { return dry.failed; }
const char *dry_failed_kernel(void) { return dry.failed_kernel; }
int64_t dry_row_copies(void) { return dry.n_row_copies; }
void dry_limit_pitch(int most) { most_pitch = most; }
int64_t dry_most_rows(void) { return dry.most_rows; }
int64_t dry_unordered(void) { return dry.n_unordered; }
const char *dry_misuse(void) { return dry.misuse[0] ? dry.misuse : NULL; }

cudaError_t cudaGetLastError(void) {
    cudaError_t code = dry.is_lost ? cudaErrorIllegalAddress : last;
    last = cudaSuccess;
    return code;
}
cudaError_t cudaPeekAtLastError(void) { return dry.is_lost ? cudaErrorIllegalAddress : last; }
const char *cudaGetErrorString(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "unknown error";
    }
}

#include "parts/streams.h"

// ---- events -----------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    MAY_FAIL(cudaErrorMemoryAllocation);
    *out = made(EVENT, xcalloc(1, sizeof **out), 0);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    if (given_back(EVENT, e) >= 0)
        free(e);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    MAY_FAIL(cudaErrorUnknown);
    e->at = dry.n_kernels;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    (void)e, (void)flags;
    MAY_FAIL(cudaErrorUnknown);
    put(s, cudaGraphNodeTypeEventRecord);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)e, (void)flags;
    MAY_FAIL(cudaErrorUnknown);
    if (s->captured)
        misused("a wait for an event in a graph");
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorLaunchFailure);
    return cudaSuccess;
}
/* A microsecond, and ten for each kernel. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    MAY_FAIL(cudaErrorUnknown);
    *ms = 1e-3f + 1e-2f * (float)(b->at - a->at);
    return cudaSuccess;
}

#include "parts/memory.h"

// ---- the device -------------------------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int *out) { return *out = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *n) {
    MAY_FAIL(cudaErrorNoDevice);
    return *n = 1, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    MAY_FAIL(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    (void)device;
    MAY_FAIL(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    if (attribute == cudaDevAttrComputeCapabilityMajor || attribute == cudaDevAttrComputeCapabilityMinor)
        MAY_FAIL(cudaErrorUnknown);
    if (is_gone() != cudaSuccess)
        return cudaErrorIllegalAddress;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *out = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *out = 0; break;
    case cudaDevAttrMultiProcessorCount: *out = PROCESSORS; break;
    case cudaDevAttrMaxPitch: *out = most_pitch; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *out = MOST_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *out = 228 << 10; break;
    default: misused("a question about the device that the dry one has no answer to"); *out = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    (void)device;
    MAY_FAIL(cudaErrorUnknown);
    *out = (struct cudaDeviceProp){.name = "dry", .multiProcessorCount = PROCESSORS, .major = 9};
    return cudaSuccess;
}

// ---- kernels ----------------------------------------------------------------------------------------------------

static struct {
    const void *at;
    const char *name;
    int shared; // that it may have
} kernels[MOST_KERNELS];
static int n_kernels;

void **__cudaRegisterFatBinary(void *code) { return code; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterVar(void **handle, char *var, char *at, const char *name, int ext, size_t size, int constant,
                       int global) {
    (void)handle, (void)var, (void)at, (void)name, (void)ext, (void)size, (void)constant, (void)global;
}
void __cudaRegisterFunction(void **handle, const char *at, char *device, const char *name, int limit, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *size) {
    (void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)size;
    BUG_IF(n_kernels == MOST_KERNELS);
    kernels[n_kernels].at = at, kernels[n_kernels].name = name, kernels[n_kernels++].shared = USUAL_SHARED;
}

static int kernel_at(const void *at) {
    for (int i = 0; i < n_kernels; i++)
        if (kernels[i].at == at)
            return i;
    BUG_IF(true);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    if (is_gone() != cudaSuccess)
        return cudaErrorIllegalAddress;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > MOST_SHARED)
        return told(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
        kernels[kernel_at(kernel)].shared = value > USUAL_SHARED ? value : USUAL_SHARED;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaFuncGetName(const char **out, const void *kernel) {
    return *out = kernels[kernel_at(kernel)].name, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel) {
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024,
                                       .maxDynamicSharedSizeBytes = kernels[kernel_at(kernel)].shared};
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *kernel, const cudaLaunchConfig_t *config) {
    unsigned cluster = 1;
    if (is_gone() != cudaSuccess)
        return cudaErrorIllegalAddress;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = config->attrs[i].val.clusterDim.x;
    (void)kernel;
    *n = PROCESSORS / (int)cluster;
    return cudaSuccess;
}

static cudaError_t may_start(const void *kernel) {
    const char *failed = dry.failed;
    cudaError_t code = may_fail("a launch", cudaErrorLaunchOutOfResources);
    if (dry.failed != failed)
        dry.failed_kernel = kernels[kernel_at(kernel)].name;
    return code;
}
static cudaError_t look_at(const void *kernel, dim3 grid, dim3 block, size_t shared, unsigned cluster) {
    dry.n_kernels++;
    dry.most_rows = grid.y > dry.most_rows ? grid.y : dry.most_rows;
    bool grid_fits =
        grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!grid_fits || threads < 1 || threads > 1024 || cluster < 1 || grid.x % cluster != 0)
        return told(cudaErrorInvalidConfiguration);
    return told(shared > (size_t)kernels[kernel_at(kernel)].shared ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *kernel, void **arguments) {
    unsigned cluster = 1;
    (void)arguments;
    if (may_start(kernel) != cudaSuccess)
        return cudaPeekAtLastError();
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x;
    put(c->stream, cudaGraphNodeTypeKernel);
    return look_at(kernel, c->gridDim, c->blockDim, c->dynamicSmemBytes, cluster);
}

/* What the compiler makes of <<<>>>. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *kernel) {
    return *out = (cudaKernel_t)(uintptr_t)kernel, cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    (void)arguments;
    if (may_start(kernel) != cudaSuccess)
        return cudaPeekAtLastError();
    put(stream, cudaGraphNodeTypeKernel);
    return look_at(kernel, grid, block, shared, 1);
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    return __cudaLaunchKernel((cudaKernel_t)(uintptr_t)kernel, grid, block, arguments, shared, stream);
}

// ---- cuBLASLt ---------------------------------------------------------------------------------------------------

struct cublasLtContext {
    int n;
};
static cublasStatus_t described(void *out) {
    *(void **)out = made(DESCRIPTION, xcalloc(1, 64), 64);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t dropped(void *at) {
    if (given_back(DESCRIPTION, at) >= 0)
        free(at);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "NOT_SUPPORTED" : "SOME_FAULT";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    MAY_FAIL_BLAS(CUBLAS_STATUS_ALLOC_FAILED);
    return described(out);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return dropped(handle); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    (void)compute, (void)scale;
    MAY_FAIL_BLAS(CUBLAS_STATUS_ALLOC_FAILED);
    return described(out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return dropped(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t n) {
    (void)d, (void)attribute, (void)value, (void)n;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    (void)type, (void)rows, (void)cols, (void)ld;
    MAY_FAIL_BLAS(CUBLAS_STATUS_ALLOC_FAILED);
    return described(out);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return dropped(layout); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    MAY_FAIL_BLAS(CUBLAS_STATUS_ALLOC_FAILED);
    return described(out);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return dropped(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t n) {
    (void)p, (void)attribute, (void)value, (void)n;
    return CUBLAS_STATUS_SUCCESS;
}
/* Two: one that has a counter zeroed before it, and one that wants a workspace. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *n) {
    (void)handle, (void)d, (void)a, (void)b, (void)c, (void)y, (void)p;
    MAY_FAIL_BLAS(CUBLAS_STATUS_NOT_SUPPORTED);
    *n = most < 2 ? most : 2;
    for (int i = 0; i < *n; i++)
        out[i] = (cublasLtMatmulHeuristicResult_t){.algo.data = {(uint64_t)i + 1}, .workspaceSize = i ? 4096 : 16};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *out) {
    (void)handle, (void)d, (void)a, (void)b, (void)c, (void)y;
    MAY_FAIL_BLAS(CUBLAS_STATUS_NOT_SUPPORTED);
    *out = (cublasLtMatmulHeuristicResult_t){.algo = *algorithm, .workspaceSize = algorithm->data[0] == 2 ? 4096 : 16};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *one, const void *w,
                              cublasLtMatrixLayout_t of_w, const void *x, cublasLtMatrixLayout_t of_x, const void *zero,
                              const void *c, cublasLtMatrixLayout_t of_c, void *y, cublasLtMatrixLayout_t of_y,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t n_bytes,
                              cudaStream_t stream) {
    (void)handle, (void)d, (void)one, (void)w, (void)of_w, (void)x, (void)of_x, (void)zero, (void)c, (void)of_c,
        (void)y, (void)of_y;
    MAY_FAIL_BLAS(CUBLAS_STATUS_EXECUTION_FAILED);
    struct CUgraphNode_st *fill = algorithm && algorithm->data[0] == 1 ? put(stream, cudaGraphNodeTypeMemset) : NULL;
    if (fill)
        fill->fill = (struct cudaMemsetParams){
            .dst = workspace, .elementSize = 1, .width = n_bytes < 16 ? n_bytes : 16, .height = 1};
    put(stream, cudaGraphNodeTypeKernel);
    dry.n_kernels++;
    return CUBLAS_STATUS_SUCCESS;
}
