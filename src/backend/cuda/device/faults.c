/* faults.c - what is said when a device fails: which device, what was being done with which sizes, and of a launch that
 * was refused the kernel, its grid, its threads and its shared memory beside what the device allows.
 *
 * Launches are watched by the linker: every call of the runtime's two launch functions in this library comes by here
 * (--wrap in the Makefile), so that no launcher has to tell: cudaLaunchKernelExC, which launch_node is made of, and
 * what the compiler (of CUDA 13) makes of <<<>>>. A kernel that fails while it runs is not known by name: the device
 * says so when it is waited for or asked for the next, which is not to blame, and the sentence how to find out.
 *
 * The first also asks for all of a multiprocessor's shared memory: the driver gives a kernel as much as its own blocks
 * can use and the rest to the L1, and a block of the next node, which starts early (ptx/device.cuh), then finds no
 * place beside them. GYRE_SHARED=0 leaves it to the driver, to measure. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/value.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- launches ---------------------------------------------------------------------------------------------------

/* Of a kernel that ran; the context is lost with it. */
static bool is_of_a_kernel(cudaError_t code) {
    return code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure || code == cudaErrorMisalignedAddress ||
           code == cudaErrorIllegalInstruction || code == cudaErrorInvalidAddressSpace || code == cudaErrorInvalidPc ||
           code == cudaErrorHardwareStackError || code == cudaErrorLaunchTimeout;
}

/* The launch that was refused, of this thread. */
static _Thread_local struct {
    const void *kernel; // NULL: none since it was told
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} refused;

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
cudaError_t __real___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t stream);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t stream);

static cudaError_t note(cudaError_t code, const void *kernel, dim3 grid, dim3 block, size_t shared,
                        cudaStream_t stream) {
    if (code != cudaSuccess && !is_of_a_kernel(code) && !refused.kernel) {
        refused.kernel = kernel;
        refused.grid = grid, refused.block = block;
        refused.shared = shared, refused.stream = stream;
    }
    return code;
}

static bool all_shared;
static void read_all_shared(void) { all_shared = !getenv("GYRE_SHARED") || atoi(getenv("GYRE_SHARED")) != 0; }

enum { MOST_ATTRIBUTES = 4 };

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cudaLaunchAttribute attributes[MOST_ATTRIBUTES + 1];
    cudaLaunchConfig_t with = *config;
    pthread_once(&once, read_all_shared);
    if (all_shared && config->numAttrs <= MOST_ATTRIBUTES) {
        memcpy(attributes, config->attrs, config->numAttrs * sizeof *attributes);
        attributes[config->numAttrs] = (cudaLaunchAttribute){.id = cudaLaunchAttributePreferredSharedMemoryCarveout,
                                                             .val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared};
        with.attrs = attributes, with.numAttrs++;
    }
    cudaError_t code = __real_cudaLaunchKernelExC(&with, kernel, args);
    return note(code, kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t stream) {
    return note(__real___cudaLaunchKernel(kernel, grid, block, args, shared, stream), kernel, grid, block, shared,
                stream);
}

/* Goes behind what was being done. */
static void tell_launch(const struct device *d, char *out, size_t n) {
    struct cudaFuncAttributes is = {0};
    const char *name = NULL;
    int most = 0;
    out[0] = '\0';
    if (!refused.kernel)
        return;
    cudaFuncGetName(&name, refused.kernel);
    cudaFuncGetAttributes(&is, refused.kernel);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    snprintf(out, n,
             ", kernel %.160s refused on the %s: grid %u x %u x %u, %u threads of at most %d, %zu + %zu bytes of "
             "shared memory of at most "
             "%d (%d asked "
             "for), %d registers",
             name ? name : "?", refused.stream == d->stream ? "stream of steps" : "stream of another", refused.grid.x,
             refused.grid.y, refused.grid.z, refused.block.x * refused.block.y * refused.block.z, is.maxThreadsPerBlock,
             is.sharedSizeBytes, refused.shared, most, is.maxDynamicSharedSizeBytes, is.numRegs);
    refused.kernel = NULL;
}

// ---- faults -----------------------------------------------------------------------------------------------------

enum status device_fault(struct device *d, struct error *err, cudaError_t code, const char *format, ...) {
    char what[300], launch[420];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (d->fault.status == OK && code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        refused.kernel = NULL;
        return fail(err, ERR_MEMORY, "CUDA device %d: %s: %s", d->index, what, cudaGetErrorString(code));
    }
    if (d->fault.status == OK) {
        tell_launch(d, launch, sizeof launch);
        fail(&d->fault, ERR_DEVICE, "CUDA device %d: %s%s: %s%s", d->index, what, launch, cudaGetErrorString(code),
             is_of_a_kernel(code) ? "; CUDA_LAUNCH_BLOCKING=1 and --enforce-eager tell in which op" : "");
    }
    cudaGetLastError(); // is told: the next engine of this process has nothing to do with it
    if (err)
        *err = d->fault;
    return ERR_DEVICE;
}

enum status device_enter(struct device *d, struct error *err) {
    if (d->card)
        return OK;
    DEVICE_TRY(d, err, cudaSetDevice(d->index), "going to it");
    return OK;
}

void op_described(const struct executable *exe, const struct compiled_op *c, int n_rows, char *out, size_t n) {
    const struct op *op = c->op;
    const struct weight *w = op->weights[0];
    int at = (int)(op - exe->program->ops), width = val_given(op->in[0]) ? op->in[0].width : op->out[0].width;
    if (w)
        snprintf(out, n, "%s: op %d, %s with %s [%lld, %lld] for %d rows of %d", exe->program->name, at,
                 op_name(op->code), w->name, (long long)w->out, (long long)w->in, n_rows, width);
    else
        snprintf(out, n, "%s: op %d, %s for %d rows of %d > %d", exe->program->name, at, op_name(op->code), n_rows,
                 width, op->out[0].width);
}
