/* plan_layout.h - where plan.c puts the parts of a plan, on the host and the device alike, and what a step in flight
 * has on the host. */
#pragma once

#include "backend/cuda/value.h"
#include "core/plan.h"
#include "core/sample.h"

#include <stddef.h>

/* Where the parts of a plan are, in bytes from its start. */
struct plan_layout {
    size_t counts, places, token_id, from_row, position, state_row, state_source, state_base, state_kept, seq_of_row,
        query_start, seq_len, n_known, state_slot, out_row, newest_row, rows, block_table[MAX_CACHE_GROUPS];
};

enum { STEPS_IN_FLIGHT = 2 };
/* What a step in flight has of its own, in pinned memory. */
struct step_slot {
    const struct batch_plan *plan;
    const struct sample_params *sample; // NULL: the step is late, and nobody has drawn yet
    char *plan_host;
    int32_t *lists, *lists_there; // [n_lists] and, on the device, [n_there]: the first n_listed of this step
    size_t n_lists, n_there, n_listed;
    bool sent_ahead;             // the lists are on their way to the device already, and ...
    cudaEvent_t listed;          // ... then there
    int n_not_plain, n_not_best; // rows of which more is asked than the most probable token, of those of a mask
    struct dsampled *sampled;    // [max_rows]
    int32_t *top_token;          // [max_rows][MOST_TOP_LOGPROBS]
    float *top_logprob;
    cudaEvent_t done; // of a late step, until it is drawn: the device has the plan
};
