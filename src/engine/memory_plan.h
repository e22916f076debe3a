/* memory_plan.h - what an open engine takes of its device's memory, part by part; for whoever prints it. */
#pragma once

#include "core/backend.h"
#include "gyre.h"

enum { MAX_MEMORY_PARTS = MAX_CACHE_GROUPS + MAX_DEVICE_REPORTS + 2 };

struct memory_part {
    char what[64]; // "weights", "sliding window of 48, 5 layers", ...
    int64_t n;     // blocks or state slots of ...
    int64_t each;  // ... so many bytes; other parts are one
};

struct memory_plan {
    struct memory_part parts[MAX_MEMORY_PARTS];
    int n_parts;
    int64_t total, machine; // bytes; machine: that there is, 0 if it is not known
    int64_t taken;          // of it, now, by whomever; 0: not known
};

/* Sums of what was asked for when the engine was opened; cache that nobody has used yet may not be resident. */
void memory_plan(const struct gyre *g, struct memory_plan *out);
