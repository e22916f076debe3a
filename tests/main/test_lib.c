/* test_lib.c - gyre_text.h as its callers have it: what many threads are answered is what the engine alone gives. */
#include "check.h"

#include "gyre_text.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

static const char STORY[] = "models/story";
static const struct gyre_options OPTIONS = {sizeof OPTIONS, .model = STORY, .backend = &backend_cpu, .n_threads = 2,
                                            .kv_cache_bytes = 64 << 20};

static struct gyre_llm *open_story(void) {
    struct gyre_llm *m;
    struct gyre_error err;
    EXPECT_OK(gyre_llm_open(&OPTIONS, &m, &err), err);
    return m;
}

static struct gyre_ids ids_of(const struct gyre_text *t, const char *text) {
    struct gyre_ids ids;
    struct gyre_error err;
    EXPECT_OK(gyre_tokenize(t, text, strlen(text), GYRE_ADD_SPECIAL | GYRE_PARSE_SPECIAL, &ids, &err), err);
    return ids;
}

// ---- answers ----------------------------------------------------------------------------------------------------

static const char *const openings[] = {"Once upon a time",           "The dog",      "Lily and Tom went to", "A",
                                       "One day a little fox saw a", "It was cold.", "\"Hello\", said the",  "The sun"};
enum { N_OPENINGS = 8, N_THREADS = 4, MOST = 60 };

struct expected {
    int32_t tokens[MOST];
    int n;
    float logprobs[MOST];
};

static struct gyre_request request_of(struct gyre_request base, struct gyre_ids prompt, int i) {
    base.prompt = prompt.ids, base.n_prompt = (int64_t)prompt.n;
    base.max_tokens = 20 + 5 * i, base.seed = (uint64_t)i, base.temperature = i % 2 ? 0.8f : 0, base.logprobs = true;
    return base;
}

/* By gyre.h alone, one after the other. */
static void answer_alone(const struct gyre_text *t, struct expected out[N_OPENINGS]) {
    struct gyre *g;
    struct gyre_error err;
    uint64_t id;
    EXPECT_OK(gyre_open(&OPTIONS, &g, &err), err);
    for (int i = 0; i < N_OPENINGS; i++) {
        struct gyre_ids prompt = ids_of(t, openings[i]);
        struct gyre_request r = request_of(gyre_request_default(g), prompt, i);
        EXPECT_OK(gyre_submit(g, &r, &id, &err), err);
        while (gyre_busy(g)) {
            struct gyre_event e[4];
            for (int k = 0, n = gyre_poll(g, e, 4); k < n; k++)
                if (e[k].kind == GYRE_TOKEN) {
                    out[i].logprobs[out[i].n] = e[k].logprob;
                    out[i].tokens[out[i].n++] = e[k].token;
                }
        }
        gyre_ids_free(&prompt);
    }
    gyre_close(g);
}

struct asker {
    struct gyre_llm *m;
    const struct expected *expected;
    int n_wrong;
};

static bool is_expected(const struct gyre_llm *m, const struct gyre_answer *a, const struct expected *x) {
    struct gyre_string text;
    struct gyre_error err;
    int n = x->n - (a->stop_token >= 0);
    EXPECT_OK(gyre_detokenize(gyre_llm_text(m), x->tokens, (size_t)n, GYRE_SKIP_SPECIAL, &text, &err), err);
    bool same = a->done && a->n_tokens == x->n && memcmp(a->tokens, x->tokens, (size_t)x->n * sizeof *x->tokens) == 0 &&
                memcmp(a->logprobs, x->logprobs, (size_t)x->n * sizeof *x->logprobs) == 0 &&
                a->n_bytes == text.n_bytes && strcmp(a->text, text.text) == 0 &&
                a->finish == (a->stop_token >= 0 ? GYRE_STOP : GYRE_LENGTH);
    gyre_string_free(&text);
    return same;
}

static void *ask_all(void *arg) {
    struct asker *k = arg;
    struct gyre_error err;
    struct gyre_answer *answers[N_OPENINGS];
    size_t n_shown[N_OPENINGS] = {0};
    for (int i = 0; i < N_OPENINGS; i++) {
        struct gyre_ids prompt = ids_of(gyre_llm_text(k->m), openings[i]);
        struct gyre_request r = request_of(gyre_llm_request_default(k->m), prompt, i);
        r.user = &n_shown[i];
        EXPECT_OK(gyre_llm_ask(k->m, &r, NULL, &answers[i], &err), err);
        gyre_ids_free(&prompt);
    }
    for (int64_t i; (i = gyre_answer_wait(answers, N_OPENINGS, -1)) >= 0;) {
        k->n_wrong += answers[i]->user != &n_shown[i] || n_shown[i] + answers[i]->n_new != answers[i]->n_bytes;
        n_shown[i] = answers[i]->n_bytes;
    }
    for (int i = 0; i < N_OPENINGS; i++) {
        k->n_wrong += !is_expected(k->m, answers[i], &k->expected[i]);
        gyre_answer_free(answers[i]);
    }
    return NULL;
}

static void many_threads_get_what_the_engine_alone_gives(void **state) {
    (void)state;
    static struct expected expected[N_OPENINGS];
    struct gyre_llm *m = open_story();
    answer_alone(gyre_llm_text(m), expected);
    pthread_t threads[N_THREADS];
    struct asker askers[N_THREADS];
    int n = test_is_brief() ? 2 : N_THREADS;
    for (int i = 0; i < n; i++) {
        askers[i] = (struct asker){m, expected, 0};
        EXPECT_EQ(pthread_create(&threads[i], NULL, ask_all, &askers[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(askers[i].n_wrong, 0);
    }
    gyre_llm_close(m);
}

static struct gyre_answer *ask(struct gyre_llm *m, const char *text, int64_t max_tokens,
                               const struct gyre_stream_options *o) {
    struct gyre_ids prompt = ids_of(gyre_llm_text(m), text);
    struct gyre_request r = gyre_llm_request_default(m);
    struct gyre_answer *a;
    struct gyre_error err;
    r.prompt = prompt.ids, r.n_prompt = (int64_t)prompt.n, r.max_tokens = max_tokens,
    r.min_tokens = o ? o->min_tokens : 0;
    EXPECT_OK(gyre_llm_ask(m, &r, o, &a, &err), err);
    gyre_ids_free(&prompt);
    return a;
}

static void wait_for_end(struct gyre_answer *a) {
    while (gyre_answer_wait(&a, 1, -1) >= 0)
        ;
    EXPECT(a->done);
}

static void a_stop_string_ends_an_answer_before_or_behind_it(void **state) {
    (void)state;
    struct gyre_llm *m = open_story();
    struct gyre_answer *whole = ask(m, "Once upon a time", 60, NULL);
    wait_for_end(whole);
    const char *at = strstr(whole->text, "little girl");
    EXPECT(at);
    const char *stops[] = {"nowhere", "little girl", "girl"};
    struct gyre_stream_options o = {sizeof o, .stop = stops, .n_stop = 3};
    struct gyre_answer *a = ask(m, "Once upon a time", 60, &o);
    wait_for_end(a);
    EXPECT_EQ(a->finish, GYRE_STOP);
    EXPECT_EQ(a->stop_string, 1);
    EXPECT_EQ(a->stop_token, -1);
    EXPECT_EQ(a->n_bytes, at - whole->text);
    EXPECT(memcmp(a->text, whole->text, a->n_bytes) == 0);
    EXPECT(a->n_tokens < whole->n_tokens);
    gyre_answer_free(a);
    o.include_stop = true;
    a = ask(m, "Once upon a time", 60, &o);
    wait_for_end(a);
    EXPECT_EQ(a->n_bytes, at + strlen("little girl") - whole->text);
    gyre_answer_free(a);
    o.min_tokens = 50; // the first one comes before so many
    a = ask(m, "Once upon a time", 60, &o);
    wait_for_end(a);
    EXPECT(a->n_tokens > 50 && a->n_bytes > (size_t)(at - whole->text) + 20);
    gyre_answer_free(a);
    gyre_answer_free(whole);
    gyre_llm_close(m);
}

static void an_answer_is_freed_at_any_time(void **state) {
    (void)state;
    struct gyre_llm *m = open_story();
    for (int i = 0; i < 40; i++) {
        struct gyre_answer *a = ask(m, openings[i % N_OPENINGS], 400, NULL);
        for (int k = 0; k < i % 5; k++)
            gyre_answer_wait(&a, 1, -1);
        EXPECT(!a->done);
        gyre_answer_free(a);
    }
    struct gyre_answer *a = ask(m, "The dog", 10, NULL), *left = ask(m, "The cat", 900, NULL);
    wait_for_end(a);
    EXPECT_EQ(a->n_tokens, 10);
    EXPECT_EQ(gyre_answer_wait(&a, 1, -1), -1); // nothing will ever come
    EXPECT_EQ(gyre_answer_wait(NULL, 0, -1), -1);
    gyre_answer_free(a);
    gyre_answer_free(NULL);
    EXPECT(!left->done);
    gyre_llm_close(m); // `left` with it
}

static void a_wait_ends_in_time(void **state) {
    (void)state;
    struct gyre_llm *m = open_story();
    struct timespec before, after;
    const struct gyre_stream_options long_one = {.min_tokens = 900}; // or it may end by itself meanwhile
    struct gyre_answer *a = ask(m, "The dog", 900, &long_one);
    int64_t n_late = 0;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < 1000; i++)
        n_late += gyre_answer_wait(&a, 1, i % 2 ? 0 : -0.0) < 0;
    clock_gettime(CLOCK_MONOTONIC, &after);
    EXPECT(n_late > 0 && !a->done);
    EXPECT(after.tv_sec - before.tv_sec < 20);
    EXPECT(gyre_answer_wait(&a, 1, 1e300) == 0); // longer than any clock goes
    gyre_answer_free(a);
    gyre_llm_close(m);
}

static void prompts_are_scored(void **state) {
    (void)state;
    struct gyre_llm *m = open_story();
    struct gyre_ids prompt = ids_of(gyre_llm_text(m), "Once upon a time there was");
    struct gyre_request r = gyre_llm_request_default(m);
    struct gyre_answer *a;
    struct gyre_error err;
    r.prompt = prompt.ids, r.n_prompt = (int64_t)prompt.n, r.max_tokens = 0, r.score_prompt = true,
    r.n_prompt_top_logprobs = 2;
    EXPECT_OK(gyre_llm_ask(m, &r, NULL, &a, &err), err);
    wait_for_end(a);
    EXPECT_EQ(a->n_prompt, prompt.n);
    EXPECT(isnan(a->prompt_logprobs[0]));
    for (size_t i = 1; i < prompt.n; i++) {
        EXPECT(a->prompt_logprobs[i] < 0 && a->prompt_ranks[i] >= 1);
        EXPECT((a->prompt_ranks[i] == 1) == (a->prompt_top_tokens[2 * i] == prompt.ids[i]));
        EXPECT(a->prompt_top_logprobs[2 * i] >= a->prompt_top_logprobs[2 * i + 1]);
    }
    EXPECT(a->n_bytes == 0 && a->text[0] == '\0');
    gyre_answer_free(a);
    gyre_ids_free(&prompt);
    gyre_llm_close(m);
}

// ---- text -------------------------------------------------------------------------------------------------------

static struct gyre_text *open_text(void) {
    struct gyre_text *t;
    struct gyre_error err;
    EXPECT_OK(gyre_text_open(STORY, &t, &err), err);
    return t;
}

static void a_conversation_is_rendered_from_messages_and_from_json_alike(void **state) {
    (void)state;
    struct gyre_text *t = open_text();
    struct gyre_error err;
    struct gyre_string a, b;
    struct gyre_message said[] = {{"system", "Be \"kind\"."}, {"user", "Hi\nthere"}};
    static const char json[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
                               "\\\"kind\\\".\"},{\"role\":\"user\",\"content\":\"Hi\\nthere\"}]}";
    EXPECT(gyre_text_has_chat(t));
    EXPECT_OK(gyre_render_chat(t, said, 2, &a, &err), err);
    EXPECT_OK(gyre_render_chat_json(t, json, sizeof json - 1, &b, &err), err);
    EXPECT_STR(
        a.text,
        "<|im_start|>system\nBe \"kind\".<|im_end|>\n<|im_start|>user\nHi\nthere<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_STR(b.text, a.text);
    EXPECT_EQ(a.n_bytes, strlen(a.text));
    gyre_string_free(&a);
    gyre_string_free(&a);
    gyre_string_free(&b);
    gyre_text_close(t);
}

static void a_stream_is_what_decoding_at_once_gives(void **state) {
    (void)state;
    struct gyre_text *t = open_text();
    struct gyre_error err;
    static const char text[] = "Tom said: \"caf\xC3\xA9 \xF0\x9F\x98\x80!\" <|im_end|> Then";
    struct gyre_ids ids = ids_of(t, text);
    for (int keep = 0; keep < 2; keep++) {
        struct gyre_stream *s;
        struct gyre_string whole;
        EXPECT_OK(gyre_stream_open(t, &(struct gyre_stream_options){.keep_special = keep}, &s, &err), err);
        EXPECT_STR(gyre_stream_text(s, NULL), "");
        for (size_t i = 0; i < ids.n; i++)
            EXPECT_OK(gyre_stream_feed(s, ids.ids[i], &err), err);
        EXPECT_OK(gyre_stream_finish(s, &err), err);
        EXPECT_OK(gyre_detokenize(t, ids.ids, ids.n, keep ? 0 : GYRE_SKIP_SPECIAL, &whole, &err), err);
        EXPECT_STR(gyre_stream_text(s, NULL), whole.text);
        EXPECT_EQ(strstr(whole.text, "<|im_end|>") != NULL, keep);
        EXPECT_EQ(gyre_stream_stopped(s), -1);
        gyre_string_free(&whole);
        gyre_stream_close(s);
    }
    gyre_ids_free(&ids);
    gyre_text_close(t);
}

/* A decoder that takes a blank off the beginning of a text takes none off the beginning of an answer. */
static void a_stream_goes_on_behind_its_prompt(void **state) {
    (void)state;
    struct gyre_text *t;
    struct gyre_error err;
    EXPECT_OK(gyre_text_open("tests/data/tokenizers/llama-2-small", &t, &err), err);
    struct gyre_ids ids = ids_of(t, "Hello big world");
    struct gyre_string whole;
    EXPECT_OK(gyre_detokenize(t, ids.ids, ids.n, GYRE_SKIP_SPECIAL, &whole, &err), err);
    for (size_t n = 0; n <= ids.n; n++) {
        struct gyre_string prompt;
        struct gyre_stream *s;
        size_t n_bytes;
        EXPECT_OK(gyre_detokenize(t, ids.ids, n, GYRE_SKIP_SPECIAL, &prompt, &err), err);
        EXPECT_OK(gyre_stream_open(t, &(struct gyre_stream_options){.prompt = ids.ids, .n_prompt = n}, &s, &err), err);
        for (size_t i = n; i < ids.n; i++)
            EXPECT_OK(gyre_stream_feed(s, ids.ids[i], &err), err);
        EXPECT_OK(gyre_stream_finish(s, &err), err);
        EXPECT_STR(gyre_stream_text(s, &n_bytes), whole.text + prompt.n_bytes);
        EXPECT_EQ(n_bytes, whole.n_bytes - prompt.n_bytes);
        gyre_stream_close(s);
        gyre_string_free(&prompt);
    }
    EXPECT_STR(whole.text, "Hello big world");
    gyre_string_free(&whole);
    gyre_ids_free(&ids);
    gyre_text_close(t);
}

// ---- refusals ---------------------------------------------------------------------------------------------------

#define EXPECT_REFUSED(call, err, sentence)                                                       \
    do {                                                                                          \
        EXPECT((call) != 0);                                                                      \
        if (!strstr((err).text, sentence))                                                        \
            fail_msg("%s:%d: \"%s\" is not in \"%s\"", __FILE__, __LINE__, sentence, (err).text); \
    } while (0)

static void what_is_asked_of_text_is_checked(void **state) {
    (void)state;
    struct gyre_text *t = open_text();
    struct gyre_text *none;
    struct gyre_error err;
    struct gyre_ids ids;
    struct gyre_string s;
    struct gyre_stream *stream;
    const char *stops[] = {"a", ""};
    EXPECT_REFUSED(gyre_text_open("tests/data", &none, &err), err, "tests/data");
    EXPECT_REFUSED(gyre_text_open(NULL, &none, &err), err, "model is NULL");
    EXPECT(!none);
    EXPECT_REFUSED(gyre_tokenize(t, NULL, 5, 0, &ids, &err), err, "NULL");
    EXPECT_REFUSED(gyre_tokenize(t, "a", 1, 64, &ids, &err), err, "flags: 0x40");
    EXPECT_REFUSED(gyre_tokenize(t, "a", SIZE_MAX, 0, &ids, &err), err, "bytes");
    EXPECT(!ids.ids && ids.n == 0);
    EXPECT_REFUSED(gyre_detokenize(t, (int32_t[]){5, 1 << 30}, 2, 0, &s, &err), err,
                   "the id 1073741824 is not in the vocabulary");
    EXPECT_REFUSED(gyre_detokenize(t, (int32_t[]){-1}, 1, 0, &s, &err), err, "the id -1");
    EXPECT_REFUSED(gyre_token_bytes(t, INT32_MIN, &s, &err), err, "not in the vocabulary");
    EXPECT_REFUSED(gyre_render_chat(t, NULL, 0, &s, &err), err, "messages: the array is empty");
    EXPECT_REFUSED(gyre_render_chat(t, &(struct gyre_message){"user", "\xFF"}, 1, &s, &err), err,
                   "messages[0].content");
    EXPECT_REFUSED(gyre_render_chat(t, &(struct gyre_message){NULL, "a"}, 1, &s, &err), err, "messages[0].role");
    EXPECT_REFUSED(gyre_render_chat_json(t, "{\"messages\":", 12, &s, &err), err, "the conversation");
    EXPECT_REFUSED(gyre_render_chat_json(t, "{}", 2, &s, &err), err, "messages: it must be an array");
    EXPECT_REFUSED(gyre_stream_open(t, &(struct gyre_stream_options){.stop = stops, .n_stop = 2}, &stream, &err), err,
                   "stop[1]");
    EXPECT_REFUSED(gyre_stream_open(t, &(struct gyre_stream_options){.stop = stops, .n_stop = SIZE_MAX}, &stream, &err),
                   err, "stop: ");
    EXPECT_REFUSED(gyre_stream_open(t, &(struct gyre_stream_options){.n_prompt = 3}, &stream, &err), err,
                   "prompt: it is NULL");
    EXPECT(gyre_tokenize(t, "a", SIZE_MAX, 0, &ids, NULL) != 0); // nobody wants the sentence
    gyre_text_close(t);
}

static void devices_have_names(void **state) {
    (void)state;
    const struct backend_ops *b;
    struct gyre_error err;
    setenv("GYRE_PLUGINS", "tests/data", 1);
    EXPECT_OK(gyre_backend("cpu", &b, &err), err);
    EXPECT(b == &backend_cpu);
    EXPECT_REFUSED(gyre_backend("cuda", &b, &err), err, "device cuda: there is no libgyre-cuda.so in tests/data");
    EXPECT_EQ(err.status, GYRE_UNSUPPORTED);
    EXPECT_REFUSED(gyre_backend("tpu", &b, &err), err, "device tpu: it is none of");
    EXPECT_EQ(err.status, GYRE_ARGUMENT);
    EXPECT_REFUSED(gyre_backend(NULL, &b, &err), err, "device : it is none of");
    EXPECT(!b);
}

static void structs_of_other_versions_are_read_or_refused(void **state) {
    (void)state;
    struct gyre_error err;
    struct gyre_llm *m, *none;
    struct gyre_answer *a;
    struct {
        struct gyre_options now;
        char later[64];
    } newer = {.now = OPTIONS};
    newer.now.struct_size = 5; // and what stands behind it is none of the caller's
    newer.now.model = (const char *)8;
    EXPECT_REFUSED(gyre_llm_open(&newer.now, &none, &err), err, "struct_size is ");
    newer.now.model = OPTIONS.model;
    newer.now.struct_size = sizeof newer;
    newer.later[9] = 1;
    EXPECT_REFUSED(gyre_llm_open(&newer.now, &none, &err), err, "struct gyre_options comes from a newer gyre.h");
    newer.later[9] = 0;
    EXPECT_OK(gyre_llm_open(&newer.now, &m, &err), err);
    newer.now.struct_size = 24; // less than the first version's
    EXPECT_REFUSED(gyre_llm_open(&newer.now, &none, &err), err, "struct_size is ");
    newer.now.struct_size = SIZE_MAX;
    EXPECT_REFUSED(gyre_llm_open(&newer.now, &none, &err), err,
                   "struct_size is 18446744073709551615: set it to sizeof");
    newer.now.struct_size = 0; // as version 0.1 has it
    newer.now.backend = NULL;
    EXPECT_REFUSED(gyre_llm_open(&newer.now, &none, &err), err, "backend is NULL");
    struct gyre_request r = gyre_llm_request_default(m);
    EXPECT_EQ(r.struct_size, sizeof r);
    int32_t prompt[] = {5, 6, 7};
    r.prompt = prompt, r.n_prompt = 3, r.max_tokens = 3;
    r.struct_size = 24;
    EXPECT_REFUSED(gyre_llm_ask(m, &r, NULL, &a, &err), err, "struct gyre_request");
    r.struct_size = 0;
    EXPECT_REFUSED(gyre_llm_ask(m, &r, &(struct gyre_stream_options){.struct_size = 3}, &a, &err), err,
                   "gyre_stream_options");
    r.prompt = NULL;
    EXPECT_REFUSED(gyre_llm_ask(m, &r, NULL, &a, &err), err, "prompt: it is NULL");
    r.prompt = prompt, r.want_last_logits = true;
    EXPECT_REFUSED(gyre_llm_ask(m, &r, NULL, &a, &err), err, "want_last_logits");
    r.want_last_logits = false, r.max_tokens = 1 << 20;
    EXPECT_REFUSED(gyre_llm_ask(m, &r, NULL, &a, &err), err, "maximum context length is 1024 tokens");
    r.max_tokens = 3;
    EXPECT_OK(gyre_llm_ask(m, &r, NULL, &a, &err), err);
    gyre_answer_free(a);
    gyre_llm_close(m);
    EXPECT_STR(gyre_version(), GYRE_VERSION);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", GYRE_VERSION_NUMBER / 10000, GYRE_VERSION_NUMBER / 100 % 100,
             GYRE_VERSION_NUMBER % 100);
    EXPECT_STR(text, GYRE_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_get_what_the_engine_alone_gives),
        cmocka_unit_test(a_stop_string_ends_an_answer_before_or_behind_it),
        cmocka_unit_test(an_answer_is_freed_at_any_time),
        cmocka_unit_test(a_wait_ends_in_time),
        cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(a_conversation_is_rendered_from_messages_and_from_json_alike),
        cmocka_unit_test(a_stream_is_what_decoding_at_once_gives),
        cmocka_unit_test(a_stream_goes_on_behind_its_prompt),
        cmocka_unit_test(what_is_asked_of_text_is_checked),
        cmocka_unit_test(devices_have_names),
        cmocka_unit_test(structs_of_other_versions_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
