/* stages.h - several devices of one kind as one, each with some of the layers (core/pass/pass.h, pass_stage): a
 * pipeline.
 *
 *     TRY(backend_stages(&backend_cpu, 2, &ops, &err));       // then as any backend
 *
 * A step is cut into as many parts as there are stages, of whole sequences, which are in flight together: stage 1 has
 * part 0 while stage 0 has part 1. Each stage is a thread; what crosses a border is copied from one device's memory
 * to the other's. A stage may itself be several devices (ranks.h). Logits and hidden states are the last stage's;
 * bytes of reports and of cache blocks are of all.
 *
 *     stage 0   [part 0][part 1][part 2]
 *     stage 1           [part 0][part 1][part 2]
 *     stage 2                   [part 0][part 1][part 2] */
#pragma once

#include "core/backend.h"

enum { MAX_STAGES = 16 };

/* A table that lives as long as the process; the same for the same arguments. ERR_UNSUPPORTED: the backend keeps no
 * hidden states. Of a device that has steps in flight one at a time is: a part goes on when it is collected. */
enum status backend_stages(const struct backend_ops *of, int n, const struct backend_ops **out, struct error *err);

/* The same, of which all stages but the last are devices of `far`: that of stage i is opened with the index i + 1.
 * Bytes that are told are those of the last one. */
enum status backend_stages_far(const struct backend_ops *of, const struct backend_ops *far, int n,
                               const struct backend_ops **out, struct error *err);
