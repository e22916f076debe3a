/* plan.c - see plan.h. */
#include "core/plan.h"

#include "base/status.h"

#include <stdlib.h>

void batch_plan_init(struct batch_plan *plan, struct bucket b, int n_groups, const int *table_width) {
    size_t tokens = (size_t)b.max_tokens, seqs = (size_t)b.max_seqs, rows = (size_t)b.max_rows;
    *plan = (struct batch_plan){0};
    plan->token_id = xcalloc(tokens, sizeof(int32_t));
    plan->position = xcalloc(tokens, sizeof(int32_t));
    plan->state_row = xcalloc(tokens, sizeof(int32_t));
    plan->from_row = xcalloc(tokens, sizeof(int32_t));
    for (size_t t = 0; t < tokens; t++)
        plan->from_row[t] = -1;
    plan->query_start = xcalloc(seqs + 1, sizeof(int32_t));
    plan->seq_len = xcalloc(seqs, sizeof(int32_t));
    plan->n_known = xcalloc(seqs, sizeof(int32_t));
    plan->n_sure = xcalloc(seqs, sizeof(int32_t));
    plan->held = xcalloc(seqs, sizeof(int32_t));
    plan->state_slot = xcalloc(seqs, sizeof(int32_t));
    plan->adapter = xcalloc(seqs, sizeof(int32_t));
    plan->out_row = xcalloc(rows, sizeof(int32_t));
    plan->copies = xcalloc((size_t)b.max_copies, sizeof(struct cache_copy));
    plan->also = xcalloc((size_t)b.max_also, sizeof(struct also_kept));
    BUG_IF(n_groups > MAX_CACHE_GROUPS);
    for (int g = 0; g < n_groups; g++) {
        size_t n;
        BUG_IF(!size_mul(seqs, (size_t)table_width[g], &n));
        plan->block_table[g] = xcalloc(n, sizeof(int32_t));
        plan->table_width[g] = table_width[g];
    }
}

void batch_plan_add_states(struct batch_plan *plan, struct bucket b, int width) {
    plan->states = xcalloc((size_t)b.max_tokens * (size_t)width, sizeof *plan->states);
}

void batch_plan_release(struct batch_plan *plan) {
    free(plan->states);
    free(plan->state_row);
    free(plan->token_id);
    free(plan->position);
    free(plan->from_row);
    free(plan->query_start);
    free(plan->seq_len);
    free(plan->n_known);
    free(plan->n_sure);
    free(plan->held);
    free(plan->state_slot);
    free(plan->adapter);
    free(plan->out_row);
    free(plan->copies);
    free(plan->also);
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        free(plan->block_table[g]);
    *plan = (struct batch_plan){0};
}
