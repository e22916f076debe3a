/* text_drafter.c - see text_drafter.h. */
#include "engine/draft/text_drafter_parts.h"

#include "base/clock.h"

#include <string.h>

// ---- who gets guesses -------------------------------------------------------------------------------------------

static int most_for(const struct text_drafter *d, struct request *r) {
    const struct sequence *seq = &r->sequence;
    int room = (int)MIN(d->most_guesses, seq->capacity - 1 - seq->n_tokens);
    bool may = !r->ended && !r->is_paused && engine_may_guess(r) && room > 0;
    return !may ? 0 : d->g->drafter.is_fixed ? room : guess_most(&r->record, d->price, room);
}

// ---- rows -------------------------------------------------------------------------------------------------------

static void begin(struct text_drafter *d) { d->plan.n_tokens = d->plan.n_seqs = d->plan.n_rows = d->plan.n_copies = 0; }

/* Rows [first, end) of a place; the last of them says what comes next, if it is asked. */
static void add_rows(struct text_drafter *d, const struct text_place *t, int32_t first, int32_t end) {
    struct batch_plan *p = &d->plan;
    for (int32_t i = first; i < end; i++) {
        p->from_row[p->n_tokens] = -1;
        p->token_id[p->n_tokens] = t->ids[i];
        p->position[p->n_tokens++] = i;
    }
    for (int g = 0; g < d->draft->step->n_groups; g++)
        memcpy(p->block_table[g] + (size_t)p->n_seqs * (size_t)p->table_width[g], t->blocks,
               (size_t)t->n_blocks * sizeof *t->blocks);
    p->seq_len[p->n_seqs] = p->n_known[p->n_seqs] = end;
    p->query_start[++p->n_seqs] = p->n_tokens;
}

static void ask(struct text_drafter *d, struct text_chain *c) {
    c->row = d->plan.n_rows;
    d->plan.out_row[d->plan.n_rows] = d->plan.n_tokens - 1;
    d->sample[d->plan.n_rows++] = sample_params_default();
    d->sample[c->row].temperature = 0;
}

/* The rows that the draft lacks, as many as have room, and a chain behind them if that is all. */
static void add_text(struct text_drafter *d, struct request *r) {
    enum { FEW_ROWS = 32 };
    int most = most_for(d, r), room = d->bucket.max_tokens - d->plan.n_tokens;
    struct text_place *t =
        most > 0 && room > 0 && d->plan.n_seqs < d->bucket.max_seqs ? text_place_for(d, r, most) : NULL;
    if (!t)
        return;
    int32_t first = MIN(t->n_rows, t->n_ids - 1), end = MIN(t->n_ids, first + room);
    add_rows(d, t, first, end);
    t->n_rows = end;
    d->catches_up |= end - first > FEW_ROWS;
    if (end < t->n_ids)
        return;
    struct text_chain *c = &d->chains[d->n_chains++];
    *c = (struct text_chain){.request = r, .place = t, .most = most};
    r->draft = (struct proposal){.at = r->sequence.n_known, .follow = d->n_follows};
    ask(d, c);
}

/* A row more for each chain that goes on. */
static void next_rows(struct text_drafter *d) {
    begin(d);
    for (int i = 0; i < d->n_chains; i++) {
        struct text_chain *c = &d->chains[i];
        c->row = -1;
        if (c->has_ended || c->n_made >= c->most)
            continue;
        add_rows(d, c->place, c->place->n_ids - 1, c->place->n_ids);
        c->place->n_rows = c->place->n_ids;
        ask(d, c);
    }
}

/* What nothing can follow in the target's words ends a chain. */
static void take_token(struct text_drafter *d, struct text_chain *c) {
    const struct sample_result *result = &d->results[c->row];
    bool is_word = token_length(&d->own, result->token) > 0;
    if (is_word && token_is_special(&d->own, result->token))
        is_word = token_find(&d->target, token_at(&d->own, result->token), token_length(&d->own, result->token)) >= 0;
    c->has_ended = result->not_finite || result->nothing_left || !is_word;
    if (c->has_ended)
        return;
    c->place->ids[c->place->n_ids++] = result->token;
    c->n_made++;
}

static enum status run_chains(struct text_drafter *d, struct error *err) {
    do {
        TRY(d->g->ops->run(d->exe, &d->plan, d->sample, err));
        TRY(d->g->ops->collect(d->exe, d->results, err));
        for (int i = 0; i < d->n_chains; i++)
            if (d->chains[i].row >= 0)
                take_token(d, &d->chains[i]);
        next_rows(d);
    } while (d->plan.n_rows > 0);
    return OK;
}

// ---- guesses ----------------------------------------------------------------------------------------------------

/* What a guess takes: passes are shared by the guesses that they give. One that reads a prompt says nothing of the next
 * ones. */
static void learn_pass(struct text_drafter *d, int64_t us) {
    int n_guesses = 0;
    for (int i = 0; i < d->n_chains; i++)
        n_guesses += d->chains[i].request->draft.n;
    double each = (double)us / MAX(n_guesses, 1), *pass = &d->g->drafter.pass_us;
    if (d->n_chains > 0 && !d->catches_up)
        *pass += *pass == 0 ? each : 0.1 * (each - *pass);
}

enum status text_drafter_follow(void *context, const struct step *step, struct error *err) {
    struct text_drafter *d = context;
    d->n_chains = 0;
    d->catches_up = false;
    d->n_follows++;
    d->price = guess_price(&d->g->scheduler, &d->g->drafter.times, d->g->drafter.pass_us);
    begin(d);
    if (d->g->scheduler.n_running > d->g->drafter.most_seqs)
        return OK;
    for (int s = 0; s < step->plan.n_seqs; s++)
        add_text(d, step->requests[s]);
    if (d->plan.n_tokens == 0)
        return OK;
    TRY(model_check(d->draft->model, err));
    int64_t begun = clock_us();
    TRY(run_chains(d, err));
    for (int i = 0; i < d->n_chains; i++) {
        struct text_chain *c = &d->chains[i];
        struct proposal *p = &c->request->draft;
        p->n = text_place_guesses(d, c->place, c->n_made, p->tokens, c->most);
    }
    learn_pass(d, clock_us() - begun);
    return OK;
}

int text_drafter_guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct proposal *p = &((const struct request *)seq->owner)->draft;
    const struct text_drafter *d = context;
    if (p->n == 0 || p->follow != d->n_follows || p->at != seq->n_known || seq->n_tokens != seq->n_known)
        return 0;
    int n = MIN(p->n, max);
    memcpy(out, p->tokens, (size_t)n * sizeof *out);
    return n;
}
