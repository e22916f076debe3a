/* step.c - one step of the engine: schedule, fill the plan, start it, collect the one before, publish what came out.
 *
 * Knows sequences, rows and tokens; what a row of logits turns into is the backend's (core/sample.h), and which
 * tokens run is the scheduler's. Nothing here allocates. */
#include "engine/draft/branches.h"
#include "engine/engine.h"

#include "base/clock.h"
#include "base/guard.h"

#include <string.h>

// ---- the plan ---------------------------------------------------------------------------------------------------

/* What a draw for the token behind `position` depends on. */
static struct sample_params next_token_params(const struct request *r, int32_t position) {
    const struct sequence *seq = &r->sequence;
    struct sample_params p = r->sample;
    p.has_newest = sequence_expects(seq, position);
    p.n_history = position + !p.has_newest;
    p.newest_row = seq->newest_row;
    p.position = (uint64_t)position + 1;
    if (position + 1 - r->n_prompt < r->asked.min_tokens) {
        p.banned = r->banned;
        p.n_banned = r->n_banned;
    }
    return p;
}

static bool wants_last_logits(const struct request *r, int32_t position) {
    return r->asked.want_last_logits && position == r->n_prompt - 1;
}

/* Whether a row of the sequence's may be read on the host. */
static bool reads_back(const struct request *r) {
    bool in_prompt = r->sequence.n_computed < r->n_prompt;
    return r->asked.n_top_logprobs > MAX_TOP_LOGPROBS ||
           (in_prompt && (r->asked.want_last_logits || r->asked.pooling != GYRE_POOL_NONE ||
                          r->asked.n_prompt_top_logprobs > MAX_TOP_LOGPROBS));
}

/* A row in the middle of a prompt gives the log-probability of the next prompt token; that of the last known token, of
 * an expected one and of a guess the next token. */
struct sample_params engine_row_params(const struct request *r, int32_t position) {
    const struct sequence *seq = &r->sequence;
    bool draws = position >= seq->n_known - 1;
    struct sample_params p =
        draws && r->asked.max_tokens > 0 ? next_token_params(r, position) : sample_params_default();
    int n_top = position < r->n_prompt - 1 ? r->asked.n_prompt_top_logprobs : r->asked.n_top_logprobs;
    bool wide = n_top > MAX_TOP_LOGPROBS; // a device tells so many only by all of its logits
    p.n_top_logprobs = wide ? 0 : n_top;
    p.want_logits = wide || wants_last_logits(r, position);
    p.want_argmax = r->asked.score_prompt && position < r->n_prompt;
    p.target = draws ? -1 : seq->tokens[position + 1];
    p.guess = draws ? engine_guess_at(r, position + 1) : (struct sample_guess){0};
    return p;
}

static void fill_tables(const struct gyre *g, struct batch_plan *plan, int s, const struct sequence *seq) {
    plan->held[s] = INT32_MAX;
    for (int group = 0; group < g->program->n_groups; group++) {
        if (g->pool.groups[group].paged)
            plan->held[s] = MIN(plan->held[s], seq->tables[group].end * g->pool.block_size);
        const struct block_table *table = &seq->tables[group];
        int32_t *row = plan->block_table[group] + (size_t)s * (size_t)plan->table_width[group];
        if (table->end > 0)
            memcpy(row, table->block, (size_t)table->end * sizeof *row);
    }
    plan->state_slot[s] = seq->state_slot;
}

static void fill_rows(struct step *step, struct sequence *seq) {
    struct batch_plan *plan = &step->plan;
    int first_token = plan->query_start[plan->n_seqs], n = sequence_rows(seq, seq->n_scheduled);
    int32_t position = sequence_row_start(seq);
    for (int i = 0; i < n; i++, position++, plan->n_rows++) {
        plan->out_row[plan->n_rows] = first_token + (position - seq->n_computed);
        step->sample[plan->n_rows] = engine_row_params(seq->owner, position);
        step->is_late |= engine_mask_is_late(seq->owner, position);
        plan->draws_best &= sample_is_best(&step->sample[plan->n_rows]);
        step->rows[plan->n_rows] = (struct step_row){seq->owner, position, seq->n_backs, 0};
    }
    seq->newest_row = plan->n_rows - 1; // gives the token that is expected once the step is started, if one is
}

/* A token that is only expected is that of a row of the step in flight. */
static void fill_tokens(struct batch_plan *plan, const struct sequence *seq) {
    for (int32_t i = plan->n_tokens, at = seq->n_computed; at < seq->n_computed + seq->n_scheduled; i++, at++) {
        bool is_expected = sequence_expects(seq, at);
        plan->token_id[i] = is_expected ? 0 : seq->tokens[at];
        plan->from_row[i] = is_expected ? seq->newest_row : -1;
        plan->position[i] = at;
    }
}

static void fill_sequence(struct gyre *g, struct step *step, struct sequence *seq) {
    struct batch_plan *plan = &step->plan;
    struct request *r = seq->owner;
    int s = plan->n_seqs, n = seq->n_scheduled;
    step->requests[s] = r;
    step->branch[s] = 0;
    step->is_read_back |= reads_back(r);
    fill_tokens(plan, seq);
    plan->query_start[s] = plan->n_tokens;
    plan->seq_len[s] = seq->n_computed + n;
    plan->n_known[s] = seq->n_tokens;
    plan->n_sure[s] = seq->n_known;
    plan->adapter[s] = r->asked.adapter;
    step->n_at_risk += engine_count_guesses(g, r);
    fill_tables(g, plan, s, seq);
    fill_rows(step, seq);
    plan->n_tokens += n;
    plan->query_start[++plan->n_seqs] = plan->n_tokens;
    engine_fill_branches(g, step, s);
}

/* Until then; -1: all of them. */
static void mask_rows(struct gyre *g, struct step *step, int64_t until_us) {
    int64_t start_us = g->mask_crew ? clock_us() : 0;
    for (int row = 0; row < step->plan.n_rows; row++)
        if (!engine_mask_row(g, step->rows[row].request, step->rows[row].position, until_us, &step->sample[row]))
            engine_hold_row(g, step->rows[row].request);
    g->mask_wait_us += g->mask_crew ? clock_us() - start_us : 0;
}

static void fill_step(struct gyre *g, struct step *step) {
    step->plan.n_tokens = step->plan.n_seqs = step->plan.n_rows = step->plan.n_also = 0;
    step->n_branches = 0;
    step->plan.n_copies = kv_pool_take_copies(&g->pool, step->plan.copies);
    step->plan.draws_best = true;
    step->is_read_back = step->is_late = false;
    step->n_at_risk = 0;
    telemetry_step(g);
    step->started_us = clock_us();
    for (int i = 0; i < g->scheduler.n_step; i++) {
        struct request *r = g->scheduler.step[i]->owner;
        if (r->started_us == 0)
            engine_started(g, r, step->started_us);
        fill_sequence(g, step, &r->sequence);
    }
    step->plan.wants_hidden = step->is_read_back || g->drafter.reads_hidden;
    if (!step->is_late)
        mask_rows(g, step, -1);
}

// ---- what came out ----------------------------------------------------------------------------------------------

static struct gyre_event *new_event(struct gyre *g, const struct request *r, enum gyre_event_kind kind,
                                    const struct sample_result *result) {
    struct gyre_event *e = &g->events[g->n_events++];
    *e = (struct gyre_event){.kind = kind, .id = r->id, .user = r->asked.user};
    e->top_tokens = result->top_token;
    e->top_logprobs = result->top_logprob;
    return e;
}

static bool is_stop(const struct request *r, int32_t token) {
    for (int i = 0; i < r->n_stops; i++)
        if (r->stops[i] == token)
            return true;
    return false;
}

/* Of a row whose logits were wanted; NULL of another. */
static enum status row_logits(struct gyre *g, const struct step *step, int row, const float **out) {
    *out = NULL;
    return step->sample[row].want_logits ? g->ops->logits(g->exe, row, out, &g->failed) : OK;
}

/* Whether nothing but an end could be drawn at a position, of which the grammar was told what is before `told`. */
static bool ends_grammar(const struct request *r, int32_t position) {
    const struct constraint *c = r->constraint;
    if (!c || c->n_forced > 0)
        return false;
    int guess = position - c->n_known - 1;
    return guess >= 0 ? guess < c->most_guesses && c->guess_must_end[guess] : c->must_end;
}

/* The event's token is known from now on. */
static void append(struct gyre *g, struct request *r, const struct gyre_event *e, int64_t now_us) {
    scheduler_append(&g->scheduler, &r->sequence, e->token);
    r->last_token_us = now_us;
    if (r->first_token_us == 0)
        r->first_token_us = r->last_token_us;
    if (e->stops)
        engine_end(g, r, GYRE_STOP, NULL);
    else if (r->sequence.n_known == r->sequence.capacity)
        engine_end(g, r, GYRE_LENGTH, NULL);
}

/* The next n tokens that must come are known from now on, maybe before any step of the request was collected. */
static void publish_forced(struct gyre *g, struct request *r, int n) {
    struct constraint *c = r->constraint;
    static const struct sample_result no_result;
    int64_t now_us = clock_us();
    for (int end = c->n_put + n; c->n_put < end && !r->ended; c->n_put++) {
        struct gyre_event *e = new_event(g, r, GYRE_TOKEN, &no_result);
        e->position = r->sequence.n_known;
        e->token = c->forced[c->n_put];
        e->stops = is_stop(r, e->token);
        append(g, r, e, now_us);
        g->n_forced_tokens++;
    }
    if (r->ended || c->n_put == c->n_forced)
        c->n_forced = c->n_put = 0;
}

/* A token was drawn. Where it had to come, what comes behind it is known as well, or the mask is; else the grammar is
 * told of it, and of others that the step gives, once all of them are known. */
static void constrain_next(struct request *r) {
    struct constraint *c = r->constraint;
    if (!c)
        return;
    if (c->n_forced == 0)
        r->is_untold = true;
    else if (++c->n_put == c->n_forced)
        c->n_forced = c->n_put = 0;
}

static void tell_grammars(struct gyre *g, const struct step *step) {
    for (int i = 0; i < step->plan.n_rows; i++) {
        struct request *r = step->rows[i].request;
        if (r->is_untold && !r->ended)
            engine_constrain_next(g, r);
        r->is_untold = false;
    }
    engine_constrain_go(g);
}

static enum status publish_token(struct gyre *g, const struct step *step, int row) {
    struct request *r = step->rows[row].request;
    const struct sample_result *result = &g->results[row];
    const float *logits;
    TRY(row_logits(g, step, row, &logits));
    struct gyre_event *e = new_event(g, r, GYRE_TOKEN, result);
    e->position = r->sequence.n_known;
    e->n_top = step->sample[row].n_top_logprobs;
    e->logits = r->asked.n_top_logprobs > MAX_TOP_LOGPROBS ? logits : NULL;
    e->token = engine_synthetic(g, r, r->sequence.n_known, result->token);
    e->logprob = result->logprob;
    e->stops = is_stop(r, e->token) || ends_grammar(r, r->sequence.n_known);
    engine_judge(g, r, e);
    append(g, r, e, g->collected_us);
    if (!r->ended)
        constrain_next(r);
    return OK;
}

static enum status publish_prompt(struct gyre *g, const struct step *step, int row) {
    const struct sample_params *asked = &step->sample[row];
    const struct sample_result *result = &g->results[row];
    const float *logits;
    TRY(row_logits(g, step, row, &logits));
    struct gyre_event *e = new_event(g, step->rows[row].request, GYRE_PROMPT, result);
    e->position = step->rows[row].position;
    e->n_top = asked->n_top_logprobs;
    e->token = result->argmax;
    e->logprob = asked->target >= 0 ? result->target_logprob : 0;
    e->rank = asked->target >= 0 ? result->target_rank : 0;
    e->logits = logits;
    return OK;
}

static enum status publish_row(struct gyre *g, const struct step *step, int row) {
    struct request *r = step->rows[row].request;
    const struct sample_result *result = &g->results[row];
    int32_t position = step->rows[row].position;
    bool scored = r->asked.score_prompt && position >= r->asked.score_from && position < r->n_prompt;
    int branch = r->sequence.branches ? r->sequence.branches->taken : 0;
    bool is_void = step->rows[row].n_backs != r->sequence.n_backs || step->rows[row].branch != branch;
    if (r->ended || is_void) // cancelled, or stopped by the token before; or behind a wrong guess
        return OK;
    if (result->not_finite) {
        struct error err;
        fail(&err, ERR_FORMAT,
             "the model gave logits that are not finite numbers after token %d: its weights are damaged", position);
        engine_end(g, r, GYRE_FAILED, &err);
        return OK;
    }
    if (r->constraint && r->constraint->failed.status != OK) {
        engine_end(g, r, GYRE_FAILED, &r->constraint->failed);
        return OK;
    }
    if (result->nothing_left && ends_grammar(r, r->sequence.n_known)) { // nor is there a token that says so
        engine_end(g, r, GYRE_STOP, NULL);
        return OK;
    }
    if (result->nothing_left) {
        struct error err;
        fail(&err, ERR_ARG,
             "after token %d nothing is left that may come: allowed_token_ids, bad_words, logit_bias, min_tokens "
             "and a grammar exclude all",
             position);
        engine_end(g, r, GYRE_FAILED, &err);
        return OK;
    }
    if (scored)
        r->sequence.first_row = position + 1; // so that a recomputation does not tell it again
    if (scored || wants_last_logits(r, position))
        TRY(publish_prompt(g, step, row));
    if (position < r->sequence.n_known - 1)
        return OK;
    if (r->asked.max_tokens > 0)
        TRY(publish_token(g, step, row));
    else
        engine_end(g, r, GYRE_LENGTH, NULL);
    return OK;
}

/* Fails where the device does while something is fetched from it. */
static enum status publish(struct gyre *g, const struct step *step) {
    TRY(engine_pool_step(g, step));
    for (int row = 0; row < step->plan.n_rows; row++)
        TRY(publish_row(g, step, row));
    engine_settle_branches(g, step);
    tell_grammars(g, step);
    return OK;
}

// ---- the step ---------------------------------------------------------------------------------------------------

static int n_in_flight(const struct gyre *g) { return (int)(g->n_steps - g->n_collected); }
static struct step *next_step(struct gyre *g) { return &g->steps[g->n_steps % MAX_STEPS_IN_FLIGHT]; }
static struct step *oldest_step(struct gyre *g) { return &g->steps[g->n_collected % MAX_STEPS_IN_FLIGHT]; }

/* Tokens that must come next, whatever the step in flight draws: nothing else was left to it. */
static int forced_left(const struct gyre *g, const struct request *r) {
    bool is_there = r->constraint && !r->ended && !r->is_held && !engine_is_constrained(g, r);
    return is_there ? r->constraint->n_forced - r->constraint->n_put : 0;
}

/* Those of them that are put in at once: beside other sequences no more than a graph has on a GPU, unless the step
 * computes more of the sequence anyhow. */
static int forced_now(const struct gyre *g, const struct request *r) {
    int left = forced_left(g, r), n_new = r->sequence.n_known - r->sequence.n_computed;
    bool is_alone = g->scheduler.n_running == 1;
    return is_alone || n_new >= FEW_TOKENS ? left : MIN(left, FEW_TOKENS - n_new);
}

/* A step that computes several tokens of some sequences takes longer for all others: what it saves must be worth that.
 * Until then forced tokens are drawn, one a step. */
static void put_in_forced(struct gyre *g) {
    const struct scheduler *s = &g->scheduler;
    static const double worth = 0.5; // tokens that are saved, of those that a step gives
    int n_saved = 0;
    for (int i = 0; i < s->n_running && g->mask_crew; i++)
        n_saved += MAX(forced_now(g, s->running[i]->owner) - 1, 0);
    if (n_saved == 0 || n_saved < worth * s->n_running)
        return;
    for (int i = s->n_running - 1; i >= 0; i--) { // those that end leave
        struct request *r = s->running[i]->owner;
        int n = forced_now(g, r);
        if (n > 0)
            publish_forced(g, r, n);
    }
}

/* A step that is started behind another hides what the host does between, a twentieth of it or so; of sequences that go
 * back it computes nothing that counts. */
static bool is_too_early(const struct gyre *g) {
    static const double hidden = 0.05;
    const struct step *step = &g->steps[g->n_collected % MAX_STEPS_IN_FLIGHT];
    bool is_risky = step->n_branches > 0 || step->n_at_risk > hidden * step->plan.n_seqs;
    return is_risky || (g->drafter.waits && !g->drafter.is_off);
}

/* Plans the next step, if one may be started before those in flight are collected. */
static bool plan(struct gyre *g) {
    bool must_wait = n_in_flight(g) > 0 && (oldest_step(g)->is_read_back || is_too_early(g));
    if (!must_wait) {
        engine_hold_slow(g);
        put_in_forced(g);
        engine_draft(g);
    }
    g->scheduler.holds_new = g->ops->foreseen && g->ops->foreseen(g->exe) > 0;
    bool planned = !must_wait && scheduler_plan(&g->scheduler);
    engine_end_starved(g);
    if (!planned)
        return false;
    fill_step(g, next_step(g));
    return true;
}

static enum status start(struct gyre *g) {
    struct step *step = next_step(g);
    // backend/cpu/backend.c:cpu_run, backend/cuda/step/step.c:step_run, and so on
    TRY(g->ops->run(g->exe, &step->plan, step->is_late ? NULL : step->sample, &g->failed));
    scheduler_start(&g->scheduler);
    g->n_steps++;
    return OK;
}

/* The step that was started last, if it waits for its masks: the tokens that they depend on are known. */
static enum status draw_late(struct gyre *g) {
    struct step *step = &g->steps[(g->n_steps + MAX_STEPS_IN_FLIGHT - 1) % MAX_STEPS_IN_FLIGHT];
    if (n_in_flight(g) == 0 || !step->is_late)
        return OK;
    BUG_IF(n_in_flight(g) > 1);
    mask_rows(g, step, engine_patience_until_us(g));
    step->is_late = false;
    g->n_late_steps++;
    return g->ops->draw(g->exe, step->sample, &g->failed);
}

/* Also asks whether the weights are still those of the file: what was computed from lost pages is not handed out. A
 * step takes from its start, or from the end of the one before, to its own end. */
static enum status collect(struct gyre *g) {
    struct step *step = oldest_step(g);
    TRY(g->ops->collect(g->exe, g->results, &g->failed));
    TRY(g->model ? model_check(g->model, &g->failed) : OK);
    int64_t before_us = MAX(step->started_us, g->collected_us);
    g->collected_us = clock_us();
    scheduler_collect(&g->scheduler, (double)(g->collected_us - before_us));
    g->n_collected++;
    g->n_collected_seqs += step->plan.n_seqs - step->n_branches;
    TRY(publish(g, step));
    return engine_draft_follow(g, step);
}

/* Each request is told; nothing of the steps in flight is. */
static void end_all(struct gyre *g) {
    for (; n_in_flight(g) > 0; g->n_collected++)
        scheduler_collect(&g->scheduler, 0);
    for (int i = 0; i < REQUEST_BUCKETS; i++)
        for (struct request *r = g->requests.buckets[i]; r; r = r->next_in_bucket)
            if (!r->ended) {
                r->sequence.n_scheduled = 0;
                engine_end(g, r, GYRE_FAILED, &g->failed);
            }
}

static enum status step(struct gyre *g) {
    g->first_event = g->n_events = 0; // all were handed out
    TRY(draw_late(g));
    bool planned = plan(g);
    if (g->cache_fault.status != OK) {
        g->failed = g->cache_fault;
        return g->failed.status;
    }
    if (planned) {
        TRY(start(g));
        engine_commit_ahead(g);
    }
    if (!planned && n_in_flight(g) == 0)
        engine_await_held(g);
    bool full = n_in_flight(g) == g->ops->max_in_flight;
    return full || (!planned && n_in_flight(g) > 0) ? collect(g) : OK;
}

void engine_step(struct gyre *g) {
    alloc_guard_begin();
    if (g->failed.status != OK || step(g) != OK)
        end_all(g); // who came while a step failed too
    alloc_guard_end();
}
