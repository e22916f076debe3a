/* device.h - the physical device: opening it, its faults, its memory. */
#pragma once

#include "backend/cuda/cuda.h"

enum status cuda_open(const struct device_options *options, struct device **out, struct error *err);
void cuda_close(struct device *d);

/* The first fault stays, and is told again by whatever comes later; but memory that is short is none (ERR_MEMORY). The
 * sentence says what was done, with which sizes. */
enum status device_fault(struct device *d, struct error *err, cudaError_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define DEVICE_TRY(d, err, call, ...)                                   \
    do {                                                                \
        cudaError_t device_code_ = (call);                              \
        if (device_code_ != cudaSuccess)                                \
            return device_fault((d), (err), device_code_, __VA_ARGS__); \
    } while (0)

/* Makes it the thread's; before anything else that is asked of a device. */
enum status device_enter(struct device *d, struct error *err);

/* *(void **)out becomes memory of the device as it is there; ERR_MEMORY says how much is wanted for what, and how much
 * there is. Of a card that is not there it is counted and becomes NULL. */
enum status memory_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err);
/* Likewise of the host's, for copies and for kernels that read or write it. */
enum status pinned_take(struct device *d, void *out, int64_t n_bytes, const char *what, struct error *err);
/* What is free, and all that there is; of a card that is not there what was not taken of it. */
cudaError_t memory_ask(const struct device *d, size_t *free_bytes, size_t *total);
int64_t memory_that_may_be_taken(size_t total, double share); // share 0: the usual one
int64_t
memory_left(const struct device *d); // that may still be taken, of what is free; 0: none, or the device does not say
void cuda_memory(const struct device *d, struct device_memory *out);
