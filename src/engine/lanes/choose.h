/* choose.h - which of several engines a request goes to: where its prefix lies, else where it will wait least. */
#pragma once

#include "engine/lanes/affinity.h"
#include "engine/queue_model.h"

struct engine_queue {
    const struct queue_model *queue;
    bool has_failed;
};

/* order [n], n at most MOST_ENGINES: the cheapest first; of equal ones the first. An engine that has failed comes
 * last. */
void engines_order(struct affinity *a, const struct engine_queue *engines, int n, const struct gyre_request *r,
                   int *order);
