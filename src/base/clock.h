/* clock.h - monotonic time for measuring. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Microseconds since some moment before the process began; never goes back. */
static inline int64_t clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline double clock_seconds_since(int64_t start_us) { return (double)(clock_us() - start_us) * 1e-6; }
