/* step.c - one step of the engine: schedule, fill the plan, run, publish what came out.
 *
 * Knows sequences, rows and tokens; what a row of logits turns into is the backend's (core/sample.h), and which
 * tokens run is the scheduler's. Nothing here allocates. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/guard.h"

#include <string.h>

// ---- the plan ---------------------------------------------------------------------------------------------------

static int n_generated(const struct request *r) { return r->sequence.n_tokens - r->n_prompt; }

/* A row in the middle of a prompt gives the log-probability of the next prompt token, the last row of what is
 * known the next token. */
static struct sample_params row_params(const struct request *r, int32_t position) {
    const struct sequence *seq = &r->sequence;
    bool last = position == seq->n_tokens - 1;
    struct sample_params p = sample_params_default();
    if (last && r->asked.max_tokens > 0) {
        p = r->sample;
        p.n_history = seq->n_tokens;
        p.position = (uint64_t)seq->n_tokens;
        if (n_generated(r) < r->asked.min_tokens) {
            p.banned = r->banned;
            p.n_banned = r->n_banned;
        }
    }
    p.n_top_logprobs = position < r->n_prompt - 1 ? r->asked.n_prompt_top_logprobs : r->asked.n_top_logprobs;
    p.want_logits = r->asked.want_last_logits && position == r->n_prompt - 1;
    p.target = last ? -1 : seq->tokens[position + 1];
    return p;
}

static void fill_tables(const struct gyre *g, struct batch_plan *plan, int s, const struct sequence *seq) {
    for (int group = 0; group < g->program->n_groups; group++) {
        int width = plan->table_width[group];
        int32_t *row = plan->block_table[group] + (size_t)s * (size_t)width;
        const struct block_table *table = &seq->tables[group];
        for (int i = 0; i < width; i++)
            row[i] = i < table->end ? table->block[i] : NO_BLOCK;
    }
    plan->state_slot[s] = seq->state_slot;
}

static void fill_rows(struct gyre *g, struct batch_plan *plan, const struct sequence *seq) {
    int first_token = plan->query_start[plan->n_seqs], n = sequence_rows(seq, seq->n_scheduled);
    int32_t position = sequence_row_start(seq);
    for (int i = 0; i < n; i++, position++, plan->n_rows++) {
        plan->out_row[plan->n_rows] = first_token + (position - seq->n_computed);
        plan->sample[plan->n_rows] = row_params(seq->owner, position);
        g->rows[plan->n_rows] = (struct step_row){seq->owner, position};
    }
}

static void fill_sequence(struct gyre *g, struct batch_plan *plan, const struct sequence *seq) {
    int s = plan->n_seqs, n = seq->n_scheduled;
    memcpy(plan->token_id + plan->n_tokens, seq->tokens + seq->n_computed, (size_t)n * sizeof *seq->tokens);
    for (int i = 0; i < n; i++)
        plan->position[plan->n_tokens + i] = seq->n_computed + i;
    plan->query_start[s] = plan->n_tokens;
    plan->seq_len[s] = seq->n_computed + n;
    plan->n_known[s] = seq->n_tokens;
    fill_tables(g, plan, s, seq);
    fill_rows(g, plan, seq);
    plan->n_tokens += n;
    plan->query_start[++plan->n_seqs] = plan->n_tokens;
}

void engine_fill_plan(struct gyre *g) {
    struct batch_plan *plan = &g->plan;
    plan->n_tokens = plan->n_seqs = plan->n_rows = 0;
    telemetry_step(g);
    for (int i = 0; i < g->scheduler.n_step; i++) {
        struct request *r = g->scheduler.step[i]->owner;
        if (r->started_us == 0)
            r->started_us = clock_us();
        fill_sequence(g, plan, &r->sequence);
    }
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

static void publish_token(struct gyre *g, struct request *r, const struct sample_result *result) {
    struct gyre_event *e = new_event(g, r, GYRE_TOKEN, result);
    e->position = r->sequence.n_tokens;
    e->n_top = r->asked.n_top_logprobs;
    e->token = result->token;
    e->logprob = result->logprob;
    e->stops = is_stop(r, result->token);
    sequence_append(&r->sequence, result->token);
    r->last_token_us = clock_us();
    if (r->first_token_us == 0)
        r->first_token_us = r->last_token_us;
    if (e->stops)
        engine_end(g, r, GYRE_STOP, NULL);
    else if (n_generated(r) == r->asked.max_tokens)
        engine_end(g, r, GYRE_LENGTH, NULL);
}

static void publish_prompt(struct gyre *g, struct request *r, int row, const struct sample_result *result) {
    struct gyre_event *e = new_event(g, r, GYRE_PROMPT, result);
    e->position = g->rows[row].position;
    e->n_top = g->plan.sample[row].n_top_logprobs;
    e->token = result->argmax;
    e->logprob = g->plan.sample[row].target >= 0 ? result->target_logprob : 0;
    e->rank = g->plan.sample[row].target >= 0 ? result->target_rank : 0;
    e->logits = g->plan.sample[row].want_logits ? g->ops->logits(g->exe, row) : NULL;
}

static void publish_row(struct gyre *g, int row) {
    struct request *r = g->rows[row].request;
    const struct sample_result *result = &g->results[row];
    int32_t position = g->rows[row].position;
    bool scored = r->asked.score_prompt && position >= r->asked.score_from && position < r->n_prompt;
    if (r->ended)
        return;
    if (result->not_finite) {
        struct error err;
        fail(&err, ERR_FORMAT, "the model gave logits that are not finite numbers after token %d: its weights are damaged", position);
        engine_end(g, r, GYRE_FAILED, &err);
        return;
    }
    if (result->nothing_left) {
        struct error err;
        fail(&err, ERR_ARG,
             "after token %d nothing is left that may come: allowed_token_ids, bad_words, logit_bias and min_tokens exclude all", position);
        engine_end(g, r, GYRE_FAILED, &err);
        return;
    }
    if (scored)
        r->sequence.first_row = position + 1; // so that a recomputation does not tell it again
    if (scored || g->plan.sample[row].want_logits)
        publish_prompt(g, r, row, result);
    if (position < r->sequence.n_tokens - 1)
        return;
    if (r->asked.max_tokens > 0)
        publish_token(g, r, result);
    else
        engine_end(g, r, GYRE_LENGTH, NULL);
}

// ---- the step ---------------------------------------------------------------------------------------------------

/* Also asks whether the weights are still those of the file: what was computed from lost pages is not handed out. */
static enum status run_and_collect(struct gyre *g) {
    TRY(g->ops->run(g->exe, &g->plan, &g->failed));
    TRY(g->ops->collect(g->exe, g->results, &g->failed));
    return g->model ? model_check(g->model, &g->failed) : OK;
}

static void end_all(struct gyre *g) {
    for (uint32_t i = 1; i < g->requests.n; i++) {
        struct request *r = g->requests.slots[i].request;
        if (r && !r->ended) {
            r->sequence.n_scheduled = 0;
            engine_end(g, r, GYRE_FAILED, &g->failed);
        }
    }
}

static void publish(struct gyre *g) {
    g->first_event = g->n_events = 0;
    engine_pool_step(g);
    for (int row = 0; row < g->plan.n_rows; row++)
        publish_row(g, row);
}

void engine_step(struct gyre *g) {
    alloc_guard_begin();
    if (scheduler_plan(&g->scheduler)) {
        engine_fill_plan(g);
        g->n_steps++;
        int64_t start = clock_us();
        if (run_and_collect(g) == OK) {
            scheduler_advance(&g->scheduler, (double)(clock_us() - start));
            publish(g);
        } else {
            end_all(g);
        }
    }
    alloc_guard_end();
}
