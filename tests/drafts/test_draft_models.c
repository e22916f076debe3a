/* test_draft_models.c - drafts that are programs change no token and no log-probability: greedy and drawn, several
 * texts at once, prompts that were seen before, caches too small for all, with and without the host's memory. Runs on
 * the backend of $GYRE_TEST_BACKEND, in float32; elsewhere than on the CPU steps of more rows add in another order, so
 * that near ties may fall otherwise. */
#include "draft_rig.h"
#include "op_rig.h"

#include "base/random.h"
#include "engine/draft/token_bytes.h"
#include "engine/engine.h"
#include "lib/backends.h"
#include "text/vocabulary_bytes.h"

#include <math.h>

enum { N_TEXTS = 6, N_PROMPT = 40, N_TOKENS = 30, N_ROUNDS = 2 };

struct text {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    int n;
    uint64_t id;
};

struct pair {
    const char *target, *draft, *method;
    int least_right; // per cent of the guesses
    bool through_text;
};

static const struct pair pairs[] = {
    {"models/story", "models/story", "draft_model", 60}, // the target itself; penalties are not guessed
    {"tests/models/qwen3", "tests/models/llama", "draft_model", 0},
    {"tests/models/deepseek_v3", "tests/models/qwen3", NULL, 0},
    {"tests/models/gemma3", "tests/models/gemma2", NULL, 0},
};

/* Drafts that have other tokens: 1,024 and 4,096, and the target itself without one of its tokens. */
static const struct pair through_text[] = {
    {"models/story", "models/story", "draft_model", 40, true},
    {"models/story", "tests/models/llama", NULL, 0, true},
    {"tests/models/qwen3_5", "models/story", "draft_model", 0, true},
    {"tests/models/gemma3", "tests/models/gemma2", "draft_model", 0, true},
};

struct world {
    const struct pair *pair; // draft NULL: nobody guesses
    int64_t cache_bytes, swap_bytes;
    int max_len; // 0: 112
    int guess_seqs;
    bool cancels; // every second text, after some tokens, with guesses
};

static bool with_plain_kernels;

/* As those who open engines for users read them; and of a model with itself one token less. */
struct tokens {
    struct vocabulary_bytes read[2];
    struct gyre_token_bytes view[2];
};

static void read_tokens(const struct pair *p, struct tokens *t) {
    struct error err;
    EXPECT_OK(vocabulary_bytes_of_both(p->target, p->draft, t->read, &err), err);
    for (int i = 0; i < 2; i++)
        t->view[i] = (struct gyre_token_bytes){t->read[i].bytes.ptr, t->read[i].start, t->read[i].n, t->read[i].first};
    if (token_bytes_equal(&t->view[0], &t->view[1]))
        t->read[1].bytes.ptr[t->read[1].start[t->read[1].n] - 1] ^= 1; // its last token is another
    EXPECT(!token_bytes_equal(&t->view[0], &t->view[1]));
}

static struct gyre *open_world(const struct world *w, bool drafted) {
    static const char *const plain[] = {"kernels=reference", NULL};
    struct gyre_options o = {.struct_size = sizeof o};
    struct gyre *g;
    struct gyre_error err;
    struct tokens tokens = {0};
    o.model = w->pair->target, o.backend = rig_backend(), o.n_threads = 1, o.dtype = "float32",
    o.max_model_len = w->max_len ? w->max_len : 112, o.block_size = 8, o.kv_cache_bytes = w->cache_bytes,
    o.swap_bytes = w->swap_bytes, o.max_batched_tokens = 48;
    o.device_options = with_plain_kernels ? plain : NULL;
    if (drafted)
        o.n_guesses = 4, o.guess_seqs = w->guess_seqs, o.draft_model = w->pair->draft, o.draft_method = w->pair->method;
    if (drafted && w->pair->through_text) {
        read_tokens(w->pair, &tokens);
        o.model_tokens = &tokens.view[0], o.draft_tokens = &tokens.view[1];
    }
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    vocabulary_bytes_release(&tokens.read[0]), vocabulary_bytes_release(&tokens.read[1]);
    EXPECT(!drafted || (g->draft && g->draft->through_text) == w->pair->through_text);
    g->drafter.is_fixed = true;
    g->scheduler.always_swap = w->swap_bytes > 0;
    return g;
}

static int length_of(int i) { return test_is_brief() ? 9 - i : N_TOKENS - 4 * i; }

static void submit(struct gyre *g, int i, int round, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    int32_t prompt[N_PROMPT];
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = k < 17 ? 3 + 7 * k : 3 + 5 * (k % 6) + 11 * i; // all begin alike
    q.prompt = prompt, q.n_prompt = N_PROMPT - 3 * i, q.max_tokens = length_of(i), q.ignore_eos = true, q.user = t;
    q.temperature = i < 3 ? 0 : 0.7f, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = i == 1 || i == 4 ? 1.2f : 1;
    q.logprobs = round == 0;
    EXPECT_OK(gyre_submit(g, &q, &t->id, &err), err);
    t->n = 0;
}

/* Each round asks the same again, so that prompts are found in the cache. */
static void write_texts(const struct world *w, bool drafted, struct text (*texts)[N_TEXTS], struct drafter *seen) {
    struct gyre *g = open_world(w, drafted);
    struct gyre_event e[64];
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_TEXTS; i++)
            submit(g, i, round, &texts[round][i]);
        while (gyre_busy(g))
            for (int i = 0, n = gyre_poll(g, e, 64); i < n; i++)
                if (e[i].kind == GYRE_TOKEN) {
                    struct text *t = e[i].user;
                    t->logprobs[t->n] = round == 0 ? e[i].logprob : 0;
                    t->tokens[t->n++] = e[i].token;
                    if (w->cancels && drafted && t->id % 2 == 0 && t->n == 5)
                        gyre_cancel(g, t->id);
                }
        EXPECT(scheduler_check(&g->scheduler) == NULL);
    }
    EXPECT_EQ(g->steps[0].plan.wants_hidden, drafted && g->draft->feature != NO_STATES);
    *seen = g->drafter;
    gyre_close(g);
}

/* Whether b is another text. On the CPU log-probabilities are the same to the bit. */
static bool parts(const struct text *a, const struct text *b) {
    float most = rig_backend() == &backend_cpu ? 0 : 1e-3f;
    for (int i = 0; i < b->n; i++) {
        if (a->tokens[i] != b->tokens[i])
            return true;
        EXPECT(fabsf(a->logprobs[i] - b->logprobs[i]) <= most);
    }
    return false;
}

static void compare(const struct world *w, int least_right) {
    static struct text plain[N_ROUNDS][N_TEXTS], guessed[N_ROUNDS][N_TEXTS];
    struct drafter none, seen;
    memset(plain, 0, sizeof plain), memset(guessed, 0, sizeof guessed);
    write_texts(w, false, plain, &none);
    write_texts(w, true, guessed, &seen);
    EXPECT_EQ(none.n_guessed, 0);
    int n_parted = 0;
    if (seen.n_accepted * 100 < seen.n_guessed * least_right || seen.n_guessed < (test_is_brief() ? 3
                                                                                  : w->guess_seqs ? 10
                                                                                                  : 100))
        fail_msg("%s: of %lld guesses %lld are right", w->pair->draft, (long long)seen.n_guessed,
                 (long long)seen.n_accepted);
    for (int round = 0; round < N_ROUNDS; round++)
        for (int i = 0; i < N_TEXTS; i++) {
            const struct text *a = &plain[round][i], *b = &guessed[round][i];
            EXPECT_EQ(a->n, length_of(i));
            EXPECT(b->n == a->n || (w->cancels && b->id % 2 == 0 && b->n >= 5));
            n_parted += parts(a, b);
        }
    if (n_parted > (rig_backend() == &backend_cpu ? 0 : 1))
        fail_msg("%s: with guesses %d texts are others", w->pair->draft, n_parted);
}

static void texts_and_logprobs_are_those_without(void **state) {
    (void)state;
    for (size_t i = 0; i < (test_is_brief() ? 2 : ARRAY_LEN(pairs)); i++)
        compare(&(const struct world){&pairs[i], 32 << 20, 0}, pairs[i].least_right);
}

static void drafts_with_other_tokens_guess_through_the_text(void **state) {
    (void)state;
    for (size_t i = 0; i < (test_is_brief() ? 1 : ARRAY_LEN(through_text)); i++) {
        const struct pair *p = &through_text[i];
        compare(&(const struct world){p, 32 << 20, 0}, p->least_right);
        compare(&(const struct world){.pair = p, .cache_bytes = 32 << 20, .guess_seqs = 3}, p->least_right);
        compare(&(const struct world){.pair = p, .cache_bytes = 32 << 20, .cancels = true}, 0);
    }
}

/* Heads of random numbers, whose guesses are wrong but for a few. */
static void heads_change_no_token(void **state) {
    (void)state;
    static const struct {
        const char *target;
        int hidden, vocab;
    } targets[] = {{"tests/models/qwen3", 128, 1024}, {"tests/models/gpt_oss", 128, 1024}, {"models/story", 256, 4096}};
    for (size_t i = 0; i < (test_is_brief() ? 1 : ARRAY_LEN(targets)); i++) {
        char folder[RIG_PATH];
        rig_eagle3(i == 0 ? RIG_OWN_VOCAB : RIG_SPECFORGE, targets[i].hidden, targets[i].vocab, folder);
        struct pair pair = {targets[i].target, folder, "eagle3", 0};
        compare(&(const struct world){&pair, 32 << 20, 0}, 0);
        compare(&(const struct world){&pair, 1200 << 10, 1 << 20}, 0);
        rig_remove_draft(folder);
    }
}

/* A conversation: each turn begins with all that was said before. */
struct turns {
    int32_t tokens[400], n, n_reused[6];
};

enum { N_TURNS = 6, SAID = 13 };

/* What was said without guesses: all of them are right. */
static int know(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct turns *t = context;
    int n = MAX(MIN(MIN(max, 4), t->n - seq->n_tokens), 0);
    memcpy(out, t->tokens + seq->n_tokens, (size_t)n * sizeof *out);
    return n;
}

static void talk(const struct world *w, bool drafted, const struct turns *known, struct turns *t) {
    struct gyre *g = open_world(w, drafted);
    if (known)
        g->drafter = (struct drafter){.guess = know, .context = (void *)known, .is_fixed = true};
    struct gyre_event e[32];
    struct gyre_error err;
    uint64_t id;
    memset(t, 0, sizeof *t);
    for (int turn = 0; turn < N_TURNS; turn++) {
        for (int k = 0; k < SAID; k++)
            t->tokens[t->n++] = 5 + 31 * turn + 7 * k;
        struct gyre_request q = gyre_request_default(g);
        q.prompt = t->tokens, q.n_prompt = t->n, q.max_tokens = 11 + turn, q.ignore_eos = true, q.temperature = 0;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        while (gyre_busy(g))
            for (int i = 0, n = gyre_poll(g, e, 32); i < n; i++)
                if (e[i].kind == GYRE_TOKEN)
                    t->tokens[t->n++] = e[i].token;
                else if (e[i].kind == GYRE_DONE)
                    t->n_reused[turn] = e[i].timing.n_reused;
    }
    int least = rig_backend() == &backend_cpu ? 30 : 15; // a step that is planned while one runs guesses nothing
    if (drafted && g->drafter.n_guessed <= least)
        fail_msg("%s, %s: %lld guesses", w->pair->target, w->pair->method ? w->pair->method : "known",
                 (long long)g->drafter.n_guessed);
    gyre_close(g);
}

/* As many tokens of each turn are found in the cache with guesses as without; of a recurrent model too, whose states
 * are kept at ends of blocks that steps with guesses jump over. */
static void turns_find_as_much_in_the_cache_as_without(void **state) {
    (void)state;
    static struct turns plain, guessed;
    char folder[RIG_PATH];
    rig_qwen3_5_mtp("tests/models/qwen3_5", folder);
    const struct pair hybrids[] = {{"tests/models/qwen3_5", NULL, NULL, 0}, // all guesses are right
                                   {folder, NULL, "mtp", 0},
                                   {"tests/models/qwen3_5", NULL, NULL, 0},
                                   {"tests/models/qwen3", "tests/models/qwen3", NULL, 0}};
    for (size_t i = 0; i < ARRAY_LEN(hybrids); i++) {
        struct world w = {&hybrids[i], 32 << 20, 0, 256};
        talk(&w, false, NULL, &plain);
        talk(&w, true, i == 0 ? &plain : NULL, &guessed);
        EXPECT_EQ(plain.n, guessed.n);
        assert_memory_equal(plain.tokens, guessed.tokens, sizeof plain.tokens);
        for (int turn = 0; turn < N_TURNS; turn++) {
            EXPECT(turn == 0 || plain.n_reused[turn] > 8);
            if (guessed.n_reused[turn] < plain.n_reused[turn])
                fail_msg("%s: turn %d found %d tokens, without guesses %d", hybrids[i].target, turn,
                         guessed.n_reused[turn], plain.n_reused[turn]);
        }
    }
    rig_remove_draft(folder);
}

/* Predictors of random numbers. */
static void recurrent_states_go_back(void **state) {
    (void)state;
    char folder[RIG_PATH];
    rig_qwen3_5_mtp("tests/models/qwen3_5", folder);
    struct pair pair = {folder, NULL, "mtp", 0};
    compare(&(const struct world){&pair, 32 << 20, 0}, 0);
    compare(&(const struct world){&pair, 4 << 20, 2 << 20}, 0);
    compare(&(const struct world){&pair, 4 << 20, 2 << 20, .cancels = true}, 0);
    rig_remove_draft(folder);
}

/* Blocks, and layers that read the target's cache, whose window ends within a text. */
static void blocks_and_assistants_change_no_token(void **state) {
    (void)state;
    char folder[RIG_PATH];
    for (int i = 0; i < 2; i++) {
        (i == 0 ? rig_dflash : rig_assistant)(folder);
        struct pair pair = {i == 0 ? "tests/models/qwen3" : "tests/models/gemma4", folder, NULL, 0};
        compare(&(const struct world){&pair, 32 << 20, 0}, 0);
        compare(&(const struct world){&pair, 2 << 20, 1 << 20}, 0);
        rig_remove_draft(folder);
    }
}

struct told {
    int n;
    int32_t tokens[400];
};

static void tell_guesses(const struct pair *pair, struct told *told) {
    struct gyre *g = open_world(&(const struct world){pair, 16 << 20, 0}, true);
    struct gyre_event e[32];
    static struct text text;
    submit(g, 0, 0, &text);
    memset(told, 0, sizeof *told);
    while (gyre_busy(g)) {
        int n = gyre_poll(g, e, 32);
        const struct request *r = n > 0 ? request_table_find(&g->requests, e[0].id) : NULL;
        for (int i = 0; r && i < r->draft.n && told->n < 400; i++)
            told->tokens[told->n++] = r->draft.tokens[i];
    }
    gyre_close(g);
}

static void layouts_of_one_head_guess_alike(void **state) {
    (void)state;
    static struct told first, other;
    char folder[RIG_PATH];
    struct pair pair = {"tests/models/qwen3", folder, NULL, 0};
    for (int layout = 0; layout < RIG_OWN_VOCAB; layout++) {
        rig_eagle3((enum rig_layout)layout, 128, 1024, folder);
        tell_guesses(&pair, layout == 0 ? &first : &other);
        rig_remove_draft(folder);
        EXPECT(first.n > (test_is_brief() ? 3 : 100)); // a brief text is one of nine tokens
        EXPECT(layout == 0 || memcmp(&first, &other, sizeof first) == 0);
    }
}

static void write_mtp(char path[RIG_PATH]) { rig_qwen3_5_mtp("tests/models/qwen3_5", path); }
static void write_eagle3(char path[RIG_PATH]) { rig_eagle3(RIG_SPECFORGE, 128, 1024, path); }
static void write_own_vocab(char path[RIG_PATH]) { rig_eagle3(RIG_OWN_VOCAB, 128, 1024, path); }

/* What each kind of draft guesses, with weights of random numbers and plain kernels, as it was when trained ones agreed
 * with their goldens (test_draft_goldens.c). */
static void drafts_guess_as_when_they_agreed_with_goldens(void **state) {
    (void)state;
    static const struct {
        void (*write)(char path[RIG_PATH]);
        const char *target; // NULL: the folder that is written
        int32_t guesses[12];
    } cases[] = {
        {write_eagle3, "tests/models/qwen3", {209, 209, 209, 209, 739, 406, 406, 406, 209, 602, 602, 602}},
        {write_own_vocab, "tests/models/qwen3", {627, 627, 627, 324, 216, 558, 558, 558, 627, 627, 627, 627}},
        {rig_dflash, "tests/models/qwen3", {152, 152, 152, 152, 152, 152, 152, 152, 152, 152, 152, 152}},
        {rig_assistant, "tests/models/gemma4", {678, 680, 680, 680, 678, 680, 680, 680, 678, 680, 680, 680}},
        {write_mtp, NULL, {961, 433, 193, 72, 774, 638, 649, 152, 1002, 341, 298, 675}},
    };
    if (rig_backend() != &backend_cpu)
        skip(); // the kernels are the CPU's
    with_plain_kernels = true;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        static struct told told;
        char folder[RIG_PATH];
        cases[i].write(folder);
        struct pair pair = {cases[i].target ? cases[i].target : folder, cases[i].target ? folder : NULL,
                            cases[i].target ? NULL : "mtp", 0};
        tell_guesses(&pair, &told);
        rig_remove_draft(folder);
        if (memcmp(told.tokens, cases[i].guesses, sizeof cases[i].guesses) == 0)
            continue;
        for (size_t k = 0; k < ARRAY_LEN(cases[i].guesses); k++)
            print_error("%d, ", told.tokens[k]);
        with_plain_kernels = false;
        fail_msg("draft %zu guesses these", i);
    }
    with_plain_kernels = false;
}

/* Sooner or later fewer run than get guesses. */
static void fewer_get_guesses_than_run(void **state) {
    (void)state;
    compare(&(const struct world){&pairs[1], 32 << 20, 0, .guess_seqs = 3}, 0);
}

/* Room for two texts and a half: the others give way and come back. */
static void texts_are_the_same_where_sequences_give_way(void **state) {
    (void)state;
    char folder[RIG_PATH];
    rig_eagle3(RIG_SPECFORGE, 128, 1024, folder);
    struct pair head = {"tests/models/qwen3", folder, NULL, 0}; // a head keeps up while others get guesses
    compare(&(const struct world){&head, 32 << 20, 0, .guess_seqs = 3}, 0);
    compare(&(const struct world){&head, 32 << 20, 0, .guess_seqs = 2}, 0);
    rig_remove_draft(folder);
    compare(&(const struct world){&pairs[1], 1200 << 10, 1 << 20, .cancels = true}, 0);
    for (int swap = 0; swap < 2; swap++)
        compare(&(const struct world){&pairs[1], 1200 << 10, swap ? 1 << 20 : 0}, 0);
}

static void what_cannot_guess_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *draft, *method, *word;
    } cases[] = {
        {"models/story", "tests/models/qwen3", "draft_model", "4096"}, // another vocabulary
        {"tests/models/qwen3", "tests/models/qwen3_5", "draft_model", "recurrent"},
        {"tests/models/mistral", "tests/models/llama", "draft_model", "whole text"},
        {"tests/models/qwen3", "tests/models/none", "draft_model", "none"},
        {"tests/models/qwen3", "tests/models/llama", "medusa", "medusa"},
        {"tests/models/qwen3", NULL, "draft_model", "folder"},
    };
    struct gyre *g;
    struct gyre_error err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gyre_options o = {.struct_size = sizeof o, .model = cases[i].model, .backend = &backend_cpu};
        o.kv_cache_bytes = 16 << 20, o.n_guesses = 3, o.draft_model = cases[i].draft, o.draft_method = cases[i].method;
        EXPECT(gyre_open(&o, &g, &err) != 0);
        if (!strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, err.text);
    }
}

static void write_own_embed(char path[RIG_PATH]) { rig_eagle3(RIG_OWN_EMBED, 128, 1024, path); }
static void write_small_embed(char path[RIG_PATH]) { rig_eagle3(RIG_OWN_EMBED, 128, 1020, path); }

/* One thing is changed in a head that is read as it is. */
static void what_a_head_says_wrongly_is_refused(void **state) {
    (void)state;
    static const struct {
        void (*write)(char path[RIG_PATH]);
        const char *file, *text, *with, *says[2]; // says: NULL where it is read
    } cases[] = {
        {write_own_embed, NULL, NULL, NULL, {NULL}},
        {write_own_embed,
         "model.safetensors",
         "\"d2t\":{\"dtype\":\"I64\"",
         "\"d2t\":{\"dtype\":\"F64\"",
         {"model.safetensors", "tensor d2t is stored as f64, it must be i64"}},
        {write_small_embed, NULL, NULL, NULL, {"config.json", "embed_tokens has 1020 tokens, the target has 1024"}},
        {rig_dflash, NULL, NULL, NULL, {NULL}},
        {rig_dflash, "config.json", "mask_token_id", "other_token_x", {"config.json", "mask_token_id"}},
    };
    struct gyre *g;
    struct gyre_error err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char folder[RIG_PATH];
        cases[i].write(folder);
        if (cases[i].file)
            rig_replace(folder, cases[i].file, cases[i].text, cases[i].with);
        struct gyre_options o = {.struct_size = sizeof o, .model = "tests/models/qwen3", .backend = &backend_cpu};
        o.kv_cache_bytes = 16 << 20, o.n_guesses = 3, o.draft_model = folder;
        int st = gyre_open(&o, &g, &err);
        if (st == 0)
            gyre_close(g);
        rig_remove_draft(folder);
        bool is_right = cases[i].says[0] ? st != 0 && strstr(err.text, cases[i].says[0]) &&
                                               strstr(err.text, cases[i].says[1]) && strstr(err.text, folder)
                                         : st == 0;
        if (!is_right)
            fail_msg("case %zu: status %d, %s", i, st, st ? err.text : "opened");
    }
}

/* Blocks read later rows, an assistant the target's cache. Which plugin $GYRE_XLA_PLUGIN names does not matter: this
 * runs in tests/cli/xla/test_xla_stand_in.py. */
static void xla_refuses_blocks_and_assistants(void **state) {
    (void)state;
    static const char *const own[] = {"cache=0", NULL};
    const struct backend_ops *xla;
    struct gyre *g;
    struct error unknown;
    struct gyre_error err;
    if (!getenv("GYRE_XLA_PLUGIN"))
        skip();
    EXPECT_OK(backend_get("xla", &xla, &unknown), unknown);
    for (int i = 0; i < 2; i++) {
        char folder[RIG_PATH];
        (i == 0 ? rig_dflash : rig_assistant)(folder);
        struct gyre_options o = {.struct_size = sizeof o, .backend = xla, .device_options = own, .n_guesses = 3};
        o.model = i == 0 ? "tests/models/qwen3" : "tests/models/gemma4";
        o.kv_cache_bytes = 16 << 20, o.draft_model = folder;
        EXPECT(gyre_open(&o, &g, &err) == ERR_UNSUPPORTED);
        rig_remove_draft(folder);
        if (!strstr(err.text, i == 0 ? "ATTENTION: device xla" : "another program's cache"))
            fail_msg("case %d: %s", i, err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_logprobs_are_those_without),
        cmocka_unit_test(drafts_with_other_tokens_guess_through_the_text),
        cmocka_unit_test(heads_change_no_token),
        cmocka_unit_test(layouts_of_one_head_guess_alike),
        cmocka_unit_test(drafts_guess_as_when_they_agreed_with_goldens),
        cmocka_unit_test(recurrent_states_go_back),
        cmocka_unit_test(blocks_and_assistants_change_no_token),
        cmocka_unit_test(turns_find_as_much_in_the_cache_as_without),
        cmocka_unit_test(fewer_get_guesses_than_run),
        cmocka_unit_test(texts_are_the_same_where_sequences_give_way),
        cmocka_unit_test(what_cannot_guess_is_refused),
        cmocka_unit_test(what_a_head_says_wrongly_is_refused),
        cmocka_unit_test(xla_refuses_blocks_and_assistants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
