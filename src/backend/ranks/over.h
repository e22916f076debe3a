/* over.h - a backend made over another: n devices of it, driven as one. What ranks.h and stages.h share: opening,
 * loading, caches, and faults; how a program is cut and how a step runs is theirs.
 *
 *     device   = n devices of the inner backend, the next ones of the machine each, or the host's shared by all
 *     loaded   = n programs, one on each
 *     block    = n blocks, one on each; handed over they lie one behind the other
 *
 * Devices of `far`, all but the last, are on other hosts (dist/remote.h). */
#pragma once

#include "base/pool.h"
#include "core/backend.h"

#include <stdatomic.h>

enum { MOST_DEVICES_OVER = 64 };

struct over {
    struct backend_ops ops;
    const struct backend_ops *of, *far; // far: of all but the last; NULL: all are alike
    int n;
    bool by_stage;  // each has layers of its own; false: a share of every layer
    bool by_expert; // of ranks: whole experts
    int n_last;     // executables of the last device in each, 0: one
};

struct device {
    const struct over *table;
    struct device *of[MOST_DEVICES_OVER];
    struct pool *pool;  // a thread a device
    struct error fault; // of a step, sticky
};

struct loaded {
    struct device *device;
    const struct program *whole;
    struct program *programs[MOST_DEVICES_OVER];
    struct loaded *of[MOST_DEVICES_OVER];
};

/* The table of what is wanted (all of `want` but its ops), which lives as long as the process and is the same for the
 * same wish. Functions of this file are in it; `fill` puts in the others, and takes away what there is not. */
enum status over_table(const struct over *want, void (*fill)(struct over *t), const struct backend_ops **out,
                       struct error *err);

static inline const struct backend_ops *over_ops(const struct over *t, int i) {
    return t->far && i < t->n - 1 ? t->far : t->of;
}

/* Loads l->programs [n], all at the same time. */
enum status over_load(struct loaded *l, const struct load_options *options, struct error *err);
void over_unload(struct loaded *l); // NULL is fine

int64_t over_states_width(const struct program *p); // columns that its STATES has, of a stage

/* What comes of what devices do at the same time. The first that fails says why: others wait for it in vain. */
struct outcomes {
    enum status status[MOST_DEVICES_OVER];
    struct error err[MOST_DEVICES_OVER];
    atomic_int first; // 1 + that one; 0: none has
};
void tell_outcome(struct outcomes *o, int i, enum status st);
enum status first_fault(struct outcomes *o, struct error *err);

/* Devices of which one has failed in a step do not go on: they would not meet. */
enum status over_check(const struct device *d, struct error *err);
enum status over_stays_failed(struct device *d, enum status st, struct error *err);
