/* pooling.c - a prompt as one vector: the state behind the last norm, of its last token or averaged over all.
 *
 * Only the last position makes an output row, so that no logits are computed for the others; their states are read from
 * the step's token rows. A mean is summed in double and begins anew at position 0, as a sequence that was preempted
 * does. */
#include "engine/engine.h"

#include <string.h>

static enum status add_to_sums(struct gyre *g, const struct batch_plan *plan, struct request *r, int first_row, int n) {
    int width = g->info.hidden_size;
    const float *x;
    if (plan->position[first_row] == 0)
        memset(r->sums, 0, (size_t)width * sizeof *r->sums);
    for (int row = first_row; row < first_row + n; row++) {
        TRY(g->ops->hidden(g->exe, 0, row, &x, &g->failed));
        for (int i = 0; i < width; i++)
            r->sums[i] += (double)x[i];
    }
    return OK;
}

static enum status finish_vector(struct gyre *g, struct request *r, int last_row) {
    int width = g->info.hidden_size;
    const float *last = NULL;
    if (r->asked.pooling == GYRE_POOL_LAST)
        TRY(g->ops->hidden(g->exe, 0, last_row, &last, &g->failed));
    if (last)
        memcpy(r->pooled, last, (size_t)width * sizeof *r->pooled);
    for (int i = 0; r->sums && i < width; i++)
        r->pooled[i] = (float)(r->sums[i] / r->n_prompt);
    r->pooled_whole = true;
    return OK;
}

enum status engine_pool_step(struct gyre *g, const struct step *step) {
    const struct batch_plan *plan = &step->plan;
    for (int s = 0; s < plan->n_seqs; s++) {
        struct request *r = step->requests[s];
        int first = plan->query_start[s], n = plan->query_start[s + 1] - first;
        if (r->ended || r->asked.pooling == GYRE_POOL_NONE)
            continue;
        if (r->sums)
            TRY(add_to_sums(g, plan, r, first, n));
        if (plan->position[first] + n == r->n_prompt)
            TRY(finish_vector(g, r, first + n - 1));
    }
    return OK;
}
