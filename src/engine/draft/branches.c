/* branches.c - see branches.h. */
#include "engine/draft/branches.h"

#include <string.h>

/* The parent's table up to where the branch parts, then its own blocks. */
static void fill_table(const struct gyre *g, struct batch_plan *plan, int s, const struct branch *b) {
    int32_t first = b->first / g->pool.block_size;
    for (int group = 0; group < g->program->n_groups; group++) {
        size_t width = (size_t)plan->table_width[group];
        int32_t *row = plan->block_table[group] + (size_t)plan->n_seqs * width;
        memcpy(row, plan->block_table[group] + (size_t)(s + b->parent) * width, (size_t)first * sizeof *row);
        memcpy(row + first, b->blocks[group], (size_t)b->n_blocks * sizeof *row);
    }
}

/* What rows of the step keep in the block in which the branch parts. */
static void fill_also(const struct gyre *g, struct batch_plan *plan, int s, const struct sequence *seq,
                      const struct branch *b) {
    int32_t begins = b->first - b->first % g->pool.block_size;
    for (int32_t at = MAX(begins, plan->position[plan->query_start[s]]); at < b->first; at++)
        plan->also[plan->n_also++] =
            (struct also_kept){engine_row_on_way(plan, s, seq->branches, b->parent, at), plan->n_seqs};
}

static void fill_rows(struct step *step, struct request *r, const struct branch *b, int number) {
    struct batch_plan *plan = &step->plan;
    for (int i = 0; i < b->n; i++, plan->n_tokens++, plan->n_rows++) {
        plan->token_id[plan->n_tokens] = b->tokens[i];
        plan->from_row[plan->n_tokens] = -1;
        plan->position[plan->n_tokens] = b->first + i;
        plan->out_row[plan->n_rows] = plan->n_tokens;
        step->sample[plan->n_rows] = engine_row_params(r, b->first + i);
        plan->draws_best &= sample_is_best(&step->sample[plan->n_rows]);
        step->rows[plan->n_rows] = (struct step_row){r, b->first + i, r->sequence.n_backs, number};
    }
}

void engine_fill_branches(struct gyre *g, struct step *step, int s) {
    struct batch_plan *plan = &step->plan;
    struct request *r = step->requests[s];
    for (int i = 1; i <= branches_n(&r->sequence); i++) {
        const struct branch *b = &r->sequence.branches->at[i - 1];
        int at = plan->n_seqs;
        step->requests[at] = r;
        step->branch[at] = i;
        fill_table(g, plan, s, b);
        fill_also(g, plan, s, &r->sequence, b);
        fill_rows(step, r, b, i);
        plan->seq_len[at] = plan->n_known[at] = b->first + b->n;
        plan->n_sure[at] = r->sequence.n_known;
        plan->held[at] = (b->first / g->pool.block_size + b->n_blocks) * g->pool.block_size;
        plan->state_slot[at] = r->sequence.state_slot;
        plan->adapter[at] = r->asked.adapter;
        plan->query_start[++plan->n_seqs] = plan->n_tokens;
        step->n_branches++;
    }
}

void engine_settle_branches(struct gyre *g, const struct step *step) {
    for (int s = 0; s < step->plan.n_seqs && step->n_branches > 0; s++)
        if (step->branch[s] == 0)
            scheduler_settle(&g->scheduler, &step->requests[s]->sequence);
}
