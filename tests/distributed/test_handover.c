/* test_handover.c - a prompt's cache that one engine computed and another took over: answers are those of one engine,
 * for every kind of cache; and whatever is wrong with the bytes, nothing of them is taken. The first test runs on the
 * backend of $GYRE_TEST_BACKEND, in float32. */
#include "check.h"
#include "handover_rig.h"
#include "op_rig.h"

#include "backend/ranks/ranks.h"
#include "backend/toy/toy.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/roles/handover.h"
#include "sched/kv_handover.h"

enum { PROMPT = 150, ANSWER = 12, BLOCK = 16, WHOLE = (PROMPT - 1) / BLOCK };

static const char *const models[] = {"tests/models/llama",       "tests/models/gemma3",  "tests/models/gemma4",
                                     "tests/models/deepseek_v3", "tests/models/qwen3_5", "tests/models/gpt_oss",
                                     "tests/models/diffllama",   "tests/models/mixtral"};

static struct gyre *open_kept(const struct backend_ops *backend, const char *folder, const char *kv_cache_dtype,
                              int64_t cache_bytes) {
    struct gyre_options o = {.model = folder,
                             .kv_cache_dtype = kv_cache_dtype,
                             .backend = backend,
                             .dtype = backend == &backend_toy ? NULL : "float32",
                             .n_threads = 1,
                             .block_size = BLOCK,
                             .max_batched_tokens = 96,
                             .max_seqs = 2,
                             .kv_cache_bytes = cache_bytes};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}
static struct gyre *open_on(const struct backend_ops *backend, const char *folder, int64_t cache_bytes) {
    return open_kept(backend, folder, NULL, cache_bytes);
}
static struct gyre *open_model(const char *folder) { return open_on(&backend_cpu, folder, 0); }

struct outcome {
    int32_t tokens[ANSWER];
    int n;
    int64_t n_reused;
};

static struct outcome ask(struct gyre *g, const int32_t *prompt, int n, int max_tokens) {
    struct outcome r = {0};
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    q.prompt = prompt, q.n_prompt = n, q.max_tokens = max_tokens, q.ignore_eos = true, q.temperature = 0;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    while (gyre_busy(g)) {
        struct gyre_event e[8];
        for (int i = 0, got = gyre_poll(g, e, 8); i < got; i++) {
            if (e[i].kind == GYRE_TOKEN)
                r.tokens[r.n++] = e[i].token;
            if (e[i].kind == GYRE_DONE)
                r.n_reused = e[i].timing.n_reused;
        }
    }
    return r;
}

static void fill(int32_t *text, int n, const struct gyre *g, uint64_t which) {
    for (int i = 0; i < n; i++)
        text[i] = (int32_t)(philox_uniform(test_seed(), (uint64_t)i, which) * ((struct gyre *)g)->info.vocab_size);
}

static void expect_same(struct outcome a, struct outcome b, const char *where) {
    EXPECT_EQ(a.n, b.n);
    for (int i = 0; i < a.n; i++)
        if (a.tokens[i] != b.tokens[i])
            fail_msg("%s: token %d is %d, and %d of one engine", where, i, a.tokens[i], b.tokens[i]);
}

static const char *check_pool(struct gyre *g) { return kv_pool_check(&g->pool, NULL, 0); }

/* Computed by a, handed to b, which answers; c does both. Then a longer text that begins alike: only what is new goes
 * over. */
static void expect_that_of_one_engine(const struct backend_ops *on, const char *kept) {
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        if (rig_is_brief() && on != &backend_cpu && m != 0 && m != 3 && m != 4) // dense, latent and recurrent are left
            continue;
        if (kept && m == 3) // which has no such cache
            continue;
        struct gyre *a = open_kept(on, models[m], kept, 0), *b = open_kept(on, models[m], kept, 0),
                    *c = open_kept(on, models[m], kept, 0);
        int32_t text[2 * PROMPT], n;
        struct buf bytes = {0};
        struct error err;
        fill(text, 2 * PROMPT, a, m);
        for (int turn = 0; turn < 2; turn++) {
            struct handover_prompt p = {text, (turn + 1) * PROMPT, 0, 42};
            int32_t from = handover_known(b, &p), whole = (p.n - 1) / BLOCK;
            EXPECT_EQ(from, turn ? WHOLE : 0);
            EXPECT_EQ(ask(a, text, p.n, 0).n_reused, turn ? WHOLE * BLOCK : 0);
            buf_clear(&bytes);
            EXPECT_OK(handover_give(a, &p, from, SIZE_MAX, &bytes, &err), err);
            EXPECT(bytes.len <= (size_t)handover_most_bytes(a, p.n));
            EXPECT_OK(handover_take(b, &p, buf_view(&bytes), &n, &err), err);
            EXPECT_EQ(n, whole);
            struct outcome apart = ask(b, text, p.n, ANSWER), one = ask(c, text, p.n, ANSWER);
            EXPECT_EQ(apart.n_reused, whole * BLOCK);
            expect_same(apart, one, models[m]);
            expect_same(ask(a, text, p.n, ANSWER), one, models[m]); // the giver goes on as well
            EXPECT(!check_pool(a) && !check_pool(b));
        }
        buf_release(&bytes);
        gyre_close(a), gyre_close(b), gyre_close(c);
    }
}

static void an_answer_is_that_of_one_engine(void **state) {
    (void)state;
    expect_that_of_one_engine(rig_backend(), NULL);
}

/* From device to device, on the toy and where the backend has windows. */
static void expect_windows(const struct backend_ops *on) {
    for (size_t m = 0; m < 4; m++) {
        struct gyre *a = open_on(on, models[m], 0), *b = open_on(on, models[m], 0), *c = open_on(on, models[m], 0);
        int32_t text[2 * PROMPT];
        struct error err;
        enum status st = OK;
        fill(text, 2 * PROMPT, a, m);
        for (int turn = 0; turn < 2 && st == OK; turn++) {
            struct handover_prompt p = {text, (turn + 1) * PROMPT, 0, 42};
            ask(a, text, p.n, 0);
            st = handover_by_window(a, b, &p, handover_known(b, &p), &err);
            if (st == ERR_UNSUPPORTED)
                print_message("%s: %s\n", models[m], err.text); // a device's window is of other processes
            else
                EXPECT_OK(st, err);
            if (st != OK)
                break;
            struct outcome apart = ask(b, text, p.n, ANSWER);
            EXPECT_EQ(apart.n_reused, (p.n - 1) / BLOCK * BLOCK);
            expect_same(apart, ask(c, text, p.n, ANSWER), models[m]);
            EXPECT(!check_pool(a) && !check_pool(b));
        }
        EXPECT(st == OK || on != &backend_toy);
        gyre_close(a), gyre_close(b), gyre_close(c);
        if (rig_is_brief() && on != &backend_toy)
            return;
    }
}

/* Memory of a server that is gone may be found by the handle of another: its number says so. */
static void expect_number(const struct backend_ops *on) {
    struct gyre *a = open_on(on, models[0], 0), *b = open_on(on, models[0], 0);
    const struct backend_handover *h = a->ops->handover;
    char name[WINDOW_NAME];
    const int32_t block = 0;
    struct error err;
    EXPECT_OK(handover_prepare(a, &err), err);
    EXPECT_OK(handover_prepare(b, &err), err);
    enum status st = h->share(a->loaded, name, &err);
    if (st == OK)
        st = h->take(b->loaded, name, 0, &block, 1, 0, &err);
    EXPECT(st == OK || (st == ERR_UNSUPPORTED && on != &backend_toy)); // a device's window is of other processes
    for (int i = 0; i < 2 && st == OK; i++) {                          // one that is open, and one that is not
        name[WINDOW_NAME - 1] ^= 1;
        EXPECT_EQ(h->take(b->loaded, name, 0, &block, 1, 0, &err), ERR_UNSUPPORTED);
        name[WINDOW_NAME - 1] ^= 1;
        EXPECT_OK(h->take(b->loaded, name, 0, &block, 1, 0, &err), err);
        if (h->leave)
            h->leave(b->loaded);
    }
    gyre_close(a), gyre_close(b);
}

static void what_is_behind_another_number_is_not_taken(void **state) {
    (void)state;
    expect_number(&backend_toy);
    if (rig_backend()->handover && rig_backend()->handover->show)
        expect_number(rig_backend());
}

static void an_answer_by_a_window_is_that_of_one_engine(void **state) {
    (void)state;
    expect_windows(&backend_toy);
    if (rig_backend()->handover && rig_backend()->handover->show)
        expect_windows(rig_backend());
}

static void four_bits_are_handed_over_as_they_are(void **state) {
    (void)state;
    if (strcmp(rig_backend()->name, "xla") == 0)
        skip(); // which has no such cache
    expect_that_of_one_engine(rig_backend(), "int4");
}

/* The toy reads each slot as what was written for its position. */
static void a_device_with_steps_in_flight_hands_over(void **state) {
    (void)state;
    EXPECT(backend_toy.max_in_flight > 1);
    expect_that_of_one_engine(&backend_toy, NULL);
}

static void ranks_hand_over_what_all_of_them_have(void **state) {
    (void)state;
    const struct backend_ops *two;
    struct error err;
    EXPECT_OK(backend_ranks(&backend_cpu, 2, false, &two, &err), err);
    for (size_t m = 0; m < 5; m++) {
        struct gyre *a = open_on(two, models[m], 0), *b = open_on(two, models[m], 0), *c = open_on(two, models[m], 0);
        int32_t text[PROMPT], n;
        struct buf bytes = {0};
        fill(text, PROMPT, a, m);
        struct handover_prompt p = {text, PROMPT, 0, 42};
        ask(a, text, PROMPT, 0);
        EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
        EXPECT_OK(handover_take(b, &p, buf_view(&bytes), &n, &err), err);
        struct outcome apart = ask(b, text, PROMPT, ANSWER);
        EXPECT_EQ(apart.n_reused, WHOLE * BLOCK);
        expect_same(apart, ask(c, text, PROMPT, ANSWER), models[m]);
        buf_release(&bytes);
        gyre_close(a), gyre_close(b), gyre_close(c);
    }
}

/* Each byte that is changed is noticed, each length, and each prompt, model and size that they are not of. */
static void nothing_wrong_is_taken(void **state) {
    (void)state;
    for (size_t m = 0; m < 5; m++) {
        struct gyre *a = open_model(models[m]), *b = open_model(models[m]), *c = open_model(models[m]);
        int32_t text[PROMPT], n;
        struct buf bytes = {0};
        struct error err;
        fill(text, PROMPT, a, m);
        struct handover_prompt p = {text, PROMPT, 0, 42}, other = p;
        ask(a, text, PROMPT, 0);
        EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
        for (int i = 0; i < 60; i++) {
            size_t at = i < 30 ? (size_t)i * 3 : (size_t)(philox_uniform(test_seed(), (uint64_t)i, 9) * bytes.len);
            bytes.ptr[at] ^= 0x10;
            EXPECT(handover_take(b, &p, buf_view(&bytes), &n, &err) == ERR_FORMAT);
            bytes.ptr[at] ^= 0x10;
            size_t len = (size_t)(philox_uniform(test_seed(), (uint64_t)i, 10) * bytes.len);
            EXPECT(handover_take(b, &p, (struct str){bytes.ptr, len}, &n, &err) == ERR_FORMAT && n == 0);
        }
        other.identity = 43;
        EXPECT(handover_take(b, &other, buf_view(&bytes), &n, &err) == ERR_FORMAT && strstr(err.text, "another model"));
        text[3] ^= 1;
        EXPECT(handover_take(b, &p, buf_view(&bytes), &n, &err) == ERR_FORMAT && strstr(err.text, "another prompt"));
        text[3] ^= 1;
        EXPECT_EQ(handover_known(b, &p), 0);
        EXPECT(!check_pool(b));
        expect_same(ask(b, text, PROMPT, ANSWER), ask(c, text, PROMPT, ANSWER), models[m]);
        EXPECT(handover_give(a, &p, WHOLE, SIZE_MAX, &bytes, &err) == ERR_FULL); // there is no more
        EXPECT(handover_give(a, &p, 0, 1000, &bytes, &err) == ERR_LIMIT);
        struct budget little = {.limit = bytes.len / 2};
        struct buf none = {.budget = &little};
        EXPECT(handover_give(a, &p, 0, SIZE_MAX, &none, &err) == ERR_MEMORY && none.len == 0);
        buf_release(&none);
        buf_release(&bytes);
        gyre_close(a), gyre_close(b), gyre_close(c);
    }
}

/* Tenants share nothing, on either side. */
static void tenants_find_their_own(void **state) {
    (void)state;
    struct gyre *a = open_model(models[0]), *b = open_model(models[0]);
    int32_t text[PROMPT], n;
    struct buf bytes = {0};
    struct error err;
    fill(text, PROMPT, a, 0);
    ask(a, text, PROMPT, 0);
    struct handover_prompt p = {text, PROMPT, 0, 42}, theirs = {text, PROMPT, 1, 42};
    EXPECT(handover_give(a, &theirs, 0, SIZE_MAX, &bytes, &err) == ERR_FULL);
    EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
    EXPECT_OK(handover_take(b, &theirs, buf_view(&bytes), &n, &err), err);
    EXPECT_EQ(handover_known(b, &theirs), WHOLE);
    EXPECT_EQ(handover_known(b, &p), 0);
    buf_release(&bytes);
    gyre_close(a), gyre_close(b);
}

/* A taker whose cache others fill: it takes, or says that it has no room, and all its blocks stay accounted for. */
static void a_full_cache_takes_nothing(void **state) {
    (void)state;
    for (size_t m = 0; m < 5; m++) {
        struct gyre *a = open_model(models[m]), *b = open_on(&backend_cpu, models[m], 600000);
        struct error err;
        struct buf bytes = {0};
        int32_t text[PROMPT], n, n_taken = 0;
        for (uint64_t i = 0; i < 12; i++) {
            fill(text, PROMPT, a, 100 + i);
            struct handover_prompt p = {text, PROMPT, 0, 42};
            ask(a, text, PROMPT, 0);
            buf_clear(&bytes);
            EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
            enum status st = handover_take(b, &p, buf_view(&bytes), &n, &err);
            EXPECT(st == OK || st == ERR_FULL);
            n_taken += st == OK;
            EXPECT(!check_pool(b));
        }
        print_message("%s: %d of 12 taken\n", models[m], n_taken);
        buf_release(&bytes);
        gyre_close(a), gyre_close(b);
    }
}

/* The device gives so many blocks of each group. */
static int most_blocks;
static enum status commit_by_need(struct loaded *l, int group, int *n, struct error *err) {
    (void)l, (void)group;
    int wanted = *n;
    *n = MIN(wanted, most_blocks);
    return *n < wanted ? fail(err, ERR_MEMORY, "no memory") : OK;
}

/* Blocks get memory as they are wanted: at first there are fewer than the prompt has. */
static void memory_is_asked_for_by_need(void **state) {
    (void)state;
    struct backend_ops toy = backend_toy;
    toy.commit_cache = commit_by_need;
    most_blocks = INT32_MAX;
    expect_that_of_one_engine(&toy, NULL);
    for (size_t m = 0; m < 5; m++) {
        struct gyre *a = open_on(&backend_toy, models[m], 0), *b;
        struct buf bytes = {0};
        struct error err;
        int32_t text[PROMPT], n;
        fill(text, PROMPT, a, m);
        struct handover_prompt p = {text, PROMPT, 0, 42};
        ask(a, text, PROMPT, 0);
        EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
        most_blocks = 2; // fewer than any window has
        b = open_on(&toy, models[m], 0);
        EXPECT_EQ(handover_take(b, &p, buf_view(&bytes), &n, &err), ERR_FULL);
        EXPECT(!check_pool(b));
        gyre_close(b);
        most_blocks = INT32_MAX;
        b = open_on(&toy, models[m], 0);
        EXPECT(b->pool.groups[0].blocks.n_usable < WHOLE || !b->pool.groups[0].paged);
        b->cache_idle_us = 1000000;
        b->collected_us -= 2 * b->cache_idle_us; // long idle: the first piece is what is left of the cache
        engine_rest(b);
        EXPECT_OK(handover_take(b, &p, buf_view(&bytes), &n, &err), err);
        EXPECT(engine_rest_us(b) > 0); // and what was taken stays until it can be asked for
        EXPECT_EQ(ask(b, text, PROMPT, ANSWER).n_reused, WHOLE * BLOCK);
        EXPECT(!check_pool(b));
        buf_release(&bytes);
        gyre_close(a), gyre_close(b);
    }
}

static int n_failing_puts;

static enum status put_or_fail(struct loaded *l, int group, const int32_t *blocks, int n, const void *in, size_t stride,
                               struct error *err) {
    if (n_failing_puts-- == 1)
        return fail(err, ERR_DEVICE, "a fault");
    return backend_toy.handover->put(l, group, blocks, n, in, stride, err);
}

/* A state is remembered by a copy that the next step begins with, or who hands it over; one that fails is still to be
 * made. */
static void a_copy_that_fails_is_made_later(void **state) {
    (void)state;
    static struct backend_ops failing;
    static struct backend_handover handover;
    failing = backend_toy, handover = *backend_toy.handover;
    handover.put = put_or_fail, failing.handover = &handover;
    struct gyre *a = open_on(&failing, "tests/models/qwen3_5", 0),
                *b = open_on(&backend_toy, "tests/models/qwen3_5", 0),
                *c = open_on(&backend_toy, "tests/models/qwen3_5", 0);
    enum {
        ANSWERED = BLOCK - PROMPT % BLOCK + 1,
        ALL = PROMPT + ANSWERED
    }; // the last token's block is whole before it
    int32_t text[ALL], n;
    struct handover_prompt p = {text, ALL, 0, 42};
    struct buf bytes = {0};
    struct error err;
    fill(text, PROMPT, a, 21);
    struct outcome answer = ask(a, text, PROMPT, ANSWERED);
    memcpy(text + PROMPT, answer.tokens, ANSWERED * sizeof *text);
    int n_copies = a->pool.n_copies;
    EXPECT(n_copies > 0);
    n_failing_puts = 1;
    EXPECT_EQ(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), ERR_DEVICE);
    EXPECT_EQ(a->pool.n_copies, n_copies);
    EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
    EXPECT_EQ(a->pool.n_copies, 0);
    EXPECT_OK(handover_take(b, &p, buf_view(&bytes), &n, &err), err);
    EXPECT_EQ(n, ALL / BLOCK);
    struct outcome one = ask(c, text, ALL, ANSWER);
    expect_same(ask(b, text, ALL, ANSWER), one, "taken");
    expect_same(ask(a, text, ALL, ANSWER), one, "given");
    EXPECT(!check_pool(a) && !check_pool(b));
    buf_release(&bytes);
    gyre_close(a), gyre_close(b), gyre_close(c);
}

/* A device that reads in a state how many tokens are in it, as one does that can go back (the giver is another). */
static int32_t asked_tokens;
static bool is_refused;
static enum status look_at_handed(const struct loaded *l, int group, int32_t n_tokens, const void *in,
                                  struct error *err) {
    (void)l, (void)in, (void)group;
    asked_tokens = n_tokens;
    return is_refused ? fail(err, ERR_FORMAT, "a state of other tokens") : OK;
}

static void a_state_that_cannot_be_is_refused_alone(void **state) {
    (void)state;
    struct backend_ops toy = backend_toy;
    struct backend_handover handover = *backend_toy.handover;
    handover.check = look_at_handed;
    toy.handover = &handover;
    for (size_t m = 0; m < 5; m++) {
        struct gyre *a = open_on(&backend_toy, models[m], 0), *b = open_on(&toy, models[m], 0);
        int32_t text[PROMPT], n, tokens = b->pool.has_state ? WHOLE * BLOCK : 0;
        struct buf bytes = {0};
        struct error err;
        fill(text, PROMPT, a, m);
        struct handover_prompt p = {text, PROMPT, 0, 42};
        struct outcome one = ask(a, text, PROMPT, ANSWER);
        EXPECT_OK(handover_give(a, &p, 0, SIZE_MAX, &bytes, &err), err);
        int64_t whole = handover_known(a, &p);
        asked_tokens = 0, is_refused = true;
        EXPECT_EQ(handover_take(b, &p, buf_view(&bytes), &n, &err), b->pool.has_state ? ERR_FORMAT : OK);
        EXPECT_EQ(asked_tokens, tokens);
        EXPECT_EQ(handover_known(b, &p), b->pool.has_state ? 0 : whole);
        EXPECT(!check_pool(b));
        expect_same(ask(b, text, PROMPT, ANSWER), one, models[m]); // computed here, as if nothing had come
        is_refused = false;
        gyre_close(b);
        b = open_on(&toy, models[m], 0);
        EXPECT_OK(handover_take(b, &p, buf_view(&bytes), &n, &err), err);
        EXPECT_EQ(handover_known(b, &p), whole);
        buf_release(&bytes);
        gyre_close(a), gyre_close(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_that_of_one_engine),
        cmocka_unit_test(an_answer_by_a_window_is_that_of_one_engine),
        cmocka_unit_test(what_is_behind_another_number_is_not_taken),
        cmocka_unit_test(four_bits_are_handed_over_as_they_are),
        cmocka_unit_test(a_device_with_steps_in_flight_hands_over),
        cmocka_unit_test(ranks_hand_over_what_all_of_them_have),
        cmocka_unit_test(nothing_wrong_is_taken),
        cmocka_unit_test(tenants_find_their_own),
        cmocka_unit_test(a_full_cache_takes_nothing),
        cmocka_unit_test(memory_is_asked_for_by_need),
        cmocka_unit_test(a_copy_that_fails_is_made_later),
        cmocka_unit_test(a_state_that_cannot_be_is_refused_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
