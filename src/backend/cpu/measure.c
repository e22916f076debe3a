/* measure.c - see measure.h. Every figure is the best of several passes: what is sought is the limit, and other
 * processes only ever make a pass slower. Reading goes through all of the memory, so that it lasts about as long as a
 * token. */
#include "backend/cpu/measure.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/clock.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PASSES = 16, BARRIERS = 500, MULTIPLY_ADDS = 384 * 200000 };

struct probe {
    struct pool *pool;
    const struct kernels *kernels;
    float *memory;
    int64_t n_floats;
    float sums[1024]; // [workers]; so that no sum is dropped
};

static void touch(void *arg, int worker, int n_workers) {
    struct probe *p = arg;
    int64_t begin, end;
    pool_share(p->n_floats, 1024, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        p->memory[i] = (float)(i & 7);
}

static void read_all(void *arg, int worker, int n_workers) {
    struct probe *p = arg;
    int64_t begin, end;
    pool_share(p->n_floats, 1024, worker, n_workers, &begin, &end);
    p->sums[worker] += p->kernels->read(p->memory + begin, end - begin);
}

static void multiply_all(void *arg, int worker, int n_workers) {
    struct probe *p = arg;
    (void)n_workers;
    p->sums[worker] += p->kernels->multiply_adds(MULTIPLY_ADDS);
}

static void meet(void *arg, int worker, int n_workers) {
    struct probe *p = arg;
    (void)worker;
    (void)n_workers;
    for (int i = 0; i < BARRIERS; i++)
        pool_barrier(p->pool);
}

/* The shortest of several passes, in seconds. */
static double shortest(struct probe *p, void (*pass)(void *, int, int)) {
    double best = 1e9;
    for (int i = 0; i < PASSES; i++) {
        int64_t start = clock_us();
        pool_run(p->pool, pass, p);
        double seconds = clock_seconds_since(start);
        best = seconds < best ? seconds : best;
    }
    return best;
}

enum status measure_machine(int n_threads, int64_t read_bytes, struct machine_limits *out, struct error *err) {
    struct probe p = {.kernels = kernels_find(NULL), .n_floats = read_bytes / (int64_t)sizeof(float) / 1024 * 1024};
    p.memory = mmap(NULL, (size_t)read_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p.memory == MAP_FAILED)
        return fail(err, ERR_MEMORY, "no memory to measure with: %lld bytes", (long long)read_bytes);
    madvise(p.memory, (size_t)read_bytes, MADV_HUGEPAGE); // with small pages the walks of page tables set a lower limit
    p.pool = pool_open(n_threads);
    int n = pool_size(p.pool);
    *out = (struct machine_limits){.n_threads = n, .kernels = p.kernels->name};
    pool_run(p.pool, touch, &p);
    out->read_bytes_per_s = (double)p.n_floats * sizeof(float) / shortest(&p, read_all);
    out->multiply_adds_per_s = (double)MULTIPLY_ADDS * n / shortest(&p, multiply_all);
    out->barrier_us = shortest(&p, meet) / BARRIERS * 1e6;
    pool_free(p.pool);
    munmap(p.memory, (size_t)read_bytes);
    return OK;
}

enum status cpu_measure(struct loaded *l, struct device_limits *out, struct error *err) {
    enum { READ_BYTES = 512 << 20 };
    struct machine_limits m;
    TRY(measure_machine(pool_size(l->device->pool), READ_BYTES, &m, err));
    *out = (struct device_limits){.read_bytes_per_s = m.read_bytes_per_s,
                                  .flops_per_s = 2 * m.multiply_adds_per_s,
                                  .wide_flops_per_s = 2 * m.multiply_adds_per_s,
                                  .product = "float32"};
    snprintf(out->name, sizeof out->name, "%d thread%s, %s kernels", m.n_threads, m.n_threads == 1 ? "" : "s",
             m.kernels);
    return OK;
}
