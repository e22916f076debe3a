/* engine_batch.h - the --batch mode of verbs that compute: JSON lines in, computed together, JSON lines out in order.
 *
 * As batch.h, but a line is not answered before the next is read: up to twice as many as fit in a step are under way
 * at a time (continuous batching), and each is written as soon as all before it are. Input is awaited only when there
 * is nothing to compute. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"
#include "gyre.h"

/* What a verb does with a line. A job is what the verb makes of it. */
struct batch_verb {
    /* Reads the line and submits one request, with `user` as its user, or fails. */
    enum status (*begin)(void *arg, struct gyre *g, const json_t *line, void *user, void **job, struct error *err);

    /* Takes an event of the job's request; an error makes the line's answer that error. */
    enum status (*take)(void *job, struct gyre *g, const struct gyre_event *event, struct error *err);

    /* Appends the answer of a job that had its DONE. */
    void (*answer)(const void *job, struct buf *out);

    void (*free)(void *job);
};

/* Returns the exit code, after a sentence on stderr if it is not 0. */
int engine_batch(struct gyre *g, const struct batch_verb *verb, void *arg);
