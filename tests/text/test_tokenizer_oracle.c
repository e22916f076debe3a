/* test_tokenizer_oracle.c - 80 tokenizers drawn at random from all parts that tokenizer.json can have, against what
 * Hugging Face's tokenizers 0.22.2 makes of 17 texts each (tools/fixtures/tokenizer_oracle.py 20 80 8). */
#include "check.h"

#include "base/file.h"
#include "base/json/json.h"
#include "text/detokenizer.h"

#include <unistd.h>

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

/* By way of a file, as any other. */
static struct tokenizer *open_text(struct str text) {
    char path[] = "/tmp/gyre-oracle-XXXXXX.json";
    int fd = mkstemps(path, 5);
    EXPECT(fd >= 0 && write(fd, text.ptr, text.len) == (ssize_t)text.len);
    close(fd);
    struct tokenizer *tok;
    struct error err;
    enum status st = tokenizer_open(path, &tok, &err);
    unlink(path);
    EXPECT_OK(st, err);
    return tok;
}

static void complain(struct str tokenizer, const json_t *text, const char *key, const char *got) {
    print_error("%.*s ...\n", (int)MIN(tokenizer.len, 3000), tokenizer.ptr); // all but the model
    fail_msg("%s of %s: %s", key, json_dumps(text, JSON_ENCODE_ANY), got);
}

static void check_ids(struct encoder *enc, struct str tokenizer, const json_t *c, const char *key, int flags) {
    const json_t *wanted = json_object_get(c, key), *text = json_object_get(c, "text");
    struct token_ids ids = {0};
    struct error err;
    if (!json_is_array(wanted)) // the library raises
        return;
    if (tokenizer_encode(enc, string_of(text), flags, &ids, &err) != OK)
        complain(tokenizer, text, key, err.text);
    bool same = ids.n == json_array_size(wanted);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(wanted, i));
    if (!same)
        complain(tokenizer, text, key, "other ids");
    token_ids_release(&ids);
}

static void check_text(const struct tokenizer *tok, struct str tokenizer, const json_t *c, const char *key, int flags) {
    const json_t *wanted = json_object_get(c, key), *list = json_object_get(c, "whole");
    struct buf text = {0};
    struct error err;
    if (!json_is_string(wanted))
        return;
    struct detokenizer *d = detokenizer_open(tok, flags);
    for (size_t i = 0; i < json_array_size(list); i++)
        EXPECT_OK(detokenizer_feed(d, (int32_t)json_integer_value(json_array_get(list, i)), &text, &err), err);
    EXPECT_OK(detokenizer_finish(d, &text, &err), err);
    if (!str_eq(buf_view(&text), string_of(wanted)))
        complain(tokenizer, json_object_get(c, "text"), key, text.ptr);
    detokenizer_free(d);
    buf_release(&text);
}

static void random_tokenizers_do_what_the_library_does(void **state) {
    (void)state;
    struct error err;
    json_t *file, *entry, *c;
    EXPECT_OK(jv_load("build/data/tokenizers/oracle.json", 64 << 20, 0, &file, &err), err);
    size_t i, k;
    json_array_foreach(file, i, entry) {
        struct str tokenizer = string_of(json_object_get(entry, "tokenizer"));
        struct tokenizer *tok = open_text(tokenizer);
        struct encoder *enc = encoder_open(tok);
        json_array_foreach(json_object_get(entry, "cases"), k, c) {
            check_ids(enc, tokenizer, c, "ids", 0);
            check_ids(enc, tokenizer, c, "parsed", ENCODE_PARSE_SPECIAL);
            check_ids(enc, tokenizer, c, "whole", ENCODE_PARSE_SPECIAL | ENCODE_ADD_SPECIAL);
            check_text(tok, tokenizer, c, "decoded", 0);
            check_text(tok, tokenizer, c, "skipped", DETOKENIZE_SKIP_SPECIAL);
        }
        EXPECT_EQ(k, 17);
        encoder_free(enc);
        tokenizer_free(tok);
    }
    EXPECT_EQ(i, 80);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_tokenizers_do_what_the_library_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
