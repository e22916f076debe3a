/* inputs.c - see xla.h: where the numbers of a launch stand. */
#include "backend/xla/xla.h"

static int take(int *n, int count) {
    int at = *n;
    *n += count;
    return at;
}

int inputs_table_width(const struct loaded *l, const struct launch_shape *s, int group) {
    const struct cache_group *g = &l->program->groups[group];
    int all = (s->context + l->block_size - 1) / l->block_size;
    if (g->window == 0)
        return all;
    int64_t seen = ((int64_t)g->window + s->n_queries + s->n_steps - 3) / l->block_size + 2; // from anywhere in a block
    return (int)MIN(all, seen);
}

int states_width(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_STATES)
            return p->ops[i].out[0].width;
    return 0;
}

void inputs_layout(const struct loaded *l, const struct launch_shape *s, struct inputs *out) {
    const struct program *p = l->program;
    int n_tokens = launch_tokens(s), n = 0;
    *out = (struct inputs){0};
    out->token = take(&n, n_tokens);
    out->position = take(&n, n_tokens);
    out->n_query = take(&n, s->n_seqs);
    out->state_slot = take(&n, s->n_seqs);
    out->adapter = take(&n, s->n_seqs);
    out->out_row = take(&n, s->n_rows);
    out->from_row = take(&n, s->n_fed > 0 ? n_tokens : 0);
    out->fed_to = take(&n, s->n_fed > 0 ? s->n_rows : 0);
    for (int g = 0; g < p->n_groups; g++) {
        if (p->groups[g].kind == CACHE_STATE)
            continue;
        out->width[g] = inputs_table_width(l, s, g);
        out->table[g] = take(&n, s->n_seqs * out->width[g]);
        out->base[g] = take(&n, s->n_seqs);
    }
    out->ranks = take(&n, l->n_rank_ints);
    out->top_k = take(&n, s->n_rows);
    out->bits = take(&n, s->n_steps * 2 * s->n_rows);
    out->zero = take(&n, 1);
    out->n_loop = take(&n, 1);
    out->n_ints = n;
    n = 0;
    for (int i = 0; i < p->n_ropes; i++)
        out->cos_sin[i] = take(&n, s->n_steps * n_tokens * p->ropes[i]->dim);
    out->temperature = take(&n, s->n_rows);
    out->top_p = take(&n, s->n_rows);
    out->least = take(&n, s->n_rows);
    out->states_width = states_width(p);
    out->states = take(&n, n_tokens * out->states_width);
    out->n_floats = n;
}
