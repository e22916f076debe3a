/* cudart_launch.c - see runtime.h: kernels, their PTX, and what may be launched. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- fat binaries ---------------------------------------------------------------------------------------------------

/* What nvcc puts into an object, as cuobjdump reads it: a head, then entries, each with a head of its own. */
struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *unused;
};
struct fat_head {
    uint32_t magic;
    uint16_t version, head_bytes;
    uint64_t n_bytes; // behind the head
};
struct entry_head {
    uint16_t kind, version; // kind 1: PTX
    uint32_t head_bytes;
    uint64_t n_bytes; // behind the head
    uint32_t packed_bytes, options_at;
    uint16_t minor, major;
    uint32_t arch, name_at, name_bytes;
    uint64_t flags;
};
enum { FAT_MAGIC = (int)0xBA55ED50, WRAPPER_MAGIC = 0x466243B1, KIND_PTX = 1, FLAGS_PACKED = 0x2000 | 0x8000 };

struct code {
    const struct wrapper *wrapper;
    const char *text;
    size_t n_bytes;
    struct module *module; // NULL: not parsed yet
};

static const struct entry_head *find_ptx(const struct wrapper *w) {
    const struct fat_head *fat = w->data;
    if (w->magic != WRAPPER_MAGIC || fat->magic != (uint32_t)FAT_MAGIC)
        runtime_unknown("an object has device code that is no fat binary");
    const char *at = (const char *)fat + fat->head_bytes, *end = at + fat->n_bytes;
    for (const struct entry_head *e; at < end; at += e->head_bytes + e->n_bytes) {
        e = (const struct entry_head *)at;
        if (e->kind == KIND_PTX)
            return e;
    }
    return NULL;
}

static void open_code(struct code *c) {
    const struct entry_head *e = find_ptx(c->wrapper);
    if (!e)
        runtime_unknown("an object has no PTX: compile it with -gencode=arch=compute_90a,code=compute_90a");
    c->text = (const char *)e + e->head_bytes;
    c->n_bytes = strnlen(c->text, e->n_bytes);
    if (e->flags & FLAGS_PACKED || !memmem(c->text, c->n_bytes, ".version", 8))
        runtime_unknown("an object's PTX is compressed: compile it with --no-compress");
}

/* $GYRE_PTX_KEEP: a folder for the text, to which the lines of faults belong. */
static void keep_text(const struct code *c, const char *name) {
    const char *folder = getenv("GYRE_PTX_KEEP");
    char path[4096];
    FILE *f;
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%.200s.ptx", folder, name);
    f = fopen(path, "w");
    if (!f || fwrite(c->text, 1, c->n_bytes, f) != c->n_bytes || fclose(f) != 0)
        runtime_unknown("%s cannot be written", path);
}

void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *device_stub, const char *name, int thread_limit,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global);

void **__cudaRegisterFatBinary(void *wrapper) {
    struct code *c = calloc(1, sizeof *c);
    c->wrapper = wrapper;
    open_code(c);
    return (void **)c;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
} // a program ends, or a library that brings its own machine with it
/* Kernels know their variables by the PTX; the host asks for none by its name. */
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global) {
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

// ---- kernels --------------------------------------------------------------------------------------------------------

static struct {
    struct kernel **at;
    int n, room;
} kernels;

void __cudaRegisterFunction(void **handle, const char *stub, char *device_stub, const char *name, int thread_limit,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
    (void)device_stub, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    struct kernel *k = calloc(1, sizeof *k);
    *k = (struct kernel){.name = name,
                         .stub = stub,
                         .code = (struct code *)handle,
                         .most_threads = MOST_THREADS,
                         .most_dynamic = SHARED_UNASKED};
    if (kernels.n == kernels.room)
        kernels.at = realloc(kernels.at, (size_t)(kernels.room = kernels.room * 2 + 64) * sizeof *kernels.at);
    kernels.at[kernels.n++] = k;
}

/* $GYRE_PTX_TIMES: at the end, which kernels took the time. */
__attribute__((destructor)) static void tell_times(void) {
    for (int i = 0; getenv("GYRE_PTX_TIMES") && i < kernels.n; i++)
        if (kernels.at[i]->n_launches)
            fprintf(stderr, "%10.1f ms  %6ld launches  %s\n", kernels.at[i]->ms, kernels.at[i]->n_launches,
                    kernels.at[i]->name);
}

/* Of what the host calls it, or of a handle from __cudaGetKernel. */
static struct kernel *kernel_of(const void *stub) {
    for (int i = 0; i < kernels.n; i++)
        if (kernels.at[i]->stub == stub || kernels.at[i] == stub)
            return kernels.at[i];
    return NULL;
}

/* Of .maxntid x, y, z, between a kernel's parameters and its body. */
static int most_threads(const struct kernel *k) {
    char head[600];
    int x = MOST_THREADS, y = 1, z = 1, n = snprintf(head, sizeof head, ".entry %s(", k->name);
    const char *end = k->code->text + k->code->n_bytes, *at = memmem(k->code->text, k->code->n_bytes, head, (size_t)n);
    const char *body = at ? memchr(at, '{', (size_t)(end - at)) : NULL;
    const char *said = body ? memmem(at, (size_t)(body - at), ".maxntid", 8) : NULL;
    if (said)
        sscanf(said, ".maxntid %d, %d, %d", &x, &y, &z);
    return x * y * z;
}

/* Shared memory that it has beside what a launch asks for. */
static uint32_t own_shared(const struct kernel *k) { return k->f->static_shared - SHARED_FIRST; }

static void open_kernel(struct kernel *k) {
    runtime_lock();
    if (!k->f && !k->computes) {
        if (!k->code->module) {
            keep_text(k->code, k->name);
            k->code->module = module_parse(k->name, k->code->text, k->code->n_bytes);
        }
        k->f = module_function(k->code->module, k->name);
        if (!k->f)
            runtime_unknown("the PTX has no kernel %s", k->name);
        k->most_threads = most_threads(k);
    }
    runtime_unlock();
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *stub);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *stub) {
    *out = (cudaKernel_t)kernel_of(stub);
    return runtime_said(*out ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncGetName(const char **name, const void *stub) {
    const struct kernel *k = kernel_of(stub);
    if (!k || !name)
        return runtime_said(k ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *name = k->name;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *stub) {
    struct kernel *k = kernel_of(stub);
    if (!k || !out)
        return runtime_said(k ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    open_kernel(k);
    *out = (struct cudaFuncAttributes){.sharedSizeBytes = own_shared(k),
                                       .localSizeBytes = k->f->local_bytes,
                                       .maxThreadsPerBlock = k->most_threads,
                                       .ptxVersion = 90,
                                       .binaryVersion = 90,
                                       .maxDynamicSharedSizeBytes = k->most_dynamic,
                                       .clusterDimMustBeSet = k->f->cluster[0] != 0,
                                       .requiredClusterWidth = (int)k->f->cluster[0],
                                       .requiredClusterHeight = (int)k->f->cluster[1],
                                       .requiredClusterDepth = (int)k->f->cluster[2]};
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) {
    struct kernel *k = kernel_of(stub);
    if (!k)
        return runtime_said(cudaErrorInvalidDeviceFunction);
    open_kernel(k);
    switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
        if (value < 0 || (uint32_t)value + own_shared(k) > (uint32_t)runtime_shared_of_block())
            return runtime_said(cudaErrorInvalidValue);
        k->most_dynamic = value;
        break;
    case cudaFuncAttributeNonPortableClusterSizeAllowed: k->large_clusters = value != 0; break;
    default: runtime_unknown("cudaFuncSetAttribute does not know attribute %d", (int)attribute);
    }
    return cudaSuccess;
}

// ---- launches -------------------------------------------------------------------------------------------------------

static cudaError_t take_attributes(struct work *w, const cudaLaunchConfig_t *config) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *a = &config->attrs[i];
        switch (a->id) {
        case cudaLaunchAttributeIgnore: break;
        case cudaLaunchAttributePreferredSharedMemoryCarveout: break; // there is no L1
        case cudaLaunchAttributeClusterDimension:
            w->launch.cluster[0] = a->val.clusterDim.x, w->launch.cluster[1] = a->val.clusterDim.y,
            w->launch.cluster[2] = a->val.clusterDim.z;
            break;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            w->launch.early = a->val.programmaticStreamSerializationAllowed != 0;
            break;
        default: runtime_unknown("a launch of %s has attribute %d", w->launch.kernel->name, (int)a->id);
        }
    }
    return cudaSuccess;
}

/* As it was compiled for, or as the launch says. */
static cudaError_t settle_cluster(struct work *w) {
    const uint32_t *compiled = w->launch.kernel->f->cluster;
    uint32_t *cluster = w->launch.cluster, size = 1;
    for (int d = 0; d < 3; d++) {
        if (cluster[0] && compiled[0] && cluster[d] != compiled[d])
            return cudaErrorInvalidClusterSize;
    }
    if (!cluster[0])
        for (int d = 0; d < 3; d++)
            cluster[d] = compiled[0] ? compiled[d] : 1;
    for (int d = 0; d < 3; d++) {
        size *= cluster[d];
        if (cluster[d] == 0 || w->launch.grid[d] % cluster[d])
            return cudaErrorInvalidClusterSize;
    }
    return size <= (w->launch.kernel->large_clusters ? MOST_CLUSTER : PORTABLE_CLUSTER) ? cudaSuccess
                                                                                        : cudaErrorInvalidClusterSize;
}

static cudaError_t check(struct work *w) {
    const struct kernel *k = w->launch.kernel;
    const uint32_t *grid = w->launch.grid, *threads = w->launch.threads;
    uint64_t n_threads = (uint64_t)threads[0] * threads[1] * threads[2];
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > INT32_MAX || grid[1] > UINT16_MAX ||
        grid[2] > UINT16_MAX)
        return cudaErrorInvalidConfiguration;
    if (n_threads == 0 || n_threads > MOST_THREADS || threads[2] > 64)
        return cudaErrorInvalidConfiguration;
    if (n_threads > (uint64_t)k->most_threads)
        return cudaErrorInvalidValue;
    if (w->launch.shared > (uint32_t)k->most_dynamic ||
        w->launch.shared + own_shared(k) > (uint32_t)runtime_shared_of_block())
        return cudaErrorInvalidValue;
    return settle_cluster(w);
}

/* Without parameters. */
static cudaError_t prepare(struct work *w, const cudaLaunchConfig_t *config, const void *stub) {
    struct kernel *k = kernel_of(stub);
    if (!k || !config)
        return k ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction;
    open_kernel(k);
    *w = (struct work){.type = cudaGraphNodeTypeKernel,
                       .launch = {.kernel = k,
                                  .param_bytes = k->f->param_bytes,
                                  .grid = {config->gridDim.x, config->gridDim.y, config->gridDim.z},
                                  .threads = {config->blockDim.x, config->blockDim.y, config->blockDim.z},
                                  .shared = (uint32_t)config->dynamicSmemBytes}};
    if (config->dynamicSmemBytes > (uint32_t)runtime_shared_of_block())
        return cudaErrorInvalidValue;
    take_attributes(w, config);
    return check(w);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **args) {
    struct work w;
    _Alignas(128) unsigned char params[32768];
    cudaError_t code = prepare(&w, config, stub);
    if (code != cudaSuccess)
        return runtime_said(code);
    const struct function *f = w.launch.kernel->f;
    if (f->param_bytes > sizeof params)
        runtime_unknown("%s has %u bytes of parameters", f->name, f->param_bytes);
    memset(params, 0xff, f->param_bytes);
    for (int i = 0; i < f->n_params; i++)
        memcpy(params + f->params[i].at, args[i], f->params[i].size);
    w.launch.params = params;
    return runtime_said(stream_put(config->stream, &w));
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernelExC(&(cudaLaunchConfig_t){grid, block, shared, stream, NULL, 0}, stub, args);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernelExC(&(cudaLaunchConfig_t){grid, block, shared, stream, NULL, 0}, kernel, args);
}

/* What stands between <<< and >>>, until the function behind it asks for it. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

/* Clusters of blocks that fill a multiprocessor each. On a real one some multiprocessors have no place in a cluster of
 * their neighbours. */
int work_at_once(const struct work *w) {
    return runtime_processors() / (int)(w->launch.cluster[0] * w->launch.cluster[1] * w->launch.cluster[2]);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *stub, const cudaLaunchConfig_t *config) {
    struct work w;
    cudaError_t code = n ? prepare(&w, config, stub) : cudaErrorInvalidValue;
    if (code == cudaSuccess)
        *n = work_at_once(&w);
    return runtime_said(code);
}
