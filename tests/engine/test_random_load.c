/* test_random_load.c - 100,000 random requests on the toy backend, each compared with what the toy says of it alone;
 * 25,000 in make test-fast.
 *
 * The oracle is the backend itself with one block that holds everything and a plan of one sequence: no engine, no
 * scheduler, no pool, nothing shared. Small caches, so that sequences lose theirs; prompts that begin like earlier
 * prompts and answers; windows, recurrent state; cancels; pauses; priorities; penalties; guesses, in chains and trees;
 * steps that overlap and ones that do not; devices that give memory for the cache by need, and too little of it. After
 * every step the scheduler's lists, the pool and the prefix cache are checked against each other. */
#include "check.h"
#include "on_device.h"

#include "backend/toy/toy.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/draft/branches.h"
#include "engine/engine.h"

enum { A_WORLD = 250, AT_ONCE = 24, VOCAB = 48, EOS = 1, LONGEST = 64 };

static uint64_t counter;

/* Four a call of the generator. */
static uint32_t draw(void) {
    static struct philox four;
    if (counter++ % 4 == 0)
        four = philox4x32(test_seed(), counter, 9);
    return four.v[counter % 4];
}
static int below(int n) { return (int)(draw() % (uint32_t)n); }
static bool one_in(int n) { return below(n) == 0; }

// ---- what the toy says alone ------------------------------------------------------------------------------------

struct oracle {
    const struct program *program;
    struct on_device at;
    struct batch_plan plan;
};

static void oracle_open(struct oracle *o, const struct program *p) {
    struct cache_config cache = {.block_size = LONGEST, .n_states = 1};
    struct bucket bucket = {LONGEST, 1, 1};
    int width[MAX_CACHE_GROUPS];
    *o = (struct oracle){.program = p};
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        width[g] = cache.n_blocks[g] = 1;
    on_device_compile(&backend_toy, (struct how){0}, p, &cache, bucket, &o->at);
    batch_plan_init(&o->plan, bucket, p->n_groups, width);
    o->plan.n_seqs = o->plan.n_rows = 1;
}

static void oracle_close(struct oracle *o) {
    on_device_close(&o->at);
    batch_plan_release(&o->plan);
}

/* Computes tokens [from, n) and draws the next one. */
static int32_t oracle_next(struct oracle *o, const int32_t *tokens, int from, int n,
                           const struct sample_params *params) {
    struct batch_plan *plan = &o->plan;
    struct sample_result result;
    struct error err;
    plan->n_tokens = plan->query_start[1] = n - from;
    plan->seq_len[0] = plan->n_known[0] = n;
    for (int i = from; i < n; i++) {
        plan->token_id[i - from] = tokens[i];
        plan->position[i - from] = i;
    }
    plan->out_row[0] = n - from - 1;
    EXPECT_OK(backend_toy.run(o->at.exe, plan, params, &err), err);
    EXPECT_OK(backend_toy.collect(o->at.exe, &result, &err), err);
    return result.token;
}

// ---- a device that gives memory by need -------------------------------------------------------------------------

/* Of each group so many blocks have memory; the device has n_left more pieces of `piece` blocks. */
static struct {
    int n_blocks[MAX_CACHE_GROUPS], n_committed[MAX_CACHE_GROUPS], block_size, piece, n_left;
    int64_t n_refused, n_given_back;
} needy;

static enum status needy_alloc(struct loaded *l, const struct cache_config *config, struct error *err) {
    EXPECT(config->by_need);
    memcpy(needy.n_blocks, config->n_blocks, sizeof needy.n_blocks);
    memset(needy.n_committed, 0, sizeof needy.n_committed);
    needy.block_size = config->block_size;
    return backend_toy.alloc_cache(l, config, err);
}

static enum status needy_commit(struct loaded *l, int group, int *n, struct error *err) {
    int had = (needy.n_committed[group] + needy.piece - 1) / needy.piece, wanted = (*n + needy.piece - 1) / needy.piece;
    (void)l;
    EXPECT(*n >= 0 && *n <= needy.n_blocks[group]);
    needy.n_given_back += wanted < had;
    int got = MIN(wanted, had + needy.n_left);
    needy.n_left -= got - had;
    needy.n_committed[group] = *n = MIN(got * needy.piece, needy.n_blocks[group]);
    needy.n_refused += got < wanted;
    return got < wanted ? fail(err, ERR_MEMORY, "no memory") : OK;
}

static enum status needy_run(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                             struct error *err) {
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        for (int s = 0; plan->block_table[g] && s < plan->n_seqs; s++)
            for (int i = 0; i < plan->table_width[g] && i * needy.block_size < plan->seq_len[s]; i++)
                EXPECT(plan->block_table[g][s * plan->table_width[g] + i] < needy.n_committed[g]);
    return backend_toy.run(exe, plan, sample, err);
}

// ---- requests ---------------------------------------------------------------------------------------------------

struct job {
    struct gyre_request request;
    int32_t prompt[LONGEST], stop_id;
    int32_t got[LONGEST];
    int n_got, n_done;
    enum gyre_finish finish;
    int64_t n_reused;
    uint64_t id;
};

static bool ends(const struct gyre_request *q, int32_t token) {
    return (!q->ignore_eos && token == EOS) || (q->n_stop_ids > 0 && token == q->stop_ids[0]);
}

static struct sample_params params_for(const struct gyre_request *q, const int32_t *tokens, int n,
                                       const int32_t *banned) {
    struct sample_params p = sample_params_default();
    p.temperature = q->temperature;
    p.repetition_penalty = q->repetition_penalty;
    p.presence_penalty = q->presence_penalty;
    p.frequency_penalty = q->frequency_penalty;
    p.history = tokens;
    p.n_history = n;
    p.n_prompt = (int32_t)q->n_prompt;
    p.seed = q->seed;
    p.position = (uint64_t)n;
    if (n - q->n_prompt < q->min_tokens) {
        p.banned = banned;
        p.n_banned = 1 + (int32_t)q->n_stop_ids;
    }
    return p;
}

static void expect_what_the_toy_says(struct oracle *o, const struct job *j, int64_t max_tokens) {
    int32_t tokens[LONGEST], banned[] = {EOS, j->stop_id};
    const struct gyre_request *q = &j->request;
    int n = (int)q->n_prompt, computed = 0, n_want = 0;
    bool over = max_tokens == 0;
    memcpy(tokens, j->prompt, (size_t)n * sizeof *tokens);
    EXPECT_EQ(j->n_done, 1);
    while (!over && n_want < j->n_got) {
        struct sample_params p = params_for(q, tokens, n, banned);
        int32_t token = oracle_next(o, tokens, computed, n, &p);
        if (token != j->got[n_want])
            fail_msg("token %d of a request with a prompt of %lld is %d, and %d alone", n_want, (long long)q->n_prompt,
                     j->got[n_want], token);
        over = ++n_want == max_tokens || ends(q, token);
        computed = n;
        tokens[n++] = token;
    }
    EXPECT_EQ(n_want, j->n_got); // nothing behind the end
    bool cut = j->finish == GYRE_CANCELLED || (j->finish == GYRE_FAILED && needy.n_refused > 0);
    EXPECT(cut || over);
    EXPECT(cut || j->finish == (n > q->n_prompt && ends(q, tokens[n - 1]) ? GYRE_STOP : GYRE_LENGTH));
}

static void make_prompt(struct job *j, const struct job *earlier, int max_len) {
    int n = 0;
    if (earlier) {
        for (; n < earlier->request.n_prompt && n < max_len - 1; n++)
            j->prompt[n] = earlier->prompt[n];
        for (int i = 0; i < earlier->n_got && n < max_len - 1; i++)
            j->prompt[n++] = earlier->got[i];
        if (one_in(3))
            n = below(n + 1);
    }
    for (int more = 1 + below(one_in(5) ? max_len : 10); more > 0 && n < max_len - 1; more--)
        j->prompt[n++] = below(VOCAB);
    j->request.prompt = j->prompt;
    j->request.n_prompt = MAX(n, 1);
}

static void make_request(struct job *j, const struct job *earlier, int max_len) {
    *j = (struct job){.request = {.top_p = 1, .repetition_penalty = 1, .user = j}};
    struct gyre_request *q = &j->request;
    make_prompt(j, earlier, max_len);
    int room = max_len - (int)q->n_prompt;
    q->max_tokens = one_in(12) ? 0 : one_in(12) ? -1 : 1 + below(one_in(4) ? room : MIN(room, 8));
    q->ignore_eos = one_in(2);
    q->priority = one_in(4) ? below(3) - 1 : 0;
    q->cache_salt = one_in(8) ? "tenant" : NULL;
    if (one_in(4))
        j->stop_id = below(VOCAB), q->stop_ids = &j->stop_id, q->n_stop_ids = 1;
    if (q->max_tokens > 2 && one_in(5))
        q->min_tokens = below((int)q->max_tokens);
    if (one_in(5))
        q->temperature = 0.8f, q->seed = draw();
    if (one_in(6))
        q->repetition_penalty = 1.2f, q->presence_penalty = 0.3f, q->frequency_penalty = 0.2f;
}

// ---- a world of them --------------------------------------------------------------------------------------------

struct world {
    struct program *program;
    struct gyre *g;
    struct oracle oracle, drafts;
    int one_wrong_in; // of the guesses of a draft one in so many is made up; 0: nobody guesses
    struct job jobs[A_WORLD];
    int max_len, n_submitted, n_done;
};

struct tally {
    int64_t n_guessed, n_accepted, n_branches, n_taken, n_swapped, n_requests, n_steps, n_tokens, n_preempted,
        n_cancelled, n_reused, n_paused, n_refused, n_starved;
};

/* A batch of as many as may run finds memory for the first block of each, if there is any. */
static void check_first_blocks(const struct gyre *g, int n) {
    for (int i = 0; g->pool.commit && i < g->pool.n_groups; i++) {
        const struct kv_group *group = &g->pool.groups[i];
        EXPECT(!group->paged || needy.n_refused > 0 || group->blocks.n_blank >= MIN(n, group->blocks.n_blocks));
    }
}

/* What the toy will say, but for some of it, behind all that is known, guessed or expected. */
static int guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    struct world *w = context;
    const struct job *j = ((const struct request *)seq->owner)->asked.user;
    int32_t tokens[LONGEST + 1], banned[] = {EOS, j->stop_id};
    int n = seq->n_known, computed = 0, n_guesses = below(max + 1);
    memcpy(tokens, seq->tokens, (size_t)n * sizeof *tokens);
    for (; n < seq->n_tokens + n_guesses; n++) {
        struct sample_params p = params_for(&j->request, tokens, n, banned);
        tokens[n] = oracle_next(&w->drafts, tokens, computed, n, &p);
        computed = n;
        if (n >= seq->n_tokens)
            out[n - seq->n_tokens] = one_in(w->one_wrong_in) ? below(VOCAB) : tokens[n];
    }
    return n_guesses;
}

/* Other guesses, behind a parent's or beside them, of which some are what the toy will say. */
static void branch(void *context, const struct sequence *seq, struct branches *out) {
    struct world *w = context;
    const struct request *r = seq->owner;
    const struct job *j = r->asked.user;
    int32_t truth[LONGEST + 1], banned[] = {EOS, j->stop_id}, trunk_end = seq->n_tokens;
    memcpy(truth, seq->tokens, (size_t)seq->n_known * sizeof *truth);
    for (int n = seq->n_known, computed = 0; n < seq->capacity; computed = n++) {
        struct sample_params p = params_for(&j->request, truth, n, banned);
        truth[n] = oracle_next(&w->drafts, truth, computed, n, &p);
    }
    out->n = 0;
    for (int i = below(out->most + 1); i > 0; i--) {
        struct branch b = {.parent = below(out->n + 1)};
        const struct branch *parent = b.parent > 0 ? &out->at[b.parent - 1] : NULL;
        int32_t least = parent ? parent->first + 1 : r->first_guess, n = 1 + below(one_in(4) ? MOST_BRANCH_TOKENS : 4);
        b.first = least + below((parent ? parent->first + parent->n : trunk_end) - least + 1);
        for (int32_t at = r->first_guess; !parent && one_in(2) && at < trunk_end; at++)
            if (seq->tokens[at] != truth[at]) { // where the trunk is wrong
                b.first = at;
                break;
            }
        b.n = MIN(n, seq->capacity - 1 - b.first);
        for (int k = 0; k < b.n; k++)
            b.tokens[k] = one_in(3) ? below(VOCAB) : truth[b.first + k];
        if (b.n > 0)
            out->at[out->n++] = b;
    }
}

static void open_world(struct world *w) {
    static const int32_t eos[] = {EOS};
    static struct backend_ops toy;
    struct toy_shape shape = {.vocab_size = VOCAB,
                              .full = one_in(2),
                              .latent = one_in(4),
                              .recurrent = one_in(4),
                              .window = one_in(2) ? 1 + below(20) : 0};
    shape.full |= !shape.latent && !shape.recurrent && !shape.window;
    toy = backend_toy;
    toy.max_in_flight = 1 + below(2);
    needy.n_refused = 0;
    if (one_in(3)) {
        toy.alloc_cache = needy_alloc, toy.commit_cache = needy_commit, toy.run = needy_run;
        needy.piece = 1 + below(6);
        needy.n_left = one_in(2) ? 1 << 20 : 6 + below(12);
    }
    struct gyre_options o = {.backend = &toy,
                             .max_batched_tokens = one_in(4) ? 4 + below(8) : 16 + below(60),
                             .max_seqs = 1 + below(16),
                             .block_size = 1 << below(5),
                             .kv_cache_bytes = 700 + below(one_in(3) ? 12000 : 1800),
                             .no_prefix_cache = one_in(5),
                             .policy = one_in(2) ? GYRE_FCFS : GYRE_SJF,
                             .swap_bytes = one_in(2) ? below(3000) : 0};
    struct error err;
    if (one_in(2) && !shape.recurrent) // there is room for branches
        o.draft_topk = 2, o.draft_rows = 3 + below(12), o.guess_seqs = 1 + below(16);
    w->n_submitted = w->n_done = 0;
    w->program = toy_program(&shape);
    struct engine_model model = {w->program, LONGEST, -1, eos, 1};
    EXPECT_OK(engine_open(&o, &model, &w->g, &err), err);
    check_first_blocks(w->g, MIN(o.max_seqs, o.max_batched_tokens) + 1);
    w->max_len = (int)gyre_info(w->g)->max_model_len;
    oracle_open(&w->oracle, w->program);
    w->one_wrong_in = one_in(3) ? 1 + below(6) : 0;
    if (w->one_wrong_in == 0)
        return;
    oracle_open(&w->drafts, w->program);
    w->g->drafter = (struct drafter){.guess = guess, .context = w, .is_fixed = true};
    w->g->drafter.most_branches = engine_most_branches(&o);
    w->g->drafter.branch = w->g->drafter.most_branches > 0 ? branch : NULL;
    w->g->n_back = w->g->pool.n_back = backend_toy.max_back; // the toy's states always go back
    w->g->scheduler.always_swap = one_in(2);
    w->g->scheduler.limits.n_ahead = one_in(2) ? 1 + below(9) : 0;
}

static void close_world(struct world *w) {
    oracle_close(&w->oracle);
    if (w->one_wrong_in > 0)
        oracle_close(&w->drafts);
    gyre_close(w->g);
    program_free(w->program);
}

static struct job *recent_job(struct world *w, int n) {
    return &w->jobs[w->n_submitted - 1 - below(n < w->n_submitted ? n : w->n_submitted)];
}

static void submit_one(struct world *w) {
    struct job *j = &w->jobs[w->n_submitted];
    struct gyre_error err;
    make_request(j, w->n_submitted > 0 && !one_in(3) ? recent_job(w, 30) : NULL, w->max_len);
    EXPECT_OK(gyre_submit(w->g, &j->request, &j->id, &err), err);
    w->n_submitted++;
}

static void take_event(struct world *w, const struct gyre_event *e) {
    struct job *j = e->user;
    EXPECT(j->n_done == 0 && e->id == j->id);
    if (e->kind == GYRE_TOKEN) {
        EXPECT_EQ(e->position, j->request.n_prompt + j->n_got);
        j->got[j->n_got++] = e->token;
        return;
    }
    j->n_done++;
    j->finish = e->finish;
    j->n_reused = e->timing.n_reused;
    w->n_done++;
}

/* Of the step that was planned last; and sequences that went to one in theirs. */
static void count_branches(const struct world *w, struct tally *t) {
    const struct step *step = &w->g->steps[(w->g->n_steps + MAX_STEPS_IN_FLIGHT - 1) % MAX_STEPS_IN_FLIGHT];
    t->n_branches += w->g->n_steps > 0 ? step->n_branches : 0;
    for (int i = 0; i < w->g->scheduler.n_running; i++) {
        const struct branches *b = w->g->scheduler.running[i]->branches;
        t->n_taken += b && b->taken > 0;
    }
}

static void poll_and_check(struct world *w, struct tally *t) {
    struct gyre_event events[32];
    int n = gyre_poll(w->g, events, 32);
    count_branches(w, t);
    for (int i = 0; i < n; i++)
        take_event(w, &events[i]);
    const char *wrong = scheduler_check(&w->g->scheduler);
    if (wrong)
        fail_msg("%s", wrong);
}

/* An idle engine, long enough. */
static void give_back(struct world *w, struct tally *t) {
    t->n_refused += needy.n_refused;
    w->g->cache_idle_us = 1;
    while (engine_rest_us(w->g) > 0)
        ;
    engine_rest(w->g);
    const char *wrong = scheduler_check(&w->g->scheduler);
    if (wrong)
        fail_msg("given back: %s", wrong);
    for (int i = 0; w->g->pool.commit && i < w->g->pool.n_groups; i++)
        if (w->g->pool.groups[i].paged) {
            EXPECT_EQ(w->g->pool.groups[i].blocks.n_usable, needy.n_committed[i]);
            EXPECT(needy.n_committed[i] <= needy.piece);
        }
}

/* Some are paused for a while, and nobody for ever. */
static void pause_some(struct world *w, struct tally *t) {
    if (w->n_submitted > 0 && one_in(20)) {
        bool pauses = below(3) > 0;
        engine_pause(w->g, recent_job(w, AT_ONCE)->id, pauses);
        t->n_paused += pauses;
    }
    for (int i = 0; i < w->n_submitted && !engine_has_work(w->g); i++)
        engine_pause(w->g, w->jobs[i].id, false);
}

static void run_world(struct world *w, struct tally *t) {
    int pace = 1 + below(4);
    while (w->n_done < A_WORLD) {
        while (w->n_submitted < A_WORLD && w->n_submitted - w->n_done < AT_ONCE && one_in(pace))
            submit_one(w);
        if (w->n_submitted > 0 && one_in(40))
            gyre_cancel(w->g, recent_job(w, AT_ONCE)->id);
        if (one_in(60)) // a second has passed, and others gave memory back
            w->g->refused_us = 0, needy.n_left += below(2);
        pause_some(w, t);
        poll_and_check(w, t);
    }
    while (engine_has_work(w->g))
        poll_and_check(w, t);
    give_back(w, t);
    for (int i = 0; i < w->g->pool.n_groups; i++)
        EXPECT_EQ(w->g->pool.groups[i].blocks.n_free, w->g->pool.groups[i].blocks.n_usable);
    EXPECT_EQ(w->g->pool.states.n_free, w->g->pool.states.n_blocks);
    t->n_guessed += w->g->drafter.n_guessed;
    t->n_swapped += w->one_wrong_in > 0 ? w->g->scheduler.n_swapped : 0;
    t->n_accepted += w->g->drafter.n_accepted;
    t->n_steps += w->g->n_steps;
    t->n_preempted += w->g->scheduler.n_preempted;
    for (int i = 0; i < A_WORLD; i++) {
        const struct job *j = &w->jobs[i];
        const struct gyre_request *q = &j->request;
        expect_what_the_toy_says(&w->oracle, j, q->max_tokens < 0 ? w->max_len - q->n_prompt : q->max_tokens);
        t->n_requests++;
        t->n_tokens += j->n_got;
        t->n_cancelled += j->finish == GYRE_CANCELLED;
        t->n_starved += j->finish == GYRE_FAILED;
        t->n_reused += j->n_reused;
    }
}

static void each_request_gets_what_the_toy_says_alone(void **state) {
    (void)state;
    static struct world w;
    struct tally t = {0};
    int64_t start = clock_us(), n_requests = test_is_brief() ? 25000 : 100000;
    while (t.n_requests < n_requests) {
        open_world(&w);
        if (w.max_len >= 8)
            run_world(&w, &t);
        close_world(&w);
    }
    printf("%lld requests, %lld tokens, %lld steps, %lld preempted, %lld cancelled, %lld tokens reused, %.1f s\n",
           (long long)t.n_requests, (long long)t.n_tokens, (long long)t.n_steps, (long long)t.n_preempted,
           (long long)t.n_cancelled, (long long)t.n_reused, clock_seconds_since(start));
    printf("memory by need: refused %lld times, given back %lld times, %lld requests starved\n", (long long)t.n_refused,
           (long long)needy.n_given_back, (long long)t.n_starved);
    printf("drafts: %lld guesses, %lld accepted, %lld sequences swapped; %lld branches, %lld times one was taken\n",
           (long long)t.n_guessed, (long long)t.n_accepted, (long long)t.n_swapped, (long long)t.n_branches,
           (long long)t.n_taken);
    if (test_is_brief())
        return; // too few worlds to have met all of what follows
    EXPECT(t.n_refused > 100 && t.n_starved > 10 && t.n_starved < n_requests / 20);
    EXPECT(needy.n_given_back > 20);
    EXPECT(t.n_swapped > 100 && t.n_guessed > 20000 && t.n_accepted > 5000);
    EXPECT(t.n_branches > 5000 && t.n_taken > 500);
    EXPECT(t.n_guessed - t.n_accepted > 5000 && t.n_paused > 3000);
    EXPECT(t.n_preempted > 3000 && t.n_cancelled > 1000 && t.n_reused > 40000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_request_gets_what_the_toy_says_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
