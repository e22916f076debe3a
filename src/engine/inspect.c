/* inspect.c - see inspect.h. */
#include "engine/inspect.h"

#include "engine/engine.h"

struct engine_parts engine_parts(const struct gyre *g) {
    return (struct engine_parts){
        .ops = g->ops, .loaded = g->loaded, .exe = g->exe, .program = g->program, .model = g->model};
}

struct engine_steps engine_steps(const struct gyre *g) {
    return (struct engine_steps){.n_started = g->n_steps,
                                 .n_last_tokens = g->scheduler.n_step_tokens,
                                 .n_preempted = g->scheduler.n_preempted,
                                 .n_late = g->n_late_steps,
                                 .mask_wait_us = g->mask_wait_us,
                                 .n_forced = g->n_forced_tokens};
}

struct open_times engine_open_times(const struct gyre *g) {
    return g->open_us;
}

int64_t engine_weight_bytes(const struct gyre *g) { return g->weight_bytes; }
