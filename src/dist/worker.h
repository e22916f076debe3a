/* worker.h - a node that has one stage of a model, and does what the node with the engine asks (remote.h).
 *
 * Its weights are read while it loads, which may take as long as it takes. So its first step finds them in memory and
 * is answered within the patience of node 0 as others are. But where they are more than memory has free, each step
 * reads what it needs, and the patience has to be longer than that takes. Reading tells every 16 MiB that it moves;
 * placing weights, a cache and compiling tell nothing of themselves on the CPU, and have stall_us each. */
#pragma once

#include "core/backend.h"

struct worker_options {
    const char *address; // of node 0
    int rank, n_nodes;   // this one's number, from 1
    uint64_t identity;   // of model and numerics
    const struct backend_ops *backend;
    const struct program *program; // of the whole model
    struct device_options device;
    struct load_options load; // but for n_back and progress
    // Before it loads: brings the weights of the stage into memory. NULL: they come as they are needed
    void (*read_ahead)(void *context, const struct program *stage, const struct load_progress *progress);
    void *context;
    int64_t stall_us;     // of work that does not move for so long node 0 hears nothing any more; 0: 600 s
    int64_t until_us;     // node 0 is tried until then
    void (*joined)(void); // called when it has been reached; NULL: nothing is
};

/* Connects, works, and returns OK when node 0 has said that it leaves; ERR_IO: it did not come, or was lost; another
 * status: it sent this node away, or something that cannot be. */
enum status worker_run(const struct worker_options *options, struct error *err);
