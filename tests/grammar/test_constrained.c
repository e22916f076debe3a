/* test_constrained.c - answers of grammars in the engine, on a backend whose next token is a hash of its context: what
 * a grammar lets through is what comes, and nothing else changes. test_engine.c has them in random company. */
#include "letters.h"

#include "backend/toy/toy.h"
#include "base/random.h"
#include "engine/engine.h"

#include <time.h>

enum { VOCAB = 53, LONGEST = 96 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 5) * n); }

struct answer_seen {
    int32_t tokens[LONGEST];
    float logprobs[LONGEST];
    int n;
    enum gyre_finish finish;
    char error[200];
};

struct world {
    struct backend_ops toy;
    struct program *program;
    struct token_trie *letters;
    struct gyre *g;
};

/* depth: of steps in flight. */
static void world_open(struct world *w, int depth, bool has_eos) {
    static const int32_t eos[] = {LETTERS_EOS};
    struct toy_shape shape = {.vocab_size = VOCAB, .full = true};
    struct error err;
    *w = (struct world){.toy = backend_toy, .program = toy_program(&shape), .letters = letters_open(VOCAB, has_eos)};
    w->toy.max_in_flight = depth;
    struct engine_model model = {w->program, LONGEST, -1, eos, has_eos};
    struct gyre_options options = {.backend = &w->toy, .max_seqs = 8, .block_size = 4};
    EXPECT_OK(engine_open(&options, &model, &w->g, &err), err);
}

static void world_close(struct world *w) {
    gyre_close(w->g);
    program_free(w->program);
    token_trie_free(w->letters);
}

static uint64_t submit(struct world *w, struct gyre_request q, struct answer_seen *a) {
    struct gyre_error err;
    uint64_t id;
    *a = (struct answer_seen){0};
    q.user = a;
    EXPECT_OK(gyre_submit(w->g, &q, &id, &err), err);
    return id;
}

static void poll_once(struct world *w) {
    struct gyre_event e[16];
    for (int k = 0, n = gyre_poll(w->g, e, 16); k < n; k++) {
        struct answer_seen *a = e[k].user;
        if (e[k].kind == GYRE_TOKEN) {
            a->logprobs[a->n] = e[k].logprob;
            a->tokens[a->n++] = e[k].token;
        } else {
            a->finish = e[k].finish;
            EXPECT(e[k].timing.queue_us >= 0 && e[k].timing.prompt_us >= 0 && e[k].timing.decode_us >= 0);
            if (e[k].error)
                snprintf(a->error, sizeof a->error, "%s", e[k].error);
        }
    }
}

static void finish_all(struct world *w) {
    while (gyre_busy(w->g))
        poll_once(w);
}

static struct gyre_request some_request(const struct world *w, int32_t prompt[10]) {
    struct gyre_request q = gyre_request_default(w->g);
    q.prompt = prompt, q.n_prompt = 1 + below(9), q.max_tokens = 1 + below(60);
    for (int i = 0; i < 10; i++)
        prompt[i] = below(VOCAB);
    q.temperature = below(2) ? 0 : 1;
    q.seed = (uint64_t)below(1000);
    q.logprobs = below(2);
    return q;
}

static bool is_text(const struct answer_seen *a, const char *want) {
    struct buf text = {0};
    letters_text(a->tokens, a->n, &text);
    bool is = str_eq(buf_view(&text), str_of(want));
    buf_release(&text);
    return is;
}

/* Of the letters' tokens all but 0 and 2 are text or an end. */
static void a_grammar_of_all_texts_changes_nothing(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        struct gyre_grammar all = letters_grammar(w.letters, "[a-z]*", NULL);
        const struct gyre_logit_bias no_text[] = {{0, -1e6f}, {2, -1e6f}};
        for (int trial = 0; trial < 200; trial++) {
            int32_t prompt[10];
            struct answer_seen plain, constrained;
            struct gyre_request q = some_request(&w, prompt);
            q.logit_bias = no_text, q.n_logit_bias = 2; // for both
            q.repetition_penalty = below(2) ? 1 : 1.2f;
            q.presence_penalty = below(2) ? 0 : 0.5f;
            q.n_top_logprobs = below(2) ? 3 : 0;
            submit(&w, q, &plain);
            q.grammar = &all;
            submit(&w, q, &constrained);
            finish_all(&w);
            EXPECT(plain.n == constrained.n && plain.finish == constrained.finish);
            EXPECT(memcmp(plain.tokens, constrained.tokens, sizeof plain.tokens) == 0);
            EXPECT(memcmp(plain.logprobs, constrained.logprobs, sizeof plain.logprobs) == 0);
        }
        grammar_release(all.grammar);
        world_close(&w);
    }
}

/* Side by side with requests that have none: those get what they get alone. */
static void a_choice_is_one_of_its_texts(void **state) {
    (void)state;
    static const char *const texts[] = {"abcab", "abd", "x", "hijklmnopqrstuvw"};
    int n_seen[4] = {0};
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        struct gyre_grammar g = letters_grammar(w.letters, NULL, "[\"abcab\", \"abd\", \"x\", \"hijklmnopqrstuvw\"]");
        for (int trial = 0; trial < 100; trial++) {
            int32_t prompt[2][10];
            struct answer_seen alone, beside, chosen;
            struct gyre_request plain = some_request(&w, prompt[0]), q = some_request(&w, prompt[1]);
            submit(&w, plain, &alone);
            finish_all(&w);
            q.grammar = &g, q.max_tokens = 30, q.ignore_eos = below(2);
            submit(&w, q, &chosen);
            submit(&w, plain, &beside);
            finish_all(&w);
            EXPECT(alone.n == beside.n && memcmp(alone.tokens, beside.tokens, sizeof alone.tokens) == 0);
            EXPECT(chosen.finish == GYRE_STOP && chosen.tokens[chosen.n - 1] == LETTERS_EOS);
            int which = 0;
            while (which < 4 && !is_text(&chosen, texts[which]))
                which++;
            EXPECT(which < 4);
            n_seen[which]++;
        }
        grammar_release(g.grammar);
        world_close(&w);
    }
    EXPECT(n_seen[0] > 0 && n_seen[1] > 0 && n_seen[2] > 0 && n_seen[3] > 0);
}

/* A text that is whole ends, whatever min_tokens says; where there is no end token it ends by itself. */
static void a_whole_text_ends(void **state) {
    (void)state;
    for (int has_eos = 0; has_eos < 2; has_eos++) {
        struct world w;
        world_open(&w, 2, has_eos);
        struct gyre_grammar g = letters_grammar(w.letters, NULL, "[\"ac\"]");
        int32_t prompt[10];
        struct answer_seen a;
        struct gyre_request q = some_request(&w, prompt);
        q.grammar = &g, q.max_tokens = 20, q.min_tokens = 10;
        submit(&w, q, &a);
        finish_all(&w);
        EXPECT(a.finish == GYRE_STOP && a.n == 2 + has_eos && is_text(&a, "ac"));
        q.max_tokens = 2, q.min_tokens = 0;
        submit(&w, q, &a);
        finish_all(&w);
        EXPECT(a.finish == GYRE_LENGTH && a.n == 2 && is_text(&a, "ac"));
        q.max_tokens = 0;
        submit(&w, q, &a);
        finish_all(&w);
        EXPECT(a.finish == GYRE_LENGTH && a.n == 0);
        grammar_release(g.grammar);
        world_close(&w);
    }
}

/* What must come is put in at once, up to where a text may have other tokens; the text is the same one token a step,
 * and takes fewer of them. */
static void what_must_come_takes_few_steps(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        struct gyre_grammar g = letters_grammar(w.letters, "x(acegikmoqsuwybdfhj[ab]){4}", NULL);
        int32_t prompt[10];
        int64_t n_steps[2];
        for (int jumps = 0; jumps < 2; jumps++) {
            struct answer_seen a;
            struct buf text = {0};
            struct gyre_request q = some_request(&w, prompt);
            g.split = jumps ? letters_split : NULL;
            q.grammar = &g, q.max_tokens = 85, q.logprobs = false;
            n_steps[jumps] = w.g->n_steps;
            submit(&w, q, &a);
            finish_all(&w);
            n_steps[jumps] = w.g->n_steps - n_steps[jumps];
            EXPECT(a.finish == GYRE_STOP && a.n == 1 + 4 * 19 + 1);
            letters_text(a.tokens, a.n, &text);
            EXPECT(text.len == 77 && memcmp(text.ptr, "xacegikmoqsuwybdfhj", 19) == 0);
            buf_release(&text);
            q.max_tokens = 1 + below(76); // it may end within what must come
            submit(&w, q, &a);
            finish_all(&w);
            EXPECT(a.finish == GYRE_LENGTH && a.n == q.max_tokens);
            EXPECT((w.g->n_forced_tokens > 0) == jumps);
        }
        EXPECT(n_steps[1] < n_steps[0] / 3);
        grammar_release(g.grammar);
        world_close(&w);
    }
}

/* The pair yz is a token of the text's alone: the model has y and z. */
static void what_the_model_lacks_is_not_put_in(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        struct token_trie *more = letters_open(VOCAB + 1, true);
        struct gyre_grammar g = letters_grammar(more, NULL, "[\"acegyzacegyzacegik\"]");
        int32_t prompt[10];
        struct answer_seen a;
        struct gyre_request q = some_request(&w, prompt);
        g.split = letters_split;
        q.grammar = &g, q.max_tokens = 30, q.logprobs = false;
        submit(&w, q, &a);
        finish_all(&w);
        EXPECT(w.g->n_forced_tokens > 0 && is_text(&a, "acegyzacegyzacegik"));
        for (int i = 0; i < a.n; i++)
            EXPECT(a.tokens[i] < VOCAB);
        grammar_release(g.grammar);
        token_trie_free(more);
        world_close(&w);
    }
}

/* Beside another sequence a jump has no more tokens than a step that is a graph: what is left follows in the next. */
static void a_long_jump_goes_by_parts_beside_others(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        w.g->mask_patience_us = 60000000;
        struct gyre_grammar g = letters_grammar(w.letters, "x(acegikmoqsuwybdfhj[ab]){4}", NULL);
        int32_t prompt[2][10];
        struct answer_seen a[2];
        int n_most = 0;
        g.split = letters_split;
        for (int i = 0; i < 2; i++) {
            struct gyre_request q = some_request(&w, prompt[i]);
            q.grammar = &g, q.max_tokens = 85, q.n_prompt = 3, q.logprobs = false;
            submit(&w, q, &a[i]);
        }
        while (gyre_busy(w.g)) {
            poll_once(&w);
            int newest = (int)((w.g->n_steps + MAX_STEPS_IN_FLIGHT - 1) % MAX_STEPS_IN_FLIGHT);
            const struct batch_plan *p = &w.g->steps[newest].plan;
            for (int s = 0; s < p->n_seqs && p->n_seqs == 2 && a[0].n > 0 && a[1].n > 0; s++)
                n_most = MAX(n_most, p->query_start[s + 1] - p->query_start[s]);
        }
        EXPECT_EQ(n_most, FEW_TOKENS);
        for (int i = 0; i < 2; i++) {
            struct buf text = {0};
            letters_text(a[i].tokens, a[i].n, &text);
            EXPECT(a[i].finish == GYRE_STOP && text.len == 77 && memcmp(text.ptr, "xacegikmoqsuwybdfhj", 19) == 0);
            buf_release(&text);
        }
        grammar_release(g.grammar);
        world_close(&w);
    }
}

/* A step with a jump costs all of its rows: it must save half as many tokens as there are. The tokens are the same. */
static void a_jump_that_saves_little_is_not_made(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        w.g->mask_patience_us = 60000000; // nobody is held and left to run alone
        struct gyre_grammar g = letters_grammar(w.letters, "([x-z]aceg){10}", NULL);
        int32_t prompt[8][10];
        struct answer_seen a[8], alone;
        struct gyre_request q = some_request(&w, prompt[0]);
        g.split = letters_split;
        q.grammar = &g, q.max_tokens = 40, q.logprobs = false;
        submit(&w, q, &alone);
        finish_all(&w);
        int64_t n_forced = w.g->n_forced_tokens;
        EXPECT(n_forced > 0);
        submit(&w, q, &a[0]);
        for (int i = 1; i < 8; i++) {
            struct gyre_request other = some_request(&w, prompt[i]);
            other.max_tokens = 80, other.ignore_eos = true;
            submit(&w, other, &a[i]);
        }
        finish_all(&w);
        EXPECT_EQ(w.g->n_forced_tokens, n_forced);
        EXPECT(a[0].n == alone.n && memcmp(a[0].tokens, alone.tokens, sizeof alone.tokens) == 0);
        for (int i = 0; i < 8; i++) // together they save enough
            submit(&w, q, &a[i]);
        finish_all(&w);
        EXPECT(w.g->n_forced_tokens > n_forced);
        for (int i = 0; i < 8; i++)
            EXPECT(a[i].n == alone.n && memcmp(a[i].tokens, alone.tokens, sizeof alone.tokens) == 0);
        grammar_release(g.grammar);
        world_close(&w);
    }
}

/* As a mask may that is the first of its kind. */
static int letters_split_slowly(void *context, const int32_t *before, int n_before, struct str text, int32_t *out,
                                int max) {
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return letters_split(context, before, n_before, text, out, max) * 0;
}

static void a_slow_mask_holds_its_own_request_alone(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        struct world w;
        world_open(&w, depth, true);
        struct gyre_grammar g = letters_grammar(w.letters, "x(acegikmoqsuwybdfhj[ab]){4}", NULL);
        int32_t prompt[2][10];
        struct answer_seen slow, alone, plain;
        struct gyre_request q = some_request(&w, prompt[0]), other = some_request(&w, prompt[1]);
        q.grammar = &g, q.max_tokens = 6, q.logprobs = false;
        other.max_tokens = 80, other.ignore_eos = true;
        submit(&w, q, &alone);
        finish_all(&w);
        g.split = letters_split_slowly;
        submit(&w, q, &slow);
        submit(&w, other, &plain);
        while (plain.n < 80 && slow.n < 6)
            poll_once(&w);
        EXPECT(plain.n == 80 && slow.n < 6);
        finish_all(&w);
        EXPECT(w.g->n_held > 0 && w.g->n_steps > 80);
        EXPECT(slow.n == alone.n && memcmp(slow.tokens, alone.tokens, sizeof slow.tokens) == 0);
        grammar_release(g.grammar);
        world_close(&w);
    }
}

/* What steps said when they were started. */
static struct { int n_late, n_late_best, n_argmax; } told;

static enum status run_told(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                            struct error *err) {
    told.n_late += !sample;
    told.n_late_best += !sample && plan->draws_best;
    for (int r = 0; sample && r < plan->n_rows; r++)
        told.n_argmax += sample[r].want_argmax;
    return backend_toy.run(exe, plan, sample, err);
}

/* So that a backend may wait for masks with what they spare it; who wants more of one row does not have that. */
static void a_late_step_says_whether_the_best_is_all_that_is_wanted(void **state) {
    (void)state;
    enum { GREEDY, DRAWN, SCORED, PENALISED, ECHOED, N_WAYS };
    for (int way = 0; way < N_WAYS; way++) {
        struct world w;
        world_open(&w, 2, true);
        w.toy.run = run_told; // the engine's are these
        w.g->mask_patience_us = 60 * 1000 * 1000; // on a busy machine too: no step is of one row alone
        struct gyre_grammar g = letters_grammar(w.letters, "[a-z]*", NULL);
        int32_t prompt[2][10];
        struct answer_seen a, b;
        struct gyre_request q = some_request(&w, prompt[0]), other = some_request(&w, prompt[1]);
        q.temperature = 0, q.logprobs = false, q.max_tokens = 30, q.ignore_eos = true;
        other.temperature = way == DRAWN, other.logprobs = way == SCORED, other.max_tokens = 40,
        other.ignore_eos = true;
        other.repetition_penalty = way == PENALISED ? 1.5f : 1;
        q.grammar = &g, q.score_prompt = way == ECHOED;
        memset(&told, 0, sizeof told);
        submit(&w, other, &b);
        submit(&w, q, &a);
        finish_all(&w);
        bool is_best = way == GREEDY || way == ECHOED;
        EXPECT(told.n_late > 10 && told.n_late_best == (is_best ? told.n_late : 0));
        EXPECT_EQ(told.n_argmax, way == ECHOED ? q.n_prompt : 0);
        grammar_release(g.grammar);
        world_close(&w);
    }
}

static void what_nothing_can_follow_fails_by_itself(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 2, true);
    struct gyre_grammar g = letters_grammar(w.letters, NULL, "[\"ac\"]");
    int32_t prompt[2][10], banned = FIRST_LETTER + 2;
    struct answer_seen failed, other;
    struct gyre_request q = some_request(&w, prompt[0]), plain = some_request(&w, prompt[1]);
    q.grammar = &g, q.max_tokens = 20;
    q.bad_sequences = &(struct gyre_bad_sequence){&banned, 1}, q.n_bad_sequences = 1;
    plain.ignore_eos = true;
    submit(&w, q, &failed);
    submit(&w, plain, &other);
    finish_all(&w);
    EXPECT(failed.finish == GYRE_FAILED && strstr(failed.error, "grammar"));
    EXPECT(other.finish == GYRE_LENGTH);
    grammar_release(g.grammar);
    world_close(&w);
}

static void cancelled_ones_and_a_closed_engine_leave_nothing(void **state) {
    (void)state;
    for (int trial = 0; trial < 50; trial++) {
        struct world w;
        world_open(&w, 1 + trial % 2, true);
        struct gyre_grammar g = letters_grammar(w.letters, "([a-f]{2}[k-z])*", NULL);
        int32_t prompt[8][10];
        struct answer_seen a[8];
        uint64_t ids[8];
        for (int i = 0; i < 8; i++) {
            struct gyre_request q = some_request(&w, prompt[i]);
            q.grammar = below(4) ? &g : NULL;
            ids[i] = submit(&w, q, &a[i]);
        }
        grammar_release(g.grammar); // requests have their own references
        for (int i = below(20); i > 0; i--) {
            struct gyre_event e[16];
            gyre_poll(w.g, e, 1 + below(16));
            if (below(3) == 0)
                gyre_cancel(w.g, ids[below(8)]);
        }
        world_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_of_all_texts_changes_nothing),
        cmocka_unit_test(a_choice_is_one_of_its_texts),
        cmocka_unit_test(a_whole_text_ends),
        cmocka_unit_test(what_must_come_takes_few_steps),
        cmocka_unit_test(what_the_model_lacks_is_not_put_in),
        cmocka_unit_test(a_long_jump_goes_by_parts_beside_others),
        cmocka_unit_test(a_jump_that_saves_little_is_not_made),
        cmocka_unit_test(a_slow_mask_holds_its_own_request_alone),
        cmocka_unit_test(a_late_step_says_whether_the_best_is_all_that_is_wanted),
        cmocka_unit_test(what_nothing_can_follow_fails_by_itself),
        cmocka_unit_test(cancelled_ones_and_a_closed_engine_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
