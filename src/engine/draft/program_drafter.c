/* program_drafter.c - see program_drafter.h. */
#include "engine/draft/branches.h"
#include "engine/draft/program_drafter_parts.h"

#include "base/clock.h"

#include <string.h>

// ---- who gets guesses -------------------------------------------------------------------------------------------

/* How many can be, when all that is known of it has its row. */
static int room_for(const struct program_drafter *d, const struct request *r) {
    const struct sequence *seq = &r->sequence;
    int64_t most = MIN(d->most_guesses, seq->capacity - 1 - seq->n_tokens);
    return (int)MIN(most, d->max_positions - seq->n_known - d->draft->block);
}

/* How many pay. */
static int most_for(const struct program_drafter *d, struct request *r) {
    int room = room_for(d, r);
    return room <= 0 || d->g->drafter.is_fixed ? room : guess_most(&r->record, d->price, room);
}

static bool too_many(const struct program_drafter *d) { return d->g->scheduler.n_running > d->g->drafter.most_seqs; }

/* Rows that take hidden states are made with somewhat too many as well: their sequences could get no guess later. */
static bool far_too_many(const struct program_drafter *d) {
    enum { KEPT_UP = 4 };
    int most = d->draft->feature == NO_STATES ? d->g->drafter.most_seqs : KEPT_UP * d->g->drafter.most_seqs;
    return d->g->scheduler.n_running > most;
}

static bool continues(const struct program_drafter *d, const struct request *r) {
    bool may = !r->ended && !r->is_paused && !too_many(d) && engine_may_guess(r);
    return may && d->n_chains < d->most_chains && room_for(d, r) > 0;
}

// ---- what is drawn ----------------------------------------------------------------------------------------------

/* As the target draws its token at this place, so that alike distributions give the same one. */
static struct sample_params draw_of(const struct request *r, int32_t position) {
    struct sample_params p = sample_params_default();
    p.temperature = r->sample.temperature;
    p.top_k = r->sample.top_k;
    p.top_p = r->sample.top_p;
    p.min_p = r->sample.min_p;
    p.seed = r->sample.seed;
    p.sequence = r->sample.sequence;
    p.position = (uint64_t)position;
    return p;
}

/* A guess that rejection sampling judges is drawn by itself. */
struct sample_params program_drafter_draw(const struct program_drafter *d, const struct request *r, int32_t position) {
    struct sample_params p = draw_of(r, position);
    p.seed ^= d->g->drafter.rejects ? 0x6472616674 : 0;
    p.want_logits = d->g->drafter.rejects || d->g->drafter.tells_logits;
    p.n_top_logprobs = d->trees ? MIN(d->topk, d->draft->step->vocab_size) : 0;
    p.want_logprob = d->trees != NULL;
    return p;
}

static void ask(struct program_drafter *d, struct chain *c, int token_row) {
    struct batch_plan *plan = d->rows.plan;
    c->row = plan->n_rows;
    c->token_row = token_row;
    plan->out_row[plan->n_rows] = token_row;
    d->sample[plan->n_rows++] = program_drafter_draw(d, c->request, c->request->draft.at + c->n_asked++);
}

/* For a device that waits for the host less where every row of a step gives a token: what they are, nobody looks at. */
static void ask_for_nothing(struct program_drafter *d, int first_row, int end) {
    struct batch_plan *plan = d->rows.plan;
    for (int t = first_row; t < end && plan->n_rows < d->rows.bucket.max_rows; t++) {
        plan->out_row[plan->n_rows] = t;
        d->sample[plan->n_rows] = sample_params_default();
        d->sample[plan->n_rows++].temperature = 0;
    }
}

/* What a guess takes: passes are shared by the rows that they give. */
static void learn_pass(struct program_drafter *d, int64_t us) {
    int n_guesses = 0;
    for (int i = 0; i < d->n_chains; i++)
        n_guesses += d->chains[i].request->draft.n;
    double each = (double)us / n_guesses, *pass = &d->g->drafter.pass_us;
    if (n_guesses > 0)
        *pass += *pass == 0 ? each : 0.1 * (each - *pass);
}

enum status program_drafter_start(struct program_drafter *d, const struct placed_program *p, struct error *err) {
    TRY(d->status); // with the sentence in g->failed
    return d->g->ops->run(p->exe, d->rows.plan, d->sample, err);
}

static enum status run(struct program_drafter *d, const struct placed_program *p, struct error *err) {
    TRY(program_drafter_start(d, p, err));
    return d->g->ops->collect(p->exe, d->results, err);
}

/* The next plan is another, as the device may still have this one. */
void program_drafter_turn(struct program_drafter *d) {
    draft_rows_turn(&d->rows);
    d->sample = d->samples[d->sample == d->samples[0]];
    draft_rows_begin(&d->rows, NULL);
}

/* What guess i of the chain was drawn from, in the target's tokens. */
static void take_distribution(struct program_drafter *d, struct chain *c, int row, int i) {
    int n_own = d->draft->step->vocab_size;
    struct proposal *p = &c->request->draft;
    const float *logits;
    if (!d->q || d->sample[row].temperature == 0 || d->status != OK)
        return;
    d->status = d->g->ops->logits(d->chooser.exe ? d->chooser.exe : d->step.exe, row, &logits, &d->g->failed);
    if (d->status != OK)
        return;
    p->q = d->q + (size_t)(c - d->chains) * (size_t)d->most_guesses * (size_t)d->n_vocab;
    float *q = p->q + (size_t)i * (size_t)d->n_vocab;
    if (!d->draft->target_id) {
        sample_distribution(logits, n_own, &d->sample[row], &d->scratch, q);
        return;
    }
    sample_distribution(logits, n_own, &d->sample[row], &d->scratch, d->own_q);
    memset(q, 0, (size_t)d->n_vocab * sizeof *q);
    for (int t = 0; t < n_own; t++)
        q[d->draft->target_id[t]] += d->own_q[t];
}

/* Whether the chain goes on behind what a row gave. */
static bool take_guess(struct program_drafter *d, struct chain *c, int row) {
    struct proposal *p = &c->request->draft;
    int32_t token = d->results[row].token;
    c->has_ended |= d->results[row].not_finite || d->results[row].nothing_left;
    if (c->has_ended)
        return false;
    take_distribution(d, c, row, p->n);
    p->tokens[p->n++] = program_token_of(d->draft->step, token);
    return p->n < c->most;
}

// ---- rows -------------------------------------------------------------------------------------------------------

/* Row `row` of the next run has what token row `from` of a step left: of the target's, or of the draft's own. */
bool program_drafter_take_state(struct program_drafter *d, int row, bool is_own, int from) {
    const struct backend_ops *ops = d->g->ops;
    const float *state;
    if (d->is_linked) {
        d->rows.plan->state_source = is_own;
        d->rows.plan->state_row[row] = from;
        return true;
    }
    d->status = is_own ? ops->hidden(d->step.exe, d->draft->carry, from, &state, &d->g->failed)
                       : ops->hidden(d->g->exe, d->draft->feature, from, &state, &d->g->failed);
    if (d->status == OK)
        memcpy(d->rows.plan->states + (size_t)row * (size_t)d->states_width, state,
               (size_t)d->states_width * sizeof *state);
    return d->status == OK;
}

/* What the target made of positions [first, end), for the next rows of the plan. False: they were not in this step. */
static bool add_states(struct program_drafter *d, const struct step *step, int s, int32_t first, int32_t end) {
    int32_t start = step->plan.position[step->plan.query_start[s]];
    if (d->draft->feature == NO_STATES)
        return true;
    if (first < start || end > step->plan.seq_len[s + engine_branch_taken(step, s)])
        return false;
    for (int32_t p = first; p < end; p++)
        if (!program_drafter_take_state(d, d->rows.plan->n_tokens + (p - first), false, engine_row_of(step, s, p)))
            return false;
    return true;
}

static struct chain *new_chain(struct program_drafter *d, struct request *r, int s, int32_t position, int most) {
    struct chain *c = &d->chains[d->n_chains++];
    *c = (struct chain){.request = r, .s = s, .position = position, .most = most, .row = -1, .asked_row = -1};
    r->draft = (struct proposal){.at = r->sequence.n_known, .follow = d->n_follows};
    return c;
}

/* The rows of the text that the step computed, or that the draft lacks; and the first guess of who decodes. */
static void add_text(struct program_drafter *d, const struct step *step, int s) {
    struct request *r = step->requests[s];
    int at = s + engine_branch_taken(step, s);
    struct draft_text text = draft_text_of(&d->rows, &step->plan, at, r->sequence.n_known - d->draft->is_ahead);
    int most = continues(d, r) ? most_for(d, r) : 0;
    bool goes_on = text.is_whole && most > 0;
    if (most == 0 && d->draft->feature == NO_STATES)
        return; // rows of tokens alone can be made when they are wanted
    if (!goes_on)
        text.end = MIN(text.end, text.held);
    if (text.end <= text.first || !add_states(d, step, s, text.first, text.end))
        return;
    int first_row = d->rows.plan->n_tokens;
    draft_rows_add(&d->rows, &step->plan, at, text, r->sequence.tokens + d->draft->is_ahead,
                   goes_on ? d->n_chains : -1);
    if (text.first == 0 && d->draft->is_first_blank)
        draft_rows_blank_first(&d->rows);
    if (!goes_on)
        return;
    struct chain *c = new_chain(d, r, at, text.end - 1, most);
    if (d->draft->context)
        return;
    if (d->runs_ahead && text.end - text.first <= d->most_guesses + 1)
        ask_for_nothing(d, first_row, d->rows.plan->n_tokens - 1);
    ask(d, c, d->rows.plan->n_tokens - 1);
}

/* Of a draft that reads the target's cache: a row at the newest token's place, with the state before it. */
static void add_newest(struct program_drafter *d, const struct step *step, int s) {
    struct request *r = step->requests[s];
    int32_t at = r->sequence.n_known - 1;
    int most = at >= 1 && continues(d, r) ? most_for(d, r) : 0;
    if (most == 0 || !add_states(d, step, s, at - 1, at))
        return;
    draft_rows_add_ahead(&d->rows, &step->plan, s, at, &r->sequence.tokens[at], 1, -1);
    ask(d, new_chain(d, r, s, at, most), d->rows.plan->n_tokens - 1);
}

/* A row more for each chain that goes on. False: there is none. */
static bool next_rows(struct program_drafter *d, const struct step *step) {
    static const int32_t unknown = 0;
    program_drafter_turn(d);
    for (int i = 0; i < d->n_chains; i++) {
        struct chain *c = &d->chains[i];
        const struct proposal *p = &c->request->draft;
        int row = d->rows.plan->n_tokens, before = c->row;
        c->row = -1;
        if (before < 0 || c->has_ended || c->n_asked >= c->most)
            continue;
        if (d->draft->feature != NO_STATES && !program_drafter_take_state(d, row, true, c->token_row))
            continue;
        c->position += !d->draft->reads_target;
        draft_rows_add_ahead(&d->rows, &step->plan, c->s, c->position, d->runs_ahead ? &unknown : &p->tokens[p->n - 1],
                             1, i);
        if (d->runs_ahead)
            d->rows.plan->from_row[row] = before;
        ask(d, c, row);
    }
    return d->rows.plan->n_rows > 0;
}

/* A block for each: the newest token, then masks. Each row gives a guess, unless a chooser makes them. */
static void add_blocks(struct program_drafter *d, const struct step *step) {
    for (int i = 0; i < d->n_chains; i++) {
        struct chain *c = &d->chains[i];
        const struct sequence *seq = &c->request->sequence;
        d->block[0] = seq->tokens[seq->n_known - 1];
        draft_rows_add_ahead(&d->rows, &step->plan, c->s, seq->n_known - 1, d->block, d->draft->block, i);
        c->token_row = d->rows.plan->n_tokens - d->draft->block + !d->draft->from_anchor;
        c->row = c->asked_row = d->rows.plan->n_rows;
        for (int k = 0; k < c->most && !d->draft->chooser; k++) {
            d->rows.plan->out_row[d->rows.plan->n_rows] = c->token_row + k;
            d->sample[d->rows.plan->n_rows++] = program_drafter_draw(d, c->request, seq->n_known + k);
        }
    }
}

/* A row for each chain that goes on: the token before guess k, and the state of the block's row that gives it. False:
 * there is none. */
static bool choose_next(struct program_drafter *d, const struct step *step, int k) {
    program_drafter_turn(d);
    for (int i = 0; i < d->n_chains; i++) {
        struct chain *c = &d->chains[i];
        const struct sequence *seq = &c->request->sequence;
        const struct proposal *p = &c->request->draft;
        struct batch_plan *plan = d->rows.plan;
        c->row = -1;
        if (c->has_ended || k >= c->most || !program_drafter_take_state(d, plan->n_tokens, true, c->token_row + k))
            continue;
        c->row = c->asked_row = plan->n_rows;
        plan->out_row[plan->n_rows] = plan->n_tokens;
        draft_rows_add_ahead(&d->rows, &step->plan, c->s, seq->n_known - 1 + k,
                             k > 0 ? &p->tokens[p->n - 1] : &seq->tokens[seq->n_known - 1], 1, i);
        d->sample[plan->n_rows++] = program_drafter_draw(d, c->request, seq->n_known + k);
    }
    return d->rows.plan->n_rows > 0;
}

static enum status choose(struct program_drafter *d, const struct step *step, struct error *err) {
    for (int k = 0; choose_next(d, step, k); k++) {
        TRY(run(d, &d->chooser, err));
        for (int i = 0; i < d->n_chains; i++)
            if (d->chains[i].row >= 0)
                take_guess(d, &d->chains[i], d->chains[i].row);
    }
    return OK;
}

static enum status run_blocks(struct program_drafter *d, const struct step *step, struct error *err) {
    TRY(run(d, &d->context, err));
    if (d->n_chains == 0)
        return OK;
    program_drafter_turn(d);
    add_blocks(d, step);
    TRY(run(d, &d->step, err));
    if (d->draft->chooser)
        return choose(d, step, err);
    for (int i = 0; i < d->n_chains; i++)
        for (int k = 0; take_guess(d, &d->chains[i], d->chains[i].row + k);)
            k++;
    return OK;
}

/* The pass that was started first. */
static enum status collect_guesses(struct program_drafter *d, struct error *err) {
    TRY(d->g->ops->collect(d->step.exe, d->results, err));
    for (int i = 0; i < d->n_chains; i++)
        if (d->chains[i].asked_row >= 0)
            take_guess(d, &d->chains[i], d->chains[i].asked_row);
    return OK;
}

/* Pass after pass. One that runs ahead takes its tokens and states from the one before, on the device. */
static enum status run_chains(struct program_drafter *d, const struct step *step, struct error *err) {
    TRY(program_drafter_start(d, &d->step, err));
    for (bool goes_on = true; goes_on;) {
        for (int i = 0; i < d->n_chains; i++)
            d->chains[i].asked_row = d->chains[i].row;
        TRY(d->runs_ahead ? OK : collect_guesses(d, err));
        goes_on = next_rows(d, step);
        TRY(goes_on ? program_drafter_start(d, &d->step, err) : OK);
        TRY(d->runs_ahead ? collect_guesses(d, err) : OK);
    }
    return OK;
}

enum status program_drafter_follow(void *context, const struct step *step, struct error *err) {
    struct program_drafter *d = context;
    d->n_chains = 0;
    d->n_follows++;
    d->price = guess_price(&d->g->scheduler, &d->g->drafter.times, d->g->drafter.pass_us);
    if (d->trees) // a guess of the trunk takes its share of the branches' rows along
        d->price.each += d->price.row * ((double)d->most_kept / d->most_guesses - 1);
    draft_rows_begin(&d->rows, &step->plan);
    if (far_too_many(d)) {
        draft_rows_without(&d->rows, &step->plan);
        return OK;
    }
    for (int s = 0; s < step->plan.n_seqs; s++)
        if (step->branch[s] == 0)
            (d->draft->reads_target ? add_newest : add_text)(d, step, s);
    if (d->rows.plan->n_tokens == 0) {
        draft_rows_without(&d->rows, &step->plan);
        return OK;
    }
    TRY(model_check(d->draft->model, err));
    int64_t begun = clock_us();
    TRY((d->draft->context ? run_blocks : d->trees ? program_drafter_run_trees : run_chains)(d, step, err));
    learn_pass(d, clock_us() - begun);
    return OK;
}

/* Of the step before only: the distributions of older ones are overwritten, as those of who waited meanwhile. */
int program_drafter_guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct proposal *p = &((const struct request *)seq->owner)->draft;
    const struct program_drafter *d = context;
    if (p->n == 0 || p->follow != d->n_follows || p->at != seq->n_known || seq->n_tokens != seq->n_known)
        return 0;
    int n = MIN(p->n, max);
    memcpy(out, p->tokens, (size_t)n * sizeof *out);
    return n;
}
