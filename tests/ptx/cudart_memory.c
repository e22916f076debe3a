/* cudart_memory.c - see runtime.h: allocations, copies and fills; the driver's virtual memory.
 *
 * Memory of the device is the host's, filled with 0xff, between pieces that are nobody's. An address that is not in an
 * allocation is refused here, and a kernel that uses it ends the program (memory.c, which is told of every allocation).
 */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BYTES ((size_t)24 << 30)
#define FILLED_MOST \
    ((size_t)1 << 30) // what is larger is zero and takes memory when it is written: programs that try how much there is
enum { ALIGNMENT = 512, GAP = 4096 + ALIGNMENT }; // no address is a larger power of two's multiple

enum kind { OF_DEVICE, PINNED, MAPPED };
struct allocation {
    char *at;
    size_t n_bytes;
    enum kind kind;
};
static struct {
    struct allocation *at; // by address
    int n, room;
    size_t taken; // of the device
} all;

/* The first that ends behind it. */
static int place_of(const void *at) {
    int low = 0, high = all.n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (all.at[middle].at + all.at[middle].n_bytes <= (const char *)at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct allocation *allocation_of(const void *at, size_t n_bytes) {
    int i = place_of(at);
    const struct allocation *a = i < all.n ? &all.at[i] : NULL;
    return a && a->at <= (const char *)at && n_bytes <= (size_t)(a->at + a->n_bytes - (const char *)at) ? a : NULL;
}

static void keep(struct allocation a) {
    int i = place_of(a.at);
    if (all.n == all.room)
        all.at = realloc(all.at, (size_t)(all.room = all.room * 2 + 64) * sizeof *all.at);
    memmove(all.at + i + 1, all.at + i, (size_t)(all.n++ - i) * sizeof *all.at);
    all.at[i] = a;
    memory_add_of(a.kind == OF_DEVICE ? runtime_alone() : 0, a.at, a.n_bytes);
}

static void forget(int i) {
    memory_remove(all.at[i].at);
    memmove(all.at + i, all.at + i + 1, (size_t)(--all.n - i) * sizeof *all.at);
}

bool memory_holds(const void *at, size_t n_bytes) {
    runtime_lock();
    bool holds = n_bytes == 0 || allocation_of(at, n_bytes);
    runtime_unlock();
    return holds;
}

// ---- allocating -----------------------------------------------------------------------------------------------------

static char *get(size_t n_bytes) {
    char *at =
        mmap(NULL, n_bytes + 2 * GAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (n_bytes <= FILLED_MOST)
        memset(at + GAP, 0xff, n_bytes);
    return at + GAP;
}

static cudaError_t allocate(void **out, size_t n_bytes, enum kind kind) {
    cudaError_t code = capture_forbids();
    if (code != cudaSuccess || !out || n_bytes == 0)
        return code != cudaSuccess ? code : out ? (*out = NULL, cudaSuccess) : cudaErrorInvalidValue;
    size_t takes = (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    runtime_lock();
    char *at = kind == OF_DEVICE && takes > DEVICE_BYTES - all.taken ? NULL : get(n_bytes);
    if (at) {
        keep((struct allocation){at, n_bytes, kind});
        all.taken += kind == OF_DEVICE ? takes : 0;
    }
    runtime_unlock();
    *out = at;
    return at ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t release(void *at, enum kind kind) {
    cudaError_t code = at ? capture_forbids() : cudaSuccess;
    if (code != cudaSuccess || !at)
        return code;
    runtime_lock();
    int i = place_of(at);
    if (i < all.n && all.at[i].at == at && all.at[i].kind == kind) {
        size_t n_bytes = all.at[i].n_bytes;
        forget(i);
        all.taken -= kind == OF_DEVICE ? (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
        munmap((char *)at - GAP, n_bytes + 2 * GAP);
    } else {
        code = cudaErrorInvalidValue;
    }
    runtime_unlock();
    return code;
}

cudaError_t cudaMalloc(void **out, size_t n_bytes) { return runtime_said(allocate(out, n_bytes, OF_DEVICE)); }
cudaError_t cudaMallocHost(void **out, size_t n_bytes) { return runtime_said(allocate(out, n_bytes, PINNED)); }
/* Flags say how it is cached and by whom it is seen: here all see it. */
cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags) {
    return (void)flags, cudaMallocHost(out, n_bytes);
}
cudaError_t cudaFree(void *at) { return runtime_said(release(at, OF_DEVICE)); }
cudaError_t cudaFreeHost(void *at) { return runtime_said(release(at, PINNED)); }

/* Memory of this process, which a real runtime does not open here. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) {
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &at, sizeof at);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    (void)flags;
    memcpy(out, &handle, sizeof *out);
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *at) { return (void)at, cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total) {
    *n_free = DEVICE_BYTES - all.taken;
    *total = DEVICE_BYTES;
    return cudaSuccess;
}

// ---- copies and fills -----------------------------------------------------------------------------------------------

void copy_run(const struct copy *c) {
    for (size_t y = 0; y < c->height; y++)
        memmove((char *)c->to + y * c->to_pitch, (const char *)c->from + y * c->from_pitch, c->width);
}

void fill_run(const struct cudaMemsetParams *f) {
    for (size_t y = 0; y < (f->height ? f->height : 1); y++) {
        unsigned char *row = (unsigned char *)f->dst + y * f->pitch;
        if (f->elementSize == 1)
            memset(row, (int)f->value, f->width);
        else
            for (size_t x = 0; x < f->width; x++)
                memcpy(row + x * f->elementSize, &f->value, f->elementSize);
    }
}

enum { MAY_HOST = 1, MAY_DEVICE = 2 };

/* Memory of the host that is not pinned is in no allocation. */
static bool lies(const void *at, size_t pitch, size_t width, size_t height, int may) {
    size_t n_bytes = (height - 1) * pitch + width;
    const struct allocation *a = allocation_of(at, n_bytes);
    bool elsewhere = !allocation_of(at, 1) && !allocation_of((const char *)at + n_bytes - 1, 1);
    return (may & MAY_DEVICE && a) || (may & MAY_HOST && at && ((a && a->kind == PINNED) || elsewhere));
}

static cudaError_t copy_put(const struct copy *c, enum cudaMemcpyKind kind, cudaStream_t stream) {
    static const struct {
        int from, to;
    } may[] = {[cudaMemcpyHostToHost] = {MAY_HOST, MAY_HOST},
               [cudaMemcpyHostToDevice] = {MAY_HOST, MAY_DEVICE},
               [cudaMemcpyDeviceToHost] = {MAY_DEVICE, MAY_HOST},
               [cudaMemcpyDeviceToDevice] = {MAY_DEVICE, MAY_DEVICE},
               [cudaMemcpyDefault] = {MAY_HOST | MAY_DEVICE, MAY_HOST | MAY_DEVICE}};
    if (c->width == 0 || c->height == 0)
        return cudaSuccess;
    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (c->height > 1 &&
        (c->to_pitch < c->width || c->from_pitch < c->width || c->to_pitch > INT32_MAX || c->from_pitch > INT32_MAX))
        return cudaErrorInvalidPitchValue;
    runtime_lock();
    bool good = lies(c->from, c->from_pitch, c->width, c->height, may[kind].from) &&
                lies(c->to, c->to_pitch, c->width, c->height, may[kind].to);
    runtime_unlock();
    return good ? stream_put(stream, &(struct work){.type = cudaGraphNodeTypeMemcpy, .copy = *c})
                : cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return runtime_said(copy_put(&(struct copy){to, from, n_bytes, n_bytes, n_bytes, 1}, kind, stream));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, n_bytes, kind, NULL);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return runtime_said(copy_put(&(struct copy){to, from, to_pitch, from_pitch, width, height}, kind, stream));
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t stream) {
    struct cudaMemsetParams f = {
        .dst = to, .value = (unsigned char)value, .elementSize = 1, .width = n_bytes, .height = 1};
    if (n_bytes == 0)
        return cudaSuccess;
    return runtime_said(memory_holds(to, n_bytes)
                            ? stream_put(stream, &(struct work){.type = cudaGraphNodeTypeMemset, .fill = f})
                            : cudaErrorInvalidValue);
}
cudaError_t cudaMemset(void *to, int value, size_t n_bytes) { return cudaMemsetAsync(to, value, n_bytes, NULL); }

// ---- virtual memory -------------------------------------------------------------------------------------------------
/* A handle is its size: it can be mapped once, by which it gets its memory. Pieces that touch are one allocation, as an
 * access may lie in both. */

enum { GRAIN = 2 << 20 };

static CUresult mem_address_reserve(CUdeviceptr *out, size_t n_bytes, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    (void)hint;
    if (!out || n_bytes == 0 || n_bytes % GRAIN || alignment > GRAIN || flags)
        return CUDA_ERROR_INVALID_VALUE;
    char *at = mmap(NULL, n_bytes + GRAIN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *first = (char *)(((uintptr_t)at + GRAIN - 1) & -(uintptr_t)GRAIN);
    if (first > at)
        munmap(at, (size_t)(first - at));
    if (first < at + GRAIN)
        munmap(first + n_bytes, (size_t)(at + GRAIN - first));
    *out = (CUdeviceptr)(uintptr_t)first;
    return CUDA_SUCCESS;
}

static CUresult mem_address_free(CUdeviceptr at, size_t n_bytes) {
    return munmap((void *)(uintptr_t)at, n_bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult mem_create(CUmemGenericAllocationHandle *out, size_t n_bytes, const CUmemAllocationProp *prop,
                           unsigned long long flags) {
    if (!out || !prop || n_bytes == 0 || n_bytes % GRAIN || flags ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0)
        return CUDA_ERROR_INVALID_VALUE;
    runtime_lock();
    bool fits = n_bytes <= DEVICE_BYTES - all.taken;
    all.taken += fits ? n_bytes : 0;
    runtime_unlock();
    *out = n_bytes;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult mem_release(CUmemGenericAllocationHandle handle) {
    runtime_lock();
    all.taken -= handle;
    runtime_unlock();
    return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr at, size_t n_bytes, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags) {
    if (at % GRAIN || n_bytes != handle || offset || flags || memory_holds((void *)(uintptr_t)at, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult mem_set_access(CUdeviceptr at, size_t n_bytes, const CUmemAccessDesc *access, size_t n) {
    char *first = (char *)(uintptr_t)at;
    if (n != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        mprotect(first, n_bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(first, 0xff, n_bytes);
    runtime_lock();
    struct allocation a = {first, n_bytes, MAPPED};
    int i = place_of(first);
    if (i > 0 && all.at[i - 1].kind == MAPPED && all.at[i - 1].at + all.at[i - 1].n_bytes == first) {
        a.at = all.at[--i].at;
        a.n_bytes += all.at[i].n_bytes;
        forget(i);
    }
    if (i < all.n && all.at[i].kind == MAPPED && all.at[i].at == first + n_bytes) {
        a.n_bytes += all.at[i].n_bytes;
        forget(i);
    }
    keep(a);
    runtime_unlock();
    return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr at, size_t n_bytes) {
    char *first = (char *)(uintptr_t)at;
    CUresult code = CUDA_SUCCESS;
    runtime_lock();
    const struct allocation *a = allocation_of(first, n_bytes);
    if (!a || a->kind != MAPPED) {
        code = CUDA_ERROR_INVALID_VALUE;
    } else {
        struct allocation was = *a;
        forget((int)(a - all.at));
        if (first > was.at)
            keep((struct allocation){was.at, (size_t)(first - was.at), MAPPED});
        if (first + n_bytes < was.at + was.n_bytes)
            keep((struct allocation){first + n_bytes, (size_t)(was.at + was.n_bytes - first) - n_bytes, MAPPED});
        mmap(first, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0); // gives its memory back
    }
    runtime_unlock();
    return code;
}

static CUresult mem_get_address_range(CUdeviceptr *base, size_t *n_bytes, CUdeviceptr at) {
    runtime_lock();
    const struct allocation *a = allocation_of((void *)(uintptr_t)at, 1);
    if (a)
        *base = (CUdeviceptr)(uintptr_t)a->at, *n_bytes = a->n_bytes;
    runtime_unlock();
    return a ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

const struct driver_function memory_functions[] = {{"cuMemGetAddressRange", (void *)mem_get_address_range},
                                                   {"cuMemAddressReserve", (void *)mem_address_reserve},
                                                   {"cuMemAddressFree", (void *)mem_address_free},
                                                   {"cuMemCreate", (void *)mem_create},
                                                   {"cuMemRelease", (void *)mem_release},
                                                   {"cuMemMap", (void *)mem_map},
                                                   {"cuMemUnmap", (void *)mem_unmap},
                                                   {"cuMemSetAccess", (void *)mem_set_access},
                                                   {NULL, NULL}};
