/* test_engine_cache.c - what was computed before is not computed again, and nothing else is taken for it. */
#include "engine_rig.h"

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
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_computes_its_past_once),
        cmocka_unit_test(a_beginning_seen_before_is_not_computed_again),
        cmocka_unit_test(a_hit_needs_only_the_last_window),
        cmocka_unit_test(many_answers_to_one_prompt_compute_it_once),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(what_was_evicted_is_computed_again),
        cmocka_unit_test(a_recurrent_model_goes_on_from_a_checkpoint),
    };
    return RUN_AT_EACH_DEPTH(tests);
}
