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

// ---- things that are made and given back ------------------------------------------------------------------------

enum kind { MEMORY, PINNED, STREAM, EVENT, GRAPH, EXEC, DESCRIPTION, RANGE, N_KINDS };
static const char *const kind_names[N_KINDS] = {"memory", "pinned memory",    "stream",      "event",
                                                "graph",  "executable graph", "description", "addresses"};

struct thing {
    struct thing *next;
    void *at;
    size_t n_bytes;
    enum kind kind;
    int64_t call;
};
static struct thing *things;
static size_t held;

static void misused(const char *what) {
#ifdef DRY_LIBRARY
    fprintf(stderr, "dry: misused: %s\n", what);
#endif
    if (!dry.misuse[0])
        snprintf(dry.misuse, sizeof dry.misuse, "%s", what);
}

static void *made(enum kind kind, void *at, size_t n_bytes) {
    struct thing *t = calloc(1, sizeof *t);
    pthread_mutex_lock(&lock);
    *t = (struct thing){things, at, n_bytes, kind, dry.n_calls};
    things = t;
    held += kind == MEMORY ? n_bytes : 0;
    pthread_mutex_unlock(&lock);
    return at;
}

/* Its bytes; negative: it is not, as of NULL. */
static int64_t given_back(enum kind kind, const void *at) {
    pthread_mutex_lock(&lock);
    struct thing **link = &things, *t = NULL;
    while (*link && ((*link)->at != at || (*link)->kind != kind))
        link = &(*link)->next;
    if (at && *link) {
        t = *link;
        *link = t->next;
        held -= kind == MEMORY ? t->n_bytes : 0;
    } else if (at) {
        misused(kind_names[kind]);
    }
    pthread_mutex_unlock(&lock);
    int64_t n_bytes = t ? (int64_t)t->n_bytes : -1;
    free(t);
    return n_bytes;
}

int64_t dry_alive(void) {
    int64_t n = 0;
    for (const struct thing *t = things; t; t = t->next)
        n++;
    return n;
}

void dry_list_alive(void) {
    for (const struct thing *t = things; t; t = t->next)
        fprintf(stderr, "    %s of %zu bytes, made before call %lld\n", kind_names[t->kind], t->n_bytes,
                (long long)t->call + 1);
}

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

// ---- streams, captures and graphs -------------------------------------------------------------------------------

struct CUgraphNode_st {
    struct CUgraphNode_st *before, *behind;
    struct CUgraph_st *graph;
    enum cudaGraphNodeType type;
    struct cudaMemsetParams fill;
};
struct CUgraph_st {
    struct CUgraphNode_st *first, *end, *beside; // in order, and nodes that begin beside the first
};
struct CUgraphExec_st {
    int64_t n_kernels;
};
struct CUstream_st {
    struct CUgraph_st *captured; // NULL: it is not
    enum cudaStreamCaptureMode mode;
    bool invalid;
};
struct CUevent_st {
    int64_t at; // kernels that had started when it was recorded
};
static _Thread_local struct CUstream_st *capturing;

/* Of calls that a capture does not allow. */
static bool is_allowed(void) {
    if (!capturing || capturing->mode == cudaStreamCaptureModeRelaxed)
        return true;
    capturing->invalid = true;
    misused("a call that may not be made while a stream is captured");
    return false;
}
#define MUST_BE_ALLOWED() \
    if (!is_allowed())    \
    return told(cudaErrorStreamCaptureUnsupported)

static struct CUgraphNode_st *put(struct CUstream_st *s, enum cudaGraphNodeType type) {
    struct CUgraph_st *g = s ? s->captured : NULL;
    if (!g)
        return NULL;
    struct CUgraphNode_st *node = xcalloc(1, sizeof *node);
    *node = (struct CUgraphNode_st){.before = g->end, .graph = g, .type = type};
    *(g->end ? &g->end->behind : &g->first) = node;
    return g->end = node;
}

static void drop_nodes(struct CUgraph_st *g) {
    for (struct CUgraphNode_st *n = g->first, *behind; n; n = behind)
        behind = n->behind, free(n);
    for (struct CUgraphNode_st *n = g->beside, *behind; n; n = behind)
        behind = n->behind, free(n);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking)
        misused("a stream that others wait for");
    *out = made(STREAM, xcalloc(1, sizeof **out), 0);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    if (given_back(STREAM, s) >= 0)
        free(s);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (s && s->captured) {
        s->invalid = true;
        misused("waiting for a stream that is captured");
        return told(cudaErrorStreamCaptureUnsupported);
    }
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorLaunchFailure);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    MAY_FAIL(cudaErrorUnknown);
    if (s->captured)
        return misused("a second capture"), told(cudaErrorIllegalState);
    s->captured = made(GRAPH, xcalloc(1, sizeof *s->captured), 0);
    s->mode = mode;
    s->invalid = false;
    capturing = s;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    struct CUgraph_st *g = s->captured;
    cudaError_t code =
        s->invalid ? cudaErrorStreamCaptureInvalidated : may_fail(__func__, cudaErrorStreamCaptureInvalidated);
    *out = NULL;
    s->captured = NULL;
    capturing = NULL;
    if (!g)
        return misused("the end of no capture"), told(cudaErrorIllegalState);
    if (code == cudaSuccess)
        return *out = g, cudaSuccess;
    given_back(GRAPH, g);
    drop_nodes(g);
    free(g);
    return told(code);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n) {
    (void)id, (void)nodes, (void)edges, (void)n;
    MAY_FAIL(cudaErrorUnknown);
    *status = s->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    *graph = s->captured;
    return cudaSuccess;
}

static cudaError_t nodes_from(struct CUgraphNode_st *first, cudaGraphNode_t *out, size_t *n, size_t most) {
    size_t found = 0;
    for (struct CUgraphNode_st *node = first; node && found < most; node = node->behind, found++)
        if (out && found < *n)
            out[found] = node;
    *n = found;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *out, size_t *n) {
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(g->first, out, n, SIZE_MAX);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t g, cudaGraphNode_t *out, size_t *n) {
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(g->first, out, n, 1);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *out, cudaGraphEdgeData *edges,
                                           size_t *n) {
    (void)edges;
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(node->behind, out, n, 1);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *out) {
    MAY_FAIL(cudaErrorUnknown);
    *out = node->type;
    return cudaSuccess;
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, struct cudaMemsetParams *out) {
    MAY_FAIL(cudaErrorUnknown);
    *out = node->fill;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    MAY_FAIL(cudaErrorUnknown);
    *(node->before ? &node->before->behind : &node->graph->first) = node->behind;
    *(node->behind ? &node->behind->before : &node->graph->end) = node->before;
    free(node);
    return cudaSuccess;
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *before, size_t n,
                                   const struct cudaMemsetParams *fill) {
    (void)before, (void)n;
    MAY_FAIL(cudaErrorMemoryAllocation);
    struct CUgraphNode_st *node = xcalloc(1, sizeof *node);
    *node = (struct CUgraphNode_st){.behind = g->beside, .graph = g, .type = cudaGraphNodeTypeMemset, .fill = *fill};
    *out = g->beside = node;
    return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *edges, size_t n) {
    (void)g, (void)from, (void)to, (void)edges, (void)n;
    MAY_FAIL(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    if (given_back(GRAPH, g) >= 0) {
        drop_nodes(g);
        free(g);
    }
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    (void)flags;
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    *out = made(EXEC, xcalloc(1, sizeof **out), 0);
    for (const struct CUgraphNode_st *n = g->first; n; n = n->behind)
        (*out)->n_kernels += n->type == cudaGraphNodeTypeKernel;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
    if (given_back(EXEC, e) >= 0)
        free(e);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t e, cudaStream_t s) {
    (void)e, (void)s;
    MAY_FAIL(cudaErrorMemoryAllocation);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    (void)s;
    MAY_FAIL(cudaErrorLaunchFailure);
    dry.n_kernels += e->n_kernels;
    return cudaSuccess;
}

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
