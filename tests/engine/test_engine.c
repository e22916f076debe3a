/* test_engine.c - the engine and its scheduler on a backend whose next token is a hash of its context: whatever runs
 * beside it, a request gets the tokens that it gets alone. */
#include "engine_rig.h"

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
    int n = test_is_brief() ? 200 : 4000;
    for (int i = 0; i < n; i++)
        one_random_schedule(&tally);
    close_grammars();
    printf("%lld requests, %lld preempted (%lld to the host), %lld cancelled, %lld tokens reused, %lld held\n",
           (long long)tally.n_requests, (long long)tally.n_preempted, (long long)tally.n_swapped,
           (long long)tally.n_cancelled, (long long)tally.n_reused, (long long)tally.n_held);
    EXPECT(tally.n_preempted > n / 4 && tally.n_reused > n / 4);
    EXPECT(tally.n_swapped > n / 20 && tally.n_cancelled > n / 20);
    EXPECT(tally.n_held > 0 || test_is_brief()); // masks that are late: by the clock, one in 30 rounds or fewer
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
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_company_changes_nothing),
        cmocka_unit_test(a_stop_id_is_the_last_token),
        cmocka_unit_test(a_step_is_started_before_the_last_is_collected),
        cmocka_unit_test(logits_are_still_there_when_they_are_handed_out),
        cmocka_unit_test(eos_ends_unless_ignored),
        cmocka_unit_test(a_prompt_is_scored_in_slices),
    };
    return RUN_AT_EACH_DEPTH(tests);
}
