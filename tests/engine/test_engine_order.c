/* test_engine_order.c - who runs first and who gives way; how large the cache is. */
#include "engine_rig.h"

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
        cmocka_unit_test(policies_decide_who_comes_first),
        cmocka_unit_test(a_more_important_request_takes_the_place_of_a_running_one),
        cmocka_unit_test(who_gives_way_is_swapped_where_that_is_cheaper),
        cmocka_unit_test(a_long_prompt_does_not_starve_among_short_ones),
        cmocka_unit_test(the_cache_is_as_large_as_was_said),
        cmocka_unit_test(as_many_as_the_cache_was_made_for_run_together),
        cmocka_unit_test(the_memory_plan_adds_up),
        cmocka_unit_test(options_out_of_range_are_named),
    };
    return RUN_AT_EACH_DEPTH(tests);
}
