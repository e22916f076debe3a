/* ahead.c - see run.h: several steps a launch (device option steps).
 *
 * Where all that a step asks for is one more token of each sequence, drawn on the device, and no hidden state, a launch
 * does the steps that follow too, as far as the sequences' last blocks reach: a loop feeds each token back. Steps that
 * the engine starts then are answered out of what was drawn, if they are those that were foreseen: the same sequences
 * in the same order, but for those that have ended, each going on with the token it was given, drawn in the same way.
 * Any other step is launched; what was computed too far lies in caches behind the sequence's end, and is overwritten
 * before anybody looks: rings have room for it. When most of a launch was for nothing, the next does no more steps than
 * that one was good for, and later ones twice as many each. States of recurrent layers cannot be left behind so: their
 * programs do a step a launch. */
#include "backend/xla/run.h"

#include <stdlib.h>
#include <string.h>

/* How a sequence stood in the first step of a launch. */
struct foreseen {
    int32_t position, adapter, tail[MAX_CACHE_GROUPS]; // tail: its last block in each group, or its slot
    int row;                                           // of the launch
    struct sample_params sample;
};

struct ahead {
    struct foreseen *seqs;   // [max_seqs]
    int n_seqs, n, n_served; // n: steps drawn; 0: none
    int32_t *drawn;          // [n][DRAWN_INTS][rows of the launch]
    int n_rows;
    int n_trusted; // steps that the next launch does, at most
};

static bool can_run_ahead(const struct program *p) {
    bool can = p->ops[p->n_ops - 1].code == OP_SAMPLE && states_width(p) == 0 && p->n_taps == 0;
    for (int g = 0; g < p->n_groups; g++)
        can = can && (p->groups[g].kind != CACHE_STATE || p->groups[g].ring > 0);
    return can;
}

struct ahead *ahead_new(const struct loaded *l, struct bucket bucket, int most_seqs) {
    if (l->device->steps <= 1 || !can_run_ahead(l->program))
        return NULL;
    struct ahead *a = xcalloc(1, sizeof *a);
    a->n_trusted = l->device->steps;
    a->seqs = xcalloc((size_t)bucket.max_seqs + 1, sizeof *a->seqs);
    a->drawn = xcalloc((size_t)l->device->steps * DRAWN_INTS * (size_t)most_seqs, sizeof *a->drawn);
    return a;
}

void ahead_free(struct ahead *a) {
    if (!a)
        return;
    free(a->seqs);
    free(a->drawn);
    free(a);
}

static int blocks_of(const struct executable *exe, int seq) {
    return (exe->plan->seq_len[seq] + exe->loaded->block_size - 1) / exe->loaded->block_size;
}

static int32_t tail_of(const struct executable *exe, int seq, int group) {
    const struct batch_plan *plan = exe->plan;
    if (exe->program->groups[group].kind == CACHE_STATE)
        return plan->state_slot[seq];
    return plan->block_table[group][(int64_t)seq * plan->table_width[group] + blocks_of(exe, seq) - 1];
}

/* One row a sequence, in the plan's order. */
static bool is_one_by_one(const struct executable *exe) {
    const struct batch_plan *plan = exe->plan;
    bool is = exe->params && !plan->wants_hidden && plan->n_seqs > 0 && plan->n_rows == plan->n_seqs &&
              plan->n_tokens == plan->n_seqs;
    for (int s = 0; s < plan->n_seqs && is; s++)
        is = plan->out_row[s] == s && pack_is_drawn_there(&exe->sample[s]);
    return is;
}

/* Nobody will ask for more of what was drawn. */
static void forget(struct ahead *a, int most) {
    if (a->n > 1)
        a->n_trusted = a->n_served < a->n - a->n_served ? a->n_served : MIN(2 * a->n_trusted, most);
    a->n = 0;
}

int ahead_steps(struct executable *exe) {
    struct ahead *a = exe->ahead;
    if (!a)
        return 1;
    forget(a, exe->loaded->device->steps);
    if (exe->n_pieces != 1 || !is_one_by_one(exe))
        return 1;
    int n = a->n_trusted;
    a->n_trusted = MAX(n, 2); // behind one that goes alone
    for (int s = 0; s < exe->plan->n_seqs; s++)
        n = MIN(n, blocks_of(exe, s) * exe->loaded->block_size - exe->plan->position[s]);
    if (n <= 1)
        return 1;
    a->n_seqs = exe->plan->n_seqs;
    for (int s = 0; s < a->n_seqs; s++) {
        a->seqs[s] = (struct foreseen){
            .position = exe->plan->position[s], .adapter = exe->plan->adapter[s], .sample = exe->sample[s]};
        for (int g = 0; g < exe->program->n_groups; g++)
            a->seqs[s].tail[g] = tail_of(exe, s, g);
    }
    for (int i = 0; i < a->n_seqs; i++)
        a->seqs[exe->rows[i]].row = i;
    return n;
}

int32_t *ahead_take(struct executable *exe, int n_steps, int n_rows) {
    struct ahead *a = exe->ahead;
    a->n = n_steps;
    a->n_served = 1;
    a->n_rows = n_rows;
    return a->drawn;
}

static bool draws_alike(const struct sample_params *a, const struct sample_params *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->seed == b->seed && a->sequence == b->sequence;
}

/* Whether sequence s of the plan is this one, a step later than it was answered last. */
static bool goes_on(const struct executable *exe, int s, const struct foreseen *f, const struct sample_result *before) {
    const struct ahead *a = exe->ahead;
    const struct batch_plan *plan = exe->plan;
    int32_t token =
        plan->from_row[s] < 0 ? plan->token_id[s] : program_token_of(exe->program, before[plan->from_row[s]].token);
    bool same = plan->position[s] == f->position + a->n_served && plan->adapter[s] == f->adapter &&
                token == a->drawn[((int64_t)(a->n_served - 1) * DRAWN_INTS + DRAWN_TOKEN) * a->n_rows + f->row] &&
                draws_alike(&exe->sample[s], &f->sample) &&
                exe->sample[s].position == f->sample.position + (uint64_t)a->n_served;
    for (int g = 0; g < exe->program->n_groups && same; g++)
        same = tail_of(exe, s, g) == f->tail[g];
    return same;
}

bool ahead_serve(struct executable *exe, const struct sample_result *before, struct sample_result *results) {
    struct ahead *a = exe->ahead;
    if (!a || a->n_served >= a->n || exe->plan->n_copies > 0 || !is_one_by_one(exe))
        return false;
    const int32_t *drawn = a->drawn + (int64_t)a->n_served * DRAWN_INTS * a->n_rows;
    int s = 0;
    for (int i = 0; i < a->n_seqs && s < exe->plan->n_seqs; i++)
        if (goes_on(exe, s, &a->seqs[i], before))
            results[s++] = run_result_of(drawn, a->n_rows, a->seqs[i].row);
    if (s < exe->plan->n_seqs)
        return false;
    a->n_served++;
    return true;
}
