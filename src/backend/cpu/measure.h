/* measure.h - what this machine can do at best, so that a speed can be given as per cent of a limit. */
#pragma once

#include "base/status.h"

struct machine_limits {
    int n_threads;
    const char *kernels;        // "avx512"
    double read_bytes_per_s;    // memory, all threads, one linear stream each; best of several passes
    double multiply_adds_per_s; // float32 multiply-adds, all threads, operands in registers; best of several
    double barrier_us;          // one barrier of all threads
};

/* Takes about a second and `read_bytes` of memory, which should be several times the last-level cache.
 * n_threads 0: one a processor. ERR_MEMORY if the memory is not there. */
enum status measure_machine(int n_threads, int64_t read_bytes, struct machine_limits *out, struct error *err);

struct loaded;
struct device_limits;

/* The same, as backend_probes.measure wants it. */
enum status cpu_measure(struct loaded *l, struct device_limits *out, struct error *err);
