/* cudart.c - see runtime.h: errors, the device, streams and events. */
#include "runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- errors ---------------------------------------------------------------------------------------------------------

static _Thread_local cudaError_t last_error;

cudaError_t runtime_said(cudaError_t code) {
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

void runtime_unknown(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("PTX machine: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    abort();
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "invalid cluster size"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

static size_t error_at(cudaError_t code) {
    size_t i = 0;
    while (i < sizeof errors / sizeof *errors && errors[i].code != code)
        i++;
    return i < sizeof errors / sizeof *errors ? i : i - 1;
}
const char *cudaGetErrorString(cudaError_t code) { return errors[error_at(code)].text; }
const char *cudaGetErrorName(cudaError_t code) { return errors[error_at(code)].name; }

// ---- one at a time --------------------------------------------------------------------------------------------------

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void runtime_lock(void) { pthread_mutex_lock(&mutex); }
void runtime_unlock(void) { pthread_mutex_unlock(&mutex); }

// ---- the device -----------------------------------------------------------------------------------------------------

enum { DRIVER = CUDART_VERSION, OF_H200 = 132, MOST_DEVICES = 8 };

int runtime_processors(void) {
    const char *said = getenv("GYRE_PTX_PROCESSORS");
    int n = said ? atoi(said) : OF_H200;
    if (n < 1 || n > OF_H200)
        runtime_unknown("GYRE_PTX_PROCESSORS is %s and not 1 to %d", said, OF_H200);
    return n;
}

/* By CUDA's table of technical specifications. */
static const struct {
    int capability, shared_of_block, shared_of_processor;
} capabilities[] = {{80, 163 << 10, 164 << 10},
                    {86, 99 << 10, 100 << 10},
                    {89, 99 << 10, 100 << 10},
                    {90, 227 << 10, SHARED_MOST},
                    {100, 227 << 10, SHARED_MOST}};

static int capability_row(void) {
    const char *said = getenv("GYRE_PTX_CAPABILITY");
    int capability = said ? atoi(said) : 90, n = (int)(sizeof capabilities / sizeof *capabilities);
    for (int i = 0; i < n; i++)
        if (capabilities[i].capability == capability)
            return i;
    runtime_unknown("GYRE_PTX_CAPABILITY is %s and not 80, 86, 89, 90 or 100", said);
}

int runtime_capability(void) { return capabilities[capability_row()].capability; }
int runtime_shared_of_block(void) { return capabilities[capability_row()].shared_of_block; }

static _Thread_local int current;

static bool is_device(int device) {
    int n;
    return cudaGetDeviceCount(&n) == cudaSuccess && device >= 0 && device < n;
}

cudaError_t cudaGetDeviceCount(int *n) {
    const char *said = getenv("GYRE_PTX_DEVICES");
    return *n = said ? atoi(said) : 1, cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (!is_device(device))
        return runtime_said(cudaErrorInvalidDevice);
    return current = device, cudaSuccess;
}
/* The number of the device that is current, from 1, where none reaches another's memory; 0: all reach all of it. */
int runtime_alone(void) {
    const char *said = getenv("GYRE_PTX_NO_PEERS");
    return said && said[0] == '1' ? current + 1 : 0;
}

/* All memory is the host's, so every device reaches all of it; that it was not asked for shows on a real one alone. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!is_device(device) || !is_device(peer))
        return runtime_said(cudaErrorInvalidDevice);
    return *can = device != peer && !runtime_alone(), cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static bool enabled[MOST_DEVICES][MOST_DEVICES];
    if (flags || !is_device(peer) || peer == current || peer >= MOST_DEVICES || current >= MOST_DEVICES)
        return runtime_said(flags ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    if (runtime_alone())
        return runtime_said(cudaErrorPeerAccessUnsupported);
    if (enabled[current][peer])
        return runtime_said(cudaErrorPeerAccessAlreadyEnabled);
    enabled[current][peer] = true;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = DRIVER, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (!is_device(device))
        return runtime_said(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = runtime_processors(); break;
    case cudaDevAttrComputeCapabilityMajor: *value = runtime_capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = runtime_capability() % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = runtime_shared_of_block(); break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_UNASKED; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = capabilities[capability_row()].shared_of_processor;
        break;
    case cudaDevAttrMaxThreadsPerBlock: *value = MOST_THREADS; break;
    case cudaDevAttrWarpSize: *value = LANES; break;
    case cudaDevAttrMaxPitch: *value = INT32_MAX; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    default: runtime_unknown("cudaDeviceGetAttribute does not know attribute %d", (int)attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    size_t n_free, total;
    if (!is_device(device))
        return runtime_said(cudaErrorInvalidDevice);
    cudaMemGetInfo(&n_free, &total);
    *p = (struct cudaDeviceProp){.name = "PTX machine",
                                 .totalGlobalMem = total,
                                 .sharedMemPerBlock = SHARED_UNASKED,
                                 .sharedMemPerBlockOptin = (size_t)runtime_shared_of_block(),
                                 .sharedMemPerMultiprocessor = SHARED_MOST,
                                 .reservedSharedMemPerBlock = SHARED_FIRST,
                                 .regsPerBlock = 65536,
                                 .regsPerMultiprocessor = 65536,
                                 .warpSize = LANES,
                                 .maxThreadsPerBlock = MOST_THREADS,
                                 .maxThreadsPerMultiProcessor = 2048,
                                 .major = runtime_capability() / 10,
                                 .minor = runtime_capability() % 10,
                                 .multiProcessorCount = runtime_processors(),
                                 .l2CacheSize = 50 << 20,
                                 .unifiedAddressing = 1,
                                 .clusterLaunch = 1};
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return runtime_said(capture_forbids()); }

// ---- streams --------------------------------------------------------------------------------------------------------

struct CUstream_st default_stream = {.waits_for_default = true};

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    if (!stream || flags > cudaStreamNonBlocking)
        return runtime_said(cudaErrorInvalidValue);
    *stream = calloc(1, sizeof **stream);
    (*stream)->waits_for_default = flags != cudaStreamNonBlocking;
    runtime_lock();
    (*stream)->next = default_stream.next;
    default_stream.next = *stream;
    runtime_unlock();
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream || stream->graph)
        return runtime_said(stream ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidResourceHandle);
    runtime_lock();
    struct CUstream_st *before = &default_stream;
    while (before->next != stream)
        before = before->next;
    before->next = stream->next;
    runtime_unlock();
    free(stream);
    return cudaSuccess;
}

/* What the event stands behind has computed. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    if (!event || flags != cudaEventWaitDefault)
        return runtime_said(event ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    if (gemv_of(stream)->graph)
        runtime_unknown("a stream that is captured waits for an event");
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return runtime_said(capture_forbids_waiting(gemv_of(stream)));
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* A kernel looks at what another device's may write: who else waits for the lock has its turn. Its own hold of the lock
 * is one, as launches do not hold others. */
static void let_others(void) {
    runtime_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    runtime_lock();
}

static void launch(const struct work *w) {
    struct kernel *k = w->launch.kernel;
    struct launch_of l = {.f = k->f, .params = w->launch.params, .shared = w->launch.shared};
    double began = now_ms();
    memcpy(l.grid, w->launch.grid, sizeof l.grid);
    memcpy(l.threads, w->launch.threads, sizeof l.threads);
    memcpy(l.cluster, w->launch.cluster, sizeof l.cluster);
    if (k->computes) {
        k->computes(w->launch.params);
    } else {
        l.at_once = work_at_once(w);
        l.of = runtime_alone();
        l.lets_others = is_device(1) ? let_others : NULL;
        machine_launch(&l);
    }
    k->ms += now_ms() - began;
    k->n_launches++;
}

void work_run(const struct work *w) {
    runtime_lock();
    switch (w->type) {
    case cudaGraphNodeTypeMemcpy: copy_run(&w->copy); break;
    case cudaGraphNodeTypeMemset: fill_run(&w->fill); break;
    case cudaGraphNodeTypeEventRecord: event_run(w->event); break;
    default: launch(w);
    }
    runtime_unlock();
}

cudaError_t stream_put(cudaStream_t stream, const struct work *w) {
    stream = gemv_of(stream);
    if (stream->graph)
        return capture_put(stream, w);
    if (stream == &default_stream) {
        cudaError_t code = capture_forbids_waiting(stream);
        if (code != cudaSuccess)
            return code;
    }
    work_run(w);
    return cudaSuccess;
}

// ---- events ---------------------------------------------------------------------------------------------------------

struct CUevent_st {
    bool is_timed, is_recorded;
    double ms;
};

void event_run(cudaEvent_t event) {
    event->ms = now_ms();
    event->is_recorded = true;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    if (!event)
        return runtime_said(cudaErrorInvalidValue);
    *event = calloc(1, sizeof **event);
    (*event)->is_timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event)
        return runtime_said(cudaErrorInvalidResourceHandle);
    free(event);
    return cudaSuccess;
}

/* Into a graph only where that is said (external); else it stands for what is captured so far, of which nobody here
 * asks. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    if (!event)
        return runtime_said(cudaErrorInvalidResourceHandle);
    if (gemv_of(stream)->graph && !(flags & cudaEventRecordExternal))
        return cudaSuccess;
    return runtime_said(stream_put(stream, &(struct work){.type = cudaGraphNodeTypeEventRecord, .event = event}));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return runtime_said(event ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return runtime_said(event ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!ms || !from || !to || !from->is_recorded || !to->is_recorded || !from->is_timed || !to->is_timed)
        return runtime_said(cudaErrorInvalidResourceHandle);
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}
