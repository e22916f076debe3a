/* runtime.h - what the files of the runtime share: what is put on streams, which compute at once, in order, in whoever
 * calls, or are captured.
 *
 *     cudart.c          errors, the device, streams, events
 *     cudart_memory.c   allocations, copies, fills; the driver's virtual memory
 *     cudart_launch.c   kernels: their PTX in fat binaries, what may be launched
 *     cudart_graphs.c   capture and graphs
 *     cudart_driver.c   functions of the driver by name, tensor maps
 *     cublaslt.c        products of the library
 *
 * What a program asks for that they do not know ends it with a sentence. What it asks for wrongly is refused as the
 * real ones refuse it. */
#pragma once

#include "module.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

/* $GYRE_PTX_PROCESSORS: multiprocessors of the device, 132 unless it says another number. With fewer, tests of small
 * shapes are faster. */
int runtime_processors(void);

/* $GYRE_PTX_CAPABILITY: 80, 86, 89, 90 (unless it says another) or 100; what a block may have of shared memory follows.
 * Kernels are compiled for it: PTX of compute_80 runs on all. */
int runtime_capability(void);
int runtime_shared_of_block(void);
int runtime_alone(void);
enum { SHARED_UNASKED = 48 << 10, MOST_THREADS = 1024, PORTABLE_CLUSTER = 8 };

_Noreturn void runtime_unknown(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Keeps it for cudaGetLastError, if it is an error. */
cudaError_t runtime_said(cudaError_t code);

/* One lock for kernels, memory and lists of both; a thread may take it again. */
void runtime_lock(void);
void runtime_unlock(void);

// ---- what streams do ------------------------------------------------------------------------------------------------

struct kernel {
    const char *name;
    const void *stub;               // the function of the host that stands for it
    void (*computes)(const void *); // a kernel of the library, in C: takes the parameters; NULL: it is in PTX
    struct code *code;
    const struct function *f; // NULL: not looked for yet
    int most_threads;         // as it was compiled
    int most_dynamic;         // shared memory that was asked for
    bool large_clusters;
    long n_launches;
    double ms; // of all of them
};

struct copy {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
};

struct work {
    enum cudaGraphNodeType type; // says which of these it is
    struct {
        struct kernel *kernel;
        const void *params; // of the caller; of a node its own
        uint32_t param_bytes, grid[3], threads[3], cluster[3], shared;
        bool early; // may start before what is in front of it ends
    } launch;
    struct copy copy;
    struct cudaMemsetParams fill;
    cudaEvent_t event;
};
void work_run(const struct work *w);
int work_at_once(const struct work *w); // clusters of a kernel: a block on each multiprocessor
/* Runs it, or makes it a node if the stream is captured. */
cudaError_t stream_put(cudaStream_t stream, const struct work *w);

void copy_run(const struct copy *c);
void fill_run(const struct cudaMemsetParams *f);
void event_run(cudaEvent_t event);

/* Whether all of it is in allocations, of the device or of pinned memory. */
bool memory_holds(const void *at, size_t n_bytes);

// ---- capture (cudart_graphs.c) --------------------------------------------------------------------------------------

struct CUstream_st {
    bool waits_for_default; // and the default stream for it
    cudaGraph_t graph;      // captured into; NULL: it is not captured
    cudaGraphNode_t last;
    enum cudaStreamCaptureMode mode;
    unsigned long thread, capture;
    bool spoilt;
    struct CUstream_st *next;
};
extern struct CUstream_st default_stream; // the first of all
static inline cudaStream_t gemv_of(cudaStream_t s) {
    return s == NULL || s == cudaStreamLegacy || s == cudaStreamPerThread ? &default_stream : s;
}

cudaError_t capture_put(cudaStream_t stream, const struct work *w);
/* What may not be while this thread captures (allocating, waiting for the device) spoils what it captures. */
cudaError_t capture_forbids(void);
/* Waiting for a stream that is captured, or using the default stream that would wait for one. */
cudaError_t capture_forbids_waiting(cudaStream_t stream);

// ---- the driver -----------------------------------------------------------------------------------------------------

struct driver_function {
    const char *name;
    void *at;
};
extern const struct driver_function memory_functions[], graph_functions[]; // each ends with {NULL, NULL}
