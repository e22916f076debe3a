/* plugin.h - a backend in a library of its own, loaded when it is asked for, so that one binary runs with and without it.
 *
 * The library exports one symbol, gyre_plugin. It is refused unless version and layout are those of the program that
 * loads it: backend.h, plan.h, program.h and what they include are no stable interface. */
#pragma once

#include "core/backend.h"

struct plugin {
    const char *version; // of gyre that it was built with
    size_t layout;       // plugin_layout() as it was compiled
    const char *built;   // with what, for people: "CUDA 13.0, sm_90a"
    const struct backend_ops *ops;
};

/* Changes when one of the structures that cross the border does. */
static inline size_t plugin_layout(void) {
    return sizeof(struct backend_ops) * 1000003u ^ sizeof(struct program) * 10007u ^ sizeof(struct op) * 1009u ^
           sizeof(struct batch_plan) * 101u ^ sizeof(struct sample_params) * 31u ^ sizeof(struct sample_result) * 7u ^ (size_t)N_OPCODES ^
           sizeof(struct backend_options) * 65537u ^ sizeof(struct cache_config) * 257u ^ sizeof(struct device_memory) * 17u ^
           sizeof(struct device_limits) * 5u;
}
