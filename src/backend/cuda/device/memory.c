/* memory.c - what an executable takes of the device, counted before it is there and while it is allocated by the same code, and what
 * that leaves for caches. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/value.h"

#include <stdlib.h>

enum { PLACE = 512 };             // what the device's allocator rounds to
enum { LIBRARIES = 160 << 20 };   // modules that load and graphs that are instantiated later than the question is asked
static const double SHARE = 0.92; // of the device, unless somebody says another

static int64_t that_may_be_taken(size_t total, double share) { return (int64_t)((double)total * (share > 0 ? share : SHARE)); }

enum status memory_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err) {
    size_t free_bytes = 0, total = 0;
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

enum status device_alloc(struct executable *exe, void *out, int64_t n_bytes, const char *what, struct error *err) {
    n_bytes = (MAX(n_bytes, 1) + PLACE - 1) / PLACE * PLACE;
    exe->step_bytes += n_bytes;
    return exe->only_sized ? OK : memory_take(exe->loaded->device, out, n_bytes, what, err);
}

enum status cuda_cache_room(struct loaded *loaded, struct bucket bucket, int block_size, const int *table_width, double share, int64_t *out,
                            struct error *err) {
    const struct program *p = loaded->program;
    size_t free_bytes, total;
    int64_t step;
    loaded->block_size = block_size;
    memcpy(loaded->table_width, table_width, sizeof loaded->table_width);
    TRY(device_enter(loaded->device, err));
    TRY(step_sized(loaded, bucket, &step, err));
    DEVICE_TRY(loaded->device, err, cudaMemGetInfo(&free_bytes, &total), "asking for its memory");
    int64_t may = that_may_be_taken(total, share), held = (int64_t)(total - free_bytes);
    *out = may - held - step - LIBRARIES;
    *out -= MIN(cache_waste(loaded, p, block_size, MAX(*out, 0)), MAX(*out, 0) / 2);
    if (*out > 0)
        return OK;
    return fail(
        err, ERR_MEMORY,
        "%s: of the %lld MiB of the GPU that may be taken (gpu_memory_utilization) %lld are, by the weights and by others, and a step "
        "of %d tokens takes %lld: nothing is left for the cache",
        p->name, (long long)(may >> 20), (long long)(held >> 20), bucket.max_tokens, (long long)((step + LIBRARIES) >> 20));
}

int64_t memory_left(const struct device *d) {
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess)
        cudaGetLastError();
    return MAX(that_may_be_taken(total, d->memory_share) - (int64_t)(total - free_bytes), 0);
}
