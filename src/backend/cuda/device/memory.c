/* memory.c - memory of the device and pinned memory of the host, and how much may be taken. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/value.h"

#include <stdlib.h>

static const double SHARE = 0.92; // of the device, unless somebody says another

int64_t memory_that_may_be_taken(size_t total, double share) {
    return (int64_t)((double)total * (share > 0 ? share : SHARE));
}

cudaError_t memory_ask(const struct device *d, size_t *free_bytes, size_t *total) {
    if (!d->card)
        return cudaMemGetInfo(free_bytes, total);
    *total = (size_t)d->card->memory_bytes;
    *free_bytes = (size_t)MAX(d->card->memory_bytes - d->taken, 0);
    return cudaSuccess;
}

enum status memory_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err) {
    size_t free_bytes = 0, total = 0;
    if (d->card) {
        *(void **)out = NULL;
        d->taken += n_bytes;
        return OK;
    }
    cudaError_t code = cudaMalloc((void **)out, (size_t)MAX(n_bytes, 1));
    if (code != cudaErrorMemoryAllocation) {
        DEVICE_TRY(d, err, code, "memory for %lld MiB of %s", (long long)((n_bytes + (1 << 20) - 1) >> 20), what);
        return OK;
    }
    cudaMemGetInfo(&free_bytes, &total);
    cudaGetLastError(); // of either
    return fail(err, ERR_MEMORY, "CUDA device %d has no room for %lld MiB of %s: %zu of its %zu MiB are free", d->index,
                (long long)((n_bytes + (1 << 20) - 1) >> 20), what, free_bytes >> 20, total >> 20);
}

enum status pinned_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err) {
    cudaError_t code = cudaMallocHost((void **)out, (size_t)MAX(n_bytes, 1));
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return fail(err, ERR_MEMORY, "the host has no pinned memory for %lld KiB of %s (ulimit -l, cgroup)",
                    (long long)((n_bytes + 1023) >> 10), what);
    }
    DEVICE_TRY(d, err, code, "pinned memory for %lld KiB of %s", (long long)((n_bytes + 1023) >> 10), what);
    return OK;
}

int64_t memory_left(const struct device *d) {
    size_t free_bytes = 0, total = 0;
    if (memory_ask(d, &free_bytes, &total) != cudaSuccess)
        cudaGetLastError();
    return MAX(memory_that_may_be_taken(total, d->memory_share) - (int64_t)(total - free_bytes), 0);
}
