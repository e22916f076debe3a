/* test_fair_share.c - tenants that share an engine: whoever floods it waits behind himself. On the toy backend, where a
 * step's cost does not matter and only the order is looked at. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/random.h"
#include "engine/engine.h"

enum { VOCAB = 40, LONGEST = 96, TENANTS = 4, MANY = 400 };

static uint64_t n_drawn;
static int below(int n) { return (int)(philox_uniform(test_seed(), n_drawn++, 3) * n); }

struct world {
    struct program *program;
    struct gyre *g;
    int64_t computed[TENANTS]; // tokens of requests that ended
    int n_ended, order[MANY];  // `user` of each, in the order of their ends
};

static struct world world_open(int n_tenants, enum gyre_policy policy, int max_seqs) {
    static const int32_t eos[] = {1};
    struct world w = {.program = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true})};
    struct engine_model model = {w.program, LONGEST, -1, eos, 1};
    struct gyre_options o = {.backend = &backend_toy,
                             .n_tenants = n_tenants,
                             .policy = policy,
                             .max_seqs = max_seqs,
                             .max_batched_tokens = 32,
                             .no_prefix_cache = true};
    struct error err;
    EXPECT_OK(engine_open(&o, &model, &w.g, &err), err);
    return w;
}

static void world_close(struct world *w) {
    gyre_close(w->g);
    program_free(w->program);
}

static uint64_t ask(struct world *w, int tenant, int priority, int n_prompt, int n_want, int user) {
    int32_t prompt[LONGEST];
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = below(VOCAB);
    struct gyre_request q = {.prompt = prompt,
                             .n_prompt = n_prompt,
                             .max_tokens = n_want,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .ignore_eos = true,
                             .tenant = tenant,
                             .priority = priority,
                             .user = (void *)(intptr_t)user};
    uint64_t id = 0;
    struct gyre_error err;
    EXPECT_OK(gyre_submit(w->g, &q, &id, &err), err);
    return id;
}

static void run(struct world *w, int n_polls) {
    while (gyre_busy(w->g) && n_polls-- > 0) {
        struct gyre_event e[64];
        for (int i = 0, n = gyre_poll(w->g, e, 64); i < n; i++)
            if (e[i].kind == GYRE_DONE)
                w->order[w->n_ended++] = (int)(intptr_t)e[i].user;
    }
}

static int place_of(const struct world *w, int user) {
    for (int i = 0; i < w->n_ended; i++)
        if (w->order[i] == user)
            return i;
    return -1;
}

/* A hundred requests of one tenant wait when another asks for the first time: it is served after those that run and at
 * most one more, and would be last without fair shares. */
static void a_flood_of_one_tenant_does_not_hold_up_another(void **state) {
    (void)state;
    for (int fair = 0; fair < 2; fair++) {
        struct world w = world_open(fair ? 2 : 1, GYRE_FCFS, 2);
        for (int i = 0; i < 100; i++)
            ask(&w, 0, 0, 10, 10, i);
        run(&w, 25); // it has begun
        int n_before = w.n_ended;
        ask(&w, fair ? 1 : 0, 0, 10, 10, 1000);
        run(&w, 100000);
        EXPECT_EQ(w.n_ended, 101);
        if (fair)
            EXPECT(place_of(&w, 1000) - n_before <= 4);
        else
            EXPECT_EQ(place_of(&w, 1000), 100);
        world_close(&w);
    }
}

/* All have always three requests waiting, of sizes that differ by tenant; after any time no two differ in the tokens
 * that ended requests of theirs had by more than what is charged late, runs at once or waits: 4 of the largest, and a
 * sixteenth of rounding. */
static void tenants_that_always_ask_get_equal_shares(void **state) {
    (void)state;
    struct world w = world_open(TENANTS, GYRE_FCFS, 3);
    static const int size[TENANTS] = {4, 40, 12, 24}; // prompt and answer, each
    int waiting[TENANTS] = {0};
    int64_t worst = 0;
    for (int i = 0; i < 3000; i++) {
        for (int t = 0; t < TENANTS; t++)
            for (; waiting[t] < 3; waiting[t]++)
                ask(&w, t, 0, size[t], size[t], t);
        struct gyre_event e[64];
        for (int k = 0, n = gyre_poll(w.g, e, 64); k < n; k++)
            if (e[k].kind == GYRE_DONE) {
                int t = (int)(intptr_t)e[k].user;
                w.computed[t] += 2 * size[t];
                waiting[t]--;
            }
        for (int a = 0; a < TENANTS; a++)
            for (int b = 0; b < TENANTS; b++)
                worst = MAX(worst, w.computed[a] - w.computed[b]);
    }
    for (int t = 0; t < TENANTS; t++)
        EXPECT(w.computed[t] > 3000); // so that the bound says something
    EXPECT(worst <= 4 * 2 * 40 + w.computed[0] / 16);
    world_close(&w);
}

/* Having asked for nothing is no credit: a tenant that comes back does not get everything until it has caught up. */
static void time_without_requests_is_no_credit(void **state) {
    (void)state;
    struct world w = world_open(2, GYRE_FCFS, 1);
    for (int i = 0; i < 50; i++) {
        ask(&w, 0, 0, 20, 20, 0);
        run(&w, 100000);
    }
    w.n_ended = 0;
    for (int i = 0; i < 20; i++) {
        ask(&w, 0, 0, 20, 20, 0);
        ask(&w, 1, 0, 20, 20, 1);
    }
    run(&w, 100000);
    int n[2] = {0};
    for (int i = 0; i < 20; i++)
        n[w.order[i]]++;
    EXPECT(n[0] >= 8 && n[1] >= 8);
    world_close(&w);
}

static void priority_comes_before_shares(void **state) {
    (void)state;
    struct world w = world_open(2, GYRE_FCFS, 1);
    for (int i = 0; i < 20; i++)
        ask(&w, 0, -1, 10, 10, i);
    ask(&w, 1, 0, 10, 10, 1000);
    run(&w, 100000);
    EXPECT_EQ(place_of(&w, 1000), 20);
    world_close(&w);
}

/* Random tenants, sizes, priorities, cancels and policies: everything ends, also what was asked first by whoever asked
 * most. */
static void nobody_starves(void **state) {
    (void)state;
    for (int round = 0; round < (test_is_brief() ? 16 : 60); round++) {
        struct world w = world_open(TENANTS, round % 2 ? GYRE_SJF : GYRE_FCFS, 1 + below(4));
        int n = 0;
        while (n < MANY - 50) {
            for (int k = below(12); k > 0 && n < MANY; k--, n++) {
                uint64_t id = ask(&w, below(3) ? 0 : below(TENANTS), below(8) ? 0 : 1, 1 + below(40), 1 + below(40), n);
                if (below(6) == 0)
                    gyre_cancel(w.g, id);
            }
            run(&w, below(20));
        }
        run(&w, 1000000);
        EXPECT_EQ(w.n_ended, n);
        world_close(&w);
    }
}

static void a_tenant_that_is_none_is_refused(void **state) {
    (void)state;
    struct world w = world_open(2, GYRE_FCFS, 1);
    for (int tenant = -1; tenant <= 2; tenant += 3) {
        int32_t prompt = 1;
        struct gyre_request q = {
            .prompt = &prompt, .n_prompt = 1, .max_tokens = 1, .top_p = 1, .repetition_penalty = 1, .tenant = tenant};
        uint64_t id;
        struct gyre_error err;
        EXPECT(gyre_submit(w.g, &q, &id, &err) != 0);
        EXPECT(strstr(err.text, "tenant"));
    }
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_of_one_tenant_does_not_hold_up_another),
        cmocka_unit_test(tenants_that_always_ask_get_equal_shares),
        cmocka_unit_test(time_without_requests_is_no_credit),
        cmocka_unit_test(priority_comes_before_shares),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(a_tenant_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
