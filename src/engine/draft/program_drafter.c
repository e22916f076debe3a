/* program_drafter.c - see program_drafter.h. */
#include "engine/draft/program_drafter.h"

#include "engine/draft/draft_rows.h"
#include "engine/engine.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A sequence that gets guesses. */
struct chain {
    struct request *request;
    int s;              // its place in the step
    int32_t position;   // of its last row
    int row, token_row; // of the plan that runs; row -1: it has ended
    int most;
};

struct placed_program {
    struct loaded *loaded;
    struct executable *exe;
};

struct program_drafter {
    struct gyre *g;
    const struct draft *draft;
    struct placed_program step, context;
    struct draft_rows rows;
    struct sample_params *sample;  // [max_rows]
    struct sample_result *results; // [max_rows]
    struct chain *chains;          // [most_seqs]
    int32_t *block;                // [draft->block]: the tokens of one
    int n_chains, most_guesses, states_width;
    int64_t n_follows; // steps that it looked at
    float *q, *own_q;  // of rejection sampling: [most_seqs][most_guesses][n_vocab], [the draft's]; NULL: there is none
    int n_vocab;
    struct sample_scratch scratch;
    double price;       // of a guess (economy.h)
    enum status status; // of reading hidden states
    int64_t max_positions;
};

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
    return may && d->n_chains < d->rows.n_scratch && room_for(d, r) > 0;
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
static struct sample_params own_draw_of(const struct program_drafter *d, const struct request *r, int32_t position) {
    struct sample_params p = draw_of(r, position);
    p.seed ^= d->g->drafter.rejects ? 0x6472616674 : 0;
    p.want_logits = d->g->drafter.rejects;
    return p;
}

static void ask(struct program_drafter *d, struct chain *c, int token_row) {
    struct batch_plan *plan = &d->rows.plan;
    c->row = plan->n_rows;
    c->token_row = token_row;
    plan->out_row[plan->n_rows] = token_row;
    d->sample[plan->n_rows++] = own_draw_of(d, c->request, c->request->draft.at + c->request->draft.n);
}

/* What a guess takes: a pass is shared by the rows that it gives. */
static void learn_pass(struct program_drafter *d, int64_t us) {
    double each = (double)us / d->rows.plan.n_rows;
    double *pass = &d->g->drafter.pass_us;
    *pass += *pass == 0 ? each : 0.1 * (each - *pass);
}

static enum status run(struct program_drafter *d, const struct placed_program *p, struct error *err) {
    TRY(d->status); // with the sentence in g->failed
    int64_t start = clock_us();
    TRY(d->g->ops->run(p->exe, &d->rows.plan, d->sample, err));
    TRY(d->g->ops->collect(p->exe, d->results, err));
    if (p == &d->step && (d->draft->context || d->rows.plan.n_tokens == d->rows.plan.n_rows)) // no rows of the text
        learn_pass(d, clock_us() - start);
    return OK;
}

/* What guess i of the chain was drawn from, in the target's tokens. */
static void take_distribution(struct program_drafter *d, struct chain *c, int row, int i) {
    int n_own = d->draft->step->vocab_size;
    struct proposal *p = &c->request->draft;
    const float *logits;
    if (!d->q || d->sample[row].temperature == 0 || d->status != OK)
        return;
    d->status = d->g->ops->logits(d->step.exe, row, &logits, &d->g->failed);
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
    if (d->results[row].not_finite || d->results[row].nothing_left)
        return false;
    take_distribution(d, c, row, p->n);
    p->tokens[p->n++] = d->draft->target_id ? d->draft->target_id[token] : token;
    return p->n < c->most;
}

// ---- rows -------------------------------------------------------------------------------------------------------

static void copy_states(struct program_drafter *d, int row, const float *from) {
    memcpy(d->rows.plan.states + (size_t)row * (size_t)d->states_width, from, (size_t)d->states_width * sizeof *from);
}

/* What the target made of positions [first, end), for the next rows of the plan. False: they were not in this step. */
static bool add_states(struct program_drafter *d, const struct step *step, int s, int32_t first, int32_t end) {
    int row = step->plan.query_start[s], n = step->plan.query_start[s + 1] - row;
    int32_t start = step->plan.position[row];
    if (d->draft->feature == NO_STATES)
        return true;
    if (first < start || end > start + n)
        return false;
    for (int32_t p = first; p < end; p++) {
        const float *state;
        d->status = d->g->ops->hidden(d->g->exe, d->draft->feature, row + (p - start), &state, &d->g->failed);
        if (d->status != OK)
            return false;
        copy_states(d, d->rows.plan.n_tokens + (p - first), state);
    }
    return true;
}

static struct chain *new_chain(struct program_drafter *d, struct request *r, int s, int32_t position, int most) {
    struct chain *c = &d->chains[d->n_chains++];
    *c = (struct chain){.request = r, .s = s, .position = position, .most = most};
    r->draft = (struct proposal){.at = r->sequence.n_known, .follow = d->n_follows};
    return c;
}

/* The rows of the text that the step computed, or that the draft lacks; and the first guess of who decodes. */
static void add_text(struct program_drafter *d, const struct step *step, int s) {
    struct request *r = step->requests[s];
    struct draft_text text = draft_text_of(&d->rows, &step->plan, s, r->sequence.n_known - d->draft->is_ahead);
    int most = continues(d, r) ? most_for(d, r) : 0;
    bool goes_on = text.is_whole && most > 0;
    if (most == 0 && d->draft->feature == NO_STATES)
        return; // rows of tokens alone can be made when they are wanted
    if (!goes_on)
        text.end = MIN(text.end, text.held);
    if (text.end <= text.first || !add_states(d, step, s, text.first, text.end))
        return;
    draft_rows_add(&d->rows, &step->plan, s, text, r->sequence.tokens + d->draft->is_ahead, goes_on ? d->n_chains : -1);
    if (text.first == 0 && d->draft->is_first_blank)
        draft_rows_blank_first(&d->rows);
    if (!goes_on)
        return;
    struct chain *c = new_chain(d, r, s, text.end - 1, most);
    if (!d->draft->context)
        ask(d, c, d->rows.plan.n_tokens - 1);
}

/* Of a draft that reads the target's cache: a row at the newest token's place, with the state before it. */
static void add_newest(struct program_drafter *d, const struct step *step, int s) {
    struct request *r = step->requests[s];
    int32_t at = r->sequence.n_known - 1;
    int most = at >= 1 && continues(d, r) ? most_for(d, r) : 0;
    if (most == 0 || !add_states(d, step, s, at - 1, at))
        return;
    draft_rows_add_ahead(&d->rows, &step->plan, s, at, &r->sequence.tokens[at], 1, -1);
    ask(d, new_chain(d, r, s, at, most), d->rows.plan.n_tokens - 1);
}

/* From its last row to the next. */
static void carry(struct program_drafter *d, const struct chain *c, int row) {
    const float *state;
    if (d->draft->feature == NO_STATES || d->status != OK)
        return;
    d->status = d->g->ops->hidden(d->step.exe, d->draft->carry, c->token_row, &state, &d->g->failed);
    if (d->status == OK)
        copy_states(d, row, state);
}

/* A row more for each chain that goes on. False: there is none. */
static bool next_rows(struct program_drafter *d, const struct step *step) {
    draft_rows_begin(&d->rows, NULL);
    for (int i = 0; i < d->n_chains; i++) {
        struct chain *c = &d->chains[i];
        const struct proposal *p = &c->request->draft;
        if (c->row < 0 || !take_guess(d, c, c->row)) {
            c->row = -1;
            continue;
        }
        c->position += !d->draft->reads_target;
        carry(d, c, d->rows.plan.n_tokens);
        draft_rows_add_ahead(&d->rows, &step->plan, c->s, c->position, &p->tokens[p->n - 1], 1, i);
        ask(d, c, d->rows.plan.n_tokens - 1);
    }
    return d->rows.plan.n_rows > 0;
}

/* A block for each: the newest token, then masks, each of which gives a guess. */
static void add_blocks(struct program_drafter *d, const struct step *step) {
    draft_rows_begin(&d->rows, NULL);
    for (int i = 0; i < d->n_chains; i++) {
        struct chain *c = &d->chains[i];
        const struct sequence *seq = &c->request->sequence;
        d->block[0] = seq->tokens[seq->n_known - 1];
        draft_rows_add_ahead(&d->rows, &step->plan, c->s, seq->n_known - 1, d->block, d->draft->block, i);
        c->token_row = d->rows.plan.n_tokens - d->draft->block;
        c->row = d->rows.plan.n_rows;
        for (int k = 0; k < c->most; k++) {
            d->rows.plan.out_row[d->rows.plan.n_rows] = c->token_row + 1 + k;
            d->sample[d->rows.plan.n_rows++] = own_draw_of(d, c->request, seq->n_known + k);
        }
    }
}

static enum status run_blocks(struct program_drafter *d, const struct step *step, struct error *err) {
    TRY(run(d, &d->context, err));
    if (d->n_chains == 0)
        return OK;
    add_blocks(d, step);
    TRY(run(d, &d->step, err));
    for (int i = 0; i < d->n_chains; i++)
        for (int k = 0; take_guess(d, &d->chains[i], d->chains[i].row + k);)
            k++;
    return OK;
}

static enum status run_chains(struct program_drafter *d, const struct step *step, struct error *err) {
    do
        TRY(run(d, &d->step, err));
    while (next_rows(d, step));
    return OK;
}

static enum status follow(void *context, const struct step *step, struct error *err) {
    struct program_drafter *d = context;
    d->n_chains = 0;
    d->n_follows++;
    d->price = guess_price(&d->g->scheduler, d->g->drafter.pass_us);
    draft_rows_begin(&d->rows, &step->plan);
    if (far_too_many(d)) {
        draft_rows_without(&d->rows, &step->plan);
        return OK;
    }
    for (int s = 0; s < step->plan.n_seqs; s++)
        (d->draft->reads_target ? add_newest : add_text)(d, step, s);
    if (d->rows.plan.n_tokens == 0) {
        draft_rows_without(&d->rows, &step->plan);
        return OK;
    }
    TRY(model_check(d->draft->model, err));
    return (d->draft->context ? run_blocks : run_chains)(d, step, err);
}

/* Of the step before only: the distributions of older ones are overwritten, as those of who waited meanwhile. */
static int guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct proposal *p = &((const struct request *)seq->owner)->draft;
    const struct program_drafter *d = context;
    if (p->n == 0 || p->follow != d->n_follows || p->at != seq->n_known || seq->n_tokens != seq->n_known)
        return 0;
    int n = MIN(p->n, max);
    memcpy(out, p->tokens, (size_t)n * sizeof *out);
    return n;
}

// ---- opening and closing ----------------------------------------------------------------------------------------

static void take_away(const struct gyre *g, const struct placed_program *p) {
    if (p->exe)
        g->ops->free_executable(p->exe);
    if (p->loaded)
        g->ops->unload(p->loaded);
}

static void close_drafter(void *context) {
    struct program_drafter *d = context;
    take_away(d->g, &d->context);
    take_away(d->g, &d->step);
    draft_rows_release(&d->rows);
    free(d->sample);
    free(d->results);
    free(d->chains);
    free(d->block);
    free(d->q);
    free(d->own_q);
    sample_scratch_release(&d->scratch);
    free(d);
}

static enum status check(const struct gyre *g, const struct draft *draft, struct error *err) {
    const struct program *p = draft->step;
    if (draft_group(g->program) < 0)
        return fail(err, ERR_UNSUPPORTED,
                    "speculation: %s keeps no cache of the whole text, beside which a draft's lies", g->program->name);
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].kind == CACHE_STATE)
            return fail(err, ERR_UNSUPPORTED, "speculation: the draft %s has recurrent layers, which cannot go back",
                        p->name);
    if (draft->feature != NO_STATES && !g->ops->hidden)
        return fail(err, ERR_UNSUPPORTED,
                    "speculation: the draft %s reads hidden states, which this device does not keep", p->name);
    if (program_rope_depends_on_length(p))
        return fail(err, ERR_UNSUPPORTED, "speculation: positions of the draft %s depend on the length of the text",
                    p->name);
    return OK;
}

struct executable *program_drafter_exe(const struct gyre *g) {
    return ((const struct program_drafter *)g->drafter.context)->step.exe;
}

enum status program_drafter_load(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                                 struct error *err) {
    struct load_options options = {.dtype = o->dtype};
    TRY(check(g, draft, err));
    struct program_drafter *d = xcalloc(1, sizeof *d);
    *d = (struct program_drafter){.g = g, .draft = draft};
    g->drafter = (struct drafter){.context = d, .close = close_drafter};
    d->max_positions = draft->model->spec->max_positions;
    options.caches_of = draft->reads_target ? g->loaded : NULL;
    TRY(g->ops->load(g->device, draft->step, &options, &d->step.loaded, err));
    options.caches_of = d->step.loaded;
    return draft->context ? g->ops->load(g->device, draft->context, &options, &d->context.loaded, err) : OK;
}

static int states_width(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_STATES)
            return p->ops[i].out[0].width;
    return 0;
}

static enum status alloc_cache(struct program_drafter *d, struct error *err) {
    const struct gyre *g = d->g;
    struct cache_config config = {.block_size = g->cache.block_size};
    for (int i = 0; i < d->draft->step->n_groups; i++) {
        config.n_blocks[i] = d->rows.n_blocks;
        config.table_width[i] = d->rows.width;
    }
    return d->draft->reads_target ? OK : g->ops->alloc_cache(d->step.loaded, &config, err);
}

/* Prompts, and the rows of all chains at once. */
static struct bucket bucket_of(const struct program_drafter *d, int most_seqs) {
    const struct step_limits *limits = &d->g->scheduler.limits;
    int a_seq = MAX(d->draft->block, 1);
    return (struct bucket){.max_tokens = MAX(limits->max_tokens, most_seqs * a_seq),
                           .max_seqs = limits->max_seqs,
                           .max_rows = most_seqs * MIN(a_seq, d->most_guesses),
                           .max_copies = d->draft->step->n_groups * d->g->pool.max_copies};
}

static void allocate(struct program_drafter *d, struct bucket bucket, int most_seqs) {
    const struct draft *draft = d->draft;
    struct draft_rows_options rows = {.bucket = bucket,
                                      .target_group = draft_group(d->g->program),
                                      .n_groups = draft->step->n_groups,
                                      .n_scratch = most_seqs,
                                      .most_ahead = MAX(d->most_guesses, draft->block),
                                      .shares = draft->reads_target};
    draft_rows_init(&d->rows, &d->g->cache, &rows);
    d->states_width = states_width(draft->context ? draft->context : draft->step);
    if (d->states_width > 0)
        batch_plan_add_states(&d->rows.plan, bucket, d->states_width);
    d->sample = xcalloc((size_t)bucket.max_rows, sizeof *d->sample);
    d->results = xcalloc((size_t)bucket.max_rows, sizeof *d->results);
    d->chains = xcalloc((size_t)most_seqs, sizeof *d->chains);
    d->block = xcalloc((size_t)draft->block + 1, sizeof *d->block);
    for (int i = 1; i < draft->block; i++)
        d->block[i] = draft->mask;
}

static enum status allocate_distributions(struct program_drafter *d, int most_seqs, struct error *err) {
    size_t rows = (size_t)most_seqs * (size_t)d->most_guesses, n_own = (size_t)d->draft->step->vocab_size;
    d->n_vocab = d->g->info.vocab_size;
    d->q = calloc(rows * (size_t)d->n_vocab, sizeof *d->q);
    if (!d->q)
        return fail(err, ERR_MEMORY, "speculation: no memory for the distributions of %zu guesses", rows);
    d->own_q = xcalloc(n_own, sizeof *d->own_q);
    sample_scratch_init(&d->scratch, (int64_t)n_own);
    return OK;
}

enum status program_drafter_open(struct gyre *g, const struct gyre_options *o, struct error *err) {
    struct program_drafter *d = g->drafter.context;
    int most_seqs = MIN(g->drafter.most_seqs, g->scheduler.limits.max_seqs);
    d->most_guesses = d->draft->block > 0 ? MIN(o->n_guesses, d->draft->block - 1) : o->n_guesses;
    struct bucket bucket = bucket_of(d, most_seqs);
    allocate(d, bucket, most_seqs);
    TRY(o->draft_rejection ? allocate_distributions(d, most_seqs, err) : OK);
    TRY(alloc_cache(d, err));
    TRY(g->ops->compile(d->step.loaded, bucket, &d->step.exe, err));
    TRY(d->draft->context ? g->ops->compile(d->context.loaded, bucket, &d->context.exe, err) : OK);
    g->drafter.guess = guess;
    g->drafter.follow = follow;
    g->drafter.waits = true;
    return OK;
}
