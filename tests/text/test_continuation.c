/* test_continuation.c - the text of an answer behind its prompt: what decoding all gives, without what decoding the
 * prompt gives, as Hugging Face's tokenizers 0.22.2 decodes (tools/fixtures/continuations.py). */
#include "check.h"

#include "base/file.h"
#include "base/json/json.h"
#include "base/random.h"
#include "text/detokenizer.h"

#include <unistd.h>

#define SMALL "tests/data/tokenizers/llama-2-small"

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

static struct tokenizer *open_tokenizer(const char *path) {
    struct error err;
    struct tokenizer *tok;
    EXPECT_OK(tokenizer_open(path, &tok, &err), err);
    return tok;
}

/* A tokenizer.json by way of a file, as any other. */
static struct tokenizer *open_text(struct str text) {
    char path[] = "/tmp/gyre-continuation-XXXXXX.json";
    int fd = mkstemps(path, 5);
    EXPECT(fd >= 0 && write(fd, text.ptr, text.len) == (ssize_t)text.len);
    close(fd);
    struct tokenizer *tok = open_tokenizer(path);
    unlink(path);
    return tok;
}

static struct tokenizer *with_decoder(json_t *decoder) {
    struct error err;
    json_t *file;
    EXPECT_OK(jv_load(SMALL "/tokenizer.json", 1 << 20, 0, &file, &err), err);
    json_object_set(file, "decoder", decoder);
    char *text = json_dumps(file, JSON_COMPACT);
    struct tokenizer *tok = open_text(str_of(text));
    free(text);
    json_decref(file);
    return tok;
}

/* The text of ids[from..n) behind the others; streamed in two halves of a copied detokenizer. */
static void continuation(const struct tokenizer *tok, const int32_t *ids, size_t from, size_t n, int flags,
                         struct buf *out) {
    struct error err;
    struct detokenizer *d = detokenizer_open(tok, flags);
    EXPECT_OK(detokenizer_begin_after(d, ids, from, &err), err);
    size_t half = from + (n - from) / 2;
    for (size_t i = from; i < half; i++)
        EXPECT_OK(detokenizer_feed(d, ids[i], out, &err), err);
    struct detokenizer *copy = detokenizer_copy(d);
    detokenizer_free(d);
    for (size_t i = half; i < n; i++) {
        size_t before = out->len;
        EXPECT_OK(detokenizer_feed(copy, ids[i], out, &err), err);
        EXPECT(out->len == 0 || utf8_valid((struct str){out->ptr + before, out->len - before}));
    }
    EXPECT_OK(detokenizer_finish(copy, out, &err), err);
    detokenizer_free(copy);
}

static void check_case(const struct tokenizer *tok, const char *name, const json_t *c) {
    const json_t *list = json_array_get(c, 0);
    int32_t ids[400];
    size_t n = json_array_size(list), from = (size_t)json_integer_value(json_array_get(c, 1));
    EXPECT(n <= ARRAY_LEN(ids));
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    int flags = json_integer_value(json_array_get(c, 2)) ? DETOKENIZE_SKIP_SPECIAL : 0;
    struct buf text = {0};
    continuation(tok, ids, from, n, flags, &text);
    if (!str_eq(buf_view(&text), string_of(json_array_get(c, 3))))
        fail_msg("%s: %s gives \"%s\"", name, json_dumps(c, 0), buf_view(&text).ptr);
    buf_release(&text);
}

static struct tokenizer *open_named(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", strstr(name, "small") ? "tests/data/tokenizers" : "build/data/tokenizers",
             name);
    return open_tokenizer(path);
}

static void answers_are_the_librarys_texts_without_their_prompts(void **state) {
    (void)state;
    struct error err;
    json_t *file, *entry, *c;
    EXPECT_OK(jv_load("build/data/tokenizers/continuations.json", 16 << 20, 0, &file, &err), err);
    size_t i, k;
    json_array_foreach(file, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "tokenizer"));
        struct tokenizer *tok = name ? open_named(name) : with_decoder(json_object_get(entry, "decoder"));
        char *decoder = name ? NULL : json_dumps(json_object_get(entry, "decoder"), 0);
        json_array_foreach(json_object_get(entry, "cases"), k, c) check_case(tok, name ? name : decoder, c);
        EXPECT(k >= 60);
        free(decoder);
        tokenizer_free(tok);
    }
    EXPECT_EQ(i, 21);
    json_decref(file);
}

/* Where the text of all does not begin with that of the prompt: what of the prompt's end has changed comes again,
 * nothing is lost. */
static void check_random_cut(const struct tokenizer *tok, uint64_t round, int flags) {
    int32_t ids[40];
    struct philox r = philox4x32(test_seed(), 7, round);
    size_t n = 2 + r.v[0] % (ARRAY_LEN(ids) - 2), from = r.v[1] % n;
    for (size_t i = 0; i < n; i++) {
        struct philox d = philox4x32(test_seed(), round + 100, i);
        ids[i] = (int32_t)(d.v[0] % (uint32_t)(d.v[1] % 2 ? tokenizer_n_vocab(tok) : MIN(tokenizer_n_vocab(tok), 300)));
    }
    struct buf all = {0}, prompt = {0}, answer = {0};
    struct error err;
    EXPECT_OK(tokenizer_decode(tok, ids, n, flags, &all, &err), err);
    EXPECT_OK(tokenizer_decode(tok, ids, from, flags, &prompt, &err), err);
    continuation(tok, ids, from, n, flags, &answer);
    EXPECT(str_ends(buf_view(&all), buf_view(&answer)));
    size_t same = 0;
    while (same < prompt.len && same < all.len && prompt.ptr[same] == all.ptr[same])
        same++;
    struct str rest = {buf_view(&all).ptr + same, all.len - same};
    bool spoilt =
        same < prompt.len || str_starts(rest, STR("\xEF\xBF\xBD")); // bytes, of which nobody knows whose they were
    EXPECT(spoilt || str_eq(buf_view(&answer), rest));
    buf_release(&all);
    buf_release(&prompt);
    buf_release(&answer);
}

static void no_cut_loses_or_repeats_text(void **state) {
    (void)state;
    struct error err;
    json_t *file, *entry;
    EXPECT_OK(jv_load("build/data/tokenizers/oracle.json", 64 << 20, 0, &file, &err), err);
    size_t i;
    json_array_foreach(file, i, entry) {
        struct tokenizer *tok = open_text(string_of(json_object_get(entry, "tokenizer")));
        for (uint64_t round = 0; round < 60; round++)
            check_random_cut(tok, i * 1000 + round, round % 2 ? DETOKENIZE_SKIP_SPECIAL : 0);
        tokenizer_free(tok);
    }
    json_decref(file);
    static const char *const files[] = {SMALL, "build/data/tokenizers/llama-2/tokenizer.model",
                                        "build/data/tokenizers/albert/spiece.model", "build/data/tokenizers/o200k"};
    for (i = 0; i < ARRAY_LEN(files); i++) {
        struct tokenizer *tok = open_tokenizer(files[i]);
        for (uint64_t round = 0; round < 300; round++)
            check_random_cut(tok, i * 10000 + round, round % 2 ? DETOKENIZE_SKIP_SPECIAL : 0);
        tokenizer_free(tok);
    }
}

static void expect_bytes(const struct tokenizer *tok, const char *token, const char *inside, const char *first) {
    struct buf a = {0}, b = {0};
    int32_t id = tokenizer_find(tok, str_of(token));
    EXPECT(id >= 0);
    tokenizer_token_bytes(tok, id, &a);
    tokenizer_first_token_bytes(tok, id, &b);
    EXPECT_STR(buf_view(&a).ptr, inside);
    EXPECT_STR(buf_view(&b).ptr, first);
    buf_release(&a);
    buf_release(&b);
}

static void a_token_at_the_beginning_has_the_name_that_its_text_has(void **state) {
    (void)state;
    struct tokenizer *tok = open_tokenizer(SMALL);
    expect_bytes(tok, "\xE2\x96\x81the", " the", "the");
    expect_bytes(tok, "<0x0A>", "\n", "\n");
    expect_bytes(tok, "<s>", "<s>", "<s>");
    tokenizer_free(tok);
    tok = open_tokenizer("build/data/tokenizers/bert-base-uncased/tokenizer.json");
    expect_bytes(tok, "fox", " fox", "fox");
    expect_bytes(tok, "##s", "s", "##s");
    tokenizer_free(tok);
    tok = open_tokenizer("build/data/tokenizers/qwen3");
    expect_bytes(tok, "\xC4\xA0the", " the", " the");
    tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_librarys_texts_without_their_prompts),
        cmocka_unit_test(no_cut_loses_or_repeats_text),
        cmocka_unit_test(a_token_at_the_beginning_has_the_name_that_its_text_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
