/* program_drafter_tree.c - a program's guesses as a tree (guess_tree.h): each pass has a row for the best of the newest
 * guesses of each sequence.
 *
 * Rows of a pass stand in chains of their own: one that goes on with a guess has the rows before it copied, from the
 * text's blocks or from those of a chain of the pass before. So the draft, too, needs no mask. Chains of one pass and
 * of the next have two sets of blocks, by turns. */
#include "engine/draft/program_drafter_parts.h"

#include <math.h>
#include <string.h>

/* Where chain k of the i-th sequence keeps its rows, of guesses of a depth; before these come those of texts. */
static int scratch_of(const struct program_drafter *d, int i, int depth, int k) {
    return d->most_chains + (2 * i + depth % 2) * d->topk + k;
}

/* As the target draws one token with a random number that the draft draws with too, the one that the draft draws is
 * more likely than its probability says: taken for a half at least. */
static void add_drawn(struct guess_tree *t, int parent, const struct sample_result *r, const struct program *p,
                      int topk) {
    double drawn = exp(r->logprob), likely = fmax(drawn, 0.5), rest = fmax(1 - drawn, 1e-6);
    guess_tree_add(t, parent, program_token_of(p, r->token), log(likely));
    for (int k = 0, n = 1; k < topk && n < topk; k++)
        if (r->top_token[k] != r->token) {
            guess_tree_add(t, parent, program_token_of(p, r->top_token[k]),
                           r->top_logprob[k] + log((1 - likely + 1e-6) / rest));
            n++;
        }
}

/* A target that takes its most probable token takes the draft's more often than the draft's probability says, so this
 * is sharpened: of the powers 1, 1.5, 2 and 3 this one gave qwen3-eagle3 most tokens a step, of six rows. */
static void add_best(struct guess_tree *t, int parent, const struct sample_result *r, const struct program *p,
                     int topk) {
    const double power = 1.5;
    double sum = 0;
    for (int k = 0; k < topk; k++)
        sum += exp(power * r->top_logprob[k]);
    for (int k = 0; k < topk; k++)
        guess_tree_add(t, parent, program_token_of(p, r->top_token[k]),
                       power * r->top_logprob[k] - log(fmax(sum, 1e-300)));
}

/* What the rows of the pass that was collected give. */
static void add_guesses(const struct program_drafter *d, const struct chain *c, struct tree_chain *t) {
    const struct program *p = d->draft->step;
    int topk = MIN(d->topk, p->vocab_size);
    for (int i = 0; i < t->n_front; i++) {
        const struct sample_result *r = &d->results[t->front[i].row];
        if (r->not_finite || r->nothing_left)
            continue;
        (c->request->sample.temperature > 0 ? add_drawn : add_best)(&t->tree, t->front[i].guess, r, p, topk);
    }
}

static int place_of(const struct tree_chain *t, int guess) {
    int i = 0;
    while (t->front[i].guess != guess)
        i++;
    return i;
}

/* Rows of the best guesses of a depth, each behind that of the guess before it. */
static void add_front(struct program_drafter *d, const struct step *step, int i, int depth) {
    const struct chain *c = &d->chains[i];
    struct tree_chain *t = &d->trees[i];
    struct tree_front front[MOST_TOPK];
    struct batch_plan *plan = d->rows.plan;
    int guesses[MOST_TOPK], n = 0;
    int n_best = depth + 1 < c->most ? guess_tree_front(&t->tree, depth, d->topk, t->most, guesses) : 0;
    for (int k = 0; k < n_best; k++) {
        const struct tree_guess *guess = &t->tree.at[guesses[k]];
        int before = place_of(t, guess->parent), row = plan->n_tokens;
        bool is_first = depth == 0;
        if (d->draft->feature != NO_STATES && !program_drafter_take_state(d, row, true, t->front[before].token_row))
            continue;
        draft_rows_add_fork(&d->rows, &step->plan,
                            &(struct draft_fork){.s = c->s,
                                                 .position = c->position + 1 + depth,
                                                 .token = guess->token,
                                                 .first_entry = t->first_entry,
                                                 .is_from_text = is_first,
                                                 .from = is_first ? i : scratch_of(d, i, depth - 1, before),
                                                 .to = scratch_of(d, i, depth, n)});
        front[n++] = (struct tree_front){guesses[k], plan->n_rows, row};
        plan->out_row[plan->n_rows] = row;
        d->sample[plan->n_rows++] = program_drafter_draw(d, c->request, c->request->draft.at + depth + 1);
    }
    memcpy(t->front, front, (size_t)n * sizeof *front);
    t->n_front = n;
}

static void begin_trees(struct program_drafter *d, const struct step *step) {
    for (int i = 0; i < d->n_chains; i++) {
        const struct chain *c = &d->chains[i];
        struct tree_chain *t = &d->trees[i];
        t->tree.n = 0;
        t->most = (c->most * d->most_kept + d->most_guesses - 1) / d->most_guesses;
        t->first_entry = draft_rows_first_of_fork(&d->rows, &step->plan, c->s, c->position + 1);
        t->n_front = 1;
        t->front[0] = (struct tree_front){-1, c->row, c->token_row};
    }
}

enum status program_drafter_run_trees(struct program_drafter *d, const struct step *step, struct error *err) {
    begin_trees(d, step);
    for (int depth = 0; d->rows.plan->n_tokens > 0; depth++) {
        TRY(program_drafter_start(d, &d->step, err));
        TRY(d->g->ops->collect(d->step.exe, d->results, err));
        program_drafter_turn(d);
        for (int i = 0; i < d->n_chains; i++) {
            add_guesses(d, &d->chains[i], &d->trees[i]);
            add_front(d, step, i, depth);
        }
    }
    for (int i = 0; i < d->n_chains; i++) {
        struct proposal *p = &d->chains[i].request->draft;
        guess_tree_keep(&d->trees[i].tree, d->trees[i].most);
        p->n = guess_tree_trunk(&d->trees[i].tree, p->tokens);
        p->tree = &d->trees[i].tree;
    }
    return OK;
}

void program_drafter_branch(void *context, const struct sequence *seq, struct branches *out) {
    const struct proposal *p = &((const struct request *)seq->owner)->draft;
    const struct program_drafter *d = context;
    if (p->tree && p->follow == d->n_follows && p->at == seq->n_known)
        guess_tree_branches(p->tree, p->at, out);
}

enum status program_drafter_check_tree(const struct gyre *g, const struct draft *draft, struct error *err) {
    if (draft->context || draft->reads_target || draft->through_text)
        return fail(err, ERR_UNSUPPORTED, "speculation: eagle_topk: the draft %s guesses no trees", draft->step->name);
    for (int i = 0; i < g->program->n_groups; i++)
        if (g->program->groups[i].kind == CACHE_STATE)
            return fail(err, ERR_UNSUPPORTED,
                        "speculation: eagle_topk: %s has recurrent layers, whose state cannot be two branches'",
                        g->program->name);
    return OK;
}
