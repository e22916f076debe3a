/* load_progress.h - told how far a long load is, by whoever reads, makes or uploads weights. */
#pragma once

#include <stdint.h>

/* Bytes so far, of all; never less than before. Called on the thread that loads, every few megabytes. */
struct load_progress {
    void (*step)(void *context, int64_t done, int64_t total); // NULL: nobody wants to know
    void *context;
};

static inline void load_progress_step(const struct load_progress *p, int64_t done, int64_t total) {
    if (p->step)
        p->step(p->context, done, total);
}
