/* plugin.h - a backend in a library of its own, loaded when it is asked for, so that one binary runs with and without
 * it.
 *
 * The library exports one symbol, gyre_plugin. It is refused unless version and interface are those of the program that
 * loads it: backend.h, plan.h, program.h and what they include are no stable interface. */
#pragma once

#include "core/backend.h"

struct plugin {
    const char *version; // of gyre that it was built with
    uint64_t interface; // GYRE_INTERFACE then: the Makefile's sum over the text of this header and all that it includes
                        // of ours
    const char *built;  // with what, for people: "CUDA 13.0, sm_90a"
    const struct backend_ops *ops;
};
