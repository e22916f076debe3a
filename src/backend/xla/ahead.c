/* ahead.c - see run.h: several steps a launch (device option steps).
 *
 * Where all that a step asks for is one more token of each sequence, drawn on the device, and no hidden state, a launch
 * does the steps that follow too, as far as the sequences' blocks reach: a loop feeds each token back. Steps that
 * the engine starts then are answered out of what was drawn, if they are those that were foreseen: the same sequences
 * in the same order, but for those that have ended, each going on with the token it was given, drawn in the same way.
 * Any other step is launched; what was computed too far lies in caches behind the sequence's end, and is overwritten
 * before anybody looks: rings have room for it. When most of a launch was for nothing, the next does no more steps than
 * that one was good for, and later ones twice as many each. States of recurrent layers cannot be left behind so: their
 * programs do a step a launch. */
#include "backend/xla/run.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 2 }; // of a sequence, that a launch writes to

/* How a sequence stood in the first step of a launch. */
struct foreseen {
    int32_t position, adapter, slot, blocks[MAX_CACHE_GROUPS][MOST_BLOCKS]; // from that of position on
    int row;                                                                // of the launch
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

int ahead_most(const struct loaded *l, int n_queries) {
    bool can = n_queries == 1 && can_run_ahead(l->program) && 2 * l->n_caches + 4 <= HLO_MAX_CARRIED; // N_CARRIED
    return can ? l->device->steps : 1;
}

struct ahead *ahead_new(const struct loaded *l, struct bucket bucket, int most_seqs) {
    if (ahead_most(l, 1) == 1)
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

static bool is_paged(const struct executable *exe, int group) {
    return exe->program->groups[group].kind != CACHE_STATE;
}

/* The block of a position of the sequence. */
static int32_t block_of(const struct executable *exe, int seq, int group, int32_t position) {
    const struct batch_plan *plan = exe->plan;
    return plan->block_table[group][(int64_t)seq * plan->table_width[group] + position / exe->loaded->block_size];
}

/* Steps of the sequence that have a place in its blocks. */
static int steps_with_room(const struct executable *exe, const struct batch_plan *plan, int seq) {
    int32_t size = exe->loaded->block_size, position = plan->position[seq], first = position / size * size;
    int32_t end = MAX(plan->held[seq], first + size);
    return MIN(end, first + MOST_BLOCKS * size) - position;
}

static struct foreseen foresee(const struct executable *exe, int seq, int n_steps) {
    const struct batch_plan *plan = exe->plan;
    int32_t size = exe->loaded->block_size, position = plan->position[seq];
    struct foreseen f = {
        .position = position, .adapter = plan->adapter[seq], .slot = plan->state_slot[seq], .sample = exe->sample[seq]};
    for (int g = 0; g < exe->program->n_groups; g++)
        for (int i = 0; is_paged(exe, g) && i <= (position % size + n_steps - 1) / size; i++)
            f.blocks[g][i] = block_of(exe, seq, g, position + i * size);
    return f;
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
        n = MIN(n, steps_with_room(exe, exe->plan, s));
    if (n <= 1)
        return 1;
    a->n_seqs = exe->plan->n_seqs;
    for (int s = 0; s < a->n_seqs; s++)
        a->seqs[s] = foresee(exe, s, n);
    for (int i = 0; i < a->n_seqs; i++)
        a->seqs[exe->rows[i]].row = i;
    return n;
}

bool ahead_loops(const struct executable *exe, const struct batch_plan *plan) {
    bool does = exe->ahead && !plan->wants_hidden && plan->n_rows == plan->n_seqs && plan->n_tokens == plan->n_seqs;
    for (int s = 0; s < plan->n_seqs && does; s++)
        does = steps_with_room(exe, plan, s) > 1;
    return does;
}

int ahead_left(const struct executable *exe) {
    const struct ahead *a = exe->ahead;
    if (!a)
        return 0;
    if (!exe->is_settled)
        return exe->n_pieces == 1 ? exe->pieces[0].n_loop - 1 : 0;
    return MAX(a->n - a->n_served, 0);
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
    int32_t size = exe->loaded->block_size, i = plan->position[s] / size - f->position / size;
    bool same = plan->position[s] == f->position + a->n_served && plan->adapter[s] == f->adapter &&
                plan->state_slot[s] == f->slot &&
                token == a->drawn[((int64_t)(a->n_served - 1) * DRAWN_INTS + DRAWN_TOKEN) * a->n_rows + f->row] &&
                draws_alike(&exe->sample[s], &f->sample) &&
                exe->sample[s].position == f->sample.position + (uint64_t)a->n_served;
    for (int g = 0; g < exe->program->n_groups && same; g++)
        same = !is_paged(exe, g) || block_of(exe, s, g, plan->position[s]) == f->blocks[g][i];
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
