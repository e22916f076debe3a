/* test_sched.c - what a step may cost: the cost model learns, and a prompt does not hold up running streams. */
#include "check.h"

#include "base/random.h"
#include "sched/scheduler.h"

#include <math.h>

static double uniform(uint64_t i, uint64_t stream) { return philox_uniform(test_seed(), i, stream); }

/* A machine whose steps cost what the model can say, and 5 % of noise. */
static double true_cost(struct step_work w, uint64_t i) {
    double us = 900 + 35 * (double)w.tokens + 0.02 * (double)w.pairs;
    return us * (1 + 0.05 * (uniform(i, 7) - 0.5));
}

static struct step_work some_work(uint64_t i) {
    int64_t tokens = 1 + (int64_t)(uniform(i, 1) * 500), context = (int64_t)(uniform(i, 2) * 4000);
    return (struct step_work){tokens, tokens * context + tokens * (tokens + 1) / 2};
}

/* The noise of large steps hides what a small one takes, so a fit is judged in the middle. */
static const struct step_work middling = {250, 250 * 2000};

static void the_cost_of_a_step_is_learned(void **state) {
    (void)state;
    struct step_cost c;
    step_cost_init(&c);
    EXPECT(step_cost_predict(&c, (struct step_work){100, 100}) == 0);
    for (uint64_t i = 0; i < 200; i++)
        step_cost_learn(&c, some_work(i), true_cost(some_work(i), i));
    for (uint64_t i = 1000; i < 1100; i++) {
        double want = true_cost(some_work(i), i), got = step_cost_predict(&c, some_work(i));
        if (fabs(got / want - 1) > 0.15)
            fail_msg("predicted %.0f us, took %.0f", got, want);
    }
}

static void a_slower_machine_is_noticed(void **state) {
    (void)state;
    struct step_cost c;
    step_cost_init(&c);
    for (uint64_t i = 0; i < 300; i++)
        step_cost_learn(&c, some_work(i), (i < 150 ? 1 : 3) * true_cost(some_work(i), i));
    double want = 3 * true_cost(middling, 999), got = step_cost_predict(&c, middling);
    EXPECT(fabs(got / want - 1) < 0.2);
}

/* Thousands of equal steps explore one direction only; the others must not blow up meanwhile. */
static void a_long_calm_does_not_spoil_the_fit(void **state) {
    (void)state;
    struct step_cost c;
    step_cost_init(&c);
    for (uint64_t i = 0; i < 100; i++)
        step_cost_learn(&c, some_work(i), true_cost(some_work(i), i));
    struct step_work calm = {8, 8 * 700};
    for (uint64_t i = 0; i < 100000; i++)
        step_cost_learn(&c, calm, true_cost(calm, i));
    double got = step_cost_predict(&c, calm), want = true_cost(calm, 5);
    EXPECT(isfinite(got) && fabs(got / want - 1) < 0.1);
    for (uint64_t i = 0; i < 60; i++)
        step_cost_learn(&c, some_work(i), true_cost(some_work(i), i));
    want = true_cost(middling, 999);
    if (!(fabs(step_cost_predict(&c, middling) / want - 1) < 0.3))
        fail_msg("predicted %.0f us, took %.0f", step_cost_predict(&c, middling), want);
}

/* Copies at 2 GB/s, in one step of ten; what the other steps taught stays. */
static void the_rate_of_copies_is_learned_apart(void **state) {
    (void)state;
    struct step_cost c;
    step_cost_init(&c);
    for (uint64_t i = 0; i < 1000; i++) {
        struct step_work w = some_work(i);
        double us = true_cost(w, i);
        if (i % 10 == 9)
            w.copied = (int64_t)(uniform(i, 3) * 300e6);
        step_cost_learn(&c, w, us + (double)w.copied / 2e9 * 1e6);
    }
    EXPECT(fabs(c.us_a_copied_mb / 500 - 1) < 0.1);
    struct step_work plain = some_work(5000), with = plain;
    with.copied = 100 << 20;
    EXPECT(fabs(step_cost_predict(&c, plain) / true_cost(plain, 5000) - 1) < 0.15);
    EXPECT(step_cost_predict(&c, with) > step_cost_predict(&c, plain) + 40000);
}

static void a_chunk_is_as_large_as_the_target_allows(void **state) {
    (void)state;
    struct step_cost c;
    step_cost_init(&c);
    EXPECT_EQ(step_cost_chunk(&c, (struct step_work){0}, 0, 512, 1000), 512); // nothing known
    for (uint64_t i = 0; i < 200; i++)
        step_cost_learn(&c, some_work(i), true_cost(some_work(i), i));
    struct step_work decoding = {8, 8 * 500};
    int last = 0;
    for (double target = 1000; target < 80000; target += 1000) {
        int n = step_cost_chunk(&c, decoding, 2000, 512, target);
        EXPECT(n >= 1 && n <= 512 && n >= last);
        struct step_work with = {decoding.tokens + n, decoding.pairs + n * 2000 + n * (n + 1) / 2};
        EXPECT(n == 1 || step_cost_predict(&c, with) <= target);
        last = n;
    }
    EXPECT_EQ(last, 512);
}

// ---- a scheduler with sequences, and a clock that is the cost -----------------------------------------------------

enum { STREAMS = 8, PROMPT = 8000, BLOCKS = 4096, BLOCK = 16 };

struct bench {
    struct arena arena;
    struct kv_pool pool;
    struct scheduler s;
    struct sequence streams[STREAMS], prompt;
    int64_t n_added;
};

static void add(struct bench *b, struct sequence *seq, int n_tokens) {
    sequence_init(seq, &b->arena, n_tokens + 2000, 1, BLOCK);
    for (int i = 0; i < n_tokens; i++)
        sequence_append(seq, i);
    seq->rank.order = b->n_added++; // first come, first served
    scheduler_add(&b->s, seq);
}

/* One step; what was computed to its end gets its next token. Returns the step's microseconds. */
static double step(struct bench *b, uint64_t i) {
    EXPECT(scheduler_plan(&b->s));
    EXPECT(!scheduler_check(&b->s));
    double us = true_cost(b->s.step_work, i);
    struct sequence *done[STREAMS + 1];
    int n = b->s.n_step;
    memcpy(done, b->s.step, (size_t)n * sizeof *done);
    scheduler_start(&b->s);
    scheduler_collect(&b->s, us);
    for (int k = 0; k < n; k++)
        if (done[k]->n_computed == done[k]->n_known)
            sequence_append(done[k], 7);
    return us;
}

/* The longest step of 8 running streams while a prompt of 8,000 tokens is computed beside them. */
static double longest_step(double itl_target_us) {
    struct bench *b = xcalloc(1, sizeof *b);
    const struct cache_group group = {.kind = CACHE_KV, .n_heads = 1, .k_dim = 1, .v_dim = 1, .n_layers = 1};
    kv_pool_init(&b->pool,
                 &(struct kv_pool_options){
                     .groups = &group, .n_groups = 1, .block_size = BLOCK, .max_chunk = 2048, .n_blocks = {BLOCKS}});
    scheduler_init(&b->s, &b->pool, (struct step_limits){2048, 16, 64, itl_target_us});
    for (int i = 0; i < STREAMS; i++)
        add(b, &b->streams[i], 100 + 50 * i);
    uint64_t i = 0;
    for (; i < 100; i++)
        step(b, i);
    add(b, &b->prompt, PROMPT);
    double longest = 0;
    int32_t before[STREAMS];
    for (int n_steps = 0; b->prompt.n_computed < PROMPT; i++, n_steps++) {
        for (int k = 0; k < STREAMS; k++)
            before[k] = b->streams[k].n_tokens;
        double us = step(b, i);
        for (int k = 0; k < STREAMS; k++)
            EXPECT_EQ(b->streams[k].n_tokens, before[k] + 1); // no stream misses a step
        longest = fmax(longest, us);
        EXPECT(n_steps < 4000);
    }
    scheduler_release(&b->s);
    kv_pool_release(&b->pool);
    arena_release(&b->arena);
    free(b);
    return longest;
}

static void a_long_prompt_does_not_stretch_running_streams(void **state) {
    (void)state;
    double unbounded = longest_step(0), bounded = longest_step(8000);
    printf("longest step of 8 streams beside an 8,000-token prompt: %.1f ms without a target, %.1f ms with one of 8\n",
           unbounded * 1e-3, bounded * 1e-3);
    EXPECT(unbounded > 40000);
    EXPECT(bounded < 8000 * 1.15); // noise of the machine, and of the fit
}

// ---- admission ------------------------------------------------------------------------------------------------------

static void a_25th_of_the_cache_is_kept_for_those_that_run(void **state) {
    (void)state;
    const struct cache_group group = {.kind = CACHE_KV, .n_heads = 1, .k_dim = 1, .v_dim = 1, .n_layers = 1};
    struct kv_pool pool;
    struct arena arena = {0};
    struct sequence runs, waits;
    kv_pool_init(&pool, &(struct kv_pool_options){
                            .groups = &group, .n_groups = 1, .block_size = 4, .max_chunk = 400, .n_blocks = {50}});
    sequence_init(&runs, &arena, 400, 1, 4);
    sequence_init(&waits, &arena, 400, 1, 4);
    EXPECT_EQ(kv_pool_extend(&pool, &runs, 160), OK); // 40 blocks: 10 are free, 2 of them not for newcomers
    EXPECT(kv_pool_has_room(&pool, &waits, 32, true) && !kv_pool_has_room(&pool, &waits, 33, true));
    EXPECT(kv_pool_has_room(&pool, &waits, 40, false) && !kv_pool_has_room(&pool, &waits, 41, false));
    EXPECT_EQ(kv_pool_extend(&pool, &runs, 200), OK); // it may have them all itself
    kv_pool_drop(&pool, &runs);
    pool.holds_all = true;
    EXPECT_EQ(kv_pool_extend(&pool, &runs, 160), OK);
    EXPECT(kv_pool_has_room(&pool, &waits, 40, true) && !kv_pool_has_room(&pool, &waits, 41, true));
    kv_pool_drop(&pool, &runs);
    kv_pool_release(&pool);
    arena_release(&arena);
}

// ---- sliding windows ------------------------------------------------------------------------------------------------

/* Random chunks of a long text in a pool of as many blocks as one sequence of any length was said to need. */
static void a_window_is_a_ring_of_as_many_blocks_as_was_said(void **state) {
    (void)state;
    for (uint64_t i = 0, rounds = test_is_brief() ? 60 : 200; i < rounds; i++) {
        int block = 1 << (int)(uniform(i, 11) * 6), window = 1 + (int)(uniform(i, 12) * 100),
            chunk = 1 + (int)(uniform(i, 13) * 70);
        const struct cache_group group = {
            .kind = CACHE_KV, .n_heads = 1, .k_dim = 1, .v_dim = 1, .window = window, .n_layers = 1};
        struct kv_pool pool;
        struct arena arena = {0};
        struct sequence seq;
        int n_blocks = (int)kv_group_blocks_for(&group, 1 << 24, block, chunk), most = 0;
        EXPECT(n_blocks <= (window - 1 + chunk) / block + 2);
        kv_pool_init(&pool, &(struct kv_pool_options){.groups = &group,
                                                      .n_groups = 1,
                                                      .block_size = block,
                                                      .max_chunk = chunk,
                                                      .n_blocks = {n_blocks},
                                                      .remember_tokens = i % 2 ? 3000 : 0});
        sequence_init(&seq, &arena, 3000, 1, block);
        for (int k = 0; k < 3000; k++)
            sequence_append(&seq, k);
        for (uint64_t k = 0; seq.n_computed < 3000; k++) {
            int n = 1 + (int)(uniform(i, 1000 + k) * chunk);
            n = n < 3000 - seq.n_computed ? n : 3000 - seq.n_computed;
            EXPECT_EQ(kv_pool_extend(&pool, &seq, seq.n_computed + n), OK);
            int first = seq.n_computed - window + 1 > 0 ? seq.n_computed - window + 1 : 0;
            EXPECT(seq.tables[0].first * block <= first &&
                   seq.tables[0].end * block >= seq.n_computed + n); // all that it sees
            most = seq.tables[0].end - seq.tables[0].first > most ? seq.tables[0].end - seq.tables[0].first : most;
            seq.n_computed += n;
            kv_pool_remember(&pool, &seq);
            EXPECT(!kv_pool_check(&pool, (struct sequence *[]){&seq}, 1));
        }
        EXPECT(most <= n_blocks);
        kv_pool_drop(&pool, &seq);
        EXPECT_EQ(pool.groups[0].blocks.n_free, n_blocks);
        kv_pool_release(&pool);
        arena_release(&arena);
    }
}

// ---- checkpoints of recurrent state ---------------------------------------------------------------------------------

/* A sequence of n tokens in a pool of recurrent state and two slots. */
static struct sequence *new_sequence(struct arena *arena, int n) {
    struct sequence *seq = arena_calloc(arena, 1, sizeof *seq);
    sequence_init(seq, arena, 64, 1, 4);
    for (int i = 0; i < n; i++)
        sequence_append(seq, i);
    return seq;
}

static void the_last_slot_comes_with_the_checkpoint_that_it_holds(void **state) {
    (void)state;
    const struct cache_group group = {.kind = CACHE_STATE, .state_floats = 1, .n_layers = 1};
    struct kv_pool pool;
    struct arena arena = {0};
    struct cache_copy copies[4];
    kv_pool_init(&pool, &(struct kv_pool_options){.groups = &group,
                                                  .n_groups = 1,
                                                  .block_size = 4,
                                                  .max_chunk = 16,
                                                  .max_copies = 4,
                                                  .n_states = 2,
                                                  .remember_tokens = 64});
    struct sequence *first = new_sequence(&arena, 9), *other = new_sequence(&arena, 1),
                    *again = new_sequence(&arena, 9);
    EXPECT_EQ(kv_pool_recall(&pool, first, 8), GYRE_MISS_NEW);
    EXPECT_EQ(kv_pool_tokens_to_checkpoint(&pool, first), 8);
    EXPECT_EQ(kv_pool_extend(&pool, first, 8), OK);
    int32_t own = first->state_slot;
    first->n_computed = 8;
    kv_pool_remember(&pool, first);
    EXPECT_EQ(kv_pool_take_copies(&pool, copies), 1);
    EXPECT(copies[0].group == STATE_SLOTS && copies[0].from == own && copies[0].to == 1 - own);
    kv_pool_drop(&pool, first);
    EXPECT_EQ(kv_pool_extend(&pool, other, 1), OK);
    EXPECT_EQ(other->state_slot, own); // not the one with the checkpoint
    EXPECT_EQ(kv_pool_recall(&pool, again, 8), GYRE_MISS_NONE);
    EXPECT_EQ(again->n_computed, 8);
    EXPECT_EQ(again->state_slot, 1 - own);
    EXPECT_EQ(kv_pool_take_copies(&pool, copies), 0);
    EXPECT(!kv_pool_check(&pool, (struct sequence *[]){other, again}, 2));
    kv_pool_drop(&pool, again);
    EXPECT_EQ(kv_pool_recall(&pool, again, 8), GYRE_MISS_EVICTED); // it was written on
    kv_pool_drop(&pool, other);
    EXPECT(!kv_pool_check(&pool, NULL, 0));
    kv_pool_release(&pool);
    arena_release(&arena);
}

/* Of a long prompt a step takes no more than a sequence may have, and has room for others beside it. */
static void a_sequence_takes_its_chunk_of_a_step(void **state) {
    (void)state;
    struct cache_group group = {.kind = CACHE_KV, .n_layers = 1};
    struct kv_pool_options o = {.groups = &group, .n_groups = 1, .block_size = 4, .max_chunk = 8, .max_copies = 64};
    o.n_blocks[0] = 32;
    struct kv_pool pool;
    struct scheduler s;
    struct arena a = {0};
    struct sequence seqs[3];
    kv_pool_init(&pool, &o);
    scheduler_init(&s, &pool, (struct step_limits){20, 4, 64, 0});
    for (int i = 0; i < 3; i++) {
        sequence_init(&seqs[i], &a, 32, 1, 4);
        for (int k = 0; k < 19; k++)
            sequence_append(&seqs[i], k);
        scheduler_add(&s, &seqs[i]);
    }
    for (int k = 0; k < 2; k++) {
        EXPECT(scheduler_plan(&s));
        EXPECT(seqs[0].n_scheduled == 8 && seqs[1].n_scheduled == 8 && seqs[2].n_scheduled == 4);
        scheduler_start(&s);
        scheduler_collect(&s, 0);
    }
    for (int i = 0; i < 3; i++)
        scheduler_remove(&s, &seqs[i]);
    scheduler_release(&s);
    kv_pool_release(&pool);
    arena_release(&a);
}

static int three_blocks(void *context, int group, int n) {
    (void)context, (void)group;
    return MIN(n, 3);
}

/* A sequence for which there is no memory begins its way to the host, and is ended; then the memory is given back from
 * which it would have been copied. */
static void memory_that_was_given_back_is_not_copied_from(void **state) {
    (void)state;
    struct cache_group group = {.kind = CACHE_KV, .n_layers = 1};
    struct kv_pool_options o = {.groups = &group,
                                .n_groups = 1,
                                .block_size = 4,
                                .max_chunk = 64,
                                .max_copies = 64,
                                .remember_tokens = 32,
                                .commit = three_blocks};
    o.n_blocks[0] = o.n_host_blocks[0] = 8;
    o.block_bytes[0] = 4;
    struct kv_pool pool;
    struct scheduler s;
    struct arena a = {0};
    struct cache_copy copies[64];
    struct sequence gone, next;
    kv_pool_init(&pool, &o);
    scheduler_init(&s, &pool, (struct step_limits){64, 4, 64, 0});
    s.always_swap = true;
    sequence_init(&gone, &a, 32, 1, 4);
    for (int i = 0; i < 8; i++)
        sequence_append(&gone, i + 1);
    scheduler_add(&s, &gone);
    while (scheduler_plan(&s)) {
        kv_pool_take_copies(&pool, copies);
        scheduler_start(&s);
        scheduler_collect(&s, 0);
        sequence_append(&gone, 9);
    }
    EXPECT(s.starved == &gone);
    scheduler_remove(&s, &gone);
    kv_pool_uncommit(&pool);
    int n_usable = pool.groups[0].blocks.n_usable;
    sequence_init(&next, &a, 32, 1, 4);
    sequence_append(&next, 5);
    scheduler_add(&s, &next);
    EXPECT(scheduler_plan(&s));
    for (int i = 0, n = kv_pool_take_copies(&pool, copies); i < n; i++)
        if (copies[i].from >= n_usable && copies[i].from < 8)
            fail_msg("a step begins with a copy of block %d, of %d that have memory", copies[i].from, n_usable);
    scheduler_start(&s);
    scheduler_collect(&s, 0);
    scheduler_remove(&s, &next);
    scheduler_release(&s);
    kv_pool_release(&pool);
    arena_release(&a);
}

static void start_and_collect(struct scheduler *s, struct cache_copy *copies) {
    kv_pool_take_copies(s->pool, copies);
    scheduler_start(s);
    scheduler_collect(s, 0);
}

/* A plan gives the second of three sequences blocks for its guesses, and then has to wait, as there are none for the
 * third. What the second takes to the host, and back, is what was computed: there was room for no more. */
static void blocks_for_guesses_are_not_swapped(void **state) {
    (void)state;
    enum { N = 3, FIRST_GUESSES = 8, SECOND_GUESSES = 4 };
    struct cache_group group = {.kind = CACHE_KV, .n_layers = 1};
    struct kv_pool_options o = {.groups = &group, .n_groups = 1, .block_size = 4, .max_chunk = 64, .max_copies = 64};
    o.n_blocks[0] = o.n_host_blocks[0] = 6;
    o.block_bytes[0] = 4;
    struct kv_pool pool;
    struct scheduler s;
    struct arena a = {0};
    struct cache_copy copies[64];
    struct sequence seqs[N];
    const int32_t guesses[FIRST_GUESSES] = {9, 9, 9, 9, 9, 9, 9, 9};
    kv_pool_init(&pool, &o);
    scheduler_init(&s, &pool, (struct step_limits){64, 4, 64, 0});
    s.always_swap = true;
    for (int i = 0; i < N; i++) {
        sequence_init(&seqs[i], &a, 32, 1, 4);
        seqs[i].rank.order = i;
        for (int k = 0; k < 4; k++)
            sequence_append(&seqs[i], k);
        scheduler_add(&s, &seqs[i]);
    }
    EXPECT(scheduler_plan(&s) && s.n_step == N);
    kv_pool_take_copies(&pool, copies);
    scheduler_start(&s);
    sequence_guess(&seqs[1], guesses, SECOND_GUESSES);
    EXPECT(!scheduler_plan(&s) && seqs[1].tables[0].end == 3); // it waits for the step in flight
    scheduler_collect(&s, 0);
    for (int i = 0; i < N; i++)
        scheduler_append(&s, &seqs[i], 9);
    scheduler_remove(&s, &seqs[2]);
    sequence_guess(&seqs[0], guesses, FIRST_GUESSES);
    EXPECT(scheduler_plan(&s) && s.n_step == 1 && s.n_swapped == 1);
    EXPECT(seqs[1].swapped && seqs[1].tables[0].end == 1);
    start_and_collect(&s, copies);
    for (int i = 0; i < FIRST_GUESSES + 1; i++)
        scheduler_append(&s, &seqs[0], 9);
    EXPECT(scheduler_plan(&s) && s.n_step == 2 && !seqs[1].swapped);
    const char *wrong = scheduler_check(&s);
    if (wrong)
        fail_msg("%s", wrong);
    start_and_collect(&s, copies);
    for (int i = 0; i < 2; i++)
        scheduler_remove(&s, &seqs[i]);
    scheduler_release(&s);
    kv_pool_release(&pool);
    arena_release(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_takes_its_chunk_of_a_step),
        cmocka_unit_test(memory_that_was_given_back_is_not_copied_from),
        cmocka_unit_test(blocks_for_guesses_are_not_swapped),
        cmocka_unit_test(the_cost_of_a_step_is_learned),
        cmocka_unit_test(a_slower_machine_is_noticed),
        cmocka_unit_test(a_long_calm_does_not_spoil_the_fit),
        cmocka_unit_test(the_rate_of_copies_is_learned_apart),
        cmocka_unit_test(a_chunk_is_as_large_as_the_target_allows),
        cmocka_unit_test(a_long_prompt_does_not_stretch_running_streams),
        cmocka_unit_test(a_25th_of_the_cache_is_kept_for_those_that_run),
        cmocka_unit_test(a_window_is_a_ring_of_as_many_blocks_as_was_said),
        cmocka_unit_test(the_last_slot_comes_with_the_checkpoint_that_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
