/* test_text_drafts.c - draft models with other tokens on long texts: the target guesses for itself, with one token
 * less, so that nearly all guesses are right if the draft reads what was said; with more texts than places, special
 * tokens, and a draft whose context ends before the target's.
 *
 * Not in make test-fast: long texts. */
#include "check.h"
#include "engine/draft/draft_rows.h"
#include "engine/draft/text_drafter_parts.h"
#include "engine/engine.h"
#include "lib/backends.h"
#include "text/tokenizer.h"
#include "text/vocabulary_bytes.h"

#include "base/file.h"
#include "base/random.h"

#include <string.h>

enum { N_TEXTS = 9, MOST = 1100, N_TOKENS = 40 };

struct text {
    int32_t prompt[MOST], tokens[N_TOKENS];
    int n_prompt, n;
    float logprobs[N_TOKENS];
};

static struct gyre *open_pair(const char *target, const char *draft, int most_seqs, int max_len) {
    struct vocabulary_bytes read[2];
    struct gyre_token_bytes view[2];
    struct gyre_error err;
    struct error e;
    struct gyre *g;
    struct gyre_options o = {.struct_size = sizeof o,
                             .model = target,
                             .backend = &backend_cpu,
                             .n_threads = 1,
                             .dtype = "float32",
                             .max_model_len = max_len,
                             .max_seqs = most_seqs,
                             .max_batched_tokens = 200,
                             .block_size = 16,
                             .kv_cache_bytes = 48 << 20};
    if (!draft) {
        EXPECT_OK(gyre_open(&o, &g, &err), err);
        return g;
    }
    EXPECT_OK(vocabulary_bytes_of_both(target, draft, read, &e), e);
    for (int i = 0; i < 2; i++)
        view[i] = (struct gyre_token_bytes){read[i].bytes.ptr, read[i].start, read[i].n, read[i].first};
    if (token_bytes_equal(&view[0], &view[1]))
        read[1].bytes.ptr[read[1].start[read[1].n] - 1] ^= 1;
    o.n_guesses = 4, o.guess_seqs = most_seqs, o.always_guess = true;
    o.draft_model = draft, o.draft_method = "draft_model", o.model_tokens = &view[0], o.draft_tokens = &view[1];
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    vocabulary_bytes_release(&read[0]), vocabulary_bytes_release(&read[1]);
    EXPECT(g->draft->through_text);
    return g;
}

/* Pieces of a real text, some with special tokens among them; each of another length, up to `longest`. */
static void make_prompts(const char *model, struct text texts[N_TEXTS], int longest) {
    struct buf file = {0};
    struct tokenizer *tok;
    struct error err;
    EXPECT_OK(file_read("models/story/heldout.txt", 1 << 20, &file, &err), err);
    EXPECT_OK(tokenizer_open(model, &tok, &err), err);
    struct encoder *enc = encoder_open(tok);
    for (int i = 0; i < N_TEXTS; i++) {
        struct token_ids ids = {0};
        struct text *t = &texts[i];
        size_t from = (size_t)(philox_uniform(test_seed(), (uint64_t)i, 7) * (double)(file.len - 6000));
        while ((file.ptr[from] & 0xC0) == 0x80)
            from++;
        EXPECT_OK(tokenizer_encode(enc, (struct str){file.ptr + from, 5000}, 0, &ids, &err), err);
        t->n = 0;
        t->n_prompt =
            MIN((int)ids.n, i == 0 ? longest : 5 + (int)(philox_uniform(test_seed(), (uint64_t)i, 8) * longest / 2));
        memcpy(t->prompt, ids.ids, (size_t)t->n_prompt * sizeof *t->prompt);
        for (int32_t id = 0, k = 0; i % 2 && id < tokenizer_n_vocab(tok) && k < t->n_prompt; id++)
            if (tokenizer_is_special(tok, id))
                t->prompt[k] = id, k += 37;
        token_ids_release(&ids);
    }
    encoder_free(enc);
    tokenizer_free(tok);
    buf_release(&file);
}

static void write_all(struct gyre *g, bool drawn, struct text texts[N_TEXTS]) {
    struct gyre_event e[32];
    struct gyre_error err;
    uint64_t id;
    for (int i = 0; i < N_TEXTS; i++) {
        struct gyre_request q = gyre_request_default(g);
        q.prompt = texts[i].prompt, q.n_prompt = texts[i].n_prompt, q.max_tokens = N_TOKENS, q.ignore_eos = true;
        q.temperature = drawn && i % 3 == 2 ? 0.5f : 0, q.seed = (uint64_t)i, q.logprobs = true, q.user = &texts[i];
        q.repetition_penalty = 1, q.top_k = 0, q.top_p = 1, q.min_p = 0;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    while (gyre_busy(g))
        for (int i = 0, n = gyre_poll(g, e, 32); i < n; i++) {
            struct text *t = e[i].user;
            if (e[i].kind == GYRE_TOKEN)
                t->logprobs[t->n] = e[i].logprob, t->tokens[t->n++] = e[i].token;
            EXPECT(e[i].kind != GYRE_DONE || e[i].finish == GYRE_LENGTH);
        }
}

/* Places and blocks are where they should be. */
static void expect_whole(const struct gyre *g) {
    const struct text_drafter *d = g->drafter.context;
    int32_t n = d->n_free;
    for (int i = 0; i < d->n_places; i++) {
        const struct text_place *t = &d->places[i];
        n += t->n_blocks;
        EXPECT(t->n_rows <= t->n_ids && t->n_ids <= d->longest && t->n_rows <= t->n_blocks * d->block_size);
    }
    EXPECT_EQ(n, g->cache.n_blocks[draft_group(g->program)]);
}

/* least_right: per cent of the guesses; 0: some texts are drawn. */
static void compare(const char *target, const char *draft, int most_seqs, int longest, int least_right) {
    static struct text plain[N_TEXTS], guessed[N_TEXTS];
    make_prompts(target, plain, longest);
    memcpy(guessed, plain, sizeof plain);
    struct gyre *g = open_pair(target, NULL, most_seqs, longest + N_TOKENS);
    write_all(g, least_right == 0, plain);
    gyre_close(g);
    g = open_pair(target, draft, most_seqs, longest + N_TOKENS);
    write_all(g, least_right == 0, guessed);
    expect_whole(g);
    int64_t right = g->drafter.n_accepted, all = g->drafter.n_guessed;
    gyre_close(g);
    for (int i = 0; i < N_TEXTS; i++) {
        assert_memory_equal(plain[i].tokens, guessed[i].tokens, sizeof plain[i].tokens);
        assert_memory_equal(plain[i].logprobs, guessed[i].logprobs, sizeof plain[i].logprobs);
    }
    if (all < 100 || right * 100 < all * least_right)
        fail_msg("%s for %s: of %lld guesses %lld are right", draft, target, (long long)all, (long long)right);
}

static void a_model_guesses_itself_through_the_text(void **state) {
    (void)state;
    if (!test_is_brief())
        compare("models/story", "models/story", 3, 700, 90);
    compare("models/story", "models/story", 2, 300, 90); // places are taken from one another
}

static void another_model_changes_no_token(void **state) {
    (void)state;
    compare("models/story", "tests/models/llama", 3, 500, 0);
    if (test_is_brief())
        return;
    compare("tests/models/qwen3_5", "models/story", 3, 600, 5);
    compare("models/story", "tests/models/qwen3", 2, 900, 0); // the longest is beyond the draft's 1,024 tokens
}

/* A draft reads a prompt once, before its first guess: what that takes is no part of a guess's price. */
static void prompts_are_no_part_of_the_price(void **state) {
    (void)state;
    static struct text texts[N_TEXTS];
    make_prompts("models/story", texts, 150);
    struct gyre *g = open_pair("models/story", "models/story", 1, 150 + N_TOKENS);
    for (int turn = 0; turn < 2; turn++) { // one guess behind the prompt, then many
        struct gyre_request q = gyre_request_default(g);
        struct gyre_event e[32];
        struct gyre_error err;
        uint64_t id;
        q.prompt = texts[0].prompt, q.n_prompt = texts[0].n_prompt, q.max_tokens = turn ? N_TOKENS : 3;
        q.ignore_eos = true, q.temperature = 0;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        while (gyre_busy(g))
            gyre_poll(g, e, 32);
        EXPECT(g->drafter.n_guessed > 0);
        EXPECT((g->drafter.pass_us > 0) == (turn == 1));
    }
    gyre_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_guesses_itself_through_the_text),
        cmocka_unit_test(another_model_changes_no_token),
        cmocka_unit_test(prompts_are_no_part_of_the_price),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
