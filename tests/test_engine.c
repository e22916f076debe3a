/* test_engine.c - the engine and its scheduler on a backend whose next token is a hash of its context: whatever runs
 * beside it, a request gets the tokens that it gets alone. */
#include "check.h"
#include "on_device.h"

#include "backend/toy/toy.h"
#include "base/guard.h"
#include "base/random.h"
#include "engine/fit.h"
#include "engine/memory_plan.h"
#include "letters.h"
#include "sched/kv_pool_internal.h"

#include <math.h>

enum { VOCAB = 40, EOS = 1, LONGEST = 96, MAX_EVENTS = 200 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 1) * n); }
static bool one_in(int n) { return below(n) == 0; }

// ---- engines over toys ------------------------------------------------------------------------------------------

/* Steps in flight: every test runs with one at a time, and with the next one started before the first is collected. */
static int depth;

/* The toy as a device of that depth; as long as the process. */
static const struct backend_ops *toy_of_depth(int n) {
    static struct backend_ops toys[1 + MAX_STEPS_IN_FLIGHT];
    toys[n] = backend_toy;
    toys[n].max_in_flight = n;
    return &toys[n];
}

struct world {
    struct program *program;
    struct gyre *g;
};

static struct world world_open(struct toy_shape shape, struct gyre_options options) {
    static const int32_t eos[] = {EOS};
    shape.vocab_size = VOCAB;
    struct world w = {.program = toy_program(&shape)};
    struct engine_model model = {w.program, LONGEST, -1, eos, 1};
    options.backend = toy_of_depth(depth);
    struct error err;
    EXPECT_OK(engine_open(&options, &model, &w.g, &err), err);
    return w;
}

static void world_close(struct world w) {
    gyre_close(w.g);
    program_free(w.program);
}

/* All that a request was told. */
struct record {
    int32_t tokens[LONGEST], positions[LONGEST];
    float logprobs[LONGEST];
    int32_t prompt_best[LONGEST];
    float prompt_logprobs[LONGEST];
    int n_tokens, n_prompt, n_done;
    double logits_sum;
    enum gyre_finish finish;
    char error[200];
    struct gyre_timing timing;
};

static void record_event(struct record *r, const struct gyre_event *e) {
    EXPECT_EQ(r->n_done, 0);
    switch (e->kind) {
    case GYRE_PROMPT:
        r->prompt_best[r->n_prompt] = e->token;
        r->prompt_logprobs[r->n_prompt++] = e->logprob;
        for (int v = 0; e->logits && v < VOCAB; v++)
            r->logits_sum += (double)e->logits[v] * (v + 1);
        break;
    case GYRE_TOKEN:
        r->positions[r->n_tokens] = (int32_t)e->position;
        r->logprobs[r->n_tokens] = e->logprob;
        r->tokens[r->n_tokens++] = e->token;
        break;
    case GYRE_DONE:
        r->n_done++;
        r->finish = e->finish;
        r->timing = e->timing;
        if (e->error)
            snprintf(r->error, sizeof r->error, "%s", e->error);
        break;
    }
}

static int poll_once(struct gyre *g) {
    struct gyre_event events[7];
    int n = gyre_poll(g, events, 1 + below(7));
    for (int i = 0; i < n; i++)
        record_event(events[i].user, &events[i]);
    const char *wrong = scheduler_check(&g->scheduler);
    if (wrong)
        fail_msg("%s", wrong);
    return n;
}

static uint64_t submit(struct gyre *g, struct gyre_request q, struct record *r) {
    struct gyre_error err;
    uint64_t id = 0;
    q.user = r;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    return id;
}

static void finish_all(struct gyre *g) {
    while (gyre_busy(g))
        poll_once(g);
    EXPECT_EQ(poll_once(g), 0);
}

/* Where requests run alone: one step at a time, and nothing is remembered of the last one. */
static struct world alone_open(struct toy_shape shape) {
    int company_depth = depth;
    depth = 1;
    struct world w = world_open(shape, (struct gyre_options){.no_prefix_cache = true});
    depth = company_depth;
    return w;
}

static void run_alone(struct toy_shape shape, struct gyre_request q, struct record *r) {
    struct world w = alone_open(shape);
    submit(w.g, q, r);
    finish_all(w.g);
    world_close(w);
}

static void expect_same(const struct record *a, const struct record *alone, const char *what) {
    bool cut = a->finish == GYRE_CANCELLED;
    if (a->n_done != 1 ||
        (!cut && (a->finish != alone->finish || a->n_tokens != alone->n_tokens || a->n_prompt != alone->n_prompt)))
        fail_msg("%s: %d done, finish %d (alone %d), %d tokens (%d), %d scores (%d)", what, a->n_done, (int)a->finish,
                 (int)alone->finish, a->n_tokens, alone->n_tokens, a->n_prompt, alone->n_prompt);
    EXPECT(a->n_tokens <= alone->n_tokens && a->n_prompt <= alone->n_prompt);
    for (int i = 0; i < a->n_tokens; i++)
        if (a->tokens[i] != alone->tokens[i] || a->logprobs[i] != alone->logprobs[i] ||
            a->positions[i] != alone->positions[i])
            fail_msg("%s: token %d is %d, alone %d", what, i, a->tokens[i], alone->tokens[i]);
    for (int i = 0; i < a->n_prompt; i++)
        if (a->prompt_best[i] != alone->prompt_best[i] || a->prompt_logprobs[i] != alone->prompt_logprobs[i])
            fail_msg("%s: prompt position %d is scored differently from alone", what, i);
    EXPECT(cut || a->logits_sum == alone->logits_sum);
}

// ---- random requests in random company --------------------------------------------------------------------------

struct company {
    struct gyre_request request;
    int32_t prompt[LONGEST], stop_id;
    struct gyre_logit_bias bias;
    int32_t allowed[VOCAB], bad_tokens[2];
    struct gyre_bad_sequence bad;
    struct record record;
    uint64_t id;
    bool submitted;
};

/* Short ones that end, ones that end where they like, one that lets all come that is text, and one that mostly leaves
 * no choice, whose texts are put in at once. Its tokens are letters and the pairs up to mn. */
enum { N_GRAMMARS = 5 };
static struct gyre_grammar grammars[N_GRAMMARS];

static void open_grammars(void) {
    struct token_trie *letters = letters_open(VOCAB, true);
    grammars[0] = letters_grammar(letters, NULL, "[\"abcab\", \"abd\", \"x\", \"hijklmnopqrstuvw\"]");
    grammars[1] = letters_grammar(letters, "([a-f]{2}[k-z])*", NULL);
    grammars[2] = letters_grammar(letters, "(ab|bc)+(d|[x-z]{3,5})?", NULL);
    grammars[3] = letters_grammar(letters, "[a-z]*", NULL);
    grammars[4] = letters_grammar(letters, "((abxcdaefamc|bzzijklaaaab)[a-c])+", NULL);
    grammars[4].split = letters_split;
}

static void close_grammars(void) {
    token_trie_free(grammars[0].tokens);
    for (int i = 0; i < N_GRAMMARS; i++)
        grammar_release(grammars[i].grammar);
}

static void random_request(struct company *c, int max_len, const struct world *w) {
    struct gyre_request *q = &c->request;
    *q = gyre_request_default(w->g);
    q->prompt = c->prompt;
    q->n_prompt = 1 + below(one_in(3) ? max_len - 1 : MIN(12, max_len - 1));
    for (int i = 0; i < q->n_prompt; i++)
        c->prompt[i] = below(VOCAB);
    q->max_tokens = one_in(6) ? 0 : one_in(6) ? -1 : 1 + below(max_len - (int)q->n_prompt);
    q->temperature = one_in(2) ? 0 : 0.7f;
    q->seed = (uint64_t)below(5);
    q->ignore_eos = one_in(2);
    q->min_tokens = q->max_tokens > 2 && one_in(3) ? below((int)q->max_tokens) : 0;
    if (one_in(3)) {
        c->stop_id = below(VOCAB);
        q->stop_ids = &c->stop_id, q->n_stop_ids = 1;
    }
    if (one_in(4)) {
        c->bias = (struct gyre_logit_bias){below(VOCAB), (float)(below(9) - 4)};
        q->logit_bias = &c->bias, q->n_logit_bias = 1;
    }
    if (one_in(4))
        q->repetition_penalty = 1.3f, q->presence_penalty = 0.4f, q->frequency_penalty = 0.2f;
    if (one_in(5)) {
        q->allowed_ids = c->allowed, q->n_allowed_ids = (size_t)(1 + below(VOCAB));
        for (int i = 0; i < VOCAB; i++)
            c->allowed[i] = below(VOCAB);
    }
    if (one_in(5)) { // a pair that comes about often: the ids are few
        c->bad_tokens[0] = c->bad_tokens[1] = below(VOCAB);
        c->bad = (struct gyre_bad_sequence){c->bad_tokens, (size_t)(1 + below(2))};
        q->bad_sequences = &c->bad, q->n_bad_sequences = 1;
    }
    q->logprobs = one_in(2);
    q->n_top_logprobs = one_in(3) ? below(21) : 0;
    q->n_prompt_top_logprobs = one_in(3) ? below(21) : 0;
    q->score_prompt = one_in(4);
    q->score_from = one_in(2) ? 0 : below((int)q->n_prompt + 2);
    q->want_last_logits = one_in(4);
    q->priority = one_in(3) ? below(5) - 2 : 0;
    q->grammar = one_in(3) ? &grammars[below(N_GRAMMARS)] : NULL;
}

/* Begins like an earlier request: its prompt and answer, cut or changed somewhere or not, and something new. */
static void begin_like(struct company *c, const struct company *earlier, int max_len) {
    int n = 0;
    for (int i = 0; i < earlier->request.n_prompt && n < max_len - 1; i++)
        c->prompt[n++] = earlier->prompt[i];
    for (int i = 0; i < earlier->record.n_tokens && n < max_len - 1; i++)
        c->prompt[n++] = earlier->record.tokens[i];
    if (one_in(2))
        n = 1 + below(n);
    for (int extra = below(6); extra > 0 && n < max_len - 1; extra--)
        c->prompt[n++] = below(VOCAB);
    c->request.n_prompt = n;
    c->request.max_tokens = one_in(4) ? 0 : 1 + below(max_len - n);
    c->request.min_tokens = 0;
}

static struct toy_shape random_shape(void) {
    struct toy_shape s = {
        .full = one_in(2), .latent = one_in(4), .recurrent = one_in(3), .window = one_in(2) ? 1 + below(20) : 0};
    if (!s.full && !s.latent && !s.recurrent && !s.window)
        s.full = true;
    return s;
}

static struct gyre_options random_options(void) {
    return (struct gyre_options){
        .max_batched_tokens = one_in(4) ? 1 + below(3) : 1 + below(60),
        .max_seqs = 1 + below(8),
        .block_size = 1 << below(5),
        .kv_cache_bytes = 700 + below(one_in(3) ? 16000 : 1800),
        .no_prefix_cache = one_in(4),
        .policy = one_in(2) ? GYRE_FCFS : GYRE_SJF,
        .swap_bytes = one_in(2) ? below(3000) : 0,
    };
}

struct tally {
    int64_t n_held, n_requests, n_preempted, n_swapped, n_cancelled, n_reused;
};

static void one_random_schedule(struct tally *tally) {
    enum { MOST = 12 };
    static struct company all[MOST];
    memset(all, 0, sizeof all);
    struct toy_shape shape = random_shape();
    struct world w = world_open(shape, random_options());
    w.g->scheduler.always_swap = one_in(2);
    w.g->mask_patience_us = one_in(2) ? 0 : w.g->mask_patience_us; // masks are mostly late then
    int max_len = (int)gyre_info(w.g)->max_model_len, n = 1 + below(MOST), submitted = 0, pace = 1 + below(6);
    if (max_len < 4) {
        world_close(w);
        return;
    }
    while (submitted < n || gyre_busy(w.g)) {
        if (submitted < n && one_in(pace)) {
            struct company *c = &all[submitted];
            random_request(c, max_len, &w);
            int k = below(n);
            if (k < submitted)
                begin_like(c, &all[k], max_len);
            c->id = submit(w.g, c->request, &c->record);
            submitted++;
        }
        if (submitted > 0 && one_in(60))
            gyre_cancel(w.g, all[below(submitted)].id);
        poll_once(w.g);
    }
    finish_all(w.g);
    tally->n_preempted += w.g->scheduler.n_preempted;
    tally->n_swapped += w.g->scheduler.n_swapped;
    tally->n_held += w.g->n_held;
    EXPECT_EQ(w.g->pool.host_states.n_free, w.g->pool.host_states.n_blocks);
    struct world for_one = alone_open(shape);
    for (int i = 0; i < n; i++) {
        static struct record alone;
        memset(&alone, 0, sizeof alone);
        struct gyre_request q = all[i].request;
        if (q.max_tokens == -1)
            q.max_tokens = max_len - q.n_prompt; // alone there is more room
        submit(for_one.g, q, &alone);
        finish_all(for_one.g);
        expect_same(&all[i].record, &alone, "in company");
        tally->n_requests++;
        tally->n_cancelled += all[i].record.finish == GYRE_CANCELLED;
        tally->n_reused += all[i].record.timing.n_reused;
    }
    world_close(for_one);
    EXPECT_EQ(w.g->pool.states.n_free, w.g->pool.states.n_blocks);
    for (int g = 0; g < w.g->pool.n_groups; g++) {
        EXPECT_EQ(w.g->pool.groups[g].blocks.n_free, w.g->pool.groups[g].blocks.n_blocks);
        EXPECT_EQ(w.g->pool.groups[g].host.n_free, w.g->pool.groups[g].host.n_blocks);
    }
    world_close(w);
}

static void random_company_changes_nothing(void **state) {
    (void)state;
    struct tally tally = {0};
    open_grammars();
    int n = test_is_brief() ? 500 : 4000;
    for (int i = 0; i < n; i++)
        one_random_schedule(&tally);
    close_grammars();
    printf("%lld requests, %lld preempted (%lld to the host), %lld cancelled, %lld tokens reused, %lld held\n",
           (long long)tally.n_requests, (long long)tally.n_preempted, (long long)tally.n_swapped,
           (long long)tally.n_cancelled, (long long)tally.n_reused, (long long)tally.n_held);
    EXPECT(tally.n_preempted > n / 4 && tally.n_reused > n / 4);
    EXPECT(tally.n_swapped > n / 20 && tally.n_cancelled > n / 20 && tally.n_held > 0);
}

// ---- one thing at a time ----------------------------------------------------------------------------------------

static const struct toy_shape PLAIN = {.full = true};
static const int32_t PROMPT[10] = {5, 9, 3, 7, 20, 11, 30, 2, 8, 4};

static struct gyre_request ask(const struct world *w, int64_t n_prompt, int64_t max_tokens) {
    struct gyre_request q = gyre_request_default(w->g);
    q.prompt = PROMPT, q.n_prompt = n_prompt, q.max_tokens = max_tokens, q.ignore_eos = true;
    return q;
}

static void a_stop_id_is_the_last_token(void **state) {
    (void)state;
    struct record free_run = {0}, stopped = {0}, late = {0};
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 5, 20);
    submit(w.g, q, &free_run);
    finish_all(w.g);
    EXPECT(free_run.finish == GYRE_LENGTH && free_run.n_tokens == 20);
    int32_t stop = free_run.tokens[6];
    int first = 0;
    while (free_run.tokens[first] != stop)
        first++;
    q.stop_ids = &stop, q.n_stop_ids = 1;
    submit(w.g, q, &stopped);
    finish_all(w.g);
    EXPECT(stopped.finish == GYRE_STOP && stopped.n_tokens == first + 1 && stopped.tokens[first] == stop);
    q.min_tokens = 15; // before that it does not come at all
    submit(w.g, q, &late);
    finish_all(w.g);
    for (int i = 0; i < 15; i++)
        EXPECT(late.tokens[i] != stop);
    EXPECT(late.n_tokens > 15 || late.finish == GYRE_LENGTH);
    world_close(w);
}

static void a_step_is_started_before_the_last_is_collected(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 5, 20);
    struct record free_run = {0}, stopped = {0};
    submit(w.g, q, &free_run);
    for (int i = 0; i < 5; i++)
        poll_once(w.g);
    EXPECT_EQ(w.g->n_steps - w.g->n_collected, depth - 1);
    finish_all(w.g);
    EXPECT_EQ(w.g->n_steps, 20); // its length was known: no step too many
    int32_t stop = free_run.tokens[6];
    q.stop_ids = &stop, q.n_stop_ids = 1;
    submit(w.g, q, &stopped);
    while (!stopped.n_done)
        poll_once(w.g);
    // With one more token under way the sequence keeps its blocks, although its request is told that it has ended.
    EXPECT(stopped.finish == GYRE_STOP && stopped.tokens[stopped.n_tokens - 1] == stop);
    EXPECT_EQ(w.g->scheduler.leaving.n, depth - 1);
    EXPECT_EQ(engine_has_work(w.g), depth == 2);
    poll_once(w.g);
    EXPECT(w.g->scheduler.leaving.n == 0 && !engine_has_work(w.g));
    EXPECT_EQ(w.g->pool.groups[0].blocks.n_free, w.g->pool.groups[0].blocks.n_blocks);
    world_close(w);
}

/* A row with its logits is read until the next step is started, so that one waits. */
static void logits_are_still_there_when_they_are_handed_out(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 5, 6), asks_logits = ask(&w, 7, 6);
    asks_logits.want_last_logits = true;
    struct record beside = {0}, r = {0}, alone = {0};
    submit(w.g, q, &beside);
    for (int i = 0; i < 3; i++)
        poll_once(w.g);
    submit(w.g, asks_logits, &r);
    finish_all(w.g);
    run_alone(PLAIN, asks_logits, &alone);
    EXPECT(alone.logits_sum != 0);
    expect_same(&r, &alone, "logits");
    world_close(w);
}

static void eos_ends_unless_ignored(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 5, 30);
    struct gyre_logit_bias want_eos = {EOS, 50};
    q.logit_bias = &want_eos, q.n_logit_bias = 1;
    struct record ignored = {0}, judged = {0};
    submit(w.g, q, &ignored);
    q.ignore_eos = false;
    submit(w.g, q, &judged);
    finish_all(w.g);
    EXPECT(ignored.n_tokens == 30 && ignored.finish == GYRE_LENGTH);
    EXPECT(judged.n_tokens == 1 && judged.finish == GYRE_STOP && judged.tokens[0] == EOS);
    world_close(w);
}

static void a_prompt_is_scored_in_slices(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    EXPECT(w.g->info.max_batched_tokens > 10);
    w.g->scheduler.limits.max_rows = 3; // as a large vocabulary would have it
    struct gyre_request q = ask(&w, 10, 0);
    q.score_prompt = q.want_last_logits = true;
    struct record sliced = {0}, alone = {0};
    submit(w.g, q, &sliced);
    finish_all(w.g);
    run_alone(PLAIN, q, &alone);
    EXPECT(sliced.n_prompt == 10 && sliced.prompt_logprobs[0] < 0 && sliced.prompt_logprobs[9] == 0);
    expect_same(&sliced, &alone, "in slices of three rows");
    world_close(w);
}

static void what_cannot_be_computed_is_refused_in_words(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    const struct gyre_request good = ask(&w, 5, 5);
    int32_t bad_ids[] = {3, VOCAB}, negative[] = {-1};
    struct gyre_logit_bias nan_bias = {3, NAN}, far_bias = {VOCAB, 1};
    struct gyre_bad_sequence far_bad = {bad_ids, 2}, empty_bad = {bad_ids, 0};
    struct {
        const char *word;
        struct gyre_request q;
    } cases[27];
    int n = 0;
#define CASE(w, ...)                            \
    do {                                        \
        cases[n].word = w, cases[n].q = good;   \
        struct gyre_request *q = &cases[n++].q; \
        __VA_ARGS__;                            \
    } while (0)
    CASE("empty", q->n_prompt = 0);
    CASE("prompt: id 40", q->prompt = bad_ids, q->n_prompt = 2);
    CASE("prompt: id -1", q->prompt = negative, q->n_prompt = 1);
    CASE("maximum context length is 96 tokens", q->max_tokens = LONGEST);
    CASE("maximum context length is 96 tokens", q->max_tokens = INT64_MAX);
    CASE("maximum context length is 96 tokens", q->n_prompt = INT64_MAX);
    CASE("max_tokens", q->max_tokens = -2);
    CASE("min_tokens", q->min_tokens = 6);
    CASE("min_tokens", q->min_tokens = -1);
    CASE("temperature", q->temperature = NAN);
    CASE("temperature", q->temperature = -1);
    CASE("temperature", q->temperature = INFINITY);
    CASE("top_p", q->top_p = 1.5f);
    CASE("min_p", q->min_p = -0.1f);
    CASE("top_k", q->top_k = -3);
    CASE("repetition_penalty", q->repetition_penalty = 0);
    CASE("presence_penalty", q->presence_penalty = NAN);
    CASE("frequency_penalty", q->frequency_penalty = INFINITY);
    CASE("logit_bias", q->logit_bias = &nan_bias, q->n_logit_bias = 1);
    CASE("logit_bias", q->logit_bias = &far_bias, q->n_logit_bias = 1);
    CASE("stop_token_ids", q->stop_ids = bad_ids, q->n_stop_ids = 2);
    CASE("top_logprobs", q->n_top_logprobs = VOCAB + 1);
    CASE("prompt_logprobs", q->n_prompt_top_logprobs = VOCAB + 1);
    CASE("allowed_token_ids", q->allowed_ids = bad_ids, q->n_allowed_ids = 2);
    CASE("bad_words", q->bad_sequences = &far_bad, q->n_bad_sequences = 1);
    CASE("bad_words", q->bad_sequences = &empty_bad, q->n_bad_sequences = 1);
    CASE("score_from", q->score_from = -1);
#undef CASE
    EXPECT_EQ(n, sizeof cases / sizeof cases[0]);
    for (int i = 0; i < n; i++) {
        struct gyre_error err;
        uint64_t id;
        if (gyre_submit(w.g, &cases[i].q, &id, &err) == 0 || !strstr(err.text, cases[i].word))
            fail_msg("case %d: no word of \"%s\" in \"%s\"", i, cases[i].word, err.text);
    }
    EXPECT(!gyre_busy(w.g));
    struct record r = {0};
    submit(w.g, good, &r);
    finish_all(w.g);
    EXPECT_EQ(r.n_tokens, 5);
    world_close(w);
}

static void a_fault_of_one_request_leaves_the_others(void **state) {
    (void)state;
    static const int32_t poisoned[] = {6, 39, 6};
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 6, 20), bad = q;
    struct gyre_logit_bias never = {39, -1000};
    bad.prompt = poisoned, bad.n_prompt = 3, bad.score_prompt = true;
    q.logit_bias = &never, q.n_logit_bias = 1;
    struct record r = {0}, alone = {0}, failed = {0};
    toy_faults.bad_token = 39;
    submit(w.g, q, &r);
    submit(w.g, bad, &failed);
    finish_all(w.g);
    toy_faults.bad_token = -1;
    run_alone(PLAIN, q, &alone);
    expect_same(&r, &alone, "beside a request that failed");
    EXPECT(failed.finish == GYRE_FAILED && failed.n_tokens == 0 && failed.n_prompt == 1);
    EXPECT(strstr(failed.error, "not finite"));
    world_close(w);
}

static void a_request_that_leaves_no_token_fails_by_its_own_fault(void **state) {
    (void)state;
    static const int32_t eos[] = {EOS};
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 6, 20);
    q.allowed_ids = eos, q.n_allowed_ids = 1, q.min_tokens = 3, q.ignore_eos = false;
    struct gyre_error err;
    uint64_t id;
    EXPECT_OK(gyre_submit(w.g, &q, &id, &err), err);
    struct gyre_event e;
    while (gyre_poll(w.g, &e, 1) == 0)
        ;
    EXPECT(e.kind == GYRE_DONE && e.finish == GYRE_FAILED && e.error_of_request &&
           strstr(e.error, "allowed_token_ids"));
    q.min_tokens = 0;
    struct record r = {0};
    submit(w.g, q, &r);
    finish_all(w.g);
    EXPECT(r.finish == GYRE_STOP && r.tokens[0] == EOS);
    world_close(w);
}

static void a_broken_device_ends_everything_once(void **state) {
    (void)state;
    for (int at_collect = 0; at_collect < 2; at_collect++) {
        struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
        struct record r[5] = {0};
        for (int i = 0; i < 5; i++)
            submit(w.g, ask(&w, 3 + i, 30), &r[i]);
        *(at_collect ? &toy_faults.collect_fails_in : &toy_faults.run_fails_in) = 4;
        finish_all(w.g);
        for (int i = 0; i < 5; i++) {
            EXPECT(r[i].n_done == 1 && r[i].finish == GYRE_FAILED && strstr(r[i].error, "the toy broke"));
            EXPECT_EQ(r[i].n_tokens, i >= 2 ? 0 : depth == 2 && !at_collect ? 2 : 3); // what was in flight is lost
        }
        struct gyre_request q = ask(&w, 3, 3);
        struct gyre_error err;
        uint64_t id;
        EXPECT(gyre_submit(w.g, &q, &id, &err) != 0 && strstr(err.text, "the toy broke"));
        world_close(w);
    }
}

/* As a server's thread hands on what came while a step was failing. */
static void who_comes_while_the_device_breaks_is_told_too(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
    struct record r = {0};
    submit(w.g, ask(&w, 3, 30), &r);
    fail(&w.g->failed, ERR_DEVICE, "the toy broke");
    for (int i = 0; i < 100 && r.n_done == 0; i++)
        poll_once(w.g);
    EXPECT(r.n_done == 1 && r.finish == GYRE_FAILED && strstr(r.error, "the toy broke"));
    EXPECT(!gyre_busy(w.g));
    world_close(w);
}

static int commits_left;
static enum status commit_until_it_breaks(struct loaded *l, int group, int *n, struct error *err) {
    (void)l, (void)group;
    if (commits_left-- > 0)
        return OK;
    *n = 0;
    return fail(err, ERR_DEVICE, "the toy broke when it was asked for memory");
}

/* It is not told as a want of memory, which would pass. */
static void a_device_that_breaks_when_asked_for_memory_is_told_as_broken(void **state) {
    (void)state;
    struct toy_shape shape = PLAIN;
    shape.vocab_size = VOCAB;
    static struct backend_ops ops;
    struct error err;
    for (int commits = 0, n_opened = 0; commits < 40; commits++) {
        struct world w = {.program = toy_program(&shape)};
        struct engine_model model = {w.program, LONGEST, -1, NULL, 0};
        struct gyre_options options = {.backend = &ops, .max_seqs = 2, .block_size = 4};
        struct record r[2] = {0};
        ops = *toy_of_depth(depth);
        ops.commit_cache = commit_until_it_breaks;
        commits_left = commits;
        if (engine_open(&options, &model, &w.g, &err) == OK) {
            for (int i = 0; i < 2; i++)
                submit(w.g, ask(&w, 3, LONGEST - 3), &r[i]);
            finish_all(w.g);
            for (int i = 0; i < 2; i++)
                EXPECT(r[i].n_done == 1 &&
                       (r[i].finish != GYRE_FAILED || strstr(r[i].error, "the toy broke when it was asked")));
            EXPECT_EQ(r[0].finish == GYRE_FAILED, commits_left < 0);
            n_opened++;
        } else {
            EXPECT(strstr(err.text, "the toy broke when it was asked"));
        }
        EXPECT(commits > 0 || n_opened == 0);
        world_close(w);
    }
}

/* What a broken device left in the host's memory is nobody's answer. */
static void a_device_that_breaks_while_logits_are_fetched_hands_out_none(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
    struct gyre_request q = ask(&w, 6, 20);
    struct record asks = {0}, beside = {0};
    q.want_last_logits = true;
    submit(w.g, q, &asks);
    submit(w.g, ask(&w, 5, 20), &beside);
    toy_faults.logits_fail_in = 1;
    finish_all(w.g);
    EXPECT(asks.n_done == 1 && asks.finish == GYRE_FAILED && asks.n_prompt == 0 &&
           strstr(asks.error, "logits were fetched"));
    EXPECT(beside.n_done == 1 && beside.finish == GYRE_FAILED && strstr(beside.error, "logits were fetched"));
    world_close(w);
}

static void cancelling_voids_what_was_not_handed_out(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 1});
    struct record r[3] = {0};
    uint64_t id[3];
    for (int i = 0; i < 3; i++)
        id[i] = submit(w.g, ask(&w, 4, 10), &r[i]);
    struct gyre_event e;
    for (int i = 0; i < 3; i++) {
        while (gyre_poll(w.g, &e, 1) == 0)
            ;
        record_event(e.user, &e);
    }
    gyre_cancel(w.g, id[0]); // running
    gyre_cancel(w.g, id[2]); // waiting
    gyre_cancel(w.g, id[2]);
    gyre_cancel(w.g, 0);
    gyre_cancel(w.g, 1234567);
    EXPECT_EQ(gyre_poll(w.g, &e, 1), 1);
    EXPECT(e.kind == GYRE_DONE && e.user == &r[0] && e.finish == GYRE_CANCELLED);
    record_event(e.user, &e);
    gyre_cancel(w.g, id[0]); // gone
    finish_all(w.g);
    EXPECT(r[0].n_tokens == 3 && r[2].n_tokens == 0 && r[2].finish == GYRE_CANCELLED && r[2].n_done == 1);
    EXPECT(r[1].n_tokens == 10 && r[1].finish == GYRE_LENGTH);
    world_close(w);
}

/* A block of an answer can be reused once its last token has been computed; the last token of all was not. */
static void a_conversation_computes_its_past_once(void **state) {
    (void)state;
    static const struct toy_shape shapes[] = {
        {.full = true}, {.full = true, .recurrent = true}, {.recurrent = true}, {.window = 9}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w = world_open(shapes[i], (struct gyre_options){.block_size = 4});
        int32_t text[LONGEST];
        int n = 6, n_before = 0;
        memcpy(text, PROMPT, 6 * sizeof *text);
        for (int turn = 0; turn < 5; turn++) {
            struct gyre_request q = ask(&w, n, 8);
            struct record r = {0}, alone = {0};
            q.prompt = text;
            submit(w.g, q, &r);
            finish_all(w.g);
            run_alone(shapes[i], q, &alone);
            expect_same(&r, &alone, "in a conversation");
            EXPECT_EQ(r.timing.n_reused, n_before / 4 * 4);
            for (int k = 0; k < r.n_tokens; k++)
                text[n++] = r.tokens[k];
            n_before = n - 1;
            for (int k = 0; k < 3; k++)
                text[n++] = PROMPT[(turn + k) % 10];
        }
        world_close(w);
    }
}

/* Tokens reused of a prompt of n tokens, and that they changed nothing. */
static int64_t reused(struct world *w, struct toy_shape shape, const int32_t *prompt, int n, const char *salt) {
    struct gyre_request q = ask(w, 1, 6);
    struct record r = {0}, alone = {0};
    q.prompt = prompt, q.n_prompt = n, q.cache_salt = salt;
    submit(w->g, q, &r);
    finish_all(w->g);
    run_alone(shape, q, &alone);
    expect_same(&r, &alone, "with a remembered beginning");
    return r.timing.n_reused;
}

static void a_beginning_seen_before_is_not_computed_again(void **state) {
    (void)state;
    static const struct toy_shape shapes[] = {
        {.full = true}, {.full = true, .window = 11}, {.latent = true}, {.window = 11}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w = world_open(shapes[i], (struct gyre_options){.block_size = 8, .max_batched_tokens = 64});
        int32_t text[60];
        for (int k = 0; k < 60; k++)
            text[k] = 2 + (k * 7 + k / 3) % (VOCAB - 2);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 40);
        EXPECT_EQ(reused(&w, shapes[i], text, 40, NULL), 32); // one token at least is computed, in whole blocks
        EXPECT_EQ(reused(&w, shapes[i], text, 60, NULL), 40);
        EXPECT_EQ(reused(&w, shapes[i], text, 60, NULL), 56);
        text[20]++; // other text from the third block on
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 16);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, "tenant a"), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, "tenant b"), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, "tenant a"), 40);
        world_close(w);
    }
}

/* The window's blocks are a ring: of a long text the last ones are there, and a hit needs no more. */
static void a_hit_needs_only_the_last_window(void **state) {
    (void)state;
    static const struct toy_shape shapes[] = {
        {.window = 11}, {.full = true, .window = 11}, {.window = 11, .recurrent = true}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w =
            world_open(shapes[i], (struct gyre_options){.block_size = 8, .max_batched_tokens = 8, .max_seqs = 1});
        int32_t text[88];
        for (int k = 0; k < 88; k++)
            text[k] = 2 + (k * 7 + k / 3) % (VOCAB - 2);
        for (int g = 0; g < w.g->pool.n_groups; g++)
            if (w.g->pool.groups[g].window)
                EXPECT_EQ(w.g->pool.groups[g].blocks.n_blocks,
                          4); // of 11 that 88 tokens fill: 10 + 8 positions, anywhere
        EXPECT_EQ(reused(&w, shapes[i], text, 81, NULL), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 81, NULL), 80);
        EXPECT_EQ(reused(&w, shapes[i], text, 88, NULL), 80);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 0); // there the window is gone
        world_close(w);
    }
}

/* Tokens that the steps computed until all requests were done. */
static int64_t computed_by_all(struct gyre *g) {
    int64_t n = 0;
    while (gyre_busy(g)) {
        int64_t before = g->n_steps;
        poll_once(g);
        EXPECT(g->n_steps <= before + 1);
        n += g->n_steps > before ? g->scheduler.n_step_tokens : 0;
    }
    return n;
}

/* Eight answers to one prompt of 45 tokens, each drawn with a seed of its own, and a ninth that parts from it at 42, in
 * the sixth block of 8: the prompt is computed once. With recurrent state all go on from the checkpoint at 40. Where a
 * step takes 16 or 32 tokens the ninth does not wait for the 10 that are not there after 32. */
static void many_answers_to_one_prompt_compute_it_once(void **state) {
    (void)state;
    enum { N = 8, P = 45, ANSWER = 6 };
    static const struct toy_shape shapes[] = {{.full = true},
                                              {.full = true, .window = 11},
                                              {.latent = true},
                                              {.window = 3},
                                              {.full = true, .recurrent = true}};
    int32_t text[P], other[P];
    for (int k = 0; k < P; k++)
        text[k] = other[k] = 2 + (k * 7 + k / 3) % (VOCAB - 2);
    other[42]++;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int chunk = 16; chunk <= 64; chunk *= 2) {
            struct world w = world_open(
                shapes[i], (struct gyre_options){.block_size = 8, .max_batched_tokens = chunk, .max_seqs = 16});
            struct record r[N + 1] = {0};
            struct gyre_request q[N + 1];
            for (int k = 0; k <= N; k++) {
                q[k] = ask(&w, 1, ANSWER);
                q[k].prompt = k < N ? text : other, q[k].n_prompt = P, q[k].temperature = 1, q[k].seed = (uint64_t)k;
                submit(w.g, q[k], &r[k]);
            }
            int ninth = shapes[i].recurrent ? 40 : chunk == 64 ? 42 : 32;
            int64_t computed = computed_by_all(w.g), answers = (N + 1) * (ANSWER - 1);
            int64_t surplus = computed - answers - (shapes[i].recurrent ? P + N * (P - 40) : P + (N - 1) + (P - ninth));
            EXPECT(surplus >= 0 &&
                   surplus <= (depth > 1 ? N + 1 : 0)); // a step ahead, a token may be computed for nothing
            for (int k = 0; k <= N; k++) {
                struct record alone = {0};
                run_alone(shapes[i], q[k], &alone);
                expect_same(&r[k], &alone, "of many answers to one prompt");
                EXPECT_EQ(r[k].timing.n_reused, k == 0 ? 0 : k == N ? ninth : shapes[i].recurrent ? 40 : P - 1);
            }
            world_close(w);
        }
}

static enum gyre_cache_miss miss(struct world *w, const int32_t *prompt, int n, const char *salt, bool scored) {
    struct gyre_request q = ask(w, 1, 2);
    struct record r = {0};
    q.prompt = prompt, q.n_prompt = n, q.cache_salt = salt, q.score_prompt = scored;
    submit(w->g, q, &r);
    finish_all(w->g);
    return r.timing.cache_miss;
}

static void a_miss_says_why(void **state) {
    (void)state;
    struct gyre_options tiny = {.block_size = 8, .max_batched_tokens = 64, .kv_cache_bytes = 8 * LONGEST};
    struct world w = world_open(PLAIN, tiny);
    int32_t text[80], other[80];
    for (int k = 0; k < 80; k++)
        text[k] = 2 + k % 30, other[k] = 2 + (k * 11) % 31;
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_NEW);
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_NONE);
    EXPECT_EQ(miss(&w, text, 41, NULL, true), GYRE_MISS_SCORED);
    EXPECT_EQ(miss(&w, text, 50, NULL, false), GYRE_MISS_NEW); // the sixth block
    EXPECT_EQ(miss(&w, text, 48, NULL, false), GYRE_MISS_NONE);
    EXPECT_EQ(miss(&w, text, 8, NULL, false), GYRE_MISS_SHORT);
    EXPECT_EQ(miss(&w, text, 20, "a tenant", false), GYRE_MISS_SALT);
    EXPECT_EQ(miss(&w, other, 78, NULL, false), GYRE_MISS_NEW); // 10 of the 12 blocks
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_EVICTED);
    EXPECT_EQ(miss(&w, text, 20, "a tenant", false), GYRE_MISS_EVICTED);
    world_close(w);

    // Two texts of 40 tokens take the window's blocks, of which there are few, and not those of full attention.
    w = world_open((struct toy_shape){.full = true, .window = 3},
                   (struct gyre_options){.block_size = 8, .max_batched_tokens = 8, .max_seqs = 1});
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_NEW);
    EXPECT_EQ(miss(&w, other, 41, NULL, false), GYRE_MISS_NEW);
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_WINDOW);
    world_close(w);

    tiny.no_prefix_cache = true;
    w = world_open(PLAIN, tiny);
    EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_DISABLED);
    world_close(w);
    for (int m = GYRE_MISS_NONE; m <= GYRE_MISS_CHECKPOINT; m++)
        EXPECT(gyre_cache_miss_name((enum gyre_cache_miss)m));
}

static void what_was_evicted_is_computed_again(void **state) {
    (void)state;
    struct toy_shape shape = {.full = true};
    struct world w = world_open(
        shape, (struct gyre_options){.block_size = 8, .max_batched_tokens = 64, .kv_cache_bytes = 8 * LONGEST});
    int32_t text[80], other[80];
    for (int k = 0; k < 80; k++)
        text[k] = 2 + k % 30, other[k] = 2 + (k * 11) % 31;
    EXPECT_EQ(reused(&w, shape, text, 41, NULL), 0);
    EXPECT_EQ(reused(&w, shape, other, 70, NULL), 0); // 10 of 12 blocks: takes the end of the first text

    EXPECT_EQ(reused(&w, shape, text, 41, NULL), 16); // its front was evicted last
    world_close(w);
}

/* A state is known where the prompt ended, and where a second text parted from a first one, for a third. */
static void a_recurrent_model_goes_on_from_a_checkpoint(void **state) {
    (void)state;
    static const struct toy_shape shapes[] = {
        {.full = true, .recurrent = true}, {.recurrent = true}, {.window = 11, .recurrent = true}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct world w = world_open(shapes[i], (struct gyre_options){.block_size = 8, .max_batched_tokens = 64});
        int32_t text[60];
        for (int k = 0; k < 60; k++)
            text[k] = 2 + (k * 7 + k / 3) % (VOCAB - 2);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 40);
        EXPECT_EQ(miss(&w, text, 40, NULL, false), GYRE_MISS_CHECKPOINT);
        EXPECT_EQ(reused(&w, shapes[i], text, 40, NULL), 32);
        EXPECT_EQ(reused(&w, shapes[i], text, 60, NULL), 40);
        EXPECT_EQ(reused(&w, shapes[i], text, 60, NULL), 56);
        text[20]++; // other text from the third block on
        EXPECT_EQ(miss(&w, text, 41, NULL, false), GYRE_MISS_CHECKPOINT);
        text[20]++;
        EXPECT_EQ(reused(&w, shapes[i], text, 41, NULL), 16);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, "tenant"), 0);
        EXPECT_EQ(reused(&w, shapes[i], text, 41, "tenant"), 40);
        world_close(w);
    }
}

/* The order in which requests end that are submitted together, one running at a time. */
static void order_of_ends(enum gyre_policy policy, const int *lengths, const int *priorities, int n, int *order) {
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 1, .policy = policy});
    int at = 0;
    int32_t text[60] = {5};
    for (intptr_t i = 0; i < n; i++) {
        struct gyre_request q = ask(&w, 1, 4);
        struct gyre_error err;
        uint64_t id;
        q.prompt = text, q.n_prompt = lengths[i], q.priority = priorities[i], q.user = (void *)i; // NOLINT: a number
        EXPECT_OK(gyre_submit(w.g, &q, &id, &err), err);
    }
    while (gyre_busy(w.g)) {
        struct gyre_event e[8];
        for (int k = 0, got = gyre_poll(w.g, e, 8); k < got; k++)
            if (e[k].kind == GYRE_DONE)
                order[at++] = (int)(intptr_t)e[k].user;
    }
    EXPECT_EQ(at, n);
    world_close(w);
}

static void policies_decide_who_comes_first(void **state) {
    (void)state;
    static const int lengths[] = {30, 20, 3, 20, 8}, none[5] = {0}, some[5] = {3, 0, 3, -1, 0};
    static const int fcfs[] = {0, 1, 2, 3, 4}, sjf[] = {2, 4, 1, 3, 0}, by_priority[] = {3, 1, 4, 0, 2};
    int order[5];
    order_of_ends(GYRE_FCFS, lengths, none, 5, order);
    EXPECT(memcmp(order, fcfs, sizeof order) == 0);
    order_of_ends(GYRE_SJF, lengths, none, 5, order);
    EXPECT(memcmp(order, sjf, sizeof order) == 0);
    order_of_ends(GYRE_FCFS, lengths, some, 5, order);
    EXPECT(memcmp(order, by_priority, sizeof order) == 0);
}

static void a_more_important_request_takes_the_place_of_a_running_one(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 1});
    struct gyre_request q = ask(&w, 6, 40);
    struct record low = {0}, high = {0}, alone = {0};
    submit(w.g, q, &low);
    for (int i = 0; i < 10; i++)
        poll_once(w.g);
    EXPECT(low.n_tokens > 0);
    struct gyre_request urgent = q;
    urgent.priority = -1, urgent.max_tokens = 5;
    submit(w.g, urgent, &high);
    while (!high.n_done)
        poll_once(w.g);
    EXPECT(!low.n_done && w.g->scheduler.n_preempted == 1);
    finish_all(w.g);
    run_alone(PLAIN, q, &alone);
    expect_same(&low, &alone, "after it gave way");
    world_close(w);
}

/* Two long answers in a cache for one and a half: prompt tokens and answers are computed once if who gives way is
 * swapped. What is known of costs is held still: 100 us a token, and copies that cost nothing or very much. */
static void who_gives_way_is_swapped_where_that_is_cheaper(void **state) {
    (void)state;
    static const struct toy_shape shapes[] = {
        {.full = true}, {.full = true, .window = 10}, {.full = true, .recurrent = true}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int cheap = 0; cheap < 2; cheap++) {
            struct world w = world_open(shapes[i], (struct gyre_options){.block_size = 8,
                                                                         .max_seqs = 2,
                                                                         .kv_cache_bytes = 2400,
                                                                         .swap_bytes = 2400,
                                                                         .max_batched_tokens = 16,
                                                                         .no_prefix_cache = true});
            while (w.g->pool.groups[0].blocks.n_free > 18) // of 24 for two
                kv_pool_take_block(&w.g->pool, 0);
            const struct step_cost cost = {
                .weight = {0, 100 * 1e2, 0}, .n_steps = 1000, .us_a_copied_mb = cheap ? 0 : 1e9};
            struct record first = {0}, second = {0}, alone = {0};
            struct gyre_request q = ask(&w, 10, 80);
            submit(w.g, q, &first);
            submit(w.g, q, &second);
            int64_t computed = 0;
            while (gyre_busy(w.g)) {
                struct gyre_event e[8];
                int64_t before = w.g->n_steps;
                w.g->scheduler.cost = cost;
                for (int k = 0, n = gyre_poll(w.g, e, 8); k < n; k++)
                    record_event(e[k].user, &e[k]);
                computed += w.g->n_steps > before ? w.g->scheduler.n_step_tokens : 0;
            }
            EXPECT(w.g->scheduler.n_preempted > 0 &&
                   w.g->scheduler.n_swapped == (cheap ? w.g->scheduler.n_preempted : 0));
            EXPECT(cheap ? computed <= 2 * 89 + 2 * depth : computed > 2 * 89 + 30);
            run_alone(shapes[i], q, &alone);
            expect_same(&first, &alone, "beside one that gave way");
            expect_same(&second, &alone, "after it gave way");
            world_close(w);
        }
}

/* Short prompts keep coming; the long one still ends, after as many of them as it has tokens at most. */
static void a_long_prompt_does_not_starve_among_short_ones(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 1, .policy = GYRE_SJF});
    struct record longest = {0};
    static struct record shorts[200];
    memset(shorts, 0, sizeof shorts);
    int32_t text[60] = {5};
    struct gyre_request q = ask(&w, 1, 2);
    q.prompt = text, q.n_prompt = 60;
    struct record first = {0};
    submit(w.g, ask(&w, 2, 2), &first);
    submit(w.g, q, &longest);
    int n = 0;
    while (!longest.n_done && n < 200) {
        submit(w.g, ask(&w, 2, 2), &shorts[n++]);
        int before = n - 1;
        while (!shorts[before].n_done && !longest.n_done)
            poll_once(w.g);
    }
    EXPECT(longest.n_done && n > 5 && n <= 62);
    finish_all(w.g);
    world_close(w);
}

static void the_cache_is_as_large_as_was_said(void **state) {
    (void)state;
    struct toy_shape shape = {.vocab_size = VOCAB, .full = true, .window = 10, .recurrent = true};
    struct program *p = toy_program(&shape);
    struct engine_model model = {p, LONGEST, -1, NULL, 0};
    struct on_device at;
    struct error err;
    EXPECT_OK(on_device_load(&backend_toy, (struct how){0}, p, &at, &err), err);
    for (int64_t bytes = 1; bytes < 200000; bytes = bytes * 5 / 4 + 1) {
        struct gyre_options o = {
            .backend = &backend_toy, .kv_cache_bytes = bytes, .block_size = 8, .max_batched_tokens = 16};
        struct engine_sizes s;
        if (engine_size(&o, &model, at.loaded, &s, &err) != OK)
            continue;
        int64_t total = 64 * (int64_t)s.cache.n_states;
        for (int g = 0; g < p->n_groups; g++)
            total += 64 * (int64_t)s.cache.n_blocks[g];
        EXPECT(total == s.kv_cache_bytes && total <= bytes && s.max_model_len <= LONGEST && s.cache.n_states <= 48);
        struct kv_pool pool;
        struct kv_pool_options po = {.groups = p->groups,
                                     .n_groups = p->n_groups,
                                     .block_size = 8,
                                     .max_chunk = 16,
                                     .n_states = s.cache.n_states};
        memcpy(po.n_blocks, s.cache.n_blocks, sizeof po.n_blocks);
        kv_pool_init(&pool, &po);
        EXPECT(kv_pool_could_hold(&pool, s.max_model_len));
        kv_pool_release(&pool);
        if (s.max_model_len == LONGEST)
            EXPECT(s.kv_cache_tokens >= LONGEST);
        o.max_model_len = s.max_model_len + 1;
        struct engine_sizes t;
        if (engine_size(&o, &model, at.loaded, &t, &err) == OK) // states made room
            EXPECT(t.max_model_len == o.max_model_len && t.kv_cache_bytes <= bytes &&
                   t.cache.n_states < s.cache.n_states);
        else if (o.max_model_len > LONGEST)
            EXPECT(strstr(err.text, "max_model_len"));
        else { // whole MiB, of which what is wanted is more
            long long takes, has;
            EXPECT_EQ(sscanf(err.text, "max_model_len: %*[^0-9]%*d tokens takes %lld MiB, and it may have %lld", &takes,
                             &has),
                      2);
            EXPECT(takes > has);
        }
    }
    on_device_close(&at);
    program_free(p);
}

static void the_memory_plan_adds_up(void **state) {
    (void)state;
    struct world w = world_open((struct toy_shape){.full = true, .window = 10, .latent = true, .recurrent = true},
                                (struct gyre_options){.block_size = 8});
    struct memory_plan plan;
    int64_t total = 0, cache = 0;
    memory_plan(w.g, &plan);
    for (int i = 0; i < plan.n_parts; i++) {
        total += plan.parts[i].n * plan.parts[i].each;
        if (strstr(plan.parts[i].what, "cache") || strstr(plan.parts[i].what, "state"))
            cache += plan.parts[i].n * plan.parts[i].each;
    }
    EXPECT(plan.n_parts == 5 && total == plan.total);
    EXPECT_EQ(cache, gyre_info(w.g)->kv_cache_bytes);
    world_close(w);
}

static void options_out_of_range_are_named(void **state) {
    (void)state;
    struct program *p = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true});
    struct engine_model model = {p, LONGEST, -1, NULL, 0};
    static const struct {
        const char *word;
        struct gyre_options o;
    } cases[] = {
        {"block_size: 48", {.block_size = 48}},
        {"max_seqs", {.max_seqs = -1}},
        {"max_batched_tokens", {.max_batched_tokens = -5}},
        {"max_model_len: 97", {.max_model_len = 97}},
        {"kv_cache_bytes", {.kv_cache_bytes = -1}},
        {"does not fit", {.kv_cache_bytes = 8}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gyre_options o = cases[i].o;
        struct gyre *g;
        struct error err;
        o.backend = &backend_toy;
        EXPECT(engine_open(&o, &model, &g, &err) != OK && g == NULL);
        if (!strstr(err.text, cases[i].word))
            fail_msg("\"%s\" does not say %s", err.text, cases[i].word);
    }
    program_free(p);
}

/* 64 blocks, of which each of 8 requests takes 8 at once: none is kept waiting for what is kept for those that run. */
static void as_many_as_the_cache_was_made_for_run_together(void **state) {
    (void)state;
    enum { N = 8, LONG = 57, LEN = 64 };
    struct world w = world_open((struct toy_shape){.full = true}, (struct gyre_options){.max_batched_tokens = 2 * LEN,
                                                                                        .max_seqs = N,
                                                                                        .block_size = 8,
                                                                                        .max_model_len = LEN,
                                                                                        .no_prefix_cache = true});
    static struct record records[N];
    static int32_t prompt[LONG];
    struct gyre_request q = gyre_request_default(w.g);
    memset(records, 0, sizeof records);
    q.prompt = prompt, q.n_prompt = LONG, q.max_tokens = LEN - LONG, q.ignore_eos = true;
    for (int i = 0; i < N; i++) {
        prompt[0] = i;
        submit(w.g, q, &records[i]);
    }
    while (!records[0].n_done)
        poll_once(w.g);
    for (int i = 0; i < N; i++)
        EXPECT(records[i].n_tokens > 0);
    finish_all(w.g);
    EXPECT_EQ(w.g->scheduler.n_preempted, 0);
    world_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_company_changes_nothing),
        cmocka_unit_test(a_stop_id_is_the_last_token),
        cmocka_unit_test(a_step_is_started_before_the_last_is_collected),
        cmocka_unit_test(logits_are_still_there_when_they_are_handed_out),
        cmocka_unit_test(eos_ends_unless_ignored),
        cmocka_unit_test(a_prompt_is_scored_in_slices),
        cmocka_unit_test(what_cannot_be_computed_is_refused_in_words),
        cmocka_unit_test(a_fault_of_one_request_leaves_the_others),
        cmocka_unit_test(a_request_that_leaves_no_token_fails_by_its_own_fault),
        cmocka_unit_test(a_broken_device_ends_everything_once),
        cmocka_unit_test(who_comes_while_the_device_breaks_is_told_too),
        cmocka_unit_test(a_device_that_breaks_when_asked_for_memory_is_told_as_broken),
        cmocka_unit_test(a_device_that_breaks_while_logits_are_fetched_hands_out_none),
        cmocka_unit_test(cancelling_voids_what_was_not_handed_out),
        cmocka_unit_test(a_conversation_computes_its_past_once),
        cmocka_unit_test(a_beginning_seen_before_is_not_computed_again),
        cmocka_unit_test(a_hit_needs_only_the_last_window),
        cmocka_unit_test(many_answers_to_one_prompt_compute_it_once),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(what_was_evicted_is_computed_again),
        cmocka_unit_test(a_recurrent_model_goes_on_from_a_checkpoint),
        cmocka_unit_test(policies_decide_who_comes_first),
        cmocka_unit_test(a_more_important_request_takes_the_place_of_a_running_one),
        cmocka_unit_test(who_gives_way_is_swapped_where_that_is_cheaper),
        cmocka_unit_test(a_long_prompt_does_not_starve_among_short_ones),
        cmocka_unit_test(the_cache_is_as_large_as_was_said),
        cmocka_unit_test(as_many_as_the_cache_was_made_for_run_together),
        cmocka_unit_test(the_memory_plan_adds_up),
        cmocka_unit_test(options_out_of_range_are_named),
    };
    int failed = 0;
    for (depth = 1; depth <= MAX_STEPS_IN_FLIGHT; depth++)
        failed +=
            cmocka_run_group_tests_name(depth == 1 ? "one step at a time" : "steps that overlap", tests, NULL, NULL);
    return failed;
}
