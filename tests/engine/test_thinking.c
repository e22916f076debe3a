/* test_thinking.c - answers whose thinking is bounded, on a backend whose next token is a hash of its context: token by
 * token what a rule of ten lines says, with one step in flight and two, in company, with guesses and with grammars. */
#include "letters.h"

#include "backend/toy/toy.h"
#include "base/random.h"
#include "engine/engine.h"

enum { VOCAB = 9, LONGEST = 64, MOST = 30, N_REQUESTS = 6 }; // few tokens, so that marks come often

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 7) * n); }

struct world {
    struct backend_ops toy;
    struct program *program;
    struct gyre *g;
};

struct answer_seen {
    int32_t tokens[LONGEST];
    int n;
    enum gyre_finish finish;
};

static void world_open(struct world *w, int depth, int n_guesses) {
    static const int32_t eos[] = {LETTERS_EOS};
    struct toy_shape shape = {.vocab_size = VOCAB, .full = true};
    struct error err;
    *w = (struct world){.toy = backend_toy, .program = toy_program(&shape)};
    w->toy.max_in_flight = depth;
    struct engine_model model = {w->program, LONGEST, -1, eos, 1};
    struct gyre_options options = {
        .backend = &w->toy, .max_seqs = 8, .block_size = 4, .n_guesses = n_guesses, .always_guess = true};
    EXPECT_OK(engine_open(&options, &model, &w->g, &err), err);
}

static void world_close(struct world *w) {
    gyre_close(w->g);
    program_free(w->program);
}

static void submit(struct world *w, struct gyre_request q, struct answer_seen *a) {
    struct gyre_error err;
    uint64_t id;
    *a = (struct answer_seen){0};
    q.user = a;
    EXPECT_OK(gyre_submit(w->g, &q, &id, &err), err);
}

static void finish_all(struct world *w) {
    struct gyre_event e[16];
    while (gyre_busy(w->g))
        for (int k = 0, n = gyre_poll(w->g, e, 16); k < n; k++) {
            struct answer_seen *a = e[k].user;
            if (e[k].kind == GYRE_TOKEN)
                a->tokens[a->n++] = e[k].token;
            else if (e[k].kind == GYRE_DONE)
                a->finish = e[k].finish;
        }
}

static int32_t next_of(struct world *w, struct gyre_request q, const int32_t *text, int n) {
    struct answer_seen a;
    q.prompt = text, q.n_prompt = n, q.max_tokens = 1, q.thinking = NULL;
    submit(w, q, &a);
    finish_all(w);
    EXPECT_EQ(a.n, 1);
    return a.tokens[0];
}

static bool ends_with(const int32_t *text, int n, const int32_t *what, size_t n_what) {
    return n_what > 0 && memcmp(text + n - n_what, what, n_what * sizeof *what) == 0;
}

/* How often the end was forced. */
static int by_the_rule(struct world *w, const struct gyre_request *q, struct answer_seen *out) {
    const struct gyre_thinking *t = q->thinking;
    int32_t text[LONGEST];
    int64_t left = t->most_tokens, used = 0;
    bool open = t->is_open;
    int n = (int)q->n_prompt, n_forced = 0;
    *out = (struct answer_seen){.finish = GYRE_LENGTH};
    memcpy(text, q->prompt, (size_t)n * sizeof *text);
    while (out->n < q->max_tokens && out->finish == GYRE_LENGTH) {
        bool must_end = open && used >= left;
        int32_t token = must_end ? t->end : next_of(w, *q, text, n);
        n_forced += must_end;
        text[n++] = out->tokens[out->n++] = token;
        if (open && token == t->end)
            left -= used, open = false;
        else if (open)
            used++;
        else if (ends_with(text, n, t->begin, t->n_begin))
            open = true, used = 0;
        if (token == LETTERS_EOS)
            out->finish = GYRE_STOP;
    }
    return n_forced;
}

struct asked {
    int32_t prompt[10], begin[2];
    struct gyre_thinking thinking;
    struct gyre_request q;
};

static void draw(const struct world *w, struct asked *a) {
    a->thinking = (struct gyre_thinking){.begin = a->begin,
                                         .n_begin = (size_t)below(3),
                                         .end = 3 + below(6),
                                         .is_open = below(2),
                                         .most_tokens = below(8)};
    for (int i = 0; i < 2; i++)
        a->begin[i] = 3 + (a->thinking.end - 3 + 1 + below(5)) % 6; // any but the end
    for (int i = 0; i < 10; i++)
        a->prompt[i] = below(VOCAB);
    a->q = gyre_request_default(w->g);
    a->q.prompt = a->prompt, a->q.n_prompt = 2 + below(8), a->q.max_tokens = 1 + below(MOST);
    a->q.temperature = below(2) ? 0 : 1;
    a->q.seed = (uint64_t)below(1000);
    a->q.ignore_eos = false;
    a->q.thinking = &a->thinking;
}

static void check(int depth, int n_guesses, const struct gyre_grammar *all) {
    const struct gyre_logit_bias none[] = {{0, -1e6f}, {2, -1e6f}, {LETTERS_EOS, -1e6f}}; // two are no text
    struct world w, alone;
    int n_forced = 0;
    world_open(&w, depth, n_guesses);
    world_open(&alone, 1, 0);
    for (int trial = 0; trial < 40; trial++) {
        struct asked asked[N_REQUESTS];
        struct answer_seen got[N_REQUESTS], want;
        for (int i = 0; i < N_REQUESTS; i++) {
            draw(&w, &asked[i]);
            asked[i].q.logit_bias = none, asked[i].q.n_logit_bias = 2 + (size_t)below(2);
            struct gyre_request q = asked[i].q;
            q.grammar = below(2) ? all : NULL;
            submit(&w, q, &got[i]);
        }
        finish_all(&w);
        for (int i = 0; i < N_REQUESTS; i++) {
            n_forced += by_the_rule(&alone, &asked[i].q, &want);
            EXPECT(got[i].n == want.n && got[i].finish == want.finish);
            EXPECT(memcmp(got[i].tokens, want.tokens, sizeof want.tokens) == 0);
        }
    }
    EXPECT(n_forced > 100);
    world_close(&w);
    world_close(&alone);
}

static void a_bound_is_kept_to_the_token(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++)
        for (int n_guesses = 0; n_guesses <= 3; n_guesses += 3)
            check(depth, n_guesses, NULL);
}

static void with_a_grammar_too(void **state) {
    (void)state;
    struct token_trie *letters = letters_open(VOCAB, true);
    struct gyre_grammar all = letters_grammar(letters, "[a-z]*", NULL);
    for (int depth = 1; depth <= 2; depth++)
        check(depth, 0, &all);
    grammar_release(all.grammar);
    token_trie_free(letters);
}

/* A grammar whose texts have the end nowhere goes before. */
static void no_grammar_is_broken(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 2, 0);
    struct token_trie *letters = letters_open(VOCAB, true);
    struct gyre_grammar some = letters_grammar(letters, "[ab]*", NULL);
    struct asked a;
    struct answer_seen got;
    draw(&w, &a);
    a.thinking.is_open = true, a.thinking.most_tokens = 2, a.thinking.end = VOCAB - 1;
    a.q.grammar = &some, a.q.ignore_eos = true, a.q.max_tokens = 20;
    submit(&w, a.q, &got);
    finish_all(&w);
    EXPECT(got.n == 20 && got.finish == GYRE_LENGTH);
    for (int i = 0; i < got.n; i++)
        EXPECT(got.tokens[i] != a.thinking.end);
    grammar_release(some.grammar);
    token_trie_free(letters);
    world_close(&w);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 1, 0);
    for (int way = 0; way < 4; way++) {
        struct asked a;
        struct gyre_error err;
        uint64_t id;
        draw(&w, &a);
        struct gyre_thinking *t = &a.thinking;
        t->n_begin = 1;
        if (way == 0)
            t->most_tokens = -1;
        else if (way == 1)
            t->end = VOCAB;
        else if (way == 2)
            t->n_begin = 17;
        else
            t->begin = NULL;
        EXPECT(gyre_submit(w.g, &a.q, &id, &err) != 0 && strstr(err.text, "thinking"));
    }
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bound_is_kept_to_the_token),
        cmocka_unit_test(with_a_grammar_too),
        cmocka_unit_test(no_grammar_is_broken),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
