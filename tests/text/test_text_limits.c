/* test_text_limits.c - what a tokenizer's file, or a text's length, can cost: memory and time have bounds, and past
 * them there is one sentence. */
#include "check.h"

#include "base/clock.h"
#include "base/file.h"
#include "text/detokenizer.h"

#include <unistd.h>

#define FILES "build/data/tokenizers/"
#define DOUBLE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

static struct tokenizer *open_tokenizer(const char *path) {
    struct error err;
    struct tokenizer *tok;
    EXPECT_OK(tokenizer_open(path, &tok, &err), err);
    return tok;
}

/* {"type":"Sequence","LIST":[part, part, ...]} */
static const char *chain(const char *list, const char *part, int n) {
    static struct buf out;
    buf_clear(&out);
    buf_printf(&out, "{\"type\":\"Sequence\",\"%s\":[", list);
    for (int i = 0; i < n; i++)
        buf_printf(&out, "%s%s", i ? "," : "", part);
    buf_str(&out, STR("]}"));
    return out.ptr;
}

/* A tokenizer.json of the letter a whose part `name` is `value`. */
static enum status open_with(const char *name, const char *value, const char *added, struct tokenizer **out,
                             struct error *err) {
    char path[] = "/tmp/gyre-limits-XXXXXX.json";
    int fd = mkstemps(path, 5);
    struct buf text = {0};
    buf_printf(&text, "{\"added_tokens\":[%s],\"%s\":%s,", added, name, value);
    buf_str(&text, STR("\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\"b\":1}}}"));
    EXPECT(fd >= 0 && write(fd, text.ptr, text.len) == (ssize_t)text.len);
    close(fd);
    buf_release(&text);
    enum status st = tokenizer_open(path, out, err);
    unlink(path);
    return st;
}

static void expect_refusal_of_text(const char *name, const char *value, const char *text) {
    struct tokenizer *tok;
    struct error err;
    struct token_ids ids = {0};
    EXPECT_OK(open_with(name, value, "", &tok, &err), err);
    struct encoder *enc = encoder_open(tok);
    EXPECT_EQ(tokenizer_encode(enc, str_of(text), 0, &ids, &err), ERR_LIMIT);
    EXPECT(strstr(err.text, "this text") && strstr(err.text, "bytes of memory"));
    EXPECT_EQ(ids.n, 0);
    EXPECT_OK(tokenizer_encode(enc, STR("b"), 0, &ids, &err), err); // and the next text is like any other
    EXPECT(ids.n == 1 && ids.ids[0] == 1);
    token_ids_release(&ids);
    encoder_free(enc);
    tokenizer_free(tok);
}

static void chains_that_multiply_a_text_are_stopped(void **state) {
    (void)state;
    expect_refusal_of_text("normalizer", chain("normalizers", DOUBLE, 40), "a");
    expect_refusal_of_text("normalizer", chain("normalizers", "{\"type\":\"ByteLevel\"}", 40), "\xC3\xA9");
    expect_refusal_of_text("pre_tokenizer", chain("pretokenizers", BYTES, 40), "\xC3\xA9");
}

static void an_added_token_that_grows_without_end_does_not_open(void **state) {
    (void)state;
    static const char added[] = "{\"id\":5,\"content\":\"a!\",\"special\":false,\"normalized\":true}";
    struct tokenizer *tok = NULL;
    struct error err;
    EXPECT_EQ(open_with("normalizer", chain("normalizers", DOUBLE, 40), added, &tok, &err), ERR_LIMIT);
    EXPECT(strstr(err.text, "bytes of memory"));
    EXPECT_EQ(open_with("normalizer", chain("normalizers", DOUBLE, 200), "", &tok, &err), ERR_LIMIT);
    EXPECT(strstr(err.text, "\"normalizer\" has more than 100 steps"));
}

static void decoders_that_multiply_a_token_are_stopped(void **state) {
    (void)state;
    struct tokenizer *tok;
    struct error err;
    struct buf out = {0};
    EXPECT_OK(open_with("decoder", chain("decoders", DOUBLE, 40), "", &tok, &err), err);
    int32_t a = 0, b = 1;
    EXPECT_EQ(tokenizer_decode(tok, &a, 1, 0, &out, &err), ERR_LIMIT);
    EXPECT(strstr(err.text, "decod"));
    buf_clear(&out);
    EXPECT_OK(tokenizer_decode(tok, &b, 1, 0, &out, &err), err);
    EXPECT_STR(out.ptr, "b");
    buf_clear(&out);
    tokenizer_token_bytes(tok, a, &out); // a name for lists, whatever it costs: not without bound
    EXPECT(out.len < 64 << 20);
    buf_release(&out);
    tokenizer_free(tok);
}

/* Each token may be tripled, or made a megabyte of; all tokens together may not. */
static void what_decoders_add_is_counted_over_the_whole_answer(void **state) {
    (void)state;
    struct tokenizer *tok;
    struct error err;
    struct buf out = {0}, content = {0};
    static const char head[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"";
    buf_str(&content, STR(head));
    for (int i = 0; i < 500000; i++)
        buf_push(&content, 'x');
    buf_str(&content, STR("\"}"));
    EXPECT_OK(open_with("decoder", content.ptr, "", &tok, &err), err);
    struct detokenizer *d = detokenizer_open(tok, 0);
    EXPECT_OK(detokenizer_feed(d, 0, &out, &err), err);
    EXPECT_OK(detokenizer_feed(d, 0, &out, &err), err);
    EXPECT_EQ(detokenizer_feed(d, 0, &out, &err), ERR_LIMIT);
    detokenizer_free(d);
    buf_release(&out);
    buf_release(&content);
    tokenizer_free(tok);
}

static double seconds_until_refused(const char *pattern, struct str text) {
    struct tokenizer *tok;
    struct error err;
    struct buf split = {0};
    buf_printf(&split, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false}",
               pattern);
    EXPECT_OK(open_with("pre_tokenizer", split.ptr, "", &tok, &err), err);
    struct encoder *enc = encoder_open(tok);
    struct token_ids ids = {0};
    clock_t start = clock(); // of this process: others may be busy
    EXPECT_EQ(tokenizer_encode(enc, text, 0, &ids, &err), ERR_LIMIT);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    EXPECT(strstr(err.text, "pattern"));
    EXPECT_EQ(ids.n, 0);
    EXPECT_OK(tokenizer_encode(enc, STR("b"), 0, &ids, &err), err);
    token_ids_release(&ids);
    encoder_free(enc);
    buf_release(&split);
    tokenizer_free(tok);
    return seconds;
}

/* Each match is cheap enough, or there is none and each place costs; or each looks at all that follows. One second of
 * processor time is the limit; a machine may give a tenth of its time. */
static void patterns_have_one_budget_for_the_whole_text(void **state) {
    (void)state;
    struct buf hard = {0}, long_text = {0};
    for (int i = 0; i < 400; i++)
        buf_str(&hard, STR("aaaaaaaaaaaaaaaaaaaaac"));
    for (int i = 0; i < 1 << 20; i++)
        buf_push(&long_text, i % 40 ? 'a' : ' ');
    EXPECT(seconds_until_refused("(?:a|a)*b|[\\\\s\\\\S]", buf_view(&hard)) < 40);
    EXPECT(seconds_until_refused("(?:a|a)*[bd]", buf_view(&hard)) < 40);
    EXPECT(seconds_until_refused("a(?=[\\\\s\\\\S]*x)|[\\\\s\\\\S]", buf_view(&long_text)) < 60);
    buf_release(&hard);
    buf_release(&long_text);
}

/* With `most` bytes of working memory a byte of the text it can be done, with a quarter of them not; which leaves no
 * trace. */
static void check_memory(const char *file, struct str text, size_t most) {
    struct tokenizer *tok = open_tokenizer(file);
    struct encoder *enc = encoder_open(tok);
    struct token_ids ids = {0}, again = {0};
    struct error err;
    token_ids_push(&ids, 77);
    encoder_set_budget(enc, most * text.len / 4);
    EXPECT_EQ(tokenizer_encode(enc, text, 0, &ids, &err), ERR_LIMIT);
    EXPECT(ids.n == 1 && ids.ids[0] == 77);
    encoder_set_budget(enc, most * text.len);
    enum status st = tokenizer_encode(enc, text, 0, &ids, &err);
    if (st != OK)
        fail_msg("%s: %s", file, err.text);
    encoder_set_budget(enc, SIZE_MAX);
    EXPECT_OK(tokenizer_encode(enc, text, 0, &again, &err), err);
    EXPECT_EQ(ids.n, again.n + 1);
    EXPECT(memcmp(ids.ids + 1, again.ids, again.n * sizeof *again.ids) == 0);
    token_ids_release(&ids);
    token_ids_release(&again);
    encoder_free(enc);
    tokenizer_free(tok);
}

static void a_long_text_takes_no_more_than_a_few_bytes_a_byte(void **state) {
    (void)state;
    static const struct {
        const char *file;
        char letter;
        size_t most;
    } cases[] = {
        {FILES "qwen3", 'a', 16},
        {FILES "llama-2/tokenizer.json", 'a', 24},
        {FILES "llama-2/tokenizer.model", 'a', 24},
        {FILES "llama-2/tokenizer.json", ' ', 40}, // each becomes three bytes
        {FILES "albert/tokenizer.json", 'a', 32},
        {FILES "bert-base-uncased/tokenizer.json", 'a', 8},
    };
    struct buf text = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (test_is_brief() && (i + test_seed()) % 3 != 0)
            continue;
        buf_clear(&text);
        for (int k = 0, n = test_is_brief() ? 1 << 18 : 1 << 20; k < n; k++)
            buf_push(&text, cases[i].letter);
        check_memory(cases[i].file, buf_view(&text), cases[i].most);
    }
    buf_release(&text);
}

static void memory_that_the_system_refuses_is_told(void **state) {
    (void)state;
    struct budget budget = {.limit = SIZE_MAX};
    struct buf b = {.budget = &budget};
    struct error err;
    buf_str(&b, STR("kept"));
    EXPECT(!buf_reserve(&b, SIZE_MAX / 8));
    buf_printf(&b, " and %d", 7);
    EXPECT_STR(b.ptr, "kept and 7");
    EXPECT_EQ(budget_check(&budget, "this", &err), ERR_MEMORY);
    EXPECT_STR(err.text, "this takes more memory than there is");
    buf_release(&b);
    EXPECT_EQ(budget.used, 0);
    budget = (struct budget){.limit = 200};
    for (int i = 0; i < 100; i++)
        buf_printf(&b, "%d,", i);
    EXPECT(b.len < 200 && b.len > 100 && b.ptr[b.len] == '\0' && budget.used <= 200);
    EXPECT_EQ(budget_check(&budget, "this", &err), ERR_LIMIT);
    buf_release(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_that_multiply_a_text_are_stopped),
        cmocka_unit_test(an_added_token_that_grows_without_end_does_not_open),
        cmocka_unit_test(decoders_that_multiply_a_token_are_stopped),
        cmocka_unit_test(what_decoders_add_is_counted_over_the_whole_answer),
        cmocka_unit_test(patterns_have_one_budget_for_the_whole_text),
        cmocka_unit_test(a_long_text_takes_no_more_than_a_few_bytes_a_byte),
        cmocka_unit_test(memory_that_the_system_refuses_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
